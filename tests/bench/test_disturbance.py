"""Stolen time, and the processor time of processes that are not the bench's, disturb a row."""

import os
import subprocess
import sys
import time

import pytest

from tests.bench import disturbance
from tests.bench.disturbance import Disturbance, Look, Process, between

BENCH, INIT = 100, 1


def look(at, processes, stolen_s=0.0):
    """`processes`: pid -> (name, parent, spent_s, reaped_s)."""
    return Look(at, stolen_s, {(pid, "0"): Process(*fields) for pid, fields in processes.items()})


def seen(before, after, stolen_s=0.0):
    return between(look(0.0, before), look(10.0, after, stolen_s), BENCH, processors=2)


def test_time_of_the_bench_and_its_descendants_is_no_disturbance():
    before = {INIT: ("init", 0, 5.0, 0.0), BENCH: ("bench", INIT, 1.0, 0.0), 101: ("master", BENCH, 0.0, 0.0)}
    after = {
        INIT: ("init", 0, 5.0, 0.0), BENCH: ("bench", INIT, 4.0, 3.0), 101: ("master", BENCH, 6.0, 0.0),
        102: ("child", 101, 6.0, 0.0),
    }  # fmt: skip
    assert seen(before, after) == Disturbance(0.0, 0.0, "")


def test_another_process_counts_by_its_share_of_the_machine():
    before = {BENCH: ("bench", INIT, 0.0, 0.0), 7: ("pytest", INIT, 50.0, 0.0), 8: ("cron", INIT, 0.0, 0.0)}
    after = {BENCH: ("bench", INIT, 9.0, 0.0), 7: ("pytest", INIT, 55.0, 0.0), 8: ("cron", INIT, 0.1, 0.0)}
    found = seen(before, after)
    assert found.others == pytest.approx(5.1 / 20) and found.who == "pytest" and found.is_disturbed


def test_processes_that_come_and_go_count_with_whoever_reaps_them():
    before = {INIT: ("init", 0, 0.0, 0.0), 7: ("make", INIT, 0.0, 2.0), 8: ("cc", 7, 3.0, 0.0)}
    after = {INIT: ("init", 0, 0.0, 0.0), 7: ("make", INIT, 0.0, 9.0), 9: ("cc", 7, 1.0, 0.0)}
    # make has reaped 7 s more: 3 of them are from before, 4 are new; the new cc has used 1.
    assert seen(before, after).others == pytest.approx(5 / 20)


def test_ended_tree_counts_only_its_time_between_looks():
    before = {5: ("bash", INIT, 0.0, 0.0), 7: ("sh", 5, 0.0, 0.0), 8: ("pytest", 7, 90.0, 600.0)}
    after = {5: ("bash", INIT, 0.0, 692.0)}
    assert seen(before, after).others == pytest.approx(2 / 20)


def test_orphan_reaped_by_another_counts_only_its_time_between_looks():
    before = {
        INIT: ("init", 0, 0.0, 0.0),
        5: ("bash", INIT, 0.0, 0.0),
        7: ("sh", 5, 0.0, 0.0),
        8: ("job", 7, 90.0, 0.0),
    }
    after = {INIT: ("init", 0, 0.0, 91.0), 5: ("bash", INIT, 0.0, 0.0)}
    assert seen(before, after).others == pytest.approx(1 / 20)


def test_a_pid_that_is_used_again_is_another_process():
    before = Look(0.0, 0.0, {(7, "100"): Process("long", INIT, 60.0, 0.0)})
    after = Look(10.0, 0.0, {(7, "900"): Process("new", INIT, 1.0, 0.0)})
    assert between(before, after, BENCH, 2) == Disturbance(0.0, pytest.approx(1 / 20), "new")


def test_threads_of_the_kernel_are_not_others():
    assert seen({}, {2: ("kthreadd", 0, 1.0, 0.0), 15: ("ksoftirqd/0", 2, 5.0, 0.0)}) == Disturbance(0.0, 0.0, "")


@pytest.mark.parametrize(
    ("steal", "others", "is_disturbed"),
    [(0.0, 0.0, False), (0.009, 0.029, False), (0.011, 0.0, True), (0.0, 0.031, True)],
)
def test_a_row_is_disturbed_above_a_hundredth_stolen_or_three_used_by_others(steal, others, is_disturbed):
    assert Disturbance(steal, others, "").is_disturbed is is_disturbed


def test_stolen_time_is_a_share_of_all_processors():
    found = seen({}, {}, stolen_s=0.5)
    assert found.steal == pytest.approx(0.025) and found.is_disturbed
    assert str(found) == "2.5% stolen, 0.0% used by others"


def test_a_real_busy_process_is_no_disturbance_for_the_one_above_it_alone():
    command = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(command) as busy, subprocess.Popen(["sleep", "60"]) as beside:
        try:
            before = disturbance.look()
            began_s = time.clock_gettime(_clock_of(busy.pid))
            while time.clock_gettime(_clock_of(busy.pid)) < began_s + 0.3:
                os.sched_yield()
            after = disturbance.look()
        finally:
            busy.kill()
            beside.kill()
    for_us, for_beside = (between(before, after, pid, 1).others for pid in (os.getpid(), beside.pid))
    assert (for_beside - for_us) * (after.at - before.at) > 0.2
    assert before.stolen_s <= after.stolen_s


def _clock_of(pid):
    """Return the id of the clock that counts a process's own processor time."""
    return ~pid << 3 | 2


def test_quiet_is_waited_for_no_longer_than_allowed(monkeypatch):
    quiet = Disturbance(0.0, 0.0, "")
    found = iter([quiet._replace(others=0.5), quiet._replace(steal=0.5), quiet])
    monkeypatch.setattr(disturbance, "_LOOK_S", 0.001)
    monkeypatch.setattr(disturbance, "between", lambda *_: next(found))
    assert disturbance.wait_for_quiet(os.getpid(), patience_s=60) and next(found, None) is None
    monkeypatch.setattr(disturbance, "between", lambda *_: quiet._replace(others=0.5))
    assert not disturbance.wait_for_quiet(os.getpid(), patience_s=0.05)
