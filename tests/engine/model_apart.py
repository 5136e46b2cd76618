"""The klasses that workers have handlers for, and the jobs that lie apart for them. Part of the model; no Redis."""

from dataclasses import dataclass, field

from tests.engine.model_lanes import Turns

LIVES = 60_000  # ms; a worker that was not seen for longer counts as gone


@dataclass
class Skills:
    """The reports of workers. `lacks`: the klasses and labels that a worker is known to have no handlers for."""

    numbered: set[str] = field(default_factory=set)  # workers that number their exchanges, as masters do
    reported: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)  # klasses and queues
    shapes: dict[str, dict[str, str]] = field(default_factory=dict)  # by worker and klass
    lacks: dict[str, set[str]] = field(default_factory=dict)

    def fits(self, label: str, worker: str) -> bool:
        """Return whether jobs of a label may have the shape of a worker's handler."""
        klass, _, refused = label.partition("\t")
        shape = self.shapes.get(worker, {}).get(klass)
        return not refused or (shape is not None and shape not in refused.split(","))

    def peers(self, label: str, queue: str, worker: str | None, seen: dict[str, int], now: int) -> list[str]:
        """Return the other live workers for the label and the queue; none if a live worker has reported nothing."""
        living = [name for name, at in seen.items() if at >= now - LIVES]
        if any(name in self.numbered and name not in self.reported for name in living):
            return []
        none: tuple[set[str], set[str]] = (set(), set())
        found = [(name, *self.reported.get(name, none)) for name in living if name != worker]
        there = [name for name, klasses, queues in found if klass_of(label) in klasses and queue in queues]
        return [name for name in there if self.fits(label, name)]

    def note_lack(self, worker: str, label: str) -> None:
        has = klass_of(label) in self.reported.get(worker, ((), ()))[0]
        if worker in self.numbered and not (has and self.fits(label, worker)):
            self.lacks.setdefault(worker, set()).add(label)

    def lacked_by(self, worker: str) -> set[str]:
        return self.lacks.get(worker, set())


def klass_of(label: str) -> str:
    return label.partition("\t")[0]


def is_lacked(lacks: set[str], label: str) -> bool:
    return label in lacks or klass_of(label) in lacks


@dataclass
class Apart:
    """The jobs apart of one queue: when to check the peers of each label, and the turns of its lanes."""

    checks: dict[str, int] = field(default_factory=dict)
    lines: dict[str, Turns] = field(default_factory=dict)

    def line(self, label: str) -> Turns:
        return self.lines.setdefault(label, Turns())

    def is_due(self, when: int, now: int) -> bool:
        """Return whether it is time to check. A time too far ahead comes from a clock that has gone back."""
        return when <= now or when > now + 2 * LIVES

    def must_check(self, now: int) -> bool:
        return bool(self.checks) and self.is_due(min(self.checks.values()), now)

    def has_some_for(self, lacks: set[str], now: int) -> bool:
        return self.must_check(now) or any(not is_lacked(lacks, label) for label in self.checks)
