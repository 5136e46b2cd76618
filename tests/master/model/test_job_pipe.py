"""Each job sent to a child is in exactly one place: with the child or with the master."""

import array
import ctypes
import errno
import fcntl
import os
import random
import socket
import struct
import termios

import pytest

from supervisor import messages
from supervisor.linux import kernel
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.job_pipe import MAX_SENT, charge
from supervisor.master.model.states import ChildState
from supervisor.messages import INLINE_PAYLOAD_BYTES, Verb
from tests.parts import await_readable, held_of, open_fds, refused

#: Options of sockets that Python does not name.
_SO_ATTACH_FILTER = 26
_SO_PASSPIDFD = 76


@pytest.mark.parametrize("around", [0, *(2**power for power in range(6, 16)), messages.MAX_PACKET_BYTES])
def test_kernel_never_charges_more_for_a_packet(around):
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


def test_racing_reader_and_take_back_get_each_job_once(child, process):
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


def test_job_taken_back_can_be_sent_again(child):
    child.send(held_of(1))
    (held,) = child.take_back()
    assert child.state is ChildState.IDLE
    child.send(held)
    assert child.take_back() == [held]
    child.close_child_ends()


@pytest.mark.parametrize("size", [0, 1, INLINE_PAYLOAD_BYTES, INLINE_PAYLOAD_BYTES + 1, 5_000_000])
@pytest.mark.parametrize("is_bytes", [False, True])
def test_payloads_of_any_size_arrive_unchanged(child, size, is_bytes):
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


def test_large_payload_goes_and_comes_with_its_job(child):
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


def test_missing_payload_is_noticed(child, monkeypatch):
    held = held_of(1, raw=b"x" * 20_000)
    child.send(held)
    receive = kernel.receive
    monkeypatch.setattr(kernel, "receive", lambda sock, size, _fds, **how: receive(sock, size, 0, **how))
    assert child.take_back() == [held]
    assert not held.has_payload
    child.close_child_ends()


@pytest.mark.parametrize(("times", "taken"), [(3, [1, 2]), (1000, [])])
def test_jobs_are_taken_back_though_the_kernel_lacks_memory_at_first(child, monkeypatch, times, taken):
    for token in (1, 2):
        child.send(held_of(token))
    monkeypatch.setattr(kernel, "receive", refused(times, errno.ENOMEM, kernel.receive))
    assert [held.lease.token for held in child.take_back()] == taken
    assert child.jobs.lacks_memory == (not taken)
    child.close_child_ends()


def test_taking_memfds_back_leaks_no_descriptor(child):
    before = open_fds()
    for _ in range(50):
        for token in range(1, 6):
            child.send(held_of(token, raw=b"x" * 20_000))
        assert len(child.take_back()) == 5
    assert open_fds() == before
    child.close_child_ends()


# a child that changes the options of its socket


def cut_packets(child, length):
    """Shorten each later packet by a filter with one instruction, as hostile code in the child can."""
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, length))  # BPF_RET | BPF_K
    program = struct.pack("HP", 1, ctypes.addressof(code))
    with socket.socket(fileno=os.dup(child.child_ends[0])) as jobs:
        jobs.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


@pytest.mark.parametrize("length", [1, 2, 12])
def test_cut_jobs_are_taken_back_and_the_received_ones_are_not(child, length):
    before = open_fds()
    child.send(held_of(1))
    child.send(held_of(2))
    with socket.socket(fileno=os.dup(child.child_ends[0])) as jobs:
        kernel.receive(jobs, messages.MAX_PACKET_BYTES, 1)
    cut_packets(child, length)
    large = held_of(3, raw=b"x" * 20_000)
    child.send(large)
    child.send(held_of(4))
    assert [held.lease.token for held in child.take_back()] == [2, 3, 4]
    assert [held.lease.token for held in child.sent] == [1]
    assert child.jobs.is_cutting
    assert not large.has_payload
    assert open_fds() == before
    child.close_child_ends()


def test_job_that_is_cut_behind_its_token_is_taken_back_as_ever(child):
    cut_packets(child, 13)
    child.send(held_of(1))
    assert [held.lease.token for held in child.take_back()] == [1]
    assert not child.jobs.is_cutting
    child.close_child_ends()


def test_pidfds_that_the_child_asks_for_are_closed(child):
    with socket.socket(fileno=os.dup(child.child_ends[0])) as jobs:
        try:
            jobs.setsockopt(socket.SOL_SOCKET, _SO_PASSPIDFD, 1)
        except OSError as error:
            assert error.errno == errno.ENOPROTOOPT
            pytest.skip("this kernel sends no pidfds")
    before = open_fds()
    for token in range(1, 6):
        child.send(held_of(token, raw=b"x" * 20_000 if token == 5 else b""))
    taken = child.take_back()
    assert [held.has_payload for held in taken] == [True] * 5
    del taken
    assert open_fds() == before
    child.close_child_ends()


def test_unreceived_memfds_leak_no_descriptor():
    before = open_fds()
    child = ChildHandle(1, 1, lambda *_said: None, lambda *_planned: None)
    child.become(ChildState.IDLE)
    for token in range(1, 6):
        child.send(held_of(token, raw=b"x" * 20_000))
    child.close_child_ends()
    child.close()
    assert open_fds() == before


def test_one_job_remains_after_taking_back_from_a_dead_child(child, process):
    def take_one(ends):
        ends.next_job()

    for token in range(1, 6):
        child.send(held_of(token))
    process(child, take_one).await_end()
    assert [held.lease.token for held in child.take_back()] == [2, 3, 4, 5]
    assert [held.lease.token for held in child.sent] == [1]


def test_socket_shut_down_by_the_child_is_a_broken_pipe(child, process):
    def shut(ends):
        ends.jobs.shutdown(socket.SHUT_RDWR)

    process(child, shut).await_end()
    with pytest.raises(BrokenPipeError):
        child.send(held_of(1))
    assert (len(child.sent), child.state) == (0, ChildState.IDLE)


def test_child_that_makes_its_socket_non_blocking_changes_nothing(child, process):
    def unblock(ends):
        ends.jobs.setblocking(False)

    process(child, unblock).await_end()
    child.send(held_of(1))
    assert len(child.take_back()) == 1
