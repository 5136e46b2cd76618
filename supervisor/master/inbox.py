"""Waits until a descriptor is readable, and calls its callback. Runs in the master. Must not decide anything."""

import contextlib
import select
from collections.abc import Callable
from typing import Final, Protocol

from supervisor import clock

#: A longer pause of the loop has a cause outside it: SIGSTOP, a suspended or a starved machine.
GAP_S: Final = 1.0

_LONGEST_WAIT_S: Final = 60.0
#: A child that was woken on the master's processor has come to its handler's first line by then. The kernel adds 50 µs.
_GIVE_WAY_S: Final = 0.0002


class Readable(Protocol):
    def fileno(self) -> int: ...


class Inbox:
    """Level-triggered: a callback that does not read its descriptor is called again."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._heard_at = self._turn_began_at = clock.monotonic()
        self._deaf_s = 0.0  # the time between the last two looks

    def watch(self, source: Readable | int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the descriptor is readable or at its end, until `forget`."""
        fd = source if isinstance(source, int) else source.fileno()
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def forget(self, source: Readable | int) -> None:
        """Stop watching. To be called before the descriptor is closed. Idempotent."""
        fd = source if isinstance(source, int) else source.fileno()
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def want_write(self, source: Readable | int, wanted: bool) -> None:
        """Call the callback of a watched descriptor also when the descriptor has room for a write."""
        fd = source if isinstance(source, int) else source.fileno()
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def wait(self, deadline_at: float) -> None:
        """Wait until descriptors are readable, at most until `deadline_at` (monotonic s), and call their callbacks.

        After a gap in the loop this also reads what has arrived during the gap. So no deadline is acted on while the
        message that makes it void is still unread.
        """
        since_at = clock.monotonic()
        self._look(min(max(0.0, deadline_at - since_at), _LONGEST_WAIT_S))
        self._turn_began_at = self._heard_at  # further looks belong to the same turn, and so does the gap before them
        while clock.monotonic() - max(since_at, deadline_at) > GAP_S:
            since_at = deadline_at = clock.monotonic()
            self._look(0.0)

    def give_way(self) -> None:
        """Leave the processor for 0.25 ms to a process that the master has woken, unless something is readable.

        sched_yield(2) may return at once: children have sessions of their own, which the kernel schedules as groups.
        """
        with contextlib.suppress(ValueError):  # select(2) takes no descriptor above 1023
            select.select((self._epoll,), (), (), _GIVE_WAY_S)  # epoll_wait(2) counts in milliseconds

    def _look(self, timeout_s: float) -> None:
        self._deaf_s = clock.monotonic() - self._heard_at
        callbacks = self._callbacks
        ready = [(fd, callbacks.get(fd)) for fd, _readiness in self._epoll.poll(timeout_s)]
        self._heard_at = clock.monotonic()
        for fd, callback in ready:
            # An earlier callback of this turn may have closed the descriptor, and its number may be reused.
            if callback is not None and callbacks.get(fd) is callback:
                callback()

    @property
    def turn_began_at(self) -> float:
        """When this turn began (monotonic s)."""
        return self._turn_began_at

    @property
    def oldest_at(self) -> float:
        """When the earliest event of this turn may have happened (monotonic s)."""
        return self._heard_at - self._deaf_s

    def close(self) -> None:
        self._epoll.close()
