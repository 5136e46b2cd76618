"""What is thought of how long handlers take: quick to believe the worse, slow to believe the better."""

import pytest

from supervisor.master.model.pace import Pace


def test_nothing_is_known_of_a_klass_that_has_not_run():
    pace = Pace()
    assert (pace.of("k"), pace.recent_s) == (None, None)
    pace.learn("other", 1.0)
    assert pace.of("k") is None
    assert pace.recent_s == 1.0


def test_a_longer_run_is_believed_at_once_and_a_shorter_one_by_and_by():
    pace = Pace()
    for run_s in (0.1, 2.0):
        pace.learn("k", run_s)
        assert pace.of("k") == run_s
    pace.learn("k", 1.0)
    assert pace.of("k") == pytest.approx(1.9)
    for _ in range(100):
        pace.learn("k", 1.0)
    assert pace.of("k") == pytest.approx(1.0, rel=0.01)


def test_no_run_is_thought_to_take_no_time():
    pace = Pace()
    for _ in range(1000):
        pace.learn("k", 0.0)
    assert pace.of("k") > 0
    assert pace.recent_s > 0


def test_of_more_klasses_than_it_has_room_for_it_forgets_the_one_not_seen_for_longest():
    pace = Pace(capacity=3)
    for klass in ("a", "b", "c", "a", "d"):
        pace.learn(klass, 1.0)
    assert [pace.of(klass) for klass in "abcd"] == [1.0, None, 1.0, 1.0]


def test_its_memory_is_bounded():
    pace = Pace(capacity=10)
    for number in range(1000):
        pace.learn(f"k{number}", 1.0)
    assert sum(pace.of(f"k{number}") is not None for number in range(1000)) == 10


def test_no_more_processes_are_useful_than_the_master_can_feed():
    pace = Pace()
    assert pace.useful_processes > 1000
    pace.learn("k", 0.00002)
    assert pace.useful_processes == 1
    pace.learn("k", 0.001)
    assert pace.useful_processes == 11
