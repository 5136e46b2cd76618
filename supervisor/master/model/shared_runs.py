"""The jobs that a shared child runs beside each other. Runs in the master. Does no I/O beside notices.

A shared child became so by its first job of a handler with `concurrency=`, and takes only such jobs.
"""

import functools
from collections.abc import Callable, Sequence

from supervisor.master.model.child_talk import ChildTalk
from supervisor.master.model.end_plan import EndPlan
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.job_run import JobRun
from supervisor.master.model.notice_sender import NoticeSender


def _no_signal(_signo: int) -> None:
    """The child's event loop reads notices: a signal could only disturb its other jobs."""


class SharedRuns:
    def __init__(self, number: int, talk: ChildTalk, on_planned: Callable[[int], None]) -> None:
        """`number`: of the child. `on_planned(token)` is called when something is due sooner for that job, and when it
        has ended.
        """
        self._talk = talk
        self._on_planned = on_planned
        self._runs: dict[int, JobRun] = {}  # by token, oldest first
        self.name = f"child {number}"  # stands for all its jobs where they count together
        self.concurrency = 0  # of the handler of the last job
        self.most_beside: int | None = None  # its jobs are suspects: it takes only such, and no more at once
        self.culprit: HeldLease | None = None  # the job for which the child is killed

    @property
    def runs(self) -> Sequence[JobRun]:
        return tuple(self._runs.values())

    def get(self, token: int) -> JobRun | None:
        return self._runs.get(token)

    def add(self, held: HeldLease) -> None:
        token = held.lease.token
        if not self._runs:
            self.most_beside = held.most_beside
        planned = functools.partial(self._on_planned, token)
        self._runs[token] = JobRun(held, NoticeSender(self._talk, _no_signal, planned), EndPlan(planned))
        self.concurrency = held.settings.concurrency
        planned()

    def remove(self, held: HeldLease) -> None:
        token = held.lease.token
        del self._runs[token]
        self._on_planned(token)

    def room(self) -> int:
        """Return how many more jobs the child takes now, if they are like its last one."""
        return self._room(self.concurrency)

    def may_take(self, held: HeldLease) -> bool:
        """Return whether the job may run beside those that run."""
        return held.most_beside == self.most_beside and self._room(held.settings.concurrency) > 0

    def _room(self, concurrency: int) -> int:
        most = concurrency if self.most_beside is None else min(concurrency, self.most_beside)
        return max(0, most - len(self._runs))
