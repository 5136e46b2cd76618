"""Finds Redis for a command by flag, variable or the directory's embedded server. Runs in the command's process.

Owns the share in the embedded server while the command runs. Must not import the public client for `run`.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from supervisor.cli.lib.actor import actor_of, add_actor
from supervisor.cli.lib.parser import Refusal, UsageError, add_settings, given
from supervisor.cli.lib.terminal import note
from supervisor.config import CONNECTION, read
from supervisor.exit_codes import Exit

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client


def add_connection(parser: argparse.ArgumentParser, *, acts: bool = False) -> None:
    """Declare the settings of the connection. `acts`: the command changes something, which has an actor."""
    if acts:
        add_actor(parser)
    add_settings(parser, CONNECTION)


@contextmanager
def server_url(redis_url: str | None) -> Iterator[str]:
    """Yield the URL; for None and `embedded:` that of the embedded server, which is held while the block runs."""
    if redis_url not in {None, "embedded:"}:
        yield str(redis_url)
        return
    from supervisor.engine.embedded.embedded import EmbeddedError, acquire, refusal

    if redis_url is None and (why := refusal("--redis-url embedded:")):
        raise Refusal(why, Exit.CONFIG)
    try:
        server = acquire()
    except EmbeddedError as error:
        raise Refusal(str(error), Exit.UNREACHABLE) from error
    with server:
        if redis_url is None:
            note(f"no LEASEHOLD_REDIS_URL: using the embedded server ({server.server}) in {server.directory}")
        yield server.url


@contextmanager
def client_options(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the arguments of a client. An engine's error inside the block becomes one sentence and an exit code."""
    values = read(CONNECTION, given(args), os.environ)
    with server_url(values["redis_url"]) as url, engine_errors():
        from supervisor.engine.transport.credentials import load

        credentials, poll_s = load(values["redis_credentials"]), values["redis_poll_s"]
        yield {"url": url, "namespace": values["namespace"], "credentials": credentials, "poll": poll_s}


@contextmanager
def engine_errors() -> Iterator[None]:
    """Turn an engine's error inside the block into one sentence and an exit code."""
    from supervisor.engine.model.errors import LeaseholdError, OutcomeUnknown, StoreUnavailable

    try:
        yield
    except (StoreUnavailable, OutcomeUnknown) as error:
        raise Refusal(str(error), Exit.UNREACHABLE) from error
    except LeaseholdError as error:
        raise Refusal(str(error)) from error


@contextmanager
def connect(args: argparse.Namespace) -> Iterator["Client"]:
    """Yield a client. An engine's error inside the block becomes one sentence and the matching exit code."""
    with client_options(args) as options:
        from supervisor.engine.client.sync_client import Client

        with arguments():
            client = Client(**options, actor=actor_of(args))
        with client:
            yield client


@contextmanager
def arguments() -> Iterator[None]:
    """Turn a rejected argument of a client call into a UsageError."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
