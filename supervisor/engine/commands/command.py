"""Defines a command: one call of one script, as a value. Runs in every process that speaks to Redis.

Must not do I/O: the sync client, the async client and the master each run commands in their own way. The other modules
of this folder build commands by their subject. Every builder checks its arguments and raises TypeError or ValueError
naming one, before anything is sent. `now` is an injected clock's time in unix seconds; None = the server's clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from supervisor.engine.commands.routes import Route
from supervisor.engine.model.bounds import BY_BYTES, LOGIN, MOST, Login
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.scripts import Script
from supervisor.engine.model.validation import checked_int, milliseconds

T = TypeVar("T", covariant=True)
Argument = str | bytes | int


class SentBehind(Protocol):
    """Commands that go right behind another one. Their replies complete its reply before that is parsed."""

    @property
    def commands(self) -> Sequence[tuple[Any, ...]]:
        """Redis commands. They may be none."""
        ...

    def fill(self, replies: Sequence[Any]) -> None:
        """Complete the reply by those to `commands`, of which none is an error."""
        ...


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One call of one script. `parse` turns the reply (redis-py's, with bytes) into a value.

    `left_out(prefix, reply)` returns what the reply lacks, if it may lack something: that must be read, and filled in,
    before the reply is parsed. `route` says to which shards it goes, if the namespace has several.
    """

    script: Script
    args: tuple[Argument, ...]
    parse: Callable[[Any], T]
    left_out: Callable[[str, Any], SentBehind] | None = None
    route: Route | None = None

    def wire(self, prefix: str, *known: str) -> tuple[Argument, ...]:
        """Return the whole Redis command. `prefix` and `known`: Namespace.keys.

        NOSCRIPT means that it was not run: load `script.text` and send it again.
        """
        return ("EVALSHA", self.script.sha, 1 + len(known), prefix, *known, *self.args)

    def wire_with_script(self, prefix: str, *known: str) -> tuple[Argument, ...]:
        """Return the same with the script itself, for a proxy that passes no SCRIPT LOAD on."""
        return ("EVAL", self.script.text, 1 + len(known), prefix, *known, *self.args)


def checked_by(by: str | None, argument: str = "by") -> str:
    """Return the name of an actor, at most 128 bytes, or "" for None. Raises TypeError or ValueError naming it."""
    return "" if by is None else checked_name(argument, by, BY_BYTES)


def checked_claim(by: str | None, argument: str = "by") -> str | None:
    """Return who acts. Raises TypeError or ValueError naming it, also if it is not a Login and begins like one."""
    if checked_by(by, argument).startswith(LOGIN) and not isinstance(by, Login):
        raise ValueError(f"{argument} must not begin with {LOGIN}, as those do who have logged in at the page: {by!r}")
    return by


def now_ms(now: float | None) -> int | str:
    return "" if now is None else milliseconds("now", now)


def checked_batch(argument: str, values: Sequence[object]) -> None:
    if len(values) > MOST:
        raise ValueError(f"{argument} must be at most {MOST} at a time, not {len(values)}")


def checked_names(argument: str, names: Sequence[str], most: int) -> tuple[str, ...]:
    """Return 1 to `most` names, each once, in order. Raises TypeError or ValueError naming the argument."""
    if isinstance(names, str | bytes):
        raise TypeError(f"{argument} must be a list of names, not {type(names).__name__}: {names!r:.100}")
    unique = dict.fromkeys(checked_name(argument, name) for name in names)
    if not 1 <= len(unique) <= most:
        raise ValueError(f"{argument} must be 1 to {most} names, not {len(unique)}")
    return tuple(unique)


def checked_jids(argument: str, jids: Sequence[str]) -> tuple[str, ...]:
    return checked_names(argument, jids, MOST)


def checked_queues(queues: Sequence[str]) -> tuple[str, ...]:
    if isinstance(queues, str | bytes):
        raise TypeError(f"queues must be a list of names, not {type(queues).__name__}: {queues!r:.100}")
    names = dict.fromkeys(checked_name("queues", queue) for queue in queues)
    checked_int("queues", len(names), 1, MOST)
    return tuple(names)


def checked_number(number: int | None) -> int | str:
    return "" if number is None else checked_int("number", number, 0)


def checked_page(offset: int, count: int) -> tuple[int, int]:
    return checked_int("offset", offset, 0), checked_int("count", count, 0, MOST)


def parse_by(reply: object) -> tuple[str | None, float | None]:
    """Parse `<ms>:<who>` into the actor and unix seconds; None for what is unknown."""
    when_ms, colon, by = reply.decode(errors="replace").partition(":") if isinstance(reply, bytes) else ("", "", "")
    return (by or None, int(when_ms) / 1000) if colon and when_ms.isdecimal() else (None, None)


def parse_names(reply: list[bytes]) -> list[str]:
    """Decode names. A foreign one, which no script of ours has written, must not hide the others."""
    return [name.decode(errors="replace") for name in reply]


def parse_names_or_none(reply: list[bytes] | None) -> list[str] | None:
    return None if reply is None else parse_names(reply)


def parse_fields(flat: Sequence[bytes]) -> dict[str, str]:
    """Return a hash as texts. Values of other programs, as the id of an entry behind a door, may be no UTF-8."""
    return {flat[i].decode(): flat[i + 1].decode(errors="replace") for i in range(0, len(flat), 2)}


def parse_numbers(reply: list[Any]) -> dict[str, int]:
    return {reply[i].decode(): int(reply[i + 1]) for i in range(0, len(reply), 2)}
