"""put, add and put_many: jobs and their places."""

import base64
from uuid import RFC_4122, UUID

import pytest

from supervisor.engine.model.new_jobs import new_jid
from supervisor.engine.model.outcomes import Completed


def test_a_put_job_waits_with_its_options(client):
    jid = client.queue("q").put("email.send", {"to": ["a"]}, priority=-3, retries=2, timeout=1.5, max_deaths=0)
    job = client.job(jid)
    assert (job.state, job.queue, job.klass, job.data) == ("waiting", "q", "email.send", {"to": ["a"]})
    assert (job.priority, job.retries, job.timeout_s, job.max_deaths) == (-3, 2, 1.5, 0)
    assert (job.put_unix, job.worker, job.expires_unix, job.failure, job.result) == (
        1_000_000.0,
        None,
        None,
        None,
        None,
    )


def test_a_jid_is_22_characters_unless_given(client):
    assert len(client.queue("q").put("k")) == 22
    assert client.queue("q").put("k", jid="invoice-7") == "invoice-7"


def test_missing_jid_becomes_a_uuid_that_is_no_command_flag():
    jids = [new_jid() for _ in range(2000)]
    assert len(set(jids)) == 2000
    assert not any(jid.startswith("-") for jid in jids)
    drawn = [UUID(bytes=base64.urlsafe_b64decode(f"{jid}==")) for jid in jids]
    assert {(each.version, each.variant) for each in drawn} == {(4, RFC_4122)}


def test_an_unknown_jid_is_no_job(client):
    assert client.job("nobody") is None
    assert client.jobs("nobody", "no-one") == [None, None]


def test_jobs_run_by_priority_then_put_order(client):
    q = client.queue("q")
    for name, priority in [("a", 0), ("b", 10_000), ("c", -1), ("d", 0), ("e", 10_000), ("f", -1)]:
        q.put("k", jid=name, priority=priority)
    assert [lease.jid for lease in q.lease("w", 10)] == list("cfadbe")


def test_a_delayed_job_is_scheduled_until_its_time(client, clock):
    q = client.queue("q")
    q.put("k", jid="later", delay=10)
    assert (client.job("later").state, client.job("later").due_unix) == ("scheduled", clock.now + 10)
    assert (q.lease("w"), q.counts().scheduled, q.length()) == ([], 1, 0)
    clock.tick(10)
    assert (client.job("later").state, q.length()) == ("waiting", 1)
    assert [lease.jid for lease in q.lease("w")] == ["later"]


def test_job_put_for_a_past_time_waits_at_once(client, clock):
    client.queue("q").put("k", jid="x", at=clock.now - 5)
    assert client.job("x").state == "waiting"


def test_job_put_for_a_later_time_is_scheduled(client, clock):
    client.queue("q").put("k", jid="x", at=clock.now + 5)
    assert client.job("x").due_unix == clock.now + 5


def test_due_jobs_follow_waiting_ones_of_equal_priority(client, clock):
    q = client.queue("q")
    q.put("k", jid="due", delay=1)
    q.put("k", jid="due-and-urgent", delay=1, priority=-1)
    q.put("k", jid="waits")
    q.put("k", jid="waits-with-less", priority=1)
    clock.tick(2)
    assert [lease.jid for lease in q.lease("w", 10)] == ["due-and-urgent", "waits", "due", "waits-with-less"]


def test_due_jobs_without_room_keep_their_order(client, clock):
    q = client.queue("q")
    for i in range(5):
        q.put("k", jid=f"due-{i}", delay=1 + i / 10)
    clock.tick(5)
    assert [lease.jid for lease in q.lease("w")] == ["due-0"]
    q.put("k", jid="new")
    assert [lease.jid for lease in q.lease("w", 10)] == ["due-1", "due-2", "due-3", "due-4", "new"]


def in_waiting(client, q):
    return q.put("k", {"old": 1}, jid="x", priority=4, retries=9, timeout=7, max_deaths=8)


def in_scheduled(client, q):
    q.put("k", {"old": 1}, jid="x", priority=4, retries=9, timeout=7, max_deaths=8, delay=100)


def in_running(client, q):
    in_waiting(client, q)
    return q.lease("w")[0]


def in_front(client, q):
    in_running(client, q).release()


def in_failed(client, q):
    in_running(client, q).fail("group", "message")


def in_complete(client, q):
    in_running(client, q).complete({"r": 1})


@pytest.mark.parametrize("arrive", [in_waiting, in_scheduled, in_running, in_front, in_failed, in_complete])
@pytest.mark.parametrize("delay", [0, 5])
def test_put_of_a_known_jid_moves_it_and_keeps_its_options(client, keys, arrive, delay):
    lease = arrive(client, client.queue("old"))
    client.queue("new").put("other", b"new", jid="x", priority=1, delay=delay)
    job = client.job("x")
    assert (job.state, job.queue, job.klass, job.data) == ("scheduled" if delay else "waiting", "new", "other", b"new")
    assert (job.priority, job.retries, job.timeout_s, job.max_deaths) == (1, 9, 7.0, 8)
    assert (job.failures, job.deaths, job.interruptions, job.failure, job.result) == (0, 0, 0, None, None)
    if arrive is in_running:
        assert not lease.complete()
    assert client.failed() == {}
    assert not {"failed", "complete", "groups", "held:w", "queue:old:front", "queue:old:waiting"} & keys()


def test_put_of_a_known_jid_resets_its_counts(client, clock):
    q = client.queue("q")
    q.put("k", jid="x")
    q.lease("w")[0].retry()
    q.lease("w")[0].release()
    q.lease("w")[0].died("SIGKILL")
    job = client.job("x")
    assert (job.failures, job.deaths, job.interruptions) == (1, 1, 1)
    q.put("k", jid="y")
    q.put("k", jid="x")
    job = client.job("x")
    assert (job.failures, job.deaths, job.interruptions) == (0, 0, 0)
    assert [lease.jid for lease in q.lease("w", 2)] == ["y", "x"]


def test_priority_zero_given_again_takes_effect(client):
    q = client.queue("q")
    q.put("k", jid="x", priority=5)
    q.put("k", jid="x", priority=0)
    assert client.job("x").priority == 0


def test_add_leaves_a_known_job_alone(client, server, namespace):
    q = client.queue("q")
    assert q.add("k", 1, jid="x") is True
    before = server.dump(namespace)
    assert q.add("other", 2, jid="x", delay=5) is False
    assert server.dump(namespace) == before


def test_put_many_keeps_the_order_and_returns_the_jids(client):
    q = client.queue("q")
    jids = q.put_many({"klass": "k", "data": i, "priority": 0} for i in range(2_500))
    assert len(set(jids)) == 2_500
    leased = [lease for _ in range(3) for lease in q.lease("w", 1_000)]
    assert [lease.data for lease in leased] == list(range(2_500))
    assert [lease.jid for lease in leased] == jids


def test_put_many_with_one_bad_job_puts_none(client, server, namespace):
    with pytest.raises(ValueError, match="delay"):
        client.queue("q").put_many([*({"klass": "k"} for _ in range(1_500)), {"klass": "k", "delay": -1}])
    assert server.dump(namespace) == {}


def test_last_put_of_a_jid_in_a_batch_counts(client):
    q = client.queue("q")
    jobs = [{"klass": "a", "data": 1, "jid": "x", "delay": 9}, {"klass": "b", "data": 2, "jid": "x", "priority": 3}]
    assert q.put_many(jobs) == ["x", "x"]
    job = client.job("x")
    assert (job.klass, job.data, job.state, job.priority) == ("b", 2, "waiting", 3)


@pytest.mark.parametrize("data", [b"", bytes(range(256)), b"\xff\xfe\x00", b"{}", b"\x00" * 1_000_000, b"null"])
def test_bytes_come_back_unchanged(client, data):
    q = client.queue("q")
    jid = q.put("k", data)
    assert (client.job(jid).raw, client.job(jid).data) == (data, data)
    lease = q.lease("w")[0]
    assert (lease.raw, lease.data, lease.is_bytes) == (data, data, True)
    lease.renew(data)
    lease.retry()
    lease = q.lease("w")[0]
    assert lease.data == data
    lease.fail("g", "m")
    assert client.failed("g")[1][0].data == data


@pytest.mark.parametrize("data", [None, 0, "", [], {}, {"a": [1.5, "é", None, True]}, 2**63, "\x00"])
def test_json_comes_back_equal(client, data):
    q = client.queue("q")
    assert client.job(q.put("k", data)).data == data
    assert q.lease("w")[0].data == data


def test_a_put_changes_bytes_to_json_and_back(client):
    q = client.queue("q")
    q.put("k", b"x", jid="x")
    q.put("k", "x", jid="x")
    assert client.job("x").data == "x"
    q.put("k", b"y", jid="x")
    assert client.job("x").data == b"y"


def test_queues_are_known_in_the_order_of_their_first_put(client, clock):
    for name in ("z", "a", "z"):
        client.queue(name).put("k")
        clock.tick(1)
    assert list(client.queues()) == ["z", "a"]


def test_counts_tell_each_state_apart(client, clock):
    q = client.queue("q")
    for i in range(6):
        q.put("k", jid=str(i))
    q.put("k", delay=500)
    leases = q.lease("w", 2) + q.lease("v", 2, ttl=60)
    leases[0].release()
    client.settle([Completed(leases[1])])
    clock.tick(40)
    q.lease("u", 1)
    counts = q.counts()
    assert (counts.waiting, counts.running, counts.stalled, counts.scheduled) == (2, 3, 0, 1)
    clock.tick(20)
    counts = q.counts()
    assert (counts.waiting, counts.running, counts.stalled, counts.scheduled) == (2, 1, 2, 1)
    assert (q.length(), len(q)) == (4, 4)
