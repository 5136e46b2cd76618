"""Repeated messages pass less and less often, and new ones at once."""

from supervisor.ops.repeat_filter import MOST_MESSAGES, RepeatFilter


def test_an_hour_of_the_same_message_passes_a_dozen_times():
    repeats = RepeatFilter()
    said = [(now_at, text) for now_at in range(3600) if (text := repeats.admit("redis.lost", "refused", now_at))]
    assert said[0] == (0, "refused")
    assert [now_at for now_at, _ in said[:4]] == [0, 5, 15, 35]
    assert said[1][1] == "refused (5 times since this was said last)"
    assert len(said) <= 13


def test_a_different_message_passes_at_once():
    repeats = RepeatFilter()
    assert repeats.admit("redis.lost", "refused", 0) == "refused"
    assert repeats.admit("redis.lost", "READONLY", 1) == "READONLY"
    assert repeats.admit("redis.failed", "refused", 1) == "refused"
    assert repeats.admit("redis.lost", "refused", 1) is None


def test_an_ended_or_old_message_counts_as_new():
    repeats = RepeatFilter()
    repeats.admit("redis.lost", "refused", 0)
    repeats.forget("redis.lost")
    assert repeats.admit("redis.lost", "refused", 1) == "refused"
    assert repeats.admit("redis.lost", "refused", 2) is None
    assert repeats.admit("redis.lost", "refused", 62) == "refused"


def test_messages_that_differ_each_time_are_forgotten():
    repeats = RepeatFilter()
    for number in range(10 * MOST_MESSAGES):
        assert repeats.admit("master.warned", f"job {number}", 0) == f"job {number}"
    assert len(repeats._messages) == MOST_MESSAGES
