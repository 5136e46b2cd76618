"""Foreign files are closed beside the caller, however long a close takes."""

import os
import socket
import struct
import time

import pytest

from supervisor.linux import foreign_files, kernel
from supervisor.linux.foreign_files import Closer
from supervisor.master.model.child_handle import ChildHandle
from tests.parts import open_fds, until

LINGER_S = 1000
SOON_S = 10.0  # not as long as a close lingers


def lingering():
    """A connected socket with unsent data, whose last close blocks, and its silent peer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _address = server.accept()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    near.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            near.send(b"x" * 65536)
    return near, far


def wrapped():
    """Such a socket in the queue of another socket, where its options cannot be changed."""
    near, far = lingering()
    outer, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, inner:
        socket.send_fds(inner, [b"x"], [near.fileno()])
    return outer, far


@pytest.fixture
def closer():
    return Closer()


def is_closed(fd):
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


def test_descriptors_of_every_kind_are_closed(closer):
    before = open_fds()
    fds = [*os.pipe(), os.memfd_create("m"), *(each.detach() for each in socket.socketpair())]
    closer.take(fds)
    assert closer.finish(SOON_S)
    assert open_fds() == before


def test_lingering_socket_is_closed_at_once(closer):
    near, far = lingering()
    with far:
        closer.take((near.detach(),))
        assert closer.finish(SOON_S)
        with pytest.raises(ConnectionResetError):
            while far.recv(65536):
                pass


def test_blocking_close_delays_neither_caller_nor_next_close(closer):
    before = open_fds()
    (first, far), (second, also_far) = wrapped(), wrapped()
    began_at = time.monotonic()
    closer.take((first.detach(),))
    assert time.monotonic() - began_at < SOON_S
    until(lambda: closer._is_stuck)
    pipe = os.pipe()
    closer.take((second.detach(), *pipe))
    assert closer.finish(SOON_S)
    assert all(map(is_closed, pipe))
    far.close()
    also_far.close()
    assert open_fds() == before


def test_uninterruptible_close_keeps_its_own_thread(closer, monkeypatch):
    held, holds = os.pipe()
    monkeypatch.setattr(foreign_files, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(foreign_files, "_close", lambda fd: os.read(fd, 1) if fd == held else os.close(fd))
    closer.take((held,))
    until(lambda: closer._is_stuck)
    others = os.pipe()
    closer.take(others[:1])
    until(lambda: closer._is_stuck)
    closer.take(others[1:])
    until(lambda: all(map(is_closed, others)))
    os.write(holds, b"x")
    assert closer.finish(SOON_S)
    os.close(held)
    os.close(holds)


def test_queue_is_kept_until_a_thread_can_start(closer, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    pipe = os.pipe()
    with monkeypatch.context() as used_up:
        used_up.setattr(foreign_files.Thread, "start", refuse)
        closer.take(pipe[:1])
        closer.take(pipe[1:])
        assert not closer.finish(SOON_S)
    assert not any(map(is_closed, pipe))
    closer.close_kept()
    assert closer.finish(SOON_S)
    assert all(map(is_closed, pipe))


@pytest.mark.parametrize("closes_only_itself", [True, False])
def test_loop_closes_no_socket_of_a_child_that_may_hold_foreign_files(monkeypatch, closes_only_itself):
    monkeypatch.setattr(foreign_files, "_CLOSES_ONLY_ITSELF", closes_only_itself)
    child, closed = ChildHandle(1, 1, lambda *_said: None, lambda *_planned: None), []
    jobs, talk = {sock.fileno() for sock in (child.jobs._sender, child.jobs._receiver)}, child.talk.fd
    monkeypatch.setattr(foreign_files, "_close", lambda fd: (closed.append(fd), os.close(fd)))
    child.close_child_ends()
    child.close()
    assert all(map(is_closed, jobs)) == closes_only_itself
    assert foreign_files.finish(SOON_S)
    assert set(closed) >= ({talk} if closes_only_itself else {talk} | jobs)
    assert all(map(is_closed, jobs | {talk}))


def test_descriptors_left_in_sockets_are_closed_in_the_thread():
    before = open_fds()
    child = ChildHandle(1, 1, lambda *_said: None, lambda *_planned: None)
    near, far = lingering()
    jobs, talk, *_others = child.child_ends
    with near, far:
        kernel.send(socket.socket(fileno=os.dup(talk)), b"x", (near.fileno(),))
        with socket.socket(fileno=os.dup(jobs)) as back, pytest.raises(BrokenPipeError):
            kernel.send(back, b"x", (near.fileno(),))
        near.close()
        child.close_child_ends()
        began_at = time.monotonic()
        child.close()
        assert time.monotonic() - began_at < SOON_S
        assert foreign_files.finish(SOON_S)
    assert open_fds() == before


@pytest.mark.parametrize("closes_only_itself", [True, False])
def test_own_socket_is_shut_down_at_once_and_closed_where_that_cannot_wait(monkeypatch, closes_only_itself):
    monkeypatch.setattr(foreign_files, "_closer", closer := Closer())
    monkeypatch.setattr(foreign_files, "_CLOSES_ONLY_ITSELF", closes_only_itself)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = ours.fileno()
    with theirs:
        foreign_files.close_own_socket(ours)
        assert is_closed(fd) == closes_only_itself
        assert theirs.recv(1) == b""
        assert closer.finish(SOON_S)
        assert is_closed(fd)


@pytest.mark.parametrize(
    ("release", "numbers"), [("6.18.0-1-amd64", (6, 18, 0, 1, 64)), ("6.9.12+", (6, 9, 12)), ("weird", ())]
)
def test_release_of_the_kernel_is_compared_by_its_numbers(monkeypatch, release, numbers):
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "host", release, "", "x86_64")))
    assert foreign_files._release() == numbers
    assert (numbers >= (6, 10)) == (release == "6.18.0-1-amd64")
