"""A job whose lease is lost is taken back or stopped. Children are forks of the test."""

import select
import signal

from supervisor import clock, messages
from supervisor.linux import kernel
from supervisor.master.model.states import ChildState
from supervisor.messages import Verb
from tests.master.jobs.conftest import QUICK_S, busy_with_five
from tests.parts import await_readable, lease_of, never_reading, rest


def await_receipt(child):
    """Wait until the child has received its jobs. No event tells of that, so look again and again."""
    deadline_at = clock.monotonic() + 10
    while kernel.unread_bytes(child.jobs._receiver.fileno()):
        assert clock.monotonic() < deadline_at
        select.select([], [], [], 0.001)


def test_a_lost_running_job_is_stopped_then_killed(desk):
    def behave(ends):
        signal.signal(kernel.NOTICE_SIGNAL, lambda *_: None)
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        rest()

    desk = desk(processes="1", term_grace="1s")
    child = desk.child(behave)
    (held,) = desk.give(lease_of(1))
    await_receipt(child)
    desk.answers.lost([(held, "cancelled")])
    assert [(said["jid"], said["reason"]) for said in desk.events("lease.lost")] == [("j1", "cancelled")]
    desk.keep_time(clock.monotonic())
    assert child.state is ChildState.BUSY
    desk.keep_time(child.end_plan.kill_at)
    desk.reap(child)
    assert desk.outcomes() == []
    assert len(desk.ledger) == 0


def test_a_lost_jobs_outcome_is_stale_and_its_child_goes_on(desk):
    def behave(ends):
        signal.signal(kernel.NOTICE_SIGNAL, signal.SIG_IGN)
        ends.talk.send(messages.pack_ready())
        token = ends.next_job().token
        await_readable(ends.talk)
        assert messages.unpack_word(ends.talk.recv(1000)) == messages.Notice(token, "cancelled")
        ends.say(Verb.COMPLETED, token)
        rest()

    desk = desk(processes="1")
    child = desk.child(behave)
    (held,) = desk.give(lease_of(1))
    await_receipt(child)
    desk.answers.lost([(held, "cancelled")])
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert desk.outcomes() == []
    assert [said["verb"] for said in desk.events("job.stale")] == ["completed"]


def test_a_lost_job_that_was_not_received_never_begins(desk):
    def behave(ends):
        ends.talk.send(messages.pack_ready())
        rest()

    desk = desk(processes="1")
    child = desk.child(behave)
    (held,) = desk.give(lease_of(1))
    desk.answers.lost([(held, "cancelled")])
    assert child.state is ChildState.IDLE
    assert desk.outcomes() == []
    assert len(desk.ledger) == 0


def test_a_lost_job_sent_ahead_is_taken_out_of_the_line(desk):
    desk = desk(processes="1")
    desk.pace.learn("k", QUICK_S)
    child = desk.child(never_reading)
    held = desk.give(*(lease_of(token) for token in range(1, 6)))
    desk.answers.lost([(held[2], "lease-lost")])
    assert [each.lease.token for each in child.sent] == [1, 2, 4, 5]
    assert [lease.token for lease in desk.ledger.leases] == [1, 2, 4, 5]
    assert child.end_plan.kill_at is None
    assert desk.outcomes() == []


def test_jobs_lost_together_start_nowhere(desk):
    desk = desk(processes="2")
    child, held = busy_with_five(desk)
    other = desk.child(never_reading)
    desk.answers.lost([(each, "lease-lost") for each in held])
    assert [each.lease.token for each in child.sent] == [1]
    assert (other.state, list(other.sent)) == (ChildState.IDLE, [])
    assert child.end_plan.kill_at is not None
    assert len(desk.ledger) == 0
    assert desk.outcomes() == []


def test_a_lost_job_without_a_child_is_dropped(desk):
    desk = desk(processes="1")
    desk.child(never_reading)
    (first,) = desk.give(lease_of(1))
    child = desk.slots.get(1)
    child.take_back()
    desk.ledgers.ready.append(first)
    desk.answers.lost([(first, "lease-lost")])
    assert (list(desk.ledgers.ready), len(desk.ledger)) == ([], 0)


def test_each_cancelled_job_is_said_also_without_a_child(desk):
    desk = desk(processes="1")
    child, held = busy_with_five(desk)
    held[0].cancelled_by, held[1].cancelled_by = "kim@web-1", ""
    child.take_back()
    desk.answers.lost([(each, "cancelled") for each in held[:3]])
    said = [tuple(map(event.get, ("jid", "klass", "queue", "by"))) for event in desk.events("job.cancelled")]
    assert said == [("j1", "k", "q", "kim@web-1"), ("j2", "k", "q", None)]
