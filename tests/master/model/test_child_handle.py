"""A child's handle: which job runs, notices, kills and descriptors."""

import errno
import gc
import os
import resource
import signal

import pytest

from supervisor import messages
from supervisor.linux import kernel
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.states import ChildState, IllegalMove
from supervisor.messages import Verb
from tests.parts import Process, await_readable, held_of, in_fork, open_fds, rest


def answer_all(ends):
    while True:
        ends.say(Verb.COMPLETED, ends.next_job().token)


def test_next_job_begins_with_the_answer_to_the_last(child, process):
    process(child, answer_all)
    for token in (3, 1, 2):
        child.send(held_of(token))
    assert [held.started_at > 0 for held in child.sent] == [True, False, False]
    answered = []
    while child.sent:
        await_readable(child.talk.fd)
        for outcome in child.talk.read():
            assert outcome.token == child.running.lease.token
            answered.append(child.answered(1.0).lease.token)
            assert child.running is None or child.running.started_at > 0
    assert answered == [3, 1, 2]
    assert child.served == 3


def test_job_received_during_take_back_begins_now(child):
    """Else it would be past every limit at once: its start would never have been noted."""
    for token in (1, 2):
        child.send(held_of(token))
    child.end_plan.kill_by(1.0, "timeout")
    first, _second = [kernel.receive(child.jobs._receiver, messages.MAX_PACKET_BYTES, 1)[0] for _ in range(2)]
    child.jobs._sender.send(first)  # the second is as good as received by the child, between two of our looks
    assert [held.lease.token for held in child.take_back()] == [1]
    assert child.running.lease.token == 2
    assert child.running.started_at > 0
    assert (child.end_plan.kill_at, child.why_killed) == (None, None)
    assert child.state is ChildState.BUSY
    child.close_child_ends()


def test_unmarked_lines_belong_to_the_job_after_the_last_mark(child):
    said = []
    for token, ended in ((1, 0), (1, 1), (2, 1), (2, 2)):
        if token > len(child.sent):
            child.send(held_of(token))
        child.output.ended = ended
        said.append(child.printing.lease.token)
    child.answered(1.0)
    child.answered(1.0)
    said.append(child.printing.lease.token)
    assert said == [1, 1, 2, 2, 2]
    child.close_child_ends()


def test_notices_to_a_stopped_child_never_block(child, process):
    def pause(ends):
        rest()

    running = process(child, pause)
    os.kill(running.pid, signal.SIGSTOP)
    for _ in range(1000):
        child.notices.interrupt(1, "drain")


def test_kill_waits_until_the_pid_is_known(child):
    child.kill("a test")
    child.kill("a second reason")
    assert child.why_killed == "a test"
    running = Process(rest)
    child.spawned(running.pid, os.dup(running.pidfd))
    assert running.await_end() == signal.SIGKILL
    child.close_child_ends()


def test_first_reason_to_retire_stays(child):
    child.retire("the code was reloaded")
    child.retire("its memory is needed for another job")
    assert child.retire_reason == "the code was reloaded"


def test_signals_to_an_ended_child_do_nothing(child, process):
    process(child, lambda ends: None).await_end()
    child.write_stacks()
    child.notices.interrupt(1, "drain")
    child.kill("a test")


def test_closing_a_child_leaves_no_descriptor():
    before = open_fds()
    child = ChildHandle(1, 1, lambda *_said: None, lambda *_planned: None)
    child.close_child_ends()
    child.close()
    assert open_fds() == before
    with pytest.raises(IllegalMove):
        child.close()


def test_child_without_all_its_descriptors_leaks_none():
    def fail_often():
        open_fds()  # closes what other tests have left, before the gaps are filled
        gc.disable()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        top = max(map(int, os.listdir("/proc/self/fd")))
        while os.dup(0) < top:
            pass  # the gaps below it are filled
        low = open_fds()
        for room in range(7):
            resource.setrlimit(resource.RLIMIT_NOFILE, (low - 1 + room, hard))  # looking took one
            for _ in range(5):
                with pytest.raises(OSError) as failed:
                    ChildHandle(1, 1, lambda *_said: None, lambda *_planned: None)
                assert failed.value.errno == errno.EMFILE
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        del failed  # it holds the last one
        assert open_fds() == low

    in_fork(fail_often)
