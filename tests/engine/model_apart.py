"""The klasses that workers have handlers for, and the jobs that lie apart for them. Part of the model; no Redis."""

from dataclasses import dataclass, field

from tests.engine.model_lanes import Turns

LIVES = 60_000  # ms; a worker that was not seen for longer counts as gone


@dataclass
class Skills:
    """The reports of workers. `lacks`: the klasses that a worker is known to have no handlers for."""

    numbered: set[str] = field(default_factory=set)  # workers that number their exchanges, as masters do
    reported: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)  # klasses and queues
    lacks: dict[str, set[str]] = field(default_factory=dict)

    def peers(self, klass: str, queue: str, worker: str | None, seen: dict[str, int], now: int) -> list[str]:
        """Return the other live workers with the klass and the queue; none if a live worker has reported nothing."""
        living = [name for name, at in seen.items() if at >= now - LIVES]
        if any(name in self.numbered and name not in self.reported for name in living):
            return []
        none: tuple[set[str], set[str]] = (set(), set())
        found = [(name, *self.reported.get(name, none)) for name in living if name != worker]
        return [name for name, klasses, queues in found if klass in klasses and queue in queues]

    def note_lack(self, worker: str, klass: str) -> None:
        if worker in self.numbered and klass not in self.reported.get(worker, ((), ()))[0]:
            self.lacks.setdefault(worker, set()).add(klass)

    def lacked_by(self, worker: str) -> set[str]:
        return self.lacks.get(worker, set())


@dataclass
class Apart:
    """The jobs apart of one queue: when to check the peers of each klass, and the turns of its lanes."""

    checks: dict[str, int] = field(default_factory=dict)
    lines: dict[str, Turns] = field(default_factory=dict)

    def line(self, klass: str) -> Turns:
        return self.lines.setdefault(klass, Turns())

    def is_due(self, when: int, now: int) -> bool:
        """Return whether it is time to check. A time too far ahead comes from a clock that has gone back."""
        return when <= now or when > now + 2 * LIVES

    def must_check(self, now: int) -> bool:
        return bool(self.checks) and self.is_due(min(self.checks.values()), now)

    def has_some_for(self, lacks: set[str], now: int) -> bool:
        return self.must_check(now) or bool(set(self.checks) - lacks)
