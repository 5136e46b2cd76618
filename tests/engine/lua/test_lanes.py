"""Lanes share a queue fairly, by their weight, however many jobs each has."""

from collections import Counter

import pytest

from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands.lanes import LaneCounts
from supervisor.engine.model.outcomes import Completed, Released
from tests.lengths import LONG


def leased(queue, count):
    """Return the lanes of so many starts, one by one."""
    return "".join(lease.lane or "-" for _ in range(count) for lease in queue.lease("w"))


def fill(queue, **lanes):
    """Put so many jobs into each of these lanes, by the thousand."""
    jobs = [{"klass": "k", "lane": None if lane == "none" else lane} for lane, n in lanes.items() for _ in range(n)]
    for first in range(0, len(jobs), 1000):
        queue.put_many(jobs[first : first + 1000])


# Turns.


def test_lanes_take_turns_whatever_lies_in_them(client):
    q = client.queue("q")
    fill(q, a=6, b=2, c=3)
    assert leased(q, 11) == "abcabcacaaa"


def test_a_batch_takes_the_same_turns(client):
    q = client.queue("q")
    fill(q, a=6, b=2, c=3)
    assert "".join(lease.lane for lease in q.lease("w", 5)) == "abcab"
    assert "".join(lease.lane for lease in q.lease("w", 50)) == "cacaaa"


def test_jobs_without_a_lane_take_turns_as_one_lane(client):
    q = client.queue("q")
    fill(q, none=4, a=2)
    assert sorted(leased(q, 4)) == ["-", "-", "a", "a"]
    assert leased(q, 2) == "--"


def test_every_lane_starts_a_job_within_one_round(server, namespace):
    """The lane joins behind many jobs of another one. `.ci/run --full`: behind 100,000."""
    with Client(server.url, namespace) as client:
        q = client.queue("q")
        fill(q, a=100_000 if LONG else 20_000)
        for _ in range(3):
            client.settle([Completed(lease) for lease in q.lease("w", 1000)])
        q.put("k", lane="b")
        assert "b" in leased(q, 3)
        fill(q, c=1, d=1, e=1)
        assert {"c", "d", "e"} <= set(leased(q, 5))


def test_empty_lane_saves_up_no_turns(client):
    q = client.queue("q")
    fill(q, a=200, b=1)
    assert Counter(leased(q, 51)) == {"a": 50, "b": 1}
    fill(q, b=100)
    assert Counter(leased(q, 40))["b"] in (20, 21)


def test_lane_gains_nothing_by_one_job_at_a_time(client):
    q = client.queue("q")
    fill(q, a=100)
    served = ""
    for _ in range(40):
        if q.lane("b").length() == 0:
            q.lane("b").put("k")
        served += leased(q, 1)
    assert Counter(served)["b"] <= 21


def test_lanes_start_jobs_in_proportion_to_their_weights(client):
    q = client.queue("q")
    q.lane("a").weight(3)
    fill(q, a=4000, b=4000)
    starts = Counter()
    for _ in range(4000 // 25):
        starts.update(lease.lane for lease in q.lease("w", 25))
    assert starts["a"] == pytest.approx(3000, rel=0.05)
    assert starts["b"] == pytest.approx(1000, rel=0.05)


def test_weights_hold_start_by_start(client):
    q = client.queue("q")
    q.lane("a").weight(3)
    fill(q, a=60, b=60)
    for first in range(0, 60, 12):
        assert Counter(leased(q, 12))["a"] in (8, 9, 10), first


def test_a_weight_holds_for_jobs_that_wait_already(client):
    q = client.queue("q")
    fill(q, a=100, b=100)
    assert Counter(leased(q, 20)) == {"a": 10, "b": 10}
    q.lane("a").weight(4)
    assert Counter(leased(q, 50))["a"] in (39, 40, 41)
    q.lane("a").weight(1)
    assert Counter(leased(q, 20))["a"] in (9, 10, 11)


def test_empty_lane_keeps_no_turn(client):
    """Work-conserving: the other lanes get all starts."""
    q = client.queue("q")
    q.lane("a").weight(1000)
    fill(q, a=1, b=50)
    assert len(q.lease("w", 50)) == 50


def test_lanes_are_of_one_queue(client):
    fill(client.queue("q"), a=3)
    fill(client.queue("r"), a=3)
    client.queue("q").lane("a").pause()
    assert client.queue("q").lease("w", 9) == []
    assert len(client.queue("r").lease("w", 9)) == 3


# Behaviour that lanes leave unchanged.


def test_within_a_lane_priority_and_age_count(client):
    q = client.queue("q")
    for jid, priority in (("second", 0), ("third", 0), ("first", -1), ("last", 1)):
        q.put("k", jid=jid, priority=priority, lane="a")
    assert [lease.jid for lease in q.lease("w", 4)] == ["first", "second", "third", "last"]


def test_returned_jobs_go_before_all_lanes(client):
    q = client.queue("q")
    fill(q, a=4, b=4)
    (lease,) = q.lease("w")
    client.settle([Released(lease)])
    assert [it.jid for it in q.lease("w")] == [lease.jid]


def test_retried_job_goes_to_the_back_of_its_lane(client):
    q = client.queue("q")
    fill(q, a=3)
    (lease,) = q.lease("w")
    lease.retry()
    assert [it.jid for it in q.lease("w", 3)][-1] == lease.jid


def test_a_delayed_job_comes_into_its_lane(client, clock):
    q = client.queue("q")
    q.put("k", jid="late", lane="b", delay=10)
    fill(q, a=5)
    assert leased(q, 1) == "a"
    clock.tick(10)
    assert "b" in leased(q, 3)


def test_dependent_job_comes_into_its_lane(client):
    q = client.queue("q")
    q.put("k", jid="parent")
    q.put("k", jid="child", lane="b", depends=["parent"])
    fill(q, a=5)
    parent = next(lease for lease in q.lease("w", 3) if lease.jid == "parent")
    parent.complete()
    assert "b" in leased(q, 3)


def test_a_job_changes_its_lane_with_a_put(client):
    q = client.queue("q")
    q.put("k", jid="j", lane="a")
    q.put("k", jid="j", lane="b")
    assert (client.job("j").lane, q.lane("a").length(), q.lane("b").length()) == ("b", 0, 1)
    q.put("k", jid="j")
    assert client.job("j").lane == "b"
    q.put("k", jid="j", lane=None)
    assert client.job("j").lane is None
    assert [(lease.jid, lease.lane) for lease in q.lease("w", 5)] == [("j", None)]


def test_a_lane_goes_along_into_another_queue(client):
    q = client.queue("q")
    q.put("k", jid="moved", lane="a")
    q.put("k", jid="goes-on", lane="a")
    client.job("moved").move("r")
    q.lease("w")[0].complete(next="r")
    assert client.queue("r").lane("a").length() == 2
    assert [lease.lane for lease in client.queue("r").lease("w", 2)] == ["a", "a"]


def test_a_new_priority_counts_within_the_lane(client):
    q = client.queue("q")
    fill(q, a=3)
    q.put("k", jid="j", lane="a")
    client.job("j").set_priority(-1)
    assert [lease.jid for lease in q.lease("w")] == ["j"]


def test_queues_in_turn_have_lanes_in_turn(client):
    q, r = client.queue("q"), client.queue("r")
    fill(q, a=3, b=3)
    fill(r, c=6)
    leases = client.lease("w", ["q", "r"], 8, order="round-robin")
    assert "".join(lease.lane for lease in leases) == "acbcacbc"


def test_peek_agrees_with_the_lease(client):
    q = client.queue("q")
    q.lane("a").weight(2)
    fill(q, a=9, b=5, none=5)
    for _ in range(3):
        peeked = [job.jid for job in q.peek(6)]
        assert [lease.jid for lease in q.lease("w", 6)] == peeked


# Pauses.


def test_paused_lane_starts_nothing_and_others_go_on(client):
    q = client.queue("q")
    fill(q, a=3, b=3)
    q.lane("a").pause()
    assert leased(q, 9) == "bbb"
    q.lane("a").unpause()
    assert leased(q, 9) == "aaa"


def test_paused_lane_accepts_puts_and_returns(client, clock):
    q = client.queue("q")
    fill(q, a=2)
    leases = q.lease("w", 2)
    q.lane("a").pause()
    fill(q, a=1)
    client.settle([Released(lease) for lease in reversed(leases)])
    assert q.lease("w", 9) == []
    clock.tick(1000)
    assert q.lease("other", 9) == []
    assert q.lane("a").counts() == LaneCounts(3, 0, 0, 0, 1, True)
    q.lane("a").unpause()
    assert [lease.jid for lease in q.lease("w", 9)][:2] == [lease.jid for lease in leases]


def test_a_paused_lane_lets_what_runs_end(client):
    q = client.queue("q")
    fill(q, a=1)
    (lease,) = q.lease("w")
    q.lane("a").pause()
    assert lease.renew() > 0
    assert lease.complete() is True


def test_a_pause_is_for_the_lane_only(client):
    q = client.queue("q")
    fill(q, a=1, b=1, none=1)
    q.lane("a").pause()
    assert q.lanes()["a"].paused is True
    assert q.lanes()["b"].paused is False
    assert q.counts().paused is False


def test_freed_lane_wakes_waiting_workers(client, server, namespace):
    q = client.queue("q")
    fill(q, a=1)
    q.lane("a").pause()
    assert q.lease("w") == []
    server.redis.delete(f"{{{namespace}}}:bell:q")
    q.lane("a").unpause()
    assert server.redis.llen(f"{{{namespace}}}:bell:q") == 1


# Counts.


def test_each_lane_is_counted_and_the_queue_counts_all(client, clock):
    q = client.queue("q")
    client.limit("shut", running=0)
    fill(q, a=3, b=2, none=1)
    q.lane("a").put("k", limit="shut")
    q.lease("w", 3)
    while q.counts().parked == 0:
        q.lease("w2", 1)
    lanes, counts = q.lanes(), q.counts()
    assert sorted(lanes) == ["", "a", "b"]
    for name in ("waiting", "running", "parked"):
        assert sum(getattr(lane, name) for lane in lanes.values()) == getattr(counts, name)
    assert lanes["a"].parked == 1
    assert q.lane("a").counts() == lanes["a"]
    clock.tick(31)
    assert sum(lane.stalled for lane in q.lanes().values()) == counts.running
    assert q.length() == sum(lane.waiting + lane.stalled for lane in q.lanes().values())


def test_empty_lane_is_unknown_without_settings(client):
    q = client.queue("q")
    fill(q, a=1)
    q.lease("w")[0].complete()
    assert q.lease("w") == []
    assert "a" not in q.lanes()
    assert q.lane("a").counts() == LaneCounts(0, 0, 0, 0, 1, False)
    q.lane("a").weight(7)
    assert q.lanes()["a"] == LaneCounts(0, 0, 0, 0, 7, False)
    q.lane("a").weight(1)
    assert "a" not in q.lanes()


def test_empty_lanes_leave_nothing(client, keys):
    q = client.queue("q")
    fill(q, a=2, b=2, none=2)
    client.config.set("jobs-history", 0)
    client.settle([Completed(lease) for lease in q.lease("w", 6)])
    assert q.lease("w") == []
    assert [key for key in keys() if "lane" in key] == []


def test_a_lane_may_be_called_as_anything(client):
    q = client.queue("q")
    names = ["a:b", "*", "Zürich", "{x}", "waiting", " ", "0" * 64]
    q.put_many({"klass": "k", "lane": name, "jid": f"j{i}"} for i, name in enumerate(names))
    assert sorted(q.lanes()) == ["", *sorted(names)]
    assert {lease.lane for lease in q.lease("w", 9)} == set(names)


# Costs.


def cost_us(server, queue, batch, calls=24):
    """Return the server's time of one lease in µs: the best of several."""
    found = []
    for _ in range(calls):
        server.redis.config_resetstat()
        leases = queue.lease("w", batch)
        found.append(float(server.redis.info("commandstats")["cmdstat_evalsha"]["usec"]))
        assert len(leases) == batch
    return sorted(found)[len(found) // 4]


@pytest.mark.parametrize("batch", [1, 64])
def test_lease_costs_the_same_with_ten_thousand_lanes(server, namespace, batch):
    """tests/bench/lanes.py measures exactly. This test allows for a busy machine."""
    with Client(server.url, namespace) as client:
        one, many = client.queue("one"), client.queue("many")
        for first in range(0, 10_000, 1000):
            one.put_many({"klass": "k", "lane": "a"} for _ in range(1000))
            many.put_many({"klass": "k", "lane": f"lane-{i}"} for i in range(first, first + 1000))
        for _ in range(3):
            if cost_us(server, many, batch) < 3 * cost_us(server, one, batch):
                return
        raise AssertionError("three times as much, and again, and again")


def test_many_empty_lanes_are_removed_in_bounded_time(client):
    """Cancelling has emptied the lanes. No lease visits them all, and yet the job is reached."""
    q = client.queue("q")
    for first in range(0, 3000, 1000):
        q.put_many({"klass": "k", "lane": f"lane-{i:04}", "jid": f"j{i}"} for i in range(first, first + 1000))
        client.cancel(*(f"j{i}" for i in range(first, first + 1000)))
    q.put("k", lane="z")
    assert any(q.lease("w") for _ in range(8))
