"""A worker inside of an application answers operators. Without a server."""

from supervisor.engine.commands.mailbox import OperatorRequest
from supervisor.in_process.demand import LeaseDemand
from supervisor.in_process.status_answers import StatusAnswers
from tests.in_process.played import PlayedParts

REQUESTS = [OperatorRequest("1", "status", None), OperatorRequest("2", "drain", None)]


def test_standing_requests_are_answered_once_unless_an_answer_is_lost():
    played = PlayedParts()
    played.jobs.concurrency, played.jobs.running = 3, 0
    demand = LeaseDemand(played.jobs, played.serving, (), lambda: None)
    answers = StatusAnswers(played.identity, played.serving, demand, played.jobs, played.book)
    answers.on_requests(REQUESTS)
    assert answers.due_at() < 0
    status, refusal = answers.parts(0.0)
    assert (b"serving" in status.command.args[-1], b"error" in refusal.command.args[-1]) == (True, True)
    answers.on_requests(REQUESTS)
    assert answers.parts(0.0) == []
    refusal.lost()
    assert played.serving.asks_for_requests()
    answers.on_requests(REQUESTS)
    assert len(answers.parts(0.0)) == 1
