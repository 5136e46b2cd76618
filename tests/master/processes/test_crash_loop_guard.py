"""The crash loop guard: when it delays forks after failed starts, and when it gives up."""

import pytest

from supervisor.master.model.breaker import MOST
from supervisor.master.processes.crash_loop_guard import PROBATION_S, REFUSED_RETRY_S, CrashLoopGuard


class Clock:
    now_at = 1000.0


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("supervisor.clock.monotonic", lambda: clock.now_at)
    return clock


@pytest.fixture
def guard(desk, clock):
    return CrashLoopGuard(desk().log)


@pytest.fixture
def ask_for_child(new_child, clock):
    """Returns a child that is requested now, later than the one before."""

    def ask(number):
        clock.now_at += 0.001
        return new_child(number)

    return ask


def fail(guard, clock, children):
    for child in children:
        clock.now_at += 0.001
        guard.record_failure(child, "a child ended", "")


def test_waits_double_with_each_failed_start(guard, clock, ask_for_child):
    waits = []
    for number in range(1, 4):
        fail(guard, clock, [ask_for_child(number)])
        waits.append(round(guard.fork_after_at - clock.now_at, 3))
    assert waits == [0.1, 0.2, 0.4]
    assert guard.is_failing and guard.failure is None


def test_children_requested_together_count_as_one_failure(guard, clock, ask_for_child):
    fail(guard, clock, [ask_for_child(number) for number in range(1, 10)])
    assert round(guard.fork_after_at - clock.now_at, 1) == 0.1


def test_the_guard_gives_up_after_six_failures_in_a_row(guard, clock, ask_for_child):
    for number in range(1, MOST + 1):
        assert guard.failure is None
        fail(guard, clock, [ask_for_child(number)])
    assert guard.failure is not None
    assert guard.failure.message == "a child ended, 6 times in a row"


def test_failures_after_a_ready_child_are_an_outage_for_ten_seconds(guard, clock, ask_for_child):
    guard.on_ready(ask_for_child(1))
    for number in range(2, MOST + 4):
        fail(guard, clock, [ask_for_child(number)])
    assert guard.failure is None
    clock.now_at += 10.0
    fail(guard, clock, [ask_for_child(30)])
    assert guard.failure is not None


def test_first_ready_child_ends_the_failures_with_its_first_job(guard, clock, ask_for_child):
    fail(guard, clock, [ask_for_child(1)])
    child = ask_for_child(2)
    guard.on_ready(child)
    guard.end_probation(clock.now_at)
    assert guard.is_failing
    child.served = 1
    guard.end_probation(clock.now_at)
    assert not guard.is_failing


def test_first_ready_child_that_lives_on_ends_the_failures(guard, clock, ask_for_child):
    fail(guard, clock, [ask_for_child(1)])
    child = ask_for_child(2)
    guard.on_ready(child)
    assert guard.deadline_at() == child.asked_at + PROBATION_S
    guard.end_probation(guard.deadline_at())
    assert not guard.is_failing


def test_child_requested_before_the_failure_proves_nothing(guard, clock, ask_for_child):
    early, failed = ask_for_child(1), ask_for_child(2)
    fail(guard, clock, [failed])
    guard.on_ready(early)
    early.served = 1
    guard.end_probation(clock.now_at)
    assert guard.is_failing


def test_next_ready_child_goes_on_probation_when_the_first_dies(guard, clock, ask_for_child):
    fail(guard, clock, [ask_for_child(1)])
    first, second = ask_for_child(2), ask_for_child(3)
    guard.on_ready(first)
    guard.forget(first)
    guard.on_ready(second)
    assert guard.deadline_at() == second.asked_at + PROBATION_S


def test_refused_fork_is_tried_again_and_counts_as_no_failure(guard, clock):
    guard.retry_later("no child can be forked")
    assert guard.fork_after_at == clock.now_at + REFUSED_RETRY_S
    assert not guard.is_failing


def test_new_code_starts_without_failures(guard, clock, ask_for_child):
    old = ask_for_child(1)
    for number in range(2, MOST + 3):
        fail(guard, clock, [ask_for_child(number)])
    guard.reset()
    assert (guard.failure, guard.fork_after_at, guard.is_failing) == (None, 0.0, False)
    fail(guard, clock, [old])  # requested from the old zygote
    assert not guard.is_failing
