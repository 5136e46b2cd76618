"""What an idle worker waits for: mail, the bells of its queues, and what other programs push. Runs in master.

Owns the connection that waits for mail and bells, and one at each of the first doors: the lists that other programs
push to. Must not block, must not take a job. A bell that was taken is the worker's to answer or to pass on; a door
takes nothing, so that every worker who waits at it hears the knock.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import hiredis

from supervisor import clock
from supervisor.engine.model.keys import Namespace
from supervisor.engine.transport.link import CONNECT_S, Connector, Link, LinkLost, ReplyTooLarge

#: A wait for bells ends after this and asks once without being told to: wake-ups that a dying connection took are lost.
WAIT_S: Final = 30.0
_SHORTEST_WAIT_S: Final = 1.0
#: Beyond the end of a wait, before the server's silence means that the connection is gone.
_SLACK_S: Final = 5.0
#: Each door costs a connection. What is pushed to further queues is seen by the next lease.
MOST_DOORS: Final = 16
#: The reply to a wait at a door is the entry that has come: all who wait are sent it, and need no more than its coming.
#: Of one that is larger than an entry may be the rest is not read: its connection is closed, and made anew.
_MOST_BYTES: Final = 2 * 1024 * 1024
#: When a lease has left what lies behind a door (a paused queue), the next one is tried so soon; doubled each time.
_IN_VAIN_S: Final = 0.05
SILENT: Final = "Redis has not answered in time"
#: The keys of timers: the wait for mail and bells, and the next connections for doors. Each door has its own, too.
_WAIT: Final = "wakeups.wait"
_MAKE: Final = "push-listeners.make"


def wait_s_of(ttl_s: float) -> float:
    """How long a wait lasts: not beyond a TTL, as what others have leased since we asked is in no time of ours."""
    return min(WAIT_S, max(ttl_s, _SHORTEST_WAIT_S))


class Watcher(Protocol):
    """What is asked of the master's inbox."""

    def watch(self, source: Any, callback: Callable[[], None]) -> None: ...
    def forget(self, source: Any) -> None: ...
    def want_write(self, source: Any, wanted: bool) -> None: ...


class Timers(Protocol):
    """What is asked of the master's timers."""

    def set(self, key: Hashable, at: float, callback: Callable[[float], None]) -> None: ...
    def cancel(self, key: Hashable) -> None: ...


class Wakeups:
    """The wait for mail and bells: one blocking command at a time."""

    def __init__(self, namespace: Namespace, watcher: Watcher, timers: Timers) -> None:
        self._namespace = namespace
        self._watcher = watcher
        self._timers = timers
        self._link: Link | None = None
        self._mailbox = ""  # that we wait for
        self._due = 0  # how many replies the wait has
        self._came: list[Any] = []  # of those
        self.answer: Any = None  # to what was to follow the last wait
        self._waking = False
        self.names: tuple[str, ...] = ()  # of the queues whose bells we wait for
        self.waits_for_queues = False
        self.waiting = False
        self.mail: list[bytes] = []
        self.rang = False  # a bell has been taken, or waited for in vain, and no lease has followed
        self.timed_out = False  # the last wait has ended by itself

    def open(self, link: Link, on_reply: Callable[[], None]) -> None:
        """`on_reply` is called when `read` has something to read."""
        self._link = link
        self._watcher.watch(link, on_reply)

    def close(self) -> None:
        if self._link is not None:
            self._watcher.forget(self._link)
            self._link.close()
        self._link, self._waking, self._came = None, False, []
        self._end()

    @property
    def waking(self) -> bool:
        """Whether the wait is about to end, as we wish."""
        return self._waking

    def wait(
        self, worker: str, names: tuple[str, ...] | None, wait_s: float, then: tuple[Any, ...] | None = None
    ) -> None:
        """Begin to wait for mail, and for the bells of `names`, if any, until `read` is True. `then`: a command that
        the server is to carry out as soon as the wait has ended, whatever has ended it. Raises LinkLost.
        """
        assert self._link is not None and not self.waiting
        self.waits_for_queues, self.names = names is not None, names or ()
        self._mailbox = self._namespace.mail(worker)
        wires = [("BLPOP", self._mailbox, *map(self._namespace.bell, self.names), f"{wait_s:.3f}")]
        if then is not None:
            wires.append(then)
        self._due, self.answer = len(wires), None
        self._link.send(wires)
        self.waiting = True
        self._timers.set(_WAIT, clock.monotonic() + wait_s + _SLACK_S, self._on_silence)

    def must_be_woken(self) -> bool:
        """Whether a hint must be left in our mailbox, to end the wait. Once per wait."""
        first, self._waking = not self._waking, True
        return first

    def read(self) -> bool:
        """Read what has come: whether the wait has ended. What came by mail is in `mail`. Raises LinkLost."""
        assert self._link is not None
        self._came += self._link.receive()
        if not self.waiting or len(self._came) < self._due:
            return False
        reply, *answers = self._came
        if isinstance(reply, hiredis.ReplyError):
            raise LinkLost(f"Redis refused to wait: {reply}")
        self._came = []
        if reply is not None and reply[0] == self._mailbox.encode():
            self.mail.append(reply[1])
        else:
            self.rang = True  # or the time is over: wake-ups that a dying connection took are lost
        self.timed_out = reply is None
        self.answer = answers[0] if answers else None
        self._waking = False
        self._end()
        return True

    def _end(self) -> None:
        self.waiting = False
        self._timers.cancel(_WAIT)

    def _on_silence(self, now_at: float) -> None:
        """The wait should have ended by now. Wait on if its end has come and has not been read; else raise LinkLost."""
        assert self._link is not None
        if not self._link.is_readable:
            raise LinkLost(SILENT)
        self._timers.set(_WAIT, now_at + _SLACK_S, self._on_silence)


class PushListener:
    """A connection that waits for an entry in one queue's list, moving the last one to where it is."""

    def __init__(self, queue: str, link: Link) -> None:
        self.queue = queue
        self.link = link
        self.asked = self.armed = False  # how long the list is; to tell of an entry
        self.pausing = False  # what lies there is tried again later
        self.in_vain = 0  # how often in a row it was tried
        self.shut_until_at = 0.0


class PushListeners:
    """The doors of the first queues. Losing one loses nothing: what lies there is seen by the next lease."""

    def __init__(self, url: str, namespace: Namespace, watcher: Watcher, timers: Timers) -> None:
        self._url = url
        self._namespace = namespace
        self._watcher = watcher
        self._timers = timers
        self._doors: dict[str, PushListener] = {}
        self._wanted: tuple[str, ...] = ()
        self._connector: Connector | None = None
        self._making: tuple[str, ...] = ()
        self._make_at = 0.0
        self._knocked = False

    def attend(self, names: Sequence[str]) -> None:
        """Listen at the doors of the first of these queues. Idempotent."""
        now_at = clock.monotonic()
        wanted = tuple(names[:MOST_DOORS])
        if wanted != self._wanted:
            self._wanted = wanted
            for door in [door for door in self._doors.values() if door.queue not in wanted]:
                self._leave(door)
        self._make(now_at)
        for door in list(self._doors.values()):
            if not (door.asked or door.armed or door.pausing) and now_at >= door.shut_until_at:
                self._ask(door)

    def _make(self, now_at: float) -> None:
        if len(self._doors) >= len(self._wanted) or self._connector is not None:
            return
        if now_at < self._make_at:
            self._timers.set(_MAKE, self._make_at, self._make)
        else:
            self._making = tuple(queue for queue in self._wanted if queue not in self._doors)
            self._connector = Connector(self._url, len(self._making), (), CONNECT_S)
            self._watcher.watch(self._connector, self._finish_making)

    def _finish_making(self) -> None:
        connector, self._connector = self._connector, None
        assert connector is not None
        self._watcher.forget(connector)
        try:
            links, _replies = connector.finish()
        except LinkLost:  # one connection too many for the server, or it is gone, as the others have said or will say
            self._make_at = clock.monotonic() + WAIT_S if self._wanted else 0.0
            self._make(clock.monotonic())
            return
        for queue, link in zip(self._making, links, strict=True):
            if queue not in self._wanted:
                link.close()
                continue
            self._doors[queue] = door = PushListener(queue, link)
            self._watcher.watch(link, partial(self._read, door))
            self._ask(door)
        self._make(clock.monotonic())  # others may be wanted by now

    def _ask(self, door: PushListener) -> None:
        """Only at a list that is empty an entry to come is waited for: else the wait would end at once, again and
        again, where no lease may take what lies there.
        """
        door.asked = self._send(door, ("LLEN", self._namespace.incoming(door.queue)), _SLACK_S)

    def _arm(self, door: PushListener) -> None:
        wait_s = WAIT_S * len(self._doors)  # so many end in the time of one
        key = self._namespace.incoming(door.queue)
        door.armed = self._send(door, ("BLMOVE", key, key, "RIGHT", "RIGHT", f"{wait_s:.3f}"), wait_s + _SLACK_S)

    def _send(self, door: PushListener, command: tuple[Any, ...], silent_s: float) -> bool:
        try:
            door.link.send([command])
        except LinkLost:
            self._lose(door)
            return False
        self._await(door, clock.monotonic() + silent_s)
        return True

    def _await(self, door: PushListener, silent_at: float) -> None:
        """The server must have spoken by then."""
        self._timers.set(door, silent_at, lambda _now_at: self._lose(door))

    def _read(self, door: PushListener) -> None:
        """`take_knock` says what came of it."""
        try:
            replies = door.link.receive(_MOST_BYTES)
        except LinkLost as error:
            self._knocked = self._knocked or isinstance(error, ReplyTooLarge)
            self._lose(door)
            return
        now_at = clock.monotonic()
        self._await(door, now_at + _SLACK_S)  # a large entry may be under way for long
        for reply in replies:
            was_armed = door.armed
            door.asked = door.armed = False
            self._timers.cancel(door)
            if isinstance(reply, hiredis.ReplyError):  # a foreign type, or an ACL
                door.shut_until_at = now_at + WAIT_S
            elif reply is None or reply == 0:
                door.in_vain = 0
                self._arm(door)
            elif was_armed:
                self._knocked = True
            else:
                door.pausing = True
                self._timers.set(door, now_at + _pause_s(door.in_vain), partial(self._try_again, door))
                door.in_vain += 1

    def _try_again(self, door: PushListener, _now_at: float) -> None:
        door.pausing, self._knocked = False, True

    def _lose(self, door: PushListener) -> None:
        now_at = clock.monotonic()
        self._make_at = now_at + _SHORTEST_WAIT_S
        self._leave(door)
        self._make(now_at)

    def _leave(self, door: PushListener) -> None:
        self._watcher.forget(door.link)
        door.link.close()
        self._timers.cancel(door)
        del self._doors[door.queue]

    def take_knock(self) -> bool:
        """Whether something lies behind a door since this was asked last, or is to be tried again."""
        knocked, self._knocked = self._knocked, False
        return knocked

    def close(self) -> None:
        for door in list(self._doors.values()):
            self._leave(door)
        self._wanted, self._knocked = (), False
        self._timers.cancel(_MAKE)


def _pause_s(in_vain: int) -> float:
    return min(WAIT_S, _IN_VAIN_S * 2.0 ** min(in_vain - 1, 10)) if in_vain else 0.0
