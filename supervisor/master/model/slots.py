"""Which children there are, how many are needed, and which of them gets a job. Runs in master. No I/O of its own."""

from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from typing import Final

from supervisor import clock
from supervisor.config import MOST_PROCESSES
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.job_pipe import MAX_SENT, charge
from supervisor.master.model.ledger import HeldLease
from supervisor.master.model.pace import Pace
from supervisor.master.model.states import ChildState
from supervisor.messages import INLINE_PAYLOAD_BYTES

#: Asked of the zygote at a time: its socket takes a few hundred requests, and a non-root user's open files count.
_MOST_SPAWNING = 32
#: What a job costs us at the most: children whose jobs take no longer wait for us, however many they are.
_FEED_S = 100e-6
#: Of estimated work that goes to one child in a row, before it is asked again whose turn it is; jobs that take less
#: than we need for each wait for so much at a busy child rather than waking an idle one.
RUN_S: Final = 0.0005
#: Of a longer job the engine is told as soon as it starts at an idle child: should we die meanwhile, that was a death.
SHORT_S: Final = 0.001
#: When a job that does not fit is tried again, if none ends before.
_RETRY_S = 1.0
#: What a packet may have beside its payload.
_HEAD_BYTES = 1024
_TAG_BYTES = 2 * 64 + 3  # at the most: quoted, in JSON


def may_go_ahead(lease: LeaseRecord) -> bool:
    """Whether a job may wait at a child that is busy. One without an end, or without a second try, waits for an idle
    one; one whose child has died may end this one's, too.
    """
    return not (lease.persistent or lease.at_most_once or lease.deaths)


def _better(trust_domain: Hashable, idle: ChildHandle | None, child: ChildHandle) -> ChildHandle | None:
    """Which of two idle children is to have a job of this circle: one that is in it, else one that has had no job."""
    if child.trust_domain == trust_domain or (child.trust_domain is None and idle is None):
        return child
    return idle


class Slots:
    """At most `processes` jobs run at once. Children that may not take another job after theirs have a successor forked
    ahead, so that no job waits for a fork."""

    def __init__(self, processes: int, jobs_per_child: int, ahead_s: float, pace: Pace) -> None:
        """`jobs_per_child` 0: no limit. `ahead_s`: how much estimated work one child may have in its hands."""
        self.processes = processes
        self._most_before = 0  # how many there were until lately: theirs take their time to end
        self._jobs_per_child = jobs_per_child
        self._ahead_s = ahead_s
        self._pace = pace
        self._children: dict[int, ChildHandle] = {}
        self.answered = 0  # jobs, so far
        self.only_idle = False  # what is there to lease may not be sent ahead
        self.mixed = False  # not all jobs may share a child: one takes jobs of the circle of its first job only
        self.short_until_at = 0.0  # what is there to start does not fit into the memory budget, or to no idle child
        self.on_hold = False  # nothing is to start
        self._cautious_until_at = 0.0
        self._cautious = 0  # so many jobs must have ended before more than one runs at once

    def __iter__(self) -> Iterator[ChildHandle]:
        return iter(tuple(self._children.values()))

    def __len__(self) -> int:
        return len(self._children)

    def get(self, number: int) -> ChildHandle | None:
        return self._children.get(number)

    def add(self, child: ChildHandle) -> None:
        self._children[child.number] = child

    def remove(self, child: ChildHandle) -> None:
        del self._children[child.number]

    def free_number(self, taken: Container[int] = ()) -> int:
        """The lowest that no child has. `taken`: those of children that are in no slot."""
        number = 1
        while number in self._children or number in taken:
            number += 1
        return number

    # how many

    def resize(self, processes: int) -> None:
        """So many jobs at once from now on. Who is more than that ends by `surplus`, and by what the jobs do."""
        self._most_before = max(self.processes, self._most_before)
        self.processes = processes

    def surplus(self) -> tuple[list[ChildHandle], int]:
        """The idle children that are more than are needed, youngest first, and how many more are asked for."""
        idle, lasting, spawning = self._staying()
        idle.sort(key=lambda child: child.asked_at, reverse=True)
        surplus = idle[: max(0, len(idle) + lasting - self.processes)]
        return surplus, max(0, len(idle) - len(surplus) + lasting + spawning - self.processes)

    @property
    def useful(self) -> int:
        """How many processes we can keep busy at the pace of late."""
        recent_s = self._pace.recent_s
        return MOST_PROCESSES if recent_s is None else 1 + int(recent_s / _FEED_S)

    def beware(self, until_at: float) -> None:
        """One of the jobs that ran may end its zygote: they run one at a time, until each has had its turn, or time is
        up."""
        self._cautious, self._cautious_until_at = self.processes + 1, until_at

    def count_answer(self) -> None:
        """A job has ended."""
        self.answered += 1
        self.find_room()
        self._cautious = max(0, self._cautious - 1)

    @property
    def cautious(self) -> bool:
        if self._cautious and clock.monotonic() >= self._cautious_until_at:
            self._cautious = 0
        return self._cautious > 0

    @property
    def at_once(self) -> int:
        """How many jobs may run at once now."""
        return 1 if self.cautious else self.processes

    def fall_short(self) -> None:
        """Stop leasing for a while: the jobs at hand do not fit."""
        self.short_until_at = clock.monotonic() + _RETRY_S

    def find_room(self) -> None:
        """It may fit by now."""
        self.short_until_at = 0.0

    @property
    def short(self) -> bool:
        """Whether nothing is to be leased, as what is here cannot start, until a job ends or a while has passed."""
        return self.short_until_at > 0 and clock.monotonic() < self.short_until_at

    @property
    def busy(self) -> int:
        """How many run a job, killed ones included until their end is known."""
        return sum(1 for child in self._children.values() if child.sent)

    @property
    def leaving(self) -> bool:
        """Whether a child still has to clean up after its last job."""
        return any(child.state is ChildState.LEAVING for child in self._children.values())

    def idle(self) -> list[ChildHandle]:
        """Those that may start a job at this instant."""
        room = self.at_once - self.busy
        if room <= 0 or self.short or self.on_hold:
            return []
        return [
            child for child in self._children.values() if child.state is ChildState.IDLE and not child.retire_reason
        ][:room]

    def missing(self) -> int:
        """How many children to fork now."""
        idle, lasting, spawning = self._staying()
        needed = self.processes - lasting - len(idle) - spawning
        return max(0, min(needed, _MOST_SPAWNING - spawning, self._room()))

    def _staying(self) -> tuple[list[ChildHandle], int, int]:
        """Of those that may take another job: the idle ones, how many are busy, and how many are under way."""
        idle: list[ChildHandle] = []
        lasting = spawning = 0
        for child in self._children.values():
            if child.retire_reason is not None:
                continue  # it leaves, now or when its job is done
            if child.state is ChildState.SPAWNING:
                spawning += 1
            elif child.state is ChildState.IDLE:
                idle.append(child)
            elif child.state is ChildState.BUSY and not self.is_done(child):
                lasting += 1
        return idle, lasting, spawning

    def _room(self) -> int:
        """How many children there may be more: of those that end some take their time, also of those that are
        surplus."""
        if self._most_before and len(self._children) <= 3 * self.processes + 2:
            self._most_before = 0
        return 3 * max(self.processes, self._most_before) + 2 - len(self._children)

    def _jobs_left(self, child: ChildHandle) -> int:
        """How many more jobs may be sent to it."""
        if child.retire_reason:
            return 0
        if not self._jobs_per_child:
            return MAX_SENT
        return self._jobs_per_child - child.served - len(child.sent)

    def is_done(self, child: ChildHandle) -> bool:
        """Whether no more jobs may be sent to it."""
        return self._jobs_left(child) <= 0

    # how many jobs

    def capacity(self, coming: int = 0) -> tuple[int, int]:
        """How many jobs to lease now, beside those that are `coming`, and how many of them would start at once.

        Ahead go as many as will start in time, but at once no more than half of what the children take: they have the
        other half to do while Redis carries this one out. And a short one for each child that is about to get ready.
        """
        idle, recent_s = len(self.idle()), self._pace.recent_s
        starting = max(0, idle - coming)
        is_blocked = self.cautious or self.only_idle or self.short or self.on_hold
        if is_blocked or recent_s is None or recent_s > self._ahead_s:
            return starting, starting
        ahead, most = self._room_ahead(idle, recent_s)
        soon = self._soon() if recent_s <= SHORT_S else 0
        soon = max(0, min(soon, self.at_once - self.busy - idle) - max(0, coming - idle))
        # Those that take next to nothing may wait at a busy child, though another one is idle.
        return max(starting, min(ahead - coming, (most + 1) // 2)) + soon, 0 if self._quick else starting

    def _room_ahead(self, idle: int, recent_s: float) -> tuple[int, int]:
        """How many jobs that take so long would start in time, at as many idle children and at the busy ones, and how
        many these take at the most.
        """
        in_time = most = 0
        for child in self._children.values():
            if child.state is ChildState.IDLE and idle:
                idle -= 1
            elif not child.sent or not self._may_wait_at(child):
                continue
            left = self._jobs_left(child)
            in_time += max(0, min(int((self._ahead_s - child.jobs.estimated_s) / recent_s), left))
            most += min(int(self._ahead_s / recent_s), MAX_SENT, left + len(child.sent))
        return in_time, most

    def _soon(self) -> int:
        """How many children are about to get ready, as far as forks of late tell."""
        fork_s = self._pace.fork_s
        if fork_s is None:
            return 0
        # Not those that are overdue: nobody knows how long a job would wait for them.
        asked_at = clock.monotonic() - fork_s
        under_way = [
            child for child in self._children.values() if child.state is ChildState.SPAWNING and not child.retire_reason
        ]
        return sum(asked_at <= child.asked_at <= asked_at + self._ahead_s / 2 for child in under_way)

    # which child

    def choose(self, held: HeldLease) -> ChildHandle | None:
        """The child that may have a job now: an idle one, else the busy one that is free soonest; None: nobody."""
        if self.on_hold:
            return None
        busy = 0
        idle: ChildHandle | None = None
        soonest: ChildHandle | None = None
        trust_domain = held.trust_domain if self.mixed else None
        for child in self._children.values():
            if child.sent:
                busy += 1
                alike = trust_domain is None or child.trust_domain == trust_domain
                is_sooner = soonest is None or child.jobs.estimated_s < soonest.jobs.estimated_s
                if is_sooner and alike and self._may_queue(child):
                    soonest = child
            elif (
                child.state is ChildState.IDLE
                and child.retire_reason is None
                and (idle is None or trust_domain is not None)
            ):
                idle = child if trust_domain is None else _better(trust_domain, idle, child)
        if idle is not None and busy < self.at_once and not self._is_near(held, soonest):
            return idle
        if self.cautious:
            return None
        return soonest if soonest is not None and self._fits(held, soonest) else None

    def _is_near(self, held: HeldLease, soonest: ChildHandle | None) -> bool:
        """Whether the busy child that is free soonest will be so before an idle one has woken up."""
        if soonest is None or held.start_reported or not self._quick or soonest.jobs.estimated_s >= RUN_S:
            return False
        has_run_s = clock.monotonic() - soonest.sent[0].started_at
        return has_run_s < RUN_S and self._fits(held, soonest)

    @property
    def _quick(self) -> bool:
        """Whether jobs of late took less than we need for each."""
        recent_s = self._pace.recent_s
        return recent_s is not None and recent_s < _FEED_S

    def goes_on(self, child: ChildHandle, held: HeldLease) -> bool:
        """Whether the job may go where the one before it was sent ahead."""
        return not self.mixed and self._may_queue(child) and self._fits(held, child)

    def in_the_way(self, ready: Sequence[HeldLease]) -> list[ChildHandle]:
        """Idle children that may not have the first of these jobs, as no other is: they are to make room for new ones,
        as many as jobs like it wait for and are not under way.
        """
        if not self.mixed or self.on_hold or not ready or self.busy >= self.at_once:
            return []
        trust_domain = ready[0].trust_domain
        coming = self.missing() + sum(child.state is ChildState.SPAWNING for child in self._children.values())
        waiting = sum(held.trust_domain == trust_domain for held in ready)
        idle = [child for child in self._children.values() if child.state is ChildState.IDLE]
        return idle[: max(0, waiting - coming)]

    def all_alike(self, trust_domains: Iterable[Hashable]) -> bool:
        """Whether these are one circle, and that of all children that have one."""
        known = {child.trust_domain for child in self._children.values() if child.trust_domain is not None}
        return len(known.union(trust_domains)) <= 1

    def _may_queue(self, child: ChildHandle) -> bool:
        """Whether any job may be sent to it while it is busy."""
        return len(child.sent) < MAX_SENT and self._may_wait_at(child)

    def _may_wait_at(self, child: ChildHandle) -> bool:
        """The same, were there room for it."""
        return (
            child.state is ChildState.BUSY
            and child.sent[0].estimate_s is not None
            and not child.overran
            and self._jobs_left(child) > 0
        )

    def _fits(self, held: HeldLease, child: ChildHandle) -> bool:
        """Whether the job will start within the time that jobs may be sent ahead, if it may be sent ahead at all."""
        lease, estimate_s = held.lease, held.estimate_s
        if estimate_s is None or child.jobs.estimated_s + estimate_s > self._ahead_s or not may_go_ahead(lease):
            return False
        packet_bytes = min(held.payload_bytes, INLINE_PAYLOAD_BYTES) + _HEAD_BYTES + _TAG_BYTES * len(lease.tags)
        return child.jobs.charged_bytes + charge(packet_bytes) <= child.jobs.room_bytes
