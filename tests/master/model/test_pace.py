"""Estimates of run times rise at once and fall slowly."""

import pytest

from supervisor.master.model.pace import Pace


def test_klass_that_has_not_run_has_no_estimate():
    pace = Pace()
    assert (pace.of("k"), pace.recent_s) == (None, None)
    pace.learn("other", 1.0)
    assert pace.of("k") is None
    assert pace.recent_s == 1.0


def test_longer_run_counts_at_once_shorter_one_slowly():
    pace = Pace()
    for run_s in (0.1, 2.0):
        pace.learn("k", run_s)
        assert pace.of("k") == run_s
    pace.learn("k", 1.0)
    assert pace.of("k") == pytest.approx(1.9)
    for _ in range(100):
        pace.learn("k", 1.0)
    assert pace.of("k") == pytest.approx(1.0, rel=0.01)


def test_no_estimate_is_zero():
    pace = Pace()
    for _ in range(1000):
        pace.learn("k", 0.0)
    assert pace.of("k") > 0
    assert pace.recent_s > 0


def test_klass_that_came_first_is_forgotten():
    pace = Pace(capacity=3)
    for klass in ("a", "b", "c", "a", "d"):
        pace.learn(klass, 1.0)
    assert [pace.of(klass) for klass in "abcd"] == [None, 1.0, 1.0, 1.0]


def test_number_of_klasses_is_bounded():
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
