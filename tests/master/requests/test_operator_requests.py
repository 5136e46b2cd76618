"""Operators' requests: each is done once, and its answer waits for the next exchange."""

import faulthandler
import os
import select

import pytest

from supervisor import clock, messages
from supervisor.engine.commands.mailbox import OperatorRequest
from supervisor.linux import kernel
from supervisor.master.requests.operator_requests import OperatorRequests
from supervisor.master.requests.stack_dump import StackDump
from supervisor.master.timers import Timers
from tests.parts import await_readable, lease_of, rest, until


def working(ends):
    """A child that writes its stacks to its file, takes a job, reports that on its output, and keeps the job."""
    faulthandler.register(kernel.STACKS_SIGNAL, file=ends.stacks, all_threads=True)
    ends.talk.send(messages.pack_ready())
    ends.next_job()
    os.write(ends.out, b"has it\n")
    rest()


def replies_after_dump(requests, timers):
    """The replies, once the stack dump is made."""
    poll, replies = select.poll(), []

    def turn():
        poll.poll(max(0.0, timers.due_at - clock.monotonic()) * 1000)
        timers.run_due(clock.monotonic())
        replies.extend(requests.take_replies())
        return replies

    until(turn)
    return replies


def ask_of(what, number=1, argument=None):
    return OperatorRequest(f"request-{number}", what, argument)


class PlayedControls:
    """Notes what it is to do, and can do all but scale to 13."""

    def __init__(self):
        self.done = []
        self.reloads = []

    def drain(self, by):
        self.done.append(("drain", str(by)))
        return f"drains, the {len(self.done)}. time"

    def scale(self, fewest, most, by):
        if most == 13:
            raise ValueError("13 processes cannot be")
        self.done.append(("scale", fewest, most, str(by)))
        return {"did": "scales"}

    def resume(self, by):
        self.done.append(("resume", str(by)))
        return "starts jobs again"

    def reload(self, by, on_done):
        self.done.append(("reload", str(by)))
        self.reloads.append(on_done)

    def status(self):
        return {"state": f"status {len(self.done)}"}


@pytest.fixture
def controls():
    return PlayedControls()


@pytest.fixture
def requests(desk, controls):
    return OperatorRequests(controls, controls.status, desk().slots, StackDump(Timers()))


@pytest.fixture
def answers(requests):
    """The answers that come at once to some requests."""

    def ask(*asked):
        requests.on_asked(asked)
        return [reply.answer for reply in requests.take_replies()]

    return ask


def test_answer_says_what_was_done_for_whom(answers, controls):
    assert answers(ask_of("drain", argument={"by": "ada at home"})) == [{"did": "drains, the 1. time"}]
    answers(ask_of("resume", 2, argument={"by": "ada at home"}))
    assert controls.done == [
        ("drain", "leasehold drain of ada at home"),
        ("resume", "leasehold unpause of ada at home"),
    ]


def test_repeated_request_is_done_once_and_answered_again(answers, controls):
    first = answers(ask_of("drain", 1))
    assert answers(ask_of("drain", 1), ask_of("drain", 2)) == [*first, {"did": "drains, the 2. time"}]
    assert len(controls.done) == 2


def test_refusal_is_repeated_too(answers, controls):
    wanted = {"fewest": 13, "most": 13}
    assert answers(ask_of("scale", argument=wanted)) == answers(ask_of("scale", argument=wanted))
    assert answers(ask_of("scale", argument=wanted)) == [{"error": "13 processes cannot be"}]


def test_reload_is_answered_when_done_and_not_begun_twice(requests, controls):
    requests.on_asked([ask_of("reload", 1), ask_of("reload", 2)])
    requests.on_asked([ask_of("reload", 1)])
    assert (len(controls.reloads), requests.take_replies()) == (2, [])
    for on_done in controls.reloads:
        on_done({"did": "loaded"})
    told = [(reply.request.id, reply.answer) for reply in requests.take_replies()]
    assert told == [("request-1", {"did": "loaded"}), ("request-2", {"did": "loaded"})]
    requests.on_asked([ask_of("reload", 1)])
    assert [reply.answer for reply in requests.take_replies()] == [{"did": "loaded"}]


def test_one_hundred_answers_are_remembered(answers, controls):
    for number in range(101):
        answers(ask_of("drain", number))
    assert answers(ask_of("drain", 1)) == [{"did": "drains, the 2. time"}]
    answers(ask_of("drain", 0))
    assert len(controls.done) == 102


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [({"fewest": 2, "most": 8}, (2, 8)), ({"auto": True}, (None, 0)), ({"auto": True, "fewest": 1}, (None, 0))],
)
def test_scale_takes_a_range_or_auto(answers, controls, wanted, meant):
    assert answers(ask_of("scale", argument=wanted)) == [{"did": "scales"}]
    assert controls.done == [("scale", *meant, "leasehold scale of an unnamed caller by way of Redis")]


@pytest.mark.parametrize(
    "wanted", [None, 4, [], {}, {"fewest": 1}, {"fewest": "1", "most": 2}, {"fewest": 1, "most": True}, {"auto": "yes"}]
)
def test_scale_refuses_what_is_no_number(answers, controls, wanted):
    (answer,) = answers(ask_of("scale", argument=wanted))
    assert "must be whole numbers" in answer["error"] and controls.done == []


def test_status_is_read_anew_each_time(answers):
    assert answers(ask_of("status"), ask_of("drain", 2), ask_of("status")) == [
        {"state": "status 0"}, {"did": "drains, the 1. time"}, {"state": "status 1"},
    ]  # fmt: skip


def test_unknown_request_is_refused(requests):
    requests.on_asked([ask_of("tea")])
    (reply,) = requests.take_replies()
    assert reply.request == ask_of("tea")
    assert reply.answer == {"error": "this supervisor knows no answer to 'tea'; is it an older one?"}
    assert requests.take_replies() == []


def test_stacks_of_every_child_are_told(desk, controls):
    desk = desk(processes="2")
    stack_dump = StackDump(timers := Timers())
    requests = OperatorRequests(controls, controls.status, desk.slots, stack_dump)
    busy = desk.child(working)
    desk.give(lease_of(1))
    await_readable(busy.output.fd)
    idle = desk.child(working)
    requests.on_asked([ask_of("stacks", 1), ask_of("stacks", 2)])
    assert requests.take_replies() == []
    first, second = replies_after_dump(requests, timers)
    assert [first.request, second.request] == [ask_of("stacks", 1), ask_of("stacks", 2)]
    stacks = [[child["stack"] for child in reply.answer["children"]] for reply in (first, second)]
    assert stacks[0] == stacks[1]
    by_number = {child["child"]: child for child in first.answer["children"]}
    assert by_number.keys() == {busy.number, idle.number}
    assert (by_number[busy.number]["jid"], by_number[busy.number]["pid"]) == ("j1", busy.pid)
    assert "in working" in by_number[busy.number]["stack"]
    assert by_number[idle.number].get("jid") is None
    assert requests.take_replies() == []


def test_stacks_are_answered_without_children(desk, controls):
    stack_dump = StackDump(timers := Timers())
    requests = OperatorRequests(controls, controls.status, desk().slots, stack_dump)
    requests.on_asked([ask_of("stacks")])
    assert [reply.answer for reply in replies_after_dump(requests, timers)] == [{"children": []}]
