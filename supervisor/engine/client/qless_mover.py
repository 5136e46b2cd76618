"""Moves the jobs of a qless or reqless here. Runs in commands.

Each job is put here first, and removed there after the put is known. Must not hold more than one step's jobs. A move
that was killed is called again: it finds each job there, here, or in both, and goes on.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from supervisor.engine.client.qless import (
    PAGE,
    JobsChanged,
    Left,
    OldPlace,
    Qless,
    job_key,
    key_of,
    places,
    recurrence_key,
)
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.client.sync_handles import Job
from supervisor.engine.commands import qless, writes
from supervisor.engine.commands.qless import OldJob, OldRecurrence
from supervisor.engine.model.errors import DependencyError, LeaseholdError, OutcomeUnknown, StoreUnavailable

_MOST_NAMED: Final = 1000  # jobs that stay there and are named
_MOST_FOLLOWED: Final = 10_000  # children in hand
#: The least number of completed jobs, and of seconds, that are kept here: a job that was put, and is not yet removed
#: there, is known by its record.
_LEAST_HISTORY: Final = 1000
_NOT_STARTED: Final = ("waiting", "scheduled", "depends")
_ANOTHER: Final = "another job of this jid is here already, or it has changed there since"
_ANOTHER_RECURRENCE: Final = "another recurring job of this jid is here already, or it has changed there since"


@dataclass(slots=True)
class Moved:
    """The result of a move. `number_left` counts more than `left` names."""

    jobs: int = 0
    recurring: int = 0
    number_left: int = 0
    left: list[Left] = field(default_factory=list)

    def leave(self, *jobs: Left, more: int = 0) -> None:
        """Count jobs that stay there, and `more`, and name the first."""
        self.number_left += len(jobs) + more
        self.left += jobs[: max(_MOST_NAMED - len(self.left), 0)]


class Mover:
    """Moves all jobs of a qless to the namespace of a client, in steps of at most 100 jobs."""

    def __init__(self, source: Qless, client: Client) -> None:
        self._source = source
        self._client = client
        self._calls = calls_of(client)
        self.moved = Moved()  # so far
        self._limits: set[str] = set()
        self._new: set[str] = set()  # jids of what this step has put

    def move(self) -> Moved:
        """Move all. Raises LeaseholdError if workers live there, or if it cannot be told here what was moved."""
        with self._source.spoken(". A move goes on where it was, if called again"):
            queues, groups = self._source.queues(), self._source.groups()
            self._check_history(sum(self._source.failed(groups)))
            self._check_quiet(queues)
            self._source.check_rights()
            for queue in queues:
                self._keep_settings(queue)
                for place in places(queue):
                    self._empty(place)
            for group in groups:
                self._empty(OldPlace(b"ql:f:" + group, None, "failed"))
            self._empty_depends(queues)
            for queue in queues:
                self._empty_recurring(OldPlace(key_of(queue, "recur"), queue, "recur"))
            for queue in queues:
                self._source.forget_queue(queue)
            for group in groups:
                self._source.forget_group(group)
        return self.moved

    def _check_history(self, failed: int) -> None:
        """Refuse to move more than is kept here."""
        for option in ("jobs-history", "jobs-history-count"):
            kept = self._client.config.get(option)
            if not isinstance(kept, int | float) or kept < _LEAST_HISTORY:
                raise LeaseholdError(
                    f"{option} is {kept}, and a move that was killed knows by the records of completed jobs what it"
                    f" has moved: let it be {_LEAST_HISTORY} or more meanwhile (leasehold config {option} …)"
                )
        here, kept = sum(self._client.failed().values()), self._client.config.get("failed-history-count")
        if isinstance(kept, int | float) and here + failed > kept:
            raise LeaseholdError(
                f"{failed} jobs have failed there and {here} here, and failed-history-count is {kept}, so the oldest"
                " would be dropped: raise it (leasehold config failed-history-count …)"
            )

    def _check_quiet(self, queues: Sequence[bytes]) -> None:
        if living := self._source.living(queues):
            raise LeaseholdError(f"nothing can be moved while workers live there: {'; '.join(living[:3])}")

    def _keep_settings(self, queue: bytes) -> None:
        """Pause the queue here if it is paused there, and bound its running jobs, unless that is set here."""
        try:
            name = queue.decode()
            if self._source.is_paused(queue):
                self._client.queue(name).pause()
            most = self._source.most_running(queue)
            if most and f"max-concurrency-{name}" not in self._client.config.all():
                self._client.config.set(f"max-concurrency-{name}", most)
        except ValueError:
            return  # a name that is refused here: its jobs stay there, and say why

    def _empty(self, place: OldPlace) -> None:
        left = 0
        while page := self._source.page(place, left):
            left += len(page) - self._step(place, page, self.moved.leave)[0]

    def _empty_depends(self, queues: Sequence[bytes]) -> None:
        """Move the jobs that wait for others, parents first: one that were not here would count as complete."""
        blocked = Moved()
        before = -1
        while before != self.moved.jobs:
            before, blocked = self.moved.jobs, Moved()
            for queue in queues:
                left, place = 0, OldPlace(key_of(queue, "depends"), queue, "depends")
                while page := self._source.page(place, left):
                    number, children = self._step(place, page, blocked.leave)
                    left += len(page) - number
                    self._follow(children)
        self.moved.leave(*blocked.left, more=blocked.number_left - len(blocked.left))

    def _follow(self, children: Sequence[bytes]) -> None:
        """Move children of moved jobs, and theirs, as far as they can be moved. A look at all finds the others."""
        waiting = list(children)
        while waiting:
            some, waiting = waiting[:PAGE], waiting[PAGE:]
            for place, page in self._source.depending(some):
                waiting += self._step(place, page, lambda _left: None)[1]
            waiting = list(dict.fromkeys(waiting))[:_MOST_FOLLOWED]

    def _step(
        self, place: OldPlace, page: Sequence[tuple[bytes, float]], leave: Callable[[Left], object]
    ) -> tuple[int, list[bytes]]:
        """Move the jobs of a page that can be moved. A change there meanwhile ends the move.

        Return how many were moved, and the jobs that waited for them if they have waited, too.
        """
        with self._source.pipeline(atomic=True) as pipe:
            pipe.watch(*(job_key(jid) for jid, _ in page))
            self._check_quiet([place.queue] if place.queue is not None else [])
            self._new.clear()
            jobs = []
            for found in self._source.jobs(place, page):
                if isinstance(found, Left):
                    leave(found)
                else:
                    jobs.append(found)
            if place.kind == "depends":
                jobs = self._in_order(jobs, leave)
            jobs = self._put(jobs, leave)
            children = self._source.children(jobs) if place.kind == "depends" else []
            pipe.multi()
            for job in jobs:
                self._source.remove(pipe, place, job)
            self._commit(pipe, jobs)
        self.moved.jobs += len(jobs)
        return len(jobs), children

    def _commit(self, pipe: Any, jobs: Sequence[OldJob]) -> None:
        """Remove there what was put here. If that has changed there, take back here what this step has put."""
        try:
            self._source.commit(pipe)
        except JobsChanged as error:
            both = self._take_back([job for job in jobs if job.jid in self._new])
            if not both:
                raise
            more = f" and {len(both) - 10} more" if len(both) > 10 else ""
            raise JobsChanged(
                f"{error}. Jobs that are in both places, and have started here: {', '.join(both[:10])}{more}"
            ) from None

    def _in_order(self, jobs: Sequence[OldJob], leave: Callable[[Left], object]) -> list[OldJob]:
        """Return the jobs whose parents have been moved or have ended, or come before them."""
        away = self._source.not_ended(parent for job in jobs for parent in job.depends)
        ordered: list[OldJob] = []
        rest = list(jobs)
        while ready := [job for job in rest if not away & {*job.depends}]:
            ordered += ready
            rest = [job for job in rest if away & {*job.depends}]
            away -= {job.jid for job in ready}
        for job in rest:
            leave(Left(job.queue, job.jid, _waits_for(away & {*job.depends})))
        return ordered

    def _put(self, jobs: Sequence[OldJob], leave: Callable[[Left], object]) -> list[OldJob]:
        """Put jobs, and return those that are here now as they were there."""
        for job in jobs:
            self._keep_limits(job.throttles)
        known = self._known(jobs)
        here = self._added(_without(jobs, lambda job: "" if _is_same(job, known[job.jid]) else _ANOTHER, leave), leave)
        unsure = [job for job in here if known[job.jid] is None and job.jid not in self._new]
        if unsure:  # a producer here was faster, or the answer to an earlier try of the put was lost
            known |= self._known(unsure)
            others = {job.jid for job in unsure if known[job.jid] is None or not _is_same(job, known[job.jid])}
            added, here = here, _without(here, lambda job: _ANOTHER if job.jid in others else "", leave)
            kept = {job.jid for job in here}
            self._new |= kept & {job.jid for job in unsure}
            self._take_back([job for job in added if job.jid in self._new - kept])
        for job in here:
            found = known[job.jid]
            for log in job.logs[_number_told(found) :]:
                self._calls.run(log)
            if job.fail is not None and (found is None or found.due_unix == qless.PARKED_UNIX):
                self._calls.run(job.fail)
        for jid in self._source.tracked(here):
            self._calls.call(writes.track, jid)
        return here

    def _known(self, jobs: Sequence[OldJob]) -> dict[str, Job | None]:
        jids = [job.jid for job in jobs]
        return dict(zip(jids, self._client.jobs(*jids) if jids else (), strict=True))

    def _added(self, jobs: Sequence[OldJob], leave: Callable[[Left], object]) -> list[OldJob]:
        """Add jobs in one step, or one by one if that is refused. Return those that are not refused."""
        if not jobs or not self._why_refused(*jobs):
            return list(jobs)
        return _without(jobs, self._why_refused, leave)

    def _why_refused(self, *jobs: OldJob) -> str:
        """Put jobs that are not known here, and return why none of them was put. Empty: all are here."""
        try:
            answers = self._calls.put_jobs([job.new for job in jobs])
        except (StoreUnavailable, OutcomeUnknown):
            raise
        except LeaseholdError as error:
            return str(error)
        self._new.update(job.jid for job, is_new in zip(jobs, answers, strict=True) if is_new is True)
        return ""

    def _take_back(self, jobs: Sequence[OldJob]) -> list[str]:
        """Cancel here those jobs that have not started. Return the jids of the others."""
        known = self._known(jobs)
        idle = [
            job.jid
            for job in jobs
            if (found := known[job.jid]) is not None
            and (found.state in _NOT_STARTED or (job.fail is not None and found.state == "failed"))
        ]
        try:
            cancelled = self._client.cancel(*idle) if idle else []
        except DependencyError:  # a job that was put here meanwhile waits for one of them
            cancelled = []
        return [job.jid for job in jobs if known[job.jid] is not None and job.jid not in cancelled]

    def _keep_limits(self, throttles: Iterable[str]) -> None:
        """Set a limit for each throttle of jobs, unless it is set here."""
        for name in qless.shared(throttles):
            if name in self._limits:
                continue
            if len(self._limits) >= _MOST_NAMED:
                self._limits.clear()
            self._limits.add(name)
            most, present = self._source.most_throttled(name), self._client.limit(name)
            if most and present.running is None and present.rate is None:
                self._client.limit(name, running=most)

    def _empty_recurring(self, place: OldPlace) -> None:
        left = 0
        assert place.queue is not None
        while page := self._source.page(place, left):
            with self._source.pipeline(atomic=True) as pipe:
                pipe.watch(*(recurrence_key(jid) for jid, _ in page))
                self._check_quiet([])
                self._new.clear()
                here = [one.jid for one in self._source.recurrences(place.queue, page) if self._is_here(one)]
                pipe.multi()
                for jid in here:
                    pipe.zrem(place.key, jid)
                    pipe.delete(recurrence_key(jid.encode()))
                try:
                    self._source.commit(pipe)
                except JobsChanged:
                    for jid in self._new:
                        self._calls.act(writes.unrecur, jid)
                    raise
            left += len(page) - len(here)
            self.moved.recurring += len(here)

    def _is_here(self, one: OldRecurrence | Left) -> bool:
        """Create a recurring job, and return whether it is here as it was there."""
        if isinstance(one, Left):
            self.moved.leave(one)
            return False
        known = self._client.recurring(one.jid)
        if known is None:
            self._keep_limits(one.throttles)
            self._calls.run(one.recur)
            self._new.add(one.jid)
        elif qless.content_of(known) != one.content:
            self.moved.leave(Left(one.queue, one.jid, _ANOTHER_RECURRENCE))
            return False
        return True


def _number_told(found: Job | None) -> int:
    """Return how many lines an earlier move has added to the history of a job here."""
    return sum(entry["message"] == qless.MOVED for entry in found.log) if found is not None else 0


def _without(jobs: Sequence[OldJob], why: Callable[[OldJob], str], leave: Callable[[Left], object]) -> list[OldJob]:
    """Leave jobs for which there is a reason, and those that wait for them. Return the others. Parents come first."""
    others, stay = [], set[str]()
    for job in jobs:
        parents = stay & {*job.depends}
        if reason := _waits_for(parents) if parents else why(job):
            leave(Left(job.queue, job.jid, reason))
            stay.add(job.jid)
        else:
            others.append(job)
    return others


def _waits_for(parents: set[str]) -> str:
    return f"it waits for {min(parents)}, which stays there"


def _is_same(job: OldJob, found: Job | None) -> bool:
    """Return whether what is known here was put for the job there as it is now. Nothing is known: it may be put."""
    return found is None or found.trace == job.mark
