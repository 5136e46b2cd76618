"""Turns the end of a job into its outcome: by its child's word, or by its child's death. Runs in the master.

What an end means is said by `outcome_rules`. The outcome waits in the ledger for the next exchange with Redis.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from signal import SIGKILL

from supervisor import clock, messages
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import Completed, Outcome
from supervisor.linux import kernel
from supervisor.master.jobs.admission import Admission
from supervisor.master.jobs.suspects import Suspects
from supervisor.master.model import outcome_rules
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.job_log import JobLog
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.outcome_rules import NO_END, End
from supervisor.master.model.pace import Pace
from supervisor.master.model.states import ChildState
from supervisor.messages import MAX_COMPLETION_BYTES, HandlerSettings, Reaped, Verb

#: Why the kernel killed a child of this number: "memory" (its own limit) or "oom" (lack of memory). None: it did not.
KernelVerdict = Callable[[int], str | None]


class JobOutcomes:
    def __init__(
        self,
        ledgers: Ledgers,
        pace: Pace,
        budget: Budget,
        admission: Admission,
        kernel_verdict: KernelVerdict,
        max_deaths: int | None,
        suspects: Suspects,
        log: JobLog,
    ) -> None:
        """`kernel_verdict(child number)` is asked once for each child that died by SIGKILL."""
        self._ledgers = ledgers
        self._pace = pace
        self._budget = budget
        self._admission = admission
        self._kernel_verdict = kernel_verdict
        self._max_deaths = max_deaths
        self._suspects = suspects
        self._log = log

    def answered(self, child: ChildHandle, running: HeldLease, said: messages.Outcome, now_at: float) -> None:
        """The child has answered a running job. Raises ValueError for an answer that no child may give."""
        _note_use(child, running, said.cpu_s, said.max_rss_bytes)
        if said.verb != Verb.COMPLETED:
            running.end = _end_of(child, running)
        outcome = outcome_rules.of_outcome(running.lease, said.verb, said.body, running.settings, running.end)
        # A large completion is read again for its exchange, so that it is not kept in memory until then.
        read = (
            None
            if child.talk.memfd is None
            else partial(_read_outcome, running.lease, child.talk.memfd, running.settings)
        )
        self._account(child, running, outcome, said)
        self._take_from(child, running, now_at)
        self._end(running, outcome, read)
        if child.shared is not None:
            self._suspects.clear(running.lease.jid)
        elif child.sent and child.state is ChildState.BUSY:
            self._ledgers.by_shard[child.sent[0].shard].reports.job_started(child.sent[0])
            self._log.started(child.sent[0])

    def _account(self, child: ChildHandle, running: HeldLease, outcome: Outcome, said: messages.Outcome) -> None:
        """Learn what the job has needed, and free its memory."""
        lease, peak_bytes = running.lease, child.meter.peak_bytes
        if child.shared is None:
            self._budget.settle(child.number, lease.klass, lease.jid, peak_bytes)
        elif len(child.sent) == 1:
            self._budget.settle(child.number, lease.klass, child.shared.name, peak_bytes)
        if peak_bytes and (child.shared is None or len(child.sent) == 1):
            # The job was measured: by now it has given its memory back, or the child keeps it.
            self._budget.measured(child.number, child.meter.sample())
        if type(outcome) is Completed:
            self._budget.done(lease.jid)
        running.run_s = said.run_s
        self._admission.job_ended()
        if not lease.persistent:
            self._pace.learn(lease.klass, said.run_s)
        if said.verb == Verb.FOLLOWED and isinstance(outcome, Completed):
            running.weight, running.weight_bytes = outcome.weight, len(said.body)

    def died(
        self, child: ChildHandle, running: HeldLease, reaped: Reaped | None, why_killed: str | None
    ) -> None:  # fmt: skip
        """The child has died with this job of its own. `reaped`: how, if its zygote could tell."""
        if reaped is not None:
            _note_use(child, running, reaped.cpu_s, reaped.max_rss_bytes)
        end = replace(_end_of(child, running), why_killed=why_killed, kill_sentence=child.kill_sentence)
        now_at = clock.monotonic()
        self._take_from(child, running, now_at)
        running.run_s = now_at - running.started_at
        running.end = end if reaped is None else self._with_status(child, end, reaped)
        self._log.died(running, child.ended_at)
        self._end(running, outcome_rules.of_death(running.lease, running.end, running.settings, self._max_deaths))
        if reaped is not None:
            self._admission.job_ended()  # its zygote has survived it

    def stopped(self, child: ChildHandle, running: HeldLease, outcome: Outcome) -> None:
        """The child has died, by no fault of this job, which ends by `outcome`."""
        now_at = clock.monotonic()
        self._take_from(child, running, now_at)
        running.run_s = now_at - running.started_at
        self._end(running, outcome)

    @staticmethod
    def _take_from(child: ChildHandle, running: HeldLease, now_at: float) -> None:
        if child.shared is None:
            child.answered(now_at)
        else:
            child.answered_beside(running)

    def _with_status(self, child: ChildHandle, end: End, reaped: Reaped) -> End:
        """Add what the zygote reports, and what the kernel says of a death by SIGKILL."""
        end = replace(end, status=reaped.status)
        if end.why_killed is not None or not os.WIFSIGNALED(reaped.status) or os.WTERMSIG(reaped.status) != SIGKILL:
            return end
        verdict = self._kernel_verdict(child.number)
        if verdict == "memory":
            words = "the kernel ended its processes at the wall that we have put around its memory limit"
            return replace(end, why_killed="memory", kill_sentence=words)
        return replace(end, oom=verdict == "oom")

    def _end(self, held: HeldLease, outcome: Outcome, read: Callable[[], Outcome] | None = None) -> None:
        if held.lost_reason:
            self._log.stale(held, outcome)
        else:
            self._ledgers.by_shard[held.shard].end(held, outcome, read)


def _note_use(child: ChildHandle, running: HeldLease, cpu_s: float, max_rss_bytes: int) -> None:
    """Note what the job has used: what the child has used in all, less what it had used at its last said."""
    if child.shared is None:  # jobs beside each other have used it together
        running.cpu_s, running.max_rss_bytes = max(0.0, cpu_s - child.cpu_s), max_rss_bytes
    child.cpu_s = cpu_s


def _end_of(child: ChildHandle, running: HeldLease) -> End:
    """Return what is known of a running job while the child still has it."""
    stack = child.stacks.read() if _has_own_stack(child, running) else ""
    return End(
        cpu_s=running.cpu_s, max_rss_bytes=running.max_rss_bytes, memory_limit_bytes=running.memory_limit_bytes,
        overflow=child.overflow, memory_bytes=child.meter.peak_bytes or None,
        output=child.output.last_of(running.lease.token), stack=stack,
    )  # fmt: skip


def _has_own_stack(child: ChildHandle, running: HeldLease) -> bool:
    """Return whether the child's stacks are about this job: the child may run others beside it."""
    run = child.run_of(running.lease.token)
    return child.shared is None or len(child.sent) == 1 or (run is not None and run.warned_of_timeout)


def _read_outcome(lease: LeaseRecord, memfd: kernel.Memfd, settings: HandlerSettings) -> Outcome:
    """Make the outcome of a large completion once more. Its memfd is sealed, so the content cannot have changed."""
    body = kernel.read_sealed(memfd.fd, MAX_COMPLETION_BYTES)
    return outcome_rules.of_outcome(lease, Verb.FOLLOWED, body, settings, NO_END)
