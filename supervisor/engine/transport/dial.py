"""Connects to the Redis server of a URL. Runs in a thread of the master, because connecting may block.

Plain addresses (TCP or a unix socket, user, password, database) are dialled here. TLS and all other options are left to
redis-py, whose import costs a process 20 MB and its start a tenth of a second.
"""

import socket
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

_PORT: Final = 6379
#: redis-py's values. They detect a peer that vanished without a FIN within 45 s.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class Unreachable(Exception):
    """The server cannot be reached or refuses the login. The text says why, without the password."""


class BlockingConnection:
    """An established connection that may still block."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._reader = hiredis.Reader()

    def call(self, *command: Any) -> Any:
        """Send a command and return its reply; an error reply is a value, `hiredis.ReplyError`. Raises Unreachable."""
        words: Any = command  # hiredis' type hint allows only one word
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


def dial(url: str, timeout_s: float) -> BlockingConnection:
    """Connect and log in. Each step blocks for at most `timeout_s`. Raises Unreachable."""
    try:
        plain = _PlainUrl.of(url)
        return _dialled(plain, timeout_s) if plain is not None else _by_redis_py(url, timeout_s)
    except (OSError, ValueError) as error:  # ValueError: the host name is invalid
        raise Unreachable(f"connecting failed: {getattr(error, 'strerror', None) or error}") from error


@dataclass(frozen=True, slots=True)
class _PlainUrl:
    """An address without options."""

    path: str  # of a unix socket; empty for TCP
    host: str
    port: int
    account: tuple[str, ...]  # the arguments of AUTH
    db: int

    @staticmethod
    def of(url: str) -> "_PlainUrl | None":
        """Parse a URL as redis-py does. Returns None if it has further options. Raises ValueError."""
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        if parts.scheme not in ("redis", "unix") or options.keys() - {"db"}:
            return None
        is_unix = parts.scheme == "unix"
        named = "" if is_unix else unquote(parts.path).replace("/", "")
        return _PlainUrl(
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


def _dialled(plain: _PlainUrl, timeout_s: float) -> BlockingConnection:
    connection = BlockingConnection(_connected(plain, timeout_s))
    try:
        if plain.account:
            _must(connection.call("AUTH", *plain.account))
        if plain.db:
            _must(connection.call("SELECT", plain.db))
        reply = connection.call("PING")  # a server at its connection limit accepts, and reports that in the first reply
        if not str(reply).startswith("NOPERM"):
            _must(reply)
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(plain: _PlainUrl, timeout_s: float) -> socket.socket:
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


def _by_redis_py(url: str, timeout_s: float) -> BlockingConnection:
    import redis  # imported only for addresses that need it

    try:
        connection: Any = pool_of(url, timeout_s).make_connection()
        connection.connect()
    except (redis.RedisError, TypeError) as error:  # TypeError: an unknown option
        raise Unreachable(str(error)) from error
    # The socket is detached, because redis-py closes it together with its own connection object.
    connected, connection._sock = connection._sock, None
    return BlockingConnection(connected)


def pool_of(url: str, timeout_s: float) -> Any:
    """Return a pool of redis-py whose connections return bytes and never send anything twice.

    `timeout_s` limits each step. Raises ValueError.
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
