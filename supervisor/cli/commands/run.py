"""`leasehold run`: turns its process into the master. Owns the settings and the embedded server until the master
returns.

Must not import the public client: the master has its own link to Redis.
"""

import argparse
import contextlib
import dataclasses
import os
import sys

from supervisor.cli.lib.connection import server_url
from supervisor.cli.lib.parser import Subparsers, add_settings, given
from supervisor.config import SETTINGS, ConfigError, RunConfig

EXAMPLES = """\
examples:
  leasehold run
  leasehold run --redis-url redis://localhost:6379/0 --queue high --queue default --processes 4
  leasehold run --order weighted --queue high:3 --queue 'email-*' --queue '!email-bulk'
  LEASEHOLD_PROCESSES=auto LEASEHOLD_QUEUE=high,default leasehold run

Durations: 30, 30s, 500ms, 5m, 2h, 7d. Every flag is also a variable: --job-timeout 5m is LEASEHOLD_JOB_TIMEOUT=5m.
Signals: TERM, INT drain; QUIT hands everything back at once; HUP reloads the handlers; TTIN, TTOU: one process more,
or fewer; USR1 logs the stacks of all children; USR2 pauses, CONT resumes."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags from the table of settings."""
    parser = subparsers.add_parser("run", description="Lease jobs and run them in child processes.", epilog=EXAMPLES)
    add_settings(parser, SETTINGS)


def run(args: argparse.Namespace) -> int:
    """Run the master until it has drained. Return its exit code."""
    flags = given(args)
    check_package()
    config = RunConfig.load(flags, os.environ, terminal=sys.stderr.isatty())
    if config.debug:
        config = dataclasses.replace(config, terminal=terminal_of(sys.stdin.fileno()))
    check_queues(config, "--queue" if flags["queue"] or "LEASEHOLD_QUEUE" not in os.environ else "LEASEHOLD_QUEUE")
    with server_url(config.redis_url) as url:
        from supervisor.master import master

        return master.run(dataclasses.replace(config, redis_url=url))


def check_package() -> None:
    """Raise ConfigError if `supervisor`, which handlers import, is another package. PyPI's supervisord has the same
    name.
    """
    import supervisor

    if hasattr(supervisor, "__all__"):
        return
    from importlib import metadata

    cure = "pip install --force-reinstall --no-deps leasehold"
    sentence = f"Parts of Leasehold's package are gone, as after `pip uninstall supervisor`: {cure}."
    with contextlib.suppress(metadata.PackageNotFoundError):
        sentence = (
            f"supervisord ({metadata.version('supervisor')}) is installed over Leasehold, for both have a package"
            f" `supervisor`: give it an environment of its own, and here pip uninstall supervisor, then {cure}."
        )
    raise ConfigError([sentence])


def terminal_of(fd: int) -> str:
    """Return the path of the terminal at a descriptor. Raises ConfigError if there is none."""
    try:
        return os.ttyname(fd)
    except OSError as error:
        raise ConfigError(
            ["--debug gives handlers the terminal on stdin, and there is none: start it in a terminal."]
        ) from error


def check_queues(config: RunConfig, name: str) -> None:
    """Raise ConfigError if the queues make no sense in their order. `name`: the flag or variable that gave them."""
    from supervisor.engine.model.queue_order import Queues

    try:
        Queues(config.queue, config.order)
    except ValueError as error:
        raise ConfigError([f"{name}: {error}."]) from error
