"""A drain hands back, lets run, or interrupts jobs: unstarted, running and persistent ones."""

import signal

from supervisor import clock, messages
from supervisor.engine.model.outcomes import Released
from supervisor.linux import kernel
from supervisor.master.model.states import ChildState
from supervisor.messages import ProgressReport, Trouble, Verb, pack_progress, pack_trouble
from tests.master.jobs.conftest import busy_with_five, summary
from tests.parts import await_readable, lease_of, rest


def telling(ends):
    """Take one job, say so, and keep it."""
    signal.signal(kernel.NOTICE_SIGNAL, signal.SIG_IGN)
    ends.talk.send(messages.pack_ready())
    ends.talk.send(pack_progress(ends.next_job().token, ProgressReport(0.0, "it has begun")))
    rest()


def test_a_drain_hands_back_unstarted_jobs_and_starts_none(desk):
    desk = desk(processes="1")
    child, _held = busy_with_five(desk)
    desk.shutdown.begin()
    assert [each.lease.token for each in child.sent] == [1]
    desk.give(lease_of(9), lease_of(10, "unknown"))
    outcomes = desk.outcomes()
    assert summary(outcomes) == [(Released, token) for token in (2, 3, 4, 5, 9, 10)]
    assert not any(outcome.started for outcome in outcomes)


def test_a_drain_interrupts_only_persistent_jobs_at_once(desk):
    def behave(ends):
        signal.signal(kernel.NOTICE_SIGNAL, signal.SIG_IGN)
        ends.talk.send(messages.pack_ready())
        token = ends.next_job().token
        ends.talk.send(pack_progress(token, ProgressReport(0.0, "it has begun")))
        await_readable(ends.talk)
        notice = messages.unpack_word(ends.talk.recv(1000))
        if not notice.gently:
            ends.say(Verb.INTERRUPTED, token, pack_trouble(Trouble(None, notice.reason)))
        rest()

    desk = desk(processes="2")
    children = [desk.child(behave), desk.child(behave)]
    (held, other) = desk.give(lease_of(1, persistent=True), lease_of(2))
    desk.turn(lambda: held.reports.count and other.reports.count)
    desk.shutdown.begin()
    desk.turn(lambda: children[0].state is ChildState.LEAVING)
    assert summary(desk.outcomes()) == [(Released, 1)]
    assert held.outcome.reason == "drain"
    assert children[1].end_plan.kill_at is None
    assert children[1].state is ChildState.BUSY


def test_a_drain_kills_a_deaf_persistent_job_soon(desk):
    desk = desk(processes="1", drain_timeout="20s", term_grace="1s")
    child = desk.child(telling)
    (held,) = desk.give(lease_of(1, persistent=True))
    desk.turn(lambda: held.reports.count)
    desk.shutdown.begin()
    assert child.end_plan.kill_at <= clock.monotonic() + 1
    desk.keep_time(child.end_plan.kill_at)
    desk.reap(child)
    (outcome,) = desk.outcomes()
    assert (type(outcome), outcome.started, outcome.reason) == (Released, True, "drain")
