"""A client in a namespace of several shards: every call answers as in one."""

import asyncio
import json
import threading

import pytest
import redis

from supervisor import AsyncClient, Client
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import bulk, choices, dividing
from supervisor.engine.commands.choices import Choice
from supervisor.engine.model.errors import DependencyError, LayoutError, LeaseholdError
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.outcomes import Completed, Failed
from supervisor.engine.model.shards import key_of, shard_of
from tests.engine.conftest import Clock
from tests.engine.invariants import misplaced, read_namespace

N = 4
JIDS = [f"job-{number}" for number in range(12)]


def divide(server, namespace):
    command = dividing.divide(N)
    server.redis.execute_command(*command.wire_with_script(Namespace(namespace).prefix))


def names_of_shards(namespace):
    return [Namespace(namespace, shard, N).prefix[1:-2] for shard in range(N)]


@pytest.fixture
def client(server, namespace, clock: Clock):
    """A client in a divided namespace. After the test each job must lie in the one place that its record names."""
    divide(server, namespace)
    with Client(server.url, namespace, clock) as client:
        yield client
    for name in names_of_shards(namespace):
        assert misplaced(read_namespace(server.redis, name)) == []


def put_all(client, queue="q", **options):
    assert client.queue(queue).put_many({"klass": "k", "data": jid, "jid": jid, **options} for jid in JIDS) == JIDS


def where(server, namespace, jid):
    """Return the shards that have a job."""
    return [shard for shard in range(N) if server.redis.exists(f"{Namespace(namespace, shard, N).prefix}job:{jid}")]


def test_jobs_lie_where_their_jids_say(client, server, namespace):
    put_all(client)
    assert {jid: where(server, namespace, jid) for jid in JIDS} == {jid: [shard_of(jid, N)] for jid in JIDS}
    assert len({shard_of(jid, N) for jid in JIDS}) == N


def test_single_puts_learn_of_the_shards(client, server, namespace):
    jid = client.queue("q").put("k", 1)
    assert where(server, namespace, jid) == [shard_of(jid, N)]
    assert client.queue("q").add("k", 1, jid=jid) is False
    assert client.job(jid).data == 1


def test_jobs_are_found_changed_and_cancelled(client):
    put_all(client, tags=["t"])
    assert [job.jid for job in client.jobs(*JIDS, "none") if job] == JIDS
    for jid in JIDS:
        job = client.job(jid)
        assert job.set_priority(3) == 3
        assert sorted(job.tag("u")) == ["t", "u"]
        assert client.track(jid)
        client.log(jid, "seen")
        job.move("r")
    assert client.tags() == {"t": 12, "u": 12}
    total, tagged = client.tagged("t", 2, 5)
    assert (total, len(tagged)) == (12, 5)
    assert {job.jid for job in client.tracked().jobs} == set(JIDS)
    assert sorted(client.cancel(*JIDS, by="me")) == sorted(JIDS)
    assert client.cancelled(JIDS[0]).by == "me"
    assert client.job(JIDS[0]) is None
    assert client.why(JIDS[0]).reason == "cancelled"


def test_counts_lists_and_queues_are_of_all_shards(client, clock):
    put_all(client)
    client.queue("q").put("k", jid="later", delay=60)
    q = client.queue("q")
    assert (q.counts().waiting, q.counts().scheduled, len(q)) == (12, 1, 12)
    assert client.queues()["q"].waiting == 12
    assert sorted(job.jid for job in q.jobs("waiting", 0, 100)) == sorted(JIDS)
    pages = [job.jid for offset in range(0, 12, 5) for job in q.jobs("waiting", offset, 5)]
    assert sorted(pages) == sorted(JIDS)
    assert len(q.peek(3)) == 3
    with pytest.raises(ValueError, match="offset and count must be at most 1000 together in a namespace of several"):
        q.jobs("waiting", 990, 11)


def test_leases_come_from_all_shards_and_end_where_they_are(client, clock):
    put_all(client)
    leases = client.queue("q").lease("w", 100)
    assert sorted(lease.jid for lease in leases) == sorted(JIDS)
    assert len({lease.token for lease in leases}) == 12
    assert sorted(client.worker("w").running) == sorted(JIDS)
    [worker] = client.workers()
    assert (worker.name, worker.running) == ("w", 12)
    clock.now += 1
    assert leases[0].renew() == clock.now + 30
    assert leases[1].checkpoint({"at": 1}) == clock.now + 30
    answers = client.settle([Completed(lease, lease.jid) for lease in leases[:6]])
    assert answers == [True] * 6
    assert client.settle([Completed(leases[0])]) == [False]
    assert client.settle([Failed(lease, "g", "m") for lease in leases[6:]]) == [True] * 6
    assert [client.job(lease.jid).result for lease in leases[:6]] == [lease.jid for lease in leases[:6]]
    assert client.failed() == {"g": 6}
    total, jobs = client.failed("g", 1, 3)
    assert (total, len(jobs)) == (6, 3)
    assert client.unfail("g", count=4) == 4
    assert client.failed() == {"g": 2}
    assert len(client.completed()) == 6
    stats = client.queue("q").stats()
    assert (stats.wait.count, stats.run.count, stats.failed) == (12, 6, 2)
    assert client.queue("q").recent().hour.wait.count == 12
    assert client.check() == []


def test_audit_counts_the_jobs_of_all_shards(client, clock):
    put_all(client)
    client.queue("q").lease("w", 100)
    clock.now += 100
    kim = client.acting_as("kim")
    assert kim.sweep(1000) == 12
    clock.now += 10
    kim.queue("q").pause()
    clock.now += 10
    assert kim.queue("q").delete().dropped == 12
    lane = kim.queue("q").lane("ada")
    for jid in JIDS:
        lane.put("k", jid=jid)
    clock.now += 10
    assert lane.delete().dropped == 12
    assert [(act.act, act.kind, act.number) for act in client.audit()] == [
        ("delete", "lane", 12),
        ("delete", "queue", 12),
        ("pause", "queue", 1),
        ("sweep", "queue", 12),
    ]


def test_one_worker_is_deregistered_everywhere(client):
    put_all(client)
    client.queue("q").lease("w", 100)
    assert client.deregister("w") == 12
    assert client.workers() == []
    assert client.queue("q").counts().waiting == 12


def test_lost_workers_are_swept_in_all_shards(client, clock):
    put_all(client)
    client.queue("q").lease("w", 100)
    clock.now += 100
    assert client.sweep(1000) == 12


@pytest.mark.parametrize("tie", [{"limit": "smtp"}, {"unique": "smtp"}, {"together": "smtp"}, {"limit": "{smtp}a"}])
def test_job_goes_to_the_shard_of_what_it_is_tied_to(client, server, namespace, tie):
    jid = client.queue("q").put("k", **tie)
    assert key_of(jid) == "smtp"
    assert where(server, namespace, jid) == [shard_of("smtp", N)]
    assert client.job(jid).jid == jid


def test_own_jid_of_another_shard_is_refused(client):
    for tie in ({"limit": "smtp"}, {"unique": "smtp"}, {"depends": ["job-1"]}, {"batch": "b"}):
        with pytest.raises(ValueError, match=r"its jid and .* may lie in different shards"):
            client.queue("q").put("k", jid="job-0", **tie)
    with pytest.raises(ValueError, match=r"jid must contain \{smtp\}, because together is 'smtp': 'job-0'"):
        client.queue("q").put("k", jid="job-0", together="smtp")
    assert client.queue("q").put("k", jid="a{smtp}", limit="smtp") == "a{smtp}"
    assert client.queues()["q"].waiting == 1


def test_unique_job_is_one_over_all_shards(client):
    first = client.queue("q").put("k", 1, unique=True)
    assert client.queue("q").put("k", 1, unique=True) == first
    assert client.queue("q").put("k", 2, unique=True) != first
    named = client.queue("q").put("k", unique="customer-7")
    assert client.queue("q").put("k", unique="customer-7") == named
    assert client.queue("q").add("k", unique="customer-7") is False


def test_limit_counts_in_one_shard(client):
    client.limit("smtp", running=2)
    for _ in range(5):
        client.queue("q").put("k", limit="smtp")
    assert len(client.queue("q").lease("w", 10)) == 2
    limit = client.limit("smtp")
    assert (limit.running, limit.in_use, limit.parked) == (2, 2, 3)
    assert client.limits() == {"smtp": limit}
    jobs = client.limit_jobs("smtp")
    assert (len(jobs.holders), len(jobs.parked)) == (2, 3)
    assert client.unlimit("smtp")
    assert len(client.queue("q").lease("w", 10)) == 3


def test_dependent_job_lies_beside_its_parent(client, server, namespace):
    parent = client.queue("q").put("k", jid="job-1")
    child = client.queue("q").put("k", depends=[parent])
    assert key_of(child) == "job-1"
    grandchild = client.queue("q").put("k", depends=[child])
    assert where(server, namespace, grandchild) == [shard_of("job-1", N)]
    with pytest.raises(ValueError, match="its parent job-1 and its parent job-2 may lie in different shards"):
        client.queue("q").put("k", depends=["job-1", "job-2"])
    waits = client.queue("q").put("k", depends=[parent], on_parent_failure="wait")
    with pytest.raises(DependencyError):
        client.cancel(parent)
    assert client.cancel(waits) == [waits]
    [lease] = client.queue("q").lease("w", 10)
    lease.complete()
    assert client.job(child).state == "waiting"


def test_many_puts_with_parents_and_ties_keep_their_order(client):
    jids = client.queue("q").put_many([
        {"klass": "k", "jid": "a"},
        {"klass": "k", "depends": ["a"]},
        {"klass": "k", "jid": "b"},
        {"klass": "k", "limit": "smtp"},
    ])  # fmt: skip
    assert (jids[0], jids[2]) == ("a", "b")
    assert [key_of(jid) for jid in jids] == ["a", "a", "b", "smtp"]
    assert client.job(jids[1]).state == "depends"


def test_batch_lies_in_one_shard(client, server, namespace):
    callback = {"queue": "q", "klass": "done"}
    with client.batch(on_complete=callback) as batch:
        jids = [batch.put("q", "k", number) for number in range(3)]
        with pytest.raises(ValueError, match="its jid and its batch"):
            batch.put("q", "k", jid="job-1")
    assert {tuple(where(server, namespace, jid)) for jid in jids} == {(shard_of(batch.id, N),)}
    client.settle([Completed(lease) for lease in client.queue("q").lease("w", 10)])
    assert (batch.look().state, batch.look().complete) == ("complete", 3)
    [done] = client.queue("q").jobs("waiting")
    assert done.klass == "done"
    assert client.job(done.jid) is not None, "its jid leads to the shard of the batch"
    assert [row.id for row in client.batches()] == [batch.id]
    assert client.batch_counts().ended == 1


def test_nested_batch_lies_beside_its_parent(client):
    with client.batch() as outer, outer.batch() as inner:
        inner.put("q", "k")
    assert key_of(inner.id) == key_of(outer.id)
    client.settle([Completed(lease) for lease in client.queue("q").lease("w", 10)])
    assert outer.look().state == "complete"


def test_recurring_job_puts_jobs_into_its_shard(client, clock, server, namespace):
    jid = client.queue("q").recur("k", every=10, jid="tick")
    assert client.recurring(jid).every_s == 10
    clock.now += 10
    leases = client.queue("q").lease("w", 10)
    assert leases
    assert {key_of(lease.jid) for lease in leases} == {"tick"}
    assert client.job(leases[0].jid).spawned_from == "tick"
    assert [one.jid for one in client.queue("q").jobs("recurring")] == ["tick"]
    client.recurring(jid).update(every=20)
    assert client.unrecur("tick")
    assert client.recurring(jid) is None
    with pytest.raises(ValueError, match="its jid and the limit smtp may lie in different shards"):
        client.queue("q").recur("k", every=10, jid="tock", limit="smtp")
    assert key_of(client.queue("q").recur("k", every=10, limit="smtp")) == "smtp"
    assert len(client.queue("q").recur("k", 5, every=10, unique=True)) <= 48


def test_configuration_and_pauses_hold_in_all_shards(client):
    put_all(client)
    client.config.set("heartbeat-q", 20)
    assert client.config.get("heartbeat-q") == 20
    client.queue("q").pause(by="me")
    counts = client.queue("q").counts()
    assert (counts.paused, counts.paused_by) == (True, "me")
    assert client.queue("q").lease("w", 100) == []
    assert [(act.act, act.names) for act in client.audit()] == [("pause", ("q",)), ("set", ("heartbeat-q",))]
    client.queue("q").unpause()
    assert len(client.queue("q").lease("w", 100)) == 12


def test_option_that_one_shard_cannot_count_is_refused(client):
    with pytest.raises(LeaseholdError, match=r"max-concurrency cannot count jobs in several shards"):
        client.config.set("max-concurrency-q", 3)
    client.config.unset("max-concurrency-q")


def test_doors_are_refused(client):
    with pytest.raises(LeaseholdError, match=r"door is not possible in a namespace of several shards"):
        client.doors.add("d", format="rwq", source="s", queue="q", klass="k")
    assert client.doors.list() == []


def test_lanes_count_over_all_shards(client):
    lane = client.queue("q").lane("ada")
    for jid in JIDS:
        lane.put("k", jid=jid)
    lane.weight(3)
    counts = client.queue("q").lanes()["ada"]
    assert (counts.waiting, counts.weight) == (12, 3)
    lane.pause()
    assert client.queue("q").lease("w", 100) == []
    assert lane.delete().dropped == 12


def test_queue_is_emptied_and_forgotten_in_all_shards(client):
    put_all(client)
    assert sorted(client.queue("q").cancel("job-3")) == ["job-3"]
    assert client.queue("q").delete().dropped == 11
    assert client.queues() == {}


def test_chosen_jobs_are_found_and_changed_over_all_shards(client):
    put_all(client)
    calls = calls_of(client)
    found = calls.follow(choices.found(Choice(queue="q"), calls.clock))
    assert sorted(found) == sorted(JIDS)
    page, cursor, seen = None, None, []
    while page is None or cursor is not None:
        page = calls.call(choices.find, Choice(queue="q"), cursor, 5)
        seen += page.states
        cursor = page.cursor and choices.checked_cursor(page.cursor)
    assert sorted(seen) == sorted(JIDS)
    changed = calls.act(bulk.set_priority, Choice(queue="q"), JIDS, 7)
    assert changed.number == 12
    assert {job.priority for job in client.jobs(*JIDS)} == {7}


def test_waits_streams_and_events_reach_every_shard(server, namespace):
    divide(server, namespace)
    with Client(server.url, namespace) as client, client.events() as events:
        put_all(client)
        assert {events.get(5).jid for _ in JIDS} == set(JIDS)
        for lease in client.queue("q").lease("w", 100):
            lease.stream({"of": lease.jid})
            waiting = threading.Timer(0.2, lease.complete, [lease.jid])
            waiting.start()
            assert client.wait(lease.jid, 20) == lease.jid
            waiting.join()
            assert list(client.stream(lease.jid)) == [{"of": lease.jid}]


def test_blocking_lease_is_woken_in_any_shard(server, namespace):
    divide(server, namespace)
    with Client(server.url, namespace) as client, Client(server.url, namespace) as other:
        for jid in JIDS[:3]:
            putting = threading.Timer(0.2, other.queue("q").put, ["k"], {"jid": jid})
            putting.start()
            [lease] = client.lease("w", ["q"], block=20)
            assert lease.jid == jid
            putting.join()
            lease.complete()


def test_async_client_does_the_same(server, namespace):
    divide(server, namespace)

    async def main():
        async with AsyncClient(server.url, namespace) as client:
            q = client.queue("q")
            assert await q.put_many([{"klass": "k", "jid": jid} for jid in JIDS]) == JIDS
            leases = await q.lease("w", 100)
            assert await client.settle([Completed(lease) for lease in leases]) == [True] * 12
            assert (await q.counts()).total == 0
            assert len(await client.completed()) == 12
            async with client.events() as events:
                await q.put("k", jid="a")
                assert (await events.get(5)).jid == "a"

    asyncio.run(main())


def test_client_of_before_goes_on_after_the_division(server, namespace):
    with Client(server.url, namespace) as client:
        assert client.queues() == {}
        divide(server, namespace)
        put_all(client)
        assert len(client.queue("q").lease("w", 100)) == 12


def test_call_waits_while_jobs_are_being_moved(client, server, namespace, monkeypatch):
    config = f"{{{namespace}}}:config"
    client.queue("q").put("k", jid="a")
    server.redis.set(config, "3/4>4")
    ended = threading.Timer(0.5, server.redis.set, [config, "3/4<"])
    ended.start()
    assert client.queue("q").put_many([{"klass": "k", "jid": jid} for jid in JIDS]) == JIDS
    ended.join()
    server.redis.set(config, "3/4>4")
    monkeypatch.setattr("supervisor.engine.client.sync_shards._MOVING_S", 0.3)
    guest = next(jid for jid in map(str, range(99)) if shard_of(jid, N) == 0)
    with pytest.raises(LeaseholdError, match="what was left in the first shard is being moved"):
        client.queue("q").put("k", jid=guest)
    server.redis.set(config, "3/4")


def test_put_many_says_what_is_put_if_jobs_begin_to_move_meanwhile(server, namespace, monkeypatch):
    monkeypatch.setattr("supervisor.engine.client.sync_shards._MOVING_S", 0.2)
    prefix = Namespace(namespace).prefix

    def begin_once_a_job_is_there():
        if server.redis.exists(f"{prefix}job:0"):
            server.redis.set(f"{prefix}config", "3/1>4")
        return 1e9

    said = r"goes on with it\. Of the 2,500 jobs 1 to ([12]),000 were put; \1,001 to 2,500 were not put"
    with Client(server.url, namespace, begin_once_a_job_is_there) as client:
        put_many = client.queue("q").put_many
        with pytest.raises(LeaseholdError, match=said) as raised:
            put_many({"klass": "k", "jid": str(number)} for number in range(2500))
    jobs = raised.value.jobs
    assert len(jobs.put) in (1000, 2000), "whether the second batch was under way"
    assert (jobs.put + jobs.not_put, jobs.unknown) == ([str(number) for number in range(2500)], [])


def test_client_of_a_pool_with_one_connection_learns_of_the_shards(server, namespace):
    divide(server, namespace)
    pool = redis.ConnectionPool.from_url(server.url, max_connections=1)
    with Client(redis=redis.Redis(connection_pool=pool), namespace=namespace) as client:
        jid = next(str(number) for number in range(99) if shard_of(str(number), N) == 0)
        assert client.queue("q").put("k", jid=jid) == jid


def test_check_restores_the_lost_mark_of_the_first_shard(client, server, namespace):
    put_all(client)
    mark = f"{{{namespace}}}:config"
    server.redis.delete(mark)
    with Client(server.url, namespace) as other:
        with pytest.raises(LayoutError, match="lost the mark"):
            other.queues()
        assert {(found.kind, found.repaired is None) for found in other.check()} == {("lost-mark", True)}
        assert {found.kind for found in other.check(repair=True)} == {"lost-mark"}
        assert other.check() == []
    assert server.redis.get(mark) == b"3/4"


@pytest.mark.parametrize("tie", [{"limit": "smtp"}, {"unique": True}, {"depends": ["none"]}])
def test_pushed_entry_that_is_tied_to_other_shards_fails(client, server, namespace, tie):
    server.redis.lpush(f"{{{namespace}}}:in:q", json.dumps({"klass": "k", "jid": "plain", "unique": False}))
    server.redis.lpush(f"{{{namespace}}}:in:q", json.dumps({"klass": "k", **tie}))
    assert [lease.jid for lease in client.queue("q").lease("w", 10)] == ["plain"]
    _, [failed] = client.failed("broken")
    refusal = f"{next(iter(tie))} may be in another of the namespace's shards: put it by a client"
    assert refusal in failed.failure["message"]


def test_guest_is_found_and_what_is_tied_to_it_goes_there(client, server, namespace):
    """A guest: a job of another shard in the first one, since the namespace was divided."""
    server.redis.set(f"{{{namespace}}}:config", "3/4<")
    first = calls_of(client).at(0)
    guest = next(jid for jid in JIDS if shard_of(jid, N) != 0)
    from supervisor.engine.commands import limits, putting
    from supervisor.engine.model.new_jobs import new_job

    first.run(putting.put([new_job("put", "q", "k", 1, {"jid": guest, "limit": "smtp", "unique": "u"})]))
    first.run(limits.limit("smtp", 1))
    with Client(server.url, namespace, client._calls.clock) as other:
        assert other.job(guest).data == 1
        assert [job and job.jid for job in other.jobs(guest, "none")] == [guest, None]
        assert other.queue("q").put("k", 2, jid=guest) == guest
        assert where(server, namespace, guest) == [0]
        limited = other.queue("q").put("k", limit="smtp")
        assert where(server, namespace, limited) == [0]
        assert other.queue("q").put("k", unique="u") == guest
        assert other.limit("smtp").running == 1
        child = other.queue("q").put("k", depends=[guest])
        assert (where(server, namespace, child), other.job(child).state) == ([0], "depends")
        assert sorted(other.cancel(guest, limited, child)) == sorted([guest, limited, child])
