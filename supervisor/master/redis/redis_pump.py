"""When the master speaks to Redis, and about what. Runs in master. Owns the timing of exchanges, renewals and waits.

One exchange at a time: what settles meanwhile goes into the next, so batches are as large as the load makes them.
"""

import math
import os
from collections.abc import Sequence
from typing import Final

from supervisor import clock
from supervisor.engine.commands.writes import GONE, LOST, MOST, Renewals
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import ENDLESS, REFUSED, TOO_MANY_QUEUES, Answer, Returned
from supervisor.engine.worker.exchange import (
    Asked,
    Changed,
    Chores,
    Confirmation,
    Deregistered,
    Due,
    Found,
    Full,
    Granted,
    Left,
    Looked,
    Refused,
    Renewed,
    Resumed,
    Retired,
    Settled,
    Tidied,
    Timed,
    Wanted,
)
from supervisor.engine.worker.session import Session
from supervisor.master.jobs.cut_off import CutOff
from supervisor.master.jobs.dispatcher import Dispatcher
from supervisor.master.model import outcome_log, outcome_rules
from supervisor.master.model.counts import Counts
from supervisor.master.model.ledger import MOST_BYTES, MOST_WAITING, HeldLease, Ledger
from supervisor.master.model.recent_failures import RecentFailures
from supervisor.master.model.slots import Slots
from supervisor.master.processes.zygote_manager import ZygoteManager
from supervisor.master.redis.backlog import Backlog
from supervisor.master.redis.idle_exit import IdleExit
from supervisor.master.redis.maintenance import Maintenance
from supervisor.master.requests.operator_requests import OperatorRequests
from supervisor.ops.events import Events

#: How long no child could take a job before we wait for mail alone: shorter jobs never pay for it.
_MAIL_AFTER_S: Final = 0.05
#: Leases whose placing takes longer than an exchange takes to begin.
_MANY: Final = 16
#: When a lease that was refused is tried again.
_REFUSED_S: Final = 1.0


class RedisPump:
    def __init__(
        self,
        session: Session,
        ledger: Ledger,
        slots: Slots,
        forks: ZygoteManager,
        dispatcher: Dispatcher,
        cut_off: CutOff,
        requests: OperatorRequests,
        backlog: Backlog,
        idling: IdleExit,
        events: Events,
        counts: Counts,
    ) -> None:
        self._session = session
        self._ledger = ledger
        self._slots = slots
        self._forks = forks
        self._dispatcher = dispatcher
        self._cut_off = cut_off
        self._requests = requests
        self._backlog = backlog
        self._idling = idling
        self._events = events
        self._counts = counts
        self._upkeep = Maintenance(events)
        self.ends = RecentFailures()
        self.over = False  # the last exchange has been answered
        self.retired = False  # for want of work
        self._leasing = True
        self._wanted = Wanted(0, 0)  # of the exchange under way
        self._waited = Wanted(0, 0)  # with the end of the wait for bells
        self._ask = True  # there may be something to lease
        self._ask_at = math.inf  # when there will be
        self._renew_at = math.inf
        self._asked_at: float | None = None  # when the exchange under way was sent
        self._full_since_at: float | None = None
        self._coming = 0  # so many leases have just been granted, and are still to be placed
        self._completed: list[HeldLease] = []  # and nobody has said so yet

    def stop_leasing(self) -> None:
        """From now on only settle and renew."""
        self._leasing = False
        self._full_since_at = None

    def pause(self) -> None:
        """Lease nothing until `resume`, and hand back what has not started; all else goes on. Idempotent."""
        self._dispatcher.placing.pause()

    def resume(self) -> None:
        """Lease again. Idempotent."""
        self._ask = self._ask or self.paused
        self._dispatcher.placing.resume()

    @property
    def paused(self) -> bool:
        return self._dispatcher.placing.paused

    def connected(self) -> None:
        """The session has begun, or begun again."""
        now_at = clock.monotonic()
        self._ask, self._asked_at = True, None
        self._renew_at = now_at + self._session.ttl_s / 3
        self._upkeep.begin(now_at)
        for child in self._slots:
            if child.head is not None and child.head.told_started and not child.head.lost:
                self._ledger.has_started(child.head)  # the word may have been lost with the connection
        self._backlog.forget_said()
        self._idling.note(False, now_at)

    @property
    def settled(self) -> bool:
        """Whether nothing is in our hands any more, by Redis's own word."""
        return not self._ledger

    # what comes

    def on_replies(self) -> None:
        replies = self._session.read()
        if self._asked_at is not None and self._session.idle:
            self._counts.exchange.add(clock.monotonic() - self._asked_at)
            self._asked_at = None
        for answer in replies:
            match answer:
                case Settled(answers):
                    self._on_settled(answers)
                case Full():
                    self._on_full()
                case Granted():
                    self._on_granted(answer, self._wanted)
                case Renewed(leases, expires_unix, confirmation):
                    self._on_stored(leases, expires_unix)
                    self._on_renewed(leases, expires_unix, confirmation)
                case Resumed(leases, expires_unix, handed_back, confirmation):
                    self._on_renewed(leases, expires_unix, confirmation)
                    if handed_back:
                        self._counts.handed_back += handed_back
                        self._events.emit("lease.returned", count=handed_back)
                case Refused(what, message):
                    self._events.emit_throttled("redis.failed", f"Redis refused {what}: {message}")
                    self._ask_at = clock.monotonic() + _REFUSED_S
                    self._idling.put_off(clock.monotonic())
                case Found():
                    self._on_found(answer)
                case Changed():
                    self._on_changed(answer)
                case Asked(asks):
                    self._idling.note(False, clock.monotonic())
                    self._requests.on_asked(asks)
                case Timed():
                    self._renew_at = min(self._renew_at, clock.monotonic() + self._session.ttl_s / 3)
                case Tidied(swept):
                    self._counts.swept += swept.taken
                    self._upkeep.on_swept(swept)
                case Looked(depths):
                    self._backlog.on_looked(depths, self._session.worker)
                case Retired(why):
                    self._on_retired(why)
                case Deregistered():
                    self._on_deregistered()
                case Left():
                    self.over = True

    def _on_full(self) -> None:
        waiting = self._ledger.refused_for_memory(clock.monotonic())
        self._events.emit_throttled(
            "redis.failed",
            "the memory of Redis is full: completions with jobs to put or large data wait, and are tried again until"
            " they get in; their leases go on;"
            f" above {MOST_WAITING} of them, or {MOST_BYTES >> 20} MB, no further job starts",
            waiting=waiting,
        )

    def end_put_off(self) -> None:
        """Wait no longer for memory in Redis: jobs whose completions it has refused run again, or have failed."""
        self._ledger.end_put_off(outcome_rules.of_put_off)

    def _on_settled(self, answers: Sequence[Answer]) -> None:
        self._backlog.move()
        self._ask = self._ask or self._ledger.is_laden  # nothing was leased meanwhile
        for held, verdict in zip(self._ledger.settled(), answers, strict=True):
            if verdict == REFUSED:
                self._ledger.end_again(held, outcome_rules.of_refusal(held.lease))
            elif verdict == TOO_MANY_QUEUES:
                self._ledger.end_again(held, outcome_rules.of_too_many_queues(held.lease))
            elif verdict == ENDLESS:
                self._ledger.end_again(held, Returned(held.lease))
            elif verdict is True and outcome_log.is_over(held):
                self._completed.append(held)
            else:  # now: it may begin again with this very answer
                self.ends.remember(held, outcome_log.say(self._events, self._counts, held, verdict))
                held.outcome = None  # its child is remembered with it, and it may hold what followed

    def tell_completed(self) -> None:
        """Say and count what has completed. That may wait for the next exchange to begin: the server then has its work
        while we do ours.
        """
        for held in self._completed:
            outcome_log.say(self._events, self._counts, held, True)
            held.outcome = None
        self._completed.clear()

    def _on_stored(self, leases: Sequence[LeaseRecord], expires_unix: Sequence[float]) -> None:
        for lease, expires in zip(leases, expires_unix, strict=True):
            stored = self._ledger.stored(lease.token)
            if stored is not None:
                self._dispatcher.on_stored(*stored, kept=expires not in (LOST, GONE))

    def _on_renewed(
        self, leases: Sequence[LeaseRecord], expires_unix: Sequence[float], confirmation: Confirmation
    ) -> None:
        lost = []
        cancelled_by = expires_unix.cancelled_by if isinstance(expires_unix, Renewals) else {}
        for i, (lease, expires) in enumerate(zip(leases, expires_unix, strict=True)):
            if expires not in (LOST, GONE):
                self._cut_off.on_renewed(lease, expires, confirmation)
            elif (held := self._ledger.find(lease.token)) is not None:
                held.cancelled_by = cancelled_by.get(i)
                lost.append((held, "cancelled" if expires == GONE else "lease-lost"))
        self._counts.renewed += sum(expires not in (LOST, GONE) for expires in expires_unix)
        if lost:
            self._dispatcher.on_lost(lost)

    def _on_changed(self, changed: Changed) -> None:
        """Somebody wishes that we serve other queues."""
        if changed.problem:
            self._events.warn(f"the wish to serve {list(changed.patterns)} is not followed: {changed.problem}")
            return
        self._events.emit(
            "queues.changed", queues=list(changed.patterns), order=changed.order, count=changed.count
        )  # fmt: skip
        self._ask = True

    def _on_found(self, found: Found) -> None:
        """The globs stand for other queues: there may be something in those, and their bells are to be waited for."""
        self._ask = True
        self._events.emit(
            "queues.resolved", added=found.added, removed=found.removed, count=len(self._session.serving.names)
        )
        if found.left_out:
            self._events.warn(
                f"{found.left_out} queues that the globs match are not served: one supervisor serves at most"
                f" {MOST}; use narrower globs, and more supervisors"
            )

    def _on_deregistered(self) -> None:
        """All that we hold is void. What has ended and was not settled will be answered as stale."""
        old = self._session.worker
        self._dispatcher.on_lost([(held, "lease-lost") for held in self._ledger.held])
        for held, number in self._ledger.not_stored():
            self._dispatcher.on_stored(held, number, kept=False)
        self._session.rename()
        self._events.set_worker(self._session.worker)
        self._events.emit("worker.deregistered", old=old, new=self._session.worker)
        self._ask = True

    def _on_retired(self, why: str) -> None:
        if not why:
            self.retired = self.over = True
            return
        self._idling.stay(why, clock.monotonic())
        self._ask = self._ask or why in ("work", "lost")

    def _on_granted(self, granted: Granted, wanted: Wanted) -> None:
        grant = granted.grant
        if self._upkeep.on_granted(grant, len(grant.leases) < wanted.count):
            self._ask = True  # what is spawned may be for us
        self._ask = self._ask or 0 < wanted.count <= len(grant.leases)
        if grant.next_at_unix is not None:
            wait_s = max(0.0, grant.next_at_unix - grant.now_unix)
            self._ask_at = clock.monotonic() + wait_s
            if not self._session.may_take_over:
                # Until then the engine says nothing of what has expired; what was put off keeps its time.
                self._ask_at = min(self._ask_at, self._session.takeover_at)
        if grant.unreadable:
            jids = ", ".join(grant.unreadable)
            self._events.warn(f"records that cannot be read: {jids}; see `leasehold check`")
        if grant.leases:
            self._keep_time_to_live(min(lease.expires_unix for lease in grant.leases) - grant.now_unix)
            self._counts.granted += len(grant.leases)
            self._backlog.move()
            self._events.emit("lease.granted", count=len(grant.leases))
            ready, before = self._ledger.ready, len(self._ledger.ready)
            self._dispatcher.placing.take_on(grant.leases, wanted.starting, self._forks.handlers)
            if wanted.ahead:
                ready.rotate(len(ready) - before)
            self._fence(granted)
            if granted.late:
                self._dispatcher.placing.hand_back()
            if len(grant.leases) >= _MANY:
                self._converse_first()
            # The lease behind a wait says of no job that it starts.
            self._dispatcher.placing.place(self._tell_start if wanted is self._waited else None)

    def _fence(self, granted: Granted) -> None:
        """A lease behind a wait may be as old as the wait: its fence is too near, until it is renewed."""
        sent_at = granted.confirmation.sent_at
        has_fences = self._cut_off.on_granted(granted.grant.leases, self._forks.handlers, granted.confirmation)
        if has_fences and clock.boottime() - sent_at > self._session.ttl_s / 3:
            self._renew_at = min(self._renew_at, clock.monotonic())

    def _tell_start(self, held: HeldLease) -> None:
        """Raises LinkLost."""
        self._session.tell_started([held.lease])
        held.told_started = True

    def _converse_first(self) -> None:
        """Redis has its work while we place what it has granted. Raises LinkLost; that is placed then all the same."""
        self._coming = len(self._ledger.ready)
        try:
            self.converse(clock.monotonic())
        finally:
            self._coming = 0

    def _keep_time_to_live(self, ttl_s: float) -> None:
        """The heartbeat of a queue may have been made shorter since it was asked for."""
        if ttl_s < self._session.ttl_s:
            self._session.ttl_s = max(ttl_s, 0.0)
            self._renew_at = min(self._renew_at, clock.monotonic() + ttl_s / 3)

    def on_bell(self) -> None:
        bells = self._session.bells
        ended, granted = self._session.hear()
        if not ended:
            return
        for hint in bells.mail:
            if hint == b"queues":
                self._session.serving.look_for_queues()
            elif hint in (b"serve", b"ask"):
                self._session.serving.look_for_wish()
            elif hint == b"lost":
                self._on_hint_of_loss()
            elif hint == b"klass":
                self._ask = True  # others leave us what they have no handler for
        bells.mail.clear()
        if bells.timed_out:
            self._session.serving.look_for_queues()  # hints may be lost, too
        self._ask = self._ask or bells.rang
        if granted is not None:
            self._on_granted(granted, self._waited)
            if granted.grant.leases:
                os.sched_yield()  # a child that was woken on our processor begins now, not after this turn

    def _on_hint_of_loss(self) -> None:
        """Something that we hold was taken away, or we are unknown: renewing says what, and a lease if the latter."""
        self._renew_at = -math.inf
        self._ask = True

    # what goes

    def converse(self, now_at: float) -> None:
        """Start the next exchange if there is a reason for one; wait for bells if there is none. Raises LinkLost."""
        if not self._session.idle or self.retired:
            return
        if self._idling.patience_s:
            self._idling.note(self._at_rest, now_at)
        if self._session.bells.waiting and not self._may_wait:
            self._session.stop_waiting()  # else our wait would take bells that others could answer
        self._ask = self._session.doors.take_knock() or self._ask
        wanted = self._due_lease(now_at)
        renewals = self._due_renewals(now_at)
        chores = self._chores(now_at) if self._leasing else None
        self._session.know_klasses(self._forks.handlers if self._leasing else ())
        looks = self._session.serving.looks_due or self._session.skills_due
        has_ended = self._ledger.has_ended or now_at >= self._ledger.settle_at
        if wanted is not None or renewals or has_ended or chores or looks or self._requests.answered:
            if wanted is not None:
                # A lease of none only passes a bell on: what there is, or when, is asked once a child can take it.
                self._wanted, self._ask, self._ask_at = wanted, not wanted.count, math.inf
            elif (wanted := self._refill()) is not None:
                self._wanted = wanted
            outcomes, replies = self._ledger.settle_next(MOST, now_at), self._requests.take_replies()
            self._asked_at = now_at
            self._session.exchange(outcomes, renewals, wanted, chores, replies)
        elif now_at >= self._idling.due_at:
            self._retire()
        elif self._leasing or not self.settled:
            self._wait(now_at)

    def _chores(self, now_at: float) -> Chores | None:
        chores = self._upkeep.due(now_at)
        look = self._backlog.take_look(now_at, chores is not None and chores.sweep)
        if look and not self._session.serving.names:  # globs that match nothing yet: there is nothing to look into
            self._backlog.on_looked({}, self._session.worker)
            look = False
        desired = self._backlog.take_to_say()
        return (chores or Chores())._replace(look=look, desired=desired) if look or desired else chores

    def leave(self) -> None:
        """Say good-bye, if nothing else is under way: no bell either, which would be lost with us. Raises LinkLost."""
        if self._session.idle and not self._session.bells.waiting and not self._session.bells.rang:
            self._session.leave()

    @property
    def _at_rest(self) -> bool:
        """Whether nothing is in our hands, although we could take something."""
        return self._takes_jobs and self.settled and not self._forks.reloading

    def _retire(self) -> None:
        """Once nobody wakes us any more: who puts a job then rings for somebody else."""
        if self._session.bells.waiting:
            self._session.stop_waiting()
        else:
            self._session.retire(self._idling.patience_s)

    @property
    def _may_wait(self) -> bool:
        """Whether a wait that was begun may go on."""
        if not self._session.bells.waits_for_queues:
            return self._leasing or not self.settled
        # With its end it leases: where nothing could start, that is for others.
        return self._takes_jobs and not self._session.waits_for_others and bool(self._slots.idle())

    @property
    def _takes_jobs(self) -> bool:
        """Whether what is leased now has, or will have, children to run it."""
        return self._leasing and not self.paused and self._forks.ready and not self._ledger.is_laden

    def _due_lease(self, now_at: float) -> Wanted | None:
        if now_at >= self._ask_at:
            self._ask, self._ask_at = True, math.inf
        if not self._ask:
            return None
        if not self._session.serving.names:
            self._session.bells.rang = False  # there was none: the wait for mail is over
            return None
        coming = self._coming
        able = self._takes_jobs and len(self._ledger.ready) == coming
        count, starting = self._slots.capacity(coming) if able else (0, 0)
        bells = self._session.bells
        if not count and not bells.rang:
            return None
        if self._session.leases_when_woken:
            if not bells.waking:  # else that was before there was a reason to ask
                self._ask = not self._session.leases_all_when_woken
                self._session.stop_waiting()  # it leases with that
            return None
        woken, bells.rang = bells.rang, False  # with a count of 0 the lease passes the bell on
        return Wanted(min(count, MOST), starting, woken, self._forks.once)

    def _refill(self) -> Wanted | None:
        """Jobs for the slots of limits that the next exchange gives back. Others are ready, so that nothing else is
        leased yet: without this a limit would start a job per slot and batch of the others.
        """
        if not self._ledger.ready or not self._takes_jobs or self._session.leases_when_woken:
            return None
        count = self._ledger.slots_freed
        if not count or not self._session.serving.names:
            return None
        return Wanted(min(count, MOST), 0, once=self._forks.once, ahead=True)

    def _due_renewals(self, now_at: float) -> list[Due]:
        is_due = now_at >= self._renew_at
        if is_due and self._renew_at == -math.inf:
            self._session.drop_mail()  # one renewal answers all hints that came until now
        told = self._told(now_at) if self._ledger.has_told else []
        if not is_due:
            return told
        self._renew_at = now_at + self._session.ttl_s / 3
        return told + [Due(lease) for lease in self._ledger.leases]

    def _told(self, now_at: float) -> list[Due]:
        """What is to be said of jobs that run."""
        told = [Due(lease, True) for lease in self._ledger.take_started()]
        told += [Due(lease, True, (fraction, text)) for lease, (fraction, text) in self._ledger.take_progress()]
        return told + [Due(lease, True, None, state) for lease, state in self._ledger.take_checkpoints(now_at)]

    def _wait(self, now_at: float) -> None:
        """Wait for work where a child could take it; where none could for a while, for mail alone."""
        session = self._session
        if self._takes_jobs and self._slots.idle() and not self._ledger.ready:
            self._full_since_at = None
            session.doors.attend(session.serving.names)
            if not session.bells.waiting:
                # Should we have vanished by then, only a few jobs wait for their leases to expire; none has started.
                count, starting = self._slots.capacity()
                count = min(count, max(starting, _MANY), MOST)
                self._waited = Wanted(count, 0, woken=True, once=self._forks.once)
                session.wait_for_bells(queues=True, wanted=self._waited)
            elif not session.bells.waits_for_queues:
                session.stop_waiting()
        elif session.bells.waiting:
            self._full_since_at = None
        else:
            self._full_since_at = self._full_since_at or now_at
            if now_at >= self._full_since_at + _MAIL_AFTER_S:
                session.wait_for_bells(queues=False)

    def deadline_at(self) -> float:
        if not self._session.idle or self.retired:
            return math.inf
        if self._ledger.has_ended:
            return -math.inf  # since we last spoke
        ask_at = self._ask_at if self._leasing else math.inf
        mail_at = math.inf if self._full_since_at is None else self._full_since_at + _MAIL_AFTER_S
        chores_at = min(self._upkeep.due_at, self._backlog.deadline_at()) if self._leasing else math.inf
        retire_at = math.inf if self._session.bells.waking else self._idling.due_at
        told_at = min(self._ledger.checkpoint_at(), self._ledger.settle_at)
        return min(ask_at, mail_at, self._renew_at, chores_at, retire_at, told_at)
