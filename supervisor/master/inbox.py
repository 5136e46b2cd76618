"""Waits for whatever can happen, and calls those back who wait for it. Runs in master. Must not decide anything."""

import select
from collections.abc import Callable
from typing import Final, Protocol

from supervisor import clock

#: A pause of the loop longer than this was not ours (SIGSTOP, suspend, a starved machine).
GAP_S: Final = 1.0

_LONGEST_WAIT_S: Final = 60.0


class Readable(Protocol):
    def fileno(self) -> int: ...


class Inbox:
    """Descriptors, and a callback for each. Level-triggered: a callback that does not read is called again."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._heard_at = clock.monotonic()
        self._deaf_s = 0.0  # how long nobody had looked before the last look

    def watch(self, source: Readable | int, callback: Callable[[], None]) -> None:
        """Call back whenever the descriptor is readable or at its end, until `forget`."""
        fd = source if isinstance(source, int) else source.fileno()
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def forget(self, source: Readable | int) -> None:
        """Before the descriptor is closed. Idempotent."""
        fd = source if isinstance(source, int) else source.fileno()
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def want_write(self, source: Readable | int, wanted: bool) -> None:
        """Call back also when a watched descriptor has room again."""
        fd = source if isinstance(source, int) else source.fileno()
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def wait(self, deadline_at: float) -> None:
        """Wait for something to happen, at most until `deadline_at` (monotonic s), and call back those who are told.

        After a gap in the loop what has arrived meanwhile is told in the same call, so that no deadline is acted on
        while the message that makes it void is still unread.
        """
        since_at = clock.monotonic()
        self._tell(min(max(0.0, deadline_at - since_at), _LONGEST_WAIT_S))
        while clock.monotonic() - max(since_at, deadline_at) > GAP_S:
            since_at = deadline_at = clock.monotonic()
            self._tell(0.0)

    def _tell(self, timeout_s: float) -> None:
        self._deaf_s = clock.monotonic() - self._heard_at
        callbacks = self._callbacks
        ready = [(fd, callbacks.get(fd)) for fd, _readiness in self._epoll.poll(timeout_s)]
        self._heard_at = clock.monotonic()
        for fd, callback in ready:
            # An earlier callback of this turn may have closed the descriptor, and its number may be reused.
            if callback is not None and callbacks.get(fd) is callback:
                callback()

    @property
    def heard_at(self) -> float:
        """When this turn began (monotonic s)."""
        return self._heard_at

    @property
    def oldest_at(self) -> float:
        """When the first of what is told now may have happened (monotonic s)."""
        return self._heard_at - self._deaf_s

    def close(self) -> None:
        self._epoll.close()
