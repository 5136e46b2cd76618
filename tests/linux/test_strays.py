"""Strays of a job end, whatever they do against it, and no other process does."""

import ctypes
import os
import select
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from supervisor.linux import kernel, strays
from tests.parts import Process, await_readable, in_fork, rest, state_of, until

NO_PIDS: frozenset[int] = frozenset()
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.shmat.restype = ctypes.c_void_p


def soon(seconds=5.0):
    return time.monotonic() + seconds


def start(code):
    """A Python process that writes a line when it is ready."""
    process = subprocess.Popen(["python3", "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"here\n"
    return process.pid


def test_all_strays_end_and_spared_processes_live():
    def run():
        spared = subprocess.Popen(["sleep", "60"])
        kernel.become_subreaper()
        subprocess.run(["sh", "-c", "sleep 60 & setsid sleep 60 & (sleep 60 &) &"], check=True)
        until(lambda: len(kernel.children_of_self()) >= 4)
        ended, left = strays.end_strays({spared.pid}, soon())
        assert ended >= 3
        assert left == set()
        assert spared.poll() is None
        spared.kill()

    in_fork(run)


def test_stopped_process_and_its_unreaped_children_end():
    def run():
        kernel.become_subreaper()
        pid = start(
            "import os, signal, time\n"
            "for _ in range(3):\n if os.fork() == 0: os._exit(0)\n"
            "time.sleep(0.05); print('here', flush=True); os.kill(0 or os.getpid(), signal.SIGSTOP)"
        )
        until(lambda: state_of(pid) == "T")
        assert strays.end_strays(NO_PIDS, soon()) == (4, set())
        assert kernel.children_of_self() == set()

    in_fork(run)


HOPS = """
import os, sys
print('here', flush=True)
while True:
    {step}
    if os.fork():
        os._exit(0)
"""


def test_process_that_keeps_forking_itself_does_not_escape():
    """Each generation also begins a session of its own, so that a signal to the group may miss it."""

    def run():
        kernel.become_subreaper()
        for step in ("pass", "os.setsid()"):
            start(HOPS.format(step=step))
            _ended, left = strays.end_strays(NO_PIDS, soon())
            assert left == set()
            assert kernel.children_of_self() == set()

    in_fork(run, 30.0)


TRACED = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER, PR_SET_PTRACER_ANY
if os.fork() == 0:
    os.setsid()
    traced = libc.ptrace(0x4206, os.getppid(), None, None) == 0  # PTRACE_SEIZE
    print('here' if traced else 'refused', flush=True)
time.sleep(60)
"""


def test_stray_that_its_own_child_traces_ends():
    """Only its tracer can reap it, although its pidfd says that it has ended."""

    def run():
        kernel.become_subreaper()
        start(TRACED)
        assert strays.end_strays(NO_PIDS, soon()) == (2, set())
        assert kernel.children_of_self() == set()

    in_fork(run)


def test_strays_that_the_kernel_reaps_count_as_ended():
    """A job may ignore SIGCHLD."""

    def run():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        strays_left = [subprocess.Popen(["sleep", "60"]) for _ in range(5)]
        assert strays.end_strays(NO_PIDS, soon()) == (len(strays_left), set())
        assert kernel.children_of_self() == set()

    in_fork(run)


def test_strays_that_a_thread_reaps_count_as_ended():
    """A job may leave threads that wait for its subprocesses."""

    def run():
        for _ in range(50):
            left = subprocess.Popen(["sleep", "60"])
            waiting = threading.Thread(target=left.wait)
            waiting.start()
            assert strays.end_strays(NO_PIDS, soon()) == (1, set())
            waiting.join()
        assert kernel.children_of_self() == set()

    in_fork(run)


def test_fork_bombs_are_all_ended():
    def run():
        kernel.become_subreaper()
        start(
            "import os\nprint('here', flush=True)\n"
            "for _ in range(3): os.fork()\n"
            "os.setpgid(0, 0)\n"
            "while True:\n"
            " if os.fork() == 0: os._exit(0)\n"
        )
        _ended, left = strays.end_strays(NO_PIDS, soon(10.0))
        assert left == set()
        assert kernel.children_of_self() == set()

    in_fork(run, 30.0)


def test_processes_that_do_not_end_in_time_are_returned():
    def run():
        kernel.become_subreaper()
        pid = subprocess.Popen(["sleep", "60"]).pid
        ended, left = strays.end_strays(NO_PIDS, time.monotonic() - 1)
        assert ended + len(left) == 1
        assert left <= {pid}
        assert strays.end_strays(NO_PIDS, soon())[1] == set()

    in_fork(run)


def test_group_of_a_spared_process_lives():
    def run():
        leader = subprocess.Popen(["sleep", "60"], process_group=0)
        member = subprocess.Popen(["sleep", "60"], process_group=leader.pid)
        assert strays.end_strays({leader.pid}, soon()) == (1, set())
        member.returncode = -9  # reaped
        assert leader.poll() is None
        leader.kill()

    in_fork(run)


def test_own_process_group_outlives_the_end_of_strays():
    def run():
        os.setpgid(0, 0)
        neighbour = Process(rest)
        stranger = subprocess.Popen(["sleep", "60"])
        assert os.getpgid(stranger.pid) == os.getpgrp()
        assert strays.end_strays({neighbour.pid}, soon()) == (1, set())
        stranger.returncode = -9
        neighbour.end()

    in_fork(run)


def test_strays_of_a_hung_parent_end_and_its_children_live():
    def run():
        def parent():
            kernel.become_subreaper()
            subprocess.Popen(["sleep", "61"], start_new_session=True)
            subprocess.run(["sh", "-c", "sleep 60 & setsid sh -c 'sleep 60; true' &"], check=True)
            os.kill(os.getpid(), signal.SIGSTOP)

        hung = Process(parent)
        until(lambda: state_of(hung.pid) == "T")
        below = kernel.children_of(hung.pid)
        (child,) = [pid for pid in below if b"61" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert strays.end_strays_of(hung.pid, {child}, soon())
        assert [pid for pid in kernel.children_of(hung.pid) if not kernel.is_zombie(pid)] == [child]
        os.kill(child, signal.SIGKILL)
        hung.end()

    in_fork(run)


def test_dead_parent_has_no_strays():
    gone = Process(lambda: None)
    gone.await_end()
    assert strays.end_strays_of(gone.pid, NO_PIDS, soon())


# System V segments


def segment(attach=False):
    """System V shared memory, made by a process of its own. Returns that process and the segment's id."""
    told, tells = os.pipe()

    def make():
        shmid = LIBC.shmget(0, 4096, 0o1600)
        os.write(tells, str(shmid).encode())

    maker = Process(make)
    await_readable(told)
    shmid = int(os.read(told, 32))
    os.close(told)
    os.close(tells)
    if attach:
        assert LIBC.shmat(shmid, None, 0) not in (-1, None)
    return maker, shmid


def is_there(shmid):
    return any(line.split()[1] == str(shmid) for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:])


@pytest.mark.parametrize("attach", [False, True])
def test_only_unattached_segments_of_the_dead_are_removed(attach):
    since_unix = time.time()
    (maker, made), (other, others) = segment(attach), segment()
    select.select([maker.pidfd], [], [], 10)
    strays.remove_segments(maker.pid, since_unix + 1000)
    assert is_there(made), "an earlier process had this pid"
    strays.remove_segments(maker.pid, since_unix)
    assert (is_there(made), is_there(others)) == (attach, True)
    for shmid in (made, others):
        LIBC.shmctl(shmid, 0, None)
    maker.end()
    other.end()


def test_segments_stay_where_proc_does_not_list_them(monkeypatch, tmp_path):
    maker, made = segment()
    select.select([maker.pidfd], [], [], 10)
    monkeypatch.setattr(strays, "_SEGMENTS", str(tmp_path / "shm"))
    strays.remove_segments(maker.pid, 0.0)
    assert is_there(made)
    LIBC.shmctl(made, 0, None)
    maker.end()
