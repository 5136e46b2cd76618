"""`leasehold status` and `leasehold top` show some ends of jobs, in fixed words."""

import pytest

from supervisor.engine.model.outcomes import Completed, Died, Failed, Released, Retried, Returned, Unknown
from supervisor.master.model.counts import MasterCounts
from supervisor.master.model.outcome_log import say
from supervisor.master.model.recent_failures import RecentFailures
from supervisor.ops.events import Events
from tests.parts import held_of


def end(ends, make, verdict, number=1, **lease):
    held = held_of(number, klass="email.send", **lease)
    held.outcome = make(held.lease)
    ends.remember(held, say(Events(-1, "json", "error"), MasterCounts(), held, verdict))
    return [(each["what"], each["why"], each["message"]) for each in ends.status()]


@pytest.mark.parametrize(
    ("make", "verdict", "told"),
    [
        (lambda lease: Retried(lease, 2.5, "ValueError", "no"), 4, ("retried", "ValueError", "no")),
        (lambda lease: Retried(lease, 2.5, "ValueError", "no"), 0, ("retried", "ValueError", "no")),
        (lambda lease: Retried(lease, 2.5, "ValueError", "no"), -1, ("failed", "ValueError", "no")),
        (lambda lease: Failed(lease, "g", "no"), True, ("failed", "g", "no")),
        (lambda lease: Died(lease, "SIGSEGV", "the child …"), "waiting", ("died", "SIGSEGV", "the child …")),
        (lambda lease: Released(lease, started=True, reason="drain"), True, ("released", "drain", "")),
    ],
)
def test_job_that_did_not_complete_is_remembered(make, verdict, told):
    assert end(RecentFailures(), make, verdict) == [told]


@pytest.mark.parametrize(
    ("make", "verdict"),
    [
        (lambda lease: Completed(lease), True),
        (lambda lease: Returned(lease), True),
        (lambda lease: Released(lease, started=False), True),
        (lambda lease: Unknown(lease, 10.0), True),
        (lambda lease: Failed(lease, "g", "no"), False),
        (lambda lease: Died(lease, "SIGSEGV"), None),
    ],
)
def test_completed_unstarted_and_lost_jobs_are_not_remembered(make, verdict):
    assert end(RecentFailures(), make, verdict) == []


def test_interrupted_at_most_once_job_has_failed():
    interrupted = end(RecentFailures(), lambda lease: Released(lease, reason="drain"), True, at_most_once=True)
    assert interrupted == [("failed", "drain", "")]


def test_last_twenty_are_kept_latest_first():
    ends = RecentFailures()
    for number in range(1, 31):
        end(ends, lambda lease: Failed(lease, "g", "x" * 1000), True, number)
    told = ends.status()
    assert [each["jid"] for each in told] == [f"j{number}" for number in range(30, 10, -1)]
    assert {len(each["message"]) for each in told} == {200}
    assert {(each["klass"], each["queue"]) for each in told} == {("email.send", "q")}
