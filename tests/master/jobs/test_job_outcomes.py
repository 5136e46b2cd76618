"""Answers and deaths of children become outcomes of jobs. Children are forks of the test."""

import math
import os
import signal

from supervisor import clock, messages
from supervisor.child.printing import MARK
from supervisor.engine.model.outcomes import Completed, Died, Failed, Released, Retried, Returned
from supervisor.linux import kernel
from supervisor.master.model.states import ChildState
from supervisor.messages import Trouble, Verb, pack_trouble
from tests.master.jobs.conftest import QUICK_S, busy_with_five, follows, summary
from tests.parts import honest, lease_of, never_reading, open_fds, rest

# answers


def test_jobs_complete_in_the_order_of_their_sending(desk):
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


def test_a_child_that_does_not_exit_after_its_last_job_is_killed(desk):
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


def test_follow_ups_come_in_the_packet_or_in_a_memfd(desk):
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
        assert {follower.arguments[2] for follower in outcome.then} == {b"x" * size_bytes}
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
        assert [len(follower.arguments[2]) for outcome in outcomes for follower in outcome.then] == [2**21] * sent
        desk.ledger.refused_for_memory(0.0)
        assert [each.outcome.then for each in held] == [(), ()]
    for _ in held:
        assert len(desk.ledger.settle_next(1000, math.inf)) == len(desk.ledger.settled()) == 1
    assert open_fds() == before


def test_a_persistent_job_that_returns_teaches_no_run_time(desk):
    desk = desk(processes="1")
    child = desk.child(honest)
    desk.give(lease_of(1, persistent=True))
    desk.turn(lambda: child.state is ChildState.IDLE)
    assert summary(desk.outcomes()) == [(Returned, 1)]
    assert desk.pace.recent_s is None
    assert child.served == 1


# deaths


def test_a_death_settles_the_job_in_the_childs_hands_last(desk):
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


def test_the_last_line_of_a_dying_child_is_its_jobs(desk):
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


def test_jobs_of_a_dead_child_go_to_another_one(desk):
    desk = desk(processes="2")
    first, _held = busy_with_five(desk)
    second = desk.child(never_reading)
    desk.processes[first.number].end()
    desk.dispatcher.on_gone(first, None, "lost")
    assert [held.lease.token for held in second.sent] == [2, 3, 4, 5]
    assert [(type(outcome), outcome.reason) for outcome in desk.outcomes()] == [(Died, "lost")]


def test_a_job_killed_in_a_drain_counts_as_interrupted(desk):
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
