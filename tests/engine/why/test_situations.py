"""`why` tells the reason of each situation of a job or a queue that the tests bring about."""

from typing import NamedTuple

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing, settling, workers
from supervisor.engine.model.outcomes import Misfit, Unknown
from tests.lengths import FULL

LONG_MS = 50  # of the server's processor, for both questions


class World(NamedTuple):
    """The means to bring a situation about. The worker `w` serves q, and has the klass k."""

    client: object
    q: object
    clock: object
    config: object

    def join(self, name="w", klasses=("k",), queues=("q",), shapes=None):
        call = calls_of(self.client).call
        call(leasing.resume, name, 1, [])
        call(workers.report_skills, name, klasses, queues, shapes)

    def settle(self, name, outcome):
        calls_of(self.client).call(settling.settle, name, [outcome], number=2)


@pytest.fixture
def world(client, clock, config):
    made = World(client, client.queue("q"), clock, config)
    made.join()
    return made


def unserved(w):
    w.client.queue("other").put("k", jid="j")


def forgotten_worker(w):
    w.q.put("k", jid="j")
    w.clock.tick(61)


def paused_queue(w):
    w.q.put("k", jid="j")
    w.q.pause(by="kim@web-1")


def paused_every_queue(w):
    w.q.put("k", jid="j")
    w.config(paused=1)


def paused_before_unserved(w):
    w.client.queue("other").put("k", jid="j")
    w.client.queue("other").pause()


def paused_lane(w):
    w.q.put("k", jid="j", lane="a")
    w.q.lane("a").pause(by="kim@web-1")


def paused_batch(w):
    with w.client.batch("outer") as outer, outer.batch("inner") as inner:
        inner.put("q", "k", jid="j")
    outer.pause(by="kim@web-1")


def no_handler(w):
    w.q.put("strange", jid="j")


def unknown_klass(w):
    w.q.put("strange", jid="j")
    w.settle("w", Unknown(w.q.lease("w")[0], 10))


def left_to_others(w):
    w.join("new", ("k", "strange"))
    unknown_klass(w)


def misfit(w):
    w.join("old", shapes={"k": "1"}, klasses=["k"])
    w.join("new", shapes={"k": "2"}, klasses=["k"])
    w.q.put("k", jid="j")
    w.settle("old", Misfit(w.q.lease("old")[0], "1", "user: is missing"))


def limited(w, *jids, **limit):
    w.client.limit("smtp", **limit)
    for jid in jids:
        w.q.put("k", jid=jid, limit="smtp")


def limit_zero(w):
    limited(w, "j", running=0, by="kim@web-1")


def limit_full(w):
    limited(w, "first", "second", "j", running=2)
    w.q.lease("w", 2)


def second_limit_full(w):
    limited(w, "first", running=1)
    w.q.lease("w")
    w.client.limit("tenant", running=5)
    w.q.put("k", jid="j", limit=["tenant", "smtp"])


def limit_parked(w):
    limited(w, "first", "j", running=1)
    w.q.lease("w", 2)


def limit_rate(w):
    limited(w, "first", "j", rate="1/m")
    w.q.lease("w")


def concurrency(w):
    w.config(**{"max-concurrency-q": 1})
    w.q.put("k", jid="first")
    w.q.put("k", jid="j")
    w.q.lease("w")


def behind_others(w):
    for jid in ("a", "b", "j"):
        w.q.put("k", jid=jid)


def behind_a_priority(w):
    w.q.put("k", jid="j")
    w.q.put("k", jid="urgent", priority=-1)


def behind_in_lane(w):
    for jid in ("a", "j"):
        w.q.put("k", jid=jid, lane="x")


def lanes_turn(w):
    w.q.put("k", jid="a", lane="x")
    w.q.put("k", jid="j", lane="y")


def next_in_line(w):
    w.q.put("k", jid="j")


def handed_back(w):
    w.q.put("k", jid="j")
    w.q.lease("w")[0].release()


def due_now(w):
    w.q.put("k", jid="j", delay=5)
    w.clock.tick(6)


def delayed(w):
    w.q.put("k", jid="j", delay=60)


def backing_off(w):
    w.q.put("k", jid="j")
    w.q.lease("w")[0].retry(30, "Busy", "later")


def waits_for_signal(w):
    w.q.put("k", jid="j")
    w.q.lease("w")[0].suspend("approval", 600)


def waits_for_signal_forever(w):
    w.q.put("k", jid="j")
    w.q.lease("w")[0].suspend("approval")


def waits_for_parent(w):
    w.q.put("k", jid="parent")
    w.q.put("k", jid="j", depends=["parent"])


def waits_for_grandparent(w):
    w.q.put("k", jid="root")
    w.q.put("k", jid="parent", depends=["root"])
    w.q.put("k", jid="j", depends=["parent"])


def waits_for_failed_parent(w):
    w.q.put("k", jid="parent")
    w.q.put("k", jid="j", depends=["parent"], on_parent_failure="wait")
    w.q.lease("w")[0].fail("Broken", "boom")


def running(w):
    w.q.put("k", jid="j", timeout=30)
    w.q.lease("w")


def stalled(w):
    w.q.put("k", jid="j")
    w.q.lease("w", ttl=10)
    w.clock.tick(11)


def complete(w):
    w.q.put("k", jid="j")
    [lease] = w.q.lease("w")
    w.clock.tick(2)
    lease.complete()


def failed(w):
    w.q.put("k", jid="j")
    w.q.lease("w")[0].fail("Broken", "boom")


def failed_like_others(w):
    for jid in ("a", "b", "j"):
        w.q.put("k", jid=jid)
    for lease in w.q.lease("w", 3):
        lease.fail("Broken", "boom")


def failed_parent_failed(w):
    w.q.put("k", jid="parent")
    w.q.put("k", jid="j", depends=["parent"], on_parent_failure="fail")
    w.q.lease("w")[0].fail("Broken", "boom")


def expired(w):
    w.q.put("k", jid="j", expires=5)
    w.clock.tick(6)
    w.client.sweep()


def at_most_once_died(w):
    w.q.put("k", jid="j", at_most_once=True)
    w.q.lease("w")[0].died("SIGKILL")


def cancelled(w):
    w.q.put("k", jid="j")
    w.client.cancel("j", by="kim@web-1")


def cancelled_by_nobody_known(w):
    w.q.put("k", jid="j")
    w.client.cancel("j")


def never_put(w):
    pass


def pruned(w):
    w.config(jobs_history=0)
    complete(w)


#: The situation -> the reason, and a part of the sentence.
JOBS = {
    unserved: ("no-worker", "no living worker serves queue other; 1 living worker"),
    forgotten_worker: ("no-worker", "no living worker serves queue q"),
    paused_queue: ("paused-queue", "queue q is paused, by kim@web-1, since 1970-01-12 13:46:40 UTC"),
    paused_every_queue: ("paused-queue", "queue q is paused"),
    paused_before_unserved: ("paused-queue", "queue other is paused, since"),
    paused_lane: ("paused-lane", "lane a of queue q is paused, by kim@web-1, since"),
    paused_batch: ("paused-batch", "batch outer is paused, by kim@web-1, since"),
    no_handler: ("no-handler", "no handler for strange at any living worker for queue q"),
    unknown_klass: ("unknown-klass", "has a handler for strange"),
    left_to_others: ("left-to-others", "with a handler for strange"),
    misfit: ("misfit", "does not fit the handler k"),
    limit_zero: ("limit-zero", "limit smtp is set to 0, by kim@web-1, since"),
    limit_full: ("limit-full", "limit smtp is full: 2 of 2, held by first, second"),
    second_limit_full: ("limit-full", "limit smtp is full: 1 of 1, held by first"),
    limit_parked: ("limit-full", "1 of 1, held by first"),
    limit_rate: ("limit-rate", "limit smtp is used up until 1970-01-12 13:47:40 UTC"),
    concurrency: ("concurrency-full", "max-concurrency of 1 running: first"),
    behind_others: ("behind-others", "2 jobs of queue q go before it"),
    behind_a_priority: ("behind-others", "1 job of queue q goes before it"),
    behind_in_lane: ("behind-others", "1 job of lane x goes before it"),
    lanes_turn: ("lanes-turn", "lane y, which waits for its turn among 2 lanes"),
    next_in_line: ("next-in-line", "the job is next in queue q"),
    handed_back: ("next-in-line", "the job is next in queue q"),
    due_now: ("next-lease", "the next lease of queue q brings the job back into its line"),
    delayed: ("scheduled", "scheduled for 1970-01-12 13:47:40 UTC"),
    backing_off: ("retry", "1970-01-12 13:47:10 UTC, after 1 failure"),
    waits_for_signal: ("waits-for-signal", "the signal approval, until 1970-01-12 13:56:40 UTC"),
    waits_for_signal_forever: ("waits-for-signal", "the signal approval"),
    waits_for_parent: ("waits-for-parents", "waits for parent; parent is waiting"),
    waits_for_grandparent: ("waits-for-parents", "waits for parent; root, which holds them up, is waiting"),
    waits_for_failed_parent: ("waits-for-parents", "parent is failed in group Broken"),
    running: ("running", "with worker w since 1970-01-12 13:46:40 UTC, with a time limit of 30 s"),
    stalled: ("stalled", "worker w was lost with the job: its lease ended at 1970-01-12 13:46:50 UTC"),
    complete: ("complete", "completed at 1970-01-12 13:46:42 UTC, 2 s after its lease"),
    failed: ("failed", "failed with Broken: boom"),
    failed_like_others: ("failed", "Broken: boom; 2 other jobs failed so within the last hour"),
    failed_parent_failed: ("failed", "failed with parent-failed"),
    expired: ("failed", "failed with expired"),
    at_most_once_died: ("failed", "died:SIGKILL"),
    cancelled: ("cancelled", "cancelled by kim@web-1, 1970-01-12 13:46:40 UTC"),
    cancelled_by_nobody_known: ("cancelled", "job j was cancelled, 1970-01-12"),
    never_put: ("unknown", "there is no job j"),
    pruned: ("unknown", "its retention is over"),
}


@pytest.mark.parametrize("bring_about", JOBS, ids=lambda each: each.__name__)
def test_each_job_tells_its_reason(world, bring_about):
    bring_about(world)
    why = world.client.why("j", timeout=0)
    reason, part = JOBS[bring_about]
    assert why.reason == reason and part in why.sentence, why.sentence


def none_ready(w):
    w.q.put("k", jid="j")
    w.q.put("k", delay=60)
    w.q.lease("w")


def only_parked(w):
    limited(w, "j", running=0)
    w.q.lease("w")


def only_in_paused_lanes(w):
    w.q.put("k", lane="slow")
    w.q.lane("slow").pause()


def late_recurrence(w):
    w.q.recur("k", cron="* * * * *")
    w.clock.tick(180)
    w.join("new")


def late_recurrence_without_a_worker(w):
    w.q.recur("k", cron="* * * * *")
    w.clock.tick(180)


def late_recurrence_behind_a_job(w):
    late_recurrence(w)
    w.q.put("k")


def served(w):
    running(w)
    w.q.put("k")


QUEUES = {
    never_put: ("empty", "queue q has no jobs"),
    paused_queue: ("paused-queue", "queue q is paused, by kim@web-1, since"),
    forgotten_worker: ("no-worker", "no living worker serves queue q"),
    concurrency: ("concurrency-full", "max-concurrency of 1"),
    none_ready: ("none-ready", "1 running, 1 scheduled"),
    only_parked: ("none-ready", "1 parked under a limit or a paused batch"),
    only_in_paused_lanes: ("none-ready", "1 in paused lanes"),
    waits_for_failed_parent: ("none-ready", "1 waiting for other jobs"),
    left_to_others: ("none-ready", "1 left to a worker"),
    late_recurrence: ("recurrence-late", "1 recurring job of queue q is late by more than a minute"),
    late_recurrence_without_a_worker: ("no-worker", "no living worker serves queue q"),
    late_recurrence_behind_a_job: ("served", "1 waiting job, 0 running"),
    served: ("served", "1 waiting job, 1 running and 1 living worker"),
}


@pytest.mark.parametrize("bring_about", QUEUES, ids=lambda each: each.__name__)
def test_each_queue_tells_its_reason(world, bring_about):
    bring_about(world)
    why = world.q.why(timeout=0)
    reason, part = QUEUES[bring_about]
    assert why.reason == reason and part in why.sentence, why.sentence


def test_job_tells_why_after_it_has_gone(world):
    next_in_line(world)
    job = world.client.job("j")
    assert job.why(timeout=0).reason == "next-in-line"
    world.client.cancel("j", by="kim")
    assert job.why(timeout=0).facts["cancelled_by"] == "kim"


@pytest.mark.sampled(3)
def test_asking_is_quick_in_a_long_queue(world, cpu_ms):
    n = 1_000_000 if FULL else 50_000
    world.q.put_many({"klass": "k"} for _ in range(n))
    world.q.put("k", jid="j")
    with cpu_ms() as used:
        why = world.client.why("j", timeout=0)
        world.q.why(timeout=0)
    assert (why.reason, why.facts["ahead"]) == ("behind-others", n)
    assert used[0] <= LONG_MS
