"""Follow-ups and next stages happen in the step in which the job completes, or not at all."""

import hashlib
import re
from pathlib import Path

import pytest
from supervised import Stage
from watched import FULL

from supervisor.engine.model.outcomes import MOST_QUEUES

EVERY_BYTE = bytes(range(256))
LARGE_BYTES = 24 << 20
LARGE_AT_ONCE = 24


def run(stage: Stage, klass, data, **options):
    """Run a job, and return it with its pool."""
    pool = stage.start(processes=1, queue=["default", "other"]).wait_ready()
    jid = stage.queue.put(klass, data, **options)
    stage.wait_until_ended([jid])
    return stage.client.job(jid), pool


def peak_bytes(pool):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pool.pid}/status").read_text())[1]) << 10


def finish(stage, pool, *, waiting=()):
    assert pool.drain() == 0
    stage.assert_nothing_left(waiting=waiting)


@pytest.mark.parametrize("klass", ["follow.after", "follow.after_coroutine"])
def test_jobs_put_by_a_handler_exist_from_its_completion_on(stage, klass):
    puts = [["other", "good.echo", {"n": n}, {"tags": ["t"]}] for n in range(3)]
    job, pool = run(stage, klass, {"put": puts})
    stage.wait_until_ended(job.result)
    assert [one.result for one in stage.client.jobs(*job.result)] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert {tuple(one.tags) for one in stage.client.jobs(*job.result)} == {("t",)}
    finish(stage, pool)


def test_next_stage_keeps_the_jid(stage):
    job, pool = run(stage, "follow.after", {"next": {"queue": "waits", "data": {"stage": 2}}})
    (lease,) = stage.client.queue("waits").lease("me")
    assert (lease.jid, lease.data, lease.klass) == (job.jid, {"stage": 2}, "follow.after")
    assert lease.complete()
    stage.client.deregister("me")
    finish(stage, pool)


@pytest.mark.parametrize("end", ["raise", "retry", "die"])
def test_nothing_follows_a_run_that_does_not_complete(stage, end):
    puts = [["waits", "good.noop", None, {}]]
    job, pool = run(stage, "follow.after", {"put": puts, "next": {"queue": "waits"}, "end": end}, max_deaths=0)
    # The second run has completed, and what it said counts; nothing of the first one's does.
    waiting = stage.client.queue("waits")
    assert len(stage.ledger.starts(job.jid)) == 2
    assert waiting.length() == 2
    assert len(stage.client.jobs(*(one.jid for one in waiting.jobs("waiting")))) == 2
    for lease in waiting.lease("me", 10):
        assert lease.complete()
    stage.client.deregister("me")
    finish(stage, pool)


def test_nothing_follows_a_failure(stage):
    puts = [["waits", "good.noop", None, {}]]
    job, pool = run(stage, "follow.after", {"put": puts, "next": {"queue": "waits"}, "end": "fail"})
    assert job.state == "failed"
    assert stage.client.queue("waits").length() == 0
    finish(stage, pool)


@pytest.mark.parametrize("told", [{"put": [["new", "good.noop", None, {}]]}, {"next": {"queue": "new"}}])
def test_completion_that_needs_a_queue_too_many_fails(stage, told):
    pool = stage.start(processes=1).wait_ready()
    old = [f"old-{n}" for n in range(MOST_QUEUES - 1)]
    stage.server.redis.zadd(f"{stage.prefix}queues", dict.fromkeys(["default", *old], 0))
    jid, known = stage.queue.put("follow.after", told), {"next": {"queue": "old-7"}}
    others = [stage.queue.put("good.noop"), stage.queue.put("follow.after", known)]
    stage.wait_until_ended([jid, *others[:1]])
    failed = pool.wait_for("job.failed", jid=jid)
    assert (failed["group"], stage.client.failed()) == ("too-many-queues", {"too-many-queues": 1})
    assert "would make a new queue, and there are 100000 already" in stage.client.job(jid).failure["message"]
    assert (stage.client.job(jid).queue, len(stage.ledger.starts(jid))) == ("default", 1)
    assert stage.server.redis.zscore(f"{stage.prefix}queues", "new") is None
    (lease,) = stage.client.lease("me", ["old-7"], block=30)
    assert (lease.jid, lease.complete()) == (others[1], True)
    stage.client.deregister("me")
    finish(stage, pool)


def test_bytes_follow_byte_for_byte_small_and_large(stage):
    stage.start(processes=2, queue=["default", "other"]).wait_ready()
    jid = stage.queue.put("follow.bytes_after", EVERY_BYTE)
    stage.wait_until_ended([jid])
    jids = stage.client.job(jid).result
    stage.wait_until_ended(jids)
    for one, raw in zip(jids, (EVERY_BYTE, b"\xff" * 20_000_000), strict=True):
        assert stage.client.job(one).result == {
            "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest(), "kind": "bytes",
        }  # fmt: skip
    assert stage.pools[0].drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
def test_large_follow_ups_of_many_children_do_not_add_up_in_the_master(stage, measured):
    pool = stage.start(processes=LARGE_AT_ONCE).wait_ready()
    before = peak_bytes(pool)
    gate = stage.gate("gate")
    told = {"gate": gate, "bytes": LARGE_BYTES}
    jids = [stage.queue.put("follow.large_after_gate", told) for _ in range(LARGE_AT_ONCE)]
    for jid in jids:
        stage.wait_for_starts(jid)
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    grown = peak_bytes(pool) - before
    measured(f"{LARGE_AT_ONCE} x {LARGE_BYTES >> 20} MB put at once: at most {grown >> 20} MB more in the master")
    assert grown < LARGE_AT_ONCE * LARGE_BYTES * 3 // 4
    for stored in stage.client.jobs(*jids):
        assert stage.server.redis.strlen(f"{stage.prefix}data:{stored.result}") == LARGE_BYTES
    finish(stage, pool, waiting=["waits"])


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="needs a few GB of memory: TEST_FULL=1")
def test_follow_ups_may_reach_their_limit(stage, measured):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("follow.large_after", 2**28)
    stage.wait_until_ended([jid], 60)
    (stored,) = stage.client.job(jid).result.split()
    assert stage.server.redis.strlen(f"{stage.prefix}data:{stored}") == 2**28
    measured(f"256 MB put by a handler: at most {peak_bytes(pool) >> 20} MB in the master")
    assert stage.client.cancel(stored) == [stored]
    finish(stage, pool)


def test_next_stage_may_have_other_bytes(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("follow.pass_on", EVERY_BYTE)
    pool.wait_for("job.completed", jid=jid)
    (lease,) = stage.client.queue("other").lease("me")
    assert (lease.jid, lease.raw, lease.is_bytes) == (jid, bytes(reversed(EVERY_BYTE)), True)
    assert lease.complete()
    stage.client.deregister("me")
    finish(stage, pool)


def test_circular_follow_up_fails_only_its_own_job(stage):
    pool = stage.start(processes=2, jobs_per_child=0).wait_ready()
    # Held up, so that all of them are settled together.
    gate = stage.gate("gate")
    puts = [["waits", "good.noop", None, {}], ["waits", "good.noop", None, {"jid": "round", "depends": ["round"]}]]
    others = stage.queue.put_many([{"klass": "good.short_or_long", "data": gate} for _ in range(1)])
    bad = stage.queue.put("follow.after", {"put": puts})
    stage.wait_for_starts(others[0])
    stage.wait_for_starts(bad)
    stage.open_gate(gate)
    stage.wait_until_ended([*others, bad])
    assert stage.states(others) == ["complete"]
    job = stage.client.job(bad)
    assert (job.state, job.failure["group"]) == ("failed", "DependencyError")
    assert "refused" in job.failure["message"]
    assert stage.client.queue("waits").length() == 0
    assert stage.client.job("round") is None
    assert len(stage.ledger.starts(bad)) == 1
    after = stage.queue.put("good.noop")
    stage.wait_until_ended([after])
    finish(stage, pool)


def test_circular_next_stage_fails_the_job(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("follow.after", {"next": {"queue": "other", "depends": ["me-again"]}}, jid="me-again")
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).failure["group"] == "DependencyError"
    finish(stage, pool)


def test_wrong_arguments_raise_in_the_handler(stage):
    job, pool = run(stage, "follow.bad_arguments", None)
    named = ["queue", "data", "tries", "use job.next", "delay", "fraction", "text"]
    assert len(job.result) == len(named)
    for message, name in zip(job.result, named, strict=True):
        assert name in message
    finish(stage, pool)


def test_malformed_follow_ups_end_only_their_child(stage):
    pool = stage.start(processes=1, max_deaths=1).wait_ready()
    jid = stage.queue.put("follow.claim_on_nonsense")
    assert "nonsense" in pool.wait_for("child.killed")["reason"]
    after = stage.queue.put("good.noop")
    stage.wait_until_ended([jid, after])
    assert stage.states([jid, after]) == ["failed", "complete"]
    assert stage.client.job(jid).failure["group"] == "died:SIGKILL"
    assert stage.client.queue("waits").length() == 0
    finish(stage, pool)


def test_follow_ups_survive_a_lost_reply_and_are_put_once(stage, proxies):
    stage.config(grace=0.2)
    proxy = proxies(5)
    pool = stage.start(processes=1, jobs_per_child=0, redis_url=proxy.url).wait_ready()
    puts = [[["waits", "good.noop", None, {"jid": f"after-{n}"}]] for n in range(40)]
    jids = [stage.queue.put("follow.after", {"put": put}) for put in puts]
    stage.wait_until_ended(jids, 60)
    assert stage.states(jids) == ["complete"] * 40
    assert stage.client.queue("waits").length() == 40
    assert proxy.counts()["dropped"] > 0
    assert pool.drain() == 0
    stage.client.queue("waits").delete()
    stage.assert_nothing_left()
