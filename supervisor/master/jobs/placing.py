"""From a grant to a child: which job starts, waits here, or goes back to its queue uncounted. Runs in master.

Owns what is ready. What comes from children is `Dispatcher`'s, what is done against them `Interrupter`'s.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from supervisor import clock
from supervisor.config import Config
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import Released, Unknown
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.counts import Counts
from supervisor.master.model.ledger import HeldLease, Ledger
from supervisor.master.model.outcome_log import start_of
from supervisor.master.model.pace import Pace
from supervisor.master.model.slots import RUN_S, SHORT_S, Slots, may_go_ahead
from supervisor.master.model.states import ChildState
from supervisor.master.timers import Timers
from supervisor.messages import HandlerSettings
from supervisor.ops.events import Events

#: When one for which the others have waited long enough is offered again.
_PUT_OFF_S: Final = 10.0
#: When a job whose klass no handler of ours has is offered again.
_UNKNOWN_S: Final = 10.0
_NO_SETTINGS: Final = HandlerSettings()
#: The timer of what is ready, and nobody may have: it goes back then.
HAND_BACK: Final = "placing.hand-back"
#: The timer of what does not fit: it is tried again then.
FIND_ROOM: Final = "placing.find-room"


class Placing:
    def __init__(
        self,
        config: Config,
        slots: Slots,
        ledger: Ledger,
        pace: Pace,
        budget: Budget,
        events: Events,
        counts: Counts,
        interrupter: Interrupter,
        timers: Timers,
    ) -> None:
        self._config = config
        self._slots = slots
        self._ledger = ledger
        self._pace = pace
        self._budget = budget
        self._events = events
        self._counts = counts
        self._interrupter = interrupter
        self._timers = timers
        self._handlers: Mapping[str, HandlerSettings] = {}  # as known when something was leased last
        self.paused = False  # nothing starts, but may later
        self.before_start: Callable[[], None] | None = None  # has a word before jobs are sent

    def take_on(self, leases: Sequence[LeaseRecord], starting: int, handlers: Mapping[str, HandlerSettings]) -> None:
        """Leases that were granted, of which the engine takes the first `starting` to start at once: they are ready.
        `place` is to follow.
        """
        self._slots.only_idle = not all(map(may_go_ahead, leases))
        self._know_circles(leases, handlers)
        if self.before_start is not None:
            self.before_start()
        for index, lease in enumerate(leases):
            settings = handlers.get(lease.klass)
            held = HeldLease(
                lease,
                settings or _NO_SETTINGS,
                self._limit_s(lease, settings),
                None if lease.persistent else self._pace.of(lease.klass),
                index < starting,
                self._memory_limit_bytes(settings),
            )
            self._ledger.add(held)
            self._admit(held, settings)

    def _admit(self, held: HeldLease, settings: HandlerSettings | None) -> None:
        """It is ready, as far as these settings of its handler are concerned; None: there is none."""
        lease = held.lease
        if settings is None and self._slots.on_hold:
            self._ledger.end(held, Released(lease, started=False))  # nobody knows yet
        elif settings is None and self._interrupter.is_open:
            self._ledger.end(held, Unknown(lease, _UNKNOWN_S))
        elif settings is not None and _lacks_mark(lease, settings):
            self._ledger.end(held, Released(lease, started=False))
        else:
            self._ledger.ready.append(held)

    def judge_again(self, handlers: Mapping[str, HandlerSettings]) -> None:
        """The code is another one, and these hold for what is ready."""
        ready = self._ledger.ready
        for held in [ready.popleft() for _ in range(len(ready))]:
            settings = handlers.get(held.lease.klass)
            if settings is not None:
                held.change(settings, self._limit_s(held.lease, settings), self._memory_limit_bytes(settings))
            self._admit(held, settings)

    def _know_circles(self, leases: Sequence[LeaseRecord], handlers: Mapping[str, HandlerSettings]) -> None:
        """Where handlers differ in theirs, jobs are sent ahead only while those at hand do not."""
        if handlers is not self._handlers:
            self._handlers = handlers
            trust_domains = {settings.trust_domain(klass) for klass, settings in handlers.items()}
            self._slots.mixed = self._config.jobs_per_child != 1 and len(trust_domains) > 1
        if self._slots.mixed and not self._slots.only_idle:
            at_hand = {handlers[lease.klass].trust_domain(lease.klass) for lease in leases if lease.klass in handlers}
            self._slots.only_idle = not self._slots.all_alike(at_hand)

    def _limit_s(self, lease: LeaseRecord, settings: HandlerSettings | None) -> float:
        if lease.timeout_s is not None:
            return lease.timeout_s
        if settings is not None and settings.timeout_s is not None:
            return settings.timeout_s
        return 0.0 if lease.persistent else self._config.job_timeout_s

    def _memory_limit_bytes(self, settings: HandlerSettings | None) -> int:
        own = settings.memory_bytes if settings is not None else None
        return self._config.memory_limit_bytes if own is None else own

    def place(self, tell_start: Callable[[HeldLease], None] | None = None) -> None:
        """Send what is ready to the children that may have it. What nobody may have soon goes back, uncounted.

        `tell_start` is called right before a job starts at an idle child, if the engine does not know of that yet.
        What it raises leaves the job ready.
        """
        ready = self._ledger.ready
        if self._ledger.is_laden:
            self._take_back_ahead()
        if ready and self.before_start is not None:
            self.before_start()
        child, run_s = None, 0.0
        while ready and self._interrupter.is_open and not self.paused and not self._ledger.is_laden:
            held = ready[0]
            if child is None or run_s <= 0 or not self._slots.goes_on(child, held):
                child = self._slots.choose(held)
                run_s = RUN_S if child is not None and child.sent else 0.0
            if child is None:
                self._make_way(ready)
                break
            if not self._fits(held, child):
                if self._slots.short:
                    break
                continue
            if tell_start is not None and not (child.sent or held.start_reported):
                tell_start(held)
            try:
                child.send(held)
            except BrokenPipeError:
                self._interrupter.kill(child, "it has shut down the socket that its jobs come by")
                continue
            except OSError as error:  # our open files, or the kernel's memory, are used up
                self._events.warn(f"a job cannot be sent to a child ({error})")
                break
            ready.popleft()
            run_s -= held.estimate_s or RUN_S
            self._given(held, child)
        self._plan_hand_back()

    def _take_back_ahead(self) -> None:
        """Let nothing begin that waits at a busy child."""
        for child in self._slots:
            if len(child.sent) > 1:
                self.take_back(child)

    def _given(self, held: HeldLease, child: ChildHandle) -> None:
        """The child has it."""
        if self._slots.mixed:
            child.trust_domain = held.trust_domain
        self._budget.hold(child.number, held.lease.klass, held.lease.jid, ends=not held.lease.persistent)
        self._timers.cancel(HAND_BACK)
        if len(child.sent) == 1:
            if not held.start_reported and (held.estimate_s is None or held.estimate_s > SHORT_S):
                self._ledger.has_started(held)
            self.say_started(held)

    def _plan_hand_back(self) -> None:
        if not self._ledger.ready:
            self._timers.cancel(HAND_BACK)
        elif not self._interrupter.is_open or self.paused:
            self.hand_back()
        elif self._timers.at(HAND_BACK) == math.inf:
            at = clock.monotonic() + self._config.dispatch_ahead_s
            self._timers.set(HAND_BACK, at, lambda _now_at: self.hand_back())

    def _make_way(self, ready: Sequence[HeldLease]) -> None:
        """For a job that none of the idle children may have."""
        in_the_way = self._slots.in_the_way(ready)
        for child in in_the_way:
            child.retire_reason = "the next job may not share a child with those that it has had"
            self._interrupter.leave(child)
        if in_the_way:
            self._fall_short()

    def _fits(self, held: HeldLease, child: ChildHandle) -> bool:
        """Whether there is memory for it. If not nothing is leased either, so that it is the next one here; handed back
        meanwhile, it may run at another worker.
        """
        lease = held.lease
        if self._budget.fits(lease.klass, lease.jid, child.number):
            return True
        why = self._budget.put_off(lease.klass, lease.jid, clock.monotonic())
        if why is not None:
            self._events.warn(f"{why}; it is tried again in {_PUT_OFF_S:g} s")
            self._ledger.ready.remove(held)
            self._ledger.end(held, Released(lease, started=False, delay=_PUT_OFF_S))
            return False
        self._fall_short()
        spare = self._slots.get(self._budget.idle_child_to_end() or 0)
        if spare is not None and spare.state is ChildState.IDLE:
            spare.retire_reason = "its memory is needed for another job"
            self._interrupter.leave(spare)
        return False

    def _fall_short(self) -> None:
        """Have no more leased, and look for room later: the jobs at hand do not fit."""
        self._slots.fall_short()
        self._timers.set(FIND_ROOM, self._slots.short_until_at, lambda _now_at: self._slots.find_room())

    def hand_back(self) -> None:
        self._timers.cancel(HAND_BACK)
        while self._ledger.ready:
            held = self._ledger.ready.popleft()
            self._ledger.end(held, Released(held.lease, started=False))

    def say_started(self, held: HeldLease) -> None:
        lease = held.lease
        self._counts.of(lease.queue, lease.klass).started += 1
        if lease.deaths or lease.interruptions:
            self._counts.note_start(lease.jid, held.started_at)
        self._events.emit_lazily("job.started", start_of, held)

    def take_back(self, child: ChildHandle) -> None:
        """What it has not received is ready again."""
        for held in reversed(child.take_back()):
            self._budget.settle(child.number, held.lease.klass, held.lease.jid)
            if held.lost:
                continue
            if held.has_payload:
                self._ledger.ready.appendleft(held)
            else:  # no descriptor was left for it
                self._ledger.end(held, Released(held.lease, started=False))

    def pause(self) -> None:
        """Nothing starts until `resume`: hand back what has not. What runs goes on. Idempotent."""
        self.paused = True
        for child in self._slots:
            self.take_back(child)
        self.place()

    def resume(self) -> None:
        self.paused = False


def _lacks_mark(lease: LeaseRecord, settings: HandlerSettings) -> bool:
    """Leased for the code before, by which it might start twice: only a lease anew tells the engine that it may not."""
    return settings.at_most_once and not (lease.at_most_once or lease.persistent)
