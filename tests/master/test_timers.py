"""Timers call their callbacks once, in order, and never too soon."""

import math
from functools import partial

import pytest

from supervisor.master.timers import Timers


class Told:
    """Timers, and the keys that they have called back, each with the time that the callback was given."""

    def __init__(self):
        self.timers = Timers()
        self.calls = []

    def set(self, key, at):
        self.timers.set(key, at, partial(self._tell, key))

    def _tell(self, key, now_at):
        self.calls.append((key, now_at))

    def run(self, now_at):
        """Run what is due, and return the keys that were called."""
        self.calls = []
        self.timers.run_due(now_at)
        return [key for key, _ in self.calls]


@pytest.fixture
def told():
    return Told()


def test_due_timer_is_called_once(told):
    told.set("a", 10.0)
    assert told.timers.due_at == 10.0
    assert told.run(9.9) == []
    assert told.run(10.0) == ["a"]
    assert told.calls == [("a", 10.0)]
    assert told.run(11.0) == []
    assert told.timers.due_at == math.inf


def test_earliest_timer_is_called_first(told):
    for key, at in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 4.0)):
        told.set(key, at)
    assert told.run(3.5) == ["a", "b", "c"]
    assert told.timers.due_at == 4.0


def test_timers_of_one_instant_keep_their_order(told):
    for key in "bca":
        told.set(key, 1.0)
    assert told.run(1.0) == ["b", "c", "a"]


def test_key_that_is_set_again_moves_its_timer(told):
    told.set("a", 10.0)
    told.set("a", 20.0)
    assert told.run(15.0) == []
    assert (told.timers.at("a"), told.timers.due_at) == (20.0, 20.0)
    told.set("a", 5.0)
    assert told.timers.due_at == 5.0
    assert told.run(15.0) == ["a"]


def test_cancelled_timer_is_not_called(told):
    told.set("a", 10.0)
    told.timers.cancel("a")
    told.timers.cancel("a")
    assert (told.run(10.0), told.timers.due_at, told.timers.at("a")) == ([], math.inf, math.inf)


def test_timer_set_to_infinity_is_cancelled(told):
    told.set("a", 10.0)
    told.set("a", math.inf)
    assert (told.run(math.inf), told.timers.due_at) == ([], math.inf)


def test_due_at_is_never_too_late(told):
    told.set("a", 10.0)
    told.set("b", 12.0)
    told.timers.cancel("a")
    assert told.timers.due_at <= 12.0
    assert told.run(told.timers.due_at) == []
    assert told.timers.due_at == 12.0


def test_timer_set_by_a_callback_waits_for_the_next_run(told):
    told.timers.set("a", 1.0, lambda now_at: told.set("b", now_at))
    assert told.run(2.0) == []
    assert told.timers.due_at == 2.0
    assert told.run(2.0) == ["b"]


def test_callback_can_set_its_own_timer_again(told):
    def again(now_at):
        told.calls.append(("again", now_at))
        told.timers.set("again", now_at + 1.0, again)

    told.timers.set("again", 1.0, again)
    assert [told.run(at) for at in (1.0, 1.5, 2.5, 3.5)] == [["again"], [], ["again"], ["again"]]


@pytest.mark.parametrize("later", [math.inf, 5.0])
def test_callback_can_cancel_or_move_later_timers(told, later):
    told.timers.set("a", 1.0, lambda _now_at: told.set("b", later))
    told.set("b", 2.0)
    assert told.run(3.0) == []
    assert told.timers.due_at == later


def test_exception_leaves_later_timers_due(told):
    def fail(_now_at):
        raise ConnectionError

    told.timers.set("a", 1.0, fail)
    told.set("b", 2.0)
    with pytest.raises(ConnectionError):
        told.run(3.0)
    assert told.timers.due_at == 2.0
    assert told.run(3.0) == ["b"]


def test_due_timer_moved_to_the_past_is_called_in_the_run(told):
    told.timers.set("a", 1.0, lambda _now_at: told.set("b", -math.inf))
    told.set("b", 2.0)
    assert told.run(3.0) == ["b"]
    assert told.run(3.0) == []
