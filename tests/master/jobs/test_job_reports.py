"""Progress and checkpoints of running jobs reach the ledger, and the answers reach the children."""

import os
import signal

from supervisor import messages
from supervisor.engine.model.outcomes import Completed, Died
from supervisor.linux import kernel
from supervisor.master.model.states import ChildState
from supervisor.messages import Checkpoint, ProgressReport, Verb, pack_checkpoint, pack_progress
from tests.master.jobs.conftest import results, summary
from tests.parts import await_readable, lease_of, rest


def test_only_the_last_progress_is_told_and_once(desk):
    def behave(ends):
        ends.talk.send(messages.pack_ready())
        token = ends.next_job().token
        for step in range(5):
            ends.talk.send(pack_progress(token, ProgressReport(step / 10, f"step {step}")))
        ends.say(Verb.COMPLETED, token)
        rest()

    desk = desk(processes="1")
    child = desk.child(behave)
    (held,) = desk.give(lease_of(1))
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert desk.ledger.reports.take_progress() == [(held.lease, ProgressReport(0.4, "step 4"))]
    assert summary(desk.outcomes()) == [(Completed, 1)]


# checkpoints


def storing(ends):
    """Make two checkpoints, wait for the answers, and complete with what they say."""
    signal.signal(kernel.NOTICE_SIGNAL, signal.SIG_IGN)
    ends.talk.send(messages.pack_ready())
    token = ends.next_job().token
    told = []
    for number in (1, 2):
        ends.talk.send(pack_checkpoint(token, number, b"[%d]" % number))
        await_readable(ends.talk)
        told.append(messages.unpack_word(ends.talk.recv(1000)))
    ends.say(Verb.COMPLETED, token, b"%d" % told.index(messages.Stored(2, True)))
    rest()


def test_a_checkpoint_is_answered_when_its_exchange_is(desk):
    desk = desk(processes="1")
    child = desk.child(storing)
    (held,) = desk.give(lease_of(1))
    for number in (1, 2):
        desk.turn(lambda: held.reports.checkpoint is not None)
        assert desk.ledger.reports.take_checkpoints() == [(held.lease, Checkpoint(number, b"[%d]" % number))]
        assert held.reports.count == 0
        desk.answers.stored(*desk.ledger.reports.take_stored(1, number), kept=True)
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert results(desk) == [b"1"]


def dying_at_a_checkpoint(ends):
    """Take a job, make a checkpoint, and exit."""
    ends.talk.send(messages.pack_ready())
    ends.talk.send(pack_checkpoint(ends.next_job().token, 1, b'"last"'))
    os._exit(3)


def test_a_dying_childs_checkpoint_goes_before_its_death(desk):
    desk = desk(processes="1")
    child = desk.child(dying_at_a_checkpoint)
    (held,) = desk.give(lease_of(1))
    desk.reap(child)
    assert summary(desk.outcomes()) == [(Died, 1)]
    assert desk.ledger.reports.take_checkpoints() == [(held.lease, Checkpoint(1, b'"last"'))]
    desk.answers.stored(*desk.ledger.reports.take_stored(1, 1), kept=True)  # no child is left to be told


def test_a_thread_left_by_its_job_is_answered_too(desk):
    def leaving(ends):
        ends.talk.send(messages.pack_ready())
        token = ends.next_job().token
        ends.talk.send(pack_checkpoint(token, 1, b"1"))
        ends.say(Verb.COMPLETED, token)
        token = ends.next_job().token
        await_readable(ends.talk)
        ends.say(
            Verb.COMPLETED, token, b"%d" % (messages.unpack_word(ends.talk.recv(1000)) == messages.Stored(1, True))
        )
        rest()

    desk = desk(processes="1")
    child = desk.child(leaving)
    desk.give(lease_of(1))
    desk.turn(lambda: child.state is ChildState.IDLE)
    desk.ledger.reports.take_checkpoints()
    desk.give(lease_of(2))
    desk.answers.stored(*desk.ledger.reports.take_stored(1, 1), kept=True)
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert results(desk)[-1:] == [b"1"]


def test_a_dead_childs_answer_does_not_reach_its_successor(desk):
    desk = desk(processes="1")
    dead = desk.child(dying_at_a_checkpoint)
    desk.give(lease_of(1))
    desk.reap(dead)
    desk.ledger.reports.take_checkpoints()
    child = desk.child(storing)
    (held,) = desk.give(lease_of(2))
    assert child.number == dead.number
    desk.answers.stored(*desk.ledger.reports.take_stored(1, 1), kept=False)  # that lease was lost
    for number in (1, 2):
        desk.turn(lambda: held.reports.checkpoint is not None)
        desk.ledger.reports.take_checkpoints()
        desk.answers.stored(*desk.ledger.reports.take_stored(2, number), kept=True)
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert results(desk)[-1:] == [b"1"]


def test_a_lost_jobs_checkpoint_is_refused_at_once(desk):
    def behave(ends):
        signal.signal(kernel.NOTICE_SIGNAL, signal.SIG_IGN)
        ends.talk.send(messages.pack_ready())
        token = ends.next_job().token
        ends.talk.send(pack_checkpoint(token, 1, b"1"))
        words = []
        while len(words) < 2:
            await_readable(ends.talk)
            words.append(messages.unpack_word(ends.talk.recv(1000)))
        ends.talk.send(pack_checkpoint(token, 2, b"2"))
        await_readable(ends.talk)
        words.append(messages.unpack_word(ends.talk.recv(1000)))
        told = [messages.Stored(1, False), messages.Notice(token, "cancelled"), messages.Stored(2, False)]
        ends.say(Verb.COMPLETED, token, b"" if words == told else b"x")
        rest()

    desk = desk(processes="1")
    child = desk.child(behave)
    (held,) = desk.give(lease_of(1))
    desk.turn(lambda: held.reports.checkpoint is not None)
    desk.answers.lost([(held, "cancelled")])
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert desk.ledger.reports.take_checkpoints() == []
    assert desk.outcomes() == []
