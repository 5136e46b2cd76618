"""Follow-ups: jobs put in the same step as a completion, or not at all."""

import asyncio

import pytest

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import settling
from supervisor.engine.model.errors import DependencyError, StoreUnavailable
from supervisor.engine.model.outcomes import REFUSED, Completed


def first(client, **options):
    client.queue("q").put("k", jid="first", **options)
    return client.queue("q").lease("w")[0]


def follower(jid, **options):
    return {"queue": "r", "klass": "k", "jid": jid, **options}


def waiting(client, queue="r"):
    return [lease.jid for lease in client.queue(queue).lease("other", 1000)]


def test_follow_ups_are_put_with_the_completion(client):
    lease = first(client)
    assert lease.complete("result", then=[follower("a", data={"n": 1}), follower("b", priority=-1)]) is True
    assert (client.job("first").state, client.job("a").data) == ("complete", {"n": 1})
    assert waiting(client) == ["b", "a"]


def test_advance_may_have_follow_ups(client):
    lease = first(client)
    assert lease.complete(next="s", then=[follower("a")]) is True
    assert (client.job("first").queue, waiting(client)) == ("s", ["a"])


def test_a_lost_lease_puts_nothing(client, clock):
    lease = first(client)
    clock.tick(36)
    client.queue("q").lease("w2")
    assert lease.complete(then=[follower("a")]) is False
    assert client.job("a") is None


def test_a_completion_that_is_sent_twice_puts_them_once(client, clock):
    lease = first(client)
    settle = settling.settle("w", [Completed(lease, then=[{"queue": "r", "klass": "k"}])], number=1, now=clock.now)
    assert calls_of(client).run(settle) == calls_of(client).run(settle) == [True]
    assert len(waiting(client)) == 1


def test_the_second_of_two_completions_puts_nothing(client):
    lease = first(client)
    assert lease.complete(then=[follower("a")]) is True
    assert lease.complete(then=[follower("b")]) is False
    assert client.job("b") is None


def test_follow_ups_take_all_options_of_put(client, clock):
    lease = first(client)
    lease.complete(
        then=[
            follower("a", delay=5, tags=["t"], lane="l", limit="key", unique="u", expires=60, at_most_once=True),
            follower("b", data=b"\xff", persistent=True, at=clock.now + 9),
        ]
    )
    a, b = client.jobs("a", "b")
    assert (a.state, a.tags, a.lane, a.limit, a.unique, a.at_most_once) == ("scheduled", ["t"], "l", "key", "u", True)
    assert (b.state, b.data, b.persistent, b.due_unix) == ("scheduled", b"\xff", True, clock.now + 9)


def test_follow_ups_may_depend_on_each_other_and_the_completed_job(client):
    lease = first(client)
    lease.complete(then=[follower("a", depends=["first"]), follower("b", depends=["a"])])
    assert (client.job("a").state, client.job("b").state) == ("waiting", "depends")


def test_known_follow_up_is_moved_as_put_does(client):
    client.queue("s").put("k", 1, jid="a", priority=7)
    first(client).complete(then=[follower("a", data=2)])
    assert (client.job("a").queue, client.job("a").data, client.job("a").priority) == ("r", 2, 7)


def test_follow_up_may_be_the_job_itself(client):
    lease = first(client)
    assert lease.complete("r", then=[follower("first")]) is True
    assert (client.job("first").state, client.job("first").queue) == ("waiting", "r")


def test_follow_up_waiting_for_itself_leaves_the_lease_unchanged(client):
    lease = first(client)
    with pytest.raises(DependencyError, match="job first cannot go on so"):
        lease.complete(then=[follower("fine"), follower("a", depends=["a"])])
    assert client.jobs("fine", "a") == [None, None]
    assert client.job("first").state == "running"
    assert lease.complete() is True


def test_round_about_ones_are_refused_too(client):
    lease = first(client)
    client.queue("s").put("k", jid="parent", delay=99)
    client.queue("s").put("k", jid="child", depends=["parent"])
    for then in (
        [follower("parent", depends=["child"])],
        [follower("a", depends=["b"]), follower("b", depends=["a"])],
    ):
        assert client.settle([Completed(lease, then=then)]) == [REFUSED]
    assert client.job("parent").queue == "s"


def test_refused_outcome_leaves_its_batch_alone(client):
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": jid} for jid in ("good", "bad", "better"))
    good, bad, better = q.lease("w", 3)
    answers = client.settle(
        [
            Completed(good, then=[follower("of-good")]),
            Completed(bad, then=[follower("of-bad", depends=["of-bad"])]),
            Completed(better, then=[follower("of-better", depends=["good"])]),
        ]
    )
    assert answers == [True, REFUSED, True]
    assert [job and job.state for job in client.jobs("good", "bad", "better")] == ["complete", "running", "complete"]
    assert waiting(client) == ["of-good", "of-better"]


@pytest.mark.parametrize(
    ("then", "error"),
    [
        ("a", r"then must be a list of dicts of put's arguments"),
        ([1], r"then must be dicts of put's arguments, not int: 1"),
        ([{"klass": "k"}], r"then must each have a queue"),
        ([{"queue": "r"}], r"then must each have a klass"),
        ([{"queue": "r", "klass": "k", "prio": 1}], r"put has no option 'prio'"),
        ([{"queue": "r", "klass": "k", "data": {1}}], r"data"),
    ],
)
def test_wrong_ones_are_refused_before_anything_is_sent(client, then, error):
    lease = first(client)
    with pytest.raises((TypeError, ValueError), match=error):
        lease.complete(then=then)
    assert client.job("first").state == "running"


def test_thousand_follow_ups_are_put_in_one_step(client):
    lease = first(client)
    assert lease.complete(then=[{"queue": "r", "klass": "k", "data": i} for i in range(1000)]) is True
    assert client.queue("r").length() == 1000


def test_follow_ups_wake_the_workers_of_their_queues(client, server, namespace):
    lease = first(client)
    client.queue("r").lease("other")
    lease.complete(then=[follower("a")])
    assert server.redis.llen(f"{{{namespace}}}:bell:r") == 1


def test_a_chain_is_never_without_its_next_job(client):
    """A hundred completions that each put the next job: at no time are there two, or none."""
    client.queue("q").put("k", 0)
    for n in range(100):
        (lease,) = client.queue("q").lease("w", 9)
        assert lease.data == n
        lease.complete(then=[{"queue": "q", "klass": "k", "data": n + 1}])


def test_the_async_client_puts_the_same(server, namespace, clock):
    async def main():
        async with AsyncClient(server.url, namespace, clock) as client:
            q = client.queue("q")
            await q.put("k", jid="first")
            (lease,) = await q.lease("w")
            assert await lease.complete(then=[follower("a")]) is True
            assert [it.jid for it in await client.queue("r").lease("w")] == ["a"]

    asyncio.run(main())


def test_full_server_refuses_follow_ups_and_keeps_the_lease(client, server):
    lease = first(client)
    client.queue("q").put("k", jid="plain")
    (other,) = client.queue("q").lease("w2")
    server.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match=r"refused settle: .*used memory.*Nothing has changed"):
            lease.complete(then=[follower("a")])
        assert lease.renew() > calls_of(client).clock()
        assert other.complete(next="r") is True
    finally:
        server.redis.config_set("maxmemory", 0)
    assert lease.complete(then=[follower("a")]) is True
    assert waiting(client) == ["plain", "a"]


@pytest.mark.parametrize(
    "bring",
    [
        lambda lease, data: lease.complete(next="r", data=data),
        lambda lease, data: lease.complete(data=data),
        lambda lease, data: lease.fail("group", "message", data=data),
        lambda lease, data: lease.renew(data=data),
    ],
)
def test_full_server_refuses_large_data_and_takes_small(client, server, bring):
    large = first(client)
    client.queue("q").put("k", jid="second")
    (small,) = client.queue("q").lease("w2")
    server.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match=r"refused (settle|renew): .*used memory.*Nothing has changed"):
            bring(large, b"x" * 65537)
        assert large.renew() > calls_of(client).clock()
        assert bring(small, b"x" * 1000)
    finally:
        server.redis.config_set("maxmemory", 0)
    assert bring(large, b"x" * 65537)
