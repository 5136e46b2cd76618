"""What a supervisor is asked for, and that its answers wait for the next exchange, each once."""

import faulthandler
import os
import select

from parts import await_readable, lease_of, rest, until

from supervisor import clock
from supervisor.engine.looks import Ask
from supervisor.pool import kernel, messages
from supervisor.pool.requests import Requests
from supervisor.pool.stacks import Watcher


def working(ends):
    """Its stacks go to its file; it takes a job, says so on its output, and keeps it."""
    faulthandler.register(kernel.STACKS_SIGNAL, file=ends.stacks, all_threads=True)
    ends.talk.send(messages.READY)
    ends.next_job()
    os.write(ends.out, b"has it\n")
    rest()


def turn_until_answered(requests, watcher):
    poll = select.poll()

    def turn():
        poll.poll(max(0.0, watcher.deadline_at - clock.monotonic()) * 1000)
        watcher.keep_time(clock.monotonic())
        return requests.answered

    until(turn)


def ask_of(what, number=1):
    return Ask(f"question-{number}", what, None)


def test_an_unknown_question_is_answered_with_what_is_wrong(desk):
    requests = Requests(desk().slots, Watcher())
    requests.on_asked([ask_of("tea")])
    (reply,) = requests.take_replies()
    assert reply.ask == ask_of("tea")
    assert reply.answer == {"error": "this supervisor knows no answer to 'tea'; is it an older one?"}
    assert (requests.answered, requests.take_replies()) == (False, [])


def test_who_asks_for_the_stacks_is_told_of_every_child(desk):
    desk = desk(processes="2")
    watcher = Watcher()
    requests = Requests(desk.slots, watcher)
    busy = desk.child(working)
    desk.give(lease_of(1))
    await_readable(busy.output.fd)
    idle = desk.child(working)
    requests.on_asked([ask_of("stacks", 1), ask_of("stacks", 2)])
    assert not requests.answered
    turn_until_answered(requests, watcher)
    first, second = requests.take_replies()
    assert [first.ask, second.ask] == [ask_of("stacks", 1), ask_of("stacks", 2)]
    stacks = [[child["stack"] for child in reply.answer["children"]] for reply in (first, second)]
    assert stacks[0] == stacks[1]
    by_number = {child["child"]: child for child in first.answer["children"]}
    assert by_number.keys() == {busy.number, idle.number}
    assert (by_number[busy.number]["jid"], by_number[busy.number]["pid"]) == ("j1", busy.pid)
    assert "in working" in by_number[busy.number]["stack"]
    assert by_number[idle.number].get("jid") is None
    assert not requests.answered


def test_without_children_the_answer_comes_all_the_same(desk):
    watcher = Watcher()
    requests = Requests(desk().slots, watcher)
    requests.on_asked([ask_of("stacks")])
    turn_until_answered(requests, watcher)
    assert [reply.answer for reply in requests.take_replies()] == [{"children": []}]
