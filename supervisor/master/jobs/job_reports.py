"""Keeps what running jobs report, stream and ask until the next exchange. Runs in the master."""

from typing import Final

from supervisor import clock
from supervisor.engine.model.chunks import check_chunk
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.ledgers import Ledgers
from supervisor.messages import unpack_checkpoint, unpack_progress, unpack_wanted

#: A child reports progress at most twice a second. The reserve is for reports that wait while child or master stands
#: still.
_REPORTS: Final = 1000
_REPORTS_PER_S: Final = 4


class JobReports:
    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers

    def progress(self, running: HeldLease, body: bytes) -> None:
        """Keep the job's progress for the next exchange. Raises ValueError for nonsense, and for too many reports."""
        self._count(running)
        progress = unpack_progress(body)
        if not running.lost_reason:
            self._ledgers.by_shard[running.shard].reports.add_progress(running, progress)

    def checkpoint(self, child: ChildHandle, running: HeldLease, body: bytes) -> None:
        """Keep the job's checkpoint for the next exchange. Raises ValueError for nonsense, and for too many reports.

        The job waits for the answer of Redis (`LeaseAnswers.stored`), unless it was interrupted while it waited.
        """
        checkpoint = unpack_checkpoint(body)
        if running.lost_reason:
            child.talk.answer_checkpoint(checkpoint.number, kept=False)
        elif not self._ledgers.by_shard[running.shard].reports.add_checkpoint(running, checkpoint):
            self._count(running)

    def results_wanted(self, running: HeldLease, body: bytes) -> None:
        """The job wants results of its parents, and waits. Raises ValueError for nonsense, and for too many of them.

        A handler that was interrupted while it waited may ask again.
        """
        if not self._ledgers.by_shard[running.shard].reports.add_wanted(running, unpack_wanted(body)):
            self._count(running)

    def chunk(self, running: HeldLease, body: bytes) -> None:
        """Keep a chunk for the next exchange. Raises ValueError for nonsense, and for more than may be under way."""
        check_chunk(body)
        if not running.lost_reason:
            self._ledgers.by_shard[running.shard].chunks.add(running, body)

    def _count(self, running: HeldLease) -> None:
        running.reports.count += 1
        if running.reports.count > _REPORTS + _REPORTS_PER_S * (clock.monotonic() - running.started_at):
            raise ValueError("it reports too often")
