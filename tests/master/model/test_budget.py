"""The memory budget: which job may start, and which child is killed beyond the limit."""

import itertools

import pytest

from supervisor.master.model.budget import Budget
from supervisor.master.model.memory import Usage

MB = 2**20


@pytest.fixture
def budget():
    return Budget(1000)


def learnt(limit=1000, **peaks):
    budget = Budget(limit)
    for klass, peak in peaks.items():
        run(budget, klass, peak)
    return budget


def run(budget, klass, peak, child=99, jid="earlier"):
    budget.hold(child, klass, jid)
    budget.settle(child, klass, jid, peak)
    budget.gone(child)


def test_without_a_limit_everything_fits_and_nothing_is_kept():
    budget = Budget(0)
    for number in range(10):
        assert budget.fits("Big", f"j{number}")
        budget.hold(number, "Big", f"j{number}")
        budget.measured(number, 2**40)
    assert (budget.child_to_kill(), budget.idle_child_to_end(), budget.room_bytes(), budget.used_bytes()) == (
        None,
        None,
        None,
        0,
    )


def test_expected_memory_is_the_highest_recent_peak():
    budget = learnt(Big=500)
    run(budget, "Big", 700)
    assert budget.expected("Big") == 700
    run(budget, "Big", 100)
    assert budget.expected("Big") == 640
    for _ in range(100):
        run(budget, "Big", 100)
    assert 100 <= budget.expected("Big") < 120
    assert budget.expected("Unknown") == 0


def test_job_without_a_sample_teaches_nothing():
    budget = learnt(Big=500)
    run(budget, "Big", 0)
    assert budget.expected("Big") == 500


def test_handlers_not_seen_for_longest_are_forgotten():
    budget = Budget(1000, capacity=2)
    for klass in ("A", "B", "A", "C"):
        run(budget, klass, 10)
    assert [budget.expected(klass) for klass in "ABC"] == [10, 0, 10]


def test_jobs_that_start_together_do_not_share_the_same_room():
    budget = learnt(Big=400)
    started = []
    for number in range(4):
        if budget.fits("Big", f"j{number}"):
            budget.hold(number, "Big", f"j{number}")
            started.append(number)
    assert started == [0, 1]
    assert budget.fits("Small", "s")  # its peak is unknown, and there is room
    budget.settle(0, "Big", "j0", 390)
    assert budget.fits("Big", "j2")


def test_job_counts_by_its_real_memory_above_the_expected_one():
    budget = learnt(Big=400)
    budget.hold(1, "Small", "s")
    budget.measured(1, 601)
    assert not budget.fits("Big", "b")
    budget.measured(1, 600)
    assert budget.fits("Big", "b")


def test_master_and_zygote_count():
    budget = learnt(Big=400)
    budget.hold(1, "Big", "b1")
    assert budget.fits("Big", "b2")
    budget.base_bytes = 201
    assert not budget.fits("Big", "b2")
    assert budget.used_bytes() == 601


def test_other_zygotes_leave_less_room_and_kill_no_child():
    budget = learnt(Big=400)
    budget.base_bytes = 100
    budget.hold(1, "Big", "b1")
    budget.measured(1, 400)
    assert not budget.use_other_zygotes([Usage(90, 10, 1)])
    assert budget.fits("Big", "b2")
    assert not budget.use_other_zygotes([Usage(90, 10, 1), Usage(1, 0, 1)])
    assert not budget.fits("Big", "b2")
    budget.measured(1, 890)
    assert budget.child_to_kill() is None
    assert budget.use_other_zygotes([])
    budget.measured(1, 400)
    assert budget.fits("Big", "b2")
    budget.gone(1)
    budget.use_other_zygotes([Usage(2000, 0, 1)])
    assert budget.fits("Big", "b2")  # where nothing runs, all fits


def test_jobs_sent_ahead_reserve_only_the_largest_of_them():
    budget = learnt(Big=400, Small=100)
    budget.hold(1, "Small", "s1")
    budget.hold(1, "Big", "b1")
    budget.hold(1, "Small", "s2")
    assert budget.used_bytes() == 400
    budget.hold(2, "Big", "b2")
    assert budget.fits("Big", "b3", child=2)
    assert budget.fits("Small", "s3")
    assert not budget.fits("Big", "b3")


def test_job_taken_back_frees_its_reservation():
    budget = learnt(Big=400)
    budget.hold(1, "Big", "b1")
    budget.settle(1, "Big", "b1")
    assert budget.used_bytes() == 0
    assert budget.expected("Big") == 400


def test_job_above_the_whole_budget_runs_alone():
    budget = learnt(Huge=2000, Small=1)
    budget.hold(1, "Small", "s")
    assert not budget.fits("Huge", "h")
    budget.settle(1, "Small", "s")
    assert budget.fits("Huge", "h")
    budget.hold(1, "Huge", "h")
    assert not budget.fits("Small", "s")
    assert not budget.fits("Unknown", "u")
    assert not budget.fits("Small", "s", child=1)
    budget.settle(1, "Huge", "h", 10)
    assert budget.fits("Small", "s")


def test_any_job_starts_once_nothing_else_runs():
    for large in (10, 999, 1000, 5000):
        budget = learnt(Large=large, Small=300)
        budget.base_bytes = 50
        running = [(number, f"s{number}") for number in range(3)]
        for number, jid in running:
            budget.hold(number, "Small", jid)
        while not budget.fits("Large", "front"):
            number, jid = running.pop()
            budget.settle(number, "Small", jid, 300)
        assert budget.fits("Large", "front")


def test_budget_below_master_and_zygote_runs_one_job_at_a_time():
    budget = Budget(1000)
    budget.base_bytes = 2000
    assert budget.fits("A", "a")
    budget.hold(1, "A", "a")
    budget.measured(1, 10)
    assert not budget.fits("A", "b")
    assert budget.child_to_kill() is None


def test_no_child_is_killed_while_there_is_room(budget):
    budget.base_bytes = 100
    budget.hold(1, "A", "a")
    budget.measured(1, 900)
    assert budget.child_to_kill() is None
    assert budget.room_bytes() == 0


def test_largest_child_is_killed_and_its_job_runs_alone_later(budget):
    budget.base_bytes = 100
    for number, grown in ((1, 300), (2, 500), (3, 101)):
        budget.hold(number, "A", f"j{number}")
        budget.measured(number, grown)
    assert budget.room_bytes() == -1
    assert budget.child_to_kill() == 2
    budget.mark_killed(2, "A", "j2")
    assert budget.child_to_kill() is None  # what the first victim has is as good as free
    assert budget.used_bytes() == 1001  # but no job may start in it yet
    budget.gone(2)
    assert budget.expected("A") == 500
    assert not budget.fits("B", "j2")
    for number in (1, 3):
        budget.settle(number, "A", f"j{number}")
        budget.gone(number)
    assert budget.fits("B", "j2")
    budget.hold(4, "B", "j2")
    assert not budget.fits("B", "other")


def test_children_are_killed_one_by_one_until_there_is_room(budget):
    for number in range(4):
        budget.hold(number, "A", f"j{number}")
        budget.measured(number, 400 + number)
    died = []
    while (number := budget.child_to_kill()) is not None:
        budget.mark_killed(number, "A", f"j{number}")
        died.append(number)
    assert died == [3, 2]


def test_completed_job_need_not_run_alone_again(budget):
    budget.hold(1, "A", "j")
    budget.measured(1, 1001)
    budget.mark_killed(1, "A", "j")
    budget.gone(1)
    budget.hold(2, "B", "other")
    assert not budget.fits("C", "j")
    budget.done("j")
    assert budget.fits("C", "j")


def test_jobs_that_must_run_alone_are_bounded():
    budget = Budget(1000, capacity=3)
    for number in range(5):
        budget.mark_killed(number, "A", f"j{number}")
        budget.gone(number)
    budget.hold(9, "B", "other")
    assert [budget.fits("B", f"j{number}") for number in range(5)] == [True, True, False, False, False]


def test_idle_child_is_killed_first_if_that_is_enough(budget):
    budget.hold(1, "A", "a")
    budget.measured(1, 700)
    budget.measured(2, 250)
    budget.measured(3, 100)
    assert budget.child_to_kill() == 2
    budget.mark_killed(2)
    assert budget.child_to_kill() is None
    budget.gone(2)
    budget.measured(1, 950)
    assert budget.child_to_kill() == 3
    budget.measured(1, 1101)
    assert budget.child_to_kill() == 1  # ending the idle one would not be enough


def test_idle_child_counts_and_can_be_ended_for_a_job():
    budget = learnt(Big=400)
    assert budget.idle_child_to_end() is None
    budget.hold(1, "Small", "s")
    budget.measured(1, 300)
    budget.measured(2, 200)
    budget.measured(3, 301)
    assert not budget.fits("Big", "b")
    assert budget.idle_child_to_end() == 3
    budget.gone(3)
    assert budget.fits("Big", "b")


def test_job_behind_others_needs_no_more_than_its_child_has():
    budget = learnt(Big=400)
    budget.hold(1, "Small", "s1")
    budget.measured(1, 550)
    budget.hold(2, "Small", "s2")
    budget.measured(2, 440)
    assert budget.fits("Big", "b", child=2)
    assert not budget.fits("Big", "b")


def test_many_children_with_many_jobs_add_up():
    budget = learnt(10**12, A=MB)
    for number, copy in itertools.product(range(32), range(4)):
        budget.hold(number, "A", f"{number}-{copy}")
        budget.measured(number, MB)
    assert budget.used_bytes() == 32 * MB
    assert budget.child_to_kill() is None


# what does not fit


def test_job_that_does_not_fit_is_named_after_a_while():
    budget = learnt(600 * MB, Big=400 * MB)
    budget.hold(1, "Small", "s")
    budget.measured(1, 300 * MB)
    assert not budget.fits("Big", "b")
    assert [budget.put_off("Big", "b", now_at) for now_at in (100.0, 102.0, 104.9)] == [None] * 3
    said = budget.put_off("Big", "b", 105.0)
    assert said == ("Big b does not start here: it may need 400 MB, and 300 MB are left of the memory budget of 600 MB")
    assert budget.put_off("Big", "b", 105.1) is None  # when it is here again others wait again


def test_job_that_was_elsewhere_is_waited_for_anew():
    budget = learnt(Big=400)
    assert budget.put_off("Big", "b", 100.0) is None
    assert budget.put_off("Big", "b", 108.0) is None
    assert budget.put_off("Big", "b", 110.9) is None
    assert budget.put_off("Big", "b", 113.0) is not None


def test_started_job_is_no_longer_waited_for():
    budget = learnt(Big=400)
    assert budget.put_off("Big", "b", 100.0) is None
    budget.hold(1, "Big", "b")
    budget.settle(1, "Big", "b")
    assert budget.put_off("Big", "b", 101.0) is None
    assert budget.put_off("Big", "b", 103.9) is None
    assert budget.put_off("Big", "b", 105.5) is None


def test_sentence_names_a_job_that_must_run_alone():
    budget = learnt(Small=1)
    budget.measured(1, 2000)
    budget.mark_killed(1, "Big", "b")
    budget.gone(1)
    budget.put_off("Big", "b", 100.0)
    budget.put_off("Big", "b", 102.5)
    assert "it may only run alone" in budget.put_off("Big", "b", 105.0)


def test_lone_job_starts_beside_a_persistent_one():
    budget = Budget(1000)
    budget.hold(1, "Forever", "f", ends=False)
    budget.measured(1, 300)
    budget.measured(2, 2000)
    budget.mark_killed(2, "Big", "b")
    budget.gone(2)
    assert budget.fits("Big", "b")
    budget.hold(2, "Small", "s")
    assert not budget.fits("Big", "b")
    budget.settle(2, "Small", "s")
    assert budget.fits("Big", "b")
    budget.settle(1, "Forever", "f")
    budget.gone(1)
    assert budget.fits("Big", "b")


def test_job_is_waited_for_longer_each_time():
    budget = learnt(Big=400)
    now_at, waited_s = 0.0, []
    for _ in range(4):
        began_at = now_at
        while budget.put_off("Big", "b", now_at) is None:
            now_at += 1
        waited_s.append(now_at - began_at)
        now_at += 10
    assert waited_s[:3] == [5, 10, 20]
    assert waited_s[3] >= 20
