"""One lease in the master's hands: its job, the rules of the run, and how it ended. Runs in the master. No I/O."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import Outcome
from supervisor.engine.worker.exchange import Fence
from supervisor.linux.kernel import Memfd
from supervisor.master.model.held_reports import HeldReports, HeldStream
from supervisor.master.model.memory import first_sample_s
from supervisor.master.model.outcome_rules import NO_END, End
from supervisor.messages import HandlerSettings


@dataclass(slots=True, eq=False, repr=False)
class HeldLease:
    lease: LeaseRecord
    settings: HandlerSettings  # of the job's handler
    limit_s: float  # time limit of the run; 0: none
    estimate_s: float | None  # estimated run time; None: unknown
    start_reported: bool  # Redis knows that the job has started
    memory_limit_bytes: int = 0  # of all the job's processes together; 0: none
    shard: int = 0  # that has granted the lease
    is_divided: bool = False  # there are other shards
    payload_bytes: int = 0
    replay_bytes: int = 0  # of the signals, waits and steps of earlier starts
    body: Memfd | None = None  # a large payload that a child was sent and has not received
    first_sample_s: float = 0.0  # time from the start to the first sample of the memory
    suspects_at_once: int | None = None  # it may have killed a shared child: so many like it run in one

    # at a child
    child_number: int = 0  # of the child that has or had the job
    child_asked_at: float = 0.0  # tells that child from others with the same number
    charged_bytes: int = 0  # of its packet in the child's socket
    started_at: float = 0.0
    earlier_jobs_bytes: int = 0  # memory that the child kept of earlier jobs; measured only under a memory limit
    has_checkpoint: bool = False  # a checkpoint exists, of this run or of an earlier one
    _reports: HeldReports | None = field(default=None, init=False)  # most jobs make none
    stream: HeldStream | None = None
    fence: Fence | None = None  # how long the lease is certainly ours, if the job is stopped after that

    # lost
    lost_reason: str | None = None  # why the lease is void, in the words of `Interrupted.reason`
    cancelled_by: str | None = None  # who cancelled the job; "": unknown; None: it is not known to be cancelled

    # the end of the run
    run_s: float = 0.0
    cpu_s: float | None = None  # None: unknown
    max_rss_bytes: int | None = None  # of the child up to the end of the run, with inherited pages
    end: End = NO_END  # what is known about an end that was no completion
    outcome: Outcome | None = None  # without its data, if `read_outcome` has it
    read_outcome: Callable[[], Outcome] | None = None  # reads a large outcome again for its exchange
    needs_memory: bool = False  # a Redis whose memory is full refuses the outcome
    weight: int = 1  # number of jobs that the outcome concerns
    weight_bytes: int = 0  # size of their data

    def __post_init__(self) -> None:
        self.payload_bytes = len(self.lease.raw)
        self.first_sample_s = first_sample_s(self.memory_limit_bytes)
        self.replay_bytes = len(self.lease.raw_replay or b"")
        self.has_checkpoint = self.lease.raw_saved is not None

    @property
    def has_payload(self) -> bool:
        """False while a child has a large payload, which the master does not keep, and if it did not come back."""
        lease = self.lease
        is_whole = len(lease.raw) == self.payload_bytes and len(lease.raw_replay or b"") == self.replay_bytes
        return self.body is not None or is_whole

    @property
    def reports(self) -> HeldReports:
        """The reports of the job that no exchange has taken."""
        if self._reports is None:
            self._reports = HeldReports()
        return self._reports

    @property
    def trust_domain(self) -> Hashable:
        """Jobs of different trust domains may not share a child."""
        return self.settings.trust_domain(self.lease.klass)

    def change(self, settings: HandlerSettings, limit_s: float, memory_limit_bytes: int) -> None:
        """The code was reloaded before the job has begun: other settings hold."""
        self.settings, self.limit_s, self.memory_limit_bytes = settings, limit_s, memory_limit_bytes
        self.first_sample_s = first_sample_s(memory_limit_bytes)
