"""An exchange that is not answered: what is sent again, and how the worker resumes. With a played server."""

import asyncio

import pytest

from supervisor.engine.commands.leasing import LOST, Renewals, ResumeResult
from supervisor.engine.model.errors import OutcomeUnknown, StoreUnavailable
from supervisor.engine.model.outcomes import Completed
from supervisor.in_process.patience import Pauses
from supervisor.in_process.resumption import Resumption
from supervisor.in_process.session import WorkerSession
from tests.in_process.played import PlayedParts, refusal
from tests.parts import lease_of


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    async def wait(_self):
        await asyncio.sleep(0)

    monkeypatch.setattr(Pauses, "wait", wait)


class Played(PlayedParts):
    def __init__(self):
        super().__init__()
        for token in (1, 2):
            self.jobs.begin(lease_of(token))
        self.book.end(Completed(self.book.leases[0]))
        resumption = Resumption(
            self.calls, self.identity, self.times, self.book, self.jobs, self.renewals, self.lookups
        )  # fmt: skip
        self.session = WorkerSession(self.calls, self.identity, None, resumption)

    def exchange(self):
        asyncio.run(self.session.exchange(self.settlements.parts(0.0)))

    @property
    def held(self):
        return [lease.token for lease in self.book.leases]


@pytest.fixture
def played():
    return Played()


def test_answered_exchange_is_all_that_is_sent(played):
    played.exchange()
    assert played.calls.names == ["settle"]
    assert (played.identity.number, played.held, played.book.counts["completed"]) == (1, [2], 1)


def test_outcome_of_unknown_fate_is_sent_again_under_its_number(played):
    played.calls.answers = {"settle": [OutcomeUnknown("cut"), OutcomeUnknown("cut")], "resume": [StoreUnavailable("x")]}
    played.exchange()
    assert played.calls.names == ["settle", "settle", "settle", "timing", "resume", "timing", "resume"]
    assert played.calls.sent[0] is played.calls.sent[1] is played.calls.sent[2]
    assert (played.held, played.book.counts["completed"], played.told) == ([2], 1, {"connected": 1})


def test_outcome_that_was_not_sent_goes_with_the_next_exchange(played):
    played.calls.answers = {"settle": [StoreUnavailable("away")]}
    played.exchange()
    assert played.calls.names == ["settle", "timing", "resume"]
    assert (played.held, played.book.has_outcomes) == ([1, 2], True)


def test_lease_that_was_lost_in_an_outage_stops_its_job(played):
    played.calls.answers = {
        "settle": [StoreUnavailable("away")],
        "resume": [ResumeResult(Renewals([1.0, LOST], 0.0, {}), 0)],
    }
    played.exchange()
    assert (played.jobs.lost, played.held) == ({2: "lease-lost"}, [1])


def test_forgotten_worker_gives_all_up_and_takes_another_name(played):
    name = played.identity.name
    played.calls.answers = {"settle": [StoreUnavailable("away")], "resume": [refusal("DEREGISTERED")]}
    played.exchange()
    assert played.calls.names == ["settle", "timing", "resume", "resume"]
    assert (played.jobs.lost, played.book.has_outcomes) == ({1: "lease-lost", 2: "lease-lost"}, False)
    assert played.identity.name != name
    assert (played.identity.number, played.told) == (1, {"begin_anew": 1, "connected": 1})


def test_error_that_is_no_outage_ends_the_exchanges(played):
    played.calls.answers = {"settle": [LookupError("a bug")]}
    with pytest.raises(LookupError):
        played.exchange()


def test_full_memory_of_redis_is_no_outage(played):
    played.calls.answers = {"settle": [refusal("OOM command not allowed")]}
    played.exchange()
    assert played.calls.names == ["settle"]
    assert (played.held, played.book.has_outcomes) == ([1, 2], True)  # this one needs none
