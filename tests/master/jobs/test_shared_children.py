"""Jobs that run beside each other: how many are leased, which child gets one, how one ends, and whose a death is.

Children are forks of the test.
"""

import os
import signal

import pytest

from supervisor import clock, messages
from supervisor.engine.model.outcomes import Completed, Died, Released
from supervisor.linux import kernel
from supervisor.master.jobs.capacity import MOST_FOR_SHARED
from supervisor.master.jobs.suspects import Suspects
from supervisor.master.model.states import ChildState
from supervisor.messages import HandlerSettings, Notice, Verb
from tests.master.jobs.conftest import QUICK_S, summary
from tests.parts import await_readable, lease_of, rest, until

SHARED = {"concurrency": 10}


def resting(ends):
    """Take all jobs, and answer none."""
    signal.signal(kernel.NOTICE_SIGNAL, signal.SIG_IGN)
    ends.talk.send(messages.pack_ready())
    for _ in range(30):
        ends.next_job()


def backwards(count):
    """Take this many jobs, then complete them, the last one first."""

    def behave(ends):
        ends.talk.send(messages.pack_ready())
        tokens = [ends.next_job().token for _ in range(count)]
        for token in reversed(tokens):
            ends.say(Verb.COMPLETED, token, b"1")
        rest()

    return behave


def deaf(ends):
    """Take jobs, say which of them was interrupted, and go on with it."""
    ends.talk.send(messages.pack_ready())
    for _ in range(3):
        ends.next_job()
    while True:
        await_readable(ends.talk)
        word = messages.unpack_word(ends.talk.recv(1000))
        assert isinstance(word, Notice)
        ends.say(Verb.HEARD, word.token)


@pytest.fixture
def shared(desk):
    """A desk with one child, which runs jobs with these tokens beside each other."""

    def make(behave, *tokens, **config):
        made = desk(processes="1", **config)
        child = made.child(behave)
        held = made.give(*map(lease_of, tokens), **SHARED)
        return made, child, held

    return make


def busy_and_deaf(ends):
    """Take one job, and no other."""
    ends.talk.send(messages.pack_ready())
    ends.next_job()
    rest()


def guessing(ends):
    """Keep one job, and complete others that stay in the socket."""
    ends.talk.send(messages.pack_ready())
    ends.next_job()
    while True:
        ends.say(Verb.COMPLETED, int.from_bytes(ends.talk.recv(8)), b"1")


def received(child, count):
    until(lambda: kernel.unread_bytes(child.jobs.child_fd) <= 0 and len(child.sent) == count)


def test_all_jobs_of_a_shared_child_run_at_once(shared):
    desk, child, held = shared(resting, 1, 2, 3)
    assert child.shared is not None
    assert [run.held for run in child.runs] == held
    assert all(each.started_at for each in held)
    assert desk.slots.busy == 1


def test_shared_child_answers_in_any_order(shared):
    desk, child, _held = shared(backwards(3), 1, 2, 3)
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert summary(desk.outcomes()) == [(Completed, 3), (Completed, 2), (Completed, 1)]
    assert child.runs == ()


def test_start_of_a_job_that_takes_longer_than_expected_is_reported(desk):
    desk = desk(processes="1", dispatch_ahead="20ms")
    desk.pace.learn("k", QUICK_S)
    desk.child(resting)
    first, second = desk.give(lease_of(1), lease_of(2), starting=0, **SHARED)
    assert desk.ledger.reports.take_starts() == []
    desk.keep_time(first.started_at + 0.019)
    assert desk.ledger.reports.take_starts() == []
    desk.keep_time(second.started_at + 0.021)
    assert desk.ledger.reports.take_starts() == [first.lease, second.lease]
    desk.keep_time(second.started_at + 10.0)
    assert desk.ledger.reports.take_starts() == []


def test_room_of_a_shared_child_is_leased_for(shared):
    desk, child, _held = shared(resting, 1, 2, 3)
    assert desk.capacity.to_lease() == (7, 7)
    assert desk.capacity.to_lease(coming=5) == (2, 2)
    child.retire("a test")
    assert desk.capacity.to_lease() == (0, 0)


def test_one_lease_brings_no_more_than_a_socket_has_room_for(desk):
    desk = desk(processes="1")
    desk.child(resting)
    desk.give(lease_of(1), concurrency=5000)
    assert desk.capacity.to_lease()[0] == MOST_FOR_SHARED


def test_full_child_and_ordinary_jobs_wait(shared):
    desk, child, _held = shared(resting, *range(1, 11))
    assert desk.capacity.to_lease() == (0, 0)
    desk.give(lease_of(11), **SHARED)
    desk.give(lease_of(12))
    assert len(child.sent) == 10
    assert [held.lease.token for held in desk.ledgers.ready] == [11, 12]
    assert not desk.admission.may_lease_beside


def test_jobs_go_to_the_child_with_the_fewest(desk):
    desk = desk(processes="2")
    first, second = desk.child(resting), desk.child(resting)
    desk.give(*map(lease_of, range(1, 6)), **SHARED)
    assert sorted([len(first.sent), len(second.sent)]) == [2, 3]


def test_child_that_does_not_read_holds_up_no_job_of_others(desk):
    desk = desk(processes="2")
    blocked, other = desk.child(busy_and_deaf), desk.child(resting)
    for token in range(1, 61):
        desk.give(lease_of(token, raw=b"x" * 16_000), concurrency=30)
        until(lambda: kernel.unread_bytes(other.jobs.child_fd) <= 0)
    assert (blocked.state, len(other.sent)) == (ChildState.BUSY, 30)
    assert 20 < len(blocked.sent) < 30


def test_shared_child_that_answers_jobs_without_receiving_them_is_killed(shared):
    desk, child, _held = shared(guessing, 1)
    token = 1
    while child.state is ChildState.BUSY and not desk.ledgers.ready:
        token += 1
        desk.give(lease_of(token, raw=b"x" * 16_000), **SHARED)
        if len(child.sent) > 1:
            child.talk.send(token.to_bytes(8))
            desk.turn(lambda: len(child.sent) == 1)
    assert child.state is ChildState.DOOMED
    assert token > 10


def test_each_job_has_a_time_limit_of_its_own(shared):
    desk, child, (first, second) = shared(resting, 1, 2, term_grace="1s", job_timeout="100s")
    second.started_at += 50
    child.shared.get(2).end_plan.kill_by(second.started_at + 1000, "timeout")  # plans anew
    desk.keep_time(first.started_at + 99)
    assert (child.run_of(1).warned_of_timeout, child.run_of(2).warned_of_timeout) == (True, False)
    desk.keep_time(first.started_at + 100)
    assert child.run_of(1).end_plan.kill_at is not None
    assert child.state is ChildState.BUSY


def test_lost_job_is_interrupted_by_itself(shared):
    desk, child, held = shared(resting, 1, 2, 3)
    received(child, 3)
    desk.answers.lost([(held[1], "cancelled")])
    assert [run.notices.reason for run in child.runs] == [None, "cancelled", None]
    assert child.end_plan.kill_at is None


def test_job_that_heard_of_its_end_and_goes_on_dies_alone(shared):
    desk, child, held = shared(deaf, 1, 2, 3, term_grace="1s")
    received(child, 3)
    desk.interrupter.stop(child.run_of(2), "lease-lost")
    desk.turn(lambda: child.run_of(2).has_answered)
    desk.keep_time(clock.monotonic() + 2)
    assert (child.state, child.run_of(2).has_answered) == (ChildState.BUSY, False)
    desk.turn(lambda: child.run_of(2).has_answered)
    desk.keep_time(clock.monotonic() + 3)
    assert child.state is ChildState.DOOMED
    desk.reap(child)
    assert summary(desk.outcomes()) == [(Died, 2), (Released, 1), (Released, 3)]
    assert [desk.suspects.at_once(each.lease) for each in held] == [None, None, None]


def test_job_of_a_blocked_loop_is_not_known_to_be_the_culprit(shared):
    desk, child, held = shared(resting, 1, 2, 3, term_grace="1s")
    received(child, 3)
    desk.interrupter.stop(child.run_of(2), "lease-lost")
    desk.keep_time(clock.monotonic() + 2)
    desk.keep_time(clock.monotonic() + 3)
    assert child.state is ChildState.DOOMED
    desk.reap(child)
    assert {type(outcome) for outcome in desk.outcomes()} == {Released}
    assert {desk.suspects.at_once(each.lease) for each in held} == {2}


def test_notices_wait_for_room(shared):
    desk, child, _held = shared(resting, 1, 2)
    received(child, 2)
    for _ in range(2000):
        child.talk.answer_checkpoint(1, kept=True)
    assert child.talk.has_unsent
    assert desk.timers.at(child) < clock.monotonic() + 1


def test_death_without_a_known_cause_makes_suspects_of_all(shared):
    desk, child, held = shared(resting, *range(1, 8))
    received(child, 7)
    desk.interrupter.kill(child, "a test")
    desk.reap(child, "disk")
    outcomes = desk.outcomes()
    assert {(type(outcome), outcome.started) for outcome in outcomes} == {(Released, False)}
    assert {desk.suspects.at_once(each.lease) for each in held} == {4}
    (event,) = desk.events("child.divided")
    assert (event["jobs"], event["at_once"], event["reason"]) == (7, 4, "disk")


def test_jobs_of_an_interrupted_child_count_an_interruption(shared):
    desk, child, _held = shared(resting, 1, 2)
    received(child, 2)
    desk.interrupter.kill(child, "drain")
    desk.reap(child, "drain")
    assert {(outcome.started, outcome.reason) for outcome in desk.outcomes()} == {(True, "drain")}


def test_last_job_of_a_dead_child_counts_its_death(shared):
    desk, child, _held = shared(resting, 1)
    received(child, 1)
    desk.interrupter.kill(child, "a test")
    desk.reap(child)
    assert summary(desk.outcomes()) == [(Died, 1)]


def test_unreceived_jobs_of_a_dead_child_are_ready_again(shared):
    def take_one(ends):
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        os.write(ends.out, b"has it\n")
        rest()

    desk, child, _held = shared(take_one, 1, 2, 3)
    await_readable(child.output.fd)
    desk.interrupter.kill(child, "a test")
    desk.reap(child)
    assert summary(desk.outcomes()) == [(Died, 1)]
    assert [held.lease.token for held in desk.ledgers.ready] == [2, 3]


def test_suspects_run_with_suspects_only_and_half_as_many(desk):
    desk = desk(processes="1")
    child = desk.child(resting)
    desk.suspects.add(["j1", "j3", "j4"], 2)
    desk.give(*map(lease_of, (1, 2, 3, 4, 5)), **SHARED)
    assert [held.lease.token for held in child.sent] == [1, 3]
    assert [held.lease.token for held in desk.ledgers.ready] == [2, 4, 5]


def test_job_whose_child_has_died_runs_alone(desk):
    desk = desk(processes="1")
    child = desk.child(resting)
    desk.give(lease_of(1, deaths=1), lease_of(2, deaths=1), **SHARED)
    assert [held.lease.token for held in child.sent] == [1]


def test_child_takes_others_once_its_suspects_have_ended(desk):
    desk = desk(processes="1")
    child = desk.child(backwards(1))
    desk.suspects.add(["j1"], 1)
    desk.give(lease_of(1), **SHARED)
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert desk.suspects.at_once(lease_of(1)) is None
    desk.give(lease_of(2), lease_of(3), **SHARED)
    assert len(child.sent) == 2


def test_remembered_suspects_are_bounded():
    suspects = Suspects()
    suspects.add((f"j{n}" for n in range(60_000)), 5)
    assert suspects.at_once(lease_of(1)) is None
    assert suspects.at_once(lease_of(59_999)) == 5


def test_pause_takes_back_only_what_was_not_received(shared):
    desk, child, _held = shared(resting, 1, 2, 3)
    received(child, 3)
    desk.placing.pause()
    assert len(child.sent) == 3


def test_settings_of_a_handler_say_whether_jobs_share_a_child():
    assert not HandlerSettings().shares_child
    assert HandlerSettings(concurrency=2).shares_child
    assert HandlerSettings(concurrency=2).trust_domain("k") != HandlerSettings().trust_domain("k")
