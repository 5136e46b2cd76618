"""Queries: jobs by state, peek, counts, workers, tags, tracking, history, statistics, configuration."""

import asyncio
import datetime
import sys

import pytest

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import job_queries, lanes, leasing, queue_counts, settings, statistics, workers
from supervisor.engine.commands.lanes import LaneCounts
from supervisor.engine.model.errors import JobNotFound
from supervisor.engine.model.outcomes import Completed, Died, Failed, Released, Retried
from tests.layouts import mark

EVERYTHING = {"waiting", "running", "stalled", "scheduled", "depends", "parked", "complete", "failed"}


def jids(jobs):
    return [job.jid for job in jobs]


def put(queue, *names, **options):
    queue.put_many({"klass": "k", "jid": jid, **options} for jid in names)


# Jobs by state.


def test_waiting_jobs_are_listed_front_waiting_due(client, clock):
    q = client.queue("q")
    put(q, "due", delay=5)
    put(q, "later", delay=50)
    put(q, "a", "b", "c")
    put(q, "urgent", priority=-1)
    first, second = q.lease("w", 2)
    client.settle([Released(second), Released(first)])
    clock.tick(5)
    assert jids(q.jobs("waiting")) == ["urgent", "a", "b", "c", "due"]
    assert jids(q.jobs("scheduled")) == ["later"]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_pages_put_together_are_the_whole_list(client, clock, size):
    q = client.queue("q")
    put(q, *(f"due-{i}" for i in range(3)), delay=1)
    put(q, *(f"waiting-{i}" for i in range(5)))
    client.settle([Released(lease) for lease in q.lease("w", 3)])
    clock.tick(1)
    pages = [jids(q.jobs("waiting", offset, size)) for offset in range(0, 8, size)]
    assert [jid for page in pages for jid in page] == [f"waiting-{i}" for i in range(5)] + [
        f"due-{i}" for i in range(3)
    ]
    assert q.jobs("waiting", 8, size) == []


def test_expired_lease_is_listed_as_stalled(client, clock):
    q = client.queue("q")
    put(q, "long", "short")
    q.lease("w", 1, ttl=100)
    q.lease("w", 1, ttl=10)
    assert (jids(q.jobs("running")), jids(q.jobs("stalled"))) == (["short", "long"], [])
    clock.tick(10)
    assert (jids(q.jobs("running")), jids(q.jobs("stalled"))) == (["long"], ["short"])
    assert [job.state for job in q.jobs("stalled")] == ["stalled"]


def test_dependent_jobs_are_listed_in_the_order_of_their_put(client, clock):
    q = client.queue("q")
    put(q, "parent")
    for jid in ("z", "a"):
        clock.tick(1)
        put(q, jid, depends=["parent"])
    assert jids(q.jobs("depends")) == ["z", "a"]
    (job,) = q.jobs("depends", 1)
    assert (job.state, job.dependencies, client.job("parent").dependents) == ("depends", ["parent"], ["z", "a"])


def test_ended_jobs_are_listed_newest_first(client, clock):
    p, q = client.queue("p"), client.queue("q")
    for i in range(3):
        put(p, f"p{i}", f"pf{i}")
        put(q, f"q{i}")
        done, failed = p.lease("w", 2)
        client.settle([Completed(done), Failed(failed, "g", "m"), Completed(q.lease("w")[0])])
        clock.tick(1)
    assert jids(p.jobs("complete")) == ["p2", "p1", "p0"]
    assert jids(q.jobs("complete", 1, 1)) == ["q1"]
    assert jids(p.jobs("failed", 1)) == ["pf1", "pf0"]
    assert q.jobs("failed") == []
    assert jids(client.completed(0, 4)) == ["q2", "p2", "q1", "p1"]
    assert jids(client.completed(4)) == ["q0", "p0"]


def test_a_list_is_of_this_queue_alone(client):
    put(client.queue("q"), "a")
    for state in EVERYTHING:
        assert client.queue("other").jobs(state) == []


def test_ids_without_a_record_are_not_listed(client, server, namespace):
    q = client.queue("q")
    put(q, "a")
    server.redis.zadd(f"{{{namespace}}}:queue:q:front", {"ghost": 1})
    try:
        assert jids(q.jobs("waiting")) == jids(q.peek(9)) == ["a"]
    finally:
        server.redis.zrem(f"{{{namespace}}}:queue:q:front", "ghost")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("stuck",), ValueError, "state must be one of waiting, running, .*: 'stuck'"),
        (("waiting", -1), ValueError, "offset must be from 0"),
        (("waiting", 0, 1001), ValueError, "count must be from 0 to 1000: 1001"),
        (("waiting", 0, "5"), TypeError, "count must be an int"),
    ],
)
def test_bad_arguments_of_a_list_are_refused(client, arguments, error, said):
    with pytest.raises(error, match=said):
        client.queue("q").jobs(*arguments)


def test_only_ended_jobs_are_listed_without_a_queue():
    with pytest.raises(ValueError, match="state must be complete or failed without a queue: 'waiting'"):
        job_queries.listed("waiting")


# Peek.


def test_peek_shows_the_next_jobs_in_lease_order(client, clock):
    q = client.queue("q")
    put(q, "lost", "released", "also-lost", "waiting-1", "waiting-2", retries=9)
    _, released, _ = q.lease("gone", 3, ttl=10)
    client.settle([Released(released)])
    put(q, "due-urgent", priority=-1, delay=20)
    put(q, "due", delay=20)
    clock.tick(20)
    shown = jids(q.peek(20))
    assert shown == ["lost", "released", "also-lost", "due-urgent", "waiting-1", "waiting-2", "due"]
    assert jids(q.peek()) == ["lost"]
    assert jids(q.lease("w", 20)) == shown


def test_peek_hides_what_a_second_death_delays(client, clock):
    q = client.queue("q")
    put(q, "a")
    client.settle([Died(q.lease("w")[0], "oom")])
    q.lease("gone", 1, ttl=1)
    clock.tick(6)
    assert q.peek() == []
    assert q.lease("w") == []


def test_peek_changes_nothing(client, clock, server, namespace):
    q = client.queue("q")
    put(q, "a", "b")
    put(q, "due", delay=1)
    q.lease("gone", 1, ttl=1)
    clock.tick(100)
    before = server.dump(namespace)
    assert len(q.peek(5)) == 3
    assert server.dump(namespace) == before


def test_a_paused_queue_still_shows_its_jobs(client):
    q = client.queue("q")
    put(q, "a")
    q.pause()
    assert q.lease("w") == []
    assert jids(q.peek()) == ["a"]


# Counts and names.


def test_counts_cover_every_state_and_the_pause(client, clock, server, namespace):
    q = client.queue("q")
    put(q, "due", delay=10)
    put(q, "later", delay=100)
    put(q, *"abcd")
    put(q, "child", depends=["d"])
    q.recur("k", every=60, jid="r", offset=60)
    client.limit("used-up", running=0)
    put(q, "parked", limit="used-up", priority=-1)
    q.lease("w", 1, ttl=1000)  # and the other one is parked
    q.lease("w", 1, ttl=10)
    put(q, "x", "y", lane="l")
    server.redis.lpush(f"{{{namespace}}}:in:q", '{"klass": "k"}')
    clock.tick(10)
    counts = q.counts()
    assert counts == queue_counts.Counts(
        waiting=6, running=1, stalled=1, scheduled=1, depends=1, parked=1, recurring=1, paused=False
    )
    assert (counts.total, q.length()) == (12, 7)
    q.pause()
    assert q.counts().paused
    q.unpause()
    client.config.set("paused", True)
    assert client.queues()["q"].paused


def test_queues_are_listed_in_the_order_of_their_first_put(client, clock):
    for name in ("b", "a", "c"):
        client.queue(name).put("k")
        clock.tick(1)
    assert client._store.run(queue_counts.names()) == ["b", "a", "c"]
    assert list(client.queues()) == ["b", "a", "c"]


def test_queues_beyond_one_call_are_listed_too(client, server, namespace):
    mark(server.redis, f"{{{namespace}}}:")
    server.redis.zadd(f"{{{namespace}}}:queues", {f"q{i:04}": i for i in range(2500)})
    assert list(client.queues()) == [f"q{i:04}" for i in range(2500)]


def test_an_unknown_queue_has_nothing(client):
    assert client.queue("nobody").counts() == queue_counts.Counts(0, 0, 0, 0, 0, 0, 0, False)


# Workers.


def test_workers_are_listed_by_recency_with_their_leases(client, clock):
    q = client.queue("q")
    put(q, *"abc")
    q.lease("first", 2, ttl=5)
    clock.tick(1)
    q.lease("second", 1, ttl=100)
    clock.tick(4)
    assert client.workers() == [
        workers.WorkerInfo("second", running=1, stalled=0, seen_unix=clock.now - 4, unseen_s=4),
        workers.WorkerInfo("first", running=0, stalled=2, seen_unix=clock.now - 5, unseen_s=5),
    ]


def test_worker_lists_its_jobs_in_lease_order(client, clock):
    q = client.queue("q")
    put(q, *"cab")
    q.lease("w", 1, ttl=5)
    q.lease("w", 2, ttl=100)
    clock.tick(5)
    assert client.worker("w") == workers.WorkerJobs("w", clock.now - 5, running=["a", "b"], stalled=["c"])
    assert client.worker("nobody") == workers.WorkerJobs("nobody", None, [], [])


def test_unseen_worker_is_forgotten(client, clock):
    client.queue("q").lease("w")
    client.config.set("max-worker-age", 60)
    clock.tick(59)
    assert len(client.workers()) == 1
    clock.tick(1)
    assert client.workers() == []
    assert client.worker("w").seen_unix is None


def test_workers_come_in_pages_with_bounded_lease_counts(client):
    q = client.queue("q")
    put(q, *(str(i) for i in range(20)))
    for i in range(4):
        q.lease(f"w{i}", 5)
    assert [worker.name for worker in client._store.run(workers.read(1, 2, now=calls_of(client).clock()))] == [
        "w2",
        "w1",
    ]


# Tags and tracking.


def test_tagged_jobs_come_oldest_first_with_their_number(client, clock):
    q = client.queue("q")
    for jid in "cab":
        put(q, jid, tags=["t"])
        clock.tick(1)
    total, found = client.tagged("t", 1, 1)
    assert (total, jids(found), found[0].tags) == (3, ["a"], ["t"])
    assert client.tagged("nobody") == (0, [])


def test_tags_come_most_used_first(client):
    q = client.queue("q")
    put(q, "a", tags=["rare", "often"])
    put(q, "b", tags=["often"])
    assert list(client.tags().items()) == [("often", 2), ("rare", 1)]
    assert client.tags(1) == {"rare": 1}
    client.job("b").untag("often")
    client.cancel("a")
    assert client.tags() == {}


def test_tracked_jobs_and_those_that_are_gone(client, clock):
    q = client.queue("q")
    put(q, "a", "b")
    client.track("a")
    clock.tick(1)
    client.track("b")
    client.cancel("a")
    tracked = client.tracked()
    assert (jids(tracked.jobs), tracked.expired) == (["b"], ["a"])
    assert tracked.jobs[0].tracked
    with pytest.raises(JobNotFound):
        client.track("nobody")


# One job.


def test_a_history_tells_a_jobs_life_in_its_order(client, clock):
    q = client.queue("q")
    put(q, "a")
    born = clock.now
    clock.tick(1)
    client.settle([Retried(q.lease("w1")[0])])
    clock.tick(1)
    client.log("a", "half done", {"n": 1})
    clock.tick(1)
    q.lease("w2")[0].complete(next="next")
    clock.tick(1)
    done = client.queue("next").lease("w3")[0]
    clock.tick(1)
    done.complete()
    job = client.job("a")
    assert [(entry["what"], entry["when"] - born) for entry in job.history] == [
        ("put", 0), ("popped", 1), ("retried", 1), ("log", 2), ("popped", 3), ("advanced", 3), ("put", 3),
        ("popped", 4), ("completed", 5),
    ]  # fmt: skip
    assert job.history[0]["queue"] == "q"
    assert [entry["worker"] for entry in job.history if entry["what"] == "popped"] == ["w1", "w2", "w3"]
    assert [(line["message"], line["data"]) for line in job.log] == [("half done", {"n": 1})]
    assert (job.worker, job.queue, job.state) == (None, "next", "complete")


def test_a_running_jobs_history_ends_with_its_lease(client, clock):
    q = client.queue("q")
    put(q, "a")
    clock.tick(2)
    q.lease("w")
    assert client.job("a").history[1:] == [{"what": "popped", "when": clock.now, "worker": "w"}]


def test_long_history_keeps_its_first_entry_and_last_99(client, clock):
    q = client.queue("q")
    put(q, "a")
    for i in range(150):
        client.log("a", f"line {i}")
    q.lease("w")
    history = client.job("a").history
    assert len(history) == 100
    assert (history[0]["what"], history[1]["message"], history[-1]["what"]) == ("put", "line 52", "popped")


def test_attributes_of_a_new_job_are_empty(client):
    put(client.queue("q"), "a")
    job = client.job("a")
    assert (job.tags, job.tracked, job.dependencies, job.dependents, job.log) == ([], False, [], [], [])
    assert (job.on_parent_failure, job.spawned_from, job.worker, job.due_unix) == ("wait", None, None, None)
    assert (job.lane, job.limit, job.unique, job.start_by_unix, job.progress) == (None, None, None, None, None)
    assert (job.persistent, job.at_most_once, job.parked) == (False, False, False)


def test_a_job_shows_its_options(client, clock):
    q = client.queue("q")
    put(q, "a", lane="l", limit="api", unique="night", expires=60, at_most_once=True)
    put(q, "b", unique=True, persistent=True)
    a, b = client.jobs("a", "b")
    assert (a.lane, a.limit, a.unique, a.start_by_unix, a.at_most_once) == ("l", "api", "night", clock.now + 60, True)
    assert (a.persistent, b.unique, b.persistent, b.at_most_once) == (False, True, True, False)
    started = next(lease for lease in q.lease("w", 2) if lease.jid == "a")
    assert client.job("a").start_by_unix is None
    assert (started.lane, started.at_most_once, started.persistent) == ("l", True, False)


def test_parked_jobs_are_listed_in_the_order_of_their_parking(client, clock):
    q = client.queue("q")
    client.limit("api", running=1)
    for jid in ("a", "b", "c"):
        put(q, jid, limit="api")
    (lease,) = q.lease("w", 3)
    assert [(job.jid, job.state, job.parked) for job in q.jobs("parked")] == [
        ("b", "waiting", True), ("c", "waiting", True),
    ]  # fmt: skip
    assert (jids(q.jobs("waiting")), jids(q.jobs("parked", 1, 5))) == ([], ["c"])
    lease.complete()
    assert jids(q.lease("w", 3)) == ["b"]
    assert jids(q.jobs("parked")) == ["c"]


def test_a_running_job_shows_how_far_it_is(client, clock):
    q = client.queue("q")
    put(q, "a")
    (lease,) = q.lease("w")
    calls_of(client).call(leasing.renew, "w", [leasing.Renewal("a", lease.token, progress=(0.4, "two of five"))])
    assert client.job("a").progress == (0.4, "two of five", clock.now)
    lease.complete()
    assert client.job("a").progress == (0.4, "two of five", clock.now)


@pytest.mark.parametrize("text", ["{", "[]", "[1, 2, 3]", '["x", "y", 1]', "null", "\xff"])
def test_a_damaged_progress_is_none(client, server, namespace, text):
    put(client.queue("q"), "a")
    server.redis.set(f"{{{namespace}}}:progress:a", text)
    try:
        assert client.job("a").progress is None
    finally:
        server.redis.delete(f"{{{namespace}}}:progress:a")


def test_pushed_job_shows_the_options_of_its_entry(client, server, namespace):
    q = client.queue("q")
    entries = [
        b'{"klass": "k", "jid": "a", "data" : {"n": 9007199254740993, "empty": [] } }',
        b'{"klass": "k", "jid": "b", "data_b64": "/wD+"}',
        b'{"klass": "k", "jid": "c"}',
    ]
    server.redis.lpush(f"{{{namespace}}}:in:q", *entries)
    q.lease("w", 3)
    a, b, c = client.jobs("a", "b", "c")
    assert (a.raw, a.is_bytes) == (b'{"n": 9007199254740993, "empty": [] }', False)
    assert a.data == {"n": 9007199254740993, "empty": []}
    assert (b.raw, b.is_bytes, b.data) == (b"\xff\0\xfe", True, b"\xff\0\xfe")
    assert (c.raw, c.is_bytes, c.data) == (b"null", False, None)


# Lanes.


def test_lanes_are_listed_by_name_with_their_counts(client, clock):
    q = client.queue("q")
    client.limit("used-up", running=0)
    put(q, "none")
    put(q, "z1", "z2", lane="z")
    put(q, "parked", lane="z", limit="used-up", priority=-1)
    put(q, "gone", lane="gone", priority=-2)
    (gone,) = [lease for lease in q.lease("w", 3, ttl=10) if lease.jid == "gone"]
    q.lane("empty").weight(5)
    q.lane("still").pause()
    clock.tick(10)
    gone.renew()
    put(q, "more", lane="z")
    assert q.lanes() == {
        "": looks_like(stalled=1),
        "empty": looks_like(weight=5),
        "gone": looks_like(running=1),
        "still": looks_like(paused=True),
        "z": looks_like(waiting=2, stalled=1, parked=1),
    }
    assert q.lane("z").counts() == q.lanes()["z"]
    assert q.lane("nobody").counts() == looks_like()


def looks_like(waiting=0, running=0, stalled=0, parked=0, weight=1, paused=False):
    return LaneCounts(waiting, running, stalled, parked, weight, paused)


def test_more_lanes_than_one_page_has_are_all_listed(client):
    q = client.queue("q")
    q.put_many({"klass": "k", "lane": f"lane-{i:04}"} for i in range(2003))
    assert list(q.lanes()) == ["", *(f"lane-{i:04}" for i in range(2003))]
    assert q.length() == 2003


def test_no_lane_is_missed_while_lanes_take_turns(client):
    q, calls = client.queue("q"), calls_of(client)
    q.put_many({"klass": "k", "lane": f"lane-{i % 2003:04}"} for i in range(4006))
    listing = lanes.read_all("q", lambda: None)
    command = next(listing)
    while True:
        answer = calls.run(command)
        client.lease("w", ["q"], 700)
        try:
            command = listing.send(answer)
        except StopIteration as end:
            assert list(end.value) == ["", *(f"lane-{i:04}" for i in range(2003))]
            return


def test_dependent_job_shows_its_scheduled_time(client, clock):
    q = client.queue("q")
    put(q, "parent")
    put(q, "child", depends=["parent"], delay=60, on_parent_failure="run")
    job = client.job("child")
    assert (job.state, job.due_unix, job.on_parent_failure) == ("depends", clock.now + 60, "run")


def test_a_spawned_job_shows_its_recurring_job(client):
    q = client.queue("q")
    q.recur("k", {"n": 1}, every=60, jid="r", tags=["t"])
    (lease,) = q.lease("w")
    job = client.job(lease.jid)
    assert (job.jid, job.spawned_from, job.tags, job.data) == ("r-1", "r", ["t"], {"n": 1})


# Recurring jobs.


def test_recurring_job_is_shown_as_given(client, clock):
    q = client.queue("q")
    q.recur("k", b"raw", every=60, jid="r", offset=10, missed="once", priority=2, retries=1, timeout=9, tags=["t", "u"])
    found = client.recurring("r")
    assert (found.jid, found.queue, found.klass, found.data, found.is_bytes) == ("r", "q", "k", b"raw", True)
    assert (found.every_s, found.cron, found.tz, found.next_unix, found.count) == (60, None, None, clock.now + 10, 0)
    assert (found.missed, found.backlog, found.priority, found.retries) == ("once", 0, 2, 1)
    assert (found.timeout_s, found.max_deaths, found.tags) == (9, None, ["t", "u"])
    assert client.recurring("nobody") is None


def test_jobs_of_a_recurrence_inherit_lane_limit_claim_and_expiry(client, clock):
    q = client.queue("q")
    q.recur("k", every=60, jid="r", lane="l", limit="api", unique="night", expires=30, at_most_once=True)
    job = client.recurring("r")
    assert (job.lane, job.limit, job.unique, job.expires_s, job.at_most_once) == ("l", "api", "night", 30.0, True)
    (lease,) = q.lease("w")
    assert (lease.lane, lease.at_most_once) == ("l", True)
    one = client.job(lease.jid)
    assert (one.lane, one.limit, one.unique, one.at_most_once, one.spawned_from) == ("l", "api", "night", True, "r")
    job.update(lane=None, limit=None, unique=True, expires=None, at_most_once=None)
    job = client.recurring("r")
    assert (job.lane, job.limit, job.unique, job.expires_s, job.at_most_once) == (None, None, True, None, False)


def test_recurring_jobs_are_listed_by_their_next_time(client, clock):
    q = client.queue("q")
    q.recur("k", every=60, jid="late", offset=30)
    q.recur("k", every=60, jid="soon", offset=10)
    client.queue("p").recur("k", every=60, jid="elsewhere")
    assert jids(q.jobs("recurring")) == ["soon", "late"]
    assert jids(q.jobs("recurring", 1, 5)) == ["late"]


def test_cron_is_shown_with_zone_and_next_time(client, clock):
    clock.now = 1_800_000_000.0  # 2027-01-15 08:00 UTC
    client.queue("q").recur("k", cron="0 3 * * *", tz="Europe/Berlin", jid="r", backlog=2)
    found = client.recurring("r")
    assert (found.cron, found.tz, found.every_s, found.backlog, found.missed) == (
        "0 3 * * *", "Europe/Berlin", None, 2, "all",
    )  # fmt: skip
    assert found.next_unix == 1_800_064_800  # 02:00 UTC


def test_worker_without_cronsim_leases_and_leaves_crons_to_others(client, clock, monkeypatch):
    q = client.queue("q")
    q.recur("k", cron="* * * * *", jid="r")
    q.put("k", jid="a")
    clock.tick(60)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "cronsim", None)
        assert jids(q.lease("w", 5)) == ["a"]
    assert jids(q.lease("w", 5)) == ["r-1"]


# Statistics.


def test_statistics_of_a_day_have_what_was_measured(client, clock):
    clock.now = 10 * 86400.0
    q = client.queue("q")
    put(q, *"abc")
    for wait in (1, 2, 6):
        clock.now = 10 * 86400.0 + wait
        q.lease("w", 1)
    stats = q.stats()
    assert stats.date == datetime.date(1970, 1, 11)
    assert (stats.wait.count, stats.wait.total, stats.wait.mean) == (3, 3, 3.0)
    assert stats.wait.variance == pytest.approx(7.0)
    assert stats.wait.std == pytest.approx(7.0**0.5)
    assert {i: n for i, n in enumerate(stats.wait.histogram) if n} == {1: 1, 2: 1, 6: 1}
    assert len(stats.wait.histogram) == 287
    assert stats.run == statistics.Spread(0, 0.0, 0.0, 0.0, [0] * 287)


@pytest.mark.parametrize(
    ("waited_s", "cell"),
    [
        (0, 0), (59.9, 59), (60, 60), (3599, 118), (3600, 119), (86399, 210), (86400, 211), (3 * 86400 - 1, 258),
        (3 * 86400, 259), (29.9 * 86400, 285), (30 * 86400, 286), (400 * 86400, 286),
    ],
)  # fmt: skip
def test_the_histogram_has_seconds_minutes_quarters_hours_and_days(client, clock, waited_s, cell):
    q = client.queue("q")
    put(q, "a")
    clock.tick(waited_s)
    q.lease("w")
    histogram = q.stats().wait.histogram
    assert (sum(histogram), histogram[cell]) == (1, 1)


def test_statistics_cover_a_utc_day_in_any_notation(client, clock):
    clock.now = 1_800_000_000.0
    q = client.queue("q")
    put(q, "a", "b")
    client.settle([Failed(q.lease("w")[0], "g", "m")])
    clock.tick(86400)
    client.settle([Retried(q.lease("w")[0])])
    day = datetime.date(2027, 1, 15)
    for named in (day, "2027-01-15", 1_800_000_000, 1_800_000_000.7):
        stats = q.stats(named)
        assert (stats.date, stats.failures, stats.failed, stats.retries) == (day, 1, 1, 0)
    assert (q.stats().date, q.stats().retries) == (datetime.date(2027, 1, 16), 1)
    assert q.stats("1999-01-01").failures == 0


@pytest.mark.parametrize(
    ("date", "error", "said"),
    [
        ("yesterday", ValueError, "date must be YYYY-MM-DD: 'yesterday'"),
        (-1, ValueError, "date must be 0 or more"),
        (1e12, ValueError, "date must be before the year 10000"),
        (float("nan"), ValueError, "date must be a finite number"),
        (True, TypeError, "date must be"),
        (datetime.datetime(2027, 1, 1), ValueError, "a datetime with a time zone"),
        ([], TypeError, "date must be a date, YYYY-MM-DD, unix seconds or a datetime, not list"),
    ],
)
def test_invalid_day_is_refused(client, date, error, said):
    with pytest.raises(error, match=said):
        client.queue("q").stats(date)


# Configuration.


def test_an_option_is_what_was_set_else_its_default(client):
    assert client.config.get("heartbeat") == client.config.get("heartbeat-q") == 30
    client.config.set("heartbeat", 7.5)
    client.config.set("heartbeat-q", 9)
    assert (client.config.get("heartbeat"), client.config.get("heartbeat-q")) == (7.5, 9)
    client.config.unset("heartbeat-q")
    assert client.config.get("heartbeat-q") == 7.5
    assert client.config.all()["heartbeat"] == 7.5


def test_configured_heartbeat_is_the_queues_ttl(client, clock):
    client.config.set("heartbeat-q", 9)
    put(client.queue("q"), "a")
    assert client.queue("q").lease("w")[0].expires_unix == clock.now + 9


def test_bad_options_and_values_are_refused_and_change_nothing(client, server, namespace):
    before = server.dump(namespace)
    for option, value in (("heartbeet", 5), ("heartbeat", 0), ("grace", "soon"), ("jobs-history-q", 5), ("paused", 7)):
        with pytest.raises(ValueError, match=option):
            client.config.set(option, value)
    with pytest.raises(ValueError, match="did you mean grace"):
        client.config.get("grce")
    with pytest.raises(ValueError, match="did you mean grace-q"):
        client.config.unset("grce-q")
    assert server.dump(namespace) == before


def test_setting_an_equal_value_is_no_change(client):
    assert client._store.run(settings.configure("grace", None, "9"))
    assert not client._store.run(settings.configure("grace", None, "9"))
    assert client._store.run(settings.configure("grace", None, None))
    assert not client._store.run(settings.configure("grace", None, None))


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ({"paused-q": True}, lambda config: config.unset("paused-q")),
        ({"paused-q": True}, lambda config: config.set("paused-q", False)),
        ({"paused": True}, lambda config: config.unset("paused")),
        ({"max-concurrency-q": 1}, lambda config: config.set("max-concurrency-q", 2)),
        ({"max-concurrency": 1}, lambda config: config.unset("max-concurrency")),
        ({"grace": 60}, lambda config: config.set("grace", 1)),
    ],
)
def test_freed_queue_sets_its_wakeup_key(client, server, namespace, before, change):
    put(client.queue("q"), "a")
    put(client.queue("p"), "b")
    for option, value in before.items():
        client.config.set(option, value)
    bell = f"{{{namespace}}}:bell:q"
    server.redis.delete(bell)
    change(client.config)
    assert server.redis.lrange(bell, 0, -1) == [b"1"]


def test_pause_of_an_unknown_queue_wakes_no_worker(client, server, namespace):
    put(client.queue("q"), "a")
    server.redis.delete(f"{{{namespace}}}:bell:q")
    client.queue("q").pause()
    client.config.set("max-concurrency-nobody", 5)
    assert not server.redis.exists(f"{{{namespace}}}:bell:q", f"{{{namespace}}}:bell:nobody")


# The async client.


def test_the_async_client_answers_the_same(client, server, namespace, clock):
    q = client.queue("q")
    put(q, *"abc", tags=["t"])
    client.track("a")
    q.recur("k", every=60, jid="r", offset=9)
    q.lease("w", 1)

    async def look():
        async with AsyncClient(server.url, namespace, clock) as other:
            assert jids(await other.queue("q").jobs("waiting")) == jids(q.jobs("waiting")) == ["b", "c"]
            assert jids(await other.queue("q").peek(2)) == ["b", "c"]
            assert jids(await other.queue("q").jobs("recurring")) == ["r"]
            assert await other.queue("q").stats() == q.stats()
            assert await other.workers() == client.workers()
            assert await other.worker("w") == client.worker("w")
            assert await other.tags() == {"t": 3}
            assert jids((await other.tracked()).jobs) == ["a"]
            assert jids((await other.tagged("t"))[1]) == ["a", "b", "c"]
            assert await other.config.all() == client.config.all()
            assert await other.completed() == []

    asyncio.run(look())
