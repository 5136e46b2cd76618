"""What the loop answers to its listener at once, and for what it waits until Redis has been asked."""

import math

import pytest

from supervisor.master.report.http_answers import LOOKED_S, HttpAnswers
from supervisor.master.timers import Timers
from supervisor.ops.http_queries import HttpQueries


class Status:
    able, state = True, "serving"

    def tell(self):
        return {"state": self.state}


class Looks:
    def __init__(self):
        self.looked_at = -math.inf
        self.wanted = 0

    def look(self, then):
        self.wanted += 1
        self._then = then

    def come(self, now_at):
        self.looked_at = now_at
        self._then(now_at)


class Part:
    """The loop's end, and the listener's."""

    def __init__(self):
        self.queries, self.looks, self.said = HttpQueries(), Looks(), []
        self.timers = Timers()
        self.answers = HttpAnswers(
            self.queries, Status(), self.looks, lambda: "a snapshot", self.said.append, self.timers
        )

    def ask(self, what, now_at):
        query = self.queries.ask(what, now_at)
        self.answers.on_asked(now_at)
        return query


@pytest.fixture
def part():
    part = Part()
    yield part
    part.queries.close()


def test_probes_are_answered_in_the_turn_in_which_they_come(part):
    assert part.ask("/livez", 10.0).answered
    assert part.ask("/readyz", 10.0).answer == (True, "serving")
    assert part.looks.wanted == 0
    assert part.timers.due_at == math.inf


@pytest.mark.parametrize(("what", "answer"), [("/status", {"state": "serving"}), ("/metrics", "a snapshot")])
def test_who_looks_is_answered_once_redis_has_been_looked_into_since(part, what, answer):
    part.looks.looked_at = 9.9
    query = part.ask(what, 10.0)
    assert part.looks.wanted == 1
    assert not query.answered
    part.looks.come(10.1)
    assert (query.answered, query.answer) == (True, answer)


def test_if_redis_does_not_answer_what_is_known_must_do(part):
    query = part.ask("/status", 10.0)
    assert part.timers.due_at == 10.0 + LOOKED_S
    part.timers.run_due(10.0 + LOOKED_S - 0.01)
    assert not query.answered
    part.timers.run_due(10.0 + LOOKED_S)
    assert query.answer == {"state": "serving"}


def test_whoever_asks_while_the_same_is_asked_gets_the_same_answer(part):
    first = part.ask("/status", 10.0)
    assert part.ask("/status", 10.2) is first
    assert part.looks.wanted == 1
    part.looks.come(10.3)
    part.queries.collect()
    assert part.ask("/status", 10.4) is not first


def test_what_the_listener_complains_of_is_said(part):
    part.queries.complain("no descriptors", 10.0)
    part.answers.on_asked(10.0)
    assert part.said == ["no descriptors"]


def test_a_question_that_was_seen_is_no_sign_of_a_loop_that_stands_still(part):
    part.queries.ask("/metrics", 10.0)
    assert part.queries.unheard_s(13.0) == 3.0
    part.queries.forgive(2.0)
    assert part.queries.unheard_s(13.0) == 1.0
    part.answers.on_asked(13.0)
    assert part.queries.unheard_s(14.0) == 0.0
