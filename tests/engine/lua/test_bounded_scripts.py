"""Each script does bounded work on data of any shape."""

import asyncio

import pytest

from supervisor.engine.client.answers import checked_many
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import bulk, choices, job_changes, leasing, limits, maintenance, putting, settling
from supervisor.engine.model.errors import DependencyError, LeaseholdError
from supervisor.engine.model.new_jobs import new_job
from supervisor.engine.model.outcomes import LATER, REFUSED, Completed, Failed, Released
from tests.engine.lua.test_scripts import digest
from tests.layouts import mark


def chain(queue, length, first=0):
    """Put a chain of jobs, each waiting for the one before."""
    queue.put_many(
        {"klass": "k", "jid": f"c{i}", "depends": [f"c{i - 1}"] if i > first else []} for i in range(first, length)
    )


# Dependencies.


@pytest.mark.sampled(2)
def test_follow_ups_behind_a_long_chain_need_no_search(client, cpu_ms):
    q = client.queue("q")
    q.put("k", jid="job", priority=-1)
    chain(q, 10_000)
    (lease,) = q.lease("w")
    then = [{"queue": "q", "klass": "k", "jid": f"f{i}", "depends": ["c9999"]} for i in range(200)]
    with cpu_ms() as used:
        assert lease.complete(then=then) is True
    assert client.job("f199").dependencies == ["c9999"]
    assert used[0] < 500, "once 9.4 s"


@pytest.mark.sampled(2)
def test_one_search_serves_all_jobs_of_a_call(client, cpu_ms):
    q = client.queue("q")
    chain(q, 9_000)
    q.put_many({"klass": "k", "jid": f"p{i}"} for i in range(200))
    q.put_many({"klass": "k", "jid": f"waits{i}", "depends": [f"p{i}"]} for i in range(200))
    with cpu_ms() as used:
        q.put_many({"klass": "k", "jid": f"p{i}", "depends": ["c8999"]} for i in range(200))
    assert client.job("p199").dependencies == ["c8999"]
    assert used[0] < 1_000, "once 22 s"


@pytest.mark.parametrize("order", [1, -1])
def test_a_graph_put_again_needs_no_walk(client, order, cpu_ms):
    q = client.queue("q")
    chain(q, 4_000)
    again = [{"klass": "k", "jid": f"c{i}", "depends": [f"c{i - 1}"] if i else []} for i in range(4_000)]
    with cpu_ms() as used:
        q.put_many(again[::order])
    assert client.job("c3999").dependencies == ["c3998"]
    assert q.counts().depends == 3_999
    assert used[0] < 4 * 400  # a walk for each of them takes many times that


@pytest.mark.sampled(2)
def test_too_deep_a_graph_is_refused(client):
    q = client.queue("q")
    chain(q, 12_000)
    q.put("k", jid="known")
    q.put("k", jid="waits", depends=["known"])
    with pytest.raises(DependencyError, match=r"known cannot depend on c11999: .* too deep .* 10000 jobs and more"):
        q.put("k", jid="known", depends=["c11999"])
    assert client.job("known").state == "waiting"
    q.put("k", jid="fresh", depends=["c11999"])
    assert client.job("fresh").state == "depends"


def test_cycle_is_found_behind_a_searched_job(client, server, namespace):
    """The search results of an earlier job of the call do not serve a later one."""
    q = client.queue("q")
    for jid, parents in [("a", []), ("b", ["a"]), ("c", ["b"]), ("d", []), ("e", ["d"])]:
        q.put("k", jid=jid, depends=parents)
    with pytest.raises(DependencyError, match="job a cannot depend on e, which waits for it"):
        q.put_many([{"klass": "k", "jid": "d", "depends": ["c"]}, {"klass": "k", "jid": "a", "depends": ["e"]}])
    assert [client.job(jid).state for jid in "ad"] == ["waiting", "waiting"]


def test_new_job_of_the_call_can_close_a_cycle(client):
    q = client.queue("q")
    q.put("k", jid="x")
    q.put("k", jid="t")
    q.put("k", jid="below", depends=["t"])
    jobs = [
        {"klass": "k", "jid": "x", "depends": ["new"]},  # there is no such job yet: that counts as done
        {"klass": "k", "jid": "new", "depends": ["below"]},
        {"klass": "k", "jid": "t", "depends": ["new"]},
    ]
    with pytest.raises(DependencyError, match="job t cannot depend on new, which waits for it"):
        q.put_many(jobs)


def test_refused_outcome_leaves_no_trace_in_the_search(client):
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": jid} for jid in ("one", "two"))
    leases = q.lease("w", 2)
    for jid, parents in [("t", []), ("x", ["t"]), ("other", []), ("waits", ["other"])]:
        q.put("k", jid=jid, depends=parents)
    outcomes = [
        Completed(leases[0], then=[
            {"queue": "q", "klass": "k", "jid": "x", "depends": []},
            {"queue": "q", "klass": "k", "jid": "other", "depends": ["x"]},
            {"queue": "q", "klass": "k", "jid": "other2", "depends": ["other2"]},
        ]),
        Completed(leases[1], then=[{"queue": "q", "klass": "k", "jid": "t", "depends": ["x"]}]),
    ]  # fmt: skip
    assert client.settle(outcomes) == [REFUSED, REFUSED]


def test_a_call_makes_a_bounded_number_of_dependencies(client):
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": f"p{i}"} for i in range(1_000))
    parents = [f"p{i}" for i in range(1_000)]
    jobs = [new_job("put", "q", "k", None, {"jid": f"c{i}", "depends": parents}) for i in range(6)]
    with pytest.raises(DependencyError, match="c5 is one of those that get more than 5000 dependencies by one call"):
        calls_of(client).call(putting.put, jobs)
    assert client.job("c0") is None


@pytest.mark.parametrize("is_async", [False, True])
def test_put_many_splits_by_parents(server, namespace, client, is_async):
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": f"p{i}"} for i in range(1_000))
    parents = [f"p{i}" for i in range(1_000)]
    jobs = [{"klass": "k", "jid": f"c{i}", "depends": parents} for i in range(30)]

    async def put_all():
        async with AsyncClient(server.url, namespace, calls_of(client).clock) as other:
            return await other.queue("q").put_many(jobs)

    def calls():
        return server.redis.info("commandstats")["cmdstat_evalsha"]["calls"]

    before = calls()
    jids = asyncio.run(put_all()) if is_async else q.put_many(jobs)
    assert calls() - before == len(jobs), "one job with 1,000 parents fills a call"
    assert jids == [f"c{i}" for i in range(30)]
    assert len(client.job("c29").dependencies) == 1_000


def test_batch_size_depends_on_the_weight_of_its_jobs():
    plain = [{"klass": "k"}] * 1_000
    tagged = [{"klass": "k", "tags": [f"t{i}" for i in range(80)]}] * 200
    assert [len(batch) for batch in checked_many("q", plain)] == [1_000]
    assert [len(batch) for batch in checked_many("q", tagged)] == [24] * 8 + [8]


def test_a_job_waits_for_a_bounded_number_of_others(client):
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": f"p{i}"} for i in range(5_001))
    q.put("k", jid="child", depends=["p0"])
    child = client.job("child")
    for first in range(1, 4_001, 1_000):
        child.depend(*(f"p{i}" for i in range(first, first + 1_000)))
    with pytest.raises(DependencyError, match="child cannot depend on more than 5000 jobs"):
        child.depend(*(f"p{i}" for i in range(4_001, 5_001)))
    child.undepend(all=True)
    assert client.job("child").state == "waiting"


@pytest.mark.parametrize("name", ["tags", "depends"])
def test_completion_has_bounded_tags_and_parents(client, name):
    q = client.queue("q")
    q.put("k")
    (lease,) = q.lease("w")
    many = 100 if name == "tags" else 1_000
    most = 3_000 // many if name == "tags" else 1_500 // many
    then = [{"queue": "q", "klass": "k", name: [f"n{i}" for i in range(many)]} for _ in range(most + 1)]
    with pytest.raises(
        ValueError, match="then and depends must have at most 3000 tags, and a parent counts for two, not"
    ):
        lease.complete(then=then)
    assert lease.complete(then=then[:most]) is True


def waiting_for_many(q, prefix, n, parents=1_000):
    """Put jobs that each wait for all of these parents. Returns them as follow-ups."""
    q.put_many({"klass": "k", "jid": f"p{i}", "delay": 99} for i in range(parents))
    q.put_many({"klass": "k", "jid": f"{prefix}{i}", "depends": [f"p{j}" for j in range(parents)]} for i in range(n))
    return [{"queue": "q", "klass": "k", "jid": f"{prefix}{i}"} for i in range(n)]


def follower(jid):
    return {"queue": "q", "klass": "k", "jid": jid}


def leased(q, n):
    q.put_many({"klass": "k", "priority": -1} for _ in range(n))
    return q.lease("w", n)


def test_follow_ups_that_keep_too_many_parents_are_refused_alone(client):
    q = client.queue("q")
    then = waiting_for_many(q, "c", 4)
    bad, good = leased(q, 2)
    assert client.settle([Completed(bad, then=then), Completed(good)]) == [REFUSED, True]
    with pytest.raises(DependencyError, match="wait for too many others or lose too many tags; its lease goes on"):
        bad.complete(then=then)
    assert bad.complete(then=then[:3]) is True
    assert len(client.job("c0").dependencies) == 1_000


def test_follow_ups_that_drop_too_many_parents_are_refused_alone(client):
    q = client.queue("q")
    then = [{**one, "depends": []} for one in waiting_for_many(q, "c", 4)]
    bad, good = leased(q, 2)
    assert client.settle([Completed(bad, then=[*then, follower("new")]), Completed(good)]) == [REFUSED, True]
    assert client.job("new") is None
    assert bad.complete(then=then[:3]) is True
    assert client.job("c2").state == "waiting"


@pytest.mark.parametrize("more", [{}, {"depends": []}])
def test_completions_with_much_work_end_one_call_after_the_other(client, more):
    q = client.queue("q")
    then = [{**one, **more} for one in waiting_for_many(q, "c", 6)]
    leases = leased(q, 4)
    outcomes = [Completed(lease, then=then[2 * i : 2 * i + 2]) for i, lease in enumerate(leases)]
    assert calls_of(client).call(settling.settle, "w", outcomes) == [
        True,
        LATER,
        LATER,
        True,
    ]
    assert client.settle(outcomes[1:3]) == [True, True]
    assert {job.state for job in client.jobs(*(one["jid"] for one in then))} == {"waiting" if more else "depends"}


def test_puts_and_follow_ups_take_a_bounded_number_of_tags_away(client, cpu_ms):
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": f"c{i}", "tags": [f"{i}-{j}" for j in range(100)]} for i in range(51))
    untagged = [{"queue": "q", "klass": "k", "jid": f"c{i}", "tags": []} for i in range(51)]
    (lease,) = leased(q, 1)
    assert client.settle([Completed(lease, then=untagged)]) == [REFUSED]
    with pytest.raises(LeaseholdError, match="the first of these jobs lose too many tags: put fewer of them at a time"):
        q.put_many({"klass": "k", "jid": f"c{i}", "tags": []} for i in range(51))
    with cpu_ms() as used:
        assert lease.complete(then=untagged[:30]) is True
    assert client.job("c29").tags == []
    assert len(client.job("c30").tags) == 100
    assert used[0] < 300, "of 1,000 jobs once 1.1 s"


# The end of a job, and the jobs that wait for it.


def wide(q, parents, policy, children=1_000):
    """Put jobs that each have children of their own."""
    q.put_many({"klass": "k", "jid": f"p{i}", "priority": -1} for i in range(parents))
    q.put_many(
        {"klass": "k", "jid": f"p{i}c{j}", "depends": [f"p{i}"], "on_parent_failure": policy}
        for i in range(parents)
        for j in range(children)
    )


@pytest.mark.parametrize("keeps", [True, False])
def test_completion_with_thousands_of_dependents_continues_in_the_sweep(client, config, keeps, cpu_ms):
    if not keeps:
        config(jobs_history=0)
    q = client.queue("q")
    wide(q, 4, "wait")
    leases = q.lease("w", 4)
    with cpu_ms() as used:
        assert client.settle([Completed(lease) for lease in leases]) == [True] * 4
    assert q.counts().waiting == 1_000
    assert used[0] < 300
    assert client.check() == [], "what is still to be told is no fault"
    client.sweep()
    assert (q.counts().waiting, q.counts().depends) == (4_000, 0)


@pytest.mark.parametrize("policy", ["fail", "run"])
def test_cancel_with_thousands_of_dependents_continues_in_the_sweep(client, policy):
    q = client.queue("q")
    wide(q, 5, policy)
    assert len(client.cancel(*(f"p{i}" for i in range(5)))) == 5
    assert q.counts().depends == 4_000
    client.sweep()
    assert q.counts().depends == 0
    assert client.failed() == ({"parent-failed": 5_000} if policy == "fail" else {})


def test_cancel_reads_a_bounded_number_of_dependents(client):
    q = client.queue("q")
    wide(q, 6, "fail")
    with pytest.raises(DependencyError, match="more than 5000 others wait: cancel fewer of them at a time"):
        client.cancel(*(f"p{i}" for i in range(6)))
    assert client.job("p0").state == "waiting"
    done = calls_of(client).run(
        bulk.cancel(choices.Choice("q"), [f"p{i}" for i in range(6)], now=calls_of(client).clock())
    )
    assert done == (5, ["p5"])
    client.sweep()


def end_all(client, leases, how):
    if how == "done":
        client.settle([Completed(lease) for lease in leases])
    elif how == "failed":
        client.settle([Failed(lease, "g", "m") for lease in leases])
    else:
        client.cancel(*(lease.jid for lease in leases))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tick", [0, 5, -5])
@pytest.mark.parametrize("how", ["done", "failed", "gone"])
def test_end_of_a_stage_leaves_the_next_stages_dependents_alone(client, clock, how, tick):
    q = client.queue("q")
    wide(q, 3, "run" if how == "done" else "fail", 400)
    leases = q.lease("w", 3)
    clock.tick(tick)
    end_all(client, leases, how)
    q.put_many({"klass": "k", "jid": f"p{i}", "priority": -9} for i in range(3))
    q.put_many({"klass": "k", "jid": f"new{i}", "depends": [f"p{i}"], "on_parent_failure": "fail"} for i in range(3))
    assert client.check() == [], "what is still to be told is no fault"
    client.sweep()
    assert client.check() == []
    assert {client.job(f"new{i}").state for i in range(3)} == {"depends"}
    assert q.counts().depends == 3
    client.settle([Completed(lease) for lease in q.lease("w", 3)])
    client.sweep()
    assert {client.job(f"new{i}").state for i in range(3)} <= {"waiting", "running"}


def test_ends_of_one_parent_are_told_in_their_order(client):
    """The parent fails, is put again and completes: dependents of the first end fail."""
    q = client.queue("q")
    wide(q, 3, "fail", 900)
    client.settle([Failed(lease, "g", "m") for lease in q.lease("w", 3)])
    q.put_many({"klass": "k", "jid": f"p{i}", "priority": -9} for i in range(3))
    client.settle([Completed(lease) for lease in q.lease("w", 3)])
    client.sweep()
    assert client.failed() == {"parent-failed": 2_700}


# Numbers.


def test_tokens_of_fifteen_digits_are_written_out(client, server, namespace):
    """Lua writes so long a number as 1e+14, which is no valid owner."""
    mark(server.redis, f"{{{namespace}}}:")
    server.redis.set(f"{{{namespace}}}:token", 10**15)
    server.redis.set(f"{{{namespace}}}:seq", 10**15)
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": jid, "tags": ["t"]} for jid in "abcd")
    client.queue("q").recur("k", every=9, jid="r")
    server.redis.lpush(f"{{{namespace}}}:in:q", b'{"klass": "k"}')
    leases = q.lease("w", 9)
    assert [lease.token for lease in leases] == list(range(10**15 + 1, 10**15 + 7))
    assert sorted(lease.jid for lease in leases)[4] == "in-1000000000000006"
    assert leases[0].complete() is True
    assert leases[1].release() is True
    assert client.cancel(leases[2].jid) == [leases[2].jid]
    assert leases[3].renew() > calls_of(client).clock()
    client.job(leases[3].jid).fail("g", "m")
    assert client.job(leases[3].jid).state == "failed"


def test_lease_beyond_the_last_token_is_refused(client, server, namespace):
    """The token's score in held:<w> would be equal to that of another token."""
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": jid} for jid in "abc")
    server.redis.set(f"{{{namespace}}}:token", 2**52 - 3)
    assert [(lease.jid, lease.token) for lease in q.lease("w", 2)] == [("a", 2**52 - 2), ("b", 2**52 - 1)]
    before = digest(server, namespace)
    with pytest.raises(LeaseholdError, match="above 4503599627370495"):
        q.lease("w")
    assert digest(server, namespace) == before
    assert client.job("b").token == 2**52 - 1


@pytest.mark.parametrize("act", ["cancel", "put", "fail", "release", "move"])
def test_record_with_a_damaged_owner_can_be_cancelled(client, server, namespace, act):
    q = client.queue("q")
    q.put("k", jid="j")
    q.lease("w")
    client.log("j", "makes its record a full one")
    server.redis.hset(f"{{{namespace}}}:job:j", "owner", "1e+14:w")
    server.redis.delete(f"{{{namespace}}}:held:w")
    run = {
        "cancel": job_changes.cancel(["j"], now=calls_of(client).clock()),
        "put": putting.put([new_job("put", "q", "k", None, {"jid": "j"})], now=calls_of(client).clock()),
        "fail": job_changes.fail("j", "g", "m", now=calls_of(client).clock()),
        "release": job_changes.release(["j"], now=calls_of(client).clock()),
        "move": job_changes.move("j", "other", now=calls_of(client).clock()),
    }
    assert client.job("j").token is None
    assert calls_of(client).run(run[act])
    after = client.job("j")
    assert after is None or after.state in ("waiting", "failed")


# The work of one call for all queues together.


def test_lease_brings_a_bounded_number_of_jobs_to_their_places(client, config, server, namespace):
    names = [f"q{i}" for i in range(3)]
    for name in names:
        client.queue(name).put_many([{"klass": "k", "delay": 5}] * 600)
    config(max_concurrency=1)
    calls_of(client).clock.tick(9)

    def still_scheduled():
        return sum(server.redis.zcard(f"{{{namespace}}}:queue:{name}:scheduled") for name in names)

    calls_of(client).call(leasing.lease, "w", names, 1_000)
    assert still_scheduled() == 1_200
    for _ in range(2):
        calls_of(client).call(leasing.lease, "w", names, 1_000)
    assert still_scheduled() == 0


def test_sweep_puts_a_bounded_number_of_recurring_jobs(client):
    for i in range(3):
        client.queue(f"q{i}").recur("k", every=1, jid=f"r{i}")
    calls_of(client).clock.tick(80)
    swept = calls_of(client).call(maintenance.sweep, 100)
    counts = client.queues()
    assert sum(one.waiting for one in counts.values()) == 100
    assert swept.next_offset == 2
    calls_of(client).call(maintenance.sweep, 100, offset=2)
    assert client.queues()["q2"].waiting == 81


def test_retention_takes_a_bounded_number_of_tags_away(client, config, server, namespace):
    q = client.queue("q")
    q.put_many({"klass": "k", "tags": [f"{i}-{j}" for j in range(100)]} for i in range(80))
    client.settle([Completed(lease) for lease in q.lease("w", 80)])
    config(jobs_history=1)
    calls_of(client).clock.tick(9)
    left = []
    for _ in range(3):
        calls_of(client).call(maintenance.sweep, 100)
        left.append(server.redis.zcard(f"{{{namespace}}}:complete"))
    assert left == [30, 0, 0]
    assert not server.redis.exists(f"{{{namespace}}}:tag-counts")


# Lanes and limits.


@pytest.mark.parametrize("lanes", [2_000])
def test_lease_passes_paused_lanes_of_a_limit_once(client, cpu_ms, lanes):
    q = client.queue("q")
    client.limit("smtp", running=1)
    q.put("k", limit="smtp")
    (held,) = q.lease("w")
    q.put_many({"klass": "k", "lane": f"{n:04}", "limit": "smtp"} for n in range(lanes))
    while q.counts().parked < lanes:
        q.lease("w", count=1000)
    for n in range(lanes):
        q.lane(f"{n:04}").pause()
    held.complete()
    with cpu_ms() as used:
        assert q.lease("w") == []
    assert used[0] < 120, "once 170 ms, and four times as much for twice as many"


@pytest.mark.sampled(3)
def test_queue_with_many_limits_is_forgotten_in_steps(client, server, namespace):
    q = client.queue("q")
    for first in range(0, 3_000, 1_000):
        names = [f"user-{n:04}" for n in range(first, first + 1_000)]
        for name in names:
            client.limit(name, running=0)
        q.put_many({"klass": "k", "limit": name} for name in names)
    while q.counts().parked < 3_000:
        q.lease("w", count=1000)
    q.delete()
    assert client.queues() == {} and not server.redis.exists(f"{{{namespace}}}:queue:q:limits")


@pytest.mark.sampled(2)
def test_queues_whose_jobs_do_not_start_are_visited_once_by_a_lease(client, cpu_ms):
    names = [f"q{n}" for n in range(600)]
    for name in names:
        client.queue(name).put("k", lane="a")
        client.queue(name).put("k", priority=-1)
        client.queue(name).lease("w", ttl=3600)
        client.queue(name).lane("a").pause()
    with cpu_ms() as used:
        assert client.lease("w2", names, order="round-robin") == []
    assert used[0] < 300, "once 640 ms, and four times as much for twice as many"


@pytest.mark.sampled(2)
def test_handed_back_jobs_of_a_full_rate_are_searched_for_in_bounded_time(client, cpu_ms):
    q = client.queue("q")
    client.limit("r", rate="10000/h")
    q.put_many({"klass": "k", "limit": "r"} for _ in range(10_000))
    leases = [lease for _ in range(10) for lease in q.lease("w", count=1000, ttl=3600)]
    with cpu_ms() as used:
        client.settle([Released(lease, started=False) for lease in leases[:1000]])
    assert used[0] < 350, "once 555 ms"


def test_queues_with_many_paused_lanes_are_listed_in_bounded_time(client, server, namespace, cpu_ms):
    for n in range(40):
        client.queue(f"q{n}").put("k")
        lanes = {f"paused:{lane:04}": "0:" for lane in range(2_500)}
        server.redis.hset(f"{{{namespace}}}:lanes:q{n}", mapping=lanes)
    with cpu_ms() as used:
        assert len(client.queues()) == 40
    assert used[0] < 250, "once 450 ms"


def test_parked_job_with_room_comes_beside_a_flood_of_entries(client, server, namespace):
    q = client.queue("q")
    client.limit("one", running=0)
    q.put("k", jid="parked", limit="one")
    assert q.lease("w", count=1000) == []
    client.limit("one", running=1)
    server.redis.lpush(f"{{{namespace}}}:in:q", *['{"klass": "k"}'] * 700)
    assert "parked" in [lease.jid for lease in q.lease("w", count=1000)]


def test_job_whose_record_is_gone_leaves_no_count_behind_in_its_lane(client, server, namespace):
    q = client.queue("q")
    lost, _ = (q.put("k", lane="a", jid=jid) for jid in ("lost", "there"))
    server.redis.delete(f"{{{namespace}}}:job:{lost}")
    q.lane("a").delete()
    assert q.counts().waiting == 0 and client.check(repair=True)
    assert client.check() == []


def test_half_of_a_limit_that_stays_names_who_removed_the_other(client):
    client.limit("l", running=1, rate="5/s", by="alice")
    calls_of(client).act(limits.unlimit, "l", "rate", by="bob")
    assert client.limit("l").set_by == "bob"
