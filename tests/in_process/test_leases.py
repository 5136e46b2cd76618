"""When a worker inside of an application leases, and what follows from a grant. Without a server."""

from types import SimpleNamespace

import pytest

from supervisor.engine.commands.leasing import Grant
from supervisor.engine.worker.acknowledging import Acknowledging
from supervisor.engine.worker.leaser import Leaser
from supervisor.in_process.demand import LeaseDemand
from supervisor.in_process.leases import JobLeases
from tests.in_process.played import PlayedParts
from tests.parts import lease_of


class Played(PlayedParts):
    """Has room for three jobs."""

    def __init__(self, *queues):
        super().__init__(*queues)
        self.demand = LeaseDemand(self.jobs, self.serving, ["once"], lambda: self.told.update(["news"]))
        self.waited_s, self.put = [], []
        waits = SimpleNamespace(wait_for_job=lambda _queues, longest_s: self.waited_s.append(longest_s))
        upkeep = SimpleNamespace(put_due=self.put.append)
        leaser = Leaser(self.identity, self.serving, self.times, Acknowledging(0, self.times))
        self.leases = JobLeases(self.demand, leaser, self.renewals, self.jobs, waits, upkeep)

    def grant(self, *tokens, next_at_unix=None, due=()):
        """Grant these to the lease that is due."""
        [part] = self.leases.parts(0.0)
        leases = [lease_of(token) for token in tokens]
        for lease in leases:
            lease.expires_unix = 1009.0
        part.then(Grant(1000.0, next_at_unix, leases, list(due)))


@pytest.fixture
def played():
    return Played()


def test_lease_wants_as_many_jobs_as_there_is_room_for(played):
    wanted = played.demand.take()
    assert (wanted.count, wanted.starting, wanted.woken, wanted.once) == (3, 3, False, ["once"])
    assert played.demand.take() is None
    played.demand.lease_soon(woken=True)
    assert played.demand.take().woken
    played.demand.lease_soon()
    assert not played.demand.take().woken


def test_full_or_draining_worker_leases_nothing(played):
    played.jobs.room = 0
    assert not played.demand.is_due
    played.jobs.room = 1
    assert played.demand.is_due
    played.demand.close()
    assert not played.demand.is_due


def test_worker_whose_globs_match_nothing_only_wants_jobs():
    played = Played("mail-*")
    assert (played.demand.wants_jobs, played.demand.is_due, played.leases.parts(0.0)) == (True, False, [])


def test_full_grant_is_followed_by_another_lease(played):
    played.grant(1, 2, 3)
    assert (played.waited_s, played.demand.is_due) == ([], False)
    played.jobs.room = 1
    assert played.demand.is_due


def test_smaller_grant_is_followed_by_a_wait_until_the_next_job_is_due(played):
    played.grant(1, next_at_unix=1000.5)
    played.demand.lease_soon()
    played.grant(2, next_at_unix=1000.0)
    assert played.waited_s == [0.5, 0.05]
    assert [lease.token for lease in played.book.leases] == [1, 2]


def test_due_recurrences_are_put(played):
    played.grant(due=["cron"])
    assert [grant.due for grant in played.put] == [["cron"]]


def test_lost_lease_is_asked_for_again(played):
    [part] = played.leases.parts(0.0)
    part.lost()
    assert played.demand.is_due
