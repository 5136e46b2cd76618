"""Which ends of jobs are remembered for `leasehold status` and `leasehold top`, and in which words."""

import pytest

from supervisor.engine.model.outcomes import Completed, Died, Failed, Released, Retried, Returned, Unknown
from supervisor.master.model.counts import Counts
from supervisor.master.model.outcome_log import say
from supervisor.master.model.recent_failures import RecentFailures
from supervisor.ops.events import Events
from tests.parts import held_of


def end(ends, make, verdict, number=1, **lease):
    held = held_of(number, klass="email.send", **lease)
    held.outcome = make(held.lease)
    ends.remember(held, say(Events(-1, "json", "error"), Counts(), held, verdict))
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
def test_a_job_that_did_not_complete_is_remembered_with_the_reason(make, verdict, told):
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
def test_what_completed_or_never_started_or_was_lost_is_not(make, verdict):
    assert end(RecentFailures(), make, verdict) == []


def test_a_job_that_must_not_run_twice_has_failed_when_it_is_interrupted():
    interrupted = end(RecentFailures(), lambda lease: Released(lease, reason="drain"), True, at_most_once=True)
    assert interrupted == [("failed", "drain", "")]


def test_the_last_twenty_are_kept_the_latest_first_and_each_message_up_to_a_length():
    ends = RecentFailures()
    for number in range(1, 31):
        end(ends, lambda lease: Failed(lease, "g", "x" * 1000), True, number)
    told = ends.status()
    assert [each["jid"] for each in told] == [f"j{number}" for number in range(30, 10, -1)]
    assert {len(each["message"]) for each in told} == {200}
    assert {(each["klass"], each["queue"]) for each in told} == {("email.send", "q")}
