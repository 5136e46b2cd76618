"""Counts the wrong tokens of each address. Runs in the web server's process.

Must not refuse a program whose token was right before: a stranger behind the same proxy could stop all workers there.
"""

import ipaddress
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import HTTPConnection

from supervisor import clock
from supervisor.web.auth import is_address

#: Different wrong tokens of one address. A program that repeats one is not guessing.
MOST_WRONG: Final = 100
_WINDOW_S: Final = 3600
#: The address that began first makes way for one more.
_MOST_ADDRESSES: Final = 1000


@dataclass(slots=True)
class _Tried:
    """The tokens of one address, by their digests."""

    ends_at: float
    wrong: set[bytes] = field(default_factory=set)
    right: set[bytes] = field(default_factory=set)


class Guesses:
    """The tokens that each address has tried within an hour."""

    def __init__(self) -> None:
        self._by_address: dict[str, _Tried] = {}

    def wait_s(self, connection: HTTPConnection) -> float:
        """Return for how long this address may try no further token; 0 if it may."""
        tried = self._by_address.get(_address(connection))
        if tried is None or len(tried.wrong) < MOST_WRONG:
            return 0
        return max(0, tried.ends_at - clock.monotonic())

    def may_try(self, connection: HTTPConnection, digest: bytes) -> bool:
        """Return True unless the token is a further one of an address that has tried too many."""
        return self.wait_s(connection) == 0 or digest in self._by_address[_address(connection)].right

    def record(self, connection: HTTPConnection, digest: bytes, *, is_right: bool) -> None:
        """Note whether a token was right."""
        address, now_at = _address(connection), clock.monotonic()
        tried = self._by_address.get(address)
        if tried is None or tried.ends_at <= now_at:
            self._by_address.pop(address, None)  # so that it is the latest one again
            tried = self._by_address[address] = _Tried(now_at + _WINDOW_S)
            if len(self._by_address) > _MOST_ADDRESSES:
                del self._by_address[next(iter(self._by_address))]
        (tried.right if is_right else tried.wrong).add(digest)


def _address(connection: HTTPConnection) -> str:
    """Return where the connection comes from. One host may choose among all addresses of an IPv6 network."""
    host = connection.client.host if connection.client else ""
    if not is_address(host) or ":" not in host:
        return host
    return str(ipaddress.ip_interface(f"{host}/64").network)
