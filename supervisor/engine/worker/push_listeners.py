"""Listens for what other programs push to the lists of queues, or behind doors. Runs in the master.

Owns one connection for each of the first lists. Must not block, must not take an entry: every worker that listens is
told of it. Losing a connection loses nothing, because the next lease sees what lies in the list.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import hiredis

from supervisor import clock
from supervisor.engine.transport.dialer import ALONE, Dialer
from supervisor.engine.transport.link import CONNECT_S, Connector, Link, LinkLost, ReplyTooLarge, ServedElsewhere
from supervisor.engine.worker.pipeline import DeadlineTimers, Watcher

#: Each listener costs a connection. The next lease sees what is pushed to further lists.
MOST_LISTENERS: Final = 16
#: The server must answer within this, beyond the time that a command waits.
_SLACK_S: Final = 5.0
_WAIT_S: Final = ALONE.wait_s
_RECONNECT_S: Final = 1.0
#: The reply to a wait is the entry itself, but only its coming matters. A larger entry than may be put is not read to
#: its end: its connection is closed and replaced.
_MOST_BYTES: Final = 2 * 1024 * 1024
#: If a lease leaves the entries where they are (a paused queue), the next one is due after this, doubled each time.
_RETRY_S: Final = 0.05


class PushListener:
    """A connection that waits for an entry in one list. It moves the last entry to where it is."""

    def __init__(self, name: str, link: Link) -> None:
        self.name = name
        self.link = link
        self.asks_length = False
        self.waits_for_entry = False
        self.is_pausing = False  # a lease is to look at the entries again later
        self.failed_leases = 0  # in a row, that have left the entries there
        self.refused_until_at = 0.0

    @property
    def is_resting(self) -> bool:
        return not (self.asks_length or self.waits_for_entry or self.is_pausing)


class PushListeners:
    """The listeners at some lists. This object is the key of the timer for connecting, each listener of its own."""

    def __init__(
        self, dialer: Dialer, key_of: Callable[[str], str], watcher: Watcher, timers: DeadlineTimers, most: int
    ) -> None:
        """`key_of` answers the list of a name. `most`: listen at so many lists."""
        self._most = most
        self._dialer = dialer
        self._key_of = key_of
        self._watcher = watcher
        self._timers = timers
        self._listeners: dict[str, PushListener] = {}  # by name
        self._wanted: tuple[str, ...] = ()
        self._connector: Connector | None = None
        self._connecting: tuple[str, ...] = ()
        self._connect_at = 0.0
        self._was_pushed = False

    def listen(self, names: Sequence[str]) -> None:
        """Listen at the lists of the first of these names. Idempotent."""
        now_at = clock.monotonic()
        wanted = tuple(names[: self._most])
        if wanted != self._wanted:
            self._wanted = wanted
            for listener in [each for each in self._listeners.values() if each.name not in wanted]:
                self._drop(listener)
        self._connect(now_at)
        for listener in list(self._listeners.values()):
            if listener.is_resting and now_at >= listener.refused_until_at:
                self._ask_length(listener)

    def _connect(self, now_at: float) -> None:
        if len(self._listeners) >= len(self._wanted) or self._connector is not None:
            return
        if now_at < self._connect_at:
            self._timers.set(self, self._connect_at, self._connect)
            return
        self._connecting = tuple(name for name in self._wanted if name not in self._listeners)
        try:
            self._connector = Connector(self._dialer, len(self._connecting), (), CONNECT_S)
        except LinkLost:
            self._connect_later()
        else:
            self._watcher.watch(self._connector, self._finish_connecting)

    def _connect_later(self) -> None:
        self._connect_at = clock.monotonic() + _WAIT_S if self._wanted else 0.0
        self._connect(clock.monotonic())

    def _finish_connecting(self) -> None:
        connector, self._connector = self._connector, None
        assert connector is not None
        self._watcher.forget(connector)
        try:
            links, _replies = connector.finish()
        except LinkLost:  # the server has too many connections, or is gone, which the other connections tell
            self._connect_later()
            return
        for name, link in zip(self._connecting, links, strict=True):
            if name not in self._wanted:
                link.close()
                continue
            self._listeners[name] = listener = PushListener(name, link)
            self._watcher.watch(link, partial(self._read, listener))
            self._ask_length(listener)
        self._connect(clock.monotonic())  # other lists may be wanted by now

    def _ask_length(self, listener: PushListener) -> None:
        """Wait at an empty list only: at entries that no lease may take, each wait would end at once."""
        command = ("LLEN", self._key_of(listener.name))
        listener.asks_length = self._send(listener, command, _SLACK_S)

    def _wait_for_entry(self, listener: PushListener) -> None:
        wait_s = _WAIT_S * len(self._listeners)  # together they end as often as one would alone
        key = self._key_of(listener.name)
        command = ("BLMOVE", key, key, "RIGHT", "RIGHT", f"{wait_s:.3f}")
        listener.waits_for_entry = self._send(listener, command, wait_s + _SLACK_S)

    def _send(self, listener: PushListener, command: tuple[Any, ...], silence_s: float) -> bool:
        try:
            listener.link.send([command])
        except LinkLost:
            self._lose(listener)
            return False
        self._await(listener, clock.monotonic() + silence_s)
        return True

    def _await(self, listener: PushListener, silent_at: float) -> None:
        """The server must have answered by then."""
        self._timers.set(listener, silent_at, lambda _now_at: self._lose(listener))

    def _read(self, listener: PushListener) -> None:
        """`take_pushed` says what has come."""
        try:
            replies = listener.link.receive(_MOST_BYTES)
        except LinkLost as error:
            self._was_pushed = self._was_pushed or isinstance(error, ReplyTooLarge)
            self._lose(listener)
            return
        now_at = clock.monotonic()
        self._await(listener, now_at + _SLACK_S)  # a large entry may be under way for long
        for reply in replies:
            self._on_reply(listener, reply, now_at)

    def _on_reply(self, listener: PushListener, reply: Any, now_at: float) -> None:
        waited = listener.waits_for_entry
        listener.asks_length = listener.waits_for_entry = False
        self._timers.cancel(listener)
        if isinstance(reply, hiredis.ReplyError):
            self._on_refused(listener, reply, now_at)
        elif reply is None or reply == 0:
            listener.failed_leases = 0
            self._wait_for_entry(listener)
        elif waited:
            self._was_pushed = True
        else:
            listener.is_pausing = True
            retry_at = now_at + _pause_s(listener.failed_leases)
            self._timers.set(listener, retry_at, partial(self._retry, listener))
            listener.failed_leases += 1

    def _on_refused(self, listener: PushListener, reply: hiredis.ReplyError, now_at: float) -> None:
        try:
            ServedElsewhere.check(reply)
        except ServedElsewhere:
            self._lose(listener)
        else:  # the key has another type, or an ACL forbids it
            listener.refused_until_at = now_at + _WAIT_S

    def _retry(self, listener: PushListener, _now_at: float) -> None:
        listener.is_pausing, self._was_pushed = False, True

    def take_pushed(self) -> bool:
        """Return True if an entry has come since the last call, or those that lie there are to be leased again."""
        pushed, self._was_pushed = self._was_pushed, False
        return pushed

    def _lose(self, listener: PushListener) -> None:
        now_at = clock.monotonic()
        self._connect_at = now_at + _RECONNECT_S
        self._drop(listener)
        self._connect(now_at)

    def _drop(self, listener: PushListener) -> None:
        self._watcher.forget(listener.link)
        listener.link.close()
        self._timers.cancel(listener)
        del self._listeners[listener.name]

    def close(self) -> None:
        for listener in list(self._listeners.values()):
            self._drop(listener)
        self._wanted, self._was_pushed = (), False
        self._timers.cancel(self)


def _pause_s(failed_leases: int) -> float:
    return min(_WAIT_S, _RETRY_S * 2.0 ** min(failed_leases - 1, 10)) if failed_leases else 0.0
