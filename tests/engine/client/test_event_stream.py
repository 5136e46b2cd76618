"""The stream of events: what happens is said once, in its order, to those who want it, until they want no more."""

import asyncio
import threading
import time

import pytest

from supervisor.engine.client import event_stream, job_stream
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.event_stream import STREAM_EVENTS, Event, EventFilter, _Silence
from supervisor.engine.client.pools import uncounted_connection
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import leasing, settings
from supervisor.engine.commands.leasing import Renewal
from supervisor.engine.model.errors import StoreUnavailable
from supervisor.engine.model.outcomes import Completed, Died, Failed, Released, Retried, Returned
from tests.lengths import SOON_S


def drain(stream) -> list[Event]:
    """Return the events until now: a last event of our own marks the end."""
    found = []
    while (event := stream.get(5)) is not None and event.fields.get("option") != "unknown-for":
        found.append(event)
    return found


def said(client, stream) -> list[Event]:
    client.config.set("unknown-for", 1)
    client.config.unset("unknown-for")
    events = drain(stream)
    drain(stream)
    return events


def names(events) -> list[str]:
    return [event.name for event in events]


def test_a_jobs_life_is_told_in_its_order(client, clock):
    q = client.queue("q")
    with client.events() as stream:
        q.put("k", jid="a")
        client.settle([Retried(q.lease("w")[0])])
        client.settle([Released(q.lease("w")[0])])
        client.settle([Died(q.lease("w")[0], "oom")])
        q.lease("w")[0].complete(next="next")
        client.queue("next").lease("w")[0].complete()
        events = said(client, stream)
    assert names(events) == [
        "job.put", "lease.granted", "job.retried", "lease.granted", "job.released", "lease.granted", "job.died",
        "lease.granted", "job.advanced", "lease.granted", "job.completed",
    ]  # fmt: skip
    assert {(event.jid, event.klass, event.when_unix) for event in events} == {("a", "k", clock.now)}
    assert [event.worker for event in events] == [None] + ["w"] * 10
    assert (events[0].queue, events[8].fields["to"], events[-1].queue) == ("q", "next", "next")
    assert events[6].fields["reason"] == "oom"


@pytest.mark.parametrize("started", [True, False])
def test_a_release_says_what_interrupted_the_job_if_its_worker_does(client, started):
    q = client.queue("q")
    q.put("k")
    with client.events() as stream:
        client.settle([Released(q.lease("w")[0], started=started, reason="drain")])
        client.settle([Released(q.lease("w")[0], started=started)])
        fields = [event.fields for event in said(client, stream) if event.name == "job.released"]
    assert fields == [{"reason": "drain"}, {}]


def test_an_event_has_the_fields_that_the_table_lists(client, clock):
    q = client.queue("q")
    with client.events() as stream:
        q.put_many({"klass": "k", "jid": jid} for jid in "abcdefg")
        leases = q.lease("w", 5)
        client.settle([
            Completed(leases[0]), Failed(leases[1], "g", "m"), Retried(leases[2]), Released(leases[3], reason="drain"),
            Died(leases[4], "oom"),
        ])  # fmt: skip
        client.cancel("f", by="kim")
        client.track("g")
        client.untrack("g")
        q.pause(by="kim")
        q.unpause()
        client.queue("e").put("k", jid="e")
        client.queue("e").delete(by="kim")
        client.config.set("grace", 9)
        q.lane("l").pause(by="kim")
        q.lane("l").unpause()
        client.limit("k", running=1, by="kim")
        calls_of(client).call(leasing.resume, "w", 1, [])
        client.serve("w", ["q", "r"])
        client.queue("r").put("k", jid="h", persistent=True)
        (held,) = client.queue("r").lease("w")
        calls_of(client).call(leasing.renew, "w", [Renewal(held.jid, held.token, progress=(0.5, "half"))])
        client.settle([Returned(held)])
        client.cancel("h", by="kim")
        client.queue("s").put("k", jid="s")
        client.queue("s").lease("w")[0].suspend("approval")
        client.signal("s", "approval")
        client.cancel("s", by="kim")
        with client.batch() as batch:
            batch.pause(by="kim")
            batch.resume()
        q.lease("x", 1, ttl=1)
        clock.tick(2)
        q.lease("y", 1)
        clock.tick(100)
        q.lease("y", 5)
        client.deregister("y")
        events = said(client, stream)
    told = {event.name for event in events}
    assert told == set(STREAM_EVENTS) - {"job.advanced", "job.dropped"}
    for event in events:
        assert set(event.fields) | {"worker"} >= set(STREAM_EVENTS[event.name]), event
        assert set(event.fields) <= set(STREAM_EVENTS[event.name]), event


def test_a_failed_job_tells_its_message(client):
    q = client.queue("q")
    messages = ["", 'no \\ "room" \u00e9\u4e16\n\x01', "\\", "x" * 511 + "\U0001f600" + "y" * 10_000]
    with client.events() as stream:
        for message in messages:
            q.put("k", tags=['"message":"a tag"'])
            client.settle([Failed(q.lease("w")[0], '"message":"a group', message, {"t": '"message":"t"'})])
        told = [event.fields["message"] for event in said(client, stream) if event.name == "job.failed"]
    assert told == [*messages[:3], messages[3][:512]]


def test_a_job_that_expires_tells_its_message(client, clock):
    client.queue("q").put("k", jid="x", expires=5)
    client.track("x")
    with client.events(tracked=True) as stream:
        clock.tick(10)
        client.sweep()
        event = stream.get(5)
    assert (event.name, event.fields["message"]) == ("job.failed", "it was not started within 5 s of its put")


@pytest.mark.parametrize("end", ["delete", "forget"])
def test_the_end_of_a_queue_is_told_once(client, end):
    q = client.queue("q")
    q.put("k", jid="x")
    with client.events() as stream:
        client.cancel("x")
        getattr(q, end)()
        getattr(q, end)()
        events = said(client, stream)
    assert [(event.name, event.queue, event.jid) for event in events[1:]] == [("queue.deleted", "q", None)]


def test_each_put_of_a_batch_is_told(client):
    with client.events() as stream:
        client.queue("q").put_many({"klass": "k", "jid": str(i)} for i in range(1000))
        events = said(client, stream)
    assert [event.jid for event in events] == [str(i) for i in range(1000)]


def test_pause_of_a_batch_is_told(client):
    with client.batch("b"):
        pass
    with client.events() as stream:
        client.batch("b").pause(by="kim")
        client.batch("b").resume()
        events = said(client, stream)
    assert [(event.name, event.fields["batch"], event.fields.get("by")) for event in events] == [
        ("batch.paused", "b", "kim"), ("batch.resumed", "b", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"queue": "p"}, {"job.put", "job.tracked", "lease.granted", "lease.lost", "queue.paused"}),
        ({"jid": "b"}, {"job.put", "job.tracked", "lease.granted", "lease.lost"}),
        ({"worker": "w2"}, {"lease.granted", "lease.lost", "worker.deregistered"}),
        ({"queue": "q", "jid": "a", "worker": "w1"}, {"lease.granted"}),
        ({"tracked": True}, {"job.tracked", "lease.granted", "lease.lost"}),
        ({"queue": "q", "tracked": True}, set()),
    ],
)
def test_a_stream_lets_through_what_was_asked_for(client, wanted, told):
    p, q = client.queue("p"), client.queue("q")
    with client.events() as everything, client.events(**wanted) as stream:
        q.put("k", jid="a")
        p.put("k", jid="b")
        client.track("b")
        q.lease("w1")
        p.lease("w2")
        p.pause()
        client.deregister("w2")
        all_events = said(client, everything)
        expected = [event for event in all_events if all(getattr(event, key) == value for key, value in wanted.items())]
        assert [stream.get(5) for _ in expected] == expected
        assert stream.get(0) is None
    assert {event.name for event in expected} == told


def test_nothing_is_missed_once_the_stream_was_entered(live):
    for _ in range(50):
        with live.events() as stream:
            jid = live.queue("q").put("k")
            event = stream.get(5)
            assert event is not None
            assert (event.name, event.jid) == ("job.put", jid)


def test_a_time_out_is_no_event_and_what_comes_later_comes(live):
    with live.events() as stream:
        assert stream.get(0) is None
        assert stream.get(0.01) is None
        live.queue("q").put("k", jid="a")
        assert next(stream).jid == "a"


def test_stream_listens_at_its_first_get_if_not_entered(live):
    stream = live.events()
    live.queue("q").put("k", jid="missed")
    assert stream.get(0) is None
    live.queue("q").put("k", jid="heard")
    assert stream.get(5).jid == "heard"
    stream.close()


def test_a_closed_stream_ends_for_its_waiting_readers_too(live):
    stream = live.events()
    found, waiting = [], threading.Event()

    def listen() -> None:
        with stream:
            waiting.set()
            found.extend(stream)

    listener = threading.Thread(target=listen)
    listener.start()
    assert waiting.wait(10)
    stream.close()
    listener.join(20)
    assert (listener.is_alive(), found, stream.get(1), list(stream)) == (False, [], None, [])
    stream.close()


def test_a_closed_stream_leaves_no_connection(live, server):
    def listeners() -> int:
        return sum(1 for one in server.redis.client_list() if int(one["sub"]))

    before = listeners()
    with live.events():
        assert listeners() == before + 1
    while listeners() != before:
        pass


def test_lost_connection_raises_and_the_next_call_listens_again(live, server):
    with live.events() as stream:
        server.redis.client_kill_filter(_type="pubsub")
        with pytest.raises(StoreUnavailable, match=r"tells of no more events: .* before you go on is missed"):
            stream.get(5)
        assert stream.get(0) is None
        live.queue("q").put("k", jid="a")
        assert stream.get(5).jid == "a"


def test_without_a_server_a_stream_cannot_be_entered():
    client = Client("redis://127.0.0.1:1/0", "x")
    with pytest.raises(StoreUnavailable, match="cannot reach Redis"), client.events():
        pass


def test_a_silent_server_is_asked_and_its_answers_are_no_events(live, monkeypatch):
    with live.events() as stream:
        with monkeypatch.context() as impatient:
            impatient.setattr(_Silence, "must_ask", lambda silence: True)
            assert stream.get(0.05) is None
        live.queue("q").put("k", jid="a")
        assert stream.get(5).jid == "a"


def test_a_server_that_does_not_answer_is_lost(monkeypatch):
    monkeypatch.setattr(event_stream, "_SILENCE_S", 0.0)
    monkeypatch.setattr(event_stream, "_LAST_S", 0.0)
    silence = _Silence()
    assert silence.must_ask()
    assert not silence.must_ask()
    with pytest.raises(TimeoutError, match="silent for"):
        silence.must_ask()
    silence.heard()
    assert silence.must_ask()


@pytest.mark.parametrize("text", [b"", b"no json", b"[1]", b"5", b'{"event": "x"}', b"null", b"\xff"])
def test_foreign_messages_on_the_channel_are_skipped(live, server, namespace, text):
    with live.events() as stream:
        server.redis.publish(f"{{{namespace}}}:events", text)
        live.queue("q").put("k", jid="a")
        assert stream.get(5).jid == "a"


def test_other_namespaces_are_not_heard(live, server, namespace):
    theirs = server.seen(f"{namespace}-2")
    with live.events() as stream, Client(server.url, theirs) as other:
        other.queue("q").put("k", jid="theirs")
        live.queue("q").put("k", jid="ours")
        assert stream.get(5).jid == "ours"
        other.cancel("theirs")
    server.redis.delete(*server.redis.keys(f"{{{theirs}}}:*"))


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        ({"queue": ""}, ValueError, "queue must have 1 to 64 bytes"),
        ({"jid": 5}, TypeError, "jid must be a str"),
        ({"worker": "a\nb"}, ValueError, "worker must not contain control"),
        ({"tracked": 1}, TypeError, "tracked must be a bool, not int"),
    ],
)
def test_impossible_filters_are_refused_before_sending(wanted, error, message):
    with pytest.raises(error, match=message):
        Client("redis://127.0.0.1:1/0", "x").events(**wanted)


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), ("soon", ValueError), (float("nan"), ValueError)])
def test_a_bad_time_out_is_refused(live, timeout, error):
    with live.events() as stream, pytest.raises(error, match="timeout must be"):
        stream.get(timeout)


def test_events_without_listeners_are_not_published(client, server, namespace):
    before = server.redis.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"]
    q = client.queue("q")
    q.put("k")
    q.lease("w")[0].complete()
    q.pause()
    assert server.redis.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"] == before


def test_the_events_of_a_tracked_job_have_a_channel_of_their_own(client):
    q = client.queue("q")
    q.put("k", jid="a")
    q.put("k", jid="b")
    client.track("b")
    with client.events(tracked=True) as stream:
        q.lease("w")[0].complete()
        q.lease("w")[0].complete()
        events = [stream.get(5), stream.get(5)]
    assert [(event.name, event.jid, event.tracked) for event in events] == [
        ("lease.granted", "b", True), ("job.completed", "b", True),
    ]  # fmt: skip


def test_the_async_stream_does_the_same(live, server, namespace):
    async def listen() -> list[str | None]:
        async with AsyncClient(server.url, namespace) as client:
            async with client.events(queue="q") as stream:
                assert await stream.get(0) is None
                await client.queue("p").put("k")
                await client.queue("q").put("k", jid="a")
                found = [(await stream.get(5)).jid]
                waiting = asyncio.create_task(stream.get())
                await asyncio.sleep(0)
                waiting.cancel()  # loses nothing
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await client.queue("q").put("k", jid="b")
                async for event in stream:
                    found.append(event.jid)
                    await stream.close()
                server.redis.ping()
            async with client.events() as stream:
                server.redis.client_kill_filter(_type="pubsub")
                with pytest.raises(StoreUnavailable, match="tells of no more events"):
                    await stream.get(5)
                assert await stream.get(0) is None
                await client.queue("q").put("k", jid="c")
                found.append((await stream.get(5)).jid)
            return found

    assert asyncio.run(listen()) == ["a", "b", "c"]


def test_answer_that_lies_unread_while_the_loop_is_held_up_is_no_silence(live, server, namespace, monkeypatch):
    monkeypatch.setattr(event_stream, "_SILENCE_S", 0.0)

    async def listen() -> None:
        async with AsyncClient(server.url, namespace) as client, client.events() as stream:
            assert await stream.get(0) is None  # the PING is sent
            for _ in range(3):
                asyncio.get_running_loop().call_soon(time.sleep, 0.05)  # the wait ends as the answer is read
                assert await stream.get(0) is None
            live.queue("q").put("k", jid="a")
            assert (await stream.get(SOON_S)).jid == "a"

    asyncio.run(listen())


@pytest.mark.parametrize("kind", ["events", "stream"])
def test_async_stream_closed_during_its_connection_ends(live, server, namespace, monkeypatch, kind):
    live.queue("q").put("k", jid="a")
    monkeypatch.setattr(job_stream, "_SILENCE_S", 600.0)  # else its read ends before the test gives up

    async def listen() -> None:
        async with AsyncClient(server.url, namespace) as client:
            stream = client.events() if kind == "events" else client.stream("a")

            def connection_of(pool):
                connection = uncounted_connection(pool)
                connect = connection.connect

                async def close_and_connect():
                    await stream.close()
                    await connect()

                connection.connect = close_and_connect
                return connection

            monkeypatch.setattr(event_stream, "uncounted_connection", connection_of)
            monkeypatch.setattr(job_stream, "uncounted_connection", connection_of)
            async with asyncio.timeout(SOON_S):
                assert [each async for each in stream] == []
            assert stream._connection is None

    asyncio.run(listen())


def test_without_a_server_an_async_stream_cannot_be_entered():
    async def listen() -> None:
        async with AsyncClient("redis://127.0.0.1:1/0", "x") as client, client.events():
            pass

    with pytest.raises(StoreUnavailable, match="cannot reach Redis"):
        asyncio.run(listen())


def test_an_event_of_no_job_has_none(client):
    with client.events() as stream:
        client.config.set("grace", 9)
        assert stream.get(5) == Event(
            "config.changed", calls_of(client).clock(), fields={"option": "grace", "value": "9"}
        )
        client._store.run(settings.configure("grace", None, None, now=calls_of(client).clock()))
        assert stream.get(5) == Event("config.changed", calls_of(client).clock(), fields={"option": "grace"})


def test_an_answer_that_is_no_message_is_no_event(client):
    wanted = EventFilter(None, None, None, False)
    assert wanted.event_of([b"pong", b""]) is None
    assert wanted.event_of(None) is None


def test_account_without_channels_does_its_work_all_the_same(client, server, namespace):
    rules = {"categories": ["+@all"], "keys": ["*"], "reset_channels": True}
    server.redis.acl_setuser(f"mute-{namespace}", enabled=True, passwords=["+pw"], **rules)
    try:
        url = server.url_with(f"mute-{namespace}", "pw")
        with client.events() as stream, Client(url, namespace) as mute:
            assert mute.queue("q").put("k", jid="a") == "a"
            (lease,) = mute.queue("q").lease("w")
            assert lease.complete() is True
            assert names(said(client, stream)) == []
        assert client.job("a").state == "complete"
    finally:
        server.redis.acl_deluser(f"mute-{namespace}")
