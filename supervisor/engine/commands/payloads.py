"""Reads the payloads that the reply to a lease leaves out. Runs in every process that leases. Does no I/O.

Redis hashes each byte that a script gets, so lease.lua answers only the size of a large payload. Whoever runs the lease
sends `LeftOut.commands` right behind it, and completes the reply by theirs before it is parsed.
"""

from collections.abc import Sequence
from typing import Any, Final

#: Values of one job in the reply, and where two of them are (lease.lua).
_WIDTH: Final = 6
_PAYLOAD: Final = 3

#: Stands for the payload of a job whose lease was lost before the payload was read.
LOST: Final = object()


class LeftOut:
    """The payloads that one reply leaves out."""

    def __init__(self, prefix: str, worker: str, reply: list[Any]) -> None:
        self._first_token, self._jobs = reply[2], reply[-1]
        payloads = self._jobs[_PAYLOAD::_WIDTH]
        self._indexes = [index for index, payload in enumerate(payloads) if type(payload) is int]
        #: Redis commands. The second one answers the tokens under which the worker holds the jobs.
        self.commands: Sequence[tuple[Any, ...]] = ()
        if self._indexes:
            jids = [self._jobs[index * _WIDTH] for index in self._indexes]
            begin = prefix.encode() + b"data:"
            self.commands = ("MGET", *[begin + jid for jid in jids]), ("ZMSCORE", f"{prefix}held:{worker}", *jids)

    def fill(self, replies: Sequence[Any]) -> None:
        """Complete the reply to the lease by those to `commands`.

        A job may be cancelled, moved or put anew before its payload is read. No lease gets a token for the second time:
        a worker that then still holds the job under the token of this lease has read the payload of this lease.
        """
        for index, payload, token in zip(self._indexes, *replies, strict=True):
            is_held = token is not None and float(token) == self._first_token + index
            self._jobs[index * _WIDTH + _PAYLOAD] = payload if is_held else LOST
