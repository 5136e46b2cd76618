"""Reads the payloads that the reply to a lease leaves out. Runs in every process that leases. Does no I/O.

Redis hashes each byte that a script gets, so lease.lua answers only the size of a large payload. Whoever runs the lease
sends `LeftOut.commands` right behind it, and completes the reply by theirs before it is parsed.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

#: The length of a row of the reply (lease.lua) that has a dense record and its payload.
PAIR: Final = 2

#: Stands for the payload of a job whose lease was lost before the payload was read.
LOST: Final = object()

#: The place of the marks among the rest of a full record.
_MARKS: Final = 10


def once_jobs(reply: Sequence[Any]) -> list[tuple[str, int]]:
    """Return jid and token of the jobs of the reply to a lease that must not start twice."""
    first_token, jids, rows = reply[2], reply[-2], reply[-1]
    return [(jids[i].decode(), first_token + i) for i, row in enumerate(rows) if _is_once(row)]


def _is_once(row: Any) -> bool:
    rest = row[-1] if type(row) is list and len(row) > PAIR else None
    return bool(rest and rest[_MARKS] and b"o" in rest[_MARKS])


def place_of_payload(row: Sequence[Any]) -> int:
    """Return where the payload is in a row that has it beside a record, or among the fields of a full one."""
    return 1 if len(row) == PAIR else 2


class SentBehind(Protocol):
    """Commands that go right behind another one. Their replies complete its reply before that is parsed."""

    @property
    def commands(self) -> Sequence[tuple[Any, ...]]:
        """Redis commands. They may be none."""
        ...

    def fill(self, replies: Sequence[Any]) -> None:
        """Complete the reply by those to `commands`, of which none is an error."""
        ...


class LeftOut:
    """The payloads that one reply leaves out."""

    def __init__(self, prefix: str, worker: str, reply: list[Any]) -> None:
        self._first_token, self._jids, self._rows = reply[2], reply[-2], reply[-1]
        self._indexes = [
            index
            for index, row in enumerate(self._rows)
            if type(row) is list and type(row[place_of_payload(row)]) is int
        ]
        #: Redis commands. The second one answers which jobs the worker holds under the tokens of this lease.
        self.commands: Sequence[tuple[Any, ...]] = ()
        if self._indexes:
            wanted = [self._jids[index] for index in self._indexes]
            begin = prefix.encode() + b"data:"
            tokens = self._first_token, f"({self._first_token + len(self._jids)}"
            self.commands = (
                ("MGET", *[begin + jid for jid in wanted]),
                ("ZRANGEBYSCORE", f"{prefix}held:{worker}", *tokens),
            )

    def fill(self, replies: Sequence[Any]) -> None:
        """Complete the reply to the lease by those to `commands`.

        A job may be cancelled, moved or put anew before its payload is read. No lease gets a token for the second time:
        a worker that then still holds the job under the token of this lease has read the payload of this lease.
        """
        payloads, held = replies[0], set(replies[1])
        for index, payload in zip(self._indexes, payloads, strict=True):
            row = self._rows[index]
            row[place_of_payload(row)] = payload if self._jids[index] in held else LOST
