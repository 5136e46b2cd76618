"""The master chooses an idle child, a busy one or none for a job."""

import pytest

from supervisor import clock
from supervisor.master.jobs.child_choice import RUN_S
from supervisor.master.model.job_pipe import MAX_SENT
from supervisor.master.model.states import ChildState
from tests.parts import held_of

QUICK_S = 0.0001

# idle children


@pytest.mark.parametrize("kind", [{"persistent": True}, {"at_most_once": True}, {"deaths": 1}, {"was_lost": True}])
def test_some_jobs_wait_for_an_idle_child(pool, kind):
    pool = pool(processes=1)
    pool.pace.learn("k", QUICK_S)
    assert pool.send(held_of(1, QUICK_S)) == 1
    assert pool.send(held_of(2, QUICK_S, **kind)) is None
    assert pool.send(held_of(3, QUICK_S)) == 1
    pool.child(1).answered(0.0)
    pool.end(1, ChildState.IDLE)
    assert pool.send(held_of(2, QUICK_S, **kind)) == 1


def test_no_more_jobs_run_than_there_are_processes(pool):
    pool = pool(processes=1, children=3)
    assert pool.send(held_of(1)) == 1
    assert pool.choice.choose(held_of(2)) is None


def test_a_killed_child_counts_as_busy_until_its_end_is_known(pool):
    pool = pool(processes=1, children=2)
    pool.send(held_of(1))
    pool.child(1).kill("a test")
    assert pool.choice.choose(held_of(2)) is None
    pool.child(1).answered(0.0)
    assert pool.choice.choose(held_of(2)).number == 2


def test_leaving_and_killed_children_get_no_job(pool):
    pool = pool(processes=2, jobs_per_child=1, children=2)
    pool.send(held_of(1))
    pool.end(1, ChildState.LEAVING)
    pool.child(2).kill("a test")
    assert pool.choice.choose(held_of(2)) is None


def test_a_retired_child_gets_no_job(pool):
    pool = pool(processes=2)
    pool.child(1).retire("the code was reloaded")
    assert pool.send(held_of(1)) == 2
    assert pool.send(held_of(2)) is None


def test_serial_jobs_run_one_at_a_time(pool):
    pool = pool(processes=2)
    pool.admission.run_serially(clock.monotonic() + 60)
    assert pool.capacity.to_lease() == (1, 1)
    assert pool.send(held_of(1)) == 1
    assert pool.send(held_of(2)) is None
    for _ in range(3):
        pool.admission.job_ended()
    assert pool.send(held_of(2)) == 2


# an idle child or a busy one


def test_an_idle_child_comes_before_one_that_is_free_soon(pool):
    pool = pool(processes=2)
    assert [pool.send(held_of(token, QUICK_S)) for token in (1, 2)] == [1, 2]


def test_very_short_jobs_wait_for_a_busy_child(pool, monkeypatch):
    monkeypatch.setattr(clock, "monotonic", lambda: 1000.0)  # all within a moment, however busy the machine is
    pool, tiny_s = pool(processes=2), QUICK_S / 5
    pool.pace.learn("k", tiny_s)
    in_a_row = round(RUN_S / tiny_s)
    assert [pool.send(held_of(i, tiny_s)) for i in range(1, in_a_row + 2)] == [1] * in_a_row + [2]
    pool.pace.learn("other", 2 * QUICK_S)
    assert pool.send(held_of(in_a_row + 2, QUICK_S)) == 2


def test_no_job_waits_behind_an_overdue_one_beside_an_idle_child(pool):
    pool, tiny_s = pool(processes=2), QUICK_S / 5
    pool.pace.learn("k", tiny_s)
    assert pool.send(held_of(1, tiny_s)) == 1
    pool.child(1).sent[0].started_at -= RUN_S
    assert pool.send(held_of(2, tiny_s)) == 2


def test_a_job_that_may_not_wait_goes_to_an_idle_child(pool):
    pool, tiny_s = pool(processes=3), QUICK_S / 5
    pool.pace.learn("k", tiny_s)
    assert pool.send(held_of(1, tiny_s)) == 1
    assert pool.send(held_of(2, tiny_s, at_most_once=True)) == 2
    assert pool.send(held_of(3, None)) == 3


def test_a_job_reported_as_started_does_not_wait(pool):
    pool, tiny_s = pool(processes=2), QUICK_S / 5
    pool.pace.learn("k", tiny_s)
    assert [pool.send(held_of(token, tiny_s, start_reported=True)) for token in (1, 2)] == [1, 2]


# busy children


def test_the_child_that_is_free_soonest_gets_the_job(pool):
    pool = pool(processes=2)
    pool.send(held_of(1, 0.004))
    pool.send(held_of(2, 0.001))
    assert [pool.send(held_of(token, 0.002)) for token in (3, 4, 5)] == [2, 2, 1]


def test_a_job_of_unknown_run_time_is_not_sent_ahead(pool):
    pool = pool(processes=1)
    pool.send(held_of(1, QUICK_S))
    assert pool.choice.choose(held_of(2, None)) is None


def test_no_job_waits_behind_one_of_unknown_run_time(pool):
    pool = pool(processes=1)
    pool.send(held_of(1, None))
    assert pool.choice.choose(held_of(2, QUICK_S)) is None


def test_slow_jobs_neither_wait_nor_let_others_wait(pool):
    pool = pool(processes=2)
    pool.send(held_of(1, 60.0))
    pool.send(held_of(2, QUICK_S))
    assert pool.choice.choose(held_of(3, 60.0)) is None
    assert pool.send(held_of(4, QUICK_S)) == 2


def test_only_jobs_that_start_in_time_are_sent_ahead(pool):
    pool = pool(processes=1)
    sent = 0
    while pool.send(held_of(sent + 1, 0.0045)):
        sent += 1
    assert sent == 4


def test_without_time_ahead_nothing_is_sent_ahead(pool):
    pool = pool(processes=1, ahead_s=0.0)
    pool.send(held_of(1, QUICK_S))
    assert pool.choice.choose(held_of(2, QUICK_S)) is None


@pytest.mark.parametrize("end", ["deaths", "interruptions"])
def test_after_a_death_or_interruption_a_job_is_never_sent_ahead(pool, end):
    pool = pool(processes=2)
    pool.send(held_of(1, QUICK_S))
    assert pool.send(held_of(2, QUICK_S, **{end: 1})) == 2
    assert pool.choice.choose(held_of(3, QUICK_S, **{end: 1})) is None
    assert pool.choice.choose(held_of(4, QUICK_S)) is not None


def test_a_child_on_its_last_job_is_sent_nothing_ahead(pool):
    pool = pool(processes=1, jobs_per_child=3)
    assert [pool.send(held_of(token, QUICK_S)) for token in (1, 2, 3, 4)] == [1, 1, 1, None]
    assert pool.slots.is_done(pool.child(1))
    pool.child(1).answered(0.0)
    assert pool.choice.choose(held_of(5, QUICK_S)) is None


def test_with_one_job_per_child_nothing_is_sent_ahead(pool):
    pool = pool(processes=1, jobs_per_child=1)
    pool.send(held_of(1, QUICK_S))
    assert pool.choice.choose(held_of(2, QUICK_S)) is None


def test_a_child_that_overran_gets_no_job_before_its_answer(pool):
    pool = pool(processes=1)
    pool.send(held_of(1, QUICK_S))
    child = pool.child(1)
    child.overran = True
    assert pool.choice.choose(held_of(2, QUICK_S)) is None
    pool.end(1, ChildState.IDLE)
    pool.send(held_of(3, QUICK_S))
    assert pool.choice.choose(held_of(4, QUICK_S)) is child


# the room of a child's socket


def test_a_child_is_full_with_128_jobs(pool):
    pool = pool(processes=1)
    sent = 0
    while pool.send(held_of(sent + 1, 1e-9)):
        sent += 1
    assert sent == MAX_SENT


@pytest.mark.parametrize(
    "size", [100, 700, 850, 950, 1700, 1900, 3700, 3900, 7800, 8000, 16_000, 16_384, 16_385, 10**6]
)
def test_a_full_child_never_makes_a_send_wait(pool, size):
    """The kernel charges more than a packet's length, most of all just above a power of two."""
    pool = pool(processes=1)
    sent = 0
    while pool.send(held_of(sent + 1, 1e-9, raw=b"x" * size)):
        sent += 1
    child = pool.child(1)
    assert 5 <= sent == len(child.sent) <= MAX_SENT
    assert child.jobs.charged_bytes <= child.jobs.room_bytes
    assert [held.lease.token for held in child.take_back()] == list(range(1, sent + 1))
    assert (child.jobs.charged_bytes, round(child.jobs.estimated_s, 9)) == (0, 0.0)


def test_a_child_takes_two_dozen_jobs_of_10_kb(pool):
    pool = pool(processes=1)
    sent = 0
    while pool.send(held_of(sent + 1, 1e-9, raw=b"x" * 10_000)):
        sent += 1
    assert sent >= 24


def test_a_child_with_a_smaller_socket_is_sent_less(pool, monkeypatch):
    """An administrator may have lowered net.core.wmem_max."""
    monkeypatch.setattr("supervisor.master.model.job_pipe._SEND_BUFFER_BYTES", 50_000)
    pool = pool(processes=1)
    sent = 0
    while pool.send(held_of(sent + 1, 1e-9, raw=b"x" * 10_000)):
        sent += 1
    assert 5 <= sent <= 6
    assert [held.lease.token for held in pool.child(1).take_back()] == list(range(1, sent + 1))
