"""Pauses and maximum concurrency, shared and of single queues."""

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing
from supervisor.engine.model.options import OPTIONS
from tests.layouts import set_options


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def rung(server, namespace):
    """Return whether a queue's wake-up key was set since the last call."""

    def look(queue="q"):
        bell = f"{{{namespace}}}:bell:{queue}"
        return server.redis.lpop(bell) is not None

    return look


def put(q, *jids, **options):
    for jid in jids:
        q.put("k", jid=jid, **options)


def jids(leases):
    return [lease.jid for lease in leases]


# Pause.


def test_nothing_new_is_leased_from_a_paused_queue(client, q):
    put(q, "a")
    q.pause()
    assert (q.lease("w"), q.counts().paused) == ([], True)
    put(client.queue("other"), "b")
    assert jids(client.lease("w", ["q", "other"], 2)) == ["b"]
    q.unpause()
    assert (q.counts().paused, jids(q.lease("w"))) == (False, ["a"])


def test_pause_has_actor_and_time(client, q, clock):
    put(q, "a")
    began_at = clock.now
    q.pause(by="kim@web-1")
    clock.tick(60)
    q.pause(by="robin@web-2")  # it is so already
    for counts in (q.counts(), client.queues()["q"]):
        assert (counts.paused, counts.paused_by, counts.paused_unix) == (True, "kim@web-1", began_at)
    q.unpause()
    assert (q.counts().paused, q.counts().paused_by, q.counts().paused_unix) == (False, None, None)
    q.pause()
    assert (q.counts().paused, q.counts().paused_by, q.counts().paused_unix) == (True, None, clock.now)
    assert client.config.all().keys() - {"paused-q"} == OPTIONS.keys()
    assert client.check() == []


def test_pause_of_all_queues_has_an_actor(client, q, clock):
    put(q, "a")
    client.config.set("paused", True, by="kim@web-1")
    assert (q.counts().paused_by, q.counts().paused_unix) == ("kim@web-1", clock.now)
    q.pause()  # its own counts
    assert (q.counts().paused, q.counts().paused_by) == (True, None)
    client.config.set("paused-q", False)
    assert (q.counts().paused, q.counts().paused_by) == (False, None)


def test_pause_without_an_actor_is_one(client, q, server, namespace):
    put(q, "a")
    set_options(server.redis, f"{{{namespace}}}:", {"paused-q": "1"})
    server.redis.hset(f"{{{namespace}}}:lanes:q", "paused:l", "1")
    for counts in (q.counts(), q.lane("l").counts()):
        assert (counts.paused, counts.paused_by, counts.paused_unix) == (True, None, None)
    assert client.check() == []


def test_pause_of_a_lane_has_actor_and_time(client, q, clock):
    lane = q.lane("l")
    lane.pause(by="kim@web-1")
    counts = lane.counts()
    assert (counts.paused, counts.paused_by, counts.paused_unix) == (True, "kim@web-1", clock.now)
    assert q.lanes()["l"].paused_by == "kim@web-1"
    lane.unpause()
    assert (lane.counts().paused, lane.counts().paused_by) == (False, None)


@pytest.mark.parametrize(
    ("by", "error"), [("", ValueError), ("x" * 129, ValueError), ("a\nb", ValueError), (5, TypeError)]
)
def test_actor_of_a_pause_is_a_short_name(client, q, by, error):
    with pytest.raises(error, match="by must"):
        q.pause(by=by)
    with pytest.raises(error, match="by must"):
        q.lane("l").pause(by=by)
    with pytest.raises(error, match="by must"):
        client.limit("k", running=1, by=by)
    assert (q.counts().paused, client.limits()) == (False, {})


def test_running_jobs_of_a_paused_queue_go_on(client, q, clock):
    put(q, "a", "b", "c", "d")
    a, b, c, d = q.lease("w", 4)
    q.pause()
    clock.tick(20)
    assert a.renew() == clock.now + 30
    assert (b.complete(), c.retry(), d.release()) == (True, 4, True)
    assert q.lease("w", 9) == []
    q.unpause()
    assert jids(q.lease("w", 9)) == ["d", "c"]


@pytest.mark.parametrize("order", ["strict", "round-robin"])
def test_expired_leases_are_taken_over_in_a_paused_queue(client, q, clock, order):
    put(q, "a")
    q.lease("w")
    q.pause()
    clock.tick(35)
    assert client.lease("v", ["q", "other"], order=order) == []
    job = client.job("a")
    assert (job.state, job.deaths, job.worker) == ("waiting", 1, None)


def test_sweep_takes_over_in_a_paused_queue_too(client, q, clock):
    put(q, "a")
    q.lease("w")
    q.pause()
    clock.tick(35)
    assert client.sweep() == 1
    assert client.job("a").state == "waiting"


def test_paused_queue_accepts_puts_but_no_recurring_jobs(client, q, clock):
    q.pause()
    put(q, "a")
    q.recur("k", every=60, jid="again")
    client.sweep()
    assert (q.counts().waiting, client.recurring("again").count) == (1, 0)
    assert [job.jid for job in q.peek(9)] == ["a"]


def test_global_pause_spares_queues_that_say_no(client, q):
    put(q, "a")
    put(client.queue("urgent"), "b")
    client.config.set("paused", True)
    client.config.set("paused-urgent", False)
    assert jids(client.lease("w", ["q", "urgent"], 2)) == ["b"]
    assert {name: counts.paused for name, counts in client.queues().items()} == {"q": True, "urgent": False}
    client.config.unset("paused")
    assert jids(q.lease("w")) == ["a"]


def test_end_of_a_pause_wakes_a_worker(client, q, rung):
    put(q, "a")
    put(client.queue("other"), "b")
    rung(), rung("other")
    q.pause()
    assert not rung()
    q.unpause()
    assert rung() and not rung("other")
    client.config.set("paused", True)
    assert not rung()
    client.config.unset("paused")
    assert rung() and rung("other")


def test_paused_queue_is_read_again_only_for_expired_leases(client, q, clock):
    put(q, "a")
    put(q, "b", delay=5)
    q.lease("w")
    q.pause()
    grant = calls_of(client).call(leasing.lease, "v", ["q"])
    assert grant.next_at_unix == clock.now + 35


# Maximum concurrency.


def test_queue_runs_no_more_than_its_concurrency(client, q):
    client.config.set("max-concurrency-q", 2)
    put(q, *"abcd")
    a, _ = q.lease("w", 9)
    assert q.lease("v", 9) == []
    a.complete()
    assert jids(q.lease("v", 9)) == ["c"]


@pytest.mark.parametrize(
    "end",
    [
        lambda client, held: held.complete(),
        lambda client, held: held.complete(next="other"),
        lambda client, held: held.retry(),
        lambda client, held: held.fail("g", "m"),
        lambda client, held: held.release(),
        lambda client, held: held.died("oom"),
        lambda client, held: client.cancel(held.jid),
        lambda client, held: client.job(held.jid).fail("g", "m"),
        lambda client, held: client.job(held.jid).release(),
        lambda client, held: client.job(held.jid).move("other"),
        lambda client, held: client.deregister("w"),
        lambda client, held: client.config.set("max-concurrency-q", 2),
        lambda client, held: client.config.unset("max-concurrency-q"),
    ],
)
def test_freed_queue_wakes_a_worker_and_runs_the_next_job(client, q, rung, end):
    client.config.set("max-concurrency-q", 1)
    put(q, "a", "b")
    (held,) = q.lease("w")
    assert q.lease("v") == []
    assert not rung()
    end(client, held)
    assert rung()
    assert len(q.lease("v")) == 1


def test_a_full_queue_still_hands_over_expired_leases(client, q, clock):
    client.config.set("max-concurrency-q", 1)
    put(q, "a", "b")
    q.lease("w")
    clock.tick(34.999)
    assert q.lease("v", 9) == []
    clock.tick(0.001)
    assert [(lease.jid, lease.deaths) for lease in q.lease("v", 9)] == [("a", 1)]


def test_expired_lease_counts_until_its_takeover(client, q, clock):
    client.config.set("max-concurrency-q", 1)
    put(q, "a", "b")
    q.lease("w")
    clock.tick(31)
    assert (q.counts().stalled, q.lease("v")) == (1, [])


def test_lowered_concurrency_stops_no_running_job(client, q):
    put(q, *"abcd")
    leases = q.lease("w", 3)
    client.config.set("max-concurrency-q", 1)
    assert [lease.renew() > 0 for lease in leases] == [True] * 3
    for lease in leases[:2]:
        lease.complete()
        assert q.lease("v") == []
    leases[2].complete()
    assert jids(q.lease("v")) == ["d"]


def test_lowered_concurrency_limits_the_rerun_of_lost_jobs(client, q, clock):
    put(q, *"abcd")
    q.lease("w", 3, ttl=10)
    q.lease("w", 1, ttl=100)
    client.config.set("max-concurrency-q", 2)
    clock.tick(15)
    assert jids(q.lease("v", 9)) == ["a"]
    assert (q.counts().waiting, q.counts().running) == (2, 2)


def test_a_limit_of_all_queues_is_one_of_each(client, q):
    client.config.set("max-concurrency", 1)
    client.config.set("max-concurrency-other", 0)
    put(q, "a", "b")
    put(client.queue("other"), "c", "d")
    assert jids(client.lease("w", ["q", "other"], 9)) == ["a", "c", "d"]


def test_full_queue_does_not_block_the_next_one(client, q):
    client.config.set("max-concurrency-q", 1)
    put(q, "a", "b")
    put(client.queue("other"), "c", "d")
    assert jids(client.lease("w", ["q", "other"], 2)) == ["a", "c"]


def test_due_jobs_of_a_full_queue_keep_their_order(client, q, clock):
    client.config.set("max-concurrency-q", 1)
    put(q, "first")
    (held,) = q.lease("w")
    put(q, "a", "b", delay=5)
    clock.tick(5)
    assert q.lease("v", 9) == []
    put(q, "c")
    held.complete()
    served = []
    while leases := q.lease("v", 9):
        served += jids(leases)
        leases[0].complete()
    assert served == ["a", "b", "c"]


# Options.


def test_zero_grace_hands_over_at_the_end_of_the_lease(client, q, clock):
    client.config.set("grace-q", 0)
    put(q, "a")
    q.lease("w")
    clock.tick(30)
    assert jids(q.lease("v")) == ["a"]


def test_max_deaths_of_a_queue_applies_to_jobs_without_their_own(client, q):
    client.config.set("max-deaths-q", 1)
    put(q, "a")
    put(q, "b", max_deaths=2)
    assert [lease.died("oom") for lease in q.lease("w", 2)] == ["failed", "waiting"]
