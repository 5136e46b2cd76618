"""The schedule of a drain: when each step is due, and what a hurry and an outage change."""

import pytest

from supervisor.config import LAST_EXCHANGE_S, REAP_S
from supervisor.master.model.shutdown_schedule import HURRIED_EXCHANGE_S, ShutdownSchedule
from supervisor.master.model.states import Phase


@pytest.fixture
def schedule():
    return ShutdownSchedule.of(100.0, patience_s=25.0, grace_s=3.0)


def test_steps_come_in_order(schedule):
    steps = (Phase.DRAINING, Phase.INTERRUPTING, Phase.KILLING, Phase.LEAVING)
    assert [schedule.next_at(phase) for phase in steps] == [
        125.0,
        128.0,
        128.0 + REAP_S,
        128.0 + REAP_S + LAST_EXCHANGE_S,
    ]


def test_drain_takes_at_most_30_seconds_by_default(schedule):
    assert schedule.leave_by_at - schedule.began_at <= 30.0


def test_hurry_kills_at_once_and_leaves_time_to_reap(schedule):
    schedule.hurry(110.0)
    steps = (Phase.DRAINING, Phase.INTERRUPTING, Phase.KILLING)
    assert [schedule.next_at(phase) for phase in steps] == [110.0, 110.0, 110.0 + REAP_S]


def test_hurry_delays_no_step(schedule):
    schedule.hurry(126.0)
    assert (schedule.interrupt_at, schedule.kill_at) == (125.0, 126.0)
    schedule.hurry(500.0)
    assert (schedule.interrupt_at, schedule.kill_at, schedule.hand_back_at) == (125.0, 126.0, 126.0 + REAP_S)


def test_hurry_bounds_the_wait_for_redis(schedule):
    schedule.hurry(110.0)
    assert schedule.leave_by_at == 110.0 + REAP_S + HURRIED_EXCHANGE_S
    schedule.hurry(127.0)
    assert schedule.leave_by_at == 110.0 + REAP_S + HURRIED_EXCHANGE_S


def test_last_exchange_gets_the_time_left(schedule):
    schedule.arrived(101.0)
    assert schedule.next_at(Phase.LEAVING) == 128.0 + REAP_S + LAST_EXCHANGE_S


def test_last_exchange_gets_at_least_a_second(schedule):
    schedule.arrived(129.9)
    assert schedule.next_at(Phase.LEAVING) == 129.9 + LAST_EXCHANGE_S


def test_vain_last_exchange_gets_at_most_a_second(schedule):
    schedule.arrived(101.0)
    schedule.in_vain(101.0)
    schedule.in_vain(101.5)
    assert schedule.next_at(Phase.LEAVING) == 101.0 + LAST_EXCHANGE_S


def test_lost_good_bye_is_tried_again(schedule):
    schedule.arrived(101.0)
    schedule.in_vain(101.5, 2.5)
    schedule.in_vain(102.0, 2.5)
    assert schedule.next_at(Phase.LEAVING) == 104.0 + LAST_EXCHANGE_S


def test_left_s_counts_to_the_exit(schedule):
    assert [schedule.left_s(at) for at in (100.0, 125.0, 131.0)] == [30.0, 5.0, 0.0]


def test_no_step_is_due_after_the_exit(schedule):
    schedule.leave_by_at = 101.0
    assert {schedule.next_at(phase) for phase in Phase} == {101.0}


def test_drain_without_patience_and_grace_kills_at_once():
    schedule = ShutdownSchedule.of(100.0, 0.0, 0.0)
    assert schedule.next_at(Phase.DRAINING) == schedule.next_at(Phase.INTERRUPTING) == 100.0
