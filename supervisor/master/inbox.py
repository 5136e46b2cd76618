"""The master's one inbox: whatever can happen becomes an event here. Runs in master. Must not decide anything."""

import select
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

from supervisor import clock

#: A pause of the loop longer than this was not ours (SIGSTOP, suspend, a starved machine).
GAP_S: Final = 1.0

_LONGEST_WAIT_S: Final = 60.0

Event = TypeVar("Event")


class Readable(Protocol):
    def fileno(self) -> int: ...


class Inbox(Generic[Event]):
    """Descriptors and the event that each one's readiness means. Level-triggered: who does not read is told again."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._events: dict[int, Event] = {}
        self._heard_at = clock.monotonic()
        self._deaf_s = 0.0  # how long nobody had looked before the last look

    def watch(self, source: Readable | int, event: Event) -> None:
        fd = source if isinstance(source, int) else source.fileno()
        self._epoll.register(fd, select.EPOLLIN)
        self._events[fd] = event

    def forget(self, source: Readable | int) -> None:
        """Before the descriptor is closed. Idempotent."""
        fd = source if isinstance(source, int) else source.fileno()
        if self._events.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def want_write(self, source: Readable | int, wanted: bool) -> None:
        """Tell also, with the same event, when a watched descriptor has room again."""
        fd = source if isinstance(source, int) else source.fileno()
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def wait(self, deadline_at: float) -> Iterator[Event]:
        """Wait for something to happen, at most until `deadline_at` (monotonic s), and tell it.

        After a gap in the loop what has arrived meanwhile is told in the same call, so that no deadline is acted on
        while the message that makes it void is still unread.
        """
        since_at = clock.monotonic()
        yield from self._ready(min(max(0.0, deadline_at - since_at), _LONGEST_WAIT_S))
        while clock.monotonic() - max(since_at, deadline_at) > GAP_S:
            since_at = deadline_at = clock.monotonic()
            yield from self._ready(0.0)

    def _ready(self, timeout_s: float) -> Iterator[Event]:
        self._deaf_s = clock.monotonic() - self._heard_at
        ready = [(fd, self._events.get(fd)) for fd, _readiness in self._epoll.poll(timeout_s)]
        self._heard_at = clock.monotonic()
        for fd, event in ready:
            # Else an earlier event of this turn has closed it, and its number may be another's by now.
            if event is not None and self._events.get(fd) is event:
                yield event

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
