"""Sends ready jobs to children. Runs in the master.

`Admission` says whether jobs may start, and `ChildChoice` which child gets one. A job that no child may have soon goes
back to its queue, uncounted.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Final

from supervisor.master.jobs.admission import Admission, Stop
from supervisor.master.jobs.child_choice import RUN_S, ChildChoice, has_room
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.jobs.room import RoomMaker
from supervisor.master.jobs.start_reports import StartReports
from supervisor.master.jobs.unstarted import Unstarted
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.job_log import JobLog
from supervisor.master.model.ledgers import Ledgers

#: While one of these holds, ready jobs go back to their queues at once.
_HANDED_BACK: Final = (Stop.DRAINING, Stop.PAUSED)
#: Only a child that tampers with its socket makes a send fail like this. No other error is a child's fault.
_WHY_KILLED: Final[Mapping[type[OSError], str]] = {
    BrokenPipeError: "it has shut down the socket that its jobs come by",
    PermissionError: "it lets no descriptors through the socket that its jobs come by",  # from Linux 6.16 on
    BlockingIOError: "it has answered jobs that it leaves in the socket that they come by",
}


class Placing:
    def __init__(
        self,
        ledgers: Ledgers,
        admission: Admission,
        choice: ChildChoice,
        room: RoomMaker,
        unstarted: Unstarted,
        interrupter: Interrupter,
        starts: StartReports,
        log: JobLog,
        look_at_code: Callable[[], None] | None = None,
    ) -> None:
        """`look_at_code()` is called before jobs start, which then may have to wait for a reload. None: never."""
        self._ledgers = ledgers
        self._admission = admission
        self._choice = choice
        self._room = room
        self._unstarted = unstarted
        self._interrupter = interrupter
        self._starts = starts
        self._log = log
        self._look_at_code = look_at_code

    def place(self, reports_starts: bool = False) -> None:
        """Send the ready jobs to the children that may have them.

        `reports_starts`: their lease has told Redis of no start, so that of each idle child is to be reported.
        """
        ready, is_moving = self._ledgers.ready, False
        if ready and self._look_at_code is not None:
            self._look_at_code()
        stop = self._admission.why_not()
        if stop is None:
            is_moving = bool(ready) and self._send_ready(reports_starts)
        elif stop in _HANDED_BACK:
            self._unstarted.hand_back()
        elif stop is Stop.UNSETTLED:
            self._unstarted.take_back_ahead()
        if ready or self._unstarted.hand_back_planned:
            self._unstarted.plan_hand_back(is_moving)

    def _send_ready(self, reports_starts: bool) -> bool:
        """Send ready jobs until one finds no child or no room. Returns whether any was sent.

        Where children are shared, jobs of another kind may go past those that wait.
        """
        has_sent = self._send_first(reports_starts)
        if not self._ledgers.ready:
            self._admission.found_place()
        if not self._ledgers.ready or not self._choice.has_shared:
            return has_sent
        ready, waiting, kinds = self._ledgers.ready, deque[HeldLease](), set[Hashable]()
        try:
            while ready:
                if (kind := _kind_of(ready[0])) not in kinds:
                    has_sent = self._send_first(reports_starts) or has_sent
                    kinds.add(_kind_of(ready[0]) if ready else kind)
                if ready:
                    waiting.append(ready.popleft())
        finally:
            ready.extendleft(reversed(waiting))
        self._admission.wait_beside()
        return has_sent

    def _send_first(self, reports_starts: bool) -> bool:
        """Send ready jobs until one finds no child or no room. Returns whether any was sent."""
        ready, has_sent = self._ledgers.ready, False
        child, run_s, most = None, 0.0, 0
        full = set[ChildHandle]()  # shared children that do not read, because their loops are blocked
        while ready:
            held = ready[0]
            if child is None or run_s <= 0 or len(child.sent) >= most or not self._choice.goes_on(child, held):
                child = self._choice.choose(held, full)
                run_s, most = (RUN_S, self._choice.most_at(child)) if child is not None and child.sent else (0.0, 0)
            if child is None:
                self._room.make_child(ready)
                break
            if not self._admission.fits(held, child):
                if self._room.make_memory(held):
                    break
                continue
            is_start = not child.sent or child.shared is not None
            if is_start and not self._starts.before(held):
                break
            try:
                child.send(held)
            except (BrokenPipeError, PermissionError, BlockingIOError) as error:
                is_blocked = isinstance(error, BlockingIOError) and child.shared is not None and bool(child.sent)
                if is_blocked and not has_room(held, child):
                    full.add(child)
                else:
                    self._interrupter.kill(child, _WHY_KILLED[type(error)])
                child = None
                continue
            except OSError as error:  # the master's open files, or the kernel's memory, are used up
                self._log.not_sent(error)
                break
            ready.popleft()
            has_sent = True
            run_s -= held.estimate_s or RUN_S
            self._admission.given(held, child)
            is_full = is_start and reports_starts and self._starts.after(held)
            if is_start:
                self._ledgers.by_shard[held.shard].reports.job_started(held)
                self._log.started(held)
            if is_full:
                self._starts.finish()
        return has_sent

    # against a start

    def withdraw(self, child: ChildHandle) -> None:
        """Take back the jobs that the child has not received, for other children or their queues."""
        self._unstarted.take_back(child)
        self.place()

    def hand_back(self) -> None:
        """Hand all ready jobs back to their queues, uncounted."""
        self._unstarted.hand_back()

    def report_start(self, running: HeldLease) -> None:
        """The running job was expected to be short, and its start was not reported."""
        self._ledgers.by_shard[running.shard].reports.add_start(running)

    def on_overrun(self, child: ChildHandle) -> None:
        """The running job takes longer than expected: let no job wait behind it."""
        child.overran = True
        if len(child.sent) > 1:
            self.withdraw(child)
            self._unstarted.hand_back()  # these jobs have waited already

    def pause(self) -> bool:
        """Start no job until `resume`, and hand back the jobs that have not started. Running jobs go on.

        Returns False if the supervisor was paused before.
        """
        if not self._admission.pause():
            return False
        self._unstarted.take_back_all()
        self.place()
        return True

    def resume(self) -> bool:
        """Returns False if the supervisor was not paused."""
        return self._admission.resume()


def _kind_of(held: HeldLease) -> Hashable:
    """If one job of a kind finds no child now, no other one does."""
    return held.trust_domain, held.settings.concurrency, held.suspects_at_once
