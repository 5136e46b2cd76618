"""A job's way through the master, with real processes at the other end that speak the wire protocol, well or badly."""

import fcntl
import math
import os
import select
import signal
import socket

import orjson
import pytest

from supervisor import clock, messages
from supervisor.child.printing import MARK
from supervisor.engine.model.outcomes import Completed, Died, Failed, Released, Retried, Returned, Unknown
from supervisor.engine.transport.link import LinkLost
from supervisor.linux import kernel
from supervisor.master.jobs.unstarted import HAND_BACK
from supervisor.master.model.states import ChildState
from supervisor.messages import (
    TIMEOUT,
    Blob,
    Completion,
    Follower,
    HandlerSettings,
    Notice,
    ProgressReport,
    Trouble,
    Verb,
    pack_checkpoint,
    pack_completion,
    pack_progress,
    pack_trouble,
)
from tests.parts import Ends, await_readable, holding, honest, lease_of, never_reading, open_fds, rest, until

QUICK_S = 0.0001


def summary(outcomes):
    """(kind, token) of each."""
    return [(type(outcome), outcome.lease.token) for outcome in outcomes]


# a job's way


def test_jobs_are_completed_in_the_order_in_which_they_were_sent(desk):
    desk = desk(processes="1")
    desk.pace.learn("k", QUICK_S)
    child = desk.child(honest)
    desk.give(*(lease_of(token) for token in range(1, 51)), starting=1)
    assert len(child.sent) == 50
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert summary(desk.outcomes()) == [(Completed, token) for token in range(1, 51)]
    assert len(desk.ledger) == 0
    assert [event["jid"] for event in desk.events("job.started")] == [f"j{token}" for token in range(1, 51)]
    assert child.served == 50


def test_what_nobody_may_have_soon_goes_back_uncounted_in_order(desk):
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


def test_only_a_start_that_happens_is_told(desk):
    desk = desk(processes="2", memory_budget="4G")
    first, second = desk.child(holding), desk.child(holding)
    desk.budget.mark_killed(9, "k", "j2")  # it may run alone only
    known = {"k": HandlerSettings()}
    desk.intake.accept([lease_of(1), lease_of(2)], 0, known)
    told = []
    desk.placing.place(lambda held: told.append((held.lease.token, len(first.sent + second.sent))))
    assert told == [(1, 0)]
    assert [held.lease.token for held in desk.ledger.ready] == [2]


def test_a_start_that_cannot_be_told_does_not_happen(desk):
    desk = desk(processes="1")
    child = desk.child(holding)

    def cut(_held):
        raise LinkLost("gone")

    desk.intake.accept([lease_of(1)], 0, {"k": HandlerSettings()})
    with pytest.raises(LinkLost):
        desk.placing.place(cut)
    assert (len(desk.ledger.ready), len(child.sent)) == (1, 0)


def test_a_klass_that_no_handler_has_goes_back_with_a_delay(desk):
    desk = desk()
    desk.child(honest)
    desk.give(lease_of(1, "unknown"))
    assert summary(desk.outcomes()) == [(Unknown, 1)]


def test_a_child_leaves_after_its_last_job_and_is_killed_if_it_does_not_go(desk):
    desk = desk(jobs_per_child="1")
    child = desk.child(honest)
    desk.give(lease_of(1))
    desk.turn(lambda: child.state is ChildState.LEAVING)
    desk.keep_time(clock.monotonic())
    assert child.state is ChildState.LEAVING
    desk.keep_time(child.end_plan.kill_at)
    assert desk.reap(child) == signal.SIGKILL
    assert summary(desk.outcomes()) == [(Completed, 1)]
    assert desk.events("child.killed")[0]["reason"] == "it did not exit after its last job"


def test_every_word_of_a_child_becomes_its_outcome(desk):
    words = [
        (Verb.COMPLETED, b'{"a":1}', Completed),
        (Verb.RETRIED, pack_trouble(Trouble("E", "m", None, 1.0)), Retried),
        (Verb.FAILED, pack_trouble(Trouble("g", "m")), Failed),
        (Verb.INTERRUPTED, pack_trouble(Trouble(None, "drain")), Released),
    ]

    def behave(ends):
        ends.talk.send(messages.pack_ready())
        for verb, body, _kind in words:
            token = ends.next_job().token
            os.write(ends.out, b"a word\n" + MARK % token)
            ends.say(verb, token, body, 0.25)
        rest()

    desk = desk(processes="1")
    child = desk.child(behave)
    outcomes = []
    for token, (_verb, _body, kind) in enumerate(words, 1):
        (held,) = desk.give(lease_of(token))
        desk.turn(lambda: child.state is ChildState.IDLE)
        outcomes += desk.outcomes()
        assert (type(outcomes[-1]), outcomes[-1].lease.token) == (kind, token)
        assert held.run_s == 0.25
    assert [outcome.details.get("output") for outcome in outcomes[1:3]] == ["a word\n", "a word\n"]
    assert held.outcome.reason == "drain"
    assert desk.pace.of("k") == 0.25


def follows(size_bytes, jobs=1):
    """A completion with so many jobs to put."""
    followers = [Follower("q", "k", {"jid": f"f{n}"}, Blob("bytes", b"x" * size_bytes)) for n in range(jobs)]
    return pack_completion(Completion(b"1", None, followers))


def test_what_follows_comes_in_the_packet_or_beside_it(desk):
    def behave(ends):
        ends.talk.send(messages.pack_ready())
        ends.say(Verb.FOLLOWED, ends.next_job().token, b"".join(follows(10, jobs=3)))
        memfd = kernel.sealed_memfd(follows(10**6))
        ends.say_with(memfd, Verb.FOLLOWED, ends.next_job().token)
        rest()

    desk = desk(processes="1")
    child = desk.child(behave)
    for token, (jobs, size_bytes) in enumerate([(3, 10), (1, 10**6)], 1):
        (held,) = desk.give(lease_of(token))
        desk.turn(lambda: child.state is ChildState.IDLE)
        (outcome,) = desk.outcomes()
        assert [follower.jid for follower in outcome.then] == [f"f{n}" for n in range(jobs)]
        assert {follower.arguments[5] for follower in outcome.then} == {b"x" * size_bytes}
        assert held.weight == 1 + jobs
        assert held.weight_bytes >= jobs * size_bytes


def test_large_follow_ups_are_not_kept_until_their_exchange(desk):
    def behave(ends):
        ends.talk.send(messages.pack_ready())
        for _ in range(2):
            ends.say_with(kernel.sealed_memfd(follows(2**21)), Verb.FOLLOWED, ends.next_job().token)
        rest()

    desk = desk(processes="1")
    child, held = desk.child(behave), []
    before = open_fds()
    for token in (1, 2):
        held += desk.give(lease_of(token))
        desk.turn(lambda: child.state is ChildState.IDLE)
    assert [(each.outcome.then, each.needs_memory) for each in held] == [((), True)] * 2
    for sent in (2, 1):  # then there is no room for them in Redis; one of them is tried again
        outcomes = desk.ledger.settle_next(1000, math.inf)
        assert [len(follower.arguments[5]) for outcome in outcomes for follower in outcome.then] == [2**21] * sent
        desk.ledger.refused_for_memory(0.0)
        assert [each.outcome.then for each in held] == [(), ()]
    for _ in held:
        assert len(desk.ledger.settle_next(1000, math.inf)) == len(desk.ledger.settled()) == 1
    assert open_fds() == before


def test_progress_is_told_once_and_only_the_last(desk):
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


def results(desk):
    return [orjson.dumps(outcome.result) for outcome in desk.outcomes() if isinstance(outcome, Completed)]


def storing(ends):
    """Makes two checkpoints, waits for the answers, and ends with what it was told."""
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


def test_a_checkpoint_goes_with_an_exchange_and_is_answered_when_that_is(desk):
    desk = desk(processes="1")
    child = desk.child(storing)
    (held,) = desk.give(lease_of(1))
    for number in (1, 2):
        desk.turn(lambda: held.checkpoint is not None)
        assert desk.ledger.reports.take_checkpoints() == [(held.lease, b"[%d]" % number)]
        assert held.report_count == 0
        desk.answers.stored(*desk.ledger.reports.take_stored(1), kept=True)
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert results(desk) == [b"1"]


def dying_at_a_checkpoint(ends):
    """Takes a job, says what is to be stored, and ends."""
    ends.talk.send(messages.pack_ready())
    ends.talk.send(pack_checkpoint(ends.next_job().token, 1, b'"last"'))
    os._exit(3)


def test_the_checkpoint_of_a_child_that_dies_at_that_is_stored_before_its_death_is_settled(desk):
    desk = desk(processes="1")
    child = desk.child(dying_at_a_checkpoint)
    (held,) = desk.give(lease_of(1))
    desk.reap(child)
    assert summary(desk.outcomes()) == [(Died, 1)]
    assert desk.ledger.reports.take_checkpoints() == [(held.lease, b'"last"')]
    desk.answers.stored(*desk.ledger.reports.take_stored(1), kept=True)  # nobody is there to be told


def test_a_thread_that_its_job_has_left_running_is_answered_too_for_the_next_one_may_wait_behind_it(desk):
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
    desk.answers.stored(*desk.ledger.reports.take_stored(1), kept=True)
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert results(desk)[-1:] == [b"1"]


def test_what_becomes_of_a_dead_childs_checkpoint_is_not_told_to_the_next_one_of_its_number(desk):
    desk = desk(processes="1")
    dead = desk.child(dying_at_a_checkpoint)
    desk.give(lease_of(1))
    desk.reap(dead)
    desk.ledger.reports.take_checkpoints()
    child = desk.child(storing)
    (held,) = desk.give(lease_of(2))
    assert child.number == dead.number
    desk.answers.stored(*desk.ledger.reports.take_stored(1), kept=False)  # that lease was lost
    for _number in (1, 2):
        desk.turn(lambda: held.checkpoint is not None)
        desk.ledger.reports.take_checkpoints()
        desk.answers.stored(*desk.ledger.reports.take_stored(2), kept=True)
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert results(desk)[-1:] == [b"1"]


def test_a_checkpoint_of_a_lost_job_is_answered_at_once_and_goes_nowhere(desk):
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
    desk.turn(lambda: held.checkpoint is not None)
    desk.answers.lost([(held, "cancelled")])
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert desk.ledger.reports.take_checkpoints() == []
    assert desk.outcomes() == []


# how a handler is told to stop


def noting(*words):
    """Makes a checkpoint, and completes when it has been told these."""

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
    """Time passes, until it has answered."""

    def answered():
        desk.keep_time(clock.monotonic())
        desk.dispatcher.on_spoke(child)
        return child.state is ChildState.IDLE

    until(answered)


def test_a_handler_that_makes_checkpoints_is_interrupted_by_the_next_one_or_soon_anywhere(desk):
    desk = desk(processes="1", term_grace="0.6s")
    child = desk.child(noting(SOFT, ("drain",)))
    (held,) = desk.give(lease_of(1))
    desk.turn(lambda: held.checkpoint is not None)
    began_at = clock.monotonic()
    desk.interrupter.interrupt_all("drain")
    live(desk, child)
    assert results(desk) == [b"1"]
    assert clock.monotonic() - began_at >= 0.2


@pytest.mark.parametrize("why", ["cancelled", "lease-lost"])
def test_a_job_that_is_not_ours_any_more_is_interrupted_at_once(desk, why):
    desk = desk(processes="1")
    child = desk.child(noting((why,)))
    (held,) = desk.give(lease_of(1))
    desk.turn(lambda: held.checkpoint is not None)
    desk.ledger.reports.take_checkpoints()
    desk.answers.lost([(held, why)])
    live(desk, child)
    assert [event["verb"] for event in desk.events("job.stale")] == ["completed"]


def test_one_that_is_to_end_in_time_sees_it_at_once_and_is_stopped_then(desk):
    desk = desk(processes="1", jobs_per_child="0", term_grace="0.6s")
    child = desk.child(noting(("reload", "", True), ("reload", "", False, True), ("reload",)))
    (held,) = desk.give(lease_of(1))
    desk.turn(lambda: held.checkpoint is not None)
    desk.retirement.dismiss(child, "the code was reloaded", "reload", 0.1)

    def answered():
        desk.keep_time(clock.monotonic())
        desk.dispatcher.on_spoke(child)
        return child.state is ChildState.LEAVING

    until(answered)
    assert results(desk) == [b"1"]


def test_all_are_told_to_stop_and_whoever_begins_after_that_is_too(desk):
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
    desk.turn(lambda: first.report_count)
    desk.interrupter.tell_all("drain")
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert results(desk) == [b"1"] * 2


# jobs without an end, jobs without a second try


def test_a_persistent_job_has_no_limit_but_its_own_or_its_handlers(desk):
    desk = desk(job_timeout="5s")
    for token, (own_ms, handlers_s, limit_s) in enumerate([(None, None, 0.0), (2000, None, 2.0), (None, 3.0, 3.0)], 1):
        (held,) = desk.give(lease_of(token, persistent=True, timeout_ms=own_ms), timeout_s=handlers_s)
        assert held.limit_s == limit_s
    (held,) = desk.give(lease_of(9))
    assert held.limit_s == 5.0


def test_a_persistent_job_that_returns_comes_back_and_teaches_nothing_about_the_others(desk):
    desk = desk(processes="1")
    child = desk.child(honest)
    desk.give(lease_of(1, persistent=True))
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert summary(desk.outcomes()) == [(Returned, 1)]
    assert desk.pace.recent_s is None
    assert child.served == 1


def test_nothing_is_sent_behind_a_persistent_job_however_short_its_klass_is_else(desk):
    desk = desk(processes="1")
    desk.pace.learn("k", QUICK_S)
    child = desk.child(holding)
    desk.give(lease_of(1, persistent=True))
    desk.give(lease_of(2))
    assert [held.lease.token for held in child.sent] == [1]
    assert [held.lease.token for held in desk.ledger.ready] == [2]


def telling(ends):
    """Takes one job, says that it has, and keeps it."""
    signal.signal(kernel.NOTICE_SIGNAL, signal.SIG_IGN)
    ends.talk.send(messages.pack_ready())
    ends.talk.send(pack_progress(ends.next_job().token, ProgressReport(0.0, "it has begun")))
    rest()


def test_in_a_drain_persistent_jobs_are_interrupted_at_once_and_the_others_are_not(desk):
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
    desk.turn(lambda: held.report_count and other.report_count)
    desk.shutdown.begin()
    desk.turn(lambda: children[0].state is ChildState.LEAVING)
    assert summary(desk.outcomes()) == [(Released, 1)]
    assert held.outcome.reason == "drain"
    assert children[1].end_plan.kill_at is None
    assert children[1].state is ChildState.BUSY


def test_a_persistent_job_that_is_deaf_is_killed_soon_after_the_drain_begins(desk):
    desk = desk(processes="1", drain_timeout="20s", term_grace="1s")
    child = desk.child(telling)
    (held,) = desk.give(lease_of(1, persistent=True))
    desk.turn(lambda: held.report_count)
    desk.shutdown.begin()
    assert child.end_plan.kill_at <= clock.monotonic() + 1
    desk.keep_time(child.end_plan.kill_at)
    desk.reap(child)
    (outcome,) = desk.outcomes()
    assert (type(outcome), outcome.started, outcome.reason) == (Released, True, "drain")


@pytest.mark.parametrize("kind", [{"persistent": True}, {"at_most_once": True}])
def test_what_waits_for_an_idle_child_in_vain_goes_back_uncounted(desk, kind):
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


# hostile children


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
    "a memfd that nobody asked for": with_descriptor(memfd_of(b"1"), Verb.COMPLETED),
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


@pytest.mark.parametrize("behave", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_child_that_speaks_nonsense_is_killed_and_nothing_is_raised(desk, behave):
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


def test_a_child_that_answers_before_it_has_a_job_is_killed(desk):
    desk = desk()
    child = desk.child(lambda ends: (ends.say(Verb.COMPLETED, 1), rest()), ready=False)
    desk.turn(lambda: child.state is ChildState.DOOMED)
    desk.reap(child)
    assert desk.outcomes() == []


def test_a_child_that_shuts_down_the_socket_of_its_jobs_is_killed_and_another_gets_the_job(desk):
    def shut(ends):
        ends.jobs.shutdown(socket.SHUT_RD)
        never_reading(ends)

    desk = desk()
    first, second = desk.child(shut), desk.child(holding)
    desk.give(lease_of(1))
    assert (first.state, second.running.lease.token) == (ChildState.DOOMED, 1)
    desk.reap(first)
    assert desk.outcomes() == []


def test_garbage_after_the_outcome_does_not_undo_it(desk):
    def behave(ends):
        ends.talk.send(messages.pack_ready())
        ends.say(Verb.COMPLETED, ends.next_job().token)
        ends.talk.send(b"x")

    desk = desk()
    child = desk.child(behave)
    desk.give(lease_of(1))
    desk.reap(child)
    assert summary(desk.outcomes()) == [(Completed, 1)]


# deaths


def test_a_death_is_settled_by_its_last_words_then_what_it_never_received_then_the_job_in_its_hands(desk):
    def behave(ends):
        ends.talk.send(messages.pack_ready())
        ends.say(Verb.COMPLETED, ends.next_job().token)
        ends.next_job()
        os.write(ends.out, b"a line\nlast words")
        os.kill(os.getpid(), signal.SIGSEGV)

    desk = desk(processes="1")
    desk.pace.learn("k", QUICK_S)
    child = desk.child(behave)
    desk.give(*(lease_of(token) for token in range(1, 6)))
    assert len(child.sent) == 5
    assert os.WTERMSIG(desk.reap(child)) == signal.SIGSEGV
    desk.shutdown.begin()  # no other child comes
    outcomes = desk.outcomes()
    assert sorted(summary(outcomes), key=lambda each: each[1]) == [
        (Completed, 1), (Died, 2), (Released, 3), (Released, 4), (Released, 5),
    ]  # fmt: skip
    assert [outcome.started for outcome in outcomes if isinstance(outcome, Released)] == [False] * 3
    (died,) = [outcome for outcome in outcomes if isinstance(outcome, Died)]
    assert died.reason == "SIGSEGV"
    assert died.details["output"].startswith("a line\nlast words")
    assert died.details["cpu_s"] == 0.5


def test_what_a_dying_child_printed_last_is_told_as_its_jobs(desk):
    def behave(ends):
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        os.write(ends.out, b"last words\n")

    desk = desk()
    child = desk.child(behave)
    heads = []
    child.output._on_line = lambda token, line: heads.append((child.running and child.running.lease.token, line))
    desk.give(lease_of(7))
    desk.reap(child)
    assert heads == [(7, b"last words")]


def test_jobs_taken_back_from_the_dead_go_to_another_child_that_may_have_them(desk):
    desk = desk(processes="2")
    first, _held = busy_with_five(desk)
    second = desk.child(never_reading)
    desk.processes[first.number].end()
    desk.dispatcher.on_gone(first, None, "lost")
    assert [held.lease.token for held in second.sent] == [2, 3, 4, 5]
    assert [(type(outcome), outcome.reason) for outcome in desk.outcomes()] == [(Died, "lost")]


def test_the_head_of_a_child_that_is_killed_on_the_way_down_is_an_interruption(desk):
    def behave(ends):
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        ends.talk.send(b"")
        rest()

    desk = desk(processes="1")
    child = desk.child(behave)
    desk.give(lease_of(1))
    desk.turn(lambda: child.talk.at_end)  # it has the job: an empty packet is the only thing it says
    desk.interrupter.kill_all("drain")
    desk.reap(child)
    (outcome,) = desk.outcomes()
    assert (type(outcome), outcome.started) == (Released, True)


# lost leases


def await_receipt(child):
    """Until it has taken what was sent to it: no event tells."""
    deadline_at = clock.monotonic() + 10
    while kernel.unread_bytes(child.jobs._receiver.fileno()):
        assert clock.monotonic() < deadline_at
        select.select([], [], [], 0.001)


def test_a_lost_lease_has_its_handler_stopped_and_then_killed_and_nothing_is_settled(desk):
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


def test_the_outcome_of_a_lost_lease_is_not_sent_and_the_child_goes_on(desk):
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


def test_a_lost_job_that_no_child_has_begun_never_begins(desk):
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


def test_a_lost_lease_that_was_sent_ahead_is_taken_back_and_dropped_and_the_others_stay_in_order(desk):
    desk = desk(processes="1")
    desk.pace.learn("k", QUICK_S)
    child = desk.child(never_reading)
    held = desk.give(*(lease_of(token) for token in range(1, 6)))
    desk.answers.lost([(held[2], "lease-lost")])
    assert [each.lease.token for each in child.sent] == [1, 2, 4, 5]
    assert [lease.token for lease in desk.ledger.leases] == [1, 2, 4, 5]
    assert child.end_plan.kill_at is None
    assert desk.outcomes() == []


def test_when_all_leases_are_lost_at_once_none_of_their_jobs_starts_anywhere(desk):
    desk = desk(processes="2")
    child, held = busy_with_five(desk)
    other = desk.child(never_reading)
    desk.answers.lost([(each, "lease-lost") for each in held])
    assert [each.lease.token for each in child.sent] == [1]
    assert (other.state, list(other.sent)) == (ChildState.IDLE, [])
    assert child.end_plan.kill_at is not None
    assert len(desk.ledger) == 0
    assert desk.outcomes() == []


def test_a_lost_lease_that_no_child_has_is_simply_gone(desk):
    desk = desk(processes="1")
    held = desk.ledger
    desk.child(never_reading)
    (first,) = desk.give(lease_of(1))
    child = desk.slots.get(1)
    child.take_back()
    held.ready.append(first)
    desk.answers.lost([(first, "lease-lost")])
    assert (list(held.ready), len(held)) == ([], 0)


# time


def busy_with_five(desk):
    """A child that holds the first of five jobs, of which all were thought to be quick."""
    desk.pace.learn("k", QUICK_S)

    def behave(ends):
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        os.write(ends.out, b"has it\n")
        rest()

    child = desk.child(behave)
    held = desk.give(*(lease_of(token) for token in range(1, 6)), starting=0)
    await_readable(child.output.fd)
    return child, held


def test_a_child_that_overruns_has_what_it_did_not_receive_taken_back_and_its_start_told(desk):
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


def test_what_is_taken_back_from_a_child_that_overran_goes_to_an_idle_one(desk):
    desk = desk(processes="2", dispatch_ahead="20ms")
    child, held = busy_with_five(desk)
    other = desk.child(never_reading)
    desk.keep_time(held[0].started_at + 0.021)
    assert [each.lease.token for each in other.sent] == [2, 3, 4, 5]
    assert [each.lease.token for each in child.sent] == [1]
    assert desk.outcomes() == []


@pytest.mark.parametrize(("own_ms", "handler_s", "limit_s"), [(2000, 5.0, 2.0), (None, 5.0, 5.0), (None, None, 7.0)])
def test_past_its_time_limit_a_job_says_where_it_is_and_is_killed(desk, own_ms, handler_s, limit_s):
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
    assert (child.end_plan.kill_at, child.warned_of_timeout) == (None, False)
    desk.keep_time(held.started_at + 0.9 * limit_s)
    await_readable(child.output.fd)
    child.output.read()
    assert (child.end_plan.kill_at, child.warned_of_timeout) == (None, True)
    desk.keep_time(held.started_at + limit_s)
    await_readable(child.output.fd)
    desk.keep_time(child.end_plan.kill_at)
    desk.reap(child)
    (outcome,) = desk.outcomes()
    assert (type(outcome), outcome.reason) == (Died, "timeout")
    assert outcome.details["output"].count("stacks") == 2
    assert f"time limit of {limit_s:g} s" in outcome.message


def test_near_its_time_limit_the_handler_is_told_so_once(desk):
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


def test_a_limit_of_0_is_none(desk):
    desk = desk(processes="1", job_timeout="7s")
    child = desk.child(never_reading)
    (held,) = desk.give(lease_of(1, timeout_ms=0))
    desk.keep_time(held.started_at + 10**8)
    assert (child.end_plan.kill_at, child.overran) == (None, True)


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


# the way down


def test_when_it_closes_what_has_not_started_goes_back_and_nothing_starts_any_more(desk):
    desk = desk(processes="1")
    child, _held = busy_with_five(desk)
    desk.shutdown.begin()
    assert [each.lease.token for each in child.sent] == [1]
    desk.give(lease_of(9), lease_of(10, "unknown"))
    outcomes = desk.outcomes()
    assert summary(outcomes) == [(Released, token) for token in (2, 3, 4, 5, 9, 10)]
    assert not any(outcome.started for outcome in outcomes)


def test_every_running_handler_is_interrupted_with_the_reason_and_the_token_of_its_job(desk):
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


# paused


def test_while_paused_what_has_not_started_goes_back_uncounted_and_what_runs_goes_on(desk):
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


def test_an_idle_child_stays_while_paused_and_gets_the_next_job_after_it(desk):
    desk = desk(processes="1")
    child = desk.child(holding)
    desk.placing.pause()
    assert child.state is ChildState.IDLE
    desk.placing.resume()
    (held,) = desk.give(lease_of(1))
    assert child.running is held
