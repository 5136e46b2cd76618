"""Reads what children say, and sees to their deaths. Runs in the master.

A child may run hostile code: nothing that it says becomes an exception in the master.
"""

from typing import Final

from supervisor import clock
from supervisor.engine.model.outcomes import Released
from supervisor.master.jobs.admission import Admission
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.jobs.job_outcomes import JobOutcomes
from supervisor.master.jobs.job_reports import JobReports
from supervisor.master.jobs.next_step import NextStep
from supervisor.master.jobs.placing import Placing
from supervisor.master.jobs.ready_children import ReadyChildren
from supervisor.master.jobs.shared_deaths import SharedDeaths
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.job_run import JobRun
from supervisor.master.model.states import ChildState
from supervisor.messages import Outcome, Reaped, Verb, unpack_trouble

#: The words with which a child ends its job.
_ENDS: Final = frozenset(
    {Verb.COMPLETED, Verb.RETRIED, Verb.FAILED, Verb.INTERRUPTED, Verb.FOLLOWED, Verb.MISFIT, Verb.SUSPENDED}
)


class Dispatcher:
    def __init__(
        self,
        ready: ReadyChildren,
        reports: JobReports,
        outcomes: JobOutcomes,
        shared_deaths: SharedDeaths,
        next_step: NextStep,
        interrupter: Interrupter,
        admission: Admission,
        placing: Placing,
    ) -> None:
        self._ready = ready
        self._reports = reports
        self._outcomes = outcomes
        self._shared_deaths = shared_deaths
        self._next_step = next_step
        self._interrupter = interrupter
        self._admission = admission
        self._placing = placing

    def on_spoke(self, child: ChildHandle) -> None:
        """Read what the child says. Kills a child that speaks nonsense."""
        now_at, has_answered = clock.monotonic(), False
        try:
            for said in child.talk.read():
                if said.verb == Verb.READY:
                    self._ready.on_ready(child, said.cpu_s)
                elif child.overflow is not None:
                    child.overflow = None  # the child is killed for what it says now
                    raise ValueError("something after its last word")
                elif (run := child.run_of(said.token)) is None:
                    raise ValueError("an outcome for a job that is not in its hands")
                elif said.verb in _ENDS:
                    self._outcomes.answered(child, run.held, said, now_at)
                    has_answered = True
                else:
                    if has_answered:  # what it says now is about the next job
                        self._follow_up(child)
                        has_answered = False
                    self._on_word(child, run, said)
        except (ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:  # or nested too deep
            self._interrupter.kill(child, f"it spoke nonsense on its socket ({error or type(error).__name__})")
        if has_answered:
            self._follow_up(child)

    def _follow_up(self, child: ChildHandle) -> None:
        """The child has answered jobs: see to what it does next, once for all of them."""
        if child.state is ChildState.BUSY:
            self._next_step.take(child)

    def _on_word(self, child: ChildHandle, run: JobRun, said: Outcome) -> None:
        """The child says something of a running job, which goes on."""
        running = run.held
        if said.verb == Verb.PROGRESS:
            self._reports.progress(running, said.body)
        elif said.verb == Verb.CHECKPOINT:
            self._reports.checkpoint(child, running, said.body)
        elif said.verb == Verb.RESULTS:
            self._reports.results_wanted(running, said.body)
        elif said.verb == Verb.CHUNK:
            self._reports.chunk(running, said.body)
        elif said.verb == Verb.HEARD:
            run.has_answered = True
        elif said.verb == Verb.OVERFLOWED:
            # The child dies of its MemoryError. Its job is settled when the death is reported.
            child.overflow = unpack_trouble(said.body).traceback or ""
            self._interrupter.await_exit(child, "it did not exit after a MemoryError")
        else:
            raise ValueError(f"no outcome has the number {said.verb}")

    def on_gone(self, child: ChildHandle, reaped: Reaped | None, why_killed: str | None) -> None:
        """Settle what a child held that has ended. `reaped`: how it has ended, if its zygote could tell.

        What the child said still counts. Jobs that it never received go to other children. The job that remains was in
        its hands, and has died with it; a shared child had several. If the kernel lacks the memory to take jobs back,
        several remain here too, of which most probably only the first one has started.
        """
        self.on_spoke(child)
        if child.state in (ChildState.IDLE, ChildState.BUSY):
            child.become(ChildState.DOOMED)  # the jobs that are taken back now must not be sent to it again
        self._admission.child_gone(child)
        self._placing.withdraw(child)
        if child.shared is not None:
            self._shared_deaths.settle(child, reaped, why_killed)
        has_died = False
        while (running := child.running) is not None:
            if has_died and child.jobs.lacks_memory:
                self._outcomes.stopped(child, running, Released(running.lease, started=False))
            else:
                self._outcomes.died(child, running, reaped, why_killed)
            has_died = True
