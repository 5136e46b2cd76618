"""The master measures the directories of running jobs, whatever their handlers do in them meanwhile."""

import os
import signal
import subprocess

import pytest

from supervisor import clock, messages
from supervisor.engine.model.outcomes import Died
from supervisor.linux import kernel
from supervisor.master.jobs import disk_usage
from supervisor.master.jobs.disk_usage import DISK, Count
from supervisor.master.model.states import ChildState
from tests.parts import await_readable, in_fork, lease_of, open_fds, rest

KB, MB = 2**10, 2**20


def counted(root, go_s=60.0):
    """Return a finished count of the directory, and the number of its steps."""
    count, goes = Count(str(root)), 1
    while not count.go_on(go_s):
        goes += 1
    count.close()
    return count, goes


def blocks(*paths):
    return sum(path.lstat().st_blocks * 512 + 512 for path in paths)


# what is counted


def test_each_file_and_directory_counts_blocks_and_an_inode(tmp_path):
    (tmp_path / "below").mkdir()
    paths = [tmp_path / "large", tmp_path / "below" / "small", tmp_path / "empty"]
    for path, size in zip(paths, (3 * MB, 1, 0), strict=True):
        path.write_bytes(b"x" * size)
    count, _ = counted(tmp_path)
    assert count.entries == 4
    assert count.used_bytes == blocks(*paths, tmp_path / "below") >= 3 * MB
    assert (count.hidden, count.too_deep) == (None, False)


def test_a_file_with_holes_counts_its_blocks(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    assert counted(tmp_path)[0].used_bytes < MB


def test_a_file_with_many_names_counts_once(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * MB)
    for number in range(63):
        os.link(tmp_path / "f", tmp_path / f"f{number}")
    assert MB <= counted(tmp_path)[0].used_bytes < 1.1 * MB


def test_many_empty_files_count(tmp_path):
    for number in range(200):
        (tmp_path / str(number)).touch()
    assert counted(tmp_path)[0].used_bytes >= 200 * 512


def test_only_directories_are_opened_and_no_link_is_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f").write_bytes(b"x" * MB)
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to(".")
    os.mkfifo(root / "fifo")
    os.mknod(root / "socket", 0o140600)
    count, _ = counted(root)
    assert count.entries == 4
    assert count.used_bytes < 100 * KB
    (tmp_path / "to-root").symlink_to(tmp_path / "elsewhere")
    assert counted(tmp_path / "to-root")[0].entries == 0


def test_other_file_systems_do_not_count(tmp_path):
    def with_a_mount():
        (tmp_path / "mounted").mkdir()
        mount = "mount -t tmpfs none mounted && head -c 1000000 /dev/zero > mounted/f && exec python3 -c"
        see = "from supervisor.master.jobs.disk_usage import Count; c = Count('.'); c.go_on(9); print(c.used_bytes)"
        inside = ["unshare", "-m", "sh", "-c", f'{mount} "{see}"']
        ran = subprocess.run(inside, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment())
        if ran.returncode:
            pytest.skip(f"this machine lets us mount nothing: {ran.stderr.strip()[-200:]}")
        assert int(ran.stdout) < 100 * KB

    def environment():
        import sys
        from pathlib import Path

        root = str(Path(disk_usage.__file__).parents[3])
        return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": root}

    with_a_mount()


def test_a_hidden_directory_is_named_once(tmp_path):
    def as_nobody():
        tmp_path.chmod(0o755)
        for name in ("a", "b", "c"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "f").write_bytes(b"x" * MB)
        (tmp_path / "a").chmod(0)
        (tmp_path / "b").chmod(0o444)  # names, and nothing of what they name
        if os.geteuid() == 0:
            os.chdir(tmp_path)  # no path may lead through the directory above it
            os.setgid(65534)
            os.setuid(65534)
        count, _ = counted(".")
        assert count.hidden.endswith("(Permission denied)")
        assert MB <= count.used_bytes < 2 * MB

    in_fork(as_nobody)
    (tmp_path / "a").chmod(0o700)
    (tmp_path / "b").chmod(0o700)


def test_a_missing_directory_counts_nothing(tmp_path):
    count, _ = counted(tmp_path / "never")
    assert (count.used_bytes, count.hidden) == (0, None)


def test_a_file_in_place_of_the_directory_counts_nothing(tmp_path):
    (tmp_path / "f").touch()
    count, _ = counted(tmp_path / "f")
    assert (count.used_bytes, count.hidden) == (0, None)


# a little at a time


def test_a_stopped_count_goes_on_from_there(tmp_path):
    for directory in range(5):
        (tmp_path / str(directory)).mkdir()
        for number in range(10):
            (tmp_path / str(directory) / str(number)).touch()
    whole, _ = counted(tmp_path)
    count, goes = counted(tmp_path, go_s=0.0)
    assert (count.used_bytes, count.entries) == (whole.used_bytes, 55)
    assert goes >= 55


def test_files_removed_between_two_steps_are_passed_over(tmp_path):
    for directory in range(3):
        (tmp_path / str(directory) / "x").mkdir(parents=True)
    count = Count(str(tmp_path))
    count.go_on(0.0)
    count.go_on(0.0)
    subprocess.run(["rm", "-rf", *(str(tmp_path / str(n)) for n in range(3))], check=True)
    while not count.go_on(0.0):
        pass
    assert count.hidden is None


def test_a_directory_swapped_for_a_link_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").write_bytes(b"x" * MB)
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "b").mkdir()
    (elsewhere / "b").mkdir()
    (elsewhere / "b" / "f").write_bytes(b"x" * MB)
    count = Count(str(root))
    while "b" not in [place.name for place in count._pending]:
        assert not count.go_on(0.0)
    (root / "a").rename(root / "was-a")
    (root / "a").symlink_to(elsewhere)
    while not count.go_on(0.0):
        pass
    assert count.used_bytes < 100 * KB


def test_a_tree_too_deep_for_a_path_is_noticed(tmp_path):
    def dig():
        os.chdir(tmp_path)
        for _ in range(50):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)

    in_fork(dig)
    count, _ = counted(tmp_path)
    assert count.too_deep
    assert count.entries < 50
    subprocess.run(["rm", "-rf", str(tmp_path / ("d" * 200))], check=True)


def test_no_file_hides_behind_very_many_directories(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_usage, "_MOST_PENDING", 10)
    for number in range(40):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "f").touch()
    seen = set()
    for _ in range(200):
        count = Count(str(tmp_path))
        while not count.go_on(0.0):
            assert len(count._pending) <= 10
            seen |= {place.name for place in count._pending}
    assert len(seen) == 40


def test_no_descriptor_stays_open(tmp_path):
    (tmp_path / "a").mkdir()
    before = open_fds()
    counted(tmp_path)
    count = Count(str(tmp_path))
    count.go_on(0.0)
    count.close()
    assert open_fds() == before


# the limit


def filling(write):
    """Take a job, call `write()` in its directory, say so, and go on."""

    def behave(ends):
        signal.signal(kernel.NOTICE_SIGNAL, lambda *_: None)
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        write()
        os.write(ends.out, b"done\n")
        rest()

    return behave


def into(path, size_bytes):
    def write():
        path.mkdir(parents=True)
        (path / "f").write_bytes(b"x" * size_bytes)

    return write


def running(desk, write, token=1):
    child = desk.child(filling(write))
    (held,) = desk.give(lease_of(token))
    await_readable(child.output.fd)
    child.output.read()
    child.next_sample_at = held.started_at
    desk.limits.plan(child)
    desk.keep_time(held.started_at)  # before the first count is due, however long the fork took
    return child, held


def look(desk, times=1):
    """Let time pass until the next counts are due."""
    for _ in range(times):
        desk.keep_time(desk.timers.at(DISK))


@pytest.fixture
def place(tmp_path):
    return tmp_path / "zygote-1" / "child-1"


def test_a_job_with_a_directory_beyond_the_limit_is_killed(desk, place):
    desk = desk(processes="1", workdir_limit="1M")
    child, _held = running(desk, into(place, 3 * MB))
    look(desk, 2)
    assert child.state is ChildState.DOOMED
    desk.reap(child)
    (outcome,) = desk.outcomes()
    assert (type(outcome), outcome.reason) == (Died, "disk")
    assert "has 3 MB in 1 files and directories, the limit is 1 MB" in outcome.message
    assert "--workdir-limit" in outcome.message
    assert desk.events("child.killed")[0]["reason"] == "disk"
    assert desk.timers.at(DISK) == float("inf")


def test_one_count_alone_kills_no_job(desk, place):
    desk = desk(processes="1", workdir_limit="1M")
    child, _held = running(desk, into(place, 3 * MB))
    look(desk)
    (place / "f").unlink()
    look(desk, 3)
    assert child.state is ChildState.BUSY


def test_a_directory_is_counted_again_until_its_job_ends(desk, place):
    desk = desk(processes="1", workdir_limit="1G")
    child, held = running(desk, into(place, MB))
    assert desk.timers.at(DISK) == pytest.approx(held.started_at + 0.5)
    before_at = clock.monotonic()
    look(desk)
    assert before_at + 0.5 < desk.timers.at(DISK) < clock.monotonic() + 1.1
    child.answered(0.0)
    child.become(ChildState.IDLE)
    look(desk)
    assert desk.timers.at(DISK) == float("inf")


def test_a_short_job_is_not_counted(desk):
    desk = desk(processes="1", workdir_limit="1M")
    child = desk.child(filling(lambda: None))
    (held,) = desk.give(lease_of(1))
    assert desk.limits._disk._jobs == {}
    child.next_sample_at = clock.monotonic()
    desk.limits.plan(child)
    desk.keep_time(held.started_at + 0.4)
    (watched,) = desk.limits._disk._jobs.values()
    assert watched.count is None


def test_without_a_limit_nothing_is_counted(desk, place):
    desk = desk(processes="1", workdir_limit="none")
    running(desk, into(place, MB))
    assert desk.limits._disk._jobs == {}


def test_jobs_are_counted_in_turn_step_by_step(desk, tmp_path, monkeypatch):
    def many():
        path = tmp_path / "zygote-1" / "child-1"
        path.mkdir(parents=True)
        for number in range(100):
            (path / str(number)).symlink_to("x")

    monkeypatch.setattr(disk_usage, "_STEP_S", 0.0)
    desk = desk(processes="2", workdir_limit="40K")
    first, _ = running(desk, many)
    second, _ = running(desk, into(tmp_path / "zygote-1" / "child-2", MB), 2)
    looks, goes, ended = desk.limits._disk, 0, {}
    for job in looks._jobs.values():
        job.next_at = 0.0
    while len(ended) < 2:
        desk.keep_time(desk.timers.at(DISK))
        goes += 1
        ended.update(
            {child: goes for child in (first, second) if child.state is ChildState.DOOMED and child not in ended}
        )
    assert ended[second] <= 10 < 100 <= ended[first]


@pytest.mark.skipif(not os.environ.get("TEST_FULL"), reason="TEST_FULL=1 makes the many files")
def test_a_step_of_a_count_is_short(tmp_path, measured):
    for number in range(50_000):
        os.mknod(tmp_path / str(number))
    count, goes_s, finished = Count(str(tmp_path)), [], False
    while not finished:
        began_at = clock.monotonic()
        finished = count.go_on(disk_usage._STEP_S)
        goes_s.append(clock.monotonic() - began_at)
    measured(f"50,000 files in {len(goes_s)} goes of at most {1000 * max(goes_s):.1f} ms")
    assert sorted(goes_s)[len(goes_s) // 2] < 0.01


def test_an_uncountable_directory_is_warned_of_once(desk, place, monkeypatch):
    desk = desk(processes="1", workdir_limit="1G")
    child, _held = running(desk, into(place, MB))

    def refused(self, _place):
        self.hidden = "/there (Permission denied)"

    monkeypatch.setattr(Count, "_open", refused)
    look(desk, 3)
    (warned,) = desk.events("master.warned")
    assert "the working directory of k j1 cannot be counted: /there (Permission denied)" in warned["message"]
    assert child.state is ChildState.BUSY


def test_a_job_with_uncountably_deep_directories_is_killed(desk, place, monkeypatch):
    desk = desk(processes="1", workdir_limit="1G")
    child, _held = running(desk, into(place, MB))
    monkeypatch.setattr(Count, "_open", lambda self, _place: setattr(self, "too_deep", True))
    look(desk, 2)
    assert child.state is ChildState.DOOMED
    desk.reap(child)
    assert "nested so deep that no path names them" in desk.outcomes()[0].message
