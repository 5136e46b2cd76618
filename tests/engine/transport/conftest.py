"""Servers that answer as a test says."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def tcp() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Listen on a port and answer each connection: `tcp(answer)` returns host and port."""
    listeners: list[socket.socket] = []

    def listen(answer: Callable[[socket.socket], None], host: str = "127.0.0.1") -> str:
        try:
            listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            pytest.skip(f"this machine has no {host}: {error}")
        listeners.append(listener)
        threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
        shown = f"[{host}]" if ":" in host else host
        return f"{shown}:{listener.getsockname()[1]}"

    def serve(listener: socket.socket, answer: Callable[[socket.socket], None]) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    yield listen
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        listener.close()
