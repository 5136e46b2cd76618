"""Reads what in a namespace will wait until a person acts, or has gone wrong unseen. Does no I/O.

Runs in every process that speaks to Redis.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from supervisor.engine.commands.command import Command, now_ms, parse_names
from supervisor.engine.commands.routes import joined, summed, united
from supervisor.engine.commands.steps import Steps
from supervisor.engine.model import scripts
from supervisor.engine.model.validation import checked_int


@dataclass(frozen=True, slots=True)
class QueueConcerns:
    """The concerns of one queue. A queue of which all is well has none."""

    unserved: bool  # it has jobs to lease, and no live worker serves it
    parked_s: float | None  # for how long its first parked job has been parked; None: none is
    late: int  # its recurrences whose time is more than a minute ago
    failed_recurrences: int  # those of its next 50 recurrences whose last job lies in failed


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """The memory that the server uses and may use (0: no bound), and the keys that it has evicted so far."""

    used_bytes: int
    most_bytes: int
    evicted: int


@dataclass(frozen=True, slots=True)
class Concerns:
    """The concerns of some queues or of all: they wait for a person, or have gone wrong unseen.

    `failed`: number of all failed jobs. `groups`: of these, those of the 50 groups that changed last. `closed_limits`:
    up to 50 limits of 0 that hold jobs up. `memory`: None if the account may not ask for it. `running_batches`: that
    have not ended. `open_batches`: whose block was not left for an hour.
    """

    queues: Mapping[str, QueueConcerns] = field(default_factory=dict)
    failed: int = 0
    groups: Mapping[str, int] = field(default_factory=dict)
    closed_limits: tuple[str, ...] = ()
    memory: ServerMemory | None = None
    running_batches: int = 0
    open_batches: int = 0

    def __or__(self, more: "Concerns") -> "Concerns":
        """Return this with the further queues of a later reply."""
        return replace(self, queues={**self.queues, **more.queues})


def read(offset: int = 0, *, now: float | None = None) -> Command[tuple[Concerns, int | None]]:
    """Read about some known queues from `offset` on, and what belongs to no queue by offset 0.

    Returns with it the offset of the next call, None after the last.
    """
    return Command(scripts.CONCERNS, (now_ms(now), checked_int("offset", offset, 0)), _parse)


def of_all(answers: list[Concerns]) -> Concerns:
    """Return the concerns of all shards together."""
    return Concerns(
        joined(_of_queue)([one.queues for one in answers]),
        sum(one.failed for one in answers),
        summed([one.groups for one in answers]),
        tuple(united([list(one.closed_limits) for one in answers])),
        _fullest([one.memory for one in answers if one.memory is not None]),
        sum(one.running_batches for one in answers),
        sum(one.open_batches for one in answers),
    )


def _of_queue(answers: list[QueueConcerns]) -> QueueConcerns:
    parked_s = [one.parked_s for one in answers if one.parked_s is not None]
    return QueueConcerns(
        any(one.unserved for one in answers),
        max(parked_s, default=None),
        sum(one.late for one in answers),
        sum(one.failed_recurrences for one in answers),
    )


def _fullest(servers: list[ServerMemory]) -> ServerMemory | None:
    """Return the memory of the server that has least left: shards may lie on several."""
    bounded = [one for one in servers if one.most_bytes]
    if bounded:
        return max(bounded, key=lambda one: one.used_bytes / one.most_bytes)
    return servers[0] if servers else None


def _parse(reply: list[Any]) -> tuple[Concerns, int | None]:
    following, rows, failed, groups, closed, memory, n_running, n_open = reply
    concerns = [
        QueueConcerns(unserved == 1, parked_ms / 1000 if parked_ms >= 0 else None, late, failed_last)
        for _queue, unserved, parked_ms, late, failed_last in rows
    ]
    queues = dict(zip(parse_names([row[0] for row in rows]), concerns, strict=True))
    counted = dict(zip(parse_names(groups[::2]), groups[1::2], strict=True))
    server = ServerMemory(*memory) if memory else None
    found = Concerns(queues, failed, counted, tuple(parse_names(closed)), server, n_running, n_open)
    return found, following if following >= 0 else None


def read_all(now: Callable[[], float | None]) -> Steps[Concerns]:
    """Return what waits for a person, of all queues."""
    offset: int | None = 0
    found = Concerns()
    while offset is not None:
        page, following = yield read(offset, now=now())
        found, offset = found | page if offset else page, following
    return found
