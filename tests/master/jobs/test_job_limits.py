"""Limits: when each child is looked at, and who is killed for time or memory, by a master's deciding half."""

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
from tests.parts import await_readable, lease_of, rest, until

MB = 2**20
FAR_S = 1e6


def growing(mb, shared=False):
    """Takes a job, then so much memory, says so on its output, and keeps it."""

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
    """A child that runs a job of so many MB."""
    child = desk.child(growing(mb))
    child.meter = memory.Meter(child.pid, memory.of(child.pid))
    (held,) = desk.give(lease_of(token, klass), **settings)
    await_readable(child.output.fd)
    child.output.read()
    return child, held


def look(desk, *children):
    """Come to the time of the next look at these."""
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


def test_a_job_that_does_not_write_its_stack_in_time_is_killed_without(desk):
    desk = desk(processes="1", memory_limit="20M")
    child, _ = running(desk, 22)
    os.kill(child.pid, signal.SIGSTOP)
    look(desk, child)
    look(desk, child)
    assert (child.state, child.why_killed) == (ChildState.DOOMED, "memory")


def test_a_limited_job_is_looked_at_before_it_can_have_passed_its_limit(desk):
    desk = desk(processes="1", memory_limit="64M", dispatch_ahead="0s")
    child, held = running(desk, 1)
    desk.keep_time(held.started_at)  # overrun at once, as nothing may be sent ahead
    assert 0 < desk.deadline_at() - held.started_at <= 64 * MB / 2e9 + 0.001
    before = clock.monotonic()
    look(desk, child)
    assert before + 0.005 <= child.next_sample_at <= clock.monotonic() + 0.1


def test_the_nearer_a_job_is_to_its_limit_the_sooner_it_is_looked_at_again(desk):
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
def test_a_job_beyond_its_limit_is_killed_with_what_it_has_and_what_it_may(desk, flags, settings):
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


def test_a_handlers_limit_of_0_is_none_beside_everybodys(desk):
    desk = desk(processes="1", memory_limit="8M")
    child, held = running(desk, 20, memory_bytes=0)
    assert held.memory_limit_bytes == 0
    look(desk, child)
    assert child.state is ChildState.BUSY
    assert child.next_sample_at > clock.monotonic() + 0.2


def test_an_idle_child_is_not_looked_at(desk):
    desk = desk(memory_limit="8M")
    child = desk.child(growing(1))
    assert desk.deadline_at() == float("inf")
    desk.keep_time(clock.monotonic() + FAR_S)
    assert child.state is ChildState.IDLE


def test_a_child_that_ends_meanwhile_has_nothing_and_is_not_killed(desk):
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


def test_when_all_together_are_beyond_the_budget_the_largest_goes_and_the_others_stay(desk):
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


def test_as_many_go_as_must(desk):
    desk = desk(processes="3", memory_budget="50M")
    children = [running(desk, mb, token, f"k{token}")[0] for token, mb in enumerate((30, 60, 40), 1)]
    look(desk, *children)
    assert [child.state for child in children] == [ChildState.BUSY, ChildState.DOOMED, ChildState.DOOMED]


def test_what_does_not_fit_waits_and_goes_back_uncounted_and_nothing_is_leased_until_a_job_ends(desk):
    desk = desk(processes="2", memory_budget="100M", dispatch_ahead="20ms")
    desk.budget.settle(9, "large", "j0", 80 * MB)
    first, _held = running(desk, 1, 1, "large")
    second = desk.child(growing(1))
    (held,) = desk.give(lease_of(2, "large"))
    assert (len(second.sent), list(desk.ledger.ready)) == (0, [held])
    assert desk.capacity.to_lease() == (0, 0)
    desk.keep_time(desk.timers.at(HAND_BACK))
    (outcome,) = desk.outcomes()
    assert (outcome.started, outcome.lease.token) == (False, 2)
    assert desk.admission.waits_for_room
    os.kill(first.pid, signal.SIGKILL)
    desk.reap(first)
    assert not desk.admission.waits_for_room
    assert desk.capacity.to_lease()[0] == 1


def test_the_wait_for_memory_ends_by_itself(desk):
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


def test_the_time_limit_says_where_the_job_is_first_then_that_it_is_near_and_kills_after_it(desk):
    desk = desk(processes="1", term_grace="1s")
    child, held = running(desk, 1, timeout_s=10.0)
    desk.keep_time(held.started_at + 8.9)
    assert not child.warned_of_timeout
    desk.keep_time(held.started_at + 9.0)
    assert (child.warned_of_timeout, child.end_plan.kill_at) == (True, None)
    before_at = clock.monotonic()
    desk.keep_time(held.started_at + 10.0)
    assert before_at < child.end_plan.kill_at <= clock.monotonic() + 0.1
    assert child.state is ChildState.BUSY
    desk.keep_time(child.end_plan.kill_at)
    desk.reap(child)
    (outcome,) = desk.outcomes()
    assert (outcome.reason, "time limit of 10 s" in outcome.message) == ("timeout", True)


def test_after_a_long_gap_a_job_past_its_limit_is_warned_before_it_is_killed(desk):
    desk = desk(processes="1", term_grace="1s")
    child, held = running(desk, 1, timeout_s=10.0)
    desk.keep_time(held.started_at + 100)
    assert (child.warned_of_timeout, child.state) == (True, ChildState.BUSY)
    desk.keep_time(held.started_at + 100)
    desk.keep_time(child.end_plan.kill_at)
    until(lambda: child.state is ChildState.DOOMED)


def test_memory_is_looked_at_also_while_a_cancelled_job_has_its_time_to_clean_up(desk):
    desk = desk(processes="1", memory_limit="8M", term_grace="60s")
    child, held = running(desk, 20)
    desk.answers.lost([(held, "cancelled")])
    assert child.end_plan.kill_at > clock.monotonic() + 50
    look(desk, child)
    assert child.state is ChildState.DOOMED
    assert desk.events("child.killed")[0]["reason"] in ("memory", "cancelled")


def test_what_a_job_has_given_back_stands_in_nobodys_way(desk):
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


def test_idle_children_go_before_any_job_does_if_they_are_enough_together(desk):
    desk = desk(processes="3", memory_budget="100M")
    child, _held = running(desk, 80)
    idle = [desk.child(growing(1)) for _ in range(2)]
    for each in idle:
        desk.budget.measured(each.number, 15 * MB)
    look(desk, child)
    assert sorted(each.state.name for each in idle) == ["DOOMED", "IDLE"]
    assert child.state is ChildState.BUSY


def test_two_idle_children_go_if_neither_is_enough_alone(desk):
    desk = desk(processes="3", memory_budget="100M")
    child, _held = running(desk, 90)
    idle = [desk.child(growing(1)) for _ in range(2)]
    for each in idle:
        desk.budget.measured(each.number, 14 * MB)
    look(desk, child)
    assert [each.state.name for each in (child, *idle)] == ["BUSY", "DOOMED", "DOOMED"]


# kills that are planned


def test_a_planned_kill_is_not_told_as_one_that_was_made(desk):
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
    """Answers its first job, and takes so much memory then."""

    def behave(ends):
        ends.talk.send(messages.pack_ready())
        ends.say(messages.Verb.COMPLETED, ends.next_job().token)
        room = mmap.mmap(-1, mb * MB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        room.write(b"x" * (mb * MB))
        os.write(ends.out, b"has it\n")
        rest()

    return behave


def test_an_idle_child_that_has_run_a_job_is_looked_at_where_there_is_a_budget(desk):
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
    assert "and it keeps 150 MB for nobody" in killed["message"]
    desk.reap(child)
    assert [outcome.lease.token for outcome in desk.outcomes()] == [1]


def test_without_a_budget_an_idle_child_is_not_looked_at_again(desk):
    desk = desk(processes="1", memory_budget="none")
    child = desk.child(growing_afterwards(1))
    desk.give(lease_of(1))
    desk.turn(lambda: child.state is ChildState.IDLE)
    desk.keep_time(desk.deadline_at())  # the timer of its job
    assert desk.deadline_at() == float("inf")


def test_what_was_put_off_goes_back_for_later_by_name_and_the_next_one_starts(desk):
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
    assert not desk.ledger.ready
    (other,) = desk.give(lease_of(3, "small"))
    assert second.running is other


# what is left of earlier jobs


def keeping(*takes_mb):
    """Takes so much memory with each of its jobs, and keeps it; the last one it does not answer."""

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
def test_a_jobs_limit_is_for_what_it_takes_itself_not_for_what_earlier_ones_have_left(desk, takes_mb, state):
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
