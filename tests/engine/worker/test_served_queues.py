"""The queues that a worker serves: when it reads names and requests, and how it follows the replies."""

import pytest

from supervisor.engine.commands.mailbox import OperatorRequest, ServeRequest
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.worker.served_queues import Changed, Found, ServedQueues


@pytest.fixture
def plain():
    return ServedQueues(Queues(["a", "b"]))


@pytest.fixture
def globbing():
    return ServedQueues(Queues(["mail-*", "!mail-bulk", "z"]))


def test_plain_names_are_served_and_never_looked_up(plain):
    assert (plain.names, plain.patterns, plain.order, plain.weights) == (("a", "b"), ("a", "b"), "strict", None)
    plain.look_for_queues()
    assert not plain.looks_due
    assert not plain.asks_for_names(leasing=True, now_at=1e9)


def test_names_for_globs_are_read_at_once_then_every_two_seconds(globbing):
    assert globbing.looks_due
    assert globbing.asks_for_names(leasing=False, now_at=100.0)
    assert not globbing.looks_due
    assert not globbing.asks_for_names(leasing=True, now_at=101.9)
    assert not globbing.asks_for_names(leasing=False, now_at=102.0)
    assert globbing.asks_for_names(leasing=True, now_at=102.0)


def test_hint_is_followed_in_the_next_exchange(globbing):
    globbing.asks_for_names(leasing=True, now_at=0.0)
    globbing.look_for_queues()
    assert globbing.looks_due
    assert globbing.asks_for_names(leasing=False, now_at=0.0)


def test_new_queues_are_told_and_the_same_ones_are_not(globbing):
    assert globbing.take_names(["mail-b", "mail-a", "mail-bulk", "other"]) == Found(["mail-a", "mail-b"], [], 0)
    assert globbing.names == ("mail-a", "mail-b", "z")
    assert globbing.take_names(["mail-a", "mail-b"]) is None
    assert globbing.take_names(["mail-b"]) == Found([], ["mail-a"], 0)


def test_more_than_a_thousand_are_left_out_and_counted(globbing):
    found = globbing.take_names([f"mail-{number:04}" for number in range(1005)])
    assert (len(globbing.names), found.left_out) == (1000, 6)


def test_requests_are_read_once_one_is_heard_of(plain):
    plain.heard_of_request(0)
    assert not plain.looks_due
    plain.heard_of_request(3)
    assert plain.looks_due
    assert (plain.asks_for_requests(), plain.asks_for_requests()) == (True, False)
    plain.take_serve_request(ServeRequest(3, ["a"], None))
    plain.heard_of_request(3)
    assert not plain.looks_due


def test_a_request_for_other_queues_is_followed(plain):
    assert plain.take_serve_request(ServeRequest(1, ["x:3", "mail-*"], "weighted")) == Changed(
        ("x:3", "mail-*"), "weighted", 1
    )
    assert (plain.names, plain.order, plain.weights) == (("x",), "weighted", {"x": 3})
    assert plain.looks_due  # which queues there are


def test_request_without_an_order_keeps_the_last_order(plain):
    plain.take_serve_request(ServeRequest(1, ["x"], "random"))
    plain.take_serve_request(ServeRequest(2, ["y"], None))
    assert (plain.names, plain.order) == (("y",), "random")


@pytest.mark.parametrize(
    "request_to_serve",
    [
        ServeRequest(0, [], None),
        ServeRequest(1, [], None),
        ServeRequest(1, ["a", "b"], None),
        ServeRequest(1, ["a", "b"], "strict"),
    ],
)
def test_no_request_or_one_for_the_present_queues_changes_nothing(plain, request_to_serve):
    assert plain.take_serve_request(request_to_serve) is None
    assert plain.names == ("a", "b")


@pytest.mark.parametrize(
    ("queues", "order"), [(["!a"], None), (["x"], "sideways"), (["x:0"], "weighted"), ([""], None)]
)
def test_impossible_request_changes_nothing_and_says_why(plain, queues, order):
    changed = plain.take_serve_request(ServeRequest(1, queues, order))
    assert changed.problem
    assert plain.names == ("a", "b")
    plain.heard_of_request(1)
    assert not plain.looks_due  # it is not asked for again


def test_request_is_delivered_once(plain):
    one, two = OperatorRequest("1", "stacks"), OperatorRequest("2", "stacks")
    assert plain.take_requests([]) == []
    assert plain.take_requests([one]) == [one]
    assert plain.take_requests([one, two]) == [two]
    assert plain.take_requests([one, two]) == []


def test_request_that_still_stands_is_delivered_again(plain):
    one, two = OperatorRequest("1", "stacks"), OperatorRequest("2", "stacks")
    plain.take_requests([one, two])
    plain.forget_request(two)
    assert plain.take_requests([one, two]) == [two]
    plain.forget_requests()  # under another name
    assert plain.take_requests([one]) == [one]


def test_renamed_worker_keeps_its_queues_and_follows_new_requests(plain):
    plain.take_serve_request(ServeRequest(1, ["x"], None))
    plain.forget_requests()
    assert plain.names == ("x",)
    plain.heard_of_request(1)
    assert plain.looks_due


def test_very_many_queues_are_looked_at_less_often():
    serving = ServedQueues(Queues(["mail-*"]))
    assert serving.asks_for_names(leasing=True, now_at=0.0)
    serving.take_names([f"tenant-{number}" for number in range(100_000)])
    assert serving.asks_for_names(leasing=True, now_at=2.0)
    assert not serving.asks_for_names(leasing=True, now_at=11.0)
    assert serving.asks_for_names(leasing=True, now_at=12.1)
    serving.look_for_queues()  # a hint says that there are others
    assert serving.asks_for_names(leasing=True, now_at=12.2)
