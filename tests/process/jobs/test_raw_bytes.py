"""Bytes stay the same on each way, whatever their values and number."""

import base64
import hashlib
import json
import random

import pytest

#: Beside the other keys of an entry this much fits into its 1 MiB, in base64.
LARGEST_IN_BASE64 = random.Random(2).randbytes(750_000)

PAYLOADS = {
    "all values": bytes(range(256)),
    "empty": b"",
    "one megabyte": random.Random(1).randbytes(2**20),
    "invalid UTF-8": b"\xff\xfe\x80 \xc3\x28 \xed\xa0\x80 \xf5\x80\x80\x80",
    "zeros": b"\x00" * 100,
    "what looks like JSON": b'{"klass": "good.noop"} ',
    "newlines": b"a\r\nb\n\x1e7\nc\r\n\r\n",
}


def digest_of(raw):
    return {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest(), "kind": "bytes"}


def finish(stage, *pools):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left()


@pytest.mark.parametrize("raw", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_bytes_survive_retry_fail_unfail_and_next(stage, raw):
    jid = stage.queue.put("k", raw)
    (lease,) = stage.queue.lease("w")
    assert (lease.jid, lease.raw, lease.data, lease.is_bytes) == (jid, raw, raw, True)
    assert lease.retry(0) >= 0
    (lease,) = stage.queue.lease("w")
    assert (lease.raw, lease.is_bytes) == (raw, True)
    assert lease.fail("g", "m")
    job = stage.client.job(jid)
    assert (job.raw, job.data, job.is_bytes) == (raw, raw, True)
    assert stage.client.unfail("g") == 1
    (lease,) = stage.queue.lease("w")
    assert (lease.raw, lease.is_bytes) == (raw, True)
    assert lease.complete(next="on")
    (lease,) = stage.client.queue("on").lease("w")
    assert (lease.raw, lease.is_bytes) == (raw, True)
    assert lease.complete(data=raw)
    assert stage.client.job(jid).raw == raw


def test_bytes_survive_a_handlers_failure_and_unfail(stage):
    pool = stage.start(processes=1, on_error="fail").wait_ready()
    jids = {stage.queue.put("bytes.raise_at_first", raw): raw for raw in PAYLOADS.values()}
    stage.wait_until_ended(jids)
    for jid, raw in jids.items():
        job = stage.client.job(jid)
        assert (job.state, job.raw, job.data) == ("failed", raw, raw)
    assert stage.client.unfail("RuntimeError") == len(jids)
    for jid, raw in jids.items():
        pool.wait_for("job.completed", jid=jid)
        job = stage.client.job(jid)
        assert (job.result, job.raw) == (digest_of(raw), raw)
    finish(stage, pool)


def test_bytes_survive_a_raise_a_death_and_a_drain(stage):
    count = len(PAYLOADS)
    first = stage.start(processes=count, drain_timeout="0s").wait_ready()
    gate = stage.gate("gate")
    jids = {stage.queue.put("bytes.raise_die_wait", raw, tags=[gate]): raw for raw in PAYLOADS.values()}
    for jid in jids:
        stage.wait_for_starts(jid, 3)
    assert first.drain() == 0
    stage.open_gate(gate)
    second = stage.start(processes=1).wait_ready()
    for jid, raw in jids.items():
        second.wait_for("job.completed", jid=jid)
        job = stage.client.job(jid)
        assert (job.failures, job.deaths, job.interruptions) == (1, 1, 1)
        assert job.result == digest_of(raw)
    finish(stage, second)


def test_bytes_pushed_in_base64_reach_a_handler(stage):
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    payloads = {**PAYLOADS, "one megabyte": LARGEST_IN_BASE64}
    for number, raw in enumerate(payloads.values()):
        entry = {"klass": "bytes.raise_die_wait", "data_b64": base64.b64encode(raw).decode(), "jid": f"pushed-{number}"}
        stage.server.redis.lpush(f"{stage.prefix}in:default", json.dumps(entry))
    for number, raw in enumerate(payloads.values()):
        pool.wait_for("job.completed", jid=f"pushed-{number}")
        job = stage.client.job(f"pushed-{number}")
        assert (job.failures, job.deaths) == (1, 1)
        assert (job.result, job.raw, job.is_bytes) == (digest_of(raw), raw, True)
    finish(stage, pool)


def test_bare_pushed_bytes_reach_a_handler(stage):
    stage.config(klass="bytes.raise_die_wait")
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    bare = [raw for name, raw in PAYLOADS.items() if name != "what looks like JSON"]
    for raw in bare:
        stage.server.redis.lpush(f"{stage.prefix}in:default", raw)
    pool.wait_for("job.completed", nth=len(bare))
    jobs = [stage.client.job(event["jid"]) for event in pool.find("job.completed")]
    assert sorted(job.raw for job in jobs) == sorted(bare)
    assert all(job.result == digest_of(job.raw) for job in jobs)
    finish(stage, pool)


def test_bytes_put_by_a_handler_reach_the_next(stage):
    pool = stage.start(processes=1, queue=["default", "other"]).wait_ready()
    jids = {stage.queue.put("bytes.hand_on", raw): raw for raw in PAYLOADS.values()}
    for jid, raw in jids.items():
        pool.wait_for("job.completed", jid=jid, nth=2)
        assert stage.client.job(jid).result == digest_of(raw[::-1])
    pool.wait_for("job.completed", klass="good.digest", nth=len(jids))
    put = [stage.client.job(event["jid"]).result for event in pool.find("job.completed", klass="good.digest")]
    assert sorted(put, key=str) == sorted((digest_of(raw) for raw in jids.values()), key=str)
    finish(stage, pool)
