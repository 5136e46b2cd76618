"""Unique jobs with a mode: what later puts of the key do to the job that holds it."""

import pytest

from supervisor.engine.model.outcomes import Completed


def data_of(leases):
    return [lease.data for lease in leases]


# Debounce.


def debounced(q, data, **options):
    return q.put("k", data, **{"unique": "key", "debounce": "5s", **options})


def test_debounce_runs_the_last_data_once(client, clock):
    q = client.queue("q")
    first = debounced(q, 1)
    clock.tick(4)
    assert debounced(q, 2) == first
    clock.tick(4)
    assert q.lease("w") == []
    clock.tick(1)
    assert data_of(q.lease("w", 9)) == [2]


def test_debounced_put_brings_its_klass_and_options(client, clock):
    q = client.queue("q")
    jid = debounced(q, 1, tags=["a"])
    q.put("other", 2, unique="key", debounce=7, tags=["b"], priority=3)
    job = client.job(jid)
    assert (job.klass, job.data, job.tags, job.priority) == ("other", 2, ["b"], 3)
    clock.tick(5)
    assert q.lease("w") == []
    clock.tick(2)
    assert q.lease("w")


def test_debounced_job_that_is_due_and_waits_is_replaced_too(client, clock):
    q = client.queue("q")
    first = debounced(q, 1)
    clock.tick(5)
    client.sweep()
    q.put("k", "before", priority=-1)
    assert data_of(q.lease("w")) == ["before"]
    assert debounced(q, 2) == first
    assert client.job(first).state == "scheduled"


def test_put_while_a_debounced_job_runs_makes_the_next_one(client, clock):
    q = client.queue("q")
    first = debounced(q, 1)
    clock.tick(5)
    [lease] = q.lease("w")
    second = debounced(q, 2)
    assert second != first
    assert debounced(q, 3) == second
    assert lease.complete() is True
    assert debounced(q, 4) == second
    clock.tick(5)
    assert data_of(q.lease("w", 9)) == [4]


def test_retry_that_waits_is_replaced_by_the_next_put(client, clock):
    q = client.queue("q")
    first = debounced(q, 1)
    clock.tick(5)
    q.lease("w")[0].retry(delay=60)
    assert debounced(q, 2) == first
    clock.tick(5)
    [lease] = q.lease("w")
    assert (lease.data, lease.failures) == (2, 0)


def test_debounce_by_content_starts_after_the_last_put(client, clock):
    q = client.queue("q")
    jids = [q.put("k", n, unique=True, debounce=5) for n in (1, 2, 1)]
    assert jids[0] == jids[2] != jids[1]


# Throttle.


def throttled(q, data, **options):
    return q.put("k", data, **{"unique": "key", "throttle": "1m", **options})


def test_throttle_answers_the_first_job_also_after_its_end(client, clock):
    q = client.queue("q")
    first = throttled(q, 1)
    assert throttled(q, 2) == first
    assert q.lease("w")[0].complete() is True
    clock.tick(59)
    assert throttled(q, 3) == first
    assert q.length() == 0
    clock.tick(1)
    second = throttled(q, 4)
    assert second != first
    assert data_of(q.lease("w")) == [4]


def test_throttled_job_that_runs_longer_still_holds_its_key(client, clock):
    q = client.queue("q")
    first = throttled(q, 1)
    clock.tick(90)
    assert throttled(q, 2) == first


def test_put_without_throttle_ignores_the_throttle(client):
    q = client.queue("q")
    first = throttled(q, 1)
    q.lease("w")[0].complete()
    assert q.put("k", 2, unique="key") != first


def test_throttle_outlives_the_record(client, clock):
    client.config.set("jobs-history", 0)
    q = client.queue("q")
    first = throttled(q, 1)
    q.lease("w")[0].complete()
    assert client.job(first) is None
    assert throttled(q, 2) == first


@pytest.mark.parametrize("state", ["waiting", "failed"])
def test_cancelled_job_throttles_no_more(client, state):
    q = client.queue("q")
    first = throttled(q, 1)
    if state == "failed":
        q.lease("w")[0].fail("g", "m")
    client.cancel(first)
    assert throttled(q, 2) != first


# Collect.


def collected(q, data, **options):
    return q.put("k", data, **{"unique": "key", "collect": "10s", "most": 3, **options})


def test_collect_gives_one_job_the_list_of_all_data(client, clock):
    q = client.queue("q")
    first = collected(q, {"n": 1})
    clock.tick(9)
    assert collected(q, [2, "drei ö"]) == first
    assert q.lease("w") == []
    assert client.job(first).data == [{"n": 1}, [2, "drei ö"]]
    clock.tick(1)
    [lease] = q.lease("w")
    assert lease.data == [{"n": 1}, [2, "drei ö"]]
    assert lease.complete() is True


def test_full_collection_runs_at_once_and_the_next_datum_starts_another(client, clock):
    q = client.queue("q")
    jids = [collected(q, n) for n in range(7)]
    assert [jids.count(jid) for jid in dict.fromkeys(jids)] == [3, 3, 1]
    assert data_of(q.lease("w", 9)) == [[0, 1, 2], [3, 4, 5]]
    clock.tick(10)
    assert data_of(q.lease("w", 9)) == [[6]]


def test_full_collection_counts_its_wait_from_its_last_element(client, clock):
    q = client.queue("q")
    for n in range(3):
        collected(q, n)
        clock.tick(3)
    [lease] = q.lease("w")
    assert lease.waited_s == 3


def test_a_collection_of_one_runs_at_once(client):
    q = client.queue("q")
    assert collected(q, 1, most=1) != collected(q, 2, most=1)
    assert data_of(q.lease("w", 9)) == [[1], [2]]


def test_many_puts_of_one_call_are_collected(client, clock):
    q = client.queue("q")
    jids = q.put_many(
        {"klass": "k", "data": n, "unique": f"key-{n % 2}", "collect": 10, "most": 400} for n in range(1000)
    )
    assert len(dict.fromkeys(jids)) == 4
    more = q.put_many({"klass": "k", "data": n, "unique": "key-0", "collect": 10, "most": 400} for n in (1000, 1002))
    assert {*more} <= {*jids}
    clock.tick(10)
    leases = q.lease("w", 9)
    assert sorted(n for lease in leases for n in lease.data) == [*range(1001), 1002]
    assert [n for lease in leases for n in lease.data if n % 2] == [*range(1, 1000, 2)]


def test_collection_that_is_due_and_waits_still_collects(client, clock):
    q = client.queue("q")
    first = collected(q, 1)
    clock.tick(10)
    client.sweep()
    assert client.job(first).state == "waiting"
    assert collected(q, 2) == first
    assert data_of(q.lease("w")) == [[1, 2]]


def test_collection_that_has_run_is_closed(client, clock):
    q = client.queue("q")
    first = collected(q, 1)
    clock.tick(10)
    q.lease("w")[0].retry()
    second = collected(q, 2)
    assert second != first
    [again] = q.lease("w")
    assert (again.jid, again.data) == (first, [1])
    clock.tick(10)
    assert data_of(q.lease("w", 9)) == [[2]]


def test_parked_collection_collects_and_fills_up(client, clock):
    client.limit("shut", running=0)
    q = client.queue("q")
    first = collected(q, 1, limit="shut")
    clock.tick(10)
    assert q.lease("w") == []
    assert [collected(q, n) for n in (2, 3)] == [first, first]
    client.limit("shut", running=1)
    assert data_of(q.lease("w", 9)) == [[1, 2, 3]]


def test_collection_in_a_lane_runs_in_its_lane(client):
    q = client.queue("q")
    for n in range(3):
        collected(q, n, lane="a")
    [lease] = q.lease("w")
    assert (lease.lane, lease.data) == ("a", [0, 1, 2])


def test_moved_collection_goes_on_in_its_new_queue(client, clock):
    first = collected(client.queue("q"), 1)
    client.job(first).move("elsewhere")
    assert collected(client.queue("elsewhere"), 2) == first
    assert collected(client.queue("q"), 3) != first


def test_plain_put_of_its_jid_ends_a_collection(client, clock):
    q = client.queue("q")
    first = collected(q, 1)
    q.put("k", {"not": "a list"}, jid=first)
    assert collected(q, 2) == first
    assert client.job(first).data == {"not": "a list"}


@pytest.mark.full
def test_collection_that_reaches_the_payload_limit_starts_the_next(client):
    q = client.queue("q")
    large = "x" * (100 * 2**20)
    jids = [collected(q, large, most=500) for _ in range(3)]
    assert jids[0] == jids[1] != jids[2]
    assert client.job(jids[0]).state == "waiting"


def test_cancelled_collection_leaves_nothing(client, server, namespace):
    q = client.queue("q")
    collected(q, "x" * 600)
    jid = collected(q, "y" * 600)
    client.cancel(jid)
    assert not [key for key in server.dump(namespace) if jid.encode() in key and b"cancelled" not in key]
    assert collected(q, 1) != jid


# Modes beside other options.


def test_other_mode_and_plain_put_are_answered_by_the_holder(client):
    q = client.queue("q")
    first = debounced(q, 1)
    assert [q.put("k", 2, unique="key"), throttled(q, 3), collected(q, 4)] == [first] * 3
    assert client.job(first).data == 1


def test_follow_ups_have_modes(client, clock):
    q = client.queue("q")
    q.put_many([{"klass": "k", "data": n} for n in range(2)])
    for lease in q.lease("w", 2):
        then = [
            {"queue": "q", "klass": "k", "data": lease.data, "unique": mode, mode: 10}
            for mode in ("debounce", "collect")
        ]
        assert client.settle([Completed(lease, then=then)]) == [True]
    clock.tick(10)
    assert sorted(map(str, data_of(q.lease("w", 9)))) == ["1", "[0, 1]"]


def test_entries_of_other_programs_have_no_modes(client, server, namespace):
    server.redis.lpush(f"{{{namespace}}}:in:q", '{"klass": "k", "unique": "key", "debounce": 5}')
    assert client.queue("q").lease("w") == []
    [job] = client.failed("broken")[1]
    assert "debounce" in job.failure["message"]


BAD = {
    "debounce needs unique": {"debounce": 5, "unique": None},
    "throttle needs unique": {"throttle": 5, "unique": False},
    "collect needs a key": {"collect": 5, "unique": True},
    "debounce must be 0.001 or more: 0": {"debounce": 0},
    "throttle must be at most 7 days": {"throttle": "8d"},
    "collect must be seconds, a duration": {"collect": "soon"},
    "debounce and throttle exclude each other": {"debounce": 5, "throttle": 5},
    "most goes with collect: 5": {"most": 5},
    "most must be from 1 to 10000: 0": {"collect": 5, "most": 0},
    "most must be from 1 to 10000: 10001": {"collect": 5, "most": 10_001},
    "debounce and delay exclude each other": {"debounce": 5, "delay": 1},
    "collect and at exclude each other": {"collect": 5, "at": 1},
    "collect and depends exclude each other": {"collect": 5, "depends": ["a"]},
    "debounce and batch exclude each other": {"debounce": 5, "batch": "b"},
    "throttle and persistent exclude each other": {"throttle": 5, "persistent": True},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_mode_is_refused_before_anything_is_written(client, server, namespace, message):
    with pytest.raises(ValueError, match=message):
        client.queue("q").put("k", 1, **{"unique": "key", **BAD[message]})
    assert server.dump(namespace) == {}


def test_collected_data_are_no_bytes(client):
    with pytest.raises(ValueError, match="data must be JSON where they are collected"):
        collected(client.queue("q"), b"raw")


def test_add_and_recur_have_no_modes(client):
    with pytest.raises(ValueError, match="debounce goes with put"):
        client.queue("q").add("k", jid="a", unique="key", debounce=5)
    with pytest.raises(TypeError, match="recur has no option 'throttle'"):
        client.queue("q").recur("k", every=5, unique="key", throttle=5)


def test_mode_of_none_is_no_mode(client):
    q = client.queue("q")
    jid = q.put("k", 1, unique="key", debounce=None, throttle=None, collect=None, most=None)
    assert client.job(jid).state == "waiting"
