"""The master tells handlers to stop, and interrupts them. Children are forks of the test."""

import signal

import pytest

from supervisor import clock, messages
from supervisor.engine.model.outcomes import Released
from supervisor.linux import kernel
from supervisor.master.model.states import ChildState
from supervisor.messages import ProgressReport, Trouble, Verb, pack_checkpoint, pack_progress, pack_trouble
from tests.master.jobs.conftest import QUICK_S, results, summary
from tests.parts import Sender, await_readable, lease_of, rest, until


def noting(*words):
    """Make a checkpoint, and complete after these notices."""

    def behave(ends):
        signal.signal(kernel.NOTICE_SIGNAL, signal.SIG_IGN)
        ends.talk.send(messages.pack_ready())
        token = ends.next_job().token
        ends.talk.send(pack_checkpoint(token, 1, b"1"))
        heard = []
        while len(heard) < len(words):
            await_readable(ends.talk)
            heard.append(messages.unpack_word(ends.talk.recv(1000)))
        same = heard == [messages.Notice(token, *word) for word in words]
        ends.say(Verb.COMPLETED, token, b"1" if same else b"0")
        rest()

    return behave


SOFT = ("drain", "", False, True)


def live(desk, child):
    """Let time pass until the child has answered."""

    def answered():
        desk.keep_time(clock.monotonic())
        desk.dispatcher.on_spoke(child)
        return child.state is ChildState.IDLE

    until(answered)


def test_a_handler_with_checkpoints_is_interrupted_at_the_next_or_soon(desk):
    desk = desk(processes="1", term_grace="0.6s")
    child = desk.child(noting(SOFT, ("drain",)))
    (held,) = desk.give(lease_of(1))
    desk.turn(lambda: held.reports.checkpoint is not None)
    began_at = clock.monotonic()
    desk.interrupter.interrupt_all("drain")
    live(desk, child)
    assert results(desk) == [b"1"]
    assert clock.monotonic() - began_at >= 0.2


@pytest.mark.parametrize("why", ["cancelled", "lease-lost"])
def test_a_lost_job_is_interrupted_at_once(desk, why):
    desk = desk(processes="1")
    child = desk.child(noting((why,)))
    (held,) = desk.give(lease_of(1))
    desk.turn(lambda: held.reports.checkpoint is not None)
    desk.ledger.reports.take_checkpoints()
    desk.answers.lost([(held, why)])
    live(desk, child)
    assert [event["verb"] for event in desk.events("job.stale")] == ["completed"]


def test_interruption_for_which_the_kernel_has_no_memory_comes_a_moment_later(desk, monkeypatch):
    desk = desk(processes="1")
    child = desk.child(noting(("cancelled",)))
    (held,) = desk.give(lease_of(1))
    desk.turn(lambda: held.reports.checkpoint is not None)
    desk.ledger.reports.take_checkpoints()
    monkeypatch.setattr(child.talk, "_ours", Sender(child.talk._ours, 2))
    desk.answers.lost([(held, "cancelled")])
    live(desk, child)


def test_a_dismissed_job_is_told_at_once_and_stopped_later(desk):
    desk = desk(processes="1", jobs_per_child="0", term_grace="0.6s")
    child = desk.child(noting(("reload", "", True), ("reload", "", False, True), ("reload",)))
    (held,) = desk.give(lease_of(1))
    desk.turn(lambda: held.reports.checkpoint is not None)
    desk.retirement.dismiss(child, "the code was reloaded", "reload", 0.1)

    def answered():
        desk.keep_time(clock.monotonic())
        desk.dispatcher.on_spoke(child)
        return child.state is ChildState.LEAVING

    until(answered)
    assert results(desk) == [b"1"]


def test_jobs_that_begin_later_are_told_to_stop_too(desk):
    def behave(ends):
        signal.signal(kernel.NOTICE_SIGNAL, signal.SIG_IGN)
        ends.talk.send(messages.pack_ready())
        for _ in range(2):
            token = ends.next_job().token
            ends.talk.send(pack_progress(token, ProgressReport(0.0, "it has begun")))
            await_readable(ends.talk)
            same = messages.unpack_word(ends.talk.recv(1000)) == messages.Notice(token, "drain", "", True)
            ends.say(Verb.COMPLETED, token, b"1" if same else b"0")
        rest()

    desk = desk(processes="1", jobs_per_child="0")
    desk.pace.learn("k", QUICK_S)
    child = desk.child(behave)
    first, second = desk.give(lease_of(1), lease_of(2))
    assert list(child.sent) == [first, second]
    desk.turn(lambda: first.reports.count)
    desk.interrupter.tell_all("drain")
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert results(desk) == [b"1"] * 2


def test_each_handler_is_interrupted_with_reason_and_token(desk):
    def behave(ends):
        signal.signal(kernel.NOTICE_SIGNAL, signal.SIG_IGN)
        ends.talk.send(messages.pack_ready())
        token = ends.next_job().token
        await_readable(ends.talk)
        notice = messages.unpack_word(ends.talk.recv(1000))
        assert notice.token == token
        ends.say(Verb.INTERRUPTED, token, pack_trouble(Trouble(None, notice.reason)))
        rest()

    desk = desk(processes="2")
    children = [desk.child(behave) for _ in range(2)]
    desk.give(lease_of(1), lease_of(2))
    desk.interrupter.interrupt_all("drain")
    desk.turn(lambda: all(child.state is ChildState.IDLE for child in children))
    assert sorted(summary(desk.outcomes()), key=lambda each: each[1]) == [(Released, 1), (Released, 2)]
