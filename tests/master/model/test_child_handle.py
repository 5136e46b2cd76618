"""Sockets between master and child: each job is in exactly one place, whoever is quicker."""

import array
import errno
import fcntl
import gc
import os
import random
import resource
import signal
import socket
import sys
import termios
import traceback
from contextlib import contextmanager
from dataclasses import replace

import pytest

from supervisor import messages
from supervisor.child import child as running
from supervisor.child.handlers import Handler, hooks
from supervisor.child.talk import handle_notices
from supervisor.linux import kernel
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.job_pipe import MAX_SENT, charge
from supervisor.master.model.states import ChildState, IllegalMove
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.messages import INLINE_PAYLOAD_BYTES, Notice, Verb
from supervisor.sandbox.confinement import Confinement
from supervisor.sandbox.workdir import Workdir
from tests.parts import Ends, Process, await_readable, held_of, in_fork, open_fds, rest


@pytest.fixture
def process():
    """Makes processes at the other ends of a child's sockets; killed at the end."""
    made = []

    def make(child, behave):
        made.append(Process(lambda: behave(Ends(child))))
        child.close_child_ends()
        child.spawned(made[-1].pid, os.dup(made[-1].pidfd))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture
def child():
    child = ChildHandle(1, 1, lambda *_said: None, lambda _child: None)
    child.become(ChildState.IDLE)
    yield child
    if child.state is not ChildState.GONE:
        child.close()


@pytest.mark.parametrize("around", [0, *(2**power for power in range(6, 16)), messages.MAX_PACKET_BYTES])
def test_the_kernel_never_charges_more_for_a_packet_than_we_do(around):
    for size in range(max(1, around - 600), min(around + 600, messages.MAX_PACKET_BYTES) + 1, 11):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            ours.send(bytes(size))
            charged = array.array("i", [0])
            fcntl.ioctl(ours, termios.TIOCOUTQ, charged)
            assert size < charged[0] <= charge(size)


def answer_all(ends):
    while True:
        ends.say(Verb.COMPLETED, ends.next_job().token)


def test_of_20000_messages_a_racing_reader_and_take_back_get_each_exactly_once_and_in_order(child, process):
    process(child, answer_all)
    draw = random.Random(1)
    received, taken = [], []

    def read():
        for outcome in child.talk.read():
            assert outcome.token == child.running.lease.token
            received.append(outcome.token)
            child.answered(1.0)
            if not child.sent:
                child.become(ChildState.IDLE)

    token = 0
    while token < 20_000:
        for _ in range(draw.randint(1, 60)):
            if token < 20_000 and len(child.sent) < MAX_SENT:
                token += 1
                child.send(held_of(token, 0.001))
        if draw.random() < 0.6:
            batch = [held.lease.token for held in child.take_back()]
            assert batch == sorted(batch)
            taken += batch
        read()
    while child.sent:
        await_readable(child.talk.fd)
        read()
    assert received == sorted(received)
    assert sorted(received + taken) == list(range(1, 20_001))
    assert min(len(received), len(taken)) > 100
    assert (child.jobs.charged_bytes, round(child.jobs.estimated_s, 6)) == (0, 0.0)


def test_what_was_taken_back_can_be_sent_again(child):
    child.send(held_of(1))
    (held,) = child.take_back()
    assert child.state is ChildState.IDLE
    child.send(held)
    assert child.take_back() == [held]
    child.close_child_ends()


@pytest.mark.parametrize("size", [0, 1, INLINE_PAYLOAD_BYTES, INLINE_PAYLOAD_BYTES + 1, 5_000_000])
@pytest.mark.parametrize("is_bytes", [False, True])
def test_payloads_of_any_size_arrive_as_they_are_and_large_ones_in_a_sealed_memfd(child, size, is_bytes):
    raw = random.Random(size).randbytes(size)
    child.send(held_of(7, raw=raw, is_bytes=is_bytes, failures=1, deaths=2, interruptions=3))
    with socket.socket(fileno=os.dup(child.child_ends[0])) as jobs:
        packet, fds = kernel.receive(jobs, messages.MAX_PACKET_BYTES, 1)
    job = messages.unpack_job(packet)
    assert (len(fds), job.payload is None) == ((1, True) if size > INLINE_PAYLOAD_BYTES else (0, False))
    if fds:
        with pytest.raises(PermissionError):
            os.write(fds[0], b"x")
        assert kernel.read_memfd(fds[0]) == raw
    else:
        assert job.payload == raw
    assert (job.token, job.jid, job.klass, job.queue, job.is_bytes) == (7, "j7", "k", "q", is_bytes)
    assert (job.failures, job.deaths, job.interruptions) == (1, 2, 3)
    child.close_child_ends()


def test_a_large_payload_is_kept_by_whoever_has_the_job(child):
    raw = random.Random(1).randbytes(1_000_000)
    held = held_of(1, raw=raw)
    for _ in range(2):
        child.send(held)
        assert (held.lease.raw, held.has_payload) == (b"", False)
        assert child.take_back() == [held]
        assert held.has_payload
    child.send(held)
    with socket.socket(fileno=os.dup(child.child_ends[0])) as jobs:
        _packet, (fd,) = kernel.receive(jobs, messages.MAX_PACKET_BYTES, 1)
    assert kernel.read_memfd(fd) == raw
    child.close_child_ends()


def test_a_payload_that_does_not_come_back_is_known_to_be_missing(child, monkeypatch):
    held = held_of(1, raw=b"x" * 20_000)
    child.send(held)
    receive = kernel.receive
    monkeypatch.setattr(kernel, "receive", lambda sock, size, _fds, **how: receive(sock, size, 0, **how))
    assert child.take_back() == [held]
    assert not held.has_payload
    child.close_child_ends()


def test_taking_memfds_back_leaks_no_descriptor(child):
    before = open_fds()
    for _ in range(50):
        for token in range(1, 6):
            child.send(held_of(token, raw=b"x" * 20_000))
        assert len(child.take_back()) == 5
    assert open_fds() == before
    child.close_child_ends()


def test_sending_memfds_that_nobody_receives_leaks_none_either():
    before = open_fds()
    child = ChildHandle(1, 1, lambda *_said: None, lambda _child: None)
    child.become(ChildState.IDLE)
    for token in range(1, 6):
        child.send(held_of(token, raw=b"x" * 20_000))
    child.close_child_ends()
    child.close()
    assert open_fds() == before


def test_a_memfd_is_read_only_where_what_follows_the_job_in_its_hands_may_come_in_one(child, monkeypatch):
    monkeypatch.setattr(kernel, "read_sealed", lambda *_given: pytest.fail("it was read"))

    def says(packet):
        memfd = kernel.sealed_memfd((b"x",))
        kernel.send(talk, packet, (memfd,))
        os.close(memfd)
        with pytest.raises(ValueError):
            list(child.talk.read())

    with socket.socket(fileno=os.dup(child.child_ends[1])) as talk:
        before = open_fds()
        says(messages.pack_outcome(Verb.FOLLOWED, 0, 0.0))
        child.send(held_of(1))
        for verb, token in ((Verb.COMPLETED, 1), (Verb.PROGRESS, 1), (Verb.FOLLOWED, 2)):
            says(messages.pack_outcome(verb, token, 0.0))
        says(b"\x05")
        assert open_fds() == before
    child.close_child_ends()


def test_outcomes_are_read_in_the_order_of_the_jobs_and_the_next_one_begins_with_the_answer(child, process):
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


def test_when_the_child_takes_a_job_from_among_those_taken_back_its_time_begins_now(child):
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


def test_words_without_a_mark_are_those_of_the_job_behind_the_last_mark_else_of_the_last_job(child):
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


def test_the_childs_end_is_the_end_of_its_talk_after_its_last_words(child, process):
    def say_and_die(ends):
        ends.say(Verb.COMPLETED, ends.next_job().token)

    child.send(held_of(1))
    assert process(child, say_and_die).await_end() == 0
    assert [outcome.token for outcome in child.talk.read()] == [1]
    assert child.talk.at_end


def test_its_last_words_are_heard_also_where_it_left_words_of_ours_unread(child, process):
    def answer_and_die(ends):
        await_readable(ends.talk)
        ends.say(Verb.COMPLETED, ends.next_job().token)

    child.send(held_of(1))
    running = process(child, answer_and_die)
    child.talk.send(messages.pack_notice(Notice(1, "drain")))
    running.await_end()
    assert [outcome.token for outcome in child.talk.read()] == [1]
    assert child.talk.at_end


def test_what_a_dead_child_did_not_receive_is_taken_back_and_one_job_remains(child, process):
    def take_one(ends):
        ends.next_job()

    for token in range(1, 6):
        child.send(held_of(token))
    process(child, take_one).await_end()
    assert [held.lease.token for held in child.take_back()] == [2, 3, 4, 5]
    assert [held.lease.token for held in child.sent] == [1]


def test_a_child_that_shuts_down_the_common_end_is_a_broken_pipe_and_nothing_is_sent(child, process):
    def shut(ends):
        ends.jobs.shutdown(socket.SHUT_RDWR)

    process(child, shut).await_end()
    with pytest.raises(BrokenPipeError):
        child.send(held_of(1))
    assert (len(child.sent), child.state) == (0, ChildState.IDLE)


def test_a_child_that_makes_the_common_end_non_blocking_changes_nothing_for_us(child, process):
    def unblock(ends):
        ends.jobs.setblocking(False)

    process(child, unblock).await_end()
    child.send(held_of(1))
    assert len(child.take_back()) == 1


def test_notices_to_a_child_that_reads_none_are_given_up_not_waited_for(child, process):
    def pause(ends):
        rest()

    running = process(child, pause)
    os.kill(running.pid, signal.SIGSTOP)
    for _ in range(1000):
        child.notices.interrupt(1, "drain")


def test_a_kill_before_the_pid_is_known_is_carried_out_when_it_is(child):
    child.kill("a test")
    child.kill("a second reason")
    assert child.why_killed == "a test"
    running = Process(rest)
    child.spawned(running.pid, os.dup(running.pidfd))
    assert running.await_end() == signal.SIGKILL
    child.close_child_ends()


def test_signals_to_a_child_that_has_ended_hit_nobody(child, process):
    process(child, lambda ends: None).await_end()
    child.write_stacks()
    child.notices.interrupt(1, "drain")
    child.kill("a test")


def test_closing_a_child_leaves_no_descriptor_and_is_done_once():
    before = open_fds()
    child = ChildHandle(1, 1, lambda *_said: None, lambda _child: None)
    child.close_child_ends()
    child.close()
    assert open_fds() == before
    with pytest.raises(IllegalMove):
        child.close()


# descriptors


def test_a_child_that_cannot_have_all_its_descriptors_leaks_none():
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
                    ChildHandle(1, 1, lambda *_said: None, lambda _child: None)
                assert failed.value.errno == errno.EMFILE
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        del failed  # it holds the last one
        assert open_fds() == low

    in_fork(fail_often)


def test_a_zygote_that_cannot_be_started_leaks_no_descriptor(monkeypatch, tmp_path):
    boot = messages.Boot("handlers", str(tmp_path), 1, "retry", 0, 1024)
    before = open_fds()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            ZygoteHandle(1, boot, {}, 0.0)
    assert open_fds() == before


# in the child


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@contextmanager
def serving(tmp_path, function):
    """A process that serves one job, of klass k, by this handler; and our ends of `jobs` and `talk`."""
    (jobs, jobs_theirs), (talk, talk_theirs) = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in "jt")

    def serve():
        known = {"k": Handler(function, "k", messages.HandlerSettings(), False)}
        boot = messages.Boot("handlers", str(tmp_path), 1, "retry", 0, 1024)
        confinement = Confinement(boot, [messages.Profile("none", True)], lambda: None)
        handle_notices()
        running.Child(1, jobs_theirs, talk_theirs, Workdir(str(tmp_path / "w")), known, boot, confinement).serve()

    process = Process(serve)
    try:
        assert messages.unpack_outcome(talk.recv(1000)).verb == Verb.READY
        yield process, jobs, talk
    finally:
        process.end()
        for end in (jobs, jobs_theirs, talk, talk_theirs):
            end.close()


def packed_job(token):
    return messages.pack_job(token, ("j", "k", "q", 0, 0, 0, 0, (), None, False, 0.0), b"1", False)


def test_a_notice_that_comes_while_a_soft_timeout_is_put_into_words_ends_nobody(tmp_path, pipe):
    telling, tells = pipe

    def late(job):
        known_words = traceback.format_exception

        def in_many_words(*error):
            os.write(tells, b"!")
            while not job.should_stop:
                os.sched_yield()
            return known_words(*error)

        traceback.format_exception = in_many_words
        os.write(tells, b"!")
        while True:
            os.sched_yield()

    with serving(tmp_path, late) as (process, jobs, talk):
        jobs.send(packed_job(7))
        for notice in (Notice(7, messages.TIMEOUT, "near"), Notice(7, "drain")):
            assert os.read(telling, 1) == b"!"
            talk.send(messages.pack_notice(notice))
            signal.pidfd_send_signal(process.pidfd, kernel.NOTICE_SIGNAL)
        await_readable(talk)
        outcome = messages.unpack_outcome(talk.recv(100_000))
        assert (outcome.verb, messages.unpack_trouble(outcome.body).group) == (Verb.RETRIED, "timeout")
        assert process.await_end() == 0


def test_a_child_that_waits_rehearses_and_nobody_hears_of_it(tmp_path, monkeypatch, pipe):
    told, tells = pipe
    monkeypatch.setattr(kernel, "comes_within", lambda _sock, _timeout_s: os.write(tells, b"waits,") == 0)
    rehearsed = replace(running.REHEARSAL_HANDLER, function=lambda _job: os.write(tells, b"rehearses,") and None)
    monkeypatch.setattr(running, "REHEARSAL_HANDLER", rehearsed)
    monkeypatch.setattr(running, "setproctitle", lambda text: os.write(tells, text.encode() + b","))
    around = lambda job: os.write(tells, f"around {job.jid},".encode()) and (lambda _ending: None)  # noqa: E731
    monkeypatch.setattr(running, "hooks", replace(hooks, around_job=[around]))
    with serving(tmp_path, lambda job: os.write(tells, b"handler,") and None) as (process, jobs, talk):
        said = b""
        while not said.endswith(b"rehearses,leasehold: child 1 idle,"):
            await_readable(told)
            said += os.read(told, 1000)
        assert said == b"leasehold: child 1 idle,waits,rehearses,leasehold: child 1 idle,"
        jobs.send(packed_job(7))
        await_readable(talk)
        outcome = messages.unpack_outcome(talk.recv(1000))
        assert (outcome.verb, outcome.token) == (Verb.COMPLETED, 7)
        assert process.await_end() == 0
        _title, *rest = os.read(told, 1000).split(b",")
        assert rest == [b"around j", b"handler", b""]
