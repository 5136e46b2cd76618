"""A drain of a played master against a real server: which phases it takes, and what becomes of its jobs."""

import os

from supervisor import clock, messages
from supervisor.exit_codes import Exit
from supervisor.master.model.signals import By
from supervisor.master.model.states import Phase
from tests.parts import await_readable, rest

BY = By("leasehold drain")
AT_ONCE = {"drain_timeout": "0s", "term_grace": "0s"}


def keeping(ends):
    """A child that takes one job, reports that on its output, and keeps the job."""
    ends.talk.send(messages.pack_ready())
    ends.next_job()
    os.write(ends.out, b"has it\n")
    rest()


def with_a_job(played, live, **flags):
    """A master whose child runs job `a`, and that child."""
    master = played(keeping, **flags)
    live.queue("q").put("k", jid="a")
    (child,) = master.desk.slots
    master.turn_until(lambda: child.sent)
    await_readable(child.output.fd)
    return master, child


def stopped(master):
    return master.drain.phase is Phase.STOPPED


def test_idle_master_leaves_redis(played, live):
    master = played(**AT_ONCE)
    master.drain.begin(BY)
    master.turn_until(lambda: stopped(master))
    assert live.workers() == []
    assert master.drain.exit is Exit.OK


def test_drain_waits_for_a_running_job(played, live):
    master, _child = with_a_job(played, live)
    schedule = master.drain.begin(BY)
    assert master.drain.advance(clock.monotonic()) == schedule.interrupt_at
    assert (master.drain.phase, live.job("a").state) == (Phase.DRAINING, "running")
    (event,) = master.desk.events("master.draining")
    assert (event["by"], event["running"], event["jobs"]) == ("leasehold drain", 1, ["k a"])


def test_job_is_interrupted_when_patience_is_over(played, live):
    master, child = with_a_job(played, live)
    schedule = master.drain.begin(BY)
    assert master.drain.advance(schedule.interrupt_at) == schedule.kill_at
    assert (master.drain.phase, child.stop_reason) == (Phase.INTERRUPTING, "drain")


def test_killed_job_goes_back_to_its_queue(played, live):
    master, child = with_a_job(played, live, **AT_ONCE)
    master.drain.begin(BY)
    master.turn_until(lambda: child.why_killed)
    assert master.drain.phase is Phase.KILLING
    master.desk.reap(child)
    master.turn_until(lambda: stopped(master))
    assert (live.job("a").state, live.job("a").interruptions) == ("waiting", 1)
    assert (live.workers(), master.drain.exit) == ([], Exit.OK)


def test_job_of_a_child_that_cannot_be_reaped_is_handed_back(played, live):
    master, _child = with_a_job(played, live, **AT_ONCE)
    schedule = master.drain.begin(BY)
    master.drain.advance(schedule.hand_back_at)
    master.turn_until(lambda: master.demand.is_settled)
    assert live.job("a").state == "waiting"


def test_master_that_never_reached_redis_stops_at_once(played):
    master = played(is_started=False)
    master.drain.begin(None, Exit.UNREACHABLE)
    (child,) = master.desk.slots
    master.desk.processes[child.number].end()
    master.desk.reap(child)
    master.drain.advance(clock.monotonic())
    assert (master.drain.phase, master.drain.exit) == (Phase.STOPPED, Exit.UNREACHABLE)
    assert master.desk.events("master.draining") == []


def test_leases_expire_if_redis_stays_away(played, live):
    master, _child = with_a_job(played, live)
    master.session.lose()
    schedule = master.drain.begin(BY)
    master.drain.advance(schedule.leave_by_at)
    assert (master.drain.phase, master.drain.exit) == (Phase.STOPPED, Exit.NOT_HANDED_BACK)
