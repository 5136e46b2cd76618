"""The loop answers some HTTP queries at once. Others wait for figures from Redis."""

import math
from types import SimpleNamespace

import pytest

from supervisor import clock
from supervisor.master.report.http_answers import LOOKED_S, HttpAnswers
from supervisor.master.timers import Timers
from supervisor.ops.http_queries import HttpQueries


class PlayedBacklog:
    def __init__(self):
        self.looked_at = -math.inf
        self.asked = 0

    def look(self, then):
        self.asked += 1
        self._then = then

    def answer(self):
        self.looked_at = clock.monotonic()
        self._then(self.looked_at)


class Part:
    """The queries of the HTTP thread, and the loop's answers."""

    def __init__(self):
        self.queries, self.backlog, self.warnings, self.timers = HttpQueries(), PlayedBacklog(), [], Timers()
        state = SimpleNamespace(can_lease=True, word="serving")
        self.answers = HttpAnswers(
            self.queries, state, lambda: {"state": "serving"}, lambda: "a snapshot", self.backlog,
            SimpleNamespace(warn=self.warnings.append), self.timers,
        )  # fmt: skip

    def ask(self, what):
        query = self.queries.ask(what, clock.monotonic())
        self.answers.on_asked()
        return query


@pytest.fixture
def part():
    part = Part()
    yield part
    part.queries.close()


def test_probes_are_answered_at_once(part):
    assert part.ask("/livez").answered
    assert part.ask("/readyz").answer == (True, "serving")
    assert part.backlog.asked == 0
    assert part.timers.due_at == math.inf


@pytest.mark.parametrize(("what", "answer"), [("/status", {"state": "serving"}), ("/metrics", "a snapshot")])
def test_query_waits_for_fresh_figures(part, what, answer):
    part.backlog.looked_at = clock.monotonic()
    query = part.ask(what)
    assert part.backlog.asked == 1
    assert not query.answered
    part.backlog.answer()
    assert (query.answered, query.answer) == (True, answer)


def test_query_is_answered_without_redis(part):
    query = part.ask("/status")
    due_at = part.timers.due_at
    assert 0.0 < due_at - clock.monotonic() <= LOOKED_S
    part.timers.run_due(due_at - 0.01)
    assert not query.answered
    part.timers.run_due(due_at)
    assert query.answer == {"state": "serving"}


def test_equal_queries_share_an_answer(part):
    first = part.ask("/status")
    assert part.ask("/status") is first
    assert part.backlog.asked == 1
    part.backlog.answer()
    part.queries.collect()
    assert part.ask("/status") is not first


def test_complaint_of_the_thread_is_logged(part):
    part.queries.complain("no descriptors", 10.0)
    part.answers.on_asked()
    assert part.warnings == ["no descriptors"]


def test_query_that_was_seen_does_not_count_as_unheard(part):
    part.queries.ask("/metrics", 10.0)
    assert part.queries.unheard_s(13.0) == 3.0
    part.queries.forgive(2.0)
    assert part.queries.unheard_s(13.0) == 1.0
    part.answers.on_asked()
    assert part.queries.unheard_s(14.0) == 0.0
