"""Logs the lines that jobs print, each with the job that has printed it. Runs in the master."""

from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.ledger import Ledger
from supervisor.ops.events import Events


class PrintedLines:
    def __init__(self, ledger: Ledger, events: Events) -> None:
        self._ledger = ledger
        self._events = events

    def on_line(self, child: ChildHandle, token: int, line: bytes) -> None:
        """`token`: of the job, by the last mark in the child's output."""
        held = self._job_of(child, token)
        lease = held.lease if held is not None else None
        self._events.emit(
            "job.printed", jid=lease and lease.jid, klass=lease and lease.klass, child=child.number,
            line=line.decode(errors="replace"),
        )  # fmt: skip

    def _job_of(self, child: ChildHandle, token: int) -> HeldLease | None:
        """Return the job that has printed the line. None: code of no job has, or of one of several."""
        if child.shared is not None:
            run = child.shared.get(token)
            return None if run is None else run.held
        held = self._ledger.find(token)
        return child.printing if held is None or held.child_number != child.number else held  # a mark can be forged
