"""A proxy between clients and a server, on unix sockets, in threads: what it does to either direction say its kinds."""

import socket
import threading
from contextlib import suppress
from pathlib import Path


class Between:
    """A proxy that passes on all data until either end hangs up."""

    def __init__(self, path: Path, upstream: Path) -> None:
        self.path = path
        self._upstream = upstream
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(self._upstream))
            threading.Thread(target=self._requests, args=(near, far), daemon=True).start()
            threading.Thread(target=self._replies, args=(near, far), daemon=True).start()

    def _requests(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):  # either end may hang up first
            while (data := near.recv(1 << 20)) and self.request(far, data):
                pass
            far.shutdown(socket.SHUT_WR)

    def _replies(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError), near, far:
            while (data := far.recv(1 << 20)) and self.reply(near, data):
                pass
            near.shutdown(socket.SHUT_RDWR)

    def request(self, far: socket.socket, data: bytes) -> bool:
        """Pass a request on. Return whether the connection goes on."""
        far.sendall(data)
        return True

    def reply(self, near: socket.socket, data: bytes) -> bool:
        """Pass a reply on. Return whether the connection goes on."""
        near.sendall(data)
        return True

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self._listener.close()
