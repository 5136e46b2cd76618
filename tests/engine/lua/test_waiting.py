"""Waiting for the end of a job: told at once, without polling."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.errors import JobFailed, JobNotFound, LeaseholdError


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as pool:
        yield pool


def waiting(server):
    """Return how many connections wait in Redis."""
    return sum(b"cmd=blpop" in line for line in server.redis.execute_command("CLIENT", "LIST").split(b"\n"))


def blocked(server, key, count=1):
    """Return when so many connections wait in Redis, and have taken all tokens."""
    while waiting(server) < count or server.redis.exists(key):
        pass


def ended(namespace, jid):
    return f"{{{namespace}}}:ended:{jid}"


def test_complete_job_returns_its_result_at_once(live):
    live.queue("q").put("k", jid="a")
    live.queue("q").lease("w")[0].complete({"answer": 42})
    assert live.wait("a", 0) == {"answer": 42}


def test_a_job_without_a_result_answers_none(live):
    live.queue("q").put("k", jid="a")
    live.queue("q").lease("w")[0].complete()
    assert live.wait("a", 5) is None


def test_waiter_is_told_of_the_completion(live, server, namespace, pool):
    live.queue("q").put("k", jid="a")
    (lease,) = live.queue("q").lease("w")
    waiter = pool.submit(live.wait, "a", 30)
    blocked(server, ended(namespace, "a"))
    lease.complete("done")
    assert waiter.result(10) == "done"


def test_all_waiters_are_told(live, server, namespace, pool):
    live.queue("q").put("k", jid="a")
    (lease,) = live.queue("q").lease("w")
    waiters = [pool.submit(live.wait, "a", 30) for _ in range(4)]
    blocked(server, ended(namespace, "a"), 4)
    lease.complete("done")
    assert [waiter.result(10) for waiter in waiters] == ["done"] * 4


def test_waiter_is_told_of_the_failure_and_its_reason(live, server, namespace, pool):
    live.queue("q").put("k", jid="a", retries=0)
    (lease,) = live.queue("q").lease("w")
    waiter = pool.submit(live.wait, "a", 30)
    blocked(server, ended(namespace, "a"))
    lease.retry(group="ValueError", message="no such thing")
    with pytest.raises(JobFailed, match=r"^job a failed in group ValueError: no such thing$") as caught:
        waiter.result(10)
    assert (caught.value.jid, caught.value.group, caught.value.message) == ("a", "ValueError", "no such thing")
    assert isinstance(caught.value, LeaseholdError)
    with pytest.raises(JobFailed):
        live.wait("a", 0)


def test_waiter_is_told_of_the_cancellation(live, server, namespace, pool):
    live.queue("q").put("k", jid="a")
    waiter = pool.submit(live.wait, "a", 30)
    blocked(server, ended(namespace, "a"))
    live.cancel("a")
    with pytest.raises(JobNotFound, match="there is no job a"):
        waiter.result(10)


def test_wait_for_a_job_without_retention_only_sees_it_gone(live, config, server, namespace, pool):
    config(jobs_history=0)
    live.queue("q").put("k", jid="a")
    (lease,) = live.queue("q").lease("w")
    waiter = pool.submit(live.wait, "a", 30)
    blocked(server, ended(namespace, "a"))
    lease.complete("done")
    with pytest.raises(JobNotFound, match="was not kept"):
        waiter.result(10)


def test_retried_or_advanced_job_has_not_ended(live, server, namespace, pool):
    live.queue("q").put("k", jid="a")
    waiter = pool.submit(live.wait, "a", 30)
    blocked(server, ended(namespace, "a"))
    live.queue("q").lease("w")[0].retry()
    live.queue("q").lease("w")[0].complete(next="next")
    live.queue("next").lease("w")[0].release()
    assert not waiter.done()
    live.queue("next").lease("w")[0].complete("at last")
    assert waiter.result(10) == "at last"


def test_patience_has_an_end(live):
    live.queue("q").put("k", jid="a")
    for timeout in (0, 0.02):
        with pytest.raises(TimeoutError, match=f"^job a has not ended within {timeout:g} s$"):
            live.wait("a", timeout)


def test_there_must_be_such_a_job(live):
    with pytest.raises(JobNotFound, match="there is no job a"):
        live.wait("a", 30)


def test_waiter_sends_nothing_meanwhile(server, namespace, pool):
    with Client(server.url, namespace) as client:
        client.queue("q").put("k", jid="a")
        waiter = pool.submit(client.wait, "a", 30)
        blocked(server, ended(namespace, "a"))
        before = server.calls("evalsha")
        server.redis.execute_command("CLIENT", "LIST")
        assert server.calls("evalsha") == before
        client.cancel("a")
        with pytest.raises(JobNotFound):
            waiter.result(10)


def test_unread_tokens_expire(live, server, namespace):
    live.queue("q").put("k", jid="a")
    with pytest.raises(TimeoutError):
        live.wait("a", 0)
    live.queue("q").lease("w")[0].complete()
    assert 0 < server.redis.ttl(ended(namespace, "a")) <= 60


def test_earlier_end_does_not_end_the_next_stage(live, server, namespace, pool):
    live.queue("q").put("k", jid="a")
    with pytest.raises(TimeoutError):
        live.wait("a", 0)
    live.queue("q").lease("w")[0].complete("first")
    live.queue("q").put("k", jid="a")
    waiter = pool.submit(live.wait, "a", 30)
    blocked(server, ended(namespace, "a"))
    live.queue("q").lease("w")[0].complete("second")
    assert waiter.result(10) == "second"


def test_the_async_client_waits_the_same(server, namespace):
    async def main():
        async with AsyncClient(server.url, namespace) as client:
            q = client.queue("q")
            await q.put_many([{"klass": "k", "jid": jid} for jid in "ab"])
            one, two = await q.lease("w", 2)
            waiters = [asyncio.create_task(client.wait(jid, 30)) for jid in "ab"]
            while waiting(server) < 2:
                await asyncio.sleep(0)
            await one.complete([1])
            await two.fail("g", "m")
            assert await waiters[0] == [1]
            with pytest.raises(JobFailed):
                await waiters[1]
            with pytest.raises(JobNotFound):
                await client.wait("c", 5)

    asyncio.run(main())


def test_abandoned_wait_leaves_the_connections_usable(server, namespace):
    async def main():
        async with AsyncClient(server.url, namespace) as client:
            await client.queue("q").put("k", {"n": 1}, jid="a")
            waiter = asyncio.create_task(client.wait("a", 30))
            while not waiting(server):
                await asyncio.sleep(0)
            await client.job("a")  # by now it reads; Python 3.11 may lose a cancellation while it sends
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert [(await client.job("a")).data for _ in range(3)] == [{"n": 1}] * 3
            (lease,) = await client.queue("q").lease("w")
            assert await lease.complete("done") is True
            assert await client.wait("a", 5) == "done"

    asyncio.run(main())
