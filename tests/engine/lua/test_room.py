"""A parked job with room again counts as waiting before any lease."""

import pytest

from supervisor.engine.model.outcomes import Completed

KEY = "api"


@pytest.fixture
def q(client):
    client.limit(KEY, running=2)
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": f"j{i}", "limit": KEY} for i in range(6))
    return q


def seen(client):
    """Return waiting, parked and ready of the queue, and its `length`."""
    counts = client.queues()["q"]
    return counts.waiting, counts.parked, counts.ready, client.queue("q").length()


def listed(q):
    return [[job.jid for job in q.jobs(state)] for state in ("waiting", "parked")]


WAYS = {
    "a slot is free": lambda client, clock, held: client.settle([Completed(lease) for lease in held]),
    "the limit is raised": lambda client, clock, held: client.limit(KEY, running=4),
    "the limit is lifted": lambda client, clock, held: client.unlimit(KEY),
}


@pytest.mark.parametrize("way", WAYS)
def test_room_that_no_lease_has_seen_counts_as_ready(client, clock, q, way):
    held = q.lease("w", 9)
    assert (len(held), *seen(client)) == (2, 0, 4, 0, 0)
    clock.tick(3)
    WAYS[way](client, clock, held)
    room = 4 if "lifted" in way else 2
    assert seen(client) == (room, 4 - room, room, room)
    assert client.queues()["q"].oldest_s == 3
    names = [f"j{i}" for i in range(2, 6)]
    assert listed(q) == [names[:room], names[room:]]
    assert [client.job(jid).parked for jid in names] == [False] * room + [True] * (4 - room)
    assert all(not job.parked for job in q.jobs("waiting"))
    client.sweep()
    assert (seen(client), listed(q)) == ((room, 4 - room, room, room), [names[:room], names[room:]])
    assert len(q.lease("w", 9)) == room


def test_the_end_of_a_rate_window_counts_as_room(client, clock):
    client.limit(KEY, rate="3/s")
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": f"j{i}", "limit": KEY} for i in range(8))
    assert len(q.lease("w", 9)) == 3
    assert seen(client) == (0, 5, 0, 0)
    clock.tick(1)
    assert seen(client) == (3, 2, 3, 3)
    assert len(q.lease("w", 9)) == 3


def test_pages_of_parked_jobs_pass_over_those_with_room(client, q):
    held = q.lease("w", 9)
    client.settle([Completed(held[0])])
    pages = [[job.jid for job in q.jobs("parked", offset, 2)] for offset in (0, 2, 3)]
    assert pages == [["j3", "j4"], ["j5"], []]


def test_job_in_a_paused_lane_has_no_room(client):
    client.limit(KEY, running=0)
    q = client.queue("q")
    q.put_many({"klass": "k", "lane": "x", "limit": KEY} for _ in range(3))
    assert q.lease("w", 9) == []
    q.lane("x").pause()
    client.limit(KEY, running=2)
    assert seen(client) == (0, 3, 0, 0)
    q.lane("x").unpause()
    assert seen(client) == (2, 1, 2, 2)


def test_sweep_wakes_a_worker_for_jobs_with_room(client, clock, server, namespace):
    client.limit(KEY, rate="1/s")
    q = client.queue("q")
    q.put_many({"klass": "k", "limit": KEY} for _ in range(3))
    q.lease("w", 9)
    server.redis.delete(f"{{{namespace}}}:bell:q")
    clock.tick(1)
    client.sweep()
    assert server.redis.llen(f"{{{namespace}}}:bell:q") == 1


def test_a_count_of_room_is_bounded_work(client, server, measured):
    """1,000 lanes under a removed limit take a bounded number of calls."""
    client.limit(KEY, running=0)
    q = client.queue("q")
    for first in range(0, 1000, 250):
        q.put_many({"klass": "k", "lane": f"l{first + i}", "limit": KEY} for i in range(250))
    while client.queues()["q"].parked < 1000:
        assert q.lease("w", 1000) == []
    client.unlimit(KEY)
    before = server.calls("zcard")
    assert client.queues()["q"].ready == 100
    assert server.calls("zcard") - before < 300
