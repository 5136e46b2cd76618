"""Logs the lines that jobs print, each with the job that has printed it. Runs in the master."""

from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.ledgers import Ledgers
from supervisor.ops.events import Events


class PrintedLines:
    def __init__(self, ledgers: Ledgers, events: Events) -> None:
        self._ledgers = ledgers
        self._events = events

    def on_line(self, child: ChildHandle, token: int, line: bytes) -> None:
        """`token`: of the job, by the last mark in the child's output."""
        jid, klass = self._job_of(child, token) or (None, None)
        self._events.emit(
            "job.printed", jid=jid, klass=klass, child=child.number, line=line.decode(errors="replace")
        )  # fmt: skip

    def _job_of(self, child: ChildHandle, token: int) -> tuple[str, str] | None:
        """Return jid and klass of the job that has printed the line. None: unknown."""
        if child.shared is not None:
            return child.shared.printed_by(token)
        held = self._ledgers.find(token)
        if held is None or held.child_number != child.number:  # a handler can forge a mark
            held = child.printing
        return None if held is None else (held.lease.jid, held.lease.klass)
