"""Reaches the server, for a master that never waits on a connection once it stands. Runs in a thread of the master.

Owns what an address means. A plain one (TCP or a unix socket, user, password, database) is reached from here; TLS, and
whatever else a URL may ask for, is redis-py's, which takes a process 20 MB and its start a tenth of a second.
"""

import socket
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

_PORT: Final = 6379
#: As redis-py has them: a peer that is gone without a word is noticed within 45 s.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class Unreachable(Exception):
    """There is no server, or it does not let us in. The text says why, without the secret."""


class Line:
    """An established connection, while it may still block."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._reader = hiredis.Reader()

    def ask(self, *command: Any) -> Any:
        """The reply; one that is an error is a value, `hiredis.ReplyError`. Raises Unreachable."""
        words: Any = command  # of any number: hiredis says that it takes one
        try:
            self.socket.sendall(hiredis.pack_command(words))
            while (reply := self._reader.gets()) is False:
                received = self.socket.recv(65536)
                if not received:
                    raise Unreachable("Redis has closed the connection")
                self._reader.feed(received)
        except OSError as error:
            raise Unreachable(f"Redis has not answered: {error.strerror or error}") from error
        except hiredis.ProtocolError as error:
            raise Unreachable(f"what answers there is not Redis: {error}") from error
        return reply

    def close(self) -> None:
        self.socket.close()


def dial(url: str, timeout_s: float) -> Line:
    """Connects, and is let in. Blocks for at most `timeout_s` in each step. Raises Unreachable."""
    try:
        plain = _Plain.of(url)
        return _dialled(plain, timeout_s) if plain is not None else _by_redis_py(url, timeout_s)
    except (OSError, ValueError) as error:  # ValueError: a host name that cannot be one
        raise Unreachable(f"connecting failed: {getattr(error, 'strerror', None) or error}") from error


@dataclass(frozen=True, slots=True)
class _Plain:
    """An address without options."""

    path: str  # of a unix socket; empty: it is reached by TCP
    host: str
    port: int
    account: tuple[str, ...]  # what AUTH takes
    db: int

    @staticmethod
    def of(url: str) -> "_Plain | None":
        """Understood as redis-py does; None: it asks for more. Raises ValueError."""
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        if parts.scheme not in ("redis", "unix") or options.keys() - {"db"}:
            return None
        is_unix = parts.scheme == "unix"
        named = "" if is_unix else unquote(parts.path).replace("/", "")
        return _Plain(
            path=unquote(parts.path) if is_unix else "",
            host=unquote(parts.hostname or "localhost"),
            port=parts.port or _PORT,
            account=_account(unquote(parts.username or ""), unquote(parts.password or "")),
            db=int(options["db"][0] if "db" in options else named or 0),
        )


def _account(user: str, password: str) -> tuple[str, ...]:
    if user:
        return user, password
    return (password,) if password else ()


def _dialled(plain: _Plain, timeout_s: float) -> Line:
    line = Line(_connected(plain, timeout_s))
    try:
        if plain.account:
            _must(line.ask("AUTH", *plain.account))
        if plain.db:
            _must(line.ask("SELECT", plain.db))
        reply = line.ask("PING")  # a server that is full takes a connection, and then says so
        if not str(reply).startswith("NOPERM"):
            _must(reply)
    except BaseException:
        line.close()
        raise
    return line


def _connected(plain: _Plain, timeout_s: float) -> socket.socket:
    if plain.path:
        unix = socket.socket(socket.AF_UNIX)
        unix.settimeout(timeout_s)
        try:
            unix.connect(plain.path)
        except BaseException:
            unix.close()
            raise
        return unix
    tcp = socket.create_connection((plain.host, plain.port), timeout_s)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for level, option, value in _KEEPALIVE:
        tcp.setsockopt(level, option, value)
    return tcp


def _must(reply: Any) -> None:
    if isinstance(reply, hiredis.ReplyError):
        raise Unreachable(f"Redis refuses: {reply}")


def _by_redis_py(url: str, timeout_s: float) -> Line:
    import redis  # only those whose address asks for it

    try:
        connection: Any = pool_of(url, timeout_s).make_connection()
        connection.connect()
    except (redis.RedisError, TypeError) as error:  # TypeError: an option that there is not
        raise Unreachable(str(error)) from error
    # It is ours from here on: redis-py would close it with the object that has made it.
    connected, connection._sock = connection._sock, None
    return Line(connected)


def pool_of(url: str, timeout_s: float) -> Any:
    """redis-py's pool for connections that speak as ours do: bytes, and nothing is ever sent twice. `timeout_s`: of
    each step. Raises ValueError.
    """
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.ConnectionPool.from_url(
        url,
        protocol=2,
        decode_responses=False,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
    )
