"""A real listener, a loop whose behaviour a test chooses, and clients that send byte by byte."""

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Collection

from supervisor.ops import http
from supervisor.ops.http_queries import COMPLAINT, HttpQueries
from supervisor.setting_values import ListenAddress

LOCAL = ListenAddress("127.0.0.1", 0)


class Loop:
    """Stands in for the master's loop. The loop answers at once, unless it stands still or keeps an answer back."""

    def __init__(self, queries: HttpQueries) -> None:
        self.queries = queries
        self.answers = {"/livez": None, "/readyz": (True, "serving"), "/status": {"state": "serving"}, "/metrics": 7}
        self.kept_back: set[str] = set()
        self.complaints: list[str] = []
        self.taken: list[str] = []
        self.turns = threading.Event()
        self.turns.set()
        self._end, self._ended = os.pipe()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        poll.register(self.queries.fileno(), select.POLLIN)
        while self._end not in {fd for fd, _ in poll.poll()}:
            self.turns.wait(20)
            for query in self.queries.take():
                self.taken.append(query.what)
                if query.what == COMPLAINT:
                    self.complaints.append(query.detail)
                elif query.what not in self.kept_back:
                    self.queries.answer(query, self.answers[query.what])

    def wait_for(self, holds: Callable[[], object]) -> None:
        """Wait until a condition holds that sends no notification."""
        deadline_at = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < deadline_at
            time.sleep(0.01)

    def close(self) -> None:
        self.turns.set()
        os.write(self._ended, b"x")
        self._thread.join(5)
        os.close(self._end)
        os.close(self._ended)


class Site:
    """A listener, its loop, and its clients."""

    def __init__(
        self,
        address: ListenAddress = LOCAL,
        metrics: http.Render | str = "there are no metrics",
        names: Collection[str] = (),
    ) -> None:
        self.queries = HttpQueries()
        self.loop = Loop(self.queries)
        self.listener = http.Listener(http.listen(address), self.queries, metrics, names)
        self.port = self.listener.address.port
        self.listener.start()
        self._clients: list[socket.socket] = []

    def connect(self, host: str = "127.0.0.1") -> socket.socket:
        client = socket.create_connection((host, self.port), 10)
        self._clients.append(client)
        return client

    def send(self, request: bytes) -> socket.socket:
        client = self.connect()
        client.sendall(request)
        return client

    def get(self, path: str, *, method: str = "GET", host: str = "127.0.0.1", headers: str = "") -> tuple[int, str]:
        """Return code and body."""
        client = self.connect(host)
        client.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        code, _head, body = answer_of(client)
        client.close()
        return code, body

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.listener.close(5)
        self.loop.close()
        self.queries.close()


def answer_of(client: socket.socket) -> tuple[int, str, str]:
    received = b""
    while chunk := client.recv(65536):
        received += chunk
    head, _, body = received.decode().partition("\r\n\r\n")
    return int(head.split()[1]), head, body
