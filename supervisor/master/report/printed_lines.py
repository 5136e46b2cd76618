"""Logs the lines that jobs print, each with the job that has printed it. Runs in the master."""

from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.ledger import Ledger
from supervisor.ops.events import Events


class PrintedLines:
    def __init__(self, ledger: Ledger, events: Events) -> None:
        self._ledger = ledger
        self._events = events

    def on_line(self, child: ChildHandle, token: int, line: bytes) -> None:
        """`token`: of the job, by the last mark in the child's output."""
        held = self._ledger.find(token)
        if held is None or held.child_number != child.number:  # a handler can forge a mark
            held = child.printing
        lease = held.lease if held is not None else None
        self._events.emit(
            "job.printed", jid=lease and lease.jid, klass=lease and lease.klass, child=child.number,
            line=line.decode(errors="replace"),
        )  # fmt: skip
