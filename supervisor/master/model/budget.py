"""How much memory all processes of a pool may have together, and who may start. Runs in master. Owns what is reserved.

Decides by what it is told, and ends nobody. Who starts reserves what its handler has lately needed at most,
so that jobs which start together are not all admitted to the same free room. Where nothing runs, everything fits: who
leases nothing else while the first job does not fit will start it sooner or later, however large it is.
"""

import os
from collections.abc import Iterable
from typing import Final, TypeVar

from supervisor.config import megabytes
from supervisor.master.model import memory
from supervisor.master.model.memory import Usage

V = TypeVar("V")

#: How long all others wait for a job that does not fit; twice so long each time.
_PATIENCE_S: Final = 5.0
_LONGEST_PATIENCE_S: Final = 600.0
_FORGOTTEN_S: Final = 3.0
#: A lower peak pulls the expectation down by this share; a higher one replaces it at once.
_DECAY: Final = 0.1


class _Child:
    """A child with what it has grown and the jobs in its hands."""

    __slots__ = ("condemned", "expected", "grown_bytes", "reserved_bytes")

    def __init__(self) -> None:
        self.grown_bytes = 0
        self.expected: dict[str, int] = {}  # by jid; all but one have been sent ahead
        self.reserved_bytes = 0  # the largest of all these
        self.condemned = False


class Budget:
    """The memory budget of one pool. Children go by their numbers. Without a limit everything fits, free of cost."""

    def __init__(self, limit_bytes: int, capacity: int = 1024) -> None:
        self.limit_bytes = limit_bytes  # 0: none
        self.base_bytes = 0  # master and zygote
        self._beside_bytes = 0  # other zygotes: one of them is to take over, or has yet to end
        self._capacity = capacity
        self._peaks: dict[str, int] = {}  # by klass, decaying maxima
        self._alone: dict[str, None] = {}  # jids of those killed, oldest first
        self._children: dict[int, _Child] = {}
        # Sums over the children, so that no question of the hot path goes through all of them.
        self._reserved_bytes = 0
        self._held = 0  # jobs
        self._held_alone: set[str] = set()
        self._endless: set[str] = set()  # of those that are held
        # Jids of what did not fit: since when, when last, and how long others wait for it.
        self._waiting: dict[str, tuple[float, float, float]] = {}

    def stand_on(self, zygote: Usage) -> str | None:
        """A zygote is ready: what it and this process have is in use whatever runs. What is wrong with that, if it is
        all.
        """
        self.base_bytes = (memory.of(os.getpid()) or memory.NOTHING).total_bytes + zygote.total_bytes
        if not 0 < self.limit_bytes <= self.base_bytes:
            return None
        return (
            f"the handlers alone, before any job, take {megabytes(self.base_bytes)} of the memory budget of"
            f" {megabytes(self.limit_bytes)}: jobs run one at a time; raise --memory-budget, or import less"
        )

    def stand_beside(self, others: Iterable[Usage]) -> bool:
        """These zygotes are there, too. It ends nobody, but what starts is to fit beside them. Answers whether that
        has become easier.
        """
        before_bytes, self._beside_bytes = self._beside_bytes, sum(other.total_bytes for other in others)
        return self._beside_bytes < before_bytes

    def expected(self, klass: str) -> int:
        """Bytes that the next run of `klass` will hardly exceed; 0: unknown."""
        return self._peaks.get(klass, 0)

    def used_bytes(self) -> int:
        """What is in use or reserved."""
        return self.base_bytes + self._beside_bytes + self._reserved_bytes

    def room_bytes(self) -> int | None:
        """What the last looks leave, reserved or not; None: there is no limit. For `Meter.next_in_s`."""
        return self.limit_bytes - self._grown_bytes() if self.limit_bytes else None

    def fits(self, klass: str, jid: str, child: int | None = None) -> bool:
        """Whether the job may start; in `child`, if that is known already, behind what that one holds."""
        if not self.limit_bytes or not self._held:
            return True
        expected_bytes = self.expected(klass)
        if self._held_alone or self._must_be_alone(jid, expected_bytes):
            return False
        if child is not None and (known := self._children.get(child)):
            expected_bytes = max(0, expected_bytes - known.reserved_bytes)
        return self.used_bytes() + expected_bytes <= self.limit_bytes

    def put_off(self, klass: str, jid: str, now_at: float) -> str | None:
        """The job does not fit now. None: it is to be the next one that starts here. After so long that others must not
        wait for it any more: why it does not start, in words.
        """
        since_at, last_at, patience_s = self._waiting.get(jid, (now_at, now_at, _PATIENCE_S))
        if now_at > last_at + _FORGOTTEN_S:
            since_at = now_at  # it was put off, or elsewhere
        has_patience = now_at < since_at + patience_s
        if not has_patience:
            patience_s = min(2 * patience_s, _LONGEST_PATIENCE_S)  # else it would never meet the end of long ones
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
        """The job has been given to the child. What never `ends` is nothing to wait for."""
        if not self.limit_bytes:
            return
        self._waiting.pop(jid, None)
        known = self._child(child)
        if jid in known.expected:
            return
        expected_bytes = known.expected[jid] = self.expected(klass)
        if not ends:
            self._endless.add(jid)
        self._held += ends
        if self._must_be_alone(jid, expected_bytes):
            self._held_alone.add(jid)
        if expected_bytes > known.reserved_bytes:
            self._reserve(known)

    def grown(self, child: int, grown_bytes: int) -> None:
        """What the child's processes have by the last look, with a job or without."""
        if self.limit_bytes:
            known = self._child(child)
            known.grown_bytes = grown_bytes
            self._reserve(known)

    def settle(self, child: int, klass: str, jid: str, peak_bytes: int = 0) -> None:
        """The child is done with the job, or has handed it back. 0: nobody has looked at it, nothing is learnt."""
        if not self.limit_bytes:
            return
        if (known := self._children.get(child)) and jid in known.expected:
            self._held -= jid not in self._endless
            self._endless.discard(jid)
            self._held_alone.discard(jid)
            expected_bytes = known.expected.pop(jid)
            if expected_bytes and expected_bytes == known.reserved_bytes:
                self._reserve(known)
        if peak_bytes:
            self._learn(klass, peak_bytes)

    def gone(self, child: int) -> None:
        """The child has ended; all that it held is free."""
        if known := self._children.pop(child, None):
            self._reserved_bytes -= known.reserved_bytes
            self._held -= len(known.expected.keys() - self._endless)
            self._endless -= known.expected.keys()
            self._held_alone -= known.expected.keys()

    def done(self, jid: str) -> None:
        """The job has come to its end: if it had to run alone, that is forgotten."""
        self._alone.pop(jid, None)

    def victim(self) -> int | None:
        """The child to kill because all together have grown beyond the limit; None: there is room.

        An idle one, if the end of all of these is enough; else the one that has grown most. Who is being killed counts
        no more.
        """
        if not self.limit_bytes:
            return None
        excess_bytes = self._grown_bytes() - self.limit_bytes
        if excess_bytes <= 0 or self.base_bytes >= self.limit_bytes:  # the latter: nobody's end would be enough
            return None
        idle, number = self._largest(idle=True), self._largest(idle=False)
        if idle is not None and (number is None or self._idle_bytes() >= excess_bytes):
            return idle
        return number

    def condemn(self, child: int, klass: str | None = None, jid: str | None = None) -> None:
        """The child is being killed, by `victim`: the job that it was running may from now on run alone only."""
        known = self._child(child)
        known.condemned = True
        if klass is not None and jid is not None:
            self._learn(klass, known.grown_bytes)
            _remember(self._alone, jid, None, self._capacity)

    def spare(self) -> int | None:
        """While a job does not fit: the idle child that keeps most memory, to be ended for it; None: none does."""
        return self._largest(idle=True) if self.limit_bytes else None

    def _child(self, number: int) -> _Child:
        known = self._children.get(number)
        if known is None:
            known = self._children[number] = _Child()
        return known

    def _reserve(self, known: _Child) -> None:
        was_bytes = known.reserved_bytes
        known.reserved_bytes = max(known.grown_bytes, *known.expected.values(), 0)
        self._reserved_bytes += known.reserved_bytes - was_bytes

    def _grown_bytes(self) -> int:
        return self.base_bytes + sum([each.grown_bytes for each in self._children.values() if not each.condemned])

    def _idle_bytes(self) -> int:
        return sum(each.grown_bytes for each in self._children.values() if not each.expected and not each.condemned)

    def _largest(self, idle: bool) -> int | None:
        living = ((number, each) for number, each in self._children.items() if not each.condemned)
        found = [(each.grown_bytes, number) for number, each in living if bool(each.expected) != idle]
        grown_bytes, number = max(found, default=(0, 0))
        return number if grown_bytes else None

    def _must_be_alone(self, jid: str, expected_bytes: int) -> bool:
        return jid in self._alone or self.base_bytes + expected_bytes > self.limit_bytes

    def _learn(self, klass: str, peak_bytes: int) -> None:
        known_bytes = self._peaks.pop(klass, 0)  # put in again at the end: who was seen last is forgotten last
        if peak_bytes < known_bytes:
            peak_bytes = known_bytes - int(_DECAY * (known_bytes - peak_bytes))
        _remember(self._peaks, klass, peak_bytes, self._capacity)


def _remember(known: dict[str, V], name: str, value: V, capacity: int) -> None:
    if name not in known and len(known) >= capacity:
        del known[next(iter(known))]
    known[name] = value
