"""Waits between failures double, and six failures in a row are enough."""

from supervisor.master.model.breaker import MOST, Breaker, backoff_s


def test_waits_double_from_a_tenth_of_a_second_to_ten():
    assert [backoff_s(times) for times in (1, 2, 3, 7, 8, 1000)] == [0.1, 0.2, 0.4, 6.4, 10.0, 10.0]


def test_six_failures_in_a_row_open_the_breaker_and_success_resets_the_count():
    breaker = Breaker()
    for _ in range(MOST - 1):
        breaker.fail()
    assert not breaker.broken
    breaker.succeed()
    assert breaker.fail() == 0.1
    for _ in range(MOST - 1):
        breaker.fail()
    assert breaker.broken
