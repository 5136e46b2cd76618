"""The master's proxy of one child: its state, its parts, and the jobs in its hands. Runs in the master. Never blocks.

What becomes of the child's jobs is decided elsewhere.
"""

import functools
import math
import os
import signal
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from supervisor import clock
from supervisor.linux import kernel
from supervisor.master.model.child_talk import ChildTalk
from supervisor.master.model.end_plan import EndPlan
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.job_pipe import JobPipe
from supervisor.master.model.job_run import JobRun
from supervisor.master.model.memory import NOTHING, Meter, Usage
from supervisor.master.model.notice_sender import NoticeSender
from supervisor.master.model.output import Output
from supervisor.master.model.shared_runs import SharedRuns
from supervisor.master.model.stacks import Stacks
from supervisor.master.model.states import CHILD_MOVES, ChildState, move


class ChildHandle:
    def __init__(
        self,
        number: int,
        zygote: int,
        on_line: Callable[["ChildHandle", int, bytes], None],
        on_planned: Callable[["ChildHandle", int], None],
    ) -> None:
        """Open the master's and the child's ends of all sockets. Raises OSError if that fails, and leaves none open.

        `child_ends` go to the zygote; then close them here by `close_child_ends`. `on_line(child, token, line)` gets
        each printed line; token 0 means the job in the child's hands. `on_planned(child, token)` is called when
        something is due sooner than before, and when there is nothing due any more: for a job of a shared child, by its
        token; else, with token 0, for the child and its only job.
        """
        self.number = number
        self.zygote = zygote
        self.state = ChildState.SPAWNING
        self.pid = 0
        self.asked_at = clock.monotonic()  # when the zygote was asked to fork it
        self.ended_at: float | None = None  # when the kernel reported its end
        self._pidfd: int | None = None

        self.sent: deque[HeldLease] = deque()  # unanswered jobs, oldest first: the first one runs
        self.last_answered: HeldLease | None = None
        self.served = 0  # answered jobs
        self.cpu_s = 0.0  # processor time up to the last answer
        self.overran = False  # the running job takes longer than expected: no other is sent ahead
        self.shared: SharedRuns | None = None  # its jobs, if it runs them beside each other
        self._wrote_stacks = False  # since the last answer

        self.trust_domain: Hashable = None  # of its first job, where handlers differ: it takes no jobs of another
        self.retire_reason: str | None = None  # why it takes no more jobs
        self.why_killed: str | None = None
        self.kill_sentence: str | None = None  # for people, where there is more to say than `why_killed`
        self.overflow: str | None = None  # traceback of the MemoryError of which it ends

        self.meter = Meter(0)  # memory of its process tree
        self.next_sample_at = math.inf  # when JobLimits samples the meter again
        self.recycling_sampled_at = 0.0  # when Recycling sampled it last

        self.jobs = JobPipe(self.sent)
        self.talk = ChildTalk(self.sent)
        self.stacks = Stacks()
        try:
            printed, self._prints_fd = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self.stacks.close()
            raise
        os.set_blocking(printed, False)
        # From here on the handle refers to itself, and only `close` closes what it has opened.
        self.output = Output(printed, functools.partial(on_line, self), self._has)
        self._on_planned = functools.partial(on_planned, self, 0)
        self._on_run_planned = functools.partial(on_planned, self)
        self.talk.keep_unsent(self._on_planned)
        self.end_plan = EndPlan(self._on_planned)
        self.notices = NoticeSender(self.talk, self._signal_handler, self._on_planned)
        self._only: JobRun | None = None  # of its running job, or of its last one, unless it is shared

    @property
    def pidfd(self) -> int | None:
        """Readable once the child has ended. None before the zygote has reported the fork."""
        return self._pidfd

    @property
    def child_ends(self) -> tuple[int, int, int, int]:
        """The child's ends of `jobs`, `talk` and its output, and the file for its stacks."""
        return self.jobs.child_fd, self.talk.child_fd, self._prints_fd, self.stacks.fd

    def close_child_ends(self) -> None:
        self.talk.close_child_end()
        os.close(self._prints_fd)

    # its life

    def become(self, state: ChildState) -> None:
        self.state = move(CHILD_MOVES, self.state, state)

    def spawned(self, pid: int, pidfd: int, inherited: Usage = NOTHING) -> None:
        """The zygote has forked the child. `inherited`: the zygote's own memory."""
        self.pid, self._pidfd = pid, pidfd
        self.meter = Meter(pid, inherited)
        if self.state is ChildState.DOOMED:
            self._signal(signal.SIGKILL)

    @property
    def is_ready(self) -> bool:
        """True from the child's first word until it is killed or has ended."""
        return self.state in (ChildState.IDLE, ChildState.BUSY, ChildState.LEAVING)

    @property
    def closed(self) -> bool:
        return self.state is ChildState.GONE

    def retire(self, reason: str) -> None:
        """Let the child take no more jobs. It keeps those that it has. Idempotent: the first reason stays."""
        if self.retire_reason is None:
            self.retire_reason = reason

    def kill(self, reason: str, sentence: str | None = None) -> None:
        """Send SIGKILL. The zygote ends the child's descendants and reports. Idempotent: the first reason stays."""
        if self.state in (ChildState.DOOMED, ChildState.GONE):
            return
        self.why_killed, self.kill_sentence = reason, sentence
        self.become(ChildState.DOOMED)
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        self.become(ChildState.GONE)
        self._on_planned()
        self.jobs.close()
        self.talk.close()
        self.output.close()
        self.stacks.close()
        if self._pidfd is not None:
            os.close(self._pidfd)

    # its jobs

    @property
    def running(self) -> HeldLease | None:
        return self.sent[0] if self.sent else None

    @property
    def runs(self) -> Sequence[JobRun]:
        """The jobs that the child runs now, oldest first. Only a shared child runs more than one."""
        if self.shared is not None:
            return self.shared.runs
        return (self._only,) if self.sent and self._only is not None else ()

    @property
    def only(self) -> JobRun | None:
        """The job that runs in a child which runs one at a time. None: none does, or the child is shared."""
        return self._only if self.sent and self.shared is None else None

    def run_of(self, token: int) -> JobRun | None:
        """Return the run of the job with this token, if the child runs it now."""
        if self.shared is not None:
            return self.shared.get(token)
        return self._only if self.sent and self.sent[0].lease.token == token else None

    @property
    def stop_reason(self) -> str | None:
        """Why a running handler was interrupted. None: none was."""
        return next((run.notices.reason for run in self.runs if run.notices.reason is not None), None)

    @property
    def printing(self) -> HeldLease | None:
        """The job that printed what follows the last mark of the output.

        Without an unanswered job it is the last answered one, which may have left a thread that prints. A handler can
        forge a mark; then it is one of the unanswered jobs.
        """
        if not self.sent:
            return self.last_answered
        behind = next((i + 1 for i, held in enumerate(self.sent) if held.lease.token == self.output.ended), 0)
        return self.sent[min(behind, len(self.sent) - 1)]

    def has(self, held: HeldLease) -> bool:
        """Return whether the child has the job, and has not answered it."""
        if self.shared is None:
            return held in self.sent
        run = self.shared.get(held.lease.token)
        return run is not None and run.held is held

    def send(self, held: HeldLease) -> None:
        """Send a job. Raises what `JobPipe.send` raises; then nothing has changed."""
        is_first = not self.sent
        state = move(CHILD_MOVES, self.state, ChildState.BUSY) if is_first else self.state
        self.jobs.send(held)
        self.state = state
        held.child_number, held.child_asked_at = self.number, self.asked_at
        if self.shared is not None or held.settings.shares_child:
            self._begin_beside(held, is_first)
        elif is_first:
            self._begin(held, clock.monotonic())

    def answered(self, now_at: float) -> HeldLease:
        """The child has answered its running job. Return that job; the next one runs from `now_at` on.

        `follow_up` is to follow, once for all that the child has answered.
        """
        self.output.forget(self.sent[0].lease.token)  # may still read what the job printed
        held = self.last_answered = self.jobs.pop_answered()
        self.served += 1
        self.overran = False
        if self._wrote_stacks:
            self._wrote_stacks = False
            self.stacks.clear()
        self.meter.start()
        if self.sent:
            self.sent[0].started_at = now_at
            self._run(self.sent[0])
        return held

    def answered_beside(self, held: HeldLease) -> None:
        """A shared child has answered one of its jobs."""
        assert self.shared is not None
        self.output.drop(held.lease.token)
        if self._wrote_stacks:
            self._wrote_stacks = False
            self.stacks.clear()
        self.jobs.remove(held)
        self.shared.remove(held)
        self.served += 1

    def follow_up(self) -> None:
        """The child has answered jobs. Plan for the one that runs now."""
        if self.stacks.end:  # a handler has moved the end of the file
            self.stacks.clear()
        if self.sent:
            self._watch(self.sent[0])

    def take_back(self) -> list[HeldLease]:
        """Remove the jobs that the child has not received, and return them, oldest first."""
        running = self.running
        taken = self.jobs.take_back()
        if self.shared is not None:
            for held in taken:
                self.shared.remove(held)
        elif running is not self.running:  # the child had not received its first job: all plans for it are void
            self.end_plan.kill_at = None
            self.overran = False
            self.notices.forget()
            if self.sent:  # the child received a later job between two calls of the kernel
                self._begin(self.sent[0], clock.monotonic())
        if not self.sent:
            self._only = None  # nothing of a job is kept that another child may have
        if taken and not self.sent and self.state is ChildState.BUSY:
            self.become(ChildState.IDLE)
        return taken

    def _begin(self, held: HeldLease, now_at: float) -> None:
        """The job is the first of `sent` now, so the child runs it."""
        held.started_at = now_at
        self.meter.start()
        self._run(held)
        self._watch(held)

    def _run(self, held: HeldLease) -> None:
        if self._only is None:
            self._only = JobRun(held, self.notices, self.end_plan)
        else:
            self._only.begin(held)

    def _begin_beside(self, held: HeldLease, is_first: bool) -> None:
        """The job runs from now on, beside those that run."""
        if self.shared is None:
            self.talk.is_shared = True
            self.output.share(held.settings.concurrency)
            self.shared = SharedRuns(self.number, self.talk, self._on_run_planned)
        held.started_at = clock.monotonic()
        self.shared.add(held)
        if is_first:
            self.meter.start()
            self._watch(held)

    def _watch(self, held: HeldLease) -> None:
        """Plan for the running job."""
        if held.memory_limit_bytes and self.served:
            held.earlier_jobs_bytes = self.meter.sample()
        self.next_sample_at = held.started_at + held.first_sample_s
        self._on_planned()

    def _has(self, token: int) -> bool:
        if self.shared is not None:
            return self.shared.get(token) is not None
        return any(held.lease.token == token for held in self.sent)

    # signals

    def write_stacks(self) -> None:
        """Have the child write the Python stacks of all its threads to `stacks`, even inside C code."""
        self._wrote_stacks = True
        self._signal_handler(kernel.STACKS_SIGNAL)

    def _signal_handler(self, signo: int) -> None:
        """Send a signal only to a child that handles it. Another program, after an exec, would end of it."""
        if kernel.catches(self.pid, signo):
            self._signal(signo)

    def _signal(self, signo: int) -> None:
        if self._pidfd is None:
            return  # not forked yet; `spawned` sends the kill
        try:
            signal.pidfd_send_signal(self._pidfd, signo)
        except ProcessLookupError:
            return  # the child has ended, and the zygote is about to report that
