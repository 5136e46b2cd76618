"""The inbox tells what can be read, and after a gap tells what came meanwhile before anybody looks at the clock."""

import os
import signal
import socket
import time

import pytest

from supervisor.master import inbox as inbox_module
from supervisor.master.inbox import Inbox
from tests.parts import Process, await_readable, in_fork, state_of, until


@pytest.fixture
def inbox():
    inbox = Inbox()
    yield inbox
    inbox.close()


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def now(inbox):
    return list(inbox.wait(0.0))


def test_it_tells_what_can_be_read_again_and_again_until_it_is(inbox, pair):
    ours, theirs = pair
    inbox.watch(ours, "said")
    assert now(inbox) == []
    theirs.send(b"x")
    assert [now(inbox), now(inbox)] == [["said"], ["said"]]
    ours.recv(1)
    assert now(inbox) == []


def test_it_waits_until_the_deadline_and_no_longer(inbox):
    began_at = time.monotonic()
    assert list(inbox.wait(began_at + 0.02)) == []
    assert 0.02 <= time.monotonic() - began_at < 5.0


def test_what_is_forgotten_is_not_told_any_more_not_even_in_the_same_turn(inbox):
    pipes = [os.pipe() for _ in range(2)]
    for number, (reading, writing) in enumerate(pipes):
        inbox.watch(reading, number)
        os.write(writing, b"x")
    told = []
    for number in inbox.wait(0.0):
        told.append(number)
        inbox.forget(pipes[1 - number][0])
        inbox.forget(pipes[1 - number][0])
    assert len(told) == 1
    for reading, writing in pipes:
        inbox.forget(reading)
        os.close(reading)
        os.close(writing)


def test_room_to_write_is_told_while_it_is_wanted(inbox, pair):
    ours, _theirs = pair
    inbox.watch(ours, "link")
    inbox.want_write(ours, True)
    assert now(inbox) == ["link"]
    inbox.want_write(ours, False)
    assert now(inbox) == []


@pytest.mark.parametrize("attempt", range(3))
def test_a_message_that_came_while_the_process_was_stopped_is_told_before_wait_returns(attempt):
    """The deadline passes meanwhile, and the interrupted call of the kernel answers without looking again."""
    message, sender = socket.socketpair()
    told_us, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def wait_once():
        inbox_module.GAP_S = 0.01
        inbox = Inbox()
        inbox.watch(message, "message")
        deadline_at = time.monotonic() + 0.1
        tells.send(b"%f" % deadline_at)
        events = list(inbox.wait(deadline_at))
        tells.send(repr((events, time.monotonic() > deadline_at)).encode())

    process = Process(wait_once)
    try:
        await_readable(told_us)
        deadline_at = float(told_us.recv(100))
        until(lambda: state_of(process.pid) == "S")
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PIDFD, process.pidfd, os.WSTOPPED | os.WNOWAIT)
        sender.send(b"x")
        until(lambda: time.monotonic() > deadline_at + 0.02)
        os.kill(process.pid, signal.SIGCONT)
        await_readable(told_us)
        assert told_us.recv(100) == b"(['message'], True)"
        assert process.await_end() == 0
    finally:
        process.end()
        for each in (message, sender, told_us, tells):
            each.close()


def test_time_that_handling_takes_is_a_gap_too(monkeypatch, inbox, pair):
    """What came while an event was handled for long is told in the same turn."""
    ours, theirs = pair
    second, teller = socket.socketpair()
    inbox.watch(ours, "first")
    inbox.watch(second, "second")
    theirs.send(b"x")
    passed = [1000.0]
    monkeypatch.setattr("supervisor.clock.monotonic", lambda: passed[0])
    told = []
    for event in inbox.wait(1000.0):
        told.append(event)
        if told == ["first"]:
            ours.recv(1)
            teller.send(b"x")
            passed[0] += 1.5
    assert told == ["first", "second"]
    inbox.forget(second)
    second.close()
    teller.close()


def test_it_is_not_inherited_by_what_is_executed(inbox):
    assert not os.get_inheritable(inbox._epoll.fileno())


def test_a_watched_descriptor_that_is_at_its_end_is_told(pair):
    def run():
        inbox = Inbox()
        ours, theirs = socket.socketpair()
        inbox.watch(ours, "end")
        theirs.close()
        assert now(inbox) == ["end"]

    in_fork(run)


def test_it_knows_how_old_what_it_tells_may_be(inbox, pair):
    """It may have happened while nobody looked; but what ends a wait has happened just now."""
    ours, theirs = pair
    inbox.watch(ours, "said")
    now(inbox)
    theirs.send(b"x")
    time.sleep(0.3)  # a turn that takes long
    turned_at = time.monotonic()
    assert now(inbox) == ["said"]
    assert inbox.oldest_at < turned_at
    ours.recv(1)
    now(inbox)
    asked_at = time.monotonic()
    writer = Process(lambda: (time.sleep(0.5), theirs.send(b"x")))
    assert list(inbox.wait(asked_at + 10)) == ["said"]
    assert inbox.oldest_at >= asked_at
    writer.await_end()
