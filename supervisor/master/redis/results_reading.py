"""Reads the results of parents for the running jobs that ask for them. Runs in the master. Does no I/O.

A job asks for a few at a time, and waits for the answer. An exchange reads for few jobs, and each job has to wait for
the next by what it has read, because an answer may have megabytes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from supervisor import clock
from supervisor.engine.commands import parent_results
from supervisor.engine.commands.parent_results import ParentResults
from supervisor.engine.worker.exchange import Part
from supervisor.master.jobs.lease_answers import LeaseAnswers
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.ledger import Ledger
from supervisor.master.redis.speaker import TimedSpeaker
from supervisor.messages import ResultsPage, ResultsWanted

_MOST_AT_ONCE: Final = 4
#: Each job may read at this rate.
_BYTES_PER_S: Final = 32 * 2**20


class ResultsReading(TimedSpeaker):
    def __init__(self, ledger: Ledger, answers: LeaseAnswers) -> None:
        self._reports = ledger.reports
        self._answers = answers

    def deadline_at(self) -> float:
        return self._reports.next_wanted_at()

    def parts(self, now_at: float) -> Sequence[Part]:
        return [self._part(held, wanted) for held, wanted in self._reports.take_wanted(now_at, _MOST_AT_ONCE)]

    def _part(self, held: HeldLease, wanted: ResultsWanted) -> Part:
        command = parent_results.read(held.lease.jid, wanted.first, wanted.most)
        then, lost = partial(self._answer, held, wanted), partial(self._reports.keep_wanted, held, wanted)
        return Part(command, then, must=True, lost=lost)

    def _answer(self, held: HeldLease, wanted: ResultsWanted, found: ParentResults) -> None:
        read_bytes = sum(len(each.result or b"") for each in found.results)
        held.reports.next_results_at = clock.monotonic() + read_bytes / _BYTES_PER_S
        self._answers.results(held, ResultsPage(wanted.number, *found))
