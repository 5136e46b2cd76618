"""Reads the results of parents for the running jobs that ask for them. Runs in the master. Does no I/O.

A job asks for a few at a time, and waits for the answer. An exchange takes few questions, because an answer may have
megabytes.
"""

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Final

from supervisor.engine.commands import parent_results
from supervisor.engine.commands.parent_results import ParentResults
from supervisor.engine.worker.exchange import Part
from supervisor.master.jobs.lease_answers import LeaseAnswers
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.ledger import Ledger
from supervisor.master.redis.speaker import Speaker
from supervisor.messages import ResultsPage, ResultsWanted

_MOST_AT_ONCE: Final = 4


class Questions(Speaker):
    def __init__(self, ledger: Ledger, answers: LeaseAnswers) -> None:
        self._waiting = ledger.reports.questions
        self._answers = answers

    def parts(self, now_at: float) -> Sequence[Part]:
        tokens = list(islice(self._waiting, _MOST_AT_ONCE))
        return [self._part(*self._waiting.pop(token)) for token in tokens]

    def _part(self, held: HeldLease, wanted: ResultsWanted) -> Part:
        command = parent_results.read(held.lease.jid, wanted.first, wanted.most)
        return Part(
            command, partial(self._answer, held, wanted), must=True, lost=partial(self._ask_again, held, wanted)
        )

    def _answer(self, held: HeldLease, wanted: ResultsWanted, found: ParentResults) -> None:
        self._answers.results(held, ResultsPage(wanted.number, *found))

    def _ask_again(self, held: HeldLease, wanted: ResultsWanted) -> None:
        self._waiting.setdefault(held.lease.token, (held, wanted))
