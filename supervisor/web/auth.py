"""Says who a visitor is. Runs in the web server's process. Must not read a request's body."""

import ipaddress
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import HTTPConnection


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person or program that asks. `role`: viewer, producer, operator or worker."""

    name: str
    role: str


class Auth(Protocol):
    """The way in which visitors prove who they are."""

    def visitor(self, connection: HTTPConnection) -> Visitor | None:
        """Return the visitor. None: nobody may know who that is."""


class Loopback:
    """Lets every program of this machine look, and no other."""

    def visitor(self, connection: HTTPConnection) -> Visitor | None:
        """Return a viewer if the connection comes from this machine."""
        host = connection.client.host if connection.client else ""
        return Visitor("this machine", "viewer") if is_loopback(host) else None


def is_loopback(host: str) -> bool:
    """Return True for an address of this machine's loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
