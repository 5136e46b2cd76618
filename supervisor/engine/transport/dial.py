"""Connects to the Redis server of a URL. Runs in a thread of the master, because connecting may block.

A URL and its options mean what they mean to redis-py. redis-py is not used: importing it costs a process 20 MB, and its
start a tenth of a second.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

from supervisor import clock
from supervisor.engine.transport.account import Credentials, account_of, without_arguments

_PORT: Final = 6379
#: The seconds before the first probe. macOS, where clients run, has another name for the option.
_IDLE: Final = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
#: redis-py's values, of the options that the system has. They detect a peer that vanished without a FIN within 45 s.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in ((_IDLE, 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
)
#: The least timeout of a socket: 0 would not wait at all.
_LEAST_S: Final = 0.001


class Unreachable(Exception):
    """The server cannot be reached or refuses the login. The text says why, without the password."""


class BlockingConnection:
    """An established connection that may still block."""

    def __init__(self, connected: socket.socket, timeout_s: float) -> None:
        self.socket = connected
        self._timeout_s = timeout_s
        self._reader = hiredis.Reader()

    def call(self, *command: Any) -> Any:
        """Send a command and return its reply; an error reply is a value, `hiredis.ReplyError`.

        The whole reply must come in time, however little comes at once. Raises Unreachable.
        """
        words: Any = command  # hiredis' type hint allows only one word
        deadline_at = clock.boottime() + self._timeout_s
        try:
            self.socket.sendall(hiredis.pack_command(words))
            while (reply := self._reader.gets()) is False:
                self.socket.settimeout(max(deadline_at - clock.boottime(), _LEAST_S))
                received = self.socket.recv(65536)
                if not received:
                    raise Unreachable("Redis has closed the connection")
                self._reader.feed(received)
            self.socket.settimeout(self._timeout_s)
        except OSError as error:
            raise Unreachable(f"Redis has not answered: {error.strerror or error}") from error
        except hiredis.ProtocolError as error:
            raise Unreachable(f"what answers there is not Redis: {error}") from error
        return reply

    def close(self) -> None:
        self.socket.close()


def dial(url: str, timeout_s: float, credentials: Credentials | None = None) -> BlockingConnection:
    """Connect and log in. Each step blocks for at most `timeout_s`, unless the URL says otherwise.

    `credentials` returns the account in place of the URL's. Raises Unreachable.
    """
    try:
        return _dialled(_Address.of(url, timeout_s, credentials or partial(account_of, url)))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Unreachable(f"connecting failed: {getattr(error, 'strerror', None) or error}") from error


def connect(url: str, timeout_s: float) -> socket.socket:
    """Connect without logging in, by TLS if the URL says so. Blocks as `dial`. Raises OSError or ValueError."""
    return _connected(_Address.of(url, timeout_s, lambda: ("", "")))


@dataclass(frozen=True, slots=True)
class _Address:
    """The parts of a URL."""

    path: str  # of a unix socket; empty for TCP
    host: str
    port: int
    is_tls: bool
    account: tuple[str, ...]  # the arguments of AUTH
    db: int
    options: Mapping[str, str]
    connect_s: float
    timeout_s: float

    @staticmethod
    def of(url: str, timeout_s: float, credentials: Credentials) -> "_Address":
        """Read a URL as redis-py does. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise ValueError("the URL must begin with redis://, rediss:// or unix://")
        options = {name: unquote(values[0]) for name, values in parse_qs(parts.query).items()}
        is_unix = parts.scheme == "unix"
        named = "" if is_unix else unquote(parts.path).replace("/", "")
        return _Address(
            path=unquote(parts.path) if is_unix else "",
            host=unquote(parts.hostname or "localhost"),
            port=parts.port or _PORT,
            is_tls=parts.scheme == "rediss",
            account=_words(*credentials()),
            db=int(options.get("db", named or 0)),
            options=options,
            connect_s=float(options.get("socket_connect_timeout", timeout_s)),
            timeout_s=float(options.get("socket_timeout", timeout_s)),
        )

    def flag(self, name: str) -> bool:
        """Return an option that is true unless the URL says otherwise."""
        return self.options.get(name, "").lower() not in ("0", "f", "false", "n", "no")


def _words(user: str, password: str) -> tuple[str, ...]:
    if user:
        return user, password
    return (password,) if password else ()


def _dialled(address: _Address) -> BlockingConnection:
    connection = BlockingConnection(_connected(address), address.timeout_s)
    try:
        if address.account:
            _must(connection.call("AUTH", *address.account))
        if name := address.options.get("client_name"):
            _must(connection.call("CLIENT", "SETNAME", name))
        if address.db:
            _must(connection.call("SELECT", address.db))
        reply = connection.call("PING")  # a server at its connection limit accepts, and reports that in the first reply
        if not str(reply).startswith("NOPERM"):
            _must(reply)
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(address: _Address) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX) if address.path else _by_tcp(address)
    try:
        if address.path:
            connected.settimeout(address.connect_s)
            connected.connect(address.path)
        elif address.is_tls:
            name = address.options.get("ssl_server_name", address.host)
            connected = _tls(address).wrap_socket(connected, server_hostname=name)
        connected.settimeout(address.timeout_s)
    except BaseException:
        connected.close()
        raise
    return connected


def _by_tcp(address: _Address) -> socket.socket:
    tcp = socket.create_connection((address.host, address.port), address.connect_s)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for level, option, value in _KEEPALIVE if address.flag("socket_keepalive") else ():
        tcp.setsockopt(level, option, value)
    return tcp


def _tls(address: _Address) -> Any:
    """Return the TLS context of a rediss:// URL. Without options it verifies the certificate and the server's name."""
    import ssl  # only masters whose URL asks for it

    given = address.options.get
    context = ssl.create_default_context()
    mode = ssl.VerifyMode[f"CERT_{given('ssl_cert_reqs', 'required').upper()}"]
    context.check_hostname = mode is not ssl.CERT_NONE and address.flag("ssl_check_hostname")
    context.verify_mode = mode
    for name in _names(given("ssl_include_verify_flags")):
        context.verify_flags |= ssl.VerifyFlags[name]
    for name in _names(given("ssl_exclude_verify_flags")):
        context.verify_flags &= ~ssl.VerifyFlags[name]
    certificate, key = given("ssl_certfile"), given("ssl_keyfile")
    if certificate or key:
        context.load_cert_chain(certificate or "", key, given("ssl_password"))
    authorities = [given(f"ssl_ca_{kind}") for kind in ("certs", "path", "data")]
    if any(authorities):
        context.load_verify_locations(*authorities)
    if version := given("ssl_min_version"):
        context.minimum_version = ssl.TLSVersion(int(version))
    if ciphers := given("ssl_ciphers"):
        context.set_ciphers(ciphers)
    return context


def _names(given: str | None) -> list[str]:
    """Return the names in a list as redis-py writes it: [VERIFY_X509_STRICT, VERIFY_X509_PARTIAL_CHAIN]."""
    return [name.strip() for name in (given or "").strip("[]").split(",") if name.strip()]


def _must(reply: Any) -> None:
    if isinstance(reply, hiredis.ReplyError):
        raise Unreachable(f"Redis refuses: {without_arguments(reply)}")
