"""Reads what the reply to a lease leaves out: large payloads, and signals, waits and steps of earlier starts.

Runs in every process that leases. Does no I/O. Redis hashes each byte that a script gets, so lease.lua answers only the
size. Whoever runs the lease sends `LeftOut.commands` right behind it, and completes the reply by theirs before it is
parsed.
"""

from collections.abc import Sequence
from typing import Any, Final

from supervisor.engine.model.replay import packed

#: The length of a row of the reply (lease.lua) that has a dense record and its payload.
PAIR: Final = 2

#: Stands for the payload of a job whose lease was lost before the payload was read.
LOST: Final = object()

#: The places of the marks, and of the size of what earlier starts have left, among the rest of a full record.
_MARKS: Final = 10
_REPLAY: Final = 13


def once_jobs(reply: Sequence[Any]) -> list[tuple[str, int]]:
    """Return jid and token of the jobs of the reply to a lease that must not start twice."""
    first_token, jids, rows = reply[2], reply[-2], reply[-1]
    return [(jids[i].decode(errors="replace"), first_token + i) for i, row in enumerate(rows) if _is_once(row)]


def _is_once(row: Any) -> bool:
    rest = row[-1] if type(row) is list and len(row) > PAIR else None
    return bool(rest and rest[_MARKS] and b"o" in rest[_MARKS])


def _has_replay(row: Sequence[Any]) -> bool:
    return len(row) > PAIR and bool(row[-1]) and bool(row[-1][_REPLAY])


def place_of_payload(row: Sequence[Any]) -> int:
    """Return where the payload is in a row that has it beside a record, or among the fields of a full one."""
    return 1 if len(row) == PAIR else 2


class LeftOut:
    """The payloads and replays that one reply leaves out."""

    def __init__(self, prefix: str, worker: str, reply: list[Any]) -> None:
        self._now_ms, self._first_token, self._jids, self._rows = reply[0], reply[2], reply[-2], reply[-1]
        full = [(index, row) for index, row in enumerate(self._rows) if type(row) is list]
        self._payloads = [index for index, row in full if type(row[place_of_payload(row)]) is int]
        self._replays = [index for index, row in full if _has_replay(row)]
        #: Redis commands. The last one answers which jobs the worker holds under the tokens of this lease.
        self.commands: Sequence[tuple[Any, ...]] = ()
        if self._payloads or self._replays:
            begin = prefix.encode()
            payloads = [begin + b"data:" + self._jids[index] for index in self._payloads]
            replays = [begin + b"replay:" + self._jids[index] for index in self._replays]
            tokens = self._first_token, f"({self._first_token + len(self._jids)}"
            self.commands = (
                *([("MGET", *payloads)] if payloads else []),
                *(("HGETALL", key) for key in replays),
                ("ZRANGEBYSCORE", f"{prefix}held:{worker}", *tokens),
            )

    def fill(self, replies: Sequence[Any]) -> None:
        """Complete the reply to the lease by those to `commands`.

        A job may be cancelled, moved or put anew before its payload is read. No lease gets a token for the second time:
        a worker that then still holds the job under the token of this lease has read the payload of this lease.
        """
        *found, held = replies
        payloads = found.pop(0) if self._payloads else []
        for index, payload in zip(self._payloads, payloads, strict=True):
            row = self._rows[index]
            row[place_of_payload(row)] = payload
        for index, fields in zip(self._replays, found, strict=True):
            # A foreign key in its place counts as missing, and stops no worker.
            self._rows[index][-1][_REPLAY] = packed(fields if isinstance(fields, list) else (), self._now_ms)
        still_held = set(held)
        for index in {*self._payloads, *self._replays}:
            if self._jids[index] not in still_held:
                row = self._rows[index]
                row[place_of_payload(row)] = LOST
