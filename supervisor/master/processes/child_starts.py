"""Asks zygotes for children, and follows each one until it is ready. Runs in the master.

What failed starts mean is decided by `CrashLoopGuard`. The ends of children are `ChildReaper`'s.
"""

import errno
import math
import os
from collections.abc import Callable
from signal import SIGKILL
from typing import Final

from supervisor import clock
from supervisor.config import RunConfig
from supervisor.linux import foreign_files, kernel
from supervisor.master.model import outcome_rules
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.slots import Slots
from supervisor.master.model.stacks import WRITE_S
from supervisor.master.model.states import ChildState
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.master.processes.child_reader import ChildReader
from supervisor.master.processes.crash_loop_guard import NOT_READY, PROBATION_S, CrashLoopGuard, describe_failure
from supervisor.master.processes.zygotes import Zygotes
from supervisor.messages import BootFailed, Reaped, SpawnFailed
from supervisor.ops.events import Events

#: A zygote that was asked for a child must have said something within this time, or it is retired.
FORK_S: Final = 10.0
#: Descriptors that children leave to the rest of the master: new pidfds, looks at memory, payloads, Redis.
_RESERVED_FILES: Final = 24


class ChildStarts:
    def __init__(
        self,
        config: RunConfig,
        slots: Slots,
        events: Events,
        zygotes: Zygotes,
        guard: CrashLoopGuard,
        reader: ChildReader,
        new_child: Callable[[int, int], ChildHandle],
    ) -> None:
        """`new_child(number, number of its zygote)` may raise OSError."""
        self._boot_timeout_s = config.boot_timeout_s
        self._slots = slots
        self._events = events
        self._zygotes = zygotes
        self._guard = guard
        self._reader = reader
        self._new_child = new_child
        self._closing = False
        self._unready: dict[ChildHandle, ZygoteHandle] = {}  # children that have not been seen ready
        self._probes: dict[ChildHandle, ZygoteHandle] = {}  # children of candidates; in no slot, so they get no job
        self._kill_at: dict[ChildHandle, float] = {}  # children that are overdue and write their stacks
        self._most_files = kernel.most_open_files()

    def of(self, zygote: ZygoteHandle) -> list[ChildHandle]:
        """Return the zygote's children, probes included."""
        return [child for child in self.all() if child.zygote == zygote.number]

    def all(self) -> list[ChildHandle]:
        return [*self._slots, *self._probes]

    def find(self, zygote: ZygoteHandle, number: int) -> ChildHandle | None:
        """Return the zygote's child of this number."""
        for probe in self._probes:
            if probe.number == number:
                return probe if probe.zygote == zygote.number else None
        child = self._slots.get(number)
        return child if child is not None and child.zygote == zygote.number else None

    def close(self) -> None:
        """Ask for no child any more."""
        self._closing = True

    # asking for children

    def fill(self, zygote: ZygoteHandle, now_at: float) -> bool:
        """Ask for the children that are missing. Return True if some were."""
        if now_at < self._guard.fork_after_at or (wanted := self._wanted()) <= 0:
            return False
        for _ in range(wanted):
            try:
                child = self._ask_for_child(zygote)
            except OSError as error:
                # Descriptors, or the room in the zygote's socket, are used up. The end of a zygote shows at its socket.
                foreign_files.close_kept()
                self._guard.retry_later(f"no child can be asked for ({error})")
                break
            self._slots.add(child)
            self._unready[child] = zygote
        return True

    @property
    def failure(self) -> BootFailed | None:
        """Why no further child would start."""
        return self._guard.failure

    @property
    def fill_at(self) -> float:
        """Return before which time `fill` does nothing (monotonic s)."""
        return self._guard.fork_after_at

    def is_pool_filled_by(self, zygote: ZygoteHandle) -> bool:
        """Return True if the zygote's ready children, with its probe, fill the pool."""
        return zygote.ready_children >= self._slots.processes - 1

    def _wanted(self) -> int:
        """Return how many children to ask for now. After a failed start that is one at a time."""
        missing = 0 if self._closing else self._slots.missing()
        return min(missing, 1 - len(self._unready)) if self._guard.is_failing or self._kill_at else missing

    def _ask_for_child(self, zygote: ZygoteHandle) -> ChildHandle:
        child = self._new_child(self._slots.free_number({probe.number for probe in self._probes}), zygote.number)
        try:
            if child.output.fd >= self._most_files - _RESERVED_FILES:  # the kernel gives the lowest free number
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            zygote.spawn(child.number, child.child_ends)
        except OSError:
            child.close()
            raise
        finally:
            child.close_child_ends()
        return child

    def probe(self, candidate: ZygoteHandle) -> None:
        """Ask the candidate for one child that gets no job. Raises OSError.

        When the child is ready, `candidate.proven` is set. If it fails to start, `candidate.failure` is set.
        """
        self._probes[self._ask_for_child(candidate)] = candidate

    def on_takeover(self, zygote: ZygoteHandle) -> None:
        """The zygote forks from now on. Its probe becomes a child like others, and failures of other code are void."""
        for child in [probe for probe, its_zygote in self._probes.items() if its_zygote is zygote]:
            del self._probes[child]
            self._slots.add(child)
        self._guard.reset()

    # what the zygote reports

    def on_spawned(self, zygote: ZygoteHandle, number: int, pid: int, pidfd: int) -> ChildHandle | None:
        """Take the pidfd of a new child. Returns None if the zygote has reported the child before."""
        child = self.find(zygote, number)
        if child is None or child.pidfd is not None:  # foreign code in the zygote may report it twice
            os.close(pidfd)
            return None
        self._zygotes.measure(zygote)
        child.spawned(pid, pidfd, zygote.inherited)
        # Not before: a child that the master can neither watch nor kill must have no job.
        self._reader.watch(child)
        return child

    def on_spawn_failed(self, zygote: ZygoteHandle, failed: SpawnFailed) -> None:
        child = self.find(zygote, failed.child)
        if child is None or child.pidfd is not None:  # foreign code in the zygote may report it of a living child
            return
        if failed.traceback or child in self._probes:
            self._record_failure(child, failed.message, failed.traceback)
        elif clock.monotonic() >= self._guard.fork_after_at:  # else the same was said of another child just now
            self._guard.retry_later(f"no child can be forked ({failed.message})")
        self.forget(child)

    def forget_unreported(self, zygote: ZygoteHandle) -> None:
        """Forget children whose fork the zygote has not reported. If alive, they find their sockets closed and exit."""
        for child in self.of(zygote):
            if child.pidfd is None:
                self.forget(child)

    def forget(self, child: ChildHandle) -> None:
        """Remove the child, and close the master's ends of its sockets."""
        self._reader.forget(child)
        if self._probes.pop(child, None) is None:
            self._slots.remove(child)
        self._unready.pop(child, None)
        self._kill_at.pop(child, None)
        self._guard.forget(child)
        child.close()

    # whether they get ready

    def note_ready(self, child: ChildHandle, surely: bool = False) -> None:
        """Note that the child got ready, if it did. `surely`: its last packet said so."""
        if child not in self._unready or not (surely or child.is_ready or child.sent or child.served):
            return
        zygote = self._unready.pop(child)
        zygote.proven = True
        zygote.ready_children += 1
        self._zygotes.measure_child(child)
        self._kill_at.pop(child, None)
        self._guard.on_ready(child)

    def judge_end(self, child: ChildHandle, reaped: Reaped | None, was_unused: bool) -> None:
        """Record a start-up failure if the dead child never got ready, or exited early without a job.

        `was_unused`: before its end was known, it had no job and had answered none.
        """
        # Any process may send SIGKILL. It says nothing about the next child.
        by_itself = child.why_killed is not None or (reaped is not None and reaped.status != SIGKILL)
        is_early = was_unused and by_itself and not self._closing and clock.monotonic() < child.asked_at + PROBATION_S
        is_unready = child in self._unready or child in self._probes
        if (is_unready or is_early) and child.why_killed not in outcome_rules.INTERRUPTIONS:
            before = "it was ready" if is_unready else "it had answered a job"
            self._record_failure(child, *describe_failure(child, reaped, before, self._boot_timeout_s))

    def _record_failure(self, child: ChildHandle, reason: str, last_output: str) -> None:
        if child in self._probes:
            self._probes[child].failure = BootFailed(reason, last_output)
        else:
            self._guard.record_failure(child, reason, last_output)

    # time

    def deadline_at(self) -> float:
        deadlines = [self._deadline_of(child, zygote) for child, zygote in self._spawning()]
        return min(self._guard.deadline_at(), *deadlines, math.inf)

    def run_due(self, now_at: float) -> None:
        """Note which children are ready, and act on those that are overdue."""
        self._guard.end_probation(now_at)
        for child in tuple(self._unready):
            self.note_ready(child)
        for child, zygote in self._probes.items():
            zygote.proven = child.state is ChildState.IDLE and child.ended_at is None
            if zygote.proven:
                self._zygotes.measure_child(child)
        for child, zygote in self._spawning():
            if now_at >= self._deadline_of(child, zygote):
                self._on_overdue(child, zygote, now_at)

    def _spawning(self) -> list[tuple[ChildHandle, ZygoteHandle]]:
        """Return the living children that are not ready yet, each with its zygote."""
        children = (*self._unready.items(), *self._probes.items())
        return [pair for pair in children if pair[0].state is ChildState.SPAWNING and pair[0].ended_at is None]

    def _deadline_of(self, child: ChildHandle, zygote: ZygoteHandle) -> float:
        if child.pidfd is None:
            return max(child.asked_at, zygote.heard_at) + FORK_S
        return self._kill_at.get(child, child.asked_at + self._boot_timeout_s)

    def _on_overdue(self, child: ChildHandle, zygote: ZygoteHandle, now_at: float) -> None:
        if child.pidfd is None:
            zygote.unresponsive = "it does not fork"
        elif child not in self._kill_at:
            child.write_stacks()
            self._kill_at[child] = now_at + WRITE_S
        else:
            self._events.emit("child.killed", child=child.number, pid=child.pid, reason=NOT_READY)
            child.kill(NOT_READY)
