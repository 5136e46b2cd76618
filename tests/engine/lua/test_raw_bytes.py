"""Payload bytes stay unchanged on every path."""

import base64
import json

import pytest

from supervisor.engine.model.outcomes import Died, Failed, Released, Retried, Returned

PAYLOADS = {
    "all values": bytes(range(256)),
    "nothing": b"",
    "a zero": b"\x00",
    "no UTF-8": b"\xff\xfe\xc3\x28\xed\xa0\x80",
    "looks like JSON": b'{"a": 1}',
    "looks like none": b"null",
    "a line": b"a\r\nb\n",
    "a megabyte": bytes(range(256)) * 4096,
}
#: This number of bytes fits into the 1 MiB of an entry, however JSON writes them.
FIT_INTO_AN_ENTRY = 128 * 1024


@pytest.fixture(params=PAYLOADS)
def payload(request):
    return PAYLOADS[request.param]


def leased(client, payload, queue="q"):
    """Return the next job, whose bytes are compared."""
    (lease,) = client.queue(queue).lease("w")
    assert lease.is_bytes is True
    assert lease.raw == lease.data == payload
    assert client.job(lease.jid).raw == client.job(lease.jid).data == payload
    return lease


def test_bytes_survive_every_kind_of_end(client, payload, clock):
    client.queue("q").put("k", payload, jid="j", retries=50)
    for way in (
        Retried, lambda it: Retried(it, delay=1), Released, lambda it: Released(it, started=False),
        lambda it: Died(it, "oom"), lambda it: Failed(it, "g", "m"),
    ):  # fmt: skip
        client.settle([way(leased(client, payload))])
        client.unfail("g")
        clock.tick(1)
    leased(client, payload).complete(next="r")
    client.job("j").move("q")
    leased(client, payload)
    clock.tick(36)
    leased(client, payload).complete()
    assert client.job("j").data == payload


@pytest.mark.parametrize("how", ["bare", "in base64", "as text"])
def test_bytes_of_another_program_arrive_whole(client, payload, server, namespace, how):
    entries = f"{{{namespace}}}:in:q"
    if how != "bare":
        payload = payload[:FIT_INTO_AN_ENTRY]
    if how == "bare":
        client.config.set("klass-q", "k")
        server.redis.lpush(entries, payload)
    elif how == "in base64":
        server.redis.lpush(entries, json.dumps({"klass": "k", "data_b64": base64.b64encode(payload).decode()}))
    else:
        text = payload.decode("latin-1")
        server.redis.lpush(entries, json.dumps({"klass": "k", "data": text}))
        (lease,) = client.queue("q").lease("w")
        assert lease.data == text
        return
    lease = leased(client, payload)
    lease.retry()
    leased(client, payload).fail("g", "m")
    assert client.unfail("g") == 1
    leased(client, payload).release()
    leased(client, payload).complete()


def test_bytes_may_be_new_data_of_a_job(client, payload):
    client.queue("q").put("k", {"n": 1}, jid="j")
    (lease,) = client.queue("q").lease("w")
    lease.renew(data=payload)
    lease.release()
    leased(client, payload).complete(next="q", data={"n": 2})
    client.queue("q").lease("w")[0].fail("g", "m", data=payload)
    assert client.job("j").data == payload
    client.unfail("g", data={"n": 3})
    client.queue("q").lease("w")[0].fail("g", "m")
    client.unfail("g", data=payload)
    leased(client, payload).complete(next="r", data=payload)
    leased(client, payload, "r")


def test_bytes_stay_the_same_in_follow_ups_and_recurrences(client, payload):
    client.queue("q").put("k", jid="first")
    client.queue("q").lease("w")[0].complete(then=[{"queue": "q", "klass": "k", "data": payload}])
    leased(client, payload).complete()
    client.queue("q").recur("k", payload, every=60, offset=0)
    assert client.queue("q").lease("w")[0].raw == payload


def test_bytes_of_a_persistent_job_stay_the_same(client, payload, clock):
    client.queue("q").put("k", payload, persistent=True)
    for _ in range(2):
        lease = leased(client, payload)
        clock.tick(10)
        client.settle([Returned(lease)])


def test_parked_and_in_a_lane(client, payload):
    client.limit("shut", running=0)
    client.queue("q").put("k", payload, lane="a", limit="shut")
    assert client.queue("q").lease("w") == []
    client.limit("shut", running=1)
    leased(client, payload)


def test_bytes_are_told_from_their_text(client):
    client.queue("q").put("k", b"1", jid="bytes")
    client.queue("q").put("k", 1, jid="json")
    assert [lease.data for lease in client.queue("q").lease("w", 2)] == [b"1", 1]
    assert client.queue("q").cancel(b"1") == ["bytes"]
    assert client.queue("q").cancel(1) == ["json"]
