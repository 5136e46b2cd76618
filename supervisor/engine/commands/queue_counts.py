"""Builds the commands that count the jobs of queues. Runs in every process that speaks to Redis. Must not do I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from supervisor.engine.commands.command import Command, checked_queues, now_ms, parse_by
from supervisor.engine.commands.routes import Route, everywhere, joined, united
from supervisor.engine.model import scripts
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.validation import checked_int


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs of a queue are in each state.

    `waiting` includes due jobs, all lanes, entries pushed by other programs, and jobs left to a worker that knows their
    klass. The leases of `stalled` jobs have expired without a takeover. `parked` jobs wait for room in their limit,
    or for their paused batch. `paused`: nothing new is leased; `paused_unix` and `paused_by` are None if unknown.
    """

    waiting: int
    running: int
    stalled: int
    scheduled: int
    depends: int
    parked: int
    recurring: int
    paused: bool
    paused_by: str | None = field(default=None, kw_only=True, compare=False)
    paused_unix: float | None = field(default=None, kw_only=True, compare=False)

    @property
    def total(self) -> int:
        """Return the number of jobs in all these states."""
        return self.waiting + self.running + self.stalled + self.scheduled + self.depends + self.parked + self.recurring


@dataclass(frozen=True, slots=True)
class Depths(Counts):
    """The counts, and how many of the waiting jobs could be leased now.

    `front` and `entries` are parts of `waiting`. `ready` jobs are not held back by a pause, a paused lane or
    max-concurrency. `oldest_s` is the age of the oldest job that could be leased, None without one; entries have no
    age, and a pause of the queue does not count. `old_depends` is the part of `depends` that has waited for other jobs
    for more than a day. The query reads 100 jobs of the front, and of 100 lanes the first job
    of each of 16 priorities.
    """

    front: int
    entries: int
    ready: int
    oldest_s: float | None
    old_depends: int = 0


_SUMMED: Final = ("waiting", "running", "stalled", "scheduled", "depends", "parked", "recurring")
_SUMMED_IN_DEPTH: Final = ("front", "entries", "ready", "old_depends")


def names() -> Command[list[str]]:
    """Read the names of all queues that are known and not forgotten, in the order of their first put."""
    return Command(scripts.NAMES, (), _parse_queues, route=everywhere(united))


def counts(queues: Sequence[str] = (), offset: int = 0, *, now: float | None = None) -> Command[dict[str, Counts]]:
    """Count the jobs of these queues, or of 1,000 known queues in the order of `names`, from `offset` on."""
    return Command(scripts.COUNTS, _counting(queues, offset, now, ""), _parse_counts, route=_route(queues))


def depths(queues: Sequence[str] = (), offset: int = 0, *, now: float | None = None) -> Command[dict[str, Depths]]:
    """Count as `counts` does, with what could be leased now and its age."""
    return Command(scripts.COUNTS, _counting(queues, offset, now, "1"), _parse_depths, route=_route(queues))


def _route(queues: Sequence[str]) -> Route | None:
    """The pages of all queues are those of one shard, and are added up by `added`."""
    return everywhere(added) if queues else None


C = TypeVar("C", bound=Counts)


def added(answers: list[dict[str, C]]) -> dict[str, C]:
    """Add up the counts of the same queues in several shards."""
    return joined(_sum)(answers)


def _sum(counts: list[C]) -> C:
    """A pause is the same in each shard."""
    total: dict[str, Any] = {name: sum(getattr(one, name) for one in counts) for name in _SUMMED}
    if isinstance(counts[0], Depths):
        total |= {name: sum(getattr(one, name) for one in counts) for name in _SUMMED_IN_DEPTH}
        total["oldest_s"] = max((one.oldest_s for one in counts if one.oldest_s is not None), default=None)  # type: ignore[attr-defined]  # all are of one class
    return replace(counts[0], **total)


def _counting(queues: Sequence[str], offset: int, now: float | None, in_depth: str) -> tuple[Any, ...]:
    return now_ms(now), checked_int("offset", offset, 0), in_depth, *(checked_queues(queues) if queues else ())


def _parse_queues(reply: list[bytes]) -> list[str]:
    """Return the valid names. A damaged one must not hide the others."""
    names = []
    for raw in reply:
        try:
            names.append(checked_name("queue", raw.decode()))
        except ValueError:
            continue
    return names


def _parse_counts(reply: list[Any]) -> dict[str, Counts]:
    return {row[0].decode(): Counts(*(*row[1:8], row[8] != 0), **_parse_pause(row[8])) for row in reply}


def _parse_depths(reply: list[Any]) -> dict[str, Depths]:
    return {row[0].decode(): _parse_depth(*row[1:]) for row in reply}


def _parse_depth(*row: Any) -> Depths:
    oldest_s = row[11] / 1000 if row[11] >= 0 else None
    return Depths(*(*row[:7], row[7] != 0, *row[8:11], oldest_s, row[12]), **_parse_pause(row[7]))


def _parse_pause(reply: object) -> dict[str, Any]:
    by, since_unix = parse_by(reply)
    return {"paused_by": by, "paused_unix": since_unix}
