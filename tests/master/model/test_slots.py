"""How many children are forked, how many jobs are leased, and which child gets one."""

import pytest

from supervisor import clock
from supervisor.master.model.job_pipe import MAX_SENT
from supervisor.master.model.pace import Pace
from supervisor.master.model.slots import RUN_S, Slots
from supervisor.master.model.states import ChildState
from tests.parts import held_of

AHEAD_S = 0.02
QUICK_S = 0.0001


@pytest.fixture
def pool(new_child):
    """Makes slots with some idle children, numbered from 1."""

    def make(processes=2, jobs_per_child=0, children=None, ahead_s=AHEAD_S):
        slots = Slots(processes, jobs_per_child, ahead_s, Pace())
        for number in range(1, 1 + (processes if children is None else children)):
            slots.add(new_child(number))
        return slots

    return make


def send(slots, held):
    child = slots.choose(held)
    if child is not None:
        child.send(held)
    return child and child.number


def end(child, state):
    """Its first job has been answered, and it goes on as `state`."""
    child.answered(0.0)
    child.become(state)


# only to idle ones


@pytest.mark.parametrize("kind", [{"persistent": True}, {"at_most_once": True}, {"deaths": 1}])
def test_some_jobs_wait_for_an_idle_child(pool, kind):
    slots = pool(processes=1)
    slots._pace.learn("k", QUICK_S)
    assert send(slots, held_of(1, QUICK_S)) == 1
    assert send(slots, held_of(2, QUICK_S, **kind)) is None
    assert send(slots, held_of(3, QUICK_S)) == 1
    slots.get(1).answered(0.0)
    slots.get(1).answered(0.0)
    slots.get(1).become(ChildState.IDLE)
    assert send(slots, held_of(2, QUICK_S, **kind)) == 1


def test_where_jobs_wait_for_an_idle_child_no_more_are_leased_than_there_are(pool):
    slots = pool(processes=2)
    slots._pace.learn("k", QUICK_S)
    assert slots.capacity()[0] > 2
    slots.only_idle = True
    assert slots.capacity() == (2, 2)
    send(slots, held_of(1))
    assert slots.capacity() == (1, 1)


# one at a time


def test_under_suspicion_jobs_run_one_at_a_time_until_each_has_had_its_turn(pool):
    slots = pool(processes=2)
    slots.beware(clock.monotonic() + 60)
    assert slots.capacity() == (1, 1)
    assert send(slots, held_of(1)) == 1
    assert send(slots, held_of(2)) is None
    for _ in range(3):
        slots.count_answer()
    assert send(slots, held_of(2)) == 2


def test_suspicion_ends_with_its_time(pool):
    slots = pool(processes=2)
    slots.beware(clock.monotonic())
    assert slots.at_once == 2


# how many to fork


def test_an_empty_pool_misses_all_its_processes(pool):
    assert pool(processes=3, children=0).missing() == 3


def test_idle_children_and_those_asked_for_are_enough(pool, new_child):
    slots = pool(processes=2)
    assert slots.missing() == 0
    slots.get(1).send(held_of(1))
    assert slots.missing() == 0


def test_a_child_on_its_last_job_has_a_successor_forked_ahead(pool):
    slots = pool(processes=2, jobs_per_child=1)
    send(slots, held_of(1))
    assert slots.missing() == 1
    send(slots, held_of(2))
    assert slots.missing() == 2


def test_a_child_with_jobs_left_has_none(pool):
    slots = pool(processes=1, jobs_per_child=2)
    send(slots, held_of(1))
    assert slots.missing() == 0
    end(slots.get(1), ChildState.IDLE)
    send(slots, held_of(2))
    assert slots.missing() == 1


def test_who_leaves_or_is_killed_is_replaced_at_once(pool):
    slots = pool(processes=2, jobs_per_child=1)
    send(slots, held_of(1))
    end(slots.get(1), ChildState.LEAVING)
    slots.get(2).kill("a test")
    assert slots.missing() == 2


def test_more_children_than_wanted_are_never_a_negative_number(pool):
    assert pool(processes=1, children=3).missing() == 0


def test_a_number_that_is_free_again_is_used_again(pool):
    slots = pool(processes=3)
    slots.remove(slots.get(2))
    assert slots.free_number() == 2


# how many run


def test_no_more_jobs_run_than_there_are_processes_however_many_children_are_idle(pool):
    slots = pool(processes=1, children=3)
    assert len(slots.idle()) == 1
    assert send(slots, held_of(1)) == 1
    assert slots.idle() == []
    assert slots.choose(held_of(2)) is None


def test_a_killed_child_counts_as_busy_until_its_end_is_known(pool):
    slots = pool(processes=1, children=2)
    send(slots, held_of(1))
    slots.get(1).kill("a test")
    assert slots.busy == 1
    assert slots.choose(held_of(2)) is None
    slots.get(1).answered(0.0)
    assert slots.choose(held_of(2)).number == 2


# who gets a job


def test_an_idle_child_gets_the_job_before_one_that_would_be_free_soon(pool):
    slots = pool(processes=2)
    assert [send(slots, held_of(token, QUICK_S)) for token in (1, 2)] == [1, 2]


def test_jobs_that_are_done_before_an_idle_child_has_woken_wait_for_a_busy_one(pool, monkeypatch):
    monkeypatch.setattr(clock, "monotonic", lambda: 1000.0)  # all of them within a moment, however busy the machine is
    slots, tiny_s = pool(processes=2), QUICK_S / 5
    slots._pace.learn("k", tiny_s)
    in_a_row = round(RUN_S / tiny_s)
    assert [send(slots, held_of(i, tiny_s)) for i in range(1, in_a_row + 2)] == [1] * in_a_row + [2]
    slots._pace.learn("other", 2 * QUICK_S)
    assert send(slots, held_of(in_a_row + 2, QUICK_S)) == 2


def test_nothing_waits_behind_a_job_that_runs_longer_than_it_should_while_a_child_is_idle(pool):
    slots, tiny_s = pool(processes=2), QUICK_S / 5
    slots._pace.learn("k", tiny_s)
    assert send(slots, held_of(1, tiny_s)) == 1
    slots.get(1).sent[0].started_at -= RUN_S
    assert send(slots, held_of(2, tiny_s)) == 2


def test_what_may_not_wait_goes_to_an_idle_child_however_quick_the_others_are(pool):
    slots, tiny_s = pool(processes=3), QUICK_S / 5
    slots._pace.learn("k", tiny_s)
    assert send(slots, held_of(1, tiny_s)) == 1
    assert send(slots, held_of(2, tiny_s, at_most_once=True)) == 2
    assert send(slots, held_of(3, None)) == 3


def test_what_the_engine_takes_to_have_started_does_not_wait(pool):
    slots, tiny_s = pool(processes=2), QUICK_S / 5
    slots._pace.learn("k", tiny_s)
    assert [send(slots, held_of(token, tiny_s, start_reported=True)) for token in (1, 2)] == [1, 2]


def test_the_child_that_is_free_soonest_gets_what_is_sent_ahead(pool):
    slots = pool(processes=2)
    send(slots, held_of(1, 0.004))
    send(slots, held_of(2, 0.001))
    assert [send(slots, held_of(token, 0.002)) for token in (3, 4, 5)] == [2, 2, 1]


def test_nothing_is_sent_ahead_of_which_nobody_knows_how_long_it_takes(pool):
    slots = pool(processes=1)
    send(slots, held_of(1, QUICK_S))
    assert slots.choose(held_of(2, None)) is None


def test_nothing_is_sent_behind_a_job_of_which_nobody_knows_how_long_it_takes(pool):
    slots = pool(processes=1)
    send(slots, held_of(1, None))
    assert slots.choose(held_of(2, QUICK_S)) is None


def test_nothing_is_sent_behind_a_slow_job_nor_a_slow_one_behind_others(pool):
    slots = pool(processes=2)
    send(slots, held_of(1, 60.0))
    send(slots, held_of(2, QUICK_S))
    assert slots.choose(held_of(3, 60.0)) is None
    assert send(slots, held_of(4, QUICK_S)) == 2


def test_a_child_gets_as_much_as_it_will_do_within_the_time_to_be_sent_ahead(pool):
    slots = pool(processes=1)
    sent = 0
    while send(slots, held_of(sent + 1, 0.0045)):
        sent += 1
    assert sent == 4


def test_with_no_time_to_be_sent_ahead_nothing_is(pool):
    slots = pool(processes=1, ahead_s=0.0)
    send(slots, held_of(1, QUICK_S))
    assert slots.choose(held_of(2, QUICK_S)) is None


def test_after_a_death_a_job_is_never_sent_ahead_but_goes_to_an_idle_child(pool):
    slots = pool(processes=2)
    send(slots, held_of(1, QUICK_S))
    assert send(slots, held_of(2, QUICK_S, deaths=1)) == 2
    assert slots.choose(held_of(3, QUICK_S, deaths=1)) is None
    assert slots.choose(held_of(4, QUICK_S)) is not None


def test_a_child_is_full_with_128_messages(pool):
    slots = pool(processes=1)
    sent = 0
    while send(slots, held_of(sent + 1, 1e-9)):
        sent += 1
    assert sent == MAX_SENT


@pytest.mark.parametrize(
    "size", [100, 700, 850, 950, 1700, 1900, 3700, 3900, 7800, 8000, 16_000, 16_384, 16_385, 10**6]
)
def test_a_full_child_never_makes_a_send_wait(pool, size):
    """The kernel charges more than a packet's length, most of all just above a power of two."""
    slots = pool(processes=1)
    sent = 0
    while send(slots, held_of(sent + 1, 1e-9, raw=b"x" * size)):
        sent += 1
    child = slots.get(1)
    assert 5 <= sent == len(child.sent) <= MAX_SENT
    assert child.jobs.charged_bytes <= child.jobs.room_bytes
    assert [held.lease.token for held in child.take_back()] == list(range(1, sent + 1))
    assert (child.jobs.charged_bytes, round(child.jobs.estimated_s, 9)) == (0, 0.0)


def test_a_child_takes_two_dozen_jobs_of_10_kb_at_a_time(pool):
    slots = pool(processes=1)
    sent = 0
    while send(slots, held_of(sent + 1, 1e-9, raw=b"x" * 10_000)):
        sent += 1
    assert sent >= 24


def test_a_child_whose_socket_has_less_room_is_sent_less(pool, monkeypatch):
    """An administrator may have lowered net.core.wmem_max."""
    monkeypatch.setattr("supervisor.master.model.job_pipe._SEND_BUFFER_BYTES", 50_000)
    slots = pool(processes=1)
    sent = 0
    while send(slots, held_of(sent + 1, 1e-9, raw=b"x" * 10_000)):
        sent += 1
    assert 5 <= sent <= 6
    assert [held.lease.token for held in slots.get(1).take_back()] == list(range(1, sent + 1))


def test_a_child_on_its_last_job_is_sent_nothing_ahead(pool):
    slots = pool(processes=1, jobs_per_child=3)
    assert [send(slots, held_of(token, QUICK_S)) for token in (1, 2, 3, 4)] == [1, 1, 1, None]
    assert slots.is_done(slots.get(1))
    slots.get(1).answered(0.0)
    assert slots.choose(held_of(5, QUICK_S)) is None


def test_with_one_job_per_child_nothing_is_ever_sent_ahead(pool):
    slots = pool(processes=1, jobs_per_child=1)
    send(slots, held_of(1, QUICK_S))
    assert slots.choose(held_of(2, QUICK_S)) is None


def test_a_child_that_overran_gets_nothing_more_until_it_answers(pool):
    slots = pool(processes=1)
    send(slots, held_of(1, QUICK_S))
    child = slots.get(1)
    child.overran = True
    assert slots.choose(held_of(2, QUICK_S)) is None
    end(child, ChildState.IDLE)
    send(slots, held_of(3, QUICK_S))
    assert slots.choose(held_of(4, QUICK_S)) is child


def test_nobody_gets_a_job_who_leaves_or_is_to_die(pool):
    slots = pool(processes=2, jobs_per_child=1, children=2)
    send(slots, held_of(1))
    end(slots.get(1), ChildState.LEAVING)
    slots.get(2).kill("a test")
    assert slots.choose(held_of(2)) is None


# how many to lease


def test_as_many_are_leased_as_there_are_idle_children_while_nothing_has_run(pool):
    assert pool(processes=3).capacity() == (3, 3)


def test_slow_handlers_are_leased_one_job_per_idle_child(pool):
    slots = pool(processes=2)
    slots._pace.learn("k", 1.0)
    assert slots.capacity() == (2, 2)
    send(slots, held_of(1, 1.0))
    assert slots.capacity() == (1, 1)


def test_quick_handlers_are_leased_as_many_as_will_start_in_time_half_of_them_at_once(pool):
    slots = pool(processes=2)
    slots._pace.learn("k", 0.002)
    assert slots.capacity() == (10, 2)
    assert slots.capacity(coming=10) == (10, 0)
    assert slots.capacity(coming=15) == (5, 0)
    assert slots.capacity(coming=20) == (0, 0)
    for token in range(1, 17):
        send(slots, held_of(token, 0.002))
    assert slots.capacity() == (4, 0)


def test_no_more_are_leased_at_once_than_half_of_what_children_take(pool):
    slots = pool(processes=2)
    slots._pace.learn("k", 1e-9)
    assert slots.capacity() == (MAX_SENT, 0)
    few = pool(processes=2, jobs_per_child=5)
    few._pace.learn("k", 1e-9)
    assert few.capacity() == (5, 0)
    assert few.capacity(coming=7) == (3, 0)


@pytest.fixture
def forking(pool, new_child, monkeypatch):
    """Slots of two processes with a fork per job. Makes one of a child that has been under way for so long."""

    monkeypatch.setattr(clock, "monotonic", lambda: 1000.0)  # nobody is overdue because the machine is busy

    def make(since_s, fork_s=0.004, run_s=QUICK_S):
        slots = pool(processes=2, jobs_per_child=1, children=0)
        slots._pace.learn("k", run_s)
        if fork_s is not None:
            slots._pace.learn_fork(fork_s)
        child = new_child(1)
        child.state, child.asked_at = ChildState.SPAWNING, clock.monotonic() - since_s
        slots.add(child)
        return slots

    return make


def test_a_job_is_leased_for_a_child_that_is_about_to_get_ready(forking):
    assert forking(since_s=0.001).capacity() == (1, 0)


def test_one_that_was_granted_for_it_is_enough(forking):
    assert forking(since_s=0.001).capacity(coming=1) == (0, 0)


@pytest.mark.parametrize(
    "child",
    [
        {"since_s": 0.001, "fork_s": None},
        {"since_s": 0.001, "fork_s": 1.0},
        {"since_s": 60.0},
        {"since_s": 0.001, "run_s": 1.0},
        {"since_s": 0.001, "run_s": 0.002},
    ],
    ids=["nobody knows when", "not soon", "overdue", "jobs are slow", "somebody may wonder whether they have started"],
)
def test_no_job_is_leased_for_a_child_that_may_keep_it_waiting(forking, child):
    assert forking(**child).capacity() == (0, 0)


def test_a_child_that_is_about_to_get_ready_gets_no_job_beside_as_many_as_may_run(forking, new_child):
    slots = forking(since_s=0.001)
    for number in (2, 3):
        slots.add(new_child(number))
        send(slots, held_of(number))
    assert slots.busy == 2
    assert slots.capacity() == (0, 0)


def test_those_who_have_all_that_they_take_will_have_room_when_more_are_granted_if_their_jobs_are_quick(pool):
    slots, tiny_s = pool(processes=1), QUICK_S / 10
    slots._pace.learn("k", tiny_s)
    for token in range(MAX_SENT):
        assert send(slots, held_of(token, tiny_s)) == 1
    assert send(slots, held_of(MAX_SENT, tiny_s)) is None
    assert slots.capacity() == (MAX_SENT // 2, 0)
    slow = pool(processes=1)
    slow._pace.learn("k", AHEAD_S / 2)
    while send(slow, held_of(1, AHEAD_S / 2)):
        pass
    assert slow.capacity() == (0, 0)


def test_idle_children_beyond_the_processes_are_leased_nothing(pool):
    slots = pool(processes=1, jobs_per_child=1, children=2)
    slots._pace.learn("k", 0.001)
    assert slots.capacity() == (1, 1)
    send(slots, held_of(1, 0.001))
    assert slots.capacity() == (0, 0)


def test_those_that_take_their_time_to_end_are_not_replaced_without_bound(pool, new_child):
    slots = pool(processes=2, jobs_per_child=1)
    for token in range(1, 100):
        for child in list(slots):
            if child.state is ChildState.IDLE:
                child.send(held_of(token))
                end(child, ChildState.LEAVING)
        for _ in range(slots.missing()):
            slots.add(new_child(slots.free_number()))
    assert len(slots) == 3 * 2 + 2
    assert slots.missing() == 0
    slots.remove(slots.get(1))
    assert slots.missing() == 1


# fewer


def test_who_is_idle_and_too_many_is_surplus_the_youngest_first(pool):
    slots = pool(processes=4)
    send(slots, held_of(1))
    slots.resize(2)
    surplus, coming = slots.surplus()
    assert ([child.number for child in surplus], coming) == ([4, 3], 0)
    slots.resize(4)
    assert slots.surplus() == ([], 0)


def test_a_child_on_its_last_job_needs_a_successor_and_one_that_is_asked_for_may_be_too_many_later(pool, new_child):
    slots = pool(processes=2, jobs_per_child=1, children=1)
    send(slots, held_of(1))
    for number in (2, 3):
        slots.add(new_child(number))
    slots.get(3).state = ChildState.SPAWNING
    assert slots.surplus() == ([], 0)
    slots.resize(1)
    assert slots.surplus() == ([], 1)
    slots.get(3).state = ChildState.IDLE
    assert [child.number for child in slots.surplus()[0]] == [3]


def test_children_that_are_too_many_and_take_their_time_keep_nobody_from_being_replaced(pool):
    slots = pool(processes=12, jobs_per_child=1)
    for token in range(1, 13):
        send(slots, held_of(token))
    slots.resize(1)
    assert slots.missing() == 1
    for number in range(1, 13):
        end(slots.get(number), ChildState.LEAVING)
    assert slots.missing() == 1
    for number in range(4, 13):
        slots.remove(slots.get(number))
    assert slots.missing() == 1
    slots.resize(12)
    assert slots.missing() == 12


def test_as_many_are_useful_as_can_be_fed_at_the_pace_of_late():
    pace = Pace()
    slots = Slots(1, 0, AHEAD_S, pace)
    assert slots.useful > 1000
    pace.learn("k", 0.00002)
    assert slots.useful == 1
    pace.learn("k", 0.001)
    assert slots.useful == 11


# when there is other code


def test_a_child_that_is_to_take_no_more_jobs_gets_none_and_is_replaced(pool):
    slots = pool(processes=2)
    slots.get(1).retire_reason = "the code was reloaded"
    assert [child.number for child in slots.idle()] == [2]
    assert slots.missing() == 1
    assert send(slots, held_of(1)) == 2
    assert send(slots, held_of(2)) is None


def test_while_nothing_is_to_start_nothing_is_leased_nor_placed(pool):
    slots = pool(processes=2)
    slots._pace.learn("k", QUICK_S)
    assert send(slots, held_of(1, QUICK_S)) == 1
    slots.on_hold = True
    assert slots.capacity() == (0, 0)
    assert send(slots, held_of(2, QUICK_S)) is None
    slots.on_hold = False
    assert send(slots, held_of(2, QUICK_S)) == 2


def test_the_number_of_a_child_in_no_slot_is_not_given_again(pool):
    slots = pool(processes=2)
    assert slots.free_number() == 3
    assert slots.free_number({3, 4}) == 5
