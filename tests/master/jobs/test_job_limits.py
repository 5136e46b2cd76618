"""Limits: when each child is measured, and which jobs are killed for time or memory. Children are forks of the test."""

import faulthandler
import gc
import mmap
import os
import re
import signal

import pytest

from supervisor import clock, messages
from supervisor.engine.model.outcomes import Died
from supervisor.linux import kernel
from supervisor.master.jobs.admission import FIND_ROOM
from supervisor.master.jobs.unstarted import HAND_BACK
from supervisor.master.model import memory
from supervisor.master.model.states import ChildState
from supervisor.messages import TIMEOUT, Notice, Verb
from tests.master.jobs.conftest import QUICK_S
from tests.parts import await_readable, lease_of, never_reading, rest, until

MB = 2**20
FAR_S = 1e6


def growing(mb, shared=False):
    """Take a job and this much memory, say so on the output, and keep both."""

    def behave(ends):
        signal.signal(kernel.NOTICE_SIGNAL, lambda *_: None)
        faulthandler.register(kernel.STACKS_SIGNAL, ends.stacks)
        megabyte = b"x" * MB  # what is allocated and freed later could be given back to the kernel with more
        gc.disable()
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        room = mmap.mmap(-1, max(mb, 1) * MB, mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for _ in range(mb):
            room.write(megabyte)
        os.write(ends.out, b"has it\n")
        rest()

    return behave


def running(desk, mb, token=1, klass="k", **settings):
    """Return a child that runs a job of this many MB, and the job."""
    child = desk.child(growing(mb))
    child.meter = memory.Meter(child.pid, memory.of(child.pid))
    (held,) = desk.give(lease_of(token, klass), **settings)
    await_readable(child.output.fd)
    child.output.read()
    return child, held


def look(desk, *children):
    """Let the next measurement of these children be due, and made."""
    for child in children:
        child.next_sample_at = clock.monotonic()
        desk.limits.plan(child)
    desk.keep_time(clock.monotonic())


def test_a_job_slightly_beyond_its_limit_keeps_its_stack(desk):
    desk = desk(processes="1", memory_limit="20M")
    child, _ = running(desk, 22)
    look(desk, child)
    assert child.state is ChildState.BUSY
    until(lambda: "test_job_limits.py" in child.stacks.read())
    desk.keep_time(child.end_plan.kill_at)
    desk.reap(child)
    (outcome,) = desk.outcomes()
    assert (outcome.reason, outcome.details["stack"].splitlines()[0]) == ("memory", "at its memory limit:")
    assert "private memory, its limit is 20 MB" in outcome.message


def test_a_job_too_slow_to_write_its_stack_is_killed_without(desk):
    desk = desk(processes="1", memory_limit="20M")
    child, _ = running(desk, 22)
    os.kill(child.pid, signal.SIGSTOP)
    look(desk, child)
    look(desk, child)
    assert (child.state, child.why_killed) == (ChildState.DOOMED, "memory")


def test_a_limited_job_is_measured_before_its_limit_can_break(desk):
    desk = desk(processes="1", memory_limit="64M", dispatch_ahead="0s")
    child, held = running(desk, 1)
    desk.keep_time(held.started_at)  # overrun at once, as nothing may be sent ahead
    assert 0 < desk.deadline_at() - held.started_at <= 64 * MB / 2e9 + 0.001
    before = clock.monotonic()
    look(desk, child)
    assert before + 0.005 <= child.next_sample_at <= clock.monotonic() + 0.1


def test_a_job_near_its_limit_is_measured_more_often(desk):
    desk = desk(processes="1", memory_limit="64M")
    waits_s = []
    child, _held = running(desk, 10)
    for limit_mb in (100, 30, 11):
        child.running.memory_limit_bytes = limit_mb * MB
        now_at = clock.monotonic()
        child.next_sample_at = now_at
        desk.limits.plan(child)
        desk.keep_time(now_at)
        waits_s.append(child.next_sample_at - now_at)
    assert waits_s == sorted(waits_s, reverse=True)
    assert waits_s[-1] == pytest.approx(0.005)


@pytest.mark.parametrize(("flags", "settings"), [({"memory_limit": "8M"}, {}), ({}, {"memory_bytes": 8 * MB})])
def test_a_job_beyond_its_limit_is_killed_with_both_numbers(desk, flags, settings):
    desk = desk(processes="1", **flags)
    child, held = running(desk, 21, **settings)  # some of what it had before it gives back meanwhile
    assert held.memory_limit_bytes == 8 * MB
    look(desk, child)
    assert child.state is ChildState.DOOMED
    desk.reap(child)
    (outcome,) = desk.outcomes()
    assert (type(outcome), outcome.reason) == (Died, "memory")
    assert "private memory, its limit is 8 MB" in outcome.message
    assert 20 * MB <= outcome.details["memory_bytes"] < 30 * MB
    assert outcome.details["cpu_s"] == 0.5
    (killed,) = desk.events("child.killed")
    assert (killed["reason"], killed["jid"]) == ("memory", "j1")


def test_a_handlers_limit_of_0_overrides_the_common_one(desk):
    desk = desk(processes="1", memory_limit="8M")
    child, held = running(desk, 20, memory_bytes=0)
    assert held.memory_limit_bytes == 0
    before = clock.monotonic()
    look(desk, child)
    assert child.state is ChildState.BUSY
    assert child.next_sample_at > before + 0.2


def test_an_idle_child_is_not_measured(desk):
    desk = desk(memory_limit="8M")
    child = desk.child(growing(1))
    assert desk.deadline_at() == float("inf")
    desk.keep_time(clock.monotonic() + FAR_S)
    assert child.state is ChildState.IDLE


def test_a_child_that_has_just_ended_is_not_killed(desk):
    desk = desk(processes="1", memory_limit="8M")
    child, _held = running(desk, 20)
    os.kill(child.pid, signal.SIGKILL)
    await_readable(child.pidfd)
    look(desk, child)
    assert (child.state, child.why_killed) == (ChildState.BUSY, None)
    desk.reap(child)
    (outcome,) = desk.outcomes()
    assert outcome.reason == "SIGKILL"


def test_each_job_of_a_child_has_its_own_limit(desk):
    def behave(ends):
        ends.talk.send(messages.pack_ready())
        for _ in range(2):
            token = ends.next_job().token
            room = b"x" * (20 * MB)
            ends.say(messages.Verb.COMPLETED, token)
            assert room
        ends.next_job()
        rest()

    desk = desk(processes="1")
    child = desk.child(behave)
    for token, limit in ((1, 0), (2, 800 * MB), (3, 0)):
        (held,) = desk.give(lease_of(token, f"k{token}"), memory_bytes=limit)
        assert child.next_sample_at == pytest.approx(held.started_at + (memory.first_sample_s(limit)))
        if token < 3:
            desk.turn(lambda: child.state is ChildState.IDLE)
    assert child.meter.peak_bytes == 0


# the budget


def test_beyond_the_budget_only_the_largest_child_is_killed(desk):
    desk = desk(processes="3", memory_budget="100M")
    children = [running(desk, mb, token, f"k{token}")[0] for token, mb in enumerate((30, 60, 40), 1)]
    look(desk, *children)
    assert [child.state for child in children] == [ChildState.BUSY, ChildState.DOOMED, ChildState.BUSY]
    desk.reap(children[1])
    (outcome,) = desk.outcomes()
    assert (outcome.reason, outcome.lease.token) == ("memory", 2)
    assert "beyond the memory budget of 100 MB" in outcome.message
    assert "it runs alone next time" in outcome.message
    assert not desk.budget.fits("k2", "j2")
    look(desk, children[0], children[2])
    assert [child.state for child in (children[0], children[2])] == [ChildState.BUSY] * 2


def test_as_many_children_are_killed_as_needed(desk):
    desk = desk(processes="3", memory_budget="50M")
    children = [running(desk, mb, token, f"k{token}")[0] for token, mb in enumerate((30, 60, 40), 1)]
    look(desk, *children)
    assert [child.state for child in children] == [ChildState.BUSY, ChildState.DOOMED, ChildState.DOOMED]


def test_a_job_without_room_goes_back_and_stops_leases(desk):
    desk = desk(processes="2", memory_budget="100M", dispatch_ahead="20ms")
    desk.budget.settle(9, "large", "j0", 80 * MB)
    first, _held = running(desk, 1, 1, "large")
    second = desk.child(growing(1))
    (held,) = desk.give(lease_of(2, "large"))
    assert (len(second.sent), list(desk.ledgers.ready)) == (0, [held])
    assert desk.capacity.to_lease() == (0, 0)
    desk.keep_time(desk.timers.at(HAND_BACK))
    (outcome,) = desk.outcomes()
    assert (outcome.started, outcome.lease.token) == (False, 2)
    assert desk.admission.waits_for_room
    os.kill(first.pid, signal.SIGKILL)
    desk.reap(first)
    assert not desk.admission.waits_for_room
    assert desk.capacity.to_lease()[0] == 1


def test_the_wait_for_memory_ends_after_a_while(desk):
    desk = desk(processes="2", memory_budget="100M")
    desk.budget.settle(9, "large", "j0", 80 * MB)
    running(desk, 1, 1, "large")
    desk.child(growing(1))
    desk.give(lease_of(2, "large"))
    assert desk.admission.waits_for_room
    desk.keep_time(desk.timers.at(FIND_ROOM))
    assert not desk.admission.waits_for_room
    assert desk.deadline_at() < float("inf")


# time and memory


def test_a_time_limit_warns_with_a_stack_before_the_kill(desk):
    desk = desk(processes="1", term_grace="1s")
    child, held = running(desk, 1, timeout_s=10.0)
    desk.keep_time(held.started_at + 8.9)
    assert not child.only.warned_of_timeout
    desk.keep_time(held.started_at + 9.0)
    assert (child.only.warned_of_timeout, child.end_plan.kill_at) == (True, None)
    before_at = clock.monotonic()
    desk.keep_time(held.started_at + 10.0)
    assert before_at < child.end_plan.kill_at <= clock.monotonic() + 0.1
    assert child.state is ChildState.BUSY
    desk.keep_time(child.end_plan.kill_at)
    desk.reap(child)
    (outcome,) = desk.outcomes()
    assert (outcome.reason, "time limit of 10 s" in outcome.message) == ("timeout", True)


def test_an_overdue_job_is_warned_before_the_kill(desk):
    desk = desk(processes="1", term_grace="1s")
    child, held = running(desk, 1, timeout_s=10.0)
    desk.keep_time(held.started_at + 100)
    assert (child.only.warned_of_timeout, child.state) == (True, ChildState.BUSY)
    desk.keep_time(held.started_at + 100)
    desk.keep_time(child.end_plan.kill_at)
    until(lambda: child.state is ChildState.DOOMED)


def test_a_cancelled_job_that_cleans_up_is_still_measured(desk):
    desk = desk(processes="1", memory_limit="8M", term_grace="60s")
    child, held = running(desk, 20)
    desk.answers.lost([(held, "cancelled")])
    assert child.end_plan.kill_at > clock.monotonic() + 50
    look(desk, child)
    assert child.state is ChildState.DOOMED
    assert desk.events("child.killed")[0]["reason"] in ("memory", "cancelled")


def test_memory_given_back_is_free_for_other_jobs(desk):
    def giving_back(ends):
        ends.talk.send(messages.pack_ready())
        token = ends.next_job().token
        room = mmap.mmap(-1, 61 * MB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a few pages of before may go
        room.write(b"x" * (61 * MB))
        os.write(ends.out, b"has it\n")
        await_readable(ends.talk)
        room.close()
        ends.say(messages.Verb.COMPLETED, token)
        rest()

    desk = desk(processes="3", memory_budget="200M")
    quick = desk.child(giving_back)
    quick.meter = memory.Meter(quick.pid, memory.of(quick.pid))
    desk.give(lease_of(1, "quick"))
    await_readable(quick.output.fd)
    look(desk, quick)
    assert desk.budget.room_bytes() < 150 * MB
    quick.talk.send(b"x")
    desk.turn(lambda: quick.state is ChildState.IDLE)
    assert desk.budget.room_bytes() > 150 * MB
    assert desk.budget.expected("quick") >= 60 * MB


def test_idle_children_are_killed_before_any_job(desk):
    desk = desk(processes="3", memory_budget="100M")
    child, _held = running(desk, 80)
    idle = [desk.child(growing(1)) for _ in range(2)]
    for each in idle:
        desk.budget.measured(each.number, 15 * MB)
    look(desk, child)
    assert sorted(each.state.name for each in idle) == ["DOOMED", "IDLE"]
    assert child.state is ChildState.BUSY


def test_two_idle_children_are_killed_if_one_is_not_enough(desk):
    desk = desk(processes="3", memory_budget="100M")
    child, _held = running(desk, 90)
    idle = [desk.child(growing(1)) for _ in range(2)]
    for each in idle:
        desk.budget.measured(each.number, 14 * MB)
    look(desk, child)
    assert [each.state.name for each in (child, *idle)] == ["BUSY", "DOOMED", "DOOMED"]


# kills that are planned


def test_a_planned_kill_is_not_reported_as_done(desk):
    """A child that crashes between the end of its time and its kill has crashed."""

    def behave(ends):
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        ends.jobs.recv(1)  # until there are no more
        os.abort()

    desk = desk(processes="1", term_grace="1s")
    child = desk.child(behave)
    (held,) = desk.give(lease_of(1, timeout_ms=5_000))
    for at_s in (4.5, 5.0):
        desk.keep_time(held.started_at + at_s)
    assert child.end_plan.kill_at is not None
    child.jobs.end()
    assert os.WTERMSIG(desk.reap(child)) == signal.SIGABRT
    (outcome,) = desk.outcomes()
    assert (type(outcome), outcome.reason) == (Died, "SIGABRT")
    assert "time limit" not in outcome.message
    assert not desk.events("child.killed")


# idle ones


def growing_afterwards(mb):
    """Answer the first job, and take this much memory after it."""

    def behave(ends):
        ends.talk.send(messages.pack_ready())
        ends.say(messages.Verb.COMPLETED, ends.next_job().token)
        room = mmap.mmap(-1, mb * MB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        room.write(b"x" * (mb * MB))
        os.write(ends.out, b"has it\n")
        rest()

    return behave


def test_with_a_budget_a_used_idle_child_is_measured(desk):
    desk = desk(processes="1", memory_budget="100M")
    child = desk.child(growing_afterwards(150))
    child.meter = memory.Meter(child.pid, memory.of(child.pid))
    desk.give(lease_of(1))
    desk.turn(lambda: child.state is ChildState.IDLE)
    await_readable(child.output.fd)
    assert desk.deadline_at() <= clock.monotonic() + 2
    look(desk, child)
    assert (child.state, child.why_killed) == (ChildState.DOOMED, "memory")
    (killed,) = desk.events("child.killed")
    assert re.search(r"and it keeps 15\d(\.\d)? MB for nobody", killed["message"])
    desk.reap(child)
    assert [outcome.lease.token for outcome in desk.outcomes()] == [1]


def test_without_a_budget_an_idle_child_is_not_measured(desk):
    desk = desk(processes="1", memory_budget="none")
    child = desk.child(growing_afterwards(1))
    desk.give(lease_of(1))
    desk.turn(lambda: child.state is ChildState.IDLE)
    desk.keep_time(desk.deadline_at())  # the timer of its job
    assert desk.deadline_at() == float("inf")


def test_a_job_put_off_is_named_and_the_next_one_starts(desk):
    desk = desk(processes="2", memory_budget="100M")
    desk.budget.settle(9, "large", "j0", 80 * MB)
    running(desk, 1, 1, "large")
    second = desk.child(growing(1))
    for ago_s in (5.5, 2.8):
        desk.budget.put_off("large", "j2", clock.monotonic() - ago_s)
    desk.give(lease_of(2, "large"))
    (outcome,) = desk.outcomes()
    assert (outcome.lease.token, outcome.started, outcome.delay) == (2, False, 10)
    (warning,) = desk.events("master.warned")
    assert "large j2 does not start here: it may need 80 MB" in warning["message"]
    assert "it is tried again in 10 s" in warning["message"]
    assert not desk.ledgers.ready
    (other,) = desk.give(lease_of(3, "small"))
    assert second.running is other


# what is left of earlier jobs


def keeping(*takes_mb):
    """Take this much memory with each job, and keep it. The last job is not answered."""

    def behave(ends):
        signal.signal(kernel.NOTICE_SIGNAL, lambda *_: None)
        kept = []
        ends.talk.send(messages.pack_ready())
        for mb in takes_mb:
            token = ends.next_job().token
            if kept:
                ends.jobs.recv(1)  # until the test lets it go on: what it began with has been seen
            kept.append(mmap.mmap(-1, max(mb, 1) * MB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            for _ in range(mb):
                kept[-1].write(b"x" * MB)
            if len(kept) < len(takes_mb):
                ends.say(messages.Verb.COMPLETED, token)
        os.write(ends.out, b"has it\n")
        rest()

    return behave


@pytest.mark.parametrize(("takes_mb", "state"), [(4, ChildState.BUSY), (12, ChildState.DOOMED)])
def test_a_jobs_limit_does_not_count_what_earlier_jobs_left(desk, takes_mb, state):
    desk = desk(processes="1")
    child = desk.child(keeping(30, takes_mb))
    child.meter = memory.Meter(child.pid, memory.of(child.pid))
    desk.give(lease_of(1, "k1"), memory_bytes=0)
    desk.turn(lambda: child.state is ChildState.IDLE)
    desk.outcomes()
    desk.give(lease_of(2, "k2"), memory_bytes=8 * MB)
    child.jobs.end()
    await_readable(child.output.fd)
    look(desk, child)
    assert child.state is state
    if state is ChildState.DOOMED:
        desk.reap(child)
        (outcome,) = desk.outcomes()
        assert outcome.reason == "memory"
        assert re.search(r"have 1[2-4](\.\d)? MB of private memory, its limit is 8 MB", outcome.message)


# time


def test_a_persistent_job_has_only_its_own_or_its_handlers_limit(desk):
    desk = desk(job_timeout="5s")
    for token, (own_ms, handlers_s, limit_s) in enumerate([(None, None, 0.0), (2000, None, 2.0), (None, 3.0, 3.0)], 1):
        (held,) = desk.give(lease_of(token, persistent=True, timeout_ms=own_ms), timeout_s=handlers_s)
        assert held.limit_s == limit_s
    (held,) = desk.give(lease_of(9))
    assert held.limit_s == 5.0


@pytest.mark.parametrize(("own_ms", "handler_s", "limit_s"), [(2000, 5.0, 2.0), (None, 5.0, 5.0), (None, None, 7.0)])
def test_a_job_past_its_time_limit_writes_its_stack_and_is_killed(desk, own_ms, handler_s, limit_s):
    def behave(ends):
        signal.signal(kernel.STACKS_SIGNAL, lambda *_: os.write(ends.out, b"stacks\n"))
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        os.write(ends.out, b"has it\n")
        rest()

    desk = desk(processes="1", job_timeout="7s")
    child = desk.child(behave)
    (held,) = desk.give(lease_of(1, timeout_ms=own_ms), timeout_s=handler_s)
    await_readable(child.output.fd)
    child.output.read()
    desk.keep_time(held.started_at + 0.9 * limit_s - 0.01)
    assert (child.end_plan.kill_at, child.only.warned_of_timeout) == (None, False)
    desk.keep_time(held.started_at + 0.9 * limit_s)
    await_readable(child.output.fd)
    child.output.read()
    assert (child.end_plan.kill_at, child.only.warned_of_timeout) == (None, True)
    desk.keep_time(held.started_at + limit_s)
    await_readable(child.output.fd)
    desk.keep_time(child.end_plan.kill_at)
    desk.reap(child)
    (outcome,) = desk.outcomes()
    assert (type(outcome), outcome.reason) == (Died, "timeout")
    assert outcome.details["output"].count("stacks") == 2
    assert f"time limit of {limit_s:g} s" in outcome.message


def test_a_handler_is_told_once_that_its_time_limit_is_near(desk):
    def behave(ends):
        signal.signal(kernel.NOTICE_SIGNAL, lambda *_: None)
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        os.write(ends.out, b"has it\n")
        os.write(ends.out, ends.talk.recv(1000) + b"\n")
        rest()

    desk = desk(processes="1", term_grace="1s")
    child = desk.child(behave)
    (held,) = desk.give(lease_of(1, timeout_ms=60_000))
    await_readable(child.output.fd)
    child.output.read()
    for _ in range(3):
        desk.keep_time(held.started_at + 59)
    await_readable(child.output.fd)
    child.output.read()
    assert desk.printed[1:] == [(1, 0, messages.pack_notice(Notice(1, TIMEOUT, "the time limit of 60 s is near")))]
    assert child.end_plan.kill_at is None


def test_a_time_limit_of_0_is_none(desk):
    desk = desk(processes="1", job_timeout="7s")
    child = desk.child(never_reading)
    (held,) = desk.give(lease_of(1, timeout_ms=0))
    desk.keep_time(held.started_at + 10**8)
    assert (child.end_plan.kill_at, child.overran) == (None, True)


@pytest.mark.parametrize("ahead", ["10s", "20ms"])
def test_start_of_an_overlong_short_job_is_reported_after_20_ms(desk, ahead):
    desk = desk(processes="1", dispatch_ahead=ahead)
    desk.pace.learn("k", QUICK_S)
    desk.child(never_reading)
    first, _second = desk.give(lease_of(1), lease_of(2), starting=0)
    desk.keep_time(first.started_at + 0.019)
    assert desk.ledger.reports.take_starts() == []
    desk.keep_time(first.started_at + 0.021)
    assert desk.ledger.reports.take_starts() == [first.lease]


def test_jobs_are_taken_back_no_sooner_than_dispatch_ahead(desk):
    desk = desk(processes="1", dispatch_ahead="10s")
    desk.pace.learn("k", QUICK_S)
    child = desk.child(never_reading)
    first, _second = desk.give(lease_of(1), lease_of(2), starting=0)
    for ran_s in (0.021, 9.0):
        desk.keep_time(first.started_at + ran_s)
        assert (child.overran, len(child.sent)) == (False, 2)


def test_a_job_that_ends_in_the_last_instant_is_not_killed(desk):
    def behave(ends):
        signal.signal(kernel.STACKS_SIGNAL, signal.SIG_IGN)
        ends.talk.send(messages.pack_ready())
        ends.say(Verb.COMPLETED, ends.next_job().token)
        rest()

    desk = desk(processes="1", job_timeout="7s")
    child = desk.child(behave)
    (held,) = desk.give(lease_of(1))
    desk.keep_time(held.started_at + 7)
    desk.keep_time(held.started_at + 7)
    assert child.end_plan.kill_at is not None
    desk.turn(lambda: child.state is ChildState.IDLE)
    desk.keep_time(held.started_at + 100)
    assert (child.state, child.end_plan.kill_at) == (ChildState.IDLE, None)
