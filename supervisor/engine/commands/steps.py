"""Defines the calls that take more than one command. Runs in applications and commands.

Must not do I/O, and must never run in zygote or child. A client carries out each command and sends its answer back.
"""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from supervisor.engine.commands.command import Command
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.keys import Namespace

T = TypeVar("T")
#: A generator that yields each command, receives its answer or its exception, and returns the result of the call.
Steps = Generator[Command[Any], Any, T]
#: The same, but it names the shard of each command.
Walk = Generator[tuple[Namespace, Command[Any]], Any, T]
#: Is called after each step with the number of jobs so far. What it raises ends the call between two steps.
Told = Callable[[int], object]


def ignored(_number: int) -> None:
    """Take a number, and do nothing."""


def all_pages(page: Callable[[int], Command[dict[str, T]]], least: int = MOST) -> Steps[dict[str, T]]:
    """Return the rows of all pages of a query, from offset 0 on. Each page but the last has `least` rows or more."""
    found: dict[str, T] = {}
    offset = 0
    while True:
        more: dict[str, T] = yield page(offset)
        found |= more
        offset += len(more)
        if len(more) < least:
            return found
