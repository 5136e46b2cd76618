"""Calls that Python lacks, tried on this machine's kernel."""

import errno
import fcntl
import os
import resource
import signal
import socket
import time
from pathlib import Path

import pytest

from supervisor.linux import kernel
from tests.lengths import SOON_S
from tests.parts import Process, await_readable, in_fork, open_fds, rest, until


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ours, theirs
    ours.close()
    theirs.close()


# signals


def test_signals_come_as_values_with_the_senders_pid():
    def run():
        signal.pthread_sigmask(signal.SIG_BLOCK, kernel.HANDLED_SIGNALS)
        signals = kernel.SignalFd(kernel.HANDLED_SIGNALS)
        assert signals.read() == []
        assert not os.get_inheritable(signals.fileno())
        sender = Process(lambda: os.kill(os.getppid(), signal.SIGTERM))
        sender.await_end()
        received = signals.read()
        assert (signal.SIGTERM, sender.pid, os.getuid(), False) in received
        assert {each.signo for each in received} == {signal.SIGTERM, signal.SIGCHLD}
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.read() == [(signal.SIGUSR1, os.getpid(), os.getuid(), False)]
        for signo in kernel.HANDLED_SIGNALS - {signal.SIGCHLD}:
            os.kill(os.getpid(), signo)
        await_readable(signals)
        assert {each.signo for each in signals.read()} >= kernel.HANDLED_SIGNALS - {signal.SIGCHLD, signal.SIGCONT}
        signals.close()

    in_fork(run)


def test_closed_signalfd_is_gone():
    before = open_fds()
    signals = kernel.SignalFd([signal.SIGUSR1])
    signals.close()
    assert open_fds() == before


def test_reserved_signals_are_real_time_and_can_be_handled():
    assert {kernel.NOTICE_SIGNAL, kernel.STACKS_SIGNAL} <= set(signal.valid_signals())
    assert not {kernel.NOTICE_SIGNAL, kernel.STACKS_SIGNAL} & kernel.HANDLED_SIGNALS


# processes


def test_pidfd_shows_the_end_and_then_signals_no_process():
    process = Process(rest)
    assert not kernel.await_ends([process.pidfd], 0.0)
    signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
    assert kernel.await_ends([process.pidfd], SOON_S)
    pidfd = os.dup(process.pidfd)
    process.end()
    assert kernel.await_ends([pidfd], 0.1)
    with pytest.raises(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


def test_ends_of_processes_are_awaited_together_until_the_deadline():
    processes = [Process(rest) for _ in range(3)]
    try:
        pidfds = [process.pidfd for process in processes]
        for pidfd in pidfds[:2]:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        began_at = time.monotonic()
        assert not kernel.await_ends(pidfds, 0.05)
        assert 0.05 <= time.monotonic() - began_at < 5.0
        signal.pidfd_send_signal(pidfds[2], signal.SIGKILL)
        assert kernel.await_ends(pidfds, SOON_S)
        assert kernel.await_ends([], 0.0)
    finally:
        for process in processes:
            process.end()


def test_children_of_self_are_direct_children_with_zombies():
    before = kernel.children_of_self()
    ours, theirs = os.pipe()

    def have_a_child():
        grandchild = Process(rest)
        os.write(theirs, b"%d" % grandchild.pid)
        rest()

    zombie, living = Process(lambda: None), Process(have_a_child)
    try:
        assert kernel.await_ends([zombie.pidfd], SOON_S)
        await_readable(ours)
        grandchild = int(os.read(ours, 20))
        assert kernel.children_of_self() - before == {zombie.pid, living.pid}
    finally:
        os.kill(grandchild, signal.SIGKILL)
        zombie.end()
        living.end()
        os.close(ours)
        os.close(theirs)
    assert kernel.children_of_self() == before


def test_children_of_a_dead_process_are_none():
    def parent():
        Process(rest)
        rest()

    process = Process(parent)
    until(lambda: len(kernel.children_of(process.pid)) == 1)
    (below,) = kernel.children_of(process.pid)
    process.end()
    assert kernel.children_of(process.pid) == set()
    os.kill(below, signal.SIGKILL)


def test_ended_process_counts_as_zombie_also_after_reaping():
    process = Process(rest)
    assert not kernel.is_zombie(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    await_readable(process.pidfd)
    assert kernel.is_zombie(process.pid)
    process.end()
    assert kernel.is_zombie(process.pid)


def test_oom_score_is_raised_to_the_maximum_and_inherited():
    def score(pid="self"):
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    def run():
        before = score()
        kernel.raise_oom_score(100)
        assert score() == min(1000, before + 100)
        child = Process(rest)
        assert score(child.pid) == score()
        child.end()
        kernel.raise_oom_score(5000)
        assert score() == 1000

    in_fork(run)


def test_hundreds_of_children_are_all_seen():
    def run():
        pids = set()
        for _ in range(200):  # spawned: each fork would copy the tables of all the memory that the tests have
            pids.add(os.posix_spawnp("true", ["true"], os.environ))
        assert kernel.children_of_self() == pids

    in_fork(run)


def test_orphans_come_to_the_nearest_subreaper():
    def run():
        kernel.become_subreaper()
        ours, theirs = os.pipe()

        def leave_an_orphan():
            orphan = Process(rest)
            os.write(theirs, b"%d" % orphan.pid)

        parent = Process(leave_an_orphan)
        parent.await_end()
        orphan = int(os.read(ours, 20))
        assert kernel.children_of_self() == {orphan}
        os.kill(orphan, signal.SIGKILL)
        os.waitpid(orphan, 0)

    in_fork(run)


def test_parent_death_signal_comes_when_the_parent_ends():
    ended, lives = os.pipe()  # held open by all of them

    def parent():
        os.close(ended)

        def child():
            kernel.set_parent_death_signal(signal.SIGKILL)
            os.write(lives, b"x")
            rest()

        Process(child)
        rest()

    process = Process(parent)
    os.close(lives)
    assert os.read(ended, 1) == b"x"
    process.end()
    await_readable(ended)
    assert os.read(ended, 1) == b""
    os.close(ended)


def test_new_privileges_are_refused_for_good():
    def run():
        kernel.forbid_new_privileges()
        with open("/proc/self/status") as status:
            assert "NoNewPrivs:\t1\n" in status.read()

    in_fork(run)


# memfds


def test_sealed_memfd_holds_its_parts_and_cannot_change():
    parts = [b"one", b"", bytes(3_000_000), b"end"]
    fd = kernel.sealed_memfd(parts)
    assert not os.get_inheritable(fd)
    for change in (lambda: os.write(fd, b"x"), lambda: os.ftruncate(fd, 1), lambda: os.ftruncate(fd, 10**8)):
        with pytest.raises(PermissionError):
            change()
    assert kernel.read_memfd(fd) == b"".join(parts)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_empty_memfd_is_empty():
    assert kernel.read_memfd(kernel.sealed_memfd(())) == b""


def test_sealed_memfd_of_an_untrusted_sender_is_read():
    fd = kernel.sealed_memfd([b"ab", b"c"])
    assert kernel.read_sealed(fd, 3) == b"abc"
    os.close(fd)


@pytest.mark.parametrize("kind", ["pipe", "file", "unsealed", "half sealed", "too large", "a hole", "socket"])
def test_other_descriptors_of_an_untrusted_sender_are_refused(kind, tmp_path):
    others = []
    if kind == "pipe":
        fd, other = os.pipe()
        others = [other]
    elif kind == "file":
        fd = os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR)
    elif kind == "socket":
        fd = socket.socket().detach()
    elif kind == "too large":
        fd = kernel.sealed_memfd([b"1" * 10_001])
    else:
        fd = os.memfd_create("m", os.MFD_ALLOW_SEALING)
        if kind == "half sealed":
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        elif kind == "a hole":
            os.pwrite(fd, b"x", 9_999)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    with pytest.raises(ValueError):
        kernel.read_sealed(fd, 10_000)
    for other in (fd, *others):
        os.close(other)


def test_memfd_that_cannot_be_filled_is_closed():
    before = open_fds()
    with pytest.raises(TypeError):
        kernel.sealed_memfd([b"x", "no bytes"])
    assert open_fds() == before


# packets


def test_descriptors_arrive_beside_the_packet_and_are_closed_on_exec(pair):
    ours, theirs = pair
    pipe = os.pipe()
    for fd in pipe:
        os.set_inheritable(fd, True)
    kernel.send(ours, b"packet", pipe)
    packet, fds = kernel.receive(theirs, 100, 2)
    assert (packet, len(fds)) == (b"packet", 2)
    assert [os.get_inheritable(fd) for fd in fds] == [False, False]
    os.write(fds[1], b"x")
    assert os.read(pipe[0], 1) == b"x"
    for fd in (*pipe, *fds):
        os.close(fd)


def test_packet_without_descriptors_has_none(pair):
    ours, theirs = pair
    kernel.send(ours, b"packet")
    assert kernel.receive(theirs, 100, 3) == (b"packet", [])


def test_too_long_packet_is_an_error_and_leaks_no_descriptor(pair):
    ours, theirs = pair
    before = open_fds()
    kernel.send(ours, b"x" * 101, (0, 0))
    with pytest.raises(OSError, match="longer than 100 bytes") as raised:
        kernel.receive(theirs, 100, 2)
    assert raised.value.errno == errno.EMSGSIZE
    assert open_fds() == before


def test_unrequested_descriptors_are_dropped(pair):
    ours, theirs = pair
    before = open_fds()
    kernel.send(ours, b"packet", (0, 1, 2))
    packet, fds = kernel.receive(theirs, 100, 1)
    assert packet == b"packet"
    assert len(fds) <= 1
    for fd in fds:
        os.close(fd)
    kernel.send(ours, b"packet", (0, 1, 2))
    assert kernel.receive(theirs, 100, 0) == (b"packet", [])
    assert open_fds() == before


def test_last_packets_of_a_dead_peer_come_before_its_end(pair):
    ours, theirs = pair
    kernel.send(ours, b"unread")
    kernel.send(theirs, b"last words")
    theirs.close()
    assert kernel.receive(ours, 100, 0) == (b"last words", [])
    assert kernel.receive(ours, 100, 0) == (b"", [])
    assert kernel.receive(ours, 100, 0) == (b"", [])


def test_receive_without_wait_raises_if_nothing_is_there(pair):
    with pytest.raises(BlockingIOError):
        kernel.receive(pair[0], 100, 0, wait=False)


def test_receiver_without_free_descriptors_gets_the_packet_alone(pair):
    ours, theirs = pair
    kernel.send(ours, b"packet", (0,))

    def run():
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(ours.fileno(), theirs.fileno()) + 1, 4096))
        while True:
            try:
                os.dup(0)
            except OSError:
                break
        assert kernel.receive(theirs, 100, 1) == (b"packet", [])

    in_fork(run)


def test_unread_bytes_of_a_pipe_are_counted_on_either_end():
    reading, writing = os.pipe()
    assert kernel.unread_bytes(writing) == 0
    os.write(writing, b"x" * 1000)
    assert (kernel.unread_bytes(reading), kernel.unread_bytes(writing)) == (1000, 1000)
    os.read(reading, 999)
    assert kernel.unread_bytes(writing) == 1
    os.close(reading)
    os.close(writing)


def test_waiting_in_these_tests_has_a_deadline():
    with pytest.raises(AssertionError, match="in time"):
        until(lambda: False, 0.01)
