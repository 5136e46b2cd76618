"""What a supervisor is asked for, and that its answers wait for the next exchange, each once."""

import faulthandler
import os
import select

import pytest

from supervisor import clock, messages
from supervisor.engine.commands.queries import OperatorRequest
from supervisor.linux import kernel
from supervisor.master.requests.operator_requests import OperatorRequests
from supervisor.master.requests.stack_dump import StackDump
from supervisor.master.timers import Timers
from tests.parts import await_readable, lease_of, rest, until


def working(ends):
    """Its stacks go to its file; it takes a job, says so on its output, and keeps it."""
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
    return OperatorRequest(f"question-{number}", what, argument)


class Actions:
    """A master that notes what it is to do, and can do all but scale to 13."""

    def __init__(self):
        self.done = []
        self.reloads = []

    def drain(self, by):
        self.done.append(("drain", by))
        return {"did": f"drains, the {len(self.done)}. time"}

    def scale(self, fewest, most, by):
        if most == 13:
            raise ValueError("13 processes cannot be")
        self.done.append(("scale", fewest, most, by))
        return {"did": "scales"}

    def resume(self, by):
        self.done.append(("resume", by))
        return {"did": "starts jobs again"}

    def reload(self, by, on_done):
        self.done.append(("reload", by))
        self.reloads.append(on_done)

    def status(self):
        return {"state": f"status {len(self.done)}"}


@pytest.fixture
def actions():
    return Actions()


@pytest.fixture
def answers(desk, actions):
    """What is answered at once to these questions."""
    requests = OperatorRequests(actions, desk().slots, StackDump(Timers()))

    def ask(*asks):
        requests.on_asked(asks)
        return [reply.answer for reply in requests.take_replies()]

    return ask


def test_who_asks_for_a_change_is_named_and_told_what_was_done(answers, actions):
    assert answers(ask_of("drain", argument={"by": "ada at home"})) == [{"did": "drains, the 1. time"}]
    answers(ask_of("resume", 2, argument={"by": "ada at home"}))
    assert actions.done == [("drain", "leasehold drain of ada at home"), ("resume", "leasehold unpause of ada at home")]


def test_a_question_that_comes_again_is_done_once_and_answered_as_before(answers, actions):
    first = answers(ask_of("drain", 1))
    assert answers(ask_of("drain", 1), ask_of("drain", 2)) == [*first, {"did": "drains, the 2. time"}]
    assert len(actions.done) == 2


def test_a_refusal_is_the_answer_and_comes_again_as_it_was(answers, actions):
    wish = {"fewest": 13, "most": 13}
    assert answers(ask_of("scale", argument=wish)) == answers(ask_of("scale", argument=wish))
    assert answers(ask_of("scale", argument=wish)) == [{"error": "13 processes cannot be"}]


def test_what_takes_long_is_answered_once_it_is_done_and_not_begun_twice(desk, actions):
    requests = OperatorRequests(actions, desk().slots, StackDump(Timers()))
    requests.on_asked([ask_of("reload", 1), ask_of("reload", 2)])
    requests.on_asked([ask_of("reload", 1)])
    assert (len(actions.reloads), requests.take_replies()) == (2, [])
    for on_done in actions.reloads:
        on_done({"did": "loaded"})
    told = [(reply.request.id, reply.answer) for reply in requests.take_replies()]
    assert told == [("question-1", {"did": "loaded"}), ("question-2", {"did": "loaded"})]
    requests.on_asked([ask_of("reload", 1)])
    assert [reply.answer for reply in requests.take_replies()] == [{"did": "loaded"}]


def test_as_many_answers_are_remembered_as_questions_may_stand(answers, actions):
    for number in range(101):
        answers(ask_of("drain", number))
    assert answers(ask_of("drain", 1)) == [{"did": "drains, the 2. time"}]
    answers(ask_of("drain", 0))
    assert len(actions.done) == 102


@pytest.mark.parametrize(
    ("wish", "meant"),
    [({"fewest": 2, "most": 8}, (2, 8)), ({"auto": True}, (None, 0)), ({"auto": True, "fewest": 1}, (None, 0))],
)
def test_a_number_of_processes_is_a_range_or_auto(answers, actions, wish, meant):
    assert answers(ask_of("scale", argument=wish)) == [{"did": "scales"}]
    assert actions.done == [("scale", *meant, "leasehold scale of somebody by way of Redis")]


@pytest.mark.parametrize(
    "wish", [None, 4, [], {}, {"fewest": 1}, {"fewest": "1", "most": 2}, {"fewest": 1, "most": True}, {"auto": "yes"}]
)
def test_a_number_of_processes_that_is_none_is_refused_and_changes_nothing(answers, actions, wish):
    (answer,) = answers(ask_of("scale", argument=wish))
    assert "must be whole numbers" in answer["error"] and actions.done == []


def test_what_is_only_looked_at_is_looked_at_again_each_time(answers):
    assert answers(ask_of("status"), ask_of("drain", 2), ask_of("status")) == [
        {"state": "status 0"}, {"did": "drains, the 1. time"}, {"state": "status 1"},
    ]  # fmt: skip


def test_an_unknown_question_is_answered_with_what_is_wrong(desk):
    requests = OperatorRequests(Actions(), desk().slots, StackDump(Timers()))
    requests.on_asked([ask_of("tea")])
    (reply,) = requests.take_replies()
    assert reply.request == ask_of("tea")
    assert reply.answer == {"error": "this supervisor knows no answer to 'tea'; is it an older one?"}
    assert requests.take_replies() == []


def test_who_asks_for_the_stacks_is_told_of_every_child(desk):
    desk = desk(processes="2")
    stack_dump = StackDump(timers := Timers())
    requests = OperatorRequests(Actions(), desk.slots, stack_dump)
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


def test_without_children_the_answer_comes_all_the_same(desk):
    stack_dump = StackDump(timers := Timers())
    requests = OperatorRequests(Actions(), desk().slots, stack_dump)
    requests.on_asked([ask_of("stacks")])
    assert [reply.answer for reply in replies_after_dump(requests, timers)] == [{"children": []}]
