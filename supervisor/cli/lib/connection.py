"""How a command gets to Redis, in the command's process: by flag, by variable, or to this directory's own server.

Owns the share in that server while the command runs. Must not import the public client for `run`.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from supervisor.cli.lib.parser import Refusal, UsageError, add_settings, given
from supervisor.cli.lib.terminal import note
from supervisor.config import CONNECTION, Exit, read

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Declare --redis-url and --namespace."""
    add_settings(parser, CONNECTION)


@contextmanager
def server_url(redis_url: str | None) -> Iterator[str]:
    """The URL itself, or for None and `embedded:` that of the embedded server, held while the block runs."""
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
def connect(args: argparse.Namespace) -> Iterator["Client"]:
    """A client for the block. What the engine refuses inside it becomes one sentence and the exit code of its kind."""
    values = read(CONNECTION, given(args), os.environ)
    with server_url(values["redis_url"]) as url:
        from supervisor.engine.client.sync_client import Client
        from supervisor.engine.model.errors import LeaseholdError, OutcomeUnknown, StoreUnavailable

        try:
            with Client(url, values["namespace"]) as client:
                yield client
        except (StoreUnavailable, OutcomeUnknown) as error:
            raise Refusal(str(error), Exit.UNREACHABLE) from error
        except LeaseholdError as error:
            raise Refusal(str(error)) from error


@contextmanager
def arguments() -> Iterator[None]:
    """Around one call of the client: an argument that it does not take is wrong use of the command."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
