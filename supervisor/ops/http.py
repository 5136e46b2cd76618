"""Serves probes, Prometheus and people over HTTP. Runs in the master, in a thread of its own.

Owns the socket and all connections: at most MOST_CONNECTIONS, each for at most CONNECTION_S. `ops/pages.py` has the
words. Must not touch anything of the master: it asks the loop by `ops/http_queries.py`, and answers in time if the loop
does not.
"""

import contextlib
import errno
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Collection
from enum import Enum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import Any, Final

from supervisor import clock
from supervisor.ops import pages
from supervisor.ops.hosts import is_own_name
from supervisor.ops.http_queries import HttpQueries, HttpQuery
from supervisor.ops.pages import PROBES, REPORTS, Page
from supervisor.setting_values import ListenAddress

#: Further clients wait in the kernel. A slow connection makes way for a new one.
MOST_CONNECTIONS: Final = 16
#: Longest time from a connection's first byte to its last.
CONNECTION_S: Final = 5.0
#: Largest request line and headers.
MOST_BYTES: Final = 16 * 1024
#: A probe is answered within this time whatever the loop does: a kubelet waits for one second.
PROBE_S: Final = 0.8
#: A report is answered within this time: its clients can wait longer.
REPORT_S: Final = 4.0
#: Most waiting reports, so that there is room for probes.
MOST_REPORTS: Final = MOST_CONNECTIONS // 2
#: Pause before the next accept after the descriptors have run out.
_AGAIN_S: Final = 0.5
#: A longer pause of this thread means that the process was stopped or starved.
_GAP_S: Final = 1.0
#: Longest wait of the selector. Events end it earlier.
_LONGEST_WAIT_S: Final = 3600.0

#: Makes a report's type and body from the loop's answer and the Accept header.
Render = Callable[[Any, str], tuple[str, bytes]]


class ConnectionState(Enum):
    """The states of a connection."""

    READING = "reading"  # the request is incomplete
    WAITING = "waiting"  # for the loop's answer
    WRITING = "writing"
    CLOSING = "closing"  # all is written; closing while the client still sends would discard the answer


class _ParsedRequest(BaseHTTPRequestHandler):
    """A parsed request, or in `error` why it is none. Reads no socket."""

    def __init__(self, request: bytes) -> None:
        self.rfile, self.wfile = BytesIO(request), BytesIO()
        self.error: tuple[int, str] | None = None
        self.raw_requestline = self.rfile.readline(MOST_BYTES + 1)
        if not self.parse_request() and self.error is None:
            self.error = HTTPStatus.BAD_REQUEST, "this is no HTTP request"

    def send_error(self, code: int, message: str | None = None, _explain: str | None = None) -> None:
        """Keep the parser's error, which it would write as a page of HTML."""
        self.error = code, message or HTTPStatus(code).phrase


class _HttpConnection:
    """One client, from accept to close."""

    def __init__(self, peer: socket.socket, deadline_at: float) -> None:
        self.peer = peer
        self.state = ConnectionState.READING
        self.deadline_at = deadline_at  # of this stage
        self.end_at = deadline_at  # of all stages
        self.request = bytearray()
        self.path = ""
        self.accept = ""
        self.is_head = False
        self.query: HttpQuery | None = None
        self.reply = memoryview(b"")


class Unavailable(Exception):
    """The address cannot be used, with the reason as one sentence."""


def listen(address: ListenAddress) -> socket.socket:
    """Return a socket that listens there. Raises Unavailable."""
    try:
        if not address.host and socket.has_dualstack_ipv6():
            try:
                return _created(("", address.port), socket.AF_INET6, dualstack_ipv6=True)
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # IPv6 is switched off
                    raise
        if not address.host:
            return _created(("", address.port), socket.AF_INET)
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, where = found[0][0], found[0][4]
        return _created((str(where[0]), address.port), family)
    except OSError as error:
        raise Unavailable(f"--http {address} cannot be had: {_reason(error)}") from error


def _created(where: tuple[str, int], family: int, **options: bool) -> socket.socket:
    listening = socket.create_server(where, family=family, backlog=128, **options)
    listening.setblocking(False)
    return listening


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"this machine does not know the name ({error.strerror}); give an address of its own, or only a port"
    if error.errno == errno.EADDRINUSE:
        return "another process listens there; end it, or give each supervisor of this machine a port of its own"
    if error.errno == errno.EACCES:
        return "ports below 1024 are not for everybody; take one above, such as 9464"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address; give one of its own, or only a port"
    return str(error)


class Listener:
    """Serves from `start` to `close`. Only these two run outside its thread."""

    def __init__(
        self, listening: socket.socket, queries: HttpQueries, metrics: Render | str, names: Collection[str] = ()
    ) -> None:
        """`metrics`: renders a report from the loop's answer, or says why none can be made. `names`: public names of
        this supervisor.
        """
        self._listening = listening
        self._names = names
        self._queries = queries
        self._metrics = metrics
        self._connections: dict[socket.socket, _HttpConnection] = {}
        self._selector = selectors.EpollSelector()
        self._accept_at: float | None = 0.0  # when to register the listening socket again; None: it is registered
        self._complaint = ""
        self._closing = False
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    @property
    def address(self) -> ListenAddress:
        """The address in use, with the actual port."""
        host, port = self._listening.getsockname()[:2]
        return ListenAddress(host, port)

    def start(self) -> None:
        self._selector.register(self._queries.answered_fd, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """End the thread. Waiting clients get no answer."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._listening.close()
        if not self._thread.is_alive():
            self._selector.close()
            self._wake.close()
            self._woken.close()

    def _serve(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for the loop
        while not self._closing:
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 -- the boundary: later requests are still served
                self._complain(f"the listener of --http let go of all connections after an internal error: {error!r}")
                for connection in list(self._connections.values()):
                    self._drop(connection)
        for connection in list(self._connections.values()):
            self._drop(connection)

    def _turn(self) -> None:
        before_at = clock.monotonic()
        self._listen_if_there_is_room(before_at)
        due_at = min(self._deadline_at(), before_at + _LONGEST_WAIT_S)
        ready = self._selector.select(max(0.0, due_at - before_at))
        now_at = clock.monotonic()
        lost_s = now_at - max(due_at, before_at)
        if lost_s > _GAP_S:
            self._extend_deadlines(lost_s)
        for key, events in ready:
            if key.fileobj is self._listening:
                self._accept(now_at)
            elif key.fileobj == self._queries.answered_fd:
                self._queries.collect()
            elif (connection := self._connections.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                self._on_ready(connection, events, now_at)
        for connection in list(self._connections.values()):
            self._advance(connection, now_at)

    def _deadline_at(self) -> float:
        deadlines = [connection.deadline_at for connection in self._connections.values()]
        if self._accept_at is not None and self._has_room:
            deadlines.append(self._accept_at)
        return min(deadlines, default=clock.monotonic() + _LONGEST_WAIT_S)

    def _extend_deadlines(self, lost_s: float) -> None:
        """Move all deadlines by a time in which the whole process was stopped."""
        self._queries.forgive(lost_s)
        for connection in self._connections.values():
            connection.deadline_at += lost_s
            connection.end_at += lost_s

    def _complain(self, message: str) -> None:
        """Report a problem to the loop's log. The same one is not repeated."""
        if message != self._complaint:
            self._complaint = message
            self._queries.complain(message, clock.monotonic())

    # new connections

    def _listen_if_there_is_room(self, now_at: float) -> None:
        if self._accept_at is not None and now_at >= self._accept_at and self._has_room:
            self._accept_at = None
            self._selector.register(self._listening, selectors.EVENT_READ)

    @property
    def _has_room(self) -> bool:
        return len(self._connections) < MOST_CONNECTIONS or self._slowest() is not None

    def _slowest(self) -> _HttpConnection | None:
        """Return the oldest connection that waits for its client. Those that wait for the loop keep their place."""
        ours = (each for each in self._connections.values() if each.state is not ConnectionState.WAITING)
        return next(ours, None)

    def _listen_again(self, at: float) -> None:
        if self._accept_at is None:
            self._selector.unregister(self._listening)
        self._accept_at = at

    def _accept(self, now_at: float) -> None:
        """Accept what fits. Each new connection is read before another one is dropped."""
        for _ in range(MOST_CONNECTIONS):
            slowest = self._slowest() if len(self._connections) >= MOST_CONNECTIONS else None
            if slowest is None and len(self._connections) >= MOST_CONNECTIONS:
                self._listen_again(now_at)
                return
            try:
                peer, _address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._complain(f"--http cannot accept connections: {error}; raise the limit of open files")
                    self._listen_again(now_at + _AGAIN_S)
                    return
                continue  # the connection failed before it was accepted (accept(2))
            if slowest is not None:
                self._drop(slowest)
            self._add(peer, now_at)

    def _add(self, peer: socket.socket, now_at: float) -> None:
        peer.setblocking(False)
        connection = self._connections[peer] = _HttpConnection(peer, now_at + CONNECTION_S)
        self._selector.register(peer, selectors.EVENT_READ)
        self._read(connection, now_at)  # the request has mostly arrived already

    def _drop(self, connection: _HttpConnection) -> None:
        if self._connections.pop(connection.peer, None) is not None:
            if connection.state is not ConnectionState.WAITING:
                self._selector.unregister(connection.peer)
            connection.peer.close()

    # one connection

    def _on_ready(self, connection: _HttpConnection, events: int, now_at: float) -> None:
        if connection.state is ConnectionState.READING:
            self._read(connection, now_at)
        elif connection.state is ConnectionState.WRITING:
            self._write(connection)
        elif connection.state is ConnectionState.CLOSING:
            self._await_end(connection)

    def _advance(self, connection: _HttpConnection, now_at: float) -> None:
        """Go on if the loop's answer or a deadline has come."""
        if connection.state is ConnectionState.WAITING:
            self._answer(connection, now_at)
        elif now_at >= connection.deadline_at:
            if connection.state is ConnectionState.READING:
                self._refuse(connection, HTTPStatus.REQUEST_TIMEOUT, f"no request has come within {CONNECTION_S:g} s")
            else:
                self._drop(connection)

    def _read(self, connection: _HttpConnection, now_at: float) -> None:
        try:
            received = connection.peer.recv(MOST_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:  # the client is gone
            self._drop(connection)
            return
        if not received:
            self._drop(connection)
            return
        connection.request += received
        if b"\r\n\r\n" in connection.request or b"\n\n" in connection.request:
            self._route(connection, now_at)
        elif len(connection.request) > MOST_BYTES:
            large = f"line and headers are larger than {MOST_BYTES} bytes"
            self._refuse(connection, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, large)

    def _route(self, connection: _HttpConnection, now_at: float) -> None:
        """Act on the complete request. A body is ignored."""
        asked = _ParsedRequest(bytes(connection.request))
        connection.request.clear()
        if asked.error is not None:
            self._refuse(connection, *asked.error)
            return
        connection.path, _, _query = asked.path.partition("?")
        connection.accept, connection.is_head = asked.headers.get("Accept", ""), asked.command == "HEAD"
        if asked.command not in ("GET", "HEAD"):
            self._refuse(connection, HTTPStatus.METHOD_NOT_ALLOWED, f"{asked.command[:20]!r} is none of GET and HEAD")
        elif connection.path == "/":
            self._reply(connection, pages.INDEX)
        elif connection.path not in (*PROBES, *REPORTS):
            self._reply(connection, pages.not_found(connection.path))
        elif connection.path in REPORTS and not is_own_name(host := asked.headers.get("Host", ""), self._names):
            foreign = f"{host[:200]!r} is no name of this supervisor: ask by its address, or give it --http-name"
            self._refuse(connection, HTTPStatus.MISDIRECTED_REQUEST, foreign)
        elif connection.path == "/metrics" and isinstance(self._metrics, str):
            self._refuse(connection, HTTPStatus.NOT_IMPLEMENTED, self._metrics)
        else:
            self._ask(connection, now_at)

    def _ask(self, connection: _HttpConnection, now_at: float) -> None:
        is_probe = connection.path in PROBES
        waiting = sum(
            each.state is ConnectionState.WAITING and each.path in REPORTS for each in self._connections.values()
        )
        if not is_probe and waiting >= MOST_REPORTS:
            self._refuse(connection, HTTPStatus.SERVICE_UNAVAILABLE, f"{waiting} others wait for an answer already")
            return
        self._selector.unregister(connection.peer)
        connection.state = ConnectionState.WAITING
        connection.query = self._queries.ask(connection.path, now_at)
        connection.deadline_at = now_at + (PROBE_S if is_probe else REPORT_S)

    def _answer(self, connection: _HttpConnection, now_at: float) -> None:
        """Reply if the loop has answered, or the deadline has come."""
        query = connection.query
        assert query is not None
        if not query.answered and now_at < connection.deadline_at:
            return
        unheard_s = self._queries.unheard_s(now_at)
        if connection.path == "/livez":
            # Any query that the loop has seen shows that it turns.
            self._reply(connection, pages.liveness(query.answered or unheard_s <= 0.0, unheard_s))
        elif not query.answered:
            self._reply(connection, pages.not_answered(connection.path, unheard_s))
        elif connection.path == "/readyz":
            self._reply(connection, pages.readiness(*query.answer))
        else:
            self._reply(connection, self._report(connection, query.answer))

    def _report(self, connection: _HttpConnection, answer: Any) -> Page:
        try:
            if connection.path == "/status":
                return pages.status(answer)
            assert not isinstance(self._metrics, str)
            kind, body = self._metrics(answer, connection.accept)
        except Exception as error:  # noqa: BLE001 -- the boundary: the client and the log get the error
            what = f"{connection.path} cannot be shown: {type(error).__name__}: {error}"
            self._complain(what)
            return pages.refusal(connection.path, HTTPStatus.INTERNAL_SERVER_ERROR, what)
        return Page(HTTPStatus.OK, body, kind)

    # replies

    def _refuse(self, connection: _HttpConnection, code: int, sentence: str) -> None:
        self._reply(connection, pages.refusal(connection.path, code, sentence))

    def _reply(self, connection: _HttpConnection, page: Page) -> None:
        code, body, kind = page
        head = (
            f"HTTP/1.1 {int(code)} {HTTPStatus(code).phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
        )
        if code == HTTPStatus.METHOD_NOT_ALLOWED:
            head += "Allow: GET, HEAD\r\n"
        connection.reply = memoryview(head.encode() + b"\r\n" + (b"" if connection.is_head else body))
        if connection.state is ConnectionState.WAITING:
            self._selector.register(connection.peer, selectors.EVENT_WRITE)
        else:
            self._selector.modify(connection.peer, selectors.EVENT_WRITE)
        connection.state, connection.query, connection.deadline_at = ConnectionState.WRITING, None, connection.end_at
        self._write(connection)

    def _write(self, connection: _HttpConnection) -> None:
        try:
            written = connection.peer.send(connection.reply)
            connection.reply = connection.reply[written:]
            if connection.reply:
                return
            connection.peer.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:  # the client is gone
            self._drop(connection)
            return
        connection.state = ConnectionState.CLOSING
        self._selector.modify(connection.peer, selectors.EVENT_READ)

    def _await_end(self, connection: _HttpConnection) -> None:
        """Discard what the client still sends, until it closes."""
        try:
            if connection.peer.recv(MOST_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:  # the client is gone, as expected
            pass
        self._drop(connection)
