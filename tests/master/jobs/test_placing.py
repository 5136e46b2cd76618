"""Ready jobs reach children, wait, or go back to their queues. Children are forks of the test."""

import ctypes
import errno
import os
import socket
import struct

import pytest

from supervisor import messages
from supervisor.engine.model.outcomes import Completed, Died, Released, Unknown
from supervisor.linux import kernel
from supervisor.master.jobs.unstarted import HAND_BACK
from supervisor.master.model.states import ChildState
from supervisor.messages import HandlerSettings, Verb
from tests.master.jobs.conftest import QUICK_S, busy_with_five, summary
from tests.parts import await_readable, grant_of, holding, honest, lease_of, never_reading, rest

# starts


def test_only_a_start_that_happens_is_reported(desk):
    desk = desk(processes="2", memory_budget="4G")
    first, second = desk.child(holding), desk.child(holding)
    desk.budget.mark_killed(9, "k", "j2")  # it may run alone only
    known = {"k": HandlerSettings()}
    desk.intake.accept(grant_of([lease_of(1), lease_of(2)]), known)
    reported = []
    desk.report = lambda started: reported.extend(lease.token for lease in started)
    desk.placing.place(reports_starts=True)
    desk.starts.finish()
    assert (reported, len(first.sent + second.sent)) == ([1], 1)
    assert [held.lease.token for held in desk.ledgers.ready] == [2]


def test_job_received_while_others_are_taken_back_counts_as_started(desk):
    desk = desk(processes="1")
    desk.pace.learn("k", 0.01)
    child = desk.child(never_reading)
    desk.give(lease_of(1), lease_of(2), starting=1)
    first, _second = [kernel.receive(child.jobs._receiver, messages.MAX_PACKET_BYTES, 1)[0] for _ in range(2)]
    child.jobs._sender.send(first)  # the child received the second one, as the master sees it
    desk.placing.withdraw(child)
    assert [event["jid"] for event in desk.events("job.started")] == ["j1", "j2"]
    assert [lease.jid for lease in desk.ledger.reports.take_starts()] == ["j2"]


def test_child_that_is_to_retire_leaves_when_its_waiting_jobs_are_taken_back(desk):
    """The child has answered a job and received no other one: nothing else would ever make it leave."""
    desk = desk(processes="1")
    desk.pace.learn("k", QUICK_S)
    child = desk.child(never_reading)
    desk.give(lease_of(1), lease_of(2), starting=1)
    child.sent.popleft()
    child.retire("worn")
    desk.placing.withdraw(child)
    assert (child.state, len(desk.ledgers.ready)) == (ChildState.LEAVING, 1)


def test_a_klass_without_a_handler_goes_back_with_a_delay(desk):
    desk = desk()
    desk.child(honest)
    desk.give(lease_of(1, "unknown"))
    assert summary(desk.outcomes()) == [(Unknown, 1)]


def test_a_child_that_shuts_its_job_socket_is_killed(desk):
    def shut(ends):
        ends.jobs.shutdown(socket.SHUT_RD)
        never_reading(ends)

    desk = desk()
    first, second = desk.child(shut), desk.child(holding)
    desk.give(lease_of(1))
    assert (first.state, second.running.lease.token) == (ChildState.DOOMED, 1)
    desk.reap(first)
    assert desk.outcomes() == []


def with_jobs_behind(desk, acts):
    """Return a child that runs job 1, writes something, and is sent jobs 2 and 3 then."""
    desk.pace.learn("k", QUICK_S)
    child = desk.child(acts)
    desk.give(lease_of(1))
    await_readable(child.output.fd)
    desk.give(lease_of(2), lease_of(3), starting=0)
    return child


def test_busy_child_that_shuts_its_job_socket_is_killed(desk):
    def shut(ends):
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        ends.jobs.shutdown(socket.SHUT_RD)
        os.write(ends.out, b"shut\n")
        rest()

    desk = desk(processes="1")
    child = with_jobs_behind(desk, shut)
    assert (child.state, len(desk.events("child.killed"))) == (ChildState.DOOMED, 1)
    assert [held.lease.token for held in desk.ledgers.ready] == [2, 3]
    desk.reap(child)
    assert summary(desk.outcomes()) == [(Died, 1)]


def test_child_that_answers_jobs_without_receiving_them_is_killed(desk):
    def guess(ends):
        ends.talk.send(messages.pack_ready())
        while True:
            token = int.from_bytes(ends.talk.recv(8))
            ends.say(Verb.COMPLETED, token, b"1")

    desk = desk(processes="2")
    first, second = desk.child(guess), desk.child(holding)
    token = 0
    while second.running is None and not desk.ledgers.ready:
        token += 1
        desk.give(lease_of(token, raw=b"x" * 16_000))
        if first.sent:
            first.talk.send(token.to_bytes(8))
            desk.turn(lambda: not first.sent)
    assert (first.state, second.running.lease.token) == (ChildState.DOOMED, token)
    assert token > 10
    desk.reap(first)
    assert summary(desk.outcomes()) == [(Completed, earlier) for earlier in range(1, token)]


def test_child_that_lets_no_descriptors_through_is_killed(desk):
    so_passrights = 83

    def refuse(ends):
        ends.jobs.setsockopt(socket.SOL_SOCKET, so_passrights, 0)
        never_reading(ends)

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.getsockopt(socket.SOL_SOCKET, so_passrights)
    except OSError as error:
        assert error.errno == errno.ENOPROTOOPT
        pytest.skip("descriptors always pass, before Linux 6.16")
    desk = desk()
    first, second = desk.child(refuse), desk.child(holding)
    desk.give(lease_of(1, raw=b"x" * 20_000))
    assert (first.state, second.running.lease.token) == (ChildState.DOOMED, 1)
    desk.reap(first)
    assert desk.outcomes() == []


def test_a_child_that_cuts_its_jobs_is_killed(desk):
    def cut(ends):
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 2))  # each later packet has 2 bytes
        so_attach_filter = 26
        ends.jobs.setsockopt(socket.SOL_SOCKET, so_attach_filter, struct.pack("HP", 1, ctypes.addressof(code)))
        os.write(ends.out, b"has it\n")
        rest()

    desk = desk(processes="1")
    child = with_jobs_behind(desk, cut)
    assert len(child.sent) == 3
    desk.placing.withdraw(child)
    assert (child.state, len(desk.events("child.killed"))) == (ChildState.DOOMED, 1)
    assert [held.lease.token for held in desk.ledgers.ready] == [2, 3]
    desk.reap(child)
    assert [outcome.lease.token for outcome in desk.outcomes()] == [1]


# without a child


def test_jobs_without_a_child_go_back_in_order_uncounted(desk):
    desk = desk(processes="1", dispatch_ahead="20ms")
    desk.child(holding)
    desk.give(*(lease_of(token) for token in range(1, 5)))
    due_at = desk.timers.at(HAND_BACK)
    assert desk.outcomes() == []
    desk.keep_time(due_at + 0.01)
    outcomes = desk.outcomes()
    assert summary(outcomes) == [(Released, token) for token in (2, 3, 4)]
    assert not any(outcome.started for outcome in outcomes)
    assert [lease.token for lease in desk.ledger.leases] == [1]


@pytest.mark.parametrize("kind", [{"persistent": True}, {"at_most_once": True}])
def test_jobs_that_need_an_idle_child_go_back_uncounted(desk, kind):
    desk = desk(processes="1", dispatch_ahead="20ms")
    desk.pace.learn("k", QUICK_S)
    child = desk.child(holding)
    desk.give(lease_of(1), lease_of(2, **kind))
    assert len(child.sent) == 1
    assert desk.admission.leases_for_idle_only
    desk.keep_time(desk.timers.at(HAND_BACK))
    (outcome,) = desk.outcomes()
    assert (type(outcome), outcome.lease.token, outcome.started) == (Released, 2, False)
    desk.give(lease_of(3))
    assert not desk.admission.leases_for_idle_only


def test_no_job_waits_behind_a_persistent_one(desk):
    desk = desk(processes="1")
    desk.pace.learn("k", QUICK_S)
    child = desk.child(holding)
    desk.give(lease_of(1, persistent=True))
    desk.give(lease_of(2))
    assert [held.lease.token for held in child.sent] == [1]
    assert [held.lease.token for held in desk.ledgers.ready] == [2]


# behind a job that takes longer than expected


def test_jobs_behind_an_overdue_job_are_taken_back(desk):
    desk = desk(processes="1", dispatch_ahead="20ms")
    child, held = busy_with_five(desk)
    desk.keep_time(held[0].started_at + 0.019)
    assert (child.overran, len(child.sent)) == (False, 5)
    assert desk.deadline_at() == pytest.approx(held[0].started_at + 0.02)
    desk.keep_time(held[0].started_at + 0.021)
    assert [each.lease.token for each in child.sent] == [1]
    assert summary(desk.outcomes()) == [(Released, token) for token in (2, 3, 4, 5)]
    assert desk.ledger.reports.take_starts() == [held[0].lease]
    assert desk.deadline_at() == pytest.approx(held[0].started_at + 0.1)  # the first look at its memory
    desk.keep_time(held[0].started_at + 0.11)
    assert held[0].started_at + 0.3 < desk.deadline_at() < held[0].started_at + 5


def test_jobs_behind_an_overdue_job_go_to_an_idle_child(desk):
    desk = desk(processes="2", dispatch_ahead="20ms")
    child, held = busy_with_five(desk)
    other = desk.child(never_reading)
    desk.keep_time(held[0].started_at + 0.021)
    assert [each.lease.token for each in other.sent] == [2, 3, 4, 5]
    assert [each.lease.token for each in child.sent] == [1]
    assert desk.outcomes() == []


# pause


def test_a_pause_hands_back_unstarted_jobs_alone(desk):
    def taking(ends):
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        os.write(ends.out, b"has it\n")
        rest()

    desk = desk(processes="1")
    child = desk.child(taking)
    (running,) = desk.give(lease_of(1))
    await_readable(child.output.fd)
    desk.placing.pause()
    desk.placing.pause()
    desk.give(lease_of(2), lease_of(3))
    assert [(outcome.lease.token, outcome.started) for outcome in desk.outcomes()] == [(2, False), (3, False)]
    assert child.running is running and desk.admission.is_open


def test_an_idle_child_stays_during_a_pause(desk):
    desk = desk(processes="1")
    child = desk.child(holding)
    desk.placing.pause()
    assert child.state is ChildState.IDLE
    desk.placing.resume()
    (held,) = desk.give(lease_of(1))
    assert child.running is held
