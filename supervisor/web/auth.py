"""Says who a visitor is. Runs in the web server's process. Must not read a request's body."""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from starlette.requests import HTTPConnection

ROLES: Final = ("viewer", "producer", "operator", "worker")
#: The roles that may see pages and what they show.
MAY_LOOK: Final = frozenset({"viewer", "operator"})


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person or program that asks. `role`: viewer, producer, operator or worker."""

    name: str
    role: str


class Auth:
    """The way in which visitors prove who they are."""

    #: A stranger is led to the page on which one logs in.
    has_login = False

    def visitor(self, connection: HTTPConnection) -> Visitor | None:
        """Return the visitor, None for a stranger. Must not block."""
        raise NotImplementedError

    def wait_s(self, connection: HTTPConnection) -> float:
        """Return for how long a stranger's proofs are not looked at, after too many wrong ones."""
        return 0


class Loopback(Auth):
    """Lets every program of this machine look, and no other."""

    def visitor(self, connection: HTTPConnection) -> Visitor | None:
        """Return a viewer if the connection comes from this machine."""
        host = connection.client.host if connection.client else ""
        return Visitor("this machine", "viewer") if is_loopback(host) else None


class ProxyHeader(Auth):
    """Believes a header in which a proxy names the user, if the connection comes from that proxy."""

    def __init__(self, header: str, proxy: str, operators: Collection[str] = ()) -> None:
        """`proxy` is its address. `operators` may act, all others look. Raises ValueError if it is no address."""
        self._operators = frozenset(operators)
        self._header = header
        self._proxy = ipaddress.ip_address(proxy)

    def visitor(self, connection: HTTPConnection) -> Visitor | None:
        """Return the user that the proxy names."""
        names = connection.headers.getlist(self._header)
        if len(names) != 1 or not names[0] or connection.client is None:
            return None  # a header that came twice may have been sent by the user
        try:
            if ipaddress.ip_address(connection.client.host) != self._proxy:
                return None
        except ValueError:
            return None
        name = text_of(names[0])
        return Visitor(name, "operator" if name in self._operators else "viewer")


def text_of(header: str) -> str:
    """Return a header as its sender meant it: in UTF-8, as most programs send it, else as it came."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def is_loopback(host: str) -> bool:
    """Return True for an address of this machine's loopback."""
    return is_address(host) and ipaddress.ip_address(host).is_loopback


def is_address(host: str) -> bool:
    """Return True for an IP address in figures."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
