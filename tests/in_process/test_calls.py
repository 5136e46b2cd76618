"""A job's calls while it runs inside of an application: progress, checkpoints, streams, results, waits and steps."""

import asyncio

import pytest

from supervisor import JobFailed, LeaseLost, Worker, around_job, handler
from supervisor.child import around
from tests.in_process import gates
from tests.in_process.test_worker import has_told, until
from tests.lengths import SOON_S


@handler(name="calls.threaded")
def threaded(job):
    return _do_all(job)


@handler(name="calls.blocking")
async def blocking(job):
    return _do_all(job)


@handler(name="calls.looping")
def looping(job):
    """Has a loop of its own."""
    return asyncio.run(_await_all(job))


@handler(name="calls.awaiting")
async def awaiting(job):
    return await _await_all(job)


async def _await_all(job):
    job.progress(0.5, "half")
    if job.saved is None:
        await job.acheckpoint({"at": 1})
        await job.astream("first")
        await job.astep("charge", _charge)
        job.sleep("0.01s")
    (job.workdir / "file").write_text("x")
    job.put("next", "gates.double", {"n": 1})
    return [job.saved, await job.astep("charge", _charge), [*job.results.values()]]


charged = []


def _charge():
    charged.append(1)
    return len(charged)


def _do_all(job):
    job.progress(0.5, "half")
    if job.saved is None:
        job.checkpoint({"at": 1})
        job.stream("first")
        job.step("charge", _charge)
        job.sleep("0.01s")
    (job.workdir / "file").write_text("x")
    job.put("next", "gates.double", {"n": 1})
    return [job.saved, job.step("charge", _charge), [*job.results.values()]]


ALL = [threaded, blocking, looping, awaiting, *gates.ALL]


@pytest.mark.parametrize("klass", ["calls.threaded", "calls.blocking", "calls.looping", "calls.awaiting"])
def test_a_job_has_all_calls_of_a_job_in_a_supervisor(application, klass):
    charged.clear()

    async def work(client):
        async with Worker(client, "q", ALL):
            parent = await client.queue("q").put("gates.adouble", {"n": 4})
            jid = await client.queue("q").put(klass, depends=[parent])
            chunks = [chunk async for chunk in client.stream(jid)]
            assert await client.wait(jid, SOON_S) == [{"at": 1}, 1, [8]]
            assert chunks == ["first"]
        job = await client.job(jid)
        assert (job.progress.fraction, job.progress.text) == (0.5, "half")
        assert (await client.queue("next").counts()).waiting == 1
        assert charged == [1]

    application(work)


async def _charge_later():
    return _charge()


def test_async_step_of_a_plain_handler_fails_the_job(application):
    charged.clear()

    @handler(name="calls.forgets_await", on_error="fail")
    def forgets_await(job):
        job.step("charge", _charge_later)

    async def work(client):
        async with Worker(client, "q", [forgets_await]):
            jid = await client.queue("q").put("calls.forgets_await")
            with pytest.raises(JobFailed, match="make the handler async"):
                await client.wait(jid, SOON_S)
        assert charged == []

    application(work)


def test_a_wait_ends_with_its_signal(application):
    @handler(name="calls.approved")
    async def approved(job):
        return job.wait("approval", timeout="1h")

    async def work(client):
        async with Worker(client, "q", [approved]):
            jid = await client.queue("q").put("calls.approved")

            async def waits():
                return (await client.job(jid)).waiting_for is not None

            await until(waits)
            await client.signal(jid, "approval", "yes")
            assert await client.wait(jid, SOON_S) == "yes"

    application(work)


@pytest.mark.parametrize("klass", ["gates.double", "gates.adouble"])
def test_around_job_sees_each_outcome(application, monkeypatch, klass):
    monkeypatch.setattr(around, "registered", [])
    seen = []

    @around_job
    def watch(job):
        ending = yield
        seen.append((job.klass, ending.outcome))

    async def work(client):
        async with Worker(client, "q", gates.ALL):
            await client.wait(await client.queue("q").put(klass, {"n": 1}), SOON_S)

    application(work)
    assert seen == [(klass, "completed")]


def test_a_thread_that_has_lost_its_job_cannot_store(application):
    lost = []

    @handler(name="calls.store_late")
    def store_late(job):
        gates.entered["late"].append(job.jid)
        gates.open_doors["late"].wait(SOON_S)
        for call in (job.checkpoint, job.stream):
            with pytest.raises(LeaseLost):
                call(1)
            lost.append(call.__name__)

    async def work(client):
        async with Worker(client, "q", [store_late]):
            jid = await client.queue("q").put("calls.store_late")
            await until(lambda: gates.entered["late"])
            await client.cancel(jid)
            gates.open_doors["late"].set()
            await until(lambda: len(lost) == 2)

    application(work)


def test_recurring_jobs_of_handlers_are_put(application):
    runs = []

    @handler(name="calls.tick", every="0.1s", queue="q")
    async def tick(job):
        runs.append(job.jid)

    async def work(client):
        async with Worker(client, "q", [tick]):
            await until(lambda: len(runs) > 1)
        await client.unrecur("calls.tick")

    application(work)


def test_emptied_redis_gets_the_recurring_jobs_again(application, server, namespace):
    @handler(name="calls.daily", every="1d", queue="q")
    async def daily(job): ...

    async def is_declared(client):
        return await client.recurring("calls.daily") is not None

    async def work(client):
        async with Worker(client, "q", [daily]):
            await until(lambda: has_told(client))
            server.redis.delete(*server.redis.scan_iter(f"{{{namespace}}}:*", count=1000))
            await until(lambda: is_declared(client))
        await client.unrecur("calls.daily")

    application(work)
