"""The model's skills: for which klasses workers have handlers, and what lies apart for those who have. No Redis."""

from dataclasses import dataclass, field

from tests.engine.model_lanes import Turns

LIVES = 60_000  # ms; a worker that was not seen for longer counts as gone


@dataclass
class Skills:
    """Who has said what. `lacks`: the klasses that a worker is known to have no handlers for."""

    numbered: set[str] = field(default_factory=set)  # they number their exchanges, as masters do
    told: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)  # klasses and queues
    lacks: dict[str, set[str]] = field(default_factory=dict)

    def peers(self, klass: str, queue: str, worker: str | None, seen: dict[str, int], now: int) -> list[str]:
        """Who else lives, has the klass and serves the queue. Nobody beside a worker that has told nothing."""
        living = [name for name, at in seen.items() if at >= now - LIVES]
        if any(name in self.numbered and name not in self.told for name in living):
            return []
        none: tuple[set[str], set[str]] = (set(), set())
        found = [(name, *self.told.get(name, none)) for name in living if name != worker]
        return [name for name, klasses, queues in found if klass in klasses and queue in queues]

    def note_lack(self, worker: str, klass: str) -> None:
        if worker in self.numbered and klass not in self.told.get(worker, ((), ()))[0]:
            self.lacks.setdefault(worker, set()).add(klass)

    def lacked_by(self, worker: str) -> set[str]:
        return self.lacks.get(worker, set())


@dataclass
class Apart:
    """What lies apart in one queue: when to look whether anybody has a klass, and the turns of its lanes."""

    looks: dict[str, int] = field(default_factory=dict)
    lines: dict[str, Turns] = field(default_factory=dict)

    def line(self, klass: str) -> Turns:
        return self.lines.setdefault(klass, Turns())

    def is_due(self, when: int, now: int) -> bool:
        """A time that the clock has left behind, by going back, is none."""
        return when <= now or when > now + 2 * LIVES

    def must_look(self, now: int) -> bool:
        return bool(self.looks) and self.is_due(min(self.looks.values()), now)

    def has_some_for(self, lacks: set[str], now: int) -> bool:
        return self.must_look(now) or bool(set(self.looks) - lacks)
