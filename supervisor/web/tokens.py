"""Knows visitors by tokens: as a bearer in each request, or once at the login. Runs in the web server's process.

Owns the sessions, which end with the process. Must not keep a token as it is.
"""

import hashlib
import secrets
from collections.abc import Iterable
from typing import Final, NamedTuple

from starlette.requests import HTTPConnection

from supervisor import clock
from supervisor.web.auth import ROLES, Auth, Visitor, text_of
from supervisor.web.guesses import Guesses

_COOKIE: Final = "leasehold_session"
SESSION_S: Final = 12 * 3600
#: The oldest session makes way for one more.
_MOST_SESSIONS: Final = 1000
#: Shorter ones could be guessed.
_SHORTEST: Final = 20


class _LoginSession(NamedTuple):
    visitor: Visitor
    ends_at: float


class Tokens(Auth):
    """The tokens of a file, and the sessions that began with one of them."""

    has_login = True

    def __init__(self, lines: Iterable[str]) -> None:
        """`lines` are `role:name:token`, blank, or begin with #. Raises ValueError that names the line, no token."""
        self._visitors: dict[bytes, Visitor] = {}
        self._sessions: dict[bytes, _LoginSession] = {}
        self._guesses = Guesses()
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.startswith("#"):
                self._add(number, line.strip())
        if not self._visitors:
            raise ValueError("has no line role:name:token")

    def _add(self, number: int, line: str) -> None:
        role, _, rest = line.partition(":")
        name, _, token = rest.partition(":")
        token = token.strip()
        if role not in ROLES or not name:
            raise ValueError(f"line {number} must be role:name:token with one of the roles {', '.join(ROLES)}")
        if len(token) < _SHORTEST:
            raise ValueError(f"line {number}: a token has at least {_SHORTEST} characters")
        if _digest(token) in self._visitors:
            raise ValueError(f"line {number}: the token is that of another line")
        self._visitors[_digest(token)] = Visitor(name, role)

    def visitor(self, connection: HTTPConnection) -> Visitor | None:
        """Return whose token or session the request carries."""
        kind, _, token = connection.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._visitor_with(text_of(token), connection)
        session = self._sessions.get(_digest(session_cookie(connection)))
        return session.visitor if session is not None and clock.monotonic() < session.ends_at else None

    def wait_s(self, connection: HTTPConnection) -> float:
        """Return for how long no further token of this address is looked at."""
        return self._guesses.wait_s(connection)

    def log_in(self, token: str, connection: HTTPConnection) -> str | None:
        """Begin a session, and return what its cookie holds. None: nobody has this token, or it was not looked at."""
        visitor = self._visitor_with(token, connection)
        if visitor is None:
            return None
        cookie = secrets.token_urlsafe(32)
        self._sessions[_digest(cookie)] = _LoginSession(visitor, clock.monotonic() + SESSION_S)
        while len(self._sessions) > _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return cookie

    def log_out(self, cookie: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(cookie), None)

    def _visitor_with(self, token: str, connection: HTTPConnection) -> Visitor | None:
        digest = _digest(token.strip())
        if not self._guesses.may_try(connection, digest):
            return None
        visitor = self._visitors.get(digest)
        self._guesses.record(connection, digest, is_right=visitor is not None)
        return visitor


def is_encrypted(connection: HTTPConnection) -> bool:
    """Return True if the browser speaks TLS, to this server or to a proxy before it."""
    return "https" in (connection.scope.get("scheme"), connection.headers.get("x-forwarded-proto"))


def cookie_name(connection: HTTPConnection) -> str:
    """Return the name of the cookie of a session.

    With TLS a browser takes the longer name from this very host alone, for all of its paths.
    """
    return f"__Host-{_COOKIE}" if is_encrypted(connection) and not connection.scope.get("root_path") else _COOKIE


def session_cookie(connection: HTTPConnection) -> str:
    """Return what the cookie of a session holds, or an empty text."""
    return connection.cookies.get(cookie_name(connection), "")


def _digest(secret: str) -> bytes:
    """Return what is compared: how long that takes tells nothing about the secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
