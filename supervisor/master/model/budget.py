"""The memory budget of all processes together: which job fits, and which child has to end. Runs in the master.

Measures nothing and kills nothing. A job that starts reserves the recent peak of its handler, so that jobs which start
together are not all admitted to the same free room. Every job fits while nothing runs. The master leases no other job
while the first one does not fit, so even the largest job starts sooner or later.
"""

import os
from collections.abc import Iterable
from typing import Final, TypeVar

from supervisor.master.model import memory
from supervisor.master.model.memory import Usage
from supervisor.units import megabytes

V = TypeVar("V")

#: For this long all other jobs wait for one that does not fit. The time doubles with each attempt, up to the longest.
_PATIENCE_S: Final = 5.0
_LONGEST_PATIENCE_S: Final = 600.0
#: A job not seen for this long was offered elsewhere or put off: its patience starts anew.
_FORGOTTEN_S: Final = 3.0
#: A lower peak pulls the expectation down by this share; a higher one replaces it at once.
_DECAY: Final = 0.1


class _ChildMemory:
    """The memory of one child, and the jobs that it has not answered."""

    __slots__ = ("expected", "grown_bytes", "killed", "reserved_bytes")

    def __init__(self) -> None:
        self.grown_bytes = 0
        self.expected: dict[str, int] = {}  # by jid: the expected peak of each job; all but one were sent ahead
        self.reserved_bytes = 0  # the largest of these numbers
        self.killed = False  # about to be killed: its memory counts as free


class Budget:
    """Children are known by their numbers. Without a limit every job fits, and no call costs anything."""

    def __init__(self, limit_bytes: int, capacity: int = 1024) -> None:
        self.limit_bytes = limit_bytes  # 0: no limit
        self.base_bytes = 0  # master and zygote
        self._beside_bytes = 0  # memory of other zygotes, during a reload
        self._capacity = capacity
        self._peaks: dict[str, int] = {}  # by klass: decaying maxima
        self._alone: dict[str, None] = {}  # jids of jobs killed for memory, which may run alone only; oldest first
        self._children: dict[int, _ChildMemory] = {}
        # Sums over all children, so that `fits` need not go through them.
        self._reserved_bytes = 0
        self._held = 0  # jobs that end
        self._held_alone: set[str] = set()
        self._persistent: set[str] = set()  # jids of held persistent jobs
        # By jid of jobs that did not fit: since when, when last, and for how long others wait for it.
        self._waiting: dict[str, tuple[float, float, float]] = {}

    def use_zygote(self, zygote: Usage) -> str | None:
        """Count the memory of the current zygote and of the master, which is in use whatever runs.

        Return a warning if that is the whole budget.
        """
        self.base_bytes = (memory.of(os.getpid()) or memory.NOTHING).total_bytes + zygote.total_bytes
        if not 0 < self.limit_bytes <= self.base_bytes:
            return None
        return (
            f"the handlers alone, before any job, take {megabytes(self.base_bytes)} of the memory budget of"
            f" {megabytes(self.limit_bytes)}: jobs run one at a time; raise --memory-budget, or import less"
        )

    def use_other_zygotes(self, others: Iterable[Usage]) -> bool:
        """Count the memory of all other zygotes. Jobs must fit beside them, but none is killed for them.

        Return True if they have less than before.
        """
        before_bytes, self._beside_bytes = self._beside_bytes, sum(other.total_bytes for other in others)
        return self._beside_bytes < before_bytes

    def expected(self, klass: str) -> int:
        """Bytes that the next run of `klass` will hardly exceed. 0: unknown."""
        return self._peaks.get(klass, 0)

    def used_bytes(self) -> int:
        """Bytes in use or reserved."""
        return self.base_bytes + self._beside_bytes + self._reserved_bytes

    def room_bytes(self) -> int | None:
        """Bytes that the last samples leave, reserved or not. None: there is no limit. For `Meter.next_in_s`."""
        return self.limit_bytes - self._grown_bytes() if self.limit_bytes else None

    def fits(self, klass: str, jid: str, child: int | None = None) -> bool:
        """Return whether the job may start. In `child`, if given, it runs after the jobs that this one holds."""
        if not self.limit_bytes or not self._held:
            return True
        expected_bytes = self.expected(klass)
        if self._held_alone or self._must_be_alone(jid, expected_bytes):
            return False
        if child is not None and (known := self._children.get(child)):
            expected_bytes = max(0, expected_bytes - known.reserved_bytes)
        return self.used_bytes() + expected_bytes <= self.limit_bytes

    def put_off(self, klass: str, jid: str, now_at: float) -> str | None:
        """The job does not fit now. Return None while all others wait for it.

        After that return a sentence that says why it does not start; the caller puts the job off.
        """
        since_at, last_at, patience_s = self._waiting.get(jid, (now_at, now_at, _PATIENCE_S))
        if now_at > last_at + _FORGOTTEN_S:
            since_at = now_at  # it comes back
        has_patience = now_at < since_at + patience_s
        if not has_patience:
            patience_s = min(2 * patience_s, _LONGEST_PATIENCE_S)  # else long jobs might never end while it is offered
        _remember(self._waiting, jid, (since_at, now_at, patience_s), self._capacity)
        if has_patience:
            return None
        left_bytes = max(0, self.limit_bytes - self.used_bytes())
        alone = "it may only run alone" if jid in self._alone else f"it may need {megabytes(self.expected(klass))}"
        return (
            f"{klass} {jid} does not start here: {alone}, and {megabytes(left_bytes)} are left of the memory budget of"
            f" {megabytes(self.limit_bytes)}"
        )

    def hold(self, child: int, klass: str, jid: str, ends: bool = True) -> None:
        """The child has got the job. A job that never `ends` is not waited for."""
        if not self.limit_bytes:
            return
        self._waiting.pop(jid, None)
        known = self._child(child)
        if jid in known.expected:
            return
        expected_bytes = known.expected[jid] = self.expected(klass)
        if not ends:
            self._persistent.add(jid)
        self._held += ends
        if self._must_be_alone(jid, expected_bytes):
            self._held_alone.add(jid)
        if expected_bytes > known.reserved_bytes:
            self._reserve(known)

    def measured(self, child: int, grown_bytes: int) -> None:
        """Store the last sample of the child's memory, with a job or without."""
        if self.limit_bytes:
            known = self._child(child)
            known.grown_bytes = grown_bytes
            self._reserve(known)

    def settle(self, child: int, klass: str, jid: str, peak_bytes: int = 0) -> None:
        """The child has answered the job, or has not received it. `peak_bytes` 0: no sample was taken."""
        if not self.limit_bytes:
            return
        if (known := self._children.get(child)) and jid in known.expected:
            self._held -= jid not in self._persistent
            self._persistent.discard(jid)
            self._held_alone.discard(jid)
            expected_bytes = known.expected.pop(jid)
            if expected_bytes and expected_bytes == known.reserved_bytes:
                self._reserve(known)
        if peak_bytes:
            self._learn(klass, peak_bytes)

    def gone(self, child: int) -> None:
        """The child has ended. Free all that it held."""
        if known := self._children.pop(child, None):
            self._reserved_bytes -= known.reserved_bytes
            self._held -= len(known.expected.keys() - self._persistent)
            self._persistent -= known.expected.keys()
            self._held_alone -= known.expected.keys()

    def done(self, jid: str) -> None:
        """The job has completed. Forget that it had to run alone."""
        self._alone.pop(jid, None)

    def child_to_kill(self) -> int | None:
        """Return the child to kill because all together are beyond the limit. None: there is room.

        It is an idle child if ending all idle ones is enough, else the busy child that has grown most. Killed
        children count as ended.
        """
        if not self.limit_bytes:
            return None
        excess_bytes = self._grown_bytes() - self.limit_bytes
        if excess_bytes <= 0 or self.base_bytes >= self.limit_bytes:  # the latter: no kill would be enough
            return None
        idle, number = self._largest(idle=True), self._largest(idle=False)
        if idle is not None and (number is None or self._idle_bytes() >= excess_bytes):
            return idle
        return number

    def mark_killed(self, child: int, klass: str | None = None, jid: str | None = None) -> None:
        """The child is being killed for `child_to_kill`. Its running job may run alone only from now on."""
        known = self._child(child)
        known.killed = True
        if klass is not None and jid is not None:
            self._learn(klass, known.grown_bytes)
            _remember(self._alone, jid, None, self._capacity)

    def idle_child_to_end(self) -> int | None:
        """Return the idle child that keeps most memory, to be ended for a job that does not fit."""
        return self._largest(idle=True) if self.limit_bytes else None

    def _child(self, number: int) -> _ChildMemory:
        known = self._children.get(number)
        if known is None:
            known = self._children[number] = _ChildMemory()
        return known

    def _reserve(self, known: _ChildMemory) -> None:
        was_bytes = known.reserved_bytes
        known.reserved_bytes = max(known.grown_bytes, *known.expected.values(), 0)
        self._reserved_bytes += known.reserved_bytes - was_bytes

    def _grown_bytes(self) -> int:
        return self.base_bytes + sum([each.grown_bytes for each in self._children.values() if not each.killed])

    def _idle_bytes(self) -> int:
        return sum(each.grown_bytes for each in self._children.values() if not each.expected and not each.killed)

    def _largest(self, idle: bool) -> int | None:
        living = ((number, each) for number, each in self._children.items() if not each.killed)
        found = [(each.grown_bytes, number) for number, each in living if bool(each.expected) != idle]
        grown_bytes, number = max(found, default=(0, 0))
        return number if grown_bytes else None

    def _must_be_alone(self, jid: str, expected_bytes: int) -> bool:
        return jid in self._alone or self.base_bytes + expected_bytes > self.limit_bytes

    def _learn(self, klass: str, peak_bytes: int) -> None:
        known_bytes = self._peaks.pop(klass, 0)  # inserted again at the end: the klass seen last is forgotten last
        if peak_bytes < known_bytes:
            peak_bytes = known_bytes - int(_DECAY * (known_bytes - peak_bytes))
        _remember(self._peaks, klass, peak_bytes, self._capacity)


def _remember(known: dict[str, V], name: str, value: V, capacity: int) -> None:
    if name not in known and len(known) >= capacity:
        del known[next(iter(known))]
    known[name] = value
