"""A cgroup for each child with a memory limit: v1 by the kernel, v2 against a tree of files that keeps its rules."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from supervisor.master.jobs import job_cgroups
from supervisor.master.jobs.job_cgroups import LEAF, JobCgroups
from tests import control_groups
from tests.control_groups import MB

NO_PID = 2**22 + 1
#: One that there is in a tree of files alone.
CHILD = 2**22 + 100


# v1, by the kernel

#: Runs in a cgroup of its own, as a master would. `child(code)` forks one that runs the code when it is told to.
MASTER = """
import os, signal
from supervisor.master.jobs.job_cgroups import JobCgroups

class Child:
    def __init__(self, code):
        hears, self.wakes = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.wakes)
            os.read(hears, 1)
            exec(code)
            os._exit(0)
        os.close(hears)

    def end(self):
        os.write(self.wakes, b"!")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

cells, why = JobCgroups.make()
print(why, flush=True)
"""


def as_master(group: Path, code: str) -> list[str]:
    """Run the code as a master in the group. Return its lines: first where the cells are, or why there are none."""
    with control_groups.python(group, MASTER + code) as process:
        control_groups.tell(process)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
    return said.splitlines()


@pytest.fixture
def group():
    with control_groups.real(256 * MB) as directory:
        yield directory


def below(group: Path) -> list[str]:
    return [each.name for each in group.iterdir() if each.is_dir()]


def test_the_kernel_kills_a_child_beyond_the_wall(group):
    said = as_master(
        group,
        "greedy, modest = Child('x = bytearray(100 << 20)'), Child('x = bytearray(20 << 20)')\n"
        "print(cells.admit(1, greedy.pid, 32 << 20).result(), cells.admit(2, modest.pid, 32 << 20).result())\n"
        "print(greedy.end(), modest.end())\n"
        "print(cells.oom_kills(1), cells.oom_kills(2), cells.oom_kills(3))\n"
        "print(cells.close())\n",
    )
    assert said == [f"below {group}", "True True", f"{-signal.SIGKILL} 0", "1 0 0", "[]"]
    assert below(group) == []


def test_programs_of_a_child_are_in_its_cell(group):
    said = as_master(
        group,
        "child = Child('import subprocess, sys; code = \"x = bytearray(100 << 20)\";'\n"
        "              'os._exit(-subprocess.call([sys.executable, \"-c\", code]))')\n"
        "print(cells.admit(1, child.pid, 48 << 20).result(), child.end(), cells.oom_kills(1), cells.close())\n",
    )
    assert said[1:] == [f"True {int(signal.SIGKILL)} 1 []"]


def test_the_next_child_of_a_number_has_its_own_wall_and_record(group):
    said = as_master(
        group,
        "first, second = Child('x = bytearray(100 << 20)'), Child('x = bytearray(100 << 20)')\n"
        "print(cells.admit(1, first.pid, 32 << 20).result(), first.end(), cells.oom_kills(1))\n"
        "print(cells.admit(1, second.pid, 200 << 20).result(), cells.oom_kills(1), second.end(), cells.oom_kills(1))\n"
        "print(cells.close())\n",
    )
    assert said[1:] == [f"True {-signal.SIGKILL} 1", "True 0 0 0", "[]"]


def test_the_wall_follows_the_limit_of_each_job(group):
    said = as_master(
        group,
        "child = Child('')\n"
        f"wall = lambda: int(open('{group}/leasehold-cell-1/memory.limit_in_bytes').read())\n"
        "print(cells.admit(1, child.pid, 0))\n"
        "print(cells.admit(1, child.pid, 64 << 20, inherited_bytes=8 << 20).result(), wall() >> 20)\n"
        "print(cells.admit(1, child.pid, 64 << 20, inherited_bytes=7 << 20), wall() >> 20)\n"
        "print(cells.admit(1, child.pid, 0).result(), wall() > 2**60)\n"
        "print(cells.admit(1, child.pid, 32 << 20).result(), wall() >> 20)\n"
        "print(cells.admit(1, 7, 0), child.end(), cells.close())\n",
    )
    assert said[1:] == ["None", "True 80", "None 80", "True True", "True 36", "None 0 []"]


def test_a_child_that_has_ended_is_not_admitted(group):
    said = as_master(group, f"print(cells.admit(1, {NO_PID}, 32 << 20).result(), cells.close())\n")
    assert said[1:] == ["False []"]


def test_a_cell_in_use_is_named_and_the_others_are_removed(group):
    said = as_master(
        group,
        "stays, goes = Child(''), Child('')\n"
        "cells.admit(1, stays.pid, 32 << 20), cells.admit(2, goes.pid, 32 << 20).result()\n"
        "goes.end(); print([each.name for each in cells.close()], stays.end())\n",
    )
    assert said[1:] == ["['leasehold-cell-1'] 0"]
    assert below(group) == ["leasehold-cell-1"]
    assert as_master(group, "print(cells.close())\n") == [f"below {group}", "[]"]  # the next master finds it empty
    assert below(group) == []


def test_there_are_no_cells_beside_other_processes(group):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (group / "cgroup.procs").write_text(str(stranger.pid))
        assert as_master(group, "") == [f"{group}: other processes live in it ({stranger.pid})"]
        stranger.communicate()
    assert below(group) == []


def test_below_a_cgroup_without_a_limit_there_are_no_cells_in_v1():
    with control_groups.real() as group:
        assert as_master(group, "") == [f"{group}: has no memory limit, so it is not ours alone"]
        assert below(group) == []


def test_there_are_no_cells_beside_other_cgroups(group):
    (group / "theirs").mkdir()
    try:
        assert as_master(group, "") == [f"{group}: others have made cgroups below it (theirs)"]
    finally:
        (group / "theirs").rmdir()


def test_a_cell_of_an_earlier_master_in_use_is_left_alone(group):
    left = group / "leasehold-cell-1"
    left.mkdir()
    try:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as orphan:
            (left / "cgroup.procs").write_text(str(orphan.pid))
            assert as_master(group, "") == [f"{group}: leasehold-cell-1 is still in use"]
            orphan.communicate()
    finally:
        left.rmdir()


# v2: no kernel at hand has its memory control there, so its rules are kept by this tree of files


class Unified:
    """A cgroup v2 hierarchy as files, with the rules that matter here. The test is in `/a`."""

    def __init__(self, tmp_path, monkeypatch, lines="0::/a\n"):
        self.proc, self.root = control_groups.faked(tmp_path, lines, {"cgroup.controllers": "cpu memory\n"})
        self.below = self.root / "a"
        self.written = []
        monkeypatch.setattr(job_cgroups, "_mkdir", self.mkdir)
        monkeypatch.setattr(job_cgroups, "_write", self.write)
        monkeypatch.setattr(Path, "rmdir", lambda directory: self.rmdir(directory))
        self.mkdir(self.below, controllers="cpu memory pids")
        self.put(self.below, os.getpid())

    def mkdir(self, directory, controllers=None):
        if directory.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory))
        directory.mkdir()
        given = self.read(directory.parent / "cgroup.subtree_control") if controllers is None else controllers
        files = {"cgroup.procs": "", "cgroup.subtree_control": "", "cgroup.controllers": given}
        if "memory" in given:
            files |= {"memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0"}
            files["memory.events"] = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"
        for name, text in files.items():
            (directory / name).write_text(text)

    def write(self, file, text):
        self.written.append((str(file.relative_to(self.root)), text))
        here = file.parent
        if file.name == "cgroup.procs":
            self.refuse(int(text) == NO_PID, errno.ESRCH)
            self.refuse(bool(self.read(here / "cgroup.subtree_control")), errno.EBUSY)
            for each in self.root.rglob("cgroup.procs"):
                each.write_text("".join(f"{pid}\n" for pid in self.read(each).split() if pid != text))
            self.put(here, text)
        elif file.name == "cgroup.subtree_control":
            self.refuse(text == "+memory" and bool(self.read(here / "cgroup.procs").split()), errno.EBUSY)
            file.write_text("memory" if text == "+memory" else "")
        else:
            self.refuse(not file.exists(), errno.ENOENT)
            file.write_text(text)

    def rmdir(self, directory):
        self.refuse(not directory.exists(), errno.ENOENT)
        below = [each for each in directory.iterdir() if each.is_dir()]
        self.refuse(bool(below or self.read(directory / "cgroup.procs").split()), errno.EBUSY)
        for each in directory.iterdir():
            each.unlink()
        os.rmdir(directory)

    def put(self, directory, pid):
        with (directory / "cgroup.procs").open("a") as file:
            file.write(f"{pid}\n")

    def living(self, name=""):
        return [int(pid) for pid in self.read(self.below / name / "cgroup.procs").split()]

    def make(self):
        return JobCgroups.make(self.proc, self.root)

    def groups(self):
        return sorted(each.name for each in self.below.iterdir() if each.is_dir())

    @staticmethod
    def read(file):
        return file.read_text()

    @staticmethod
    def refuse(wrong, number):
        if wrong:
            raise OSError(number, os.strerror(number))


@pytest.fixture
def unified(tmp_path, monkeypatch):
    return Unified(tmp_path, monkeypatch)


def test_v2_move_without_a_thread_is_tried_again(unified, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    made, _where = unified.make()
    with monkeypatch.context() as used_up:
        used_up.setattr(threading.Thread, "start", refuse)
        assert made.admit(3, CHILD, 64 * MB) is None
        assert made.admit(3, CHILD, 64 * MB) is None
    assert made.admit(3, CHILD, 64 * MB).result()
    cell = unified.below / "leasehold-cell-3"
    assert unified.living(cell.name) == [CHILD]
    (cell / "cgroup.procs").write_text("")
    assert made.close() == []


def test_v2_has_the_master_in_a_leaf_beside_the_cells(unified):
    made, where = unified.make()
    assert where == f"below {unified.below}"
    assert (unified.living(), unified.living(LEAF)) == ([], [os.getpid()])
    assert made.admit(3, CHILD, 64 * MB, inherited_bytes=MB).result()
    cell = unified.below / "leasehold-cell-3"
    assert unified.living(cell.name) == [CHILD]
    told = {name: unified.read(cell / name) for name in ("memory.max", "memory.swap.max", "memory.oom.group")}
    assert told == {"memory.max": str(73 * MB), "memory.swap.max": "0", "memory.oom.group": "1"}
    assert made.admit(3, CHILD, 64 * MB, inherited_bytes=MB) is None
    assert made.admit(3, CHILD, 0).result()
    assert unified.read(cell / "memory.max") == "max"
    (cell / "cgroup.procs").write_text("")
    assert made.close() == []
    assert (unified.living(), unified.groups()) == ([os.getpid()], [])


def test_v2_counts_kills_from_the_admission_on(unified):
    made, _ = unified.make()
    assert made.admit(1, CHILD, 64 * MB).result()
    events = unified.below / "leasehold-cell-1/memory.events"
    events.write_text(unified.read(events).replace("oom_kill 0", "oom_kill 2"))
    assert made.oom_kills(1) == 2
    assert made.admit(1, CHILD + 1, 64 * MB).result()
    assert made.oom_kills(1) == 0


def test_v2_gives_up_if_a_process_comes_in_between(unified, monkeypatch):
    write = unified.write

    def with_a_stranger(file, text):
        if text == "+memory":
            unified.put(unified.below, 1)
        write(file, text)

    monkeypatch.setattr(job_cgroups, "_write", with_a_stranger)
    assert unified.make() == (None, f"{unified.below}: Device or resource busy (EBUSY)")
    assert (sorted(unified.living()), unified.groups()) == ([1, os.getpid()], [])


@pytest.mark.parametrize("stranger", [0, 1])
def test_v2_touches_nothing_beside_other_processes(unified, stranger):
    unified.put(unified.below, stranger)
    assert unified.make() == (None, f"{unified.below}: other processes live in it ({stranger})")
    assert unified.written == []


def test_v2_moves_processes_below_the_master_along(unified):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as mine:
        unified.put(unified.below, mine.pid)
        made, _ = unified.make()
        assert unified.living(LEAF) == [os.getpid(), mine.pid]
        assert made.close() == []
        assert unified.living() == [os.getpid(), mine.pid]
        mine.communicate()


def test_v2_removes_cells_of_an_earlier_master(unified):
    for name in ("leasehold-cell-7", LEAF):
        unified.mkdir(unified.below / name)
    made, _ = unified.make()
    assert unified.groups() == [LEAF]
    assert made.close() == []


def test_v2_makes_no_cells_in_the_root(tmp_path, monkeypatch):
    unified = Unified(tmp_path, monkeypatch, lines="0::/\n")
    (unified.root / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert unified.make() == (None, f"{unified.root}: is the root of all cgroups")


def test_v2_makes_no_cells_without_the_memory_controller(unified):
    (unified.below / "cgroup.controllers").write_text("cpu pids\n")
    assert unified.make() == (None, f"{unified.below}: may not give memory control to cgroups below it")
    (unified.below / "memory.max").unlink()
    assert unified.make() == (None, f"{unified.below}: has no memory controller")
    assert unified.written == []


def test_v2_does_not_admit_a_child_that_has_ended(unified):
    made, _ = unified.make()
    assert made.admit(1, NO_PID, 64 * MB).result() is False
    assert made.admit(1, CHILD, 64 * MB).result() is True


def test_v2_does_not_limit_a_stranger_with_the_pid_of_a_child(unified, monkeypatch):
    made, _ = unified.make()
    assert made.admit(1, 1, 64 * MB).result() is False
    assert unified.living("leasehold-cell-1") == []
    looks = iter([True, False])  # the child ends just before the move
    monkeypatch.setattr(job_cgroups, "_is_ours", lambda _pid: next(looks))
    assert made.admit(1, CHILD, 64 * MB).result() is False
    assert (unified.living("leasehold-cell-1"), unified.living(LEAF)) == ([], [os.getpid(), CHILD])


def test_without_control_groups_there_are_no_cells(tmp_path):
    proc, mounted = control_groups.faked(tmp_path, "9:name=systemd:/\n", {})
    assert JobCgroups.make(proc, mounted) == (None, "this process has no cgroup with memory control")
    (proc / "self/cgroup").write_text("0::/a\n")
    made, why = JobCgroups.make(proc, mounted)
    assert made is None
    assert "No such file or directory (ENOENT)" in why


def test_a_supervisor_that_shares_its_cgroup_makes_none_there():
    """The tests share their cgroup with other processes, as such a supervisor does."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as beside:
        code = "from supervisor.master.jobs.job_cgroups import JobCgroups; print(JobCgroups.make()[0])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        beside.communicate()
    assert done.stdout == "None\n"
