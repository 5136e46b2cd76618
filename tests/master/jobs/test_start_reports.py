"""The master reports a start before or after it sends the job. Children are forks of the test."""

import pytest

from supervisor.messages import HandlerSettings
from tests.parts import grant_of, holding, lease_of

KINDS_TO_KNOW = [{"at_most_once": True}, {"was_lost": True}, {"deaths": 1}, {"interruptions": 1}]


@pytest.fixture
def placed(desk):
    """Place these leases at idle children. Return the tokens of each report, with how many jobs were sent by then."""

    def place(*leases, are_first=False, reports_starts=True):
        each = desk(processes=str(len(leases)))
        children = [each.child(holding) for _ in leases]
        reported = []

        def report(started):
            reported.append(([lease.token for lease in started], sum(len(child.sent) for child in children)))
            return True

        each.report, each.starts.are_first = report, are_first
        each.intake.accept(grant_of(leases), {"k": HandlerSettings()})
        each.placing.place(reports_starts)
        each.starts.finish()
        assert all(each.ledger.find(lease.token).start_reported for lease in leases if reports_starts)
        return reported

    return place


@pytest.fixture
def cut(desk):
    """Place a lease at an idle child while the connection is lost. Return the desk."""

    def place(lease):
        each = desk(processes="1")
        each.child(holding)
        each.intake.accept(grant_of([lease]), {"k": HandlerSettings()})
        each.report = lambda _started: False
        each.placing.place(reports_starts=True)
        each.starts.finish()
        return each

    return place


def test_start_is_reported_right_after_the_job_is_sent(placed):
    assert placed(lease_of(1)) == [([1], 1)]


@pytest.mark.parametrize("kind", KINDS_TO_KNOW, ids=lambda kind: next(iter(kind)))
def test_start_that_must_be_known_is_reported_first(placed, kind):
    assert placed(lease_of(1, **kind)) == [([1], 0)]


@pytest.mark.parametrize("kind", KINDS_TO_KNOW, ids=lambda kind: next(iter(kind)))
def test_start_that_must_be_known_is_reported_first_however_its_job_was_leased(placed, kind):
    assert placed(lease_of(1, **kind), lease_of(2), reports_starts=False) == [([1], 0)]


def test_each_start_of_a_lease_that_may_repeat_is_reported_first(placed):
    assert placed(lease_of(1), lease_of(2), are_first=True) == [([1], 0), ([2], 1)]


def test_failures_do_not_change_the_order(placed):
    assert placed(lease_of(1, failures=2)) == [([1], 1)]


def test_starts_are_reported_eight_at_a_time(placed):
    assert placed(*map(lease_of, range(1, 11))) == [([1, 2, 3, 4, 5, 6, 7, 8], 8), ([9, 10], 10)]


def test_a_first_report_takes_earlier_ones_along(placed):
    assert placed(lease_of(1), lease_of(2, deaths=1), lease_of(3)) == [([1, 2], 1), ([3], 3)]


def test_job_whose_first_report_fails_stays_ready(cut):
    desk = cut(lease_of(1, deaths=1))
    assert [held.lease.token for held in desk.ledgers.ready] == [1]
    assert not desk.ledger.find(1).start_reported
    assert [len(child.sent) for child in desk.slots] == [0]


def test_job_that_must_be_known_leaves_no_part_of_a_turn_undone(desk):
    """A report that finds Redis lost is no exception for those who take jobs back meanwhile."""
    each = desk(processes="2")
    busy = each.child(holding)
    each.give(lease_of(1), starting=1)
    each.child(holding)
    each.report = lambda _started: False
    each.intake.accept(grant_of([lease_of(2, deaths=1)]), {"k": HandlerSettings()})
    each.placing.withdraw(busy)
    assert [held.lease.token for held in each.ledgers.ready] == [2]
    each.report = lambda _started: True
    each.placing.place()
    assert not each.ledgers.ready and each.ledger.find(2).start_reported


def test_running_job_whose_report_fails_counts_as_reported(cut):
    """The next connection reports all running jobs that have been reported."""
    desk = cut(lease_of(1))
    assert not desk.ledgers.ready
    assert desk.ledger.find(1).start_reported
    assert [len(child.sent) for child in desk.slots] == [1]


def test_child_whose_report_finds_the_connection_lost_has_its_trust_domain(desk):
    each = desk(processes="8", jobs_per_child="0")
    children = [each.child(holding) for _ in range(8)]
    handlers = {"k": HandlerSettings(), "shut": HandlerSettings(sandbox="strict", network=False)}
    each.intake.accept(grant_of([lease_of(n) for n in range(1, 9)]), handlers)
    each.report = lambda _started: False
    each.placing.place(reports_starts=True)
    assert all(child.trust_domain is not None for child in children)
    assert len(each.events("job.started")) == 8


def test_report_that_failed_is_not_made_by_the_next_lease(desk):
    desk = desk(processes="2")
    first, second = desk.child(holding), desk.child(holding)
    reported = []

    def report(started):
        reported.append([lease.token for lease in started])
        return len(reported) > 1

    desk.report = report
    desk.intake.accept(grant_of([lease_of(1)]), {"k": HandlerSettings()})
    desk.placing.place(reports_starts=True)
    assert not desk.starts.finish()
    desk.intake.accept(grant_of([lease_of(2)]), {"k": HandlerSettings()})
    desk.placing.place(reports_starts=True)
    desk.starts.finish()
    assert reported == [[1], [2]]
    assert len(first.sent) == len(second.sent) == 1
