"""The process count by requests, by work and by room, in a time of the test's own."""

import math
import os
from types import SimpleNamespace

import pytest

from supervisor import clock, messages
from supervisor.master.model.signals import By
from supervisor.master.model.states import ChildState
from supervisor.master.processes.load_follower import SCALING, LoadFollower
from supervisor.master.processes.machine_room import MachineRoom
from supervisor.master.processes.scaling import Scaling
from supervisor.master.timers import Timers
from supervisor.messages import HandlerSettings
from tests.parts import await_readable, held_of, lease_of, rest

BY = By("leasehold scale of a test")
NOW_AT = 1000.0


class Pool:
    """A desk with children that keep their jobs, and its scaling."""

    def __init__(self, desk, new_child, cpus=4, **flags):
        self.desk = desk(**flags)
        self.slots = self.desk.slots
        self._new_child = new_child
        desk = self.desk
        self.cpus = cpus
        self.timers = Timers()
        cpus_told = lambda: (self.cpus, "auto: as told")  # noqa: E731
        self.zygotes = SimpleNamespace(measured=0, child_bytes=0)
        room = MachineRoom(desk.config, desk.budget, self.zygotes, cpus_told)
        load = LoadFollower(desk.slots, desk.pace, desk.admission, self.timers)
        self.scaling = Scaling(
            desk.config, desk.slots, load, desk.admission, desk.retirement, room, desk.log
        )  # fmt: skip
        self.now_at = NOW_AT
        self.token = 0
        self.forked = []

    def busy(self, count):
        """Have this many children run a job, forked as needed. The others end."""
        for child in [child for child in self.slots if child.sent][count:]:
            child.answered(0.0)
            child.become(ChildState.LEAVING)
            self.slots.remove(child)
        while self.slots.busy < count:
            child = self._new_child(self.slots.free_number())
            self.forked.append(child)
            self.slots.add(child)
            self.token += 1
            child.send(held_of(self.token))

    def run(self, seconds, step_s=0.005):
        """Let time pass as the master does: at each deadline, and at each step."""
        end_at = self.now_at + seconds
        while self.now_at < end_at:
            self.scaling.step(self.now_at)
            self.now_at = min(end_at, max(self.now_at + 0.001, min(self.timers.at(SCALING), self.now_at + step_s)))
        self.scaling.step(self.now_at)
        return self.slots.processes

    def run_jobs(self, count, run_s, pause_s):
        """Run jobs one after the other."""
        for _ in range(count):
            self.busy(1)
            self.run(run_s)
            self.busy(0)
            self.run(pause_s)

    def set(self, processes):
        """Set the count as an operator does, and take the next turn."""
        self.scaling.set(processes, processes, BY)
        self.scaling.step(self.now_at)

    @property
    def said(self):
        return [(event["before"], event["processes"]) for event in self.desk.events("master.scaled")]


@pytest.fixture
def pool(desk, new_child):
    made = []

    def make(**flags):
        made.append(Pool(desk, new_child, **flags))
        return made[-1]

    yield make
    for each in made:
        for child in each.forked:
            if each.slots.get(child.number) is child:
                each.slots.remove(child)  # the desk must not close it


def working(ends):
    """Takes a job, prints so, and keeps it."""
    ends.talk.send(messages.pack_ready())
    ends.next_job()
    os.write(ends.out, b"has it\n")
    rest()


def work(pool, *leases):
    """Return children that run these jobs, oldest first."""
    children = [pool.desk.child(working) for _ in leases]
    for lease in leases:
        pool.desk.give(lease)
    for child in children:
        await_readable(child.output.fd)
    return sorted(children, key=lambda child: child.running.started_at)


# by work


def test_fixed_count_sets_no_timer(pool):
    pool = pool(processes="2")
    pool.busy(2)
    assert (pool.run(60, 1), pool.timers.at(SCALING), pool.said) == (2, math.inf, [])


def test_one_process_is_idle_beside_the_busy_ones(pool):
    pool = pool(processes="1:8")
    assert pool.run(1) == 1
    pool.busy(1)
    assert pool.run(1) == 2
    pool.now_at += 10  # a backlog would have shown
    pool.busy(2)
    assert pool.run(1) == 3


def test_growth_doubles_under_a_backlog_up_to_the_most(pool):
    pool = pool(processes="1:20")
    for _ in range(10):
        pool.busy(pool.slots.processes)
        pool.run(0.05)
    assert [processes for _before, processes in pool.said] == [2, 4, 8, 16, 20]


def test_busy_moments_do_not_make_the_count_grow(pool):
    pool = pool(processes="1:8")
    pool.run_jobs(100, 0.005, pause_s=0.010)
    assert pool.said == []


def test_count_grows_for_short_jobs_without_pauses(pool):
    pool = pool(processes="1:2")
    pool.run_jobs(20, 0.009, pause_s=0.001)
    assert pool.said == [(1, 2)]


def test_tiny_jobs_get_no_more_processes_than_the_master_can_feed(pool):
    pool = pool(processes="1:32")
    for _ in range(100):
        pool.desk.pace.learn("k", 0.0001)
        pool.busy(pool.slots.processes)
        pool.run(0.05)
    assert pool.slots.processes == 2
    pool.desk.pace.learn("slow", 10)
    assert pool.run(1) > 2


def test_count_shrinks_to_the_most_needed_in_half_a_minute(pool):
    pool = pool(processes="1:8")
    pool.scaling.set(8, 8, BY)
    pool.scaling.set(1, 8, BY)
    pool.run(10, 0.1)
    pool.busy(3)
    pool.run(1, 0.1)
    pool.busy(1)
    assert pool.run(18, 0.1) == 8
    assert pool.run(2, 0.1) == 4
    assert pool.run(31, 0.1) == 2
    pool.busy(0)
    assert pool.run(31, 0.1) == 1


@pytest.mark.parametrize("period_s", [1, 5, 29])
def test_a_fluctuating_load_keeps_the_process_count(pool, period_s):
    pool = pool(processes="1:8")
    for _ in range(4):
        for _ in range(3):  # as jobs come that find room
            pool.busy(min(5, pool.slots.processes))
            pool.run(0.1)
        pool.busy(min(5, pool.slots.processes))
        pool.run(period_s, 0.1)
        pool.busy(0)
        pool.run(period_s, 0.1)
    sizes = [processes for _before, processes in pool.said]
    assert sizes == ([2, 4, 8] if period_s == 1 else [2, 4, 8, 6])  # the surplus of the last step is given back once


@pytest.mark.parametrize("why", ["no room", "serial", "draining"])
def test_count_does_not_grow_where_more_would_not_help(pool, why):
    pool = pool(processes="1:8")
    pool.busy(1)
    match why:
        case "no room":
            pool.desk.admission.wait_for_room()
        case "serial":
            pool.desk.admission.run_serially(math.inf)
        case _:
            pool.desk.shutdown.begin()
    assert (pool.run(1), pool.said) == (1, [])


# by requests


def test_a_step_ends_following_the_work(pool):
    pool = pool(processes="1:8")
    assert pool.scaling.more(BY)["now"] == 2
    assert pool.scaling.fewer(BY)["now"] == 1
    assert pool.scaling.status() == {"now": 1, "fewest": 1, "most": 1, "reason": f"as told by {BY}"}
    pool.busy(1)
    assert pool.run(60, 1) == 1


@pytest.mark.parametrize(("processes", "order"), [("1", "fewer"), ("4096", "more")])
def test_impossible_step_changes_nothing_and_is_said(pool, processes, order):
    pool = pool(processes=processes)
    told = getattr(pool.scaling, order)(BY)
    assert told["now"] == told["before"] == int(processes)
    (event,) = pool.desk.events("master.scaled")
    assert "at least 1 and at most 4096" in event["reason"] and event["by"] == str(BY)


@pytest.mark.parametrize(("fewest", "most"), [(0, 0), (0, 4), (5, 4), (1, 4097), (-1, 1)])
def test_impossible_count_is_refused(pool, fewest, most):
    pool = pool(processes="2")
    with pytest.raises(ValueError, match="at least 1 and at most 4096"):
        pool.scaling.set(fewest, most, BY)
    assert (pool.slots.processes, pool.said) == (2, [])


def test_range_starts_from_the_present_count(pool):
    pool = pool(processes="4")
    assert [pool.scaling.set(*span, BY)["now"] for span in ((2, 8), (6, 8), (1, 3), (1, 3))] == [4, 6, 3, 3]


def test_drain_refuses_a_new_count(pool):
    pool = pool(processes="2")
    pool.desk.shutdown.begin()
    for order in (lambda: pool.scaling.set(3, 3, BY), lambda: pool.scaling.automatic(BY)):
        with pytest.raises(ValueError, match="draining"):
            order()
    assert pool.scaling.more(BY)["now"] == 2


# which children end


def test_idle_children_leave_first_and_at_most_once_jobs_stop_last(pool):
    pool = pool(processes="4", drain_timeout="25s")
    middle, youngest, once = work(pool, lease_of(1), lease_of(2), lease_of(3, at_most_once=True))
    idle = pool.desk.child(working)
    pool.set(1)
    assert idle.state is ChildState.LEAVING
    assert [child.end_plan.stop_reason for child in (middle, youngest, once)] == ["scaled", "scaled", ""]
    assert once.retire_reason is None and max(middle.end_plan.stop_at, youngest.end_plan.stop_at) < math.inf


def test_no_job_is_stopped_once_enough_have_ended(pool):
    pool = pool(processes="2", drain_timeout="25s")
    kept, stopped = work(pool, lease_of(1), lease_of(2))
    pool.set(1)
    assert (kept.end_plan.stop_reason, stopped.end_plan.stop_reason, stopped.end_plan.stop_at < math.inf) == (
        "",
        "scaled",
        True,
    )
    kept.answered(0.0)
    kept.become(ChildState.IDLE)
    pool.scaling.step(pool.now_at)
    assert (stopped.end_plan.stop_at, stopped.state) == (math.inf, ChildState.BUSY)
    assert kept.state is ChildState.IDLE  # it is to stay


def test_persistent_job_of_a_surplus_child_is_stopped_at_once(pool):
    pool = pool(processes="2", drain_timeout="25s")
    _kept, endless = work(pool, lease_of(1), lease_of(2, persistent=True))
    pool.set(1)
    pool.desk.keep_time(clock.monotonic())
    assert endless.end_plan.kill_at is not None  # after it was told to stop


def test_surplus_child_keeps_its_job_when_the_count_grows_again(pool):
    pool = pool(processes="2", drain_timeout="25s")
    _kept, stopped = work(pool, lease_of(1), lease_of(2))
    pool.set(1)
    assert stopped.end_plan.stop_at < math.inf
    pool.set(2)
    assert (stopped.end_plan.stop_at, stopped.end_plan.stop_reason) == (math.inf, "")
    assert pool.slots.missing() == 1  # because it takes no more jobs


def test_reload_timeout_counts_again_when_the_child_is_no_longer_surplus(pool):
    pool = pool(processes="2", drain_timeout="25s", reload_timeout="100s")
    _kept, stopped = work(pool, lease_of(1), lease_of(2))
    pool.desk.retirement.on_reloaded([stopped], {"k": HandlerSettings()})
    stop_at = stopped.end_plan.stop_at
    pool.set(1)
    assert (stopped.end_plan.stop_at < stop_at, stopped.end_plan.stop_reason) == (True, "scaled")
    pool.set(2)
    assert (stopped.end_plan.stop_at, stopped.end_plan.stop_reason) == (stop_at, "reload")


# by room


def test_automatic_count_is_that_of_the_processors(pool):
    pool = pool(processes="auto", cpus=3)
    assert pool.scaling.automatic(BY)["now"] == 3
    pool.cpus = 5
    pool.scaling.refresh(BY)
    assert pool.scaling.status() == {"now": 5, "fewest": 5, "most": 5, "reason": "auto: as told"}
    pool.scaling.set(2, 2, BY)
    pool.scaling.refresh(BY)
    assert pool.slots.processes == 2
    assert pool.scaling.automatic(BY)["now"] == 5


def test_automatic_count_fits_the_memory_budget(pool):
    pool = pool(processes="auto", cpus=80, memory_budget="1G", memory_limit="256M")
    pool.scaling.automatic(BY)
    assert pool.slots.processes == 80  # until a child is measured
    pool.zygotes.measured = 1  # its child takes nothing worth mentioning
    pool.desk.budget.base_bytes = 100 * 2**20
    pool.scaling.step(pool.now_at)
    assert pool.slots.processes == 924 // 260
    assert pool.scaling.status()["reason"] == (
        "auto: 924 MB of the memory budget are left for children, each of which may take 260 MB; there are CPUs for 80"
    )
    pool.desk.budget.base_bytes = 2**40
    pool.scaling.refresh(BY)
    assert pool.slots.processes == 1
