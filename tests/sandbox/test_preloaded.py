"""Threads, processes and descriptors that preloaded code left are named, and nothing else."""

import ctypes
import functools
import os
import select
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from supervisor.sandbox import preloaded
from tests.parts import in_fork, until

leave = threading.Event()


def wait():
    leave.wait(30)


class Own(threading.Thread):
    def run(self):
        leave.wait(30)


class Callable:
    def __call__(self):
        leave.wait(30)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: threading.Thread(target=wait, name="t"), f"t ({__name__}.wait, "),
        (lambda: threading.Thread(target=functools.partial(wait), name="t"), f"t ({__name__}.wait, "),
        (lambda: threading.Thread(target=leave.wait, args=(30,), name="t"), "t (threading.Event.wait, "),
        (lambda: threading.Thread(target=Callable(), name="t"), "t (a Callable)"),
        (lambda: threading.Timer(30, wait), f"({__name__}.wait, "),
        (lambda: Own(name="t"), f"t ({__name__}.Own.run, "),
    ],
)
def test_thread_is_named_with_its_function_and_source(make, words):
    def run():
        thread = make()
        thread.daemon = True
        thread.start()
        (said,) = preloaded.running()
        assert words in said
        assert "(a " in said or said.rpartition(":")[2].removesuffix(")").isdigit()

    in_fork(run)


def test_native_thread_is_named_by_the_system():
    def run():
        libc = ctypes.CDLL(None)
        thread = ctypes.c_ulong()
        assert libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.pause, ctypes.c_void_p), None) == 0
        assert libc.pthread_setname_np(thread, b"native") == 0
        (said,) = preloaded.running()
        assert said.startswith("native (thread ")

    in_fork(run)


def test_threads_that_have_ended_are_not_named():
    def run():
        for _ in range(50):
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
            assert preloaded.running() == []

    in_fork(run)


def test_processes_are_named():
    def run():
        helper = subprocess.Popen(["sleep", "60"])
        until(lambda: preloaded.running() == [f"process {helper.pid} (sleep)"])
        helper.kill()
        helper.wait()
        assert preloaded.running() == []

    in_fork(run)


def test_descriptors_from_before_are_not_named():
    def run():
        assert preloaded.opened(preloaded.open_descriptors().keys()) == []

    in_fork(run)


def opened_by(make):
    """Return the words about the descriptors that `make` opens."""
    before = preloaded.open_descriptors().keys()
    kept = make()
    said = [each.split(": ", 1)[1] for each in preloaded.opened(before)]
    del kept
    return said


def test_files_pipes_and_kernel_objects_are_named(tmp_path):
    assert opened_by(lambda: (tmp_path / "log").open("w")) == [str(tmp_path / "log")]
    assert opened_by(select.epoll) == ["epoll"]
    ends = []
    assert opened_by(lambda: ends.extend(os.pipe())) == ["pipe", "pipe"]
    for end in ends:
        os.close(end)
    assert opened_by(Path(os.devnull).open) == []


def test_sockets_are_named_with_both_their_addresses(tmp_path):
    assert opened_by(socket.socketpair) == ["Unix socket", "Unix socket"]
    assert opened_by(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) == ["UDP socket 0.0.0.0:0"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (said,) = opened_by(lambda: socket.create_connection(("127.0.0.1", port)))
        assert said.startswith("TCP socket 127.0.0.1:")
        assert said.endswith(f" -> 127.0.0.1:{port}")
    (said,) = opened_by(lambda: socket.create_server(("127.0.0.1", 0)))
    assert said.startswith("TCP socket that listens at 127.0.0.1:")
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with socket.socket(socket.AF_UNIX) as client:
            assert opened_by(lambda: client.connect(path) or client.dup()) == [f"Unix socket -> {path}"]


def test_ipv6_address_is_separate_from_its_port():
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    port = listener.getsockname()[1]
    listener.close()
    (said,) = opened_by(lambda: socket.create_server(("::1", port), family=socket.AF_INET6))
    assert said == f"TCP socket that listens at [::1]:{port}"


def test_looking_opens_and_closes_nothing():
    with socket.create_server(("127.0.0.1", 0)):
        before = preloaded.open_descriptors()
        preloaded.opened(set())
        assert preloaded.open_descriptors() == before
