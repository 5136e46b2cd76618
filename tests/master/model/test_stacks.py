"""The files for the stacks of processes, and the stack dump that collects them."""

import faulthandler
import math
import os
import select
import signal

import pytest

from supervisor import clock, messages
from supervisor.linux import kernel
from supervisor.master.model.stacks import SIZE_BYTES, Stacks
from supervisor.master.requests.stack_dump import STACK_DUMP, StackDump, describe
from supervisor.master.timers import Timers
from tests.parts import Process, await_readable, holding, lease_of, never_reading, rest, until


@pytest.fixture
def file():
    made = Stacks()
    yield made
    made.close()


def writing(ends):
    """A child as ours are: its stacks go to its file, in Python or not."""
    faulthandler.register(kernel.STACKS_SIGNAL, file=ends.stacks, all_threads=True)
    ends.talk.send(messages.pack_ready())
    ends.next_job()
    os.write(ends.out, b"has it\n")
    rest()


def deaf(ends):
    """Catches the signal, and writes nothing."""
    signal.signal(kernel.STACKS_SIGNAL, lambda *_: None)
    ends.talk.send(messages.pack_ready())
    rest()


class Asked:
    """The results of all stack dumps, in order."""

    def __init__(self, desk):
        self.desk = desk
        self.timers = Timers()
        self.stack_dump = StackDump(self.timers)
        self.told = []

    def ask(self):
        self.stack_dump.ask(self.desk.slots, self.told.append)

    def until_told(self, count=1):
        """Turn as a master does: until it has told so many times."""
        poll = select.poll()
        until(lambda: self._turn(poll) or len(self.told) >= count)
        return self.told[-1]

    def _turn(self, poll):
        poll.poll(min(1000, max(0.0, self.timers.at(STACK_DUMP) - clock.monotonic()) * 1000))
        self.timers.run_due(clock.monotonic())


@pytest.fixture
def asked(desk):
    return lambda **flags: Asked(desk(**flags))


# the file


def test_stacks_are_read_from_their_start(file):
    os.write(file.fd, b"before\n")
    start = file.make_room()
    os.write(file.fd, b"now\n")
    assert (file.read(start), file.read()) == ("now\n", "before\nnow\n")


def test_half_full_file_is_cleared(file):
    os.write(file.fd, b"x" * (SIZE_BYTES // 2 + 1))
    assert file.make_room() == 0
    os.write(file.fd, b"now\n")
    assert file.read() == "now\n"


def test_file_can_neither_be_resized_nor_unsealed(file):
    for size in (SIZE_BYTES + 1, SIZE_BYTES - 1, 0):
        with pytest.raises(PermissionError):
            os.ftruncate(file.fd, size)
    os.lseek(file.fd, SIZE_BYTES - 3, os.SEEK_SET)
    assert os.write(file.fd, b"abcdef") == 3
    with pytest.raises(OSError):
        os.write(file.fd, b"more")


@pytest.mark.parametrize("place", [0, 1, SIZE_BYTES, 2**40, 2**63 - 1])
def test_any_file_offset_is_survived(file, place):
    os.write(file.fd, b"here\n\xff\x00\n")
    os.lseek(file.fd, place, os.SEEK_SET)
    assert len(file.read()) <= SIZE_BYTES
    assert len(file.read(SIZE_BYTES)) == 0
    assert 0 <= file.make_room() <= SIZE_BYTES // 2


@pytest.mark.parametrize("place", [SIZE_BYTES + 1, 2**40, 2**63 - 1])
def test_heading_finds_room_at_any_file_offset(file, place):
    os.lseek(file.fd, place, os.SEEK_SET)
    file.write_heading("near its time limit:")
    os.write(file.fd, b"now\n")
    assert file.read() == "near its time limit:\nnow\n"


def test_heading_survives_an_offset_that_moves_meanwhile(file, monkeypatch):
    monkeypatch.setattr(file, "clear", lambda: os.lseek(file.fd, 2**63 - 1, os.SEEK_SET))
    os.lseek(file.fd, 2**40, os.SEEK_SET)
    file.write_heading("near its time limit:")


def test_heading_of_a_full_file_is_lost(file):
    os.lseek(file.fd, SIZE_BYTES, os.SEEK_SET)
    file.write_heading("near its time limit:")
    assert "near" not in file.read()


def test_invalid_bytes_are_shown_as_far_as_possible(file):
    os.write(file.fd, b"a\xffb\x00c")
    assert file.read() == "a\ufffdbc"


# the survey


def test_all_children_are_seen_with_their_stacks(asked):
    asked = asked(processes="2")
    busy = asked.desk.child(writing)
    asked.desk.give(lease_of(1))
    await_readable(busy.output.fd)
    idle = asked.desk.child(writing)
    asked.ask()
    assert asked.told == []
    seen = dict(asked.until_told())
    assert seen.keys() == {busy, idle}
    assert [stack.count("in writing") for stack in seen.values()] == [1, 1]
    assert (describe(busy)["jid"], describe(idle).get("jid")) == ("j1", None)
    assert asked.timers.at(STACK_DUMP) == math.inf
    asked.timers.run_due(clock.monotonic() + 10)
    assert len(asked.told) == 1


def test_second_request_gets_the_same_stacks(asked):
    asked = asked(processes="1")
    child = asked.desk.child(writing)
    asked.desk.give(lease_of(1))
    await_readable(child.output.fd)
    for _ in range(3):
        asked.ask()
    asked.until_told(3)
    stacks_seen = [seen[0].stack for seen in asked.told]
    assert stacks_seen[0].count("most recent call first") == 1
    assert stacks_seen == [stacks_seen[0]] * 3
    asked.ask()
    asked.until_told(4)
    assert asked.told[3][0].stack.count("most recent call first") == 1


def test_answer_is_whole_after_many_requests(asked):
    asked = asked(processes="1")
    child = asked.desk.child(writing)
    asked.desk.give(lease_of(1))
    await_readable(child.output.fd)
    os.write(child.stacks.fd, b"x" * (SIZE_BYTES // 2 - 100))  # what many have asked for before
    for number in range(1, 5):
        asked.ask()
        stack = asked.until_told(number)[0].stack
        assert (stack.count("in writing"), "x" * 10 in stack) == (1, False)
    assert child.stacks.end <= SIZE_BYTES // 2


@pytest.mark.parametrize("behave", [deaf, never_reading])
def test_silent_child_is_waited_for_one_second(asked, behave):
    asked = asked(processes="2")
    asked.desk.child(behave)
    other = asked.desk.child(writing)
    began_at = clock.monotonic()
    asked.ask()
    until(lambda: other.stacks.read())
    for after_s in (0.3, 0.6, 0.9):
        asked.timers.run_due(began_at + after_s)
        assert asked.told == []
        assert asked.timers.at(STACK_DUMP) <= began_at + after_s + 0.2
    asked.timers.run_due(clock.monotonic() + 1.0)
    assert [bool(each.stack) for each in asked.told[0]] == [False, True]


def test_child_that_ends_meanwhile_is_left_out(asked):
    asked = asked(processes="2")
    ended, other = asked.desk.child(holding), asked.desk.child(writing)
    asked.ask()
    os.kill(ended.pid, signal.SIGKILL)
    asked.desk.reap(ended)
    assert [each.child for each in asked.until_told()] == [other]


def test_no_children_give_an_empty_answer(asked):
    asked = asked()
    asked.ask()
    assert asked.until_told() == []


def test_unready_child_is_not_asked(asked):
    asked = asked()
    asked.desk.child(writing, ready=False)
    asked.ask()
    assert asked.until_told() == []


def test_requested_stacks_are_not_kept_for_the_jobs_end(asked):
    asked = asked(processes="1")
    child = asked.desk.child(writing)
    asked.desk.give(lease_of(1))
    await_readable(child.output.fd)
    asked.ask()
    assert asked.until_told()[0].stack
    os.kill(child.pid, signal.SIGKILL)
    asked.desk.reap(child)
    (outcome,) = asked.desk.outcomes()
    assert outcome.reason == "SIGKILL"
    assert "stack" not in outcome.details


def test_process_without_a_handler_gets_no_signal(new_child):
    child = new_child()
    process = Process(rest)
    try:
        child.spawned(process.pid, os.dup(process.pidfd))
        child.write_stacks()
        child.notices.interrupt(1, "drain")
        os.kill(process.pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(process.await_end()) == -signal.SIGTERM
    finally:
        process.end()
