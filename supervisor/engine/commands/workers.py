"""Defines workers as others see them, and the calls about them. Runs in every process that speaks to Redis.

Must not do I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Final

from supervisor.engine.commands.command import Command, checked_by, checked_page, checked_queues, now_ms, parse_names
from supervisor.engine.commands.routes import beginnings, everywhere, home, joined, united
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.validation import checked_int, milliseconds, to_json

#: A worker unseen for this long may be gone; lua/include/lives.lua agrees. An idle worker is seen every 30 s.
LIVES_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker and its leases.

    `seen_unix` is the time of its last lease or renewal, `unseen_s` its age by the server's clock. `running` and
    `stalled` count its leases. `klasses` and `queues` are those that it has reported, at most 1,000 of each. A query of
    all workers returns at most 10,000 of both together.
    """

    name: str
    running: int
    stalled: int
    seen_unix: float
    unseen_s: float
    klasses: list[str] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    release: str | None = None  # name of its code's release, if it has reported one

    @property
    def lives(self) -> bool:
        """Return whether the worker was seen within a minute."""
        return self.unseen_s < LIVES_S

    def may_have(self, klass: str) -> bool:
        """Return whether it may have a handler for this klass.

        A worker that has not reported all klasses may have any.
        """
        return _may_be_among(self.klasses, klass)

    def may_serve(self, queue: str) -> bool:
        """Return whether it may serve this queue, in the same way."""
        return _may_be_among(self.queues, queue)


@dataclass(frozen=True, slots=True)
class WorkerJobs:
    """The jids of the jobs that a worker holds, in the order of its leases, and its reported klasses.

    `seen_unix` is None for an unknown worker.
    """

    name: str
    seen_unix: float | None
    running: list[str]
    stalled: list[str]
    klasses: list[str] = field(default_factory=list)


def deregister(worker: str, *, own: bool = False, by: str | None = None, now: float | None = None) -> Command[int]:
    """Forget a worker and return its jobs to the front, uncounted. Returns how many.

    `own`: the worker leaves by itself; any other worker gets a hint. `by` names who asks.
    """
    args = now_ms(now), checked_name("worker", worker), "1" if own else "", checked_by(by)
    return Command(scripts.DEREGISTER, args, int, route=everywhere(sum))


def report_skills(
    worker: str,
    klasses: Iterable[str],
    queues: Iterable[str],
    shapes: Mapping[str, str] | None = None,
    release: str = "",
    *,
    now: float | None = None,
) -> Command[bool]:
    """Report a worker's klasses and queues, at most 1,000 of each. Answers False for an unknown worker.

    From then on it leases the jobs whose klass other workers do not know. `shapes`: by klass, a digest of the data that
    the handler takes. From then on it leases the jobs whose data do not have the shape that other workers take.
    """
    lines = (
        "\n".join(checked_name("klasses", klass) for klass in islice(klasses, MOST)),
        "\n".join(islice(queues, MOST)),
        "\n".join(f"{klass}\t{checked_name('shapes', shape)}" for klass, shape in islice((shapes or {}).items(), MOST)),
        checked_name("release", release) if release else "",
    )
    return Command(scripts.SKILLS, (now_ms(now), checked_name("worker", worker), *lines), bool)


def retire(worker: str, queues: Sequence[str], soon_s: float, *, now: float | None = None) -> Command[str]:
    """Forget a worker without work in its queues, now and within `soon_s` seconds.

    Answers "", or why it is still needed: held, mail, asked, lost, work, soon, watch.
    """
    args = now_ms(now), checked_name("worker", worker), milliseconds("soon_s", soon_s)
    return Command(scripts.RETIRE, (*args, *(checked_queues(queues) if queues else ())), bytes.decode)


def desire(name: str, count: int, note: object) -> Command[int]:
    """Publish for a minute how many supervisors of this name there should be (0 to 1,000).

    A scaler reads the number as the length of a list, whose first element is `note` as JSON.
    """
    args = checked_name("name", name), checked_int("count", count, 0, MOST), to_json("note", note)
    return Command(scripts.DESIRE, args, int, route=home)


def read(offset: int = 0, count: int = MOST, *, now: float | None = None) -> Command[list[WorkerInfo]]:
    """Read up to `count` (0 to 1,000) workers, the most recently seen first."""

    def join(answers: list[list[WorkerInfo]]) -> list[WorkerInfo]:
        by_name = joined(_in_all)([{one.name: one for one in answer} for answer in answers])
        rows = sorted(by_name.values(), key=lambda one: -one.seen_unix)
        return rows[offset : offset + count]

    route = beginnings(offset, count, partial(read, now=now), join)
    return Command(scripts.WORKERS, (now_ms(now), *checked_page(offset, count)), _parse_workers, route=route)


def _in_all(answers: list[WorkerInfo]) -> WorkerInfo:
    """Return what all shards know of one worker: its leases together, and what it has reported to the first."""
    return replace(
        answers[0],
        running=sum(one.running for one in answers),
        stalled=sum(one.stalled for one in answers),
        seen_unix=max(one.seen_unix for one in answers),
        unseen_s=min(one.unseen_s for one in answers),
        klasses=max((one.klasses for one in answers), key=len),
        queues=united([one.queues for one in answers]),
    )


def jobs_of(name: str, *, now: float | None = None) -> Command[WorkerJobs]:
    """Read the jobs that one worker holds."""
    checked_name("name", name)
    return Command(
        scripts.WORKER, (now_ms(now), name), lambda reply: _parse_worker(name, reply), route=everywhere(_jobs_in_all)
    )


def _jobs_in_all(answers: list[WorkerJobs]) -> WorkerJobs:
    return WorkerJobs(
        answers[0].name,
        max((one.seen_unix for one in answers if one.seen_unix is not None), default=None),
        united([one.running for one in answers]),
        united([one.stalled for one in answers]),
        max((one.klasses for one in answers), key=len),
    )


def _may_be_among(reported: Sequence[str], name: str) -> bool:
    return name in reported or not reported or len(reported) >= MOST


def _parse_workers(reply: list[Any]) -> list[WorkerInfo]:
    return [
        WorkerInfo(
            name.decode(), running, stalled, seen_ms / 1000, unseen_ms / 1000, parse_names(klasses),
            parse_names(queues), release.decode() if release else None,
        )
        for name, seen_ms, running, stalled, unseen_ms, klasses, queues, release in reply
    ]  # fmt: skip


def _parse_worker(name: str, reply: list[Any]) -> WorkerJobs:
    seen_ms, running, stalled, klasses = reply
    return WorkerJobs(
        name, seen_ms / 1000 if seen_ms else None, parse_names(running), parse_names(stalled), parse_names(klasses)
    )
