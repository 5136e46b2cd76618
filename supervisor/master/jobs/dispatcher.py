"""A job's way from a child: from its word, its death, or the loss of its lease, to its outcome. Runs in master.

Owns the decisions about jobs that run, as `Placing` does about those that are to; what is done against their children
is `Interrupter`'s. Must not speak to Redis: what has ended waits in the ledger.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from signal import SIGKILL
from typing import Final

from supervisor import clock
from supervisor.config import Config
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import Completed
from supervisor.engine.model.outcomes import Outcome as AnyOutcome
from supervisor.linux import kernel
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.jobs.placing import Placing
from supervisor.master.jobs.recycling import Recycling
from supervisor.master.model import outcome_rules
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.counts import Counts
from supervisor.master.model.ledger import HeldLease, Ledger
from supervisor.master.model.outcome_log import account_of
from supervisor.master.model.outcome_rules import NO_END, End
from supervisor.master.model.pace import Pace
from supervisor.master.model.reload_log import WORN
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.master.timers import Timers
from supervisor.messages import (
    MAX_COMPLETION_BYTES,
    HandlerSettings,
    Outcome,
    Reaped,
    Verb,
    unpack_checkpoint,
    unpack_progress,
    unpack_trouble,
)
from supervisor.ops.events import Events

#: More reports of progress than a child makes that was stopped, or we were, for long: twice a second and a reserve.
_REPORTS: Final = 1000
_REPORTS_PER_S: Final = 4
#: What a child ends its job with.
_ENDS: Final = frozenset({Verb.COMPLETED, Verb.RETRIED, Verb.FAILED, Verb.INTERRUPTED, Verb.FOLLOWED})


class Dispatcher:
    def __init__(
        self,
        config: Config,
        slots: Slots,
        ledger: Ledger,
        pace: Pace,
        budget: Budget,
        kernel_verdict: Callable[[int], str | None],
        events: Events,
        counts: Counts,
        timers: Timers,
    ) -> None:
        """`kernel_verdict(child)`: memory or oom, where its death by SIGKILL was the kernel's OOM killer's."""
        self._config = config
        self._slots = slots
        self._ledger = ledger
        self._pace = pace
        self._budget = budget
        self._recycling = Recycling(config, slots)
        self._kernel_verdict = kernel_verdict
        self._events = events
        self._counts = counts
        self.interrupter = Interrupter(config, slots, events)
        self.placing = Placing(config, slots, ledger, pace, budget, events, counts, self.interrupter, timers)

    @property
    def is_open(self) -> bool:
        """Whether jobs may still start, now or once a pause is over."""
        return self.interrupter.is_open

    def _take_back(self, child: ChildHandle) -> None:
        """What it has not received goes to another child, or back to the front of its queue."""
        self.placing.take_back(child)
        self.placing.place()

    def close(self) -> None:
        """Nothing starts any more: hand back what has not. What never ends by itself is to stop now."""
        self.interrupter.is_open = False
        for child in self._slots:
            self._take_back(child)
            if child.running is not None and child.running.lease.persistent:
                self.interrupter.stop(child, "drain")
            if child.state is ChildState.IDLE:
                self.interrupter.leave(child)
        self.placing.place()

    # from a child

    def on_spoke(self, child: ChildHandle) -> None:
        """Read what it says. It may run hostile code: nothing that it says becomes an exception of ours."""
        now_at = clock.monotonic()
        try:
            for said in child.talk.read():
                if said.verb == Verb.READY:
                    self._on_ready(child, said)
                elif child.overflow is not None:
                    child.overflow = None  # whatever it said, it is killed for this
                    raise ValueError("something after its last word")
                elif not child.sent or said.token != child.sent[0].lease.token:
                    raise ValueError("an outcome for a job that is not in its hands")
                elif said.verb in _ENDS:
                    self._on_outcome(child, child.sent[0], said, now_at)
                else:
                    self._on_word(child, child.sent[0], said)
        except (ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:  # or nested too deep
            self.interrupter.kill(child, f"it spoke nonsense on its socket ({error or type(error).__name__})")

    def _on_word(self, child: ChildHandle, running: HeldLease, said: Outcome) -> None:
        """What is not the end of its job."""
        if said.verb == Verb.PROGRESS:
            self._on_progress(running, said)
        elif said.verb == Verb.CHECKPOINT:
            self._on_checkpoint(child, running, said)
        elif said.verb == Verb.OVERFLOWED:
            self._on_overflow(child, said)
        else:
            raise ValueError(f"no outcome has the number {said.verb}")

    def _on_ready(self, child: ChildHandle, said: Outcome) -> None:
        if child.state is ChildState.SPAWNING:
            child.become(ChildState.IDLE)
            child.cpu_s = said.cpu_s
            if self._slots.mixed:
                self._slots.find_room()
            took_s = clock.monotonic() - child.asked_at
            self._counts.fork.add(took_s)
            self._pace.learn_fork(took_s)
            self._events.emit("child.ready", child=child.number, pid=child.pid)
            if not self.is_open or child.retire_reason is not None:
                self.interrupter.leave(child)
        elif child.state is not ChildState.DOOMED:
            raise ValueError("it is ready once only")

    def _on_progress(self, running: HeldLease, said: Outcome) -> None:
        self._count_report(running)
        progress = unpack_progress(said.body)
        if not running.lost:
            self._ledger.has_progressed(running, progress)

    def _count_report(self, running: HeldLease) -> None:
        running.reports += 1
        if running.reports > _REPORTS + _REPORTS_PER_S * (clock.monotonic() - running.started_at):
            raise ValueError("its progress is told too often")

    def _on_checkpoint(self, child: ChildHandle, running: HeldLease, said: Outcome) -> None:
        """It waits for the answer, or has been interrupted at that."""
        checkpoint = unpack_checkpoint(said.body)
        if running.lost:
            child.talk.answer_checkpoint(checkpoint.number, kept=False)
        elif not self._ledger.has_checkpointed(running, checkpoint):
            self._count_report(running)

    def on_stored(self, held: HeldLease, number: int, kept: bool) -> None:
        """Redis has the checkpoint, or the lease is lost."""
        child = self._slots.get(held.child)
        # Else the number of a dead one is another's by now. A thread may wait for it that its job has left running.
        if child is not None and child.asked_at == held.child_asked_at:
            child.talk.answer_checkpoint(number, kept)

    def _on_overflow(self, child: ChildHandle, said: Outcome) -> None:
        """It dies of it: that is settled when its end is reported."""
        child.overflow = unpack_trouble(said.body).traceback or ""
        self.interrupter.await_exit(child, "it did not exit after a MemoryError")

    def _on_outcome(self, child: ChildHandle, running: HeldLease, said: Outcome, now_at: float) -> None:
        lease = running.lease
        self._note_use(child, running, said.cpu_s, said.max_rss_bytes)
        if said.verb != Verb.COMPLETED:
            running.end = self._end_of(child)
        outcome = outcome_rules.of_outcome(lease, said.verb, said.body, running.settings, running.end)
        peak_bytes = child.meter.peak_bytes
        self._budget.settle(child.number, lease.klass, lease.jid, peak_bytes)
        if peak_bytes:  # it was looked at; what it had it has given back by now, or keeps
            self._budget.measured(child.number, child.meter.sample())
        memfd = child.talk.memfd
        read = None if memfd is None else partial(_read_outcome, lease, memfd, running.settings)
        child.answered(now_at)
        running.run_s = said.run_s
        self._slots.count_answer()
        if not lease.persistent:
            self._pace.learn(lease.klass, said.run_s)
        if said.verb == Verb.FOLLOWED and isinstance(outcome, Completed):
            running.weight, running.weight_bytes = outcome.weight, len(said.body)
        if type(outcome) is Completed:
            self._budget.done(lease.jid)
        self._end(running, outcome, read)
        if child.state is not ChildState.BUSY:
            return
        if self._recycling.on and child.retire_reason is None:
            child.retire_reason = self._recycling.retire_reason_of(child)
        child.end_plan.kill_at = None
        if child.sent:
            self.placing.say_started(child.sent[0])
            self.interrupter.tell_the_next(child)
        elif self._slots.is_done(child) or not self.is_open:
            self.interrupter.leave(child)
        else:
            child.become(ChildState.IDLE)

    def _note_use(self, child: ChildHandle, held: HeldLease, cpu_s: float, max_rss_bytes: int) -> None:
        """What the child has used so far, of which the job's share is what came since the last answer."""
        held.cpu_s, held.max_rss_bytes = max(0.0, cpu_s - child.cpu_s), max_rss_bytes
        child.cpu_s = cpu_s

    def _end_of(self, child: ChildHandle) -> End:
        """What its words tell of the job in its hands, while it counts as the one that has said them."""
        running = child.running
        assert running is not None
        return End(
            cpu_s=running.cpu_s, max_rss_bytes=running.max_rss_bytes, memory_limit_bytes=running.memory_limit_bytes,
            overflow=child.overflow, memory_bytes=child.meter.peak_bytes or None,
            output=child.output.last_of(running.lease.token), stack=child.stacks.read(),
        )  # fmt: skip

    def _end(self, held: HeldLease, outcome: AnyOutcome, read: Callable[[], AnyOutcome] | None = None) -> None:
        if not held.lost:
            self._ledger.end(held, outcome, read)
            return
        lease = held.lease
        self._counts.of(lease.queue, lease.klass).stale += 1
        self._events.emit(
            "job.stale", **account_of(held), verb=type(outcome).__name__.lower(), reason=held.lost,
            message=outcome_rules.stopped_sentence(held.lease, held.lost),
        )  # fmt: skip

    def on_gone(self, child: ChildHandle, reaped: Reaped | None, why: str | None) -> None:
        """It has ended: read what it said, take back what it never received; what remains was in its hands."""
        self.on_spoke(child)
        if child.state in (ChildState.IDLE, ChildState.BUSY):
            child.become(ChildState.DOOMED)  # what is taken back now must not be sent to it again
        self._budget.gone(child.number)
        self._slots.find_room()
        self._take_back(child)
        while child.running is not None:
            if reaped is not None:
                self._note_use(child, child.running, reaped.cpu_s, reaped.max_rss_bytes)
            end = replace(self._end_of(child), why_killed=why, kill_sentence=child.kill_sentence)
            held = child.answered(clock.monotonic())
            held.run_s = clock.monotonic() - held.started_at
            held.end = end if reaped is None else self._reported(child, end, reaped)
            if child.ended_at is not None:
                self._counts.note_death(held.lease.jid, child.ended_at)
            self._end(held, outcome_rules.of_death(held.lease, held.end, held.settings, self._config.max_deaths))
            if reaped is not None:
                self._slots.count_answer()  # its zygote has survived it

    def _reported(self, child: ChildHandle, end: End, reaped: Reaped) -> End:
        """With what its zygote has told, and the kernel."""
        end = replace(end, status=reaped.status)
        if end.why_killed is not None or not os.WIFSIGNALED(reaped.status) or os.WTERMSIG(reaped.status) != SIGKILL:
            return end
        verdict = self._kernel_verdict(child.number)
        if verdict == "memory":
            words = "the kernel ended its processes at the wall that we have put around its memory limit"
            return replace(end, why_killed="memory", kill_sentence=words)
        return replace(end, oom=verdict == "oom")

    # against a child

    def on_lost(self, lost: Sequence[tuple[HeldLease, str]]) -> None:
        """These leases are void, each for a reason in the words of `Interrupted.reason`: cancelled, lease-lost."""
        self._counts.lost += len(lost)
        for held, why in lost:
            self._ledger.lose(held, why)  # all of them first: what is taken back must not be sent on to another child
        for held, why in lost:
            self._stop_lost(held, why)

    def _stop_lost(self, held: HeldLease, why: str) -> None:
        child = self._slots.get(held.child)
        if child is None or held not in child.sent:
            return
        if held.checkpoint is not None:
            child.talk.answer_checkpoint(held.checkpoint.number, kept=False)
        self._events.emit(
            "lease.lost", jid=held.lease.jid, klass=held.lease.klass, child=child.number, reason=why,
            by=held.cancelled_by,
        )  # fmt: skip
        self._take_back(child)  # the kernel knows whether it has begun
        if held is child.running:
            self.interrupter.stop(child, why)

    def dismiss(self, child: ChildHandle, retire_reason: str, why: str, patience_s: float | None = None) -> None:
        """It gets no more jobs, for what `retire_reason` says, and leaves once it has none. If its job has not ended in
        `patience_s` seconds (None: it may take its time) it is stopped, with `why` as the reason of the interruption;
        one that never ends by itself at once.
        """
        if child.retire_reason is None:
            child.retire_reason = retire_reason
        self._take_back(child)
        if child.state is ChildState.IDLE:
            self.interrupter.leave(child)
        elif child.running is not None:
            given_s = 0.0 if child.running.lease.persistent else patience_s
            if given_s is not None and child.end_plan.stop_by(clock.monotonic() + given_s, why):
                self.interrupter.tell(child, why)

    def on_reloaded(self, outdated: Sequence[ChildHandle], handlers: Mapping[str, HandlerSettings]) -> None:
        """The code is another one. Its `handlers` hold for all that has not begun, and `outdated`, who have the code
        before, get no more jobs. A job that never ends by itself is stopped, and goes on with the new code.
        """
        for child in outdated:
            child.retire_reason = (
                child.retire_reason or WORN
            )  # all of them first: what is taken back must not be sent to another
        for child in outdated:
            self.placing.take_back(child)
        self.placing.judge_again(handlers)
        for child in outdated:
            self.dismiss(child, WORN, "reload", self._config.reload_timeout_s or None)
        self.placing.place()

    def on_overrun(self, child: ChildHandle, running: HeldLease) -> None:
        """Its job takes longer than it was expected to: nobody is to wait behind it."""
        child.overran = True
        if not running.start_reported:
            self._ledger.has_started(running)
        if len(child.sent) > 1:
            self._take_back(child)
            self.placing.hand_back()  # they have waited already


def _read_outcome(lease: LeaseRecord, memfd: kernel.Memfd, settings: HandlerSettings) -> AnyOutcome:
    """A large completion once more: its memfd is sealed, and so it is what it was."""
    body = kernel.read_sealed(memfd.fd, MAX_COMPLETION_BYTES)
    return outcome_rules.of_outcome(lease, Verb.FOLLOWED, body, settings, NO_END)
