"""The inbox calls the callbacks of readable descriptors, and after a gap also those of events in the gap."""

import os
import signal
import socket
import time
from functools import partial

import pytest

from supervisor.linux import kernel
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


@pytest.fixture
def told():
    """The names of the callbacks, in the order of their calls."""
    return []


def test_callback_is_repeated_until_its_descriptor_is_read(inbox, pair, told):
    ours, theirs = pair
    inbox.watch(ours, lambda: told.append("said"))
    inbox.wait(0.0)
    assert told == []
    theirs.send(b"x")
    inbox.wait(0.0)
    inbox.wait(0.0)
    assert told == ["said", "said"]
    ours.recv(1)
    inbox.wait(0.0)
    assert told == ["said", "said"]


def test_wait_returns_at_its_deadline(inbox):
    began_at = time.monotonic()
    inbox.wait(began_at + 0.02)
    assert 0.02 <= time.monotonic() - began_at < 5.0


def test_giving_way_lets_a_woken_process_begin(inbox, pair):
    """The process is of another session, to which sched_yield(2) yields only now and then."""
    ours, theirs = pair
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        child = Process(lambda: answer_as_a_child(theirs))
        assert ours.recv(1) == b"!"
        answered = 0
        for _ in range(100):
            until(lambda: state_of(child.pid) == "S")
            ours.send(b"x")
            inbox.give_way()
            answered += kernel.comes_within(ours, 0.0)
            ours.recv(1)
        child.end()
    finally:
        os.sched_setaffinity(0, processors)
    assert answered >= 75


def test_nothing_is_given_way_to_while_something_is_readable(monkeypatch, inbox, pair):
    monkeypatch.setattr(inbox_module, "_GIVE_WAY_S", 60.0)
    ours, theirs = pair
    inbox.watch(ours, lambda: None)
    theirs.send(b"x")
    began_at = time.monotonic()
    inbox.give_way()
    assert time.monotonic() - began_at < 30.0


def answer_as_a_child(end):
    os.setsid()
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    end.send(b"!")
    while end.recv(1):
        end.send(b"y")


def test_callback_can_forget_the_next_one(inbox, told):
    pipes = [os.pipe() for _ in range(2)]

    def forget_the_other(number):
        told.append(number)
        inbox.forget(pipes[1 - number][0])
        inbox.forget(pipes[1 - number][0])

    for number, (reading, writing) in enumerate(pipes):
        inbox.watch(reading, partial(forget_the_other, number))
        os.write(writing, b"x")
    inbox.wait(0.0)
    assert len(told) == 1
    for reading, writing in pipes:
        inbox.forget(reading)
        os.close(reading)
        os.close(writing)


def test_reused_descriptor_is_called_in_the_next_turn(inbox, told):
    """A callback closes another descriptor, and a new one gets its number. The new callback must not be called yet."""
    pipes = [os.pipe() for _ in range(2)]

    def replace_the_other(number):
        told.append(number)
        reading, writing = pipes[1 - number]
        inbox.forget(reading)
        os.close(writing)
        new, writing = os.pipe()
        os.dup2(new, reading)
        os.close(new)
        pipes[1 - number] = reading, writing
        os.write(writing, b"x")
        inbox.watch(reading, lambda: told.append("new"))

    for number, (reading, writing) in enumerate(pipes):
        inbox.watch(reading, partial(replace_the_other, number))
        os.write(writing, b"x")
    inbox.wait(0.0)
    assert told in ([0], [1])
    inbox.forget(pipes[told[0]][0])
    inbox.wait(0.0)
    assert told[1:] == ["new"]
    for reading, writing in pipes:
        inbox.forget(reading)
        os.close(reading)
        os.close(writing)


def test_callbacks_skipped_by_an_exception_come_next(inbox, told):
    pipes = [os.pipe() for _ in range(2)]

    def read_and_fail(reading):
        os.read(reading, 1)
        told.append(reading)
        raise ConnectionError

    for reading, writing in pipes:
        inbox.watch(reading, partial(read_and_fail, reading))
        os.write(writing, b"x")
    for _ in pipes:
        with pytest.raises(ConnectionError):
            inbox.wait(0.0)
    assert sorted(told) == sorted(reading for reading, _ in pipes)
    for reading, writing in pipes:
        inbox.forget(reading)
        os.close(reading)
        os.close(writing)


def test_room_to_write_is_told_while_wanted(inbox, pair, told):
    ours, _theirs = pair
    inbox.watch(ours, lambda: told.append("link"))
    inbox.want_write(ours, True)
    inbox.wait(0.0)
    assert told == ["link"]
    inbox.want_write(ours, False)
    inbox.wait(0.0)
    assert told == ["link"]


@pytest.mark.parametrize("attempt", range(3))
def test_wait_reads_what_came_while_the_process_was_stopped(attempt):
    """The deadline passes meanwhile, and the interrupted system call returns without a new look."""
    message, sender = socket.socketpair()
    told_us, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def wait_once():
        inbox_module.GAP_S = 0.01
        inbox = Inbox()
        told = []
        inbox.watch(message, lambda: told.append("message"))
        deadline_at = time.monotonic() + 1.0  # by which it has been stopped, also on a loaded machine
        tells.send(b"%f" % deadline_at)
        inbox.wait(deadline_at)
        tells.send(repr((told, time.monotonic() > deadline_at)).encode())

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


def test_long_callback_is_a_gap_too(monkeypatch, inbox, pair, told):
    """An event during a long callback is told in the same turn, and that turn was long."""
    ours, theirs = pair
    second, teller = socket.socketpair()
    theirs.send(b"x")
    passed = [1000.0]
    monkeypatch.setattr("supervisor.clock.monotonic", lambda: passed[0])

    def take_long():
        told.append("first")
        ours.recv(1)
        teller.send(b"x")
        passed[0] += 1.5

    inbox.watch(ours, take_long)
    inbox.watch(second, lambda: told.append("second"))
    inbox.wait(1000.0)
    assert told == ["first", "second"]
    assert inbox.turn_began_at == 1000.0
    inbox.forget(second)
    second.close()
    teller.close()


def test_inbox_is_closed_on_exec(inbox):
    assert not os.get_inheritable(inbox._epoll.fileno())


def test_end_of_a_descriptor_calls_back():
    def run():
        inbox = Inbox()
        ours, theirs = socket.socketpair()
        told = []
        inbox.watch(ours, lambda: told.append("end"))
        theirs.close()
        inbox.wait(0.0)
        assert told == ["end"]

    in_fork(run)


def test_oldest_at_bounds_the_age_of_an_event(inbox, pair, told):
    """An event may have happened while the loop was busy. One that ends a wait has happened just now."""
    ours, theirs = pair
    inbox.watch(ours, lambda: told.append(inbox.oldest_at))
    inbox.wait(0.0)
    theirs.send(b"x")
    time.sleep(0.3)  # a turn that takes long
    turned_at = time.monotonic()
    inbox.wait(0.0)
    assert told.pop() < turned_at
    ours.recv(1)
    inbox.wait(0.0)
    asked_at = time.monotonic()
    writer = Process(lambda: (time.sleep(0.5), theirs.send(b"x")))
    inbox.wait(asked_at + 10)
    assert told.pop() >= asked_at
    writer.await_end()
