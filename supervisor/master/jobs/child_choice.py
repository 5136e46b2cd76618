"""Says which child gets a job. Runs in the master. Does no I/O."""

from collections.abc import Collection, Hashable, Sequence
from typing import Final

from supervisor import clock
from supervisor.master.jobs.admission import Admission, may_go_ahead
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.job_pipe import MAX_SENT, charge
from supervisor.master.model.pace import Pace
from supervisor.master.model.slots import Slots, takes_a_process
from supervisor.master.model.states import ChildState
from supervisor.messages import INLINE_PAYLOAD_BYTES

#: Jobs of this much estimated run time go to one child in a row before `choose` is asked again. Very short jobs wait
#: for this long at a busy child, because waking an idle child takes longer.
RUN_S: Final = 0.0005
#: Upper bounds of what a packet has beside its payload. A tag is quoted, in JSON.
_HEAD_BYTES: Final = 1024
_TAG_BYTES: Final = 2 * 64 + 3


class ChildChoice:
    def __init__(self, slots: Slots, admission: Admission, pace: Pace, ahead_s: float) -> None:
        """`ahead_s`: how much estimated run time may wait at one child."""
        self._slots = slots
        self._admission = admission
        self._pace = pace
        self._ahead_s = ahead_s

    def choose(self, held: HeldLease, full: Collection[ChildHandle] = ()) -> ChildHandle | None:
        """Return the child that may have the job now: an idle one, else the busy one that is free soonest, or None.

        A job that runs beside others goes to an idle child, else to the shared one that has the fewest jobs and is not
        one of `full`.
        """
        if held.settings.shares_child:
            return self._choose_shared(held, full)
        busy = 0
        idle: ChildHandle | None = None
        soonest: ChildHandle | None = None
        trust_domain = held.trust_domain if self._admission.separates_domains else None
        for child in self._slots:
            if child.sent:
                busy += takes_a_process(child)
                is_alike = trust_domain is None or child.trust_domain == trust_domain
                is_sooner = soonest is None or child.jobs.estimated_s < soonest.jobs.estimated_s
                if is_sooner and is_alike and self._may_queue(child):
                    soonest = child
            elif (
                child.state is ChildState.IDLE
                and child.retire_reason is None
                and (idle is None or trust_domain is not None)
            ):
                idle = child if trust_domain is None else _better(trust_domain, idle, child)
        if idle is not None and busy < self._admission.at_once and not self._is_near(held, soonest):
            return idle
        if soonest is None or self._admission.is_serial:
            return None
        return soonest if self._fits(held, soonest) else None

    def _choose_shared(self, held: HeldLease, full: Collection[ChildHandle]) -> ChildHandle | None:
        busy = 0
        idle: ChildHandle | None = None
        fewest: ChildHandle | None = None
        trust_domain = held.trust_domain if self._admission.separates_domains else None
        for child in self._slots:
            if child.sent:
                busy += takes_a_process(child)
                is_alike = trust_domain is None or child.trust_domain == trust_domain
                has_fewer = fewest is None or len(child.sent) < len(fewest.sent)
                if has_fewer and is_alike and child not in full and _may_join(held, child):
                    fewest = child
            elif child.state is ChildState.IDLE and child.retire_reason is None:
                idle = child if trust_domain is None else _better(trust_domain, idle, child)
        if idle is not None and busy < self._admission.at_once:
            return idle
        return None if self._admission.is_serial else fewest

    @property
    def has_shared(self) -> bool:
        """True if a child runs jobs beside each other now."""
        return any(child.shared is not None and child.sent for child in self._slots)

    def most_at(self, child: ChildHandle) -> int:
        """Return how many jobs may be at this busy child at once, whatever jobs they are."""
        return min(MAX_SENT, len(child.sent) + self._slots.jobs_left(child))

    def goes_on(self, child: ChildHandle, held: HeldLease) -> bool:
        """Return whether the job may go to the child to which the job before it was just sent, within `most_at`."""
        return not (self._admission.separates_domains or held.settings.shares_child) and self._fits(held, child)

    def in_the_way(self, ready: Sequence[HeldLease]) -> list[ChildHandle]:
        """Return the idle children that are to leave, because none of them may have the first ready job.

        New children take their places: one for each ready job of its trust domain, less those that are being forked.
        """
        slots = self._slots
        if not self._admission.separates_domains or not ready or slots.busy >= self._admission.at_once:
            return []
        trust_domain = ready[0].trust_domain
        coming = slots.missing() + slots.spawning
        waiting = sum(held.trust_domain == trust_domain for held in ready)
        idle = [child for child in slots if child.state is ChildState.IDLE]
        return idle[: max(0, waiting - coming)]

    def _is_near(self, held: HeldLease, soonest: ChildHandle | None) -> bool:
        """Return whether the busy child that is free soonest will be free before an idle child has woken up."""
        if soonest is None or held.start_reported or not self._pace.is_quick or soonest.jobs.estimated_s >= RUN_S:
            return False
        has_run_s = clock.monotonic() - soonest.sent[0].started_at
        return has_run_s < RUN_S and self._fits(held, soonest)

    def _may_queue(self, child: ChildHandle) -> bool:
        """Return whether one more job may be sent to this busy child."""
        return len(child.sent) < MAX_SENT and self._slots.may_send_ahead(child)

    def _fits(self, held: HeldLease, child: ChildHandle) -> bool:
        """Return whether the job may be sent ahead, starts there in time, and its packet fits into the socket."""
        lease, estimate_s = held.lease, held.estimate_s
        if estimate_s is None or child.jobs.estimated_s + estimate_s > self._ahead_s or not may_go_ahead(lease):
            return False
        return has_room(held, child)


def has_room(held: HeldLease, child: ChildHandle) -> bool:
    """Return whether the job's packet fits into the socket, even if the child has received none of its jobs."""
    lease = held.lease
    body_bytes = held.payload_bytes + held.replay_bytes + len(lease.raw_saved or b"")
    packet_bytes = min(body_bytes, INLINE_PAYLOAD_BYTES) + _HEAD_BYTES + _TAG_BYTES * len(lease.tags)
    return child.jobs.charged_bytes + charge(packet_bytes) <= child.jobs.room_bytes


def _may_join(held: HeldLease, child: ChildHandle) -> bool:
    """Return whether the job may run beside those of a busy child."""
    shared = child.shared
    return (
        shared is not None and child.state is ChildState.BUSY and child.retire_reason is None and shared.may_take(held)
    )


def _better(trust_domain: Hashable, idle: ChildHandle | None, child: ChildHandle) -> ChildHandle | None:
    """Return the idle child that is to have a job of this trust domain: one of it, else one that has had no job."""
    if child.trust_domain == trust_domain or (child.trust_domain is None and idle is None):
        return child
    return idle
