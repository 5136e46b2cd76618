"""Builds the command that does the namespace's maintenance, and spaces the sweeps. Runs in workers. No I/O."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from supervisor.engine.commands.command import Command, checked_by, now_ms
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.cron_times import DueCron, parse_due
from supervisor.engine.model.validation import checked_int

#: Mean time between two sweeps of one worker. A random part keeps workers from sweeping together.
SWEEP_S: Final = 15.0
#: One sweep takes at most this many jobs from lost workers. If it took as many, the next one follows at once.
SWEEP_COUNT: Final = 100


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep: how many jobs were taken from lost workers, and the cron recurrences that are due.

    `now_unix` is the time of the reply. `next_offset`: where to go on, 0 after the last queue.
    """

    now_unix: float
    taken: int
    next_offset: int
    due: list[DueCron]

    @property
    def has_more(self) -> bool:
        """True if a worker sweeps again at once: it has not visited all queues, or has taken as many jobs as it may."""
        return self.taken >= SWEEP_COUNT or self.next_offset > 0


@dataclass(frozen=True, slots=True)
class CancelledUnheld:
    """A job that was cancelled while no worker had it. `by`: who did it, if that is known."""

    jid: str
    queue: str
    klass: str
    by: str | None


def next_sweep_s() -> float:
    """Return after how many seconds a worker sweeps again."""
    return SWEEP_S * random.uniform(0.8, 1.2)


def unheard(*, now: float | None = None) -> Command[list[CancelledUnheld]]:
    """Take the cancelled jobs that no worker had, up to 1,000 of the last hour. Each is told to one caller."""

    def parse(reply: list[bytes]) -> list[CancelledUnheld]:
        jobs = [line.decode(errors="replace").split("\n") for line in reply]
        return [CancelledUnheld(jid, queue, klass, by or None) for jid, queue, klass, by in jobs]

    return Command(scripts.UNHEARD, (now_ms(now),), parse)


def sweep(
    count: int = SWEEP_COUNT,
    *,
    takeover: bool = True,
    offset: int = 0,
    worker: str | None = None,
    queues: Sequence[str] = (),
    by: str | None = None,
    now: float | None = None,
) -> Command[Swept]:
    """Do maintenance on 200 queues, from `offset` on.

    Takes up to `count` (1 to 1,000) jobs from workers lost for longer than the grace (if `takeover`), puts due
    recurrences, and drops what has outlived its retention. The `worker` counts as seen. Its `queues` are not forgotten.
    `by` names who asks, None for a worker.
    """
    args = now_ms(now), checked_int("count", count, 1, MOST), "1" if takeover else "", offset, worker or ""
    return Command(scripts.SWEEP, (*args, checked_by(by), *queues[:MOST]), _parse_swept)


def _parse_swept(reply: list[Any]) -> Swept:
    now_ms, taken, next_offset, due = reply
    return Swept(now_ms / 1000, taken, next_offset, [parse_due(row) for row in due])
