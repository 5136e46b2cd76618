"""Every lease in the master's hands, from its grant until Redis has accepted its end. Runs in master. No I/O.

A lease is in one of these states: ready (no child has it), sent (in a child's `sent`), ended (its outcome waits for the
next exchange), settling (the exchange with its outcome is under way).
"""

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Final

from supervisor import clock
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import LARGE_DATA_BYTES, Completed, Outcome
from supervisor.engine.model.validation import STATE_BYTES, UNSET
from supervisor.engine.worker.exchange import Fence
from supervisor.linux.kernel import Memfd
from supervisor.master.model.memory import first_look_s
from supervisor.master.model.outcome_rules import NO_END
from supervisor.messages import Checkpoint, HandlerSettings, ProgressReport

#: Each job may store checkpoints at this rate: the largest one every 50 ms, small ones as often as it likes. They all
#: go into Redis' append-only file.
_CHECKPOINT_BYTES_PER_S: Final = STATE_BYTES / 0.05
#: A job that has stored none for so long may catch up on that time.
_CHECKPOINT_RESERVE_S: Final = 0.5
#: Of data in one exchange, unless one outcome alone has more: the server drops a connection that sends 1 GB at once.
MOST_BYTES: Final = 64 * 2**20
#: How long outcomes that need memory wait after a server with full memory has refused them; doubled with each refusal.
_FULL_S: Final = 1.0
_LONGEST_FULL_S: Final = 5.0
#: More outcomes than these, or more data with them, and no further job starts: what it says could go nowhere.
MOST_WAITING: Final = 1000


class HeldLease:
    """One lease in the master's hands."""

    __slots__ = (
        "base_bytes",
        "body",
        "cancelled_by",
        "charged_bytes",
        "checkpoint",
        "checkpoint_at",
        "checkpoints",
        "child",
        "child_asked_at",
        "cpu_s",
        "end",
        "estimate_s",
        "fence",
        "first_look_s",
        "lease",
        "limit_s",
        "lost",
        "max_rss_bytes",
        "memory_limit_bytes",
        "needs_memory",
        "outcome",
        "payload_bytes",
        "progress",
        "read_outcome",
        "reports",
        "run_s",
        "settings",
        "start_reported",
        "started_at",
        "weight",
        "weight_bytes",
    )  # fmt: skip

    cancelled_by: str | None  # of a lost one: who has cancelled the job, if that is known
    base_bytes: int  # what its child kept of earlier jobs when it began, as far as it has a limit
    lost: str | None  # the lease is void: why, in the words of `Interrupted.reason`
    charged_bytes: int  # of its packet, while a child has it
    started_at: float  # when it became the first of its child
    child: int  # the number of the child that has or had it
    child_asked_at: float  # by which that one is told from others of its number
    run_s: float
    cpu_s: float | None  # of its run; None: nobody knows
    max_rss_bytes: int | None  # of its child until its end, with the pages that it has inherited
    outcome: Outcome | None  # without its data, where `read_outcome` has them
    read_outcome: Callable[[], Outcome] | None  # reads a large outcome from where it is kept until its exchange
    needs_memory: bool  # its outcome puts jobs or brings large data: a server with full memory refuses it
    weight: int  # of the outcome: how many jobs it concerns,
    weight_bytes: int  # and their data
    progress: ProgressReport | None  # the last one, until it goes with an exchange
    checkpoint: Checkpoint | None  # the last one, until it goes with an exchange
    checkpoint_at: float  # when the next one may be sent
    reports: int  # how often the child has told of what nobody waits for
    fence: Fence | None  # until when it is certainly ours, where the job is to be stopped then

    def __init__(
        self,
        lease: LeaseRecord,
        settings: HandlerSettings,
        limit_s: float,
        estimate_s: float | None,
        start_reported: bool,
        memory_limit_bytes: int = 0,
    ) -> None:
        self.lease = lease
        self.payload_bytes = len(lease.raw)
        self.body: Memfd | None = None  # a large payload that a child had, and did not receive
        self.settings = settings  # its handler's, as they were when it could begin last
        self.limit_s = limit_s  # how long its run may take; 0: as long as it likes
        self.memory_limit_bytes = memory_limit_bytes  # of its processes together; 0: as much as they like
        self.first_look_s = first_look_s(memory_limit_bytes)  # at its memory, after its start
        self.estimate_s = estimate_s  # of its run time; None: nobody knows
        self.start_reported = start_reported  # the engine knows that it has started
        self.checkpoints = lease.raw_saved is not None  # there is one, or has been, of this run or an earlier one
        self.end = NO_END  # what is known of how it ended, if not well
        self.weight = 1
        self.needs_memory = False
        self.base_bytes = self.charged_bytes = self.child = self.reports = self.weight_bytes = 0
        self.started_at = self.child_asked_at = self.run_s = self.checkpoint_at = 0.0
        self.lost = self.cpu_s = self.max_rss_bytes = self.outcome = self.progress = self.checkpoint = None
        self.fence = self.read_outcome = self.cancelled_by = None

    @property
    def has_payload(self) -> bool:
        """False while a child has it, and where it did not come back: a large one is not kept here."""
        return self.body is not None or len(self.lease.raw) == self.payload_bytes

    @property
    def trust_domain(self) -> Hashable:
        """Whose jobs may share a child with it."""
        return self.settings.trust_domain(self.lease.klass)

    def change(self, settings: HandlerSettings, limit_s: float, memory_limit_bytes: int) -> None:
        """Its handler is another one, and it has not begun."""
        self.settings, self.limit_s, self.memory_limit_bytes = settings, limit_s, memory_limit_bytes
        self.first_look_s = first_look_s(memory_limit_bytes)


class Ledger:
    def __init__(self) -> None:
        self.ready: deque[HeldLease] = deque()
        self._held: dict[int, HeldLease] = {}  # by token: all but those that are settling
        self._ended: deque[HeldLease] = deque()
        self._settling: list[HeldLease] = []
        self._unsettled_bytes = 0  # that have come with outcomes which are not settled
        self._put_off: deque[HeldLease] = deque()  # ended, but the server has no memory for what they bring
        self._put_off_until_at = -math.inf
        self._put_off_s = 0.0  # how long the last refusal has put them off
        self._started: list[HeldLease] = []
        self._progressed: dict[int, HeldLease] = {}
        self._checkpointed: dict[int, HeldLease] = {}
        self._storing: dict[
            int, tuple[HeldLease, int]
        ] = {}  # by token: in the exchange under way, also across an outage

    def __len__(self) -> int:
        """How many leases have no accepted end yet."""
        return len(self._held) + len(self._settling)

    def add(self, held: HeldLease) -> None:
        self._held[held.lease.token] = held

    def find(self, token: int) -> HeldLease | None:
        return self._held.get(token)

    @property
    def held(self) -> list[HeldLease]:
        """All but those that are settling."""
        return list(self._held.values())

    @property
    def leases(self) -> list[LeaseRecord]:
        """All that must be renewed."""
        return [held.lease for held in self._held.values()]

    @property
    def claims(self) -> list[LeaseRecord]:
        """All that must be claimed after an outage: Redis takes what is not claimed for a job that never started.

        Leases that are settling are among them, for their outcomes may be refused.
        """
        return [*self.leases, *(held.lease for held in self._settling)]

    def end(self, held: HeldLease, outcome: Outcome, read: Callable[[], Outcome] | None = None) -> None:
        """Its outcome goes with the next exchange. `read`: makes it again, if it is too large to be kept until then."""
        held.outcome, held.read_outcome = outcome, read
        held.needs_memory = _needs_memory(outcome, held.weight_bytes)
        self._unsettled_bytes += held.weight_bytes
        if read is not None:
            _lighten(held)
        (self._put_off if self._is_too_large_now(held) else self._ended).append(held)

    def _is_too_large_now(self, held: HeldLease) -> bool:
        """Small outcomes go on while only large ones are put off: the server may have memory for them."""
        least_bytes = self._put_off[0].weight_bytes if self._put_off else math.inf
        return held.needs_memory and max(held.weight_bytes, LARGE_DATA_BYTES) >= least_bytes

    def lose(self, held: HeldLease, why: str) -> None:
        """It is not ours any more: nothing that we do with it counts."""
        held.lost = why
        self._drop(held)
        self._checkpointed.pop(held.lease.token, None)
        if held in self.ready:
            self.ready.remove(held)

    def has_started(self, held: HeldLease) -> None:
        """It is running, and its lease does not say so: the engine must know, for a death counts from now on."""
        held.start_reported = True
        self._started.append(held)

    @property
    def has_told(self) -> bool:
        """Whether there is something to say of jobs that run."""
        return bool(self._started or self._progressed or self._checkpointed)

    def take_started(self) -> list[LeaseRecord]:
        started, self._started = self._started, []
        return [held.lease for held in started if held.lease.token in self._held]

    def has_progressed(self, held: HeldLease, progress: ProgressReport) -> None:
        """What was told before, and has not gone with an exchange, nobody needs any more."""
        held.progress = progress
        self._progressed[held.lease.token] = held

    def take_progress(self) -> list[tuple[LeaseRecord, ProgressReport]]:
        """Also of jobs that have ended since; not of those that are settled."""
        told, self._progressed = self._progressed, {}
        return [(held.lease, held.progress) for held in told.values() if held.progress is not None and not held.lost]

    def has_checkpointed(self, held: HeldLease, checkpoint: Checkpoint) -> bool:
        """It goes with the next exchange, before the job's end does. Answers whether none was under way: whoever waits
        for the answer to one makes no other.
        """
        token = held.lease.token
        is_first = token not in self._checkpointed and token not in self._storing
        held.checkpoint, held.checkpoints = checkpoint, True
        self._checkpointed[token] = held
        return is_first

    def take_checkpoints(self, now_at: float = math.inf) -> list[tuple[LeaseRecord, bytes]]:
        """Take those that may be sent by now; they are being stored until `stored`.

        The last one of a job that has ended is among them at once, for its end goes with the same exchange. Those of
        lost jobs are dropped.
        """
        told, self._checkpointed = self._checkpointed, {}
        taken = []
        for token, held in told.items():
            if held.checkpoint_at > now_at and held.outcome is None:
                self._checkpointed[token] = held
                continue
            checkpoint, held.checkpoint = held.checkpoint, None
            if checkpoint is not None and not held.lost:
                self._storing[token] = held, checkpoint.number
                taken.append((held.lease, checkpoint.state))
                since_at = max(held.checkpoint_at, min(now_at, clock.monotonic()) - _CHECKPOINT_RESERVE_S)
                held.checkpoint_at = since_at + len(checkpoint.state) / _CHECKPOINT_BYTES_PER_S
        return taken

    def checkpoint_at(self) -> float:
        """When the first of those that wait may be sent (monotonic s)."""
        return min((held.checkpoint_at for held in self._checkpointed.values()), default=math.inf)

    def stored(self, token: int) -> tuple[HeldLease, int] | None:
        """The exchange has been answered: whose checkpoint it had, and its number; None if it had none of this job."""
        return self._storing.pop(token, None)

    def not_stored(self) -> list[tuple[HeldLease, int]]:
        """None of those that were being stored can be any more."""
        storing, self._storing = self._storing, {}
        return list(storing.values())

    @property
    def has_ended(self) -> bool:
        """Whether there are outcomes that go with the next exchange, beside those that are put off."""
        return bool(self._ended)

    @property
    def is_laden(self) -> bool:
        """Whether so much waits to be settled that no further job may start."""
        return self._unsettled_bytes > MOST_BYTES or len(self._ended) + len(self._put_off) > MOST_WAITING

    @property
    def settle_at(self) -> float:
        """When outcomes that were put off are tried again; infinity: there are none."""
        return self._put_off_until_at if self._put_off else math.inf

    @property
    def slots_freed(self) -> int:
        """How many slots of limits the next exchange gives back."""
        return sum(held.lease.limited for held in self._ended)

    def settle_next(self, most: int, now_at: float = 0.0) -> list[Outcome]:
        """Return the outcomes of the next exchange: of at most `most` jobs and MOST_BYTES of data, or one outcome. They
        are settling until `settled` or `refused_for_memory`, also across an outage. Of those that were put off, one is
        tried alone: the smallest, so that a large one holds up no other.
        """
        assert not self._settling
        if self._put_off and self._put_off_until_at <= now_at:
            self._settling.append(self._put_off.popleft())
        else:
            self._take_ended(most)
        for held in self._settling:
            self._drop(held)
            if held.read_outcome is not None:
                held.outcome = held.read_outcome()
        return [held.outcome for held in self._settling if held.outcome is not None]

    def _take_ended(self, most: int) -> None:
        weight = weight_bytes = 0
        while self._ended:
            held = self._ended[0]
            weight += held.weight
            weight_bytes += held.weight_bytes
            if self._settling and (weight > most or weight_bytes > MOST_BYTES):
                break
            self._settling.append(self._ended.popleft())

    def refused_for_memory(self, now_at: float) -> int:
        """Put off what needs memory: the leases go on, and the outcomes are tried again. What was settling beside them
        goes with the next exchange. Return how many are put off.
        """
        self._put_off_s = min(self._put_off_s * 2 or _FULL_S, _LONGEST_FULL_S)
        self._put_off_until_at = now_at + self._put_off_s
        refused, self._settling = self._settling, []
        for held in refused:
            _lighten(held)
            if not held.lost:
                self.add(held)
        put_off = [*(held for held in refused if held.needs_memory), *self._put_off]
        self._put_off = deque(sorted(put_off, key=lambda held: held.weight_bytes))
        waiting = [*(held for held in refused if not held.needs_memory), *self._ended]
        self._put_off.extend(held for held in waiting if self._is_too_large_now(held))
        self._ended = deque(held for held in waiting if not self._is_too_large_now(held))
        return len(self._put_off)

    def end_put_off(self, outcome_of: Callable[[LeaseRecord], Outcome]) -> None:
        """Give what was put off another end, for which the server needs no memory."""
        put_off, self._put_off = self._put_off, deque()
        for held in put_off:
            self._unsettled_bytes -= held.weight_bytes
            held.weight, held.weight_bytes = 1, 0
            self.end(held, outcome_of(held.lease))

    def _drop(self, held: HeldLease) -> None:
        # A server that has lost its last writes draws the same tokens again: another lease may have this one.
        if self._held.get(held.lease.token) is held:
            del self._held[held.lease.token]

    def end_again(self, held: HeldLease, outcome: Outcome) -> None:
        """Its outcome was refused, and the lease goes on: it ends in another way."""
        held.weight, held.weight_bytes = 1, 0
        self.add(held)
        self.end(held, outcome)

    def settle_again(self, held: HeldLease) -> None:
        """Send its outcome once more, first of the next exchange: it was too much work beside others of this one."""
        self.add(held)
        self._unsettled_bytes += held.weight_bytes
        self._ended.appendleft(held)

    def settled(self) -> list[HeldLease]:
        """The exchange has been answered: those whose outcomes it had, in their order."""
        settled, self._settling = self._settling, []
        if self._put_off_s and any(held.needs_memory for held in settled):
            self._try_again(max(held.weight_bytes for held in settled))
        for held in settled:
            self._unsettled_bytes -= held.weight_bytes
            held.read_outcome = None
        return settled

    def _try_again(self, size_bytes: int) -> None:
        """There is memory again, as far as is known for outcomes of up to this size, and for all small ones."""
        while self._put_off and self._put_off[0].weight_bytes <= max(size_bytes, LARGE_DATA_BYTES):
            self._ended.append(self._put_off.popleft())
        if not self._put_off:
            self._put_off_s = 0.0


def _needs_memory(outcome: Outcome, data_bytes: int) -> bool:
    return type(outcome) is Completed and (bool(outcome.then) or data_bytes > LARGE_DATA_BYTES)


def _lighten(held: HeldLease) -> None:
    """Keep nothing of the outcome that can be read again."""
    if held.read_outcome is not None and isinstance(held.outcome, Completed):
        held.outcome = replace(held.outcome, data=UNSET, then=())
