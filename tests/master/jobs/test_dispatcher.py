"""The dispatcher reads what children say, and kills those that speak nonsense. Children are forks of the test."""

import ctypes
import errno
import fcntl
import os
import signal
import socket

import pytest

from supervisor import clock, messages
from supervisor.engine.model.outcomes import Completed, Died, Released, Retried
from supervisor.linux import kernel
from supervisor.master.model import packets
from supervisor.master.model.states import ChildState
from supervisor.messages import (
    Blob,
    Completion,
    Follower,
    ProgressReport,
    Trouble,
    Verb,
    pack_checkpoint,
    pack_completion,
    pack_progress,
    pack_trouble,
)
from tests.master.jobs.conftest import QUICK_S, follows, results, summary
from tests.parts import Ends, await_readable, holding, lease_of, no_free_descriptor, refused, rest


def forged(ends: Ends):
    ends.say(Verb.COMPLETED, ends.next_job().token + 1)


def twice(ends: Ends):
    token = ends.next_job().token
    ends.say(Verb.COMPLETED, token)
    ends.say(Verb.COMPLETED, token)


def ready_again(ends: Ends):
    ends.next_job()
    while True:
        ends.talk.send(messages.pack_ready())


def says(packet):
    def behave(ends: Ends):
        ends.next_job()
        ends.talk.send(packet)

    return behave


def answers(verb, body):
    def behave(ends: Ends):
        ends.say(verb, ends.next_job().token, body)

    return behave


def oversized(ends: Ends):
    ends.talk.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**21)
    ends.say(Verb.COMPLETED, ends.next_job().token, b'"' + b"x" * 70_000 + b'"')


def progress_for_ever(ends: Ends):
    token = ends.next_job().token
    while True:
        ends.talk.send(pack_progress(token, ProgressReport(0.5, "")))


def checkpoints_for_ever(ends: Ends):
    """And no answer is waited for."""
    token = ends.next_job().token
    while True:
        ends.talk.send(pack_checkpoint(token, 1, b"1"))


def with_descriptor(make, verb=Verb.FOLLOWED, body=b""):
    def behave(ends: Ends):
        ends.say_with(make(), verb, ends.next_job().token, body)

    return behave


def too_long(ends: Ends):
    ends.next_job()
    ends.talk.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
    ends.talk.send(bytes(messages.MAX_PACKET_BYTES + 1))


def memfd_of(*parts):
    return lambda: kernel.sealed_memfd(parts)


def unsealed():
    fd = os.memfd_create("m", os.MFD_ALLOW_SEALING)
    os.write(fd, b"".join(follows(10)))
    return fd


def vast():
    fd = os.memfd_create("m", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 2**40)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


HOSTILE = {
    "progress for ever": progress_for_ever,
    "progress of a job that it does not have": lambda ends: ends.talk.send(
        pack_progress(ends.next_job().token + 1, ProgressReport(0.5, ""))
    ),
    "checkpoints for ever": checkpoints_for_ever,
    "a checkpoint of a job that it does not have": lambda ends: ends.talk.send(
        pack_checkpoint(ends.next_job().token + 1, 1, b"1")
    ),
    "a checkpoint that is none": answers(Verb.CHECKPOINT, b"12345678{"),
    "a checkpoint that is too long": answers(Verb.CHECKPOINT, b"12345678" + b"1" * 65_537),
    "progress that is none": answers(Verb.PROGRESS, b"[2,3]"),
    "what follows is nonsense": answers(Verb.FOLLOWED, b"\x02\x00\x00\x00{}"),
    "what follows has no queue": answers(
        Verb.FOLLOWED, b"".join(pack_completion(Completion(b"", None, [Follower("", "k", {}, Blob("json", b"1"))])))
    ),
    "a claim on data that is no JSON": answers(
        Verb.FOLLOWED,
        b"".join(pack_completion(Completion(b"", None, [Follower("q", "k", {"unique": True}, Blob("json", b"{"))]))),
    ),
    "a head without an end": with_descriptor(memfd_of((2**24 + 1).to_bytes(4, "little"), bytes(2**24 + 1))),
    "a memfd for another job": lambda ends: ends.say_with(
        memfd_of(*follows(10))(), Verb.FOLLOWED, ends.next_job().token + 1
    ),
    "a memfd full of nonsense": with_descriptor(memfd_of(b"nonsense")),
    "an empty memfd": with_descriptor(memfd_of()),
    "a memfd that may change": with_descriptor(unsealed),
    "a memfd of a terabyte": with_descriptor(vast),
    "a pipe": with_descriptor(lambda: os.pipe()[0]),
    "a memfd and a body": with_descriptor(memfd_of(*follows(10)), body=b"x"),
    "a memfd that was not asked for": with_descriptor(memfd_of(b"1"), Verb.COMPLETED),
    "an outcome for a token that is not its": forged,
    "the same outcome twice": twice,
    "ready for ever": ready_again,
    "one byte": says(b"\x01"),
    "a verb without a body's length": says(b"\x01" * 12),
    "noise": says(os.urandom(2000)),
    "more than a packet has": too_long,
    "a descriptor and no word": lambda ends: (ends.next_job(), kernel.send(ends.talk, b"", (ends.stacks,))),
    "a verb that does not exist": answers(77, pack_trouble(Trouble("g", "m"))),
    "a result that is no JSON": answers(Verb.COMPLETED, b"{"),
    "a result that is too large": oversized,
    "a failure without a body": answers(Verb.FAILED, b""),
    "a failure that is a number": answers(Verb.RETRIED, b"5"),
    "a delay that is true": answers(Verb.RETRIED, b'[null,"m",null,true]'),
    "a delay that is a list": answers(Verb.RETRIED, b'[null,"m",null,[]]'),
    "a group that is 0": answers(Verb.FAILED, b'[0,"m",null,null]'),
    "an interruption with nonsense": answers(Verb.INTERRUPTED, b"[1]"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("behave", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_child_that_speaks_nonsense_is_killed(desk, behave):
    def run(ends):
        ends.talk.send(messages.pack_ready())
        behave(ends)
        rest()

    desk = desk(processes="1")
    child = desk.child(run)
    desk.give(lease_of(1))
    desk.turn(lambda: child.state is ChildState.DOOMED)
    assert "nonsense" in desk.events("child.killed")[0]["reason"]
    desk.dispatcher.on_spoke(child)
    assert desk.reap(child) == signal.SIGKILL
    kinds = [kind for kind, _token in summary(desk.outcomes())]
    assert kinds == ([Completed] if behave is twice else [Died])
    assert len(desk.events("child.killed")) == 1
    assert len(desk.ledger) == 0


def test_an_answer_after_a_refused_memfd_is_read_without_it(desk):
    def run(ends):
        ends.talk.send(messages.pack_ready())
        token = ends.next_job().token
        ends.say_with(kernel.sealed_memfd((b"\xff" * 2**21,)), Verb.FOLLOWED, token)
        for _ in range(5):  # more than come with the memfd by one call
            ends.say(Verb.COMPLETED, token, b"1")
        os.write(ends.out, b"said")
        rest()

    desk = desk(processes="1")
    child = desk.child(run)
    desk.give(lease_of(1))
    await_readable(child.output.fd)
    desk.turn(lambda: child.state is ChildState.DOOMED)
    assert desk.reap(child) == signal.SIGKILL
    assert summary(desk.outcomes()) == [(Completed, 1)]


def test_job_whose_large_completion_is_lost_is_tried_again_after_a_back_off(desk):
    def run(ends):
        ends.talk.send(messages.pack_ready())
        ends.say_with(kernel.sealed_memfd(follows(10)), Verb.FOLLOWED, ends.next_job().token)
        ends.say(Verb.COMPLETED, ends.next_job().token, b"2")
        rest()

    desk = desk(processes="1")
    child = desk.child(run)
    desk.give(lease_of(1, failures=2))
    await_readable(child.talk.fd)
    with no_free_descriptor():
        desk.dispatcher.on_spoke(child)
    (lost,) = desk.outcomes()
    assert (type(lost), lost.group) == (Retried, "completion-lost")
    assert lost.delay is not None and 0 < lost.delay <= 4
    assert "no descriptor left to read its completion" in lost.message
    desk.give(lease_of(2))
    desk.turn(lambda: not child.sent)
    assert (results(desk), desk.events("child.killed")) == ([b"2"], [])


def test_dead_child_counts_one_death_though_the_kernel_lacks_memory_to_take_jobs_back(desk, monkeypatch):
    desk = desk(processes="1")
    desk.pace.learn("k", QUICK_S)
    child = desk.child(holding)
    desk.give(*map(lease_of, range(1, 5)), starting=0)
    assert len(child.sent) == 4
    child.kill("a test")
    desk.processes[child.number].await_end()
    monkeypatch.setattr(kernel, "receive", refused(1000, errno.ENOMEM, kernel.receive))
    desk.reap(child)
    outcomes = desk.outcomes()
    assert summary(outcomes) == [(Died, 1), (Released, 2), (Released, 3), (Released, 4)]
    assert not any(outcome.started for outcome in outcomes[1:])


@pytest.mark.parametrize("verb", [Verb.COMPLETED, Verb.PROGRESS])
def test_lost_descriptor_that_nobody_asked_for_is_nonsense(desk, verb):
    def run(ends):
        ends.talk.send(messages.pack_ready())
        ends.say_with(kernel.sealed_memfd((b"1",)), verb, ends.next_job().token, b"1")
        rest()

    desk = desk(processes="1")
    child = desk.child(run)
    desk.give(lease_of(1))
    await_readable(child.talk.fd)
    with no_free_descriptor():
        desk.dispatcher.on_spoke(child)
    assert "a descriptor that nobody asked for" in desk.events("child.killed")[0]["reason"]
    desk.reap(child)


def test_last_words_are_read_though_the_kernel_lacks_memory_at_first(desk, monkeypatch):
    def run(ends):
        ends.talk.send(messages.pack_ready())
        ends.say(Verb.COMPLETED, ends.next_job().token, b"1")

    desk = desk(processes="1")
    child = desk.child(run)
    desk.give(lease_of(1))
    refusals, receive = [errno.ENOMEM] * 3, packets._recvmmsg

    def refuse_at_first(*given):
        if not refusals:
            return receive(*given)
        ctypes.set_errno(refusals.pop())
        return -1

    monkeypatch.setattr(packets, "_recvmmsg", refuse_at_first)
    desk.reap(child)
    assert summary(desk.outcomes()) == [(Completed, 1)]


def test_a_child_that_answers_without_a_job_is_killed(desk):
    desk = desk()
    child = desk.child(lambda ends: (ends.say(Verb.COMPLETED, 1), rest()), ready=False)
    desk.turn(lambda: child.state is ChildState.DOOMED)
    desk.reap(child)
    assert desk.outcomes() == []


def test_garbage_after_an_outcome_does_not_undo_it(desk):
    def behave(ends):
        ends.talk.send(messages.pack_ready())
        ends.say(Verb.COMPLETED, ends.next_job().token)
        ends.talk.send(b"x")

    desk = desk()
    child = desk.child(behave)
    desk.give(lease_of(1))
    desk.reap(child)
    assert summary(desk.outcomes()) == [(Completed, 1)]


def several(*words):
    """A child that takes its jobs, one for each of the words, says all of them at once, and prints that it has."""

    def behave(ends: Ends):
        ends.talk.send(messages.pack_ready())
        tokens = [ends.next_job().token for _ in words]
        for token, (verb, body) in zip(tokens, words, strict=True):
            ends.say(verb, token, body)
        os.write(ends.out, b"said")
        rest()

    return behave


def test_a_word_behind_an_answer_is_about_the_next_job(desk):
    """The child of the next job exits now. The dispatcher must not forget that with the job before."""
    desk = desk(processes="1")
    desk.pace.learn("k", QUICK_S)
    trouble = pack_trouble(Trouble("MemoryError", "m", "traceback"))
    child = desk.child(several((Verb.COMPLETED, b""), (Verb.OVERFLOWED, trouble)))
    desk.give(lease_of(1), lease_of(2))
    await_readable(child.output.fd)
    desk.dispatcher.on_spoke(child)
    assert summary(desk.outcomes()) == [(Completed, 1)]
    assert (child.overflow, child.end_plan.kill_at is None) == ("traceback", False)


def test_the_job_that_runs_after_several_answers_is_watched(desk):
    desk = desk(processes="1", job_timeout="100")
    desk.pace.learn("k", QUICK_S)
    child = desk.child(several((Verb.COMPLETED, b""), (Verb.COMPLETED, b""), (Verb.PROGRESS, b"[0.5,null]")))
    held = desk.give(*map(lease_of, (1, 2, 3)))
    await_readable(child.output.fd)
    desk.timers.cancel(child)
    began_at = clock.monotonic()
    desk.dispatcher.on_spoke(child)
    assert child.running is held[2]
    assert began_at <= held[2].started_at <= desk.timers.at(child) < held[2].started_at + 100
    assert len(desk.events("job.started")) == 3


def test_stacks_of_an_earlier_job_are_not_shown_with_the_next(desk):
    """Both have ended when the master reads what their child says."""
    desk = desk(processes="1")
    desk.pace.learn("k", QUICK_S)
    trouble = pack_trouble(Trouble("E", "m"))
    child = desk.child(several((Verb.COMPLETED, b""), (Verb.FAILED, trouble)))
    held = desk.give(lease_of(1), lease_of(2))
    await_readable(child.output.fd)
    child.stacks.write_heading("of the first")
    child.write_stacks()
    desk.dispatcher.on_spoke(child)
    assert held[1].end.stack == ""
