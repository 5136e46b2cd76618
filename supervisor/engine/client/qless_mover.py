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
    group_place,
    job_key,
    key_of,
    keys_of_job,
    places,
    recurrence_key,
)
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.client.sync_handles import Job
from supervisor.engine.commands import bulk, job_changes, qless, recurrences
from supervisor.engine.commands.choices import Choice
from supervisor.engine.commands.qless import OldJob, OldRecurrence
from supervisor.engine.model.errors import LeaseholdError, OutcomeUnknown, StoreUnavailable

_MOST_NAMED: Final = 1000  # jobs that stay there and are named
_MOST_FOLLOWED: Final = 10_000  # children in hand
#: The least number of completed jobs, and of seconds, that are kept here: a job that was put, and is not yet removed
#: there, is known by its record.
_LEAST_HISTORY: Final = 1000
_MOST_LISTED: Final = 100  # jobs that an error names
#: States of a job that no worker has had, as a choice names them.
_NOT_STARTED: Final = ("waiting", "scheduled", "depends", "parked", "failed")
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
        self._calls.shards.check_is_one("a move out of qless, whose dependencies know no shards,")
        with self._source.spoken(". A move goes on where it was, if called again"):
            queues, groups = self._source.queues(), self._source.groups()
            self._check_history(sum(self._source.failed(groups)))
            self._check_quiet(queues)
            with self._source.under_way():
                self._empty_all(queues, groups)
        return self.moved

    def _empty_all(self, queues: Sequence[bytes], groups: Sequence[bytes]) -> None:
        for queue in queues:
            self._keep_settings(queue)
            for place in places(queue):
                self._empty(place)
        for group in groups:
            self._empty(group_place(group))
        self._empty_depends(queues)
        for queue in queues:
            self._empty_recurring(OldPlace(key_of(queue, "recur"), queue, "recur"))
        for queue in queues:
            self._source.forget_queue(queue)
        for group in groups:
            self._source.forget_group(group)

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
        with self._source.step(key for jid, _ in page for key in keys_of_job(jid)) as pipe:
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
            self._source.begin_removal(pipe)
            for job in jobs:
                self._source.remove(pipe, place, job)
            self._commit(pipe, [job.jid for job in jobs], job_key, self._take_back)
        self.moved.jobs += len(jobs)
        return len(jobs), children

    def _commit(
        self,
        pipe: Any,
        here: Iterable[str],
        key_of_record: Callable[[bytes], bytes],
        undo: Callable[[Sequence[str]], Sequence[str]],
    ) -> None:
        """Remove there what is here. If that has changed there, undo here what this step has put.

        Only what is still there is undone, and nothing if another move has begun: it goes on with these jobs.
        """
        try:
            self._source.commit(pipe)
        except JobsChanged as error:
            if not self._source.is_alone():
                raise
            new = [jid for jid in here if jid in self._new]
            are_there = self._source.exist([key_of_record(jid.encode()) for jid in new])
            stay = undo([jid for jid, is_there in zip(new, are_there, strict=True) if is_there])
            gone = [jid for jid, is_there in zip(new, are_there, strict=True) if not is_there]
            raise JobsChanged(
                f"{error}{_listed('Jobs that may run in both places', stay)}"
                f"{_listed('Gone there, and only here now', gone)}"
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
            self._take_back([job.jid for job in added if job.jid in self._new - kept])
        for job in here:
            found = known[job.jid]
            for log in job.logs[_number_told(found) :]:
                self._calls.run(log)
            if job.fail is not None and (found is None or found.due_unix == qless.PARKED_UNIX):
                self._calls.run(job.fail)
        for jid in self._source.tracked(here):
            self._calls.call(job_changes.track, jid)
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

    def _take_back(self, jids: Sequence[str]) -> list[str]:
        """Cancel here those jobs that have not started, children first. Return the others, each with its state."""
        stay = []
        for jid in reversed(jids):
            found = self._client.job(jid)
            if found is not None and not _has_started(found):
                choice = Choice(queue=found.queue, states=_NOT_STARTED)
                self._calls.act(bulk.cancel, choice, [jid])
                found = self._client.job(jid)
            if found is not None:  # it has started, or a job that was put here meanwhile waits for it
                stay.append(f"{jid} ({found.state} here)")
        return stay[::-1]

    def _unrecur(self, jids: Sequence[str]) -> list[str]:
        """Delete recurring jobs here. Return the jobs that they have made, each with its state.

        These are not cancelled, for an earlier recurring job of this jid may have made them.
        """
        made: list[Job | None] = []
        for jid in jids:
            self._calls.act(recurrences.unrecur, jid)
            made += self._client.jobs(*(f"{jid}-{n}" for n in range(1, _MOST_NAMED + 1)))
        return [f"{job.jid} ({job.state} here)" for job in made if job is not None and job.spawned_from in jids]

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
            with self._source.step(recurrence_key(jid) for jid, _ in page) as pipe:
                self._check_quiet([])
                self._new.clear()
                here = [one.jid for one in self._source.recurrences(place.queue, page) if self._is_here(one)]
                self._source.begin_removal(pipe)
                for jid in here:
                    pipe.zrem(place.key, jid)
                    pipe.delete(recurrence_key(jid.encode()))
                self._commit(pipe, here, recurrence_key, self._unrecur)
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


def _has_started(found: Job) -> bool:
    return any(entry["what"] == "popped" for entry in found.history)


def _listed(what: str, jobs: Sequence[str]) -> str:
    more = f" and {len(jobs) - _MOST_LISTED} more" if len(jobs) > _MOST_LISTED else ""
    return f". {what}: {', '.join(jobs[:_MOST_LISTED])}{more}" if jobs else ""


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
