"""Times in every notation of the API, and values that JSON lacks."""

import asyncio
import re
import time
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import orjson
import pytest

from supervisor.child.context import JobCalls, JobContext
from supervisor.child.handlers import handler
from supervisor.child.orders import Retry
from supervisor.engine.client.async_client import AsyncClient
from supervisor.messages import JobMessage

SAME = [90, 90.0, "90", "90s", "1.5m", "90000ms", timedelta(minutes=1.5)]
EACH = pytest.mark.parametrize("given", SAME, ids=repr)


@EACH
def test_put_takes_each_form_of_a_duration(client, clock, given):
    q = client.queue("q")
    jid = q.put("k", delay=given, timeout=given, expires=given)
    job = client.job(jid)
    assert (job.due_unix, job.timeout_s, job.start_by_unix) == (clock.now + 90, 90, clock.now + 90)
    assert q.add("k", jid="b", delay=given)
    (many,) = q.put_many([{"klass": "k", "delay": given}])
    lane = q.lane("l").put("k", delay=given)
    assert [client.job(jid).due_unix for jid in ("b", many, lane)] == [clock.now + 90] * 3


@EACH
def test_recur_takes_each_form_of_a_duration(client, clock, given):
    jid = client.queue("q").recur("k", every=given, offset=given, timeout=given, expires=given)
    found = client.recurring(jid)
    assert (found.every_s, found.next_unix, found.timeout_s, found.expires_s) == (90, clock.now + 90, 90, 90)
    found.update(every="2h")
    assert client.recurring(jid).every_s == 7200


@EACH
def test_settling_takes_each_form_of_a_duration(client, clock, given):
    q = client.queue("q")
    for jid in "abc":
        q.put("k", jid=jid)
    retried, advanced, followed = q.lease("w", 3)
    retried.retry(delay=given)
    advanced.complete(next="q", delay=given)
    followed.complete(then=[{"queue": "q", "klass": "k", "jid": "d", "delay": given}])
    assert [client.job(jid).due_unix for jid in "abd"] == [clock.now + 90] * 3
    client.job("a").move("q2", delay=given)
    assert client.job("a").due_unix == clock.now + 90


@EACH
def test_the_async_client_takes_each_form_of_a_duration(server, namespace, clock, given):
    async def put():
        async with AsyncClient(server.url, namespace, clock) as client:
            q = client.queue("q")
            await q.put("k", jid="a")
            (lease,) = await q.lease("w")
            await lease.retry(delay=given)
            jid = await q.put("k", delay=given)
            return [(await client.job(jid)).due_unix for jid in ("a", jid)]

    assert asyncio.run(put()) == [clock.now + 90] * 2


@pytest.mark.parametrize(
    "at", [2_000_000.5, datetime.fromtimestamp(2_000_000.5, UTC),
           datetime.fromtimestamp(2_000_000.5, timezone(timedelta(hours=5.5)))], ids=repr,
)  # fmt: skip
def test_at_takes_unix_seconds_or_a_datetime_with_a_zone(client, at):
    assert client.job(client.queue("q").put("k", at=at)).due_unix == 2_000_000.5


BAD = [
    ({"at": datetime(2031, 7, 1)}, ValueError, "at must be unix seconds or a datetime with a time zone"),
    ({"at": datetime(2031, 7, 1)}, ValueError, "datetime.datetime(2031, 7, 1, 0, 0)"),
    ({"at": date(2031, 7, 1)}, TypeError, "at must be a number of seconds, not date"),
    ({"at": "2031-07-01"}, TypeError, "at must be a number of seconds, not str"),
    ({"delay": "soon"}, ValueError, "delay must be seconds, a duration or a timedelta: 'soon' is not a duration"),
    ({"delay": "1w"}, ValueError, "write it like 30, 30s, 500ms, 5m, 2h or 7d"),
    ({"delay": "-5s"}, ValueError, "'-5s' is not a duration"),
    ({"delay": timedelta(seconds=-1)}, ValueError, "delay must be 0 or more: -1.0"),
    ({"delay": True}, TypeError, "delay must be a number of seconds, not bool"),
    ({"timeout": "9999999h"}, ValueError, "longer than ten years"),
    ({"expires": "0s"}, ValueError, "expires must be 0.001 or more"),
    ({"expires": [1]}, TypeError, "expires must be a number of seconds, not list"),
]


@pytest.mark.parametrize(("options", "error", "why"), BAD, ids=repr)
def test_invalid_time_is_named_and_changes_nothing(client, keys, options, error, why):
    with pytest.raises(error, match=re.escape(why)):
        client.queue("q").put("k", **options)
    assert not keys()


# in handlers


@EACH
def test_handlers_take_each_form_of_a_duration(given):
    assert Retry(delay=given).delay == 90
    settings = []

    def note(function):
        from supervisor.child import handlers

        settings.append(handlers._registered.pop())
        return function

    note(handler(timeout=given, backoff=[given, "2m"])(lambda job: None))
    (registered,) = settings
    assert (registered.settings.timeout_s, registered.backoff) == (90, (90, 120))


@pytest.mark.parametrize("given", ["soon", "-1s", -1, timedelta(days=-1), timedelta(days=99999), [1]], ids=repr)
def test_a_retry_names_a_delay_that_is_none(given):
    with pytest.raises(ValueError, match=r"Retry.*delay"):
        Retry(delay=given)


@pytest.fixture
def job():
    message = JobMessage(1, "jid", "k", "q", 0, 0, 0, 0, [], None, False, 0.0, False, b"null")
    return JobContext(message, "/", JobCalls())


@EACH
def test_follow_ups_are_sent_with_plain_seconds(job, given):
    at = datetime.fromtimestamp(2_000_000, UTC)
    job.put("q", "k", delay=given, timeout=given, expires=given)
    job.put("q", "k", at=at)
    job.next("q", delay=given)
    first, second = (follower.options for follower in job._then)
    assert [first[name] for name in ("delay", "timeout", "expires")] == [90] * 3
    assert second["at"] == 2_000_000
    assert job._next.delay_s == 90


def test_follow_up_at_a_time_without_a_zone_is_refused(job):
    with pytest.raises(ValueError, match="at must be unix seconds or a datetime with a time zone"):
        job.put("q", "k", at=datetime(2031, 7, 1))


# data


class Thing:
    pass


STRANGE = [
    (datetime(2031, 7, 1), "data is a datetime.datetime; give .isoformat()"),
    ({"when": [datetime(2031, 7, 1)]}, "data['when'][0] is a datetime.datetime; give .isoformat()"),
    ({"a": {"b": (1, Decimal("1.10"))}}, "data['a']['b'][1] is a decimal.Decimal; give str(…)"),
    ([1, {2}], "data[1] is a set; give a list"),
    ({"raw": b"x"}, "data['raw'] is a bytes; give text, such as base64; only data as a whole may be bytes"),
    ({"n": 2**64}, "data['n'] is an int of more than 64 bits"),
    ({"a": {7: 1}}, "data['a'] has the key 7, and keys must be str"),
    ([Thing()], "data[0] is a test_times.Thing; make a str, a number, a list or a dict of it"),
    ("\ud800", "surrogates"),
]


@pytest.mark.parametrize(("data", "why"), STRANGE, ids=lambda value: repr(value)[:40])
def test_data_without_json_form_is_named_with_its_place_and_cure(client, keys, data, why):
    with pytest.raises(TypeError, match="data must be JSON or bytes: ") as raised:
        client.queue("q").put("k", data)
    assert why in re.sub(r"tests\.engine\.|\w+\.(?=test_times)", "", str(raised.value))
    assert not keys()


def test_endless_data_is_refused(client):
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="data must be JSON or bytes: Recursion limit reached"):
        client.queue("q").put("k", endless)


def test_a_uuid_and_a_large_payload_are_put(client):
    key = UUID(int=7)
    jid = client.queue("q").put("k", {"id": key, "more": list(range(200_000))})
    assert orjson.loads(client.job(jid).raw)["id"] == str(key)


def test_results_and_checkpoints_name_what_json_has_not(client):
    client.queue("q").put("k")
    (lease,) = client.queue("q").lease("w")
    with pytest.raises(TypeError, match=r"state must be JSON: state\['at'\] is a datetime.datetime"):
        lease.checkpoint({"at": datetime(2031, 7, 1)})
    with pytest.raises(TypeError, match=r"result\['at'\] is a datetime.datetime"):
        lease.complete({"at": datetime(2031, 7, 1)})


def test_clients_take_a_duration_for_each_wait(live):
    assert live.lease("w", ["q"], ttl="10s", block="10ms") == []
    jid = live.queue("q").put("k")
    (lease,) = live.queue("q").lease("w", ttl=timedelta(minutes=1), block=timedelta(0))
    assert 50 < lease.expires_unix - time.time() <= 61
    with pytest.raises(TimeoutError, match=r"has not ended within 0.01 s"):
        live.wait(jid, "10ms")
    with pytest.raises(ValueError, match="block must be seconds, a duration or a timedelta: 'soon'"):
        live.lease("w", ["q"], block="soon")
    with live.events() as events:
        assert events.get("10ms") is None
