"""The jobs that a shared child runs beside each other. Runs in the master. Does no I/O beside notices.

A shared child became so by its first job of a handler with `concurrency=`, and takes only such jobs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Final

from supervisor.master.model.child_talk import ChildTalk
from supervisor.master.model.end_plan import EndPlan
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.job_run import JobRun
from supervisor.master.model.notice_sender import NoticeSender

#: What jobs have printed is read a moment after they have ended.
_MOST_ENDED: Final = 1000


class SharedRuns:
    def __init__(self, number: int, talk: ChildTalk, on_planned: Callable[[int], None]) -> None:
        """`number`: of the child. `on_planned(token)` is called when something is due sooner for that job, and when it
        has ended.
        """
        self._talk = talk
        self._on_planned = on_planned
        self._runs: dict[int, JobRun] = {}  # by token, oldest first
        self.name = f"child {number}"  # stands for all its jobs where they count together
        self._ended: dict[int, tuple[str, str]] = {}  # jid and klass of the last jobs, by token: they may have printed
        self.suspects_at_once: int | None = None  # its jobs are suspects: it takes only such, and no more at once
        self.culprit: HeldLease | None = None  # the job for which the child is killed

    @property
    def runs(self) -> Sequence[JobRun]:
        return tuple(self._runs.values())

    def get(self, token: int) -> JobRun | None:
        return self._runs.get(token)

    def add(self, held: HeldLease) -> None:
        token = held.lease.token
        if not self._runs:
            self.suspects_at_once = held.suspects_at_once
        planned = functools.partial(self._on_planned, token)
        self._runs[token] = JobRun(held, NoticeSender(self._talk, None, planned), EndPlan(planned))
        planned()

    def remove(self, held: HeldLease) -> None:
        lease = held.lease
        del self._runs[lease.token]
        self._ended[lease.token] = lease.jid, lease.klass
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        self._on_planned(lease.token)

    def printed_by(self, token: int) -> tuple[str, str] | None:
        """Return jid and klass of the job that has this token, or had it a moment ago."""
        run = self._runs.get(token)
        return self._ended.get(token) if run is None else (run.held.lease.jid, run.held.lease.klass)

    def room(self, concurrency: int) -> int:
        """Return how many more jobs the child takes now of a handler with this concurrency."""
        most = concurrency if self.suspects_at_once is None else min(concurrency, self.suspects_at_once)
        return max(0, most - len(self._runs))

    def may_take(self, held: HeldLease) -> bool:
        """Return whether the job may run beside those that run."""
        return held.suspects_at_once == self.suspects_at_once and self.room(held.settings.concurrency) > 0
