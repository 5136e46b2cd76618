"""The ladder down: each step has its time, hurry brings it forward, and the last exchange gets what is left."""

import pytest

from supervisor.config import LAST_EXCHANGE_S, REAP_S
from supervisor.master.model.shutdown_schedule import HURRIED_EXCHANGE_S, ShutdownSchedule
from supervisor.master.model.states import Phase


@pytest.fixture
def schedule():
    return ShutdownSchedule.of(100.0, patience_s=25.0, grace_s=3.0)


def test_the_steps_come_in_their_order(schedule):
    steps = (Phase.DRAINING, Phase.INTERRUPTING, Phase.KILLING, Phase.LEAVING)
    assert [schedule.next_at(phase) for phase in steps] == [
        125.0,
        128.0,
        128.0 + REAP_S,
        128.0 + REAP_S + LAST_EXCHANGE_S,
    ]


def test_all_of_it_takes_at_most_30_seconds_by_default(schedule):
    assert schedule.leave_by_at - schedule.began_at <= 30.0


def test_hurry_brings_the_kill_forward_and_leaves_the_time_to_reap(schedule):
    schedule.hurry(110.0)
    steps = (Phase.DRAINING, Phase.INTERRUPTING, Phase.KILLING)
    assert [schedule.next_at(phase) for phase in steps] == [110.0, 110.0, 110.0 + REAP_S]


def test_hurry_never_puts_a_step_off(schedule):
    schedule.hurry(126.0)
    assert (schedule.interrupt_at, schedule.kill_at) == (125.0, 126.0)
    schedule.hurry(500.0)
    assert (schedule.interrupt_at, schedule.kill_at, schedule.hand_back_at) == (125.0, 126.0, 126.0 + REAP_S)


def test_whoever_is_in_a_hurry_does_not_wait_for_an_outage_to_end(schedule):
    schedule.hurry(110.0)
    assert schedule.leave_by_at == 110.0 + REAP_S + HURRIED_EXCHANGE_S
    schedule.hurry(127.0)
    assert schedule.leave_by_at == 110.0 + REAP_S + HURRIED_EXCHANGE_S


def test_the_last_exchange_gets_what_is_left(schedule):
    schedule.arrived(101.0)
    assert schedule.next_at(Phase.LEAVING) == 128.0 + REAP_S + LAST_EXCHANGE_S


def test_and_at_least_a_second_where_nothing_is_left(schedule):
    schedule.arrived(129.9)
    assert schedule.next_at(Phase.LEAVING) == 129.9 + LAST_EXCHANGE_S


def test_and_no_more_than_a_second_where_it_would_be_in_vain(schedule):
    schedule.arrived(101.0)
    schedule.in_vain(101.0)
    schedule.in_vain(101.5)
    assert schedule.next_at(Phase.LEAVING) == 101.0 + LAST_EXCHANGE_S


def test_a_good_bye_that_was_lost_is_said_again(schedule):
    schedule.arrived(101.0)
    schedule.in_vain(101.5, 2.5)
    schedule.in_vain(102.0, 2.5)
    assert schedule.next_at(Phase.LEAVING) == 104.0 + LAST_EXCHANGE_S


def test_the_time_left_is_that_until_the_very_end(schedule):
    assert [schedule.left_s(at) for at in (100.0, 125.0, 131.0)] == [30.0, 5.0, 0.0]


def test_no_step_is_due_after_the_time_to_leave(schedule):
    schedule.leave_by_at = 101.0
    assert {schedule.next_at(phase) for phase in Phase} == {101.0}


def test_without_patience_and_grace_it_goes_straight_down():
    schedule = ShutdownSchedule.of(100.0, 0.0, 0.0)
    assert schedule.next_at(Phase.DRAINING) == schedule.next_at(Phase.INTERRUPTING) == 100.0
