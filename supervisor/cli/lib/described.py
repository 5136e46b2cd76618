"""Learns what handlers there are from a process that imports them. Runs in the command's process.

Must not import them itself.
"""

import argparse
import os
import subprocess
import sys
from typing import Any, Final, NamedTuple

import orjson

from supervisor.cli.lib.parser import Refusal, add_settings, given
from supervisor.config import IN_POOL, SETTINGS, read
from supervisor.exit_codes import Exit

_SETTINGS: Final = tuple(setting for setting in SETTINGS if setting.flag in ("handlers", "boot-timeout"))
#: Handlers get none of these, in `run` either.
_HELD_BACK: Final = ("LEASEHOLD_REDIS_URL", "LEASEHOLD_NAMESPACE")


class Described(NamedTuple):
    """One handler, as `child/description.py` describes it."""

    klass: str
    function: str
    doc: str
    parameters: list[str] | None
    data: dict[str, Any] | None
    result: dict[str, Any] | None
    settings: dict[str, Any]
    options: dict[str, Any]
    rhythm: dict[str, Any]


def add_handlers(parser: argparse.ArgumentParser) -> None:
    """Declare --handlers and --boot-timeout, as `run` has them."""
    add_settings(parser, _SETTINGS)


def root_of(args: argparse.Namespace) -> str:
    """Return the package of the handlers."""
    return str(_read(args)["handlers"])


def describe(args: argparse.Namespace) -> list[Described]:
    """Import the handlers in another process, and return them by klass. Takes as long as the import. Raises Refusal."""
    root, most_s = root_of(args), _read(args)["boot_timeout_s"]
    command = [sys.executable, "-m", "supervisor.child.description", root]
    try:
        done = subprocess.run(
            command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=most_s
        )
    except subprocess.TimeoutExpired:
        raise Refusal(
            f"{root!r} was not imported within {most_s:g} s; import less, or raise --boot-timeout", Exit.HANDLERS
        ) from None
    if done.returncode:
        raise Refusal(
            f"the process that imports {root!r} ended meanwhile ({done.returncode}); look for the module that exits or"
            " crashes when it is imported",
            Exit.HANDLERS,
        )
    described: dict[str, dict[str, Any]] | str = orjson.loads(done.stdout)
    if isinstance(described, str):
        raise Refusal(described, Exit.HANDLERS)
    return [Described(klass, **about) for klass, about in described.items()]


def environment() -> dict[str, str]:
    """Return the environment of a process that imports handlers: without the address of the queue."""
    return {name: value for name, value in os.environ.items() if name not in _HELD_BACK} | {IN_POOL: "1"}


def _read(args: argparse.Namespace) -> dict[str, Any]:
    return read(_SETTINGS, given(args), os.environ)
