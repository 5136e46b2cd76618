"""A worker inside of an application runs jobs, and ends as it should."""

import asyncio
import threading
import time
from collections import deque

import orjson
import pytest

from supervisor import Client, JobFailed, StoreUnavailable, Worker, handler
from supervisor.child.handler import HandlersError
from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.commands import data_schemas
from tests.in_process import gates
from tests.lengths import SOON_S
from tests.servers import free_port


@pytest.fixture(autouse=True)
def _own_gates():
    gates.forget()
    yield
    gates.forget()


async def until(holds, what="it"):
    """Wait until `holds()` is true, or the coroutine that it returns answers so."""
    async with asyncio.timeout(SOON_S):
        while True:
            found = holds()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.01)


@pytest.fixture
def refusals(monkeypatch):
    """Functions. While there are any, a job gets no thread, and the next one is called."""
    refusals, start = deque(), threading.Thread.start

    def start_or_refuse(thread):
        if refusals and thread.name.startswith("leasehold-job"):
            refusals.popleft()()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return refusals


async def state_of(client, jid):
    job = await client.job(jid)
    return job and job.state


async def has_told(client):
    return (await client.workers())[0].klasses != []


# runs


@pytest.mark.parametrize("klass", ["gates.double", "gates.adouble"])
def test_a_job_runs_and_its_result_is_kept(application, klass):
    async def work(client):
        async with Worker(client, "q", gates.ALL):
            jid = await client.queue("q").put(klass, {"n": 21})
            assert await client.wait(jid, SOON_S) == 42

    application(work)


def test_a_failed_job_is_tried_again(application):
    async def work(client):
        async with Worker(client, ["q"], [gates.fail_once]):
            jid = await client.queue("q").put("gates.fail_once")
            assert await client.wait(jid, SOON_S) == 2
        job = await client.job(jid)
        assert job.failures == 1

    application(work)


@pytest.mark.parametrize(("klass", "status"), [("gates.leave", 3), ("gates.aleave", 4)])
def test_sys_exit_of_a_handler_is_a_death_and_not_the_applications_end(application, klass, status):
    async def work(client):
        async with Worker(client, "q", gates.ALL):
            jid = await client.queue("q").put(klass, max_deaths=1)
            with pytest.raises(JobFailed) as failed:
                await client.wait(jid, SOON_S)
            assert failed.value.group == f"died:exit-{status}"

    application(work)


def test_a_job_of_an_unknown_klass_waits_for_a_worker_with_the_handler(application):
    async def work(client):
        jid = await client.queue("q").put("elsewhere.run")
        async with Worker(client, "q", gates.ALL):

            async def is_put_off():
                return (await client.job(jid)).state == "scheduled"

            await until(is_put_off)

    application(work)


def test_no_more_than_concurrency_jobs_run_at_once(application):
    async def work(client):
        await client.queue("q").put_many({"klass": "gates.hold", "data": {"gate": "g"}} for _ in range(5))
        async with Worker(client, "q", gates.ALL, concurrency=2):
            await until(lambda: len(gates.entered["g"]) == 2)
            assert (await client.queue("q").counts()).running == 2
            gates.open_gates["g"].set()
            await until(lambda: len(gates.entered["g"]) == 5)

    application(work)


def test_plain_handlers_run_in_threads_beside_each_other(application):
    async def work(client):
        for _ in range(3):
            await client.queue("q").put("gates.block")
        async with Worker(client, "q", gates.ALL, concurrency=3):
            await until(lambda: len(set(gates.entered["door"])) == 3)
            gates.open_doors["door"].set()

    application(work)


def test_thread_that_cannot_start_costs_no_place(application, refusals, monkeypatch):
    monkeypatch.setattr("supervisor.in_process.jobs._NO_THREAD_S", 0.0)
    refusals.append(lambda: None)

    async def work(client):
        doors = ("first", "second")
        for door in doors:
            await client.queue("q").put("gates.block", {"door": door})
        async with Worker(client, "q", gates.ALL, concurrency=2):
            await until(lambda: all(gates.entered[door] for door in doors))
            for door in doors:
                gates.open_doors[door].set()

    application(work)


def test_job_whose_thread_cannot_start_runs_once(application, refusals, monkeypatch):
    monkeypatch.setattr("supervisor.in_process.jobs._NO_THREAD_S", 0.0)
    gates.open_doors["second"].set()

    def let_the_first_end():
        [first] = [thread for thread in threading.enumerate() if thread.name in gates.entered["first"]]
        gates.open_doors["first"].set()
        while first.is_alive() and not gates.entered["second"]:
            time.sleep(0.001)

    async def work(client):
        await client.queue("q").put("gates.block", {"door": "first"})
        async with Worker(client, "q", gates.ALL, concurrency=2):
            await until(lambda: gates.entered["first"])
            refusals.append(let_the_first_end)
            second = await client.queue("q").put("gates.block", {"door": "second"})
            assert await client.wait(second, SOON_S) == "second"
        assert len(gates.entered["second"]) == 1

    application(work)


def test_job_without_a_thread_goes_back_when_its_task_is_cancelled(application, refusals, monkeypatch):
    monkeypatch.setattr("supervisor.in_process.jobs._NO_THREAD_S", 3600.0)
    refusals.append(lambda: None)

    async def work(client):
        jid = await client.queue("q").put("gates.block")
        async with Worker(client, "q", gates.ALL):
            await until(lambda: not refusals)
            [task] = [task for task in asyncio.all_tasks() if jid in task.get_name()]
            task.cancel()
            await until(lambda: gates.entered["door"])
            gates.open_doors["door"].set()
        job = await client.job(jid)
        assert (job.state, job.interruptions) == ("complete", 0)

    application(work)


def test_a_time_limit_cancels_an_async_handler(application):
    async def work(client):
        async with Worker(client, "q", gates.ALL):
            jid = await client.queue("q").put("gates.in_time")
            with pytest.raises(JobFailed, match="time limit") as failed:
                await client.wait(jid, SOON_S)
            assert failed.value.group == "timeout"

    application(work)


def test_a_time_limit_tells_a_thread_to_stop(application):
    @handler(name="gates.obey", timeout="0.1s")
    def obey(job):
        while not job.should_stop:
            gates.open_doors["never"].wait(0.01)
        return "stopped"

    async def work(client):
        async with Worker(client, "q", [obey]):
            jid = await client.queue("q").put("gates.obey")
            assert await client.wait(jid, SOON_S) == "stopped"

    application(work)


def test_an_async_handler_that_a_decorator_hides_runs_in_its_thread(application):
    def hidden(function):
        return lambda job: function(job)

    @handler(name="gates.hidden")
    @hidden
    async def inner(job):
        await asyncio.sleep(0)
        return threading.current_thread().name

    async def work(client):
        async with Worker(client, "q", [inner]):
            jid = await client.queue("q").put("gates.hidden")
            assert (await client.wait(jid, SOON_S)).startswith("leasehold-job")

    application(work)


def test_data_of_the_wrong_shape_is_broken(application):
    async def work(client):
        async with Worker(client, "q", gates.ALL):
            jid = await client.queue("q").put("gates.double", {"m": 1})
            with pytest.raises(JobFailed) as failed:
                await client.wait(jid, SOON_S)
            assert failed.value.group == "broken"

    application(work)


def test_worker_stores_the_schemas_of_its_data(application):
    @handler(name="typed")
    def typed(job, user: int): ...

    async def work(client):
        async with Worker(client, "q", [typed, *gates.ALL]):
            await until(lambda: has_schema(client))

    async def has_schema(client):
        found = await calls_of(client).call(data_schemas.read, "q", "typed")
        return [orjson.loads(schema)["properties"]["user"]["type"] for schema in found] == ["integer"]

    application(work)


def test_handlers_of_a_package_are_found_and_no_others(application, tmp_path, monkeypatch):
    (tmp_path / "inside_handlers").mkdir()
    source = "from supervisor import handler\n\n@handler\ndef add(job, n: int):\n    return n + 1\n"
    (tmp_path / "inside_handlers/numbers.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))

    async def work(client):
        async with Worker(client, "q", "inside_handlers"):
            await until(lambda: has_told(client))
            assert (await client.workers())[0].klasses == ["numbers.add"]
            assert await client.wait(await client.queue("q").put("numbers.add", {"n": 1}), SOON_S) == 2

    application(work)


# what operators want


def test_worker_is_shown_and_answers_like_a_supervisor(application):
    async def work(client):
        async with Worker(client, "q", gates.ALL, concurrency=3) as worker:
            await client.queue("q").put("gates.hold")
            await until(lambda: gates.entered["gate"])
            [shown] = await client.workers()
            assert (shown.name, shown.running, shown.queues) == (worker.name, 1, ["q"])
            [status] = (await client.ask(None, "status", SOON_S)).values()
            assert (status["busy"], status["idle"], status["state"]) == (1, 2, "serving")
            [refusal] = (await client.ask(None, "scale", SOON_S, {"fewest": 1, "most": 2})).values()
            assert "inside of an application" in refusal["error"]
            gates.open_gates["gate"].set()

    application(work)


def test_worker_serves_other_queues_when_asked(application):
    async def work(client):
        async with Worker(client, "q", gates.ALL) as worker:
            await client.serve(worker.name, ["other"])
            jid = await client.queue("other").put("gates.adouble", {"n": 1})
            assert await client.wait(jid, SOON_S) == 2

    application(work)


def test_a_paused_queue_gives_nothing(application):
    async def work(client):
        queue = client.queue("q")
        await queue.pause()
        paused = await queue.put("gates.adouble", {"n": 1})
        async with Worker(client, ["q", "open"], gates.ALL):
            await client.wait(await client.queue("open").put("gates.adouble", {"n": 1}), SOON_S)
            assert await state_of(client, paused) == "waiting"
            await queue.unpause()
            assert await client.wait(paused, SOON_S) == 2

    application(work)


def test_worker_keeps_the_limits_of_jobs(application):
    async def work(client):
        await client.limit("one", running=1)
        jids = [await client.queue("q").put("gates.hold", limit="one") for _ in range(2)]
        async with Worker(client, "q", gates.ALL):
            await until(lambda: gates.entered["gate"])
            await client.wait(await client.queue("q").put("gates.adouble", {"n": 1}), SOON_S)
            assert len(gates.entered["gate"]) == 1
            gates.open_gates["gate"].set()
            for jid in jids:
                await client.wait(jid, SOON_S)

    application(work)


def test_a_cancelled_job_stops_at_its_await(application):
    async def work(client):
        jid = await client.queue("q").put("gates.hold")
        async with Worker(client, "q", gates.ALL):
            await until(lambda: gates.entered["gate"])
            assert await client.cancel(jid) == [jid]
            await until(lambda: gates.ended == ["cancelled"])

    application(work)


def test_a_thread_of_a_cancelled_job_is_told_and_its_result_dropped(application):
    async def work(client):
        jid = await client.queue("q").put("gates.block")
        async with Worker(client, "q", gates.ALL):
            await until(lambda: gates.entered["door"])
            await client.cancel(jid)
            mark = await client.queue("q").put("gates.adouble", {"n": 1})
            await client.wait(mark, SOON_S)
            gates.open_doors["door"].set()
        assert gates.ended == [True]
        assert await client.job(jid) is None

    application(work)


def test_a_job_that_is_moved_away_is_lost(application):
    async def work(client):
        jid = await client.queue("q").put("gates.hold")
        async with Worker(client, "q", gates.ALL):
            await until(lambda: gates.entered["gate"])
            await (await client.job(jid)).move("elsewhere")
            await until(lambda: gates.ended == ["cancelled"])
        job = await client.job(jid)
        assert (job.queue, job.state, job.interruptions) == ("elsewhere", "waiting", 0)

    application(work)


def test_a_forgotten_worker_goes_on_under_another_name(application):
    async def work(client):
        jid = await client.queue("q").put("gates.hold")
        async with Worker(client, "q", gates.ALL) as worker:
            await until(lambda: gates.entered["gate"])
            name = worker.name
            assert await client.deregister(name) == 1
            await until(lambda: gates.ended == ["cancelled"])
            gates.open_gates["gate"].set()
            assert await client.wait(jid, SOON_S) == "gate"
            assert worker.name != name

    application(work)


# the end


def test_the_end_of_the_block_waits_for_jobs(application):
    async def work(client):
        jid = await client.queue("q").put("gates.hold")
        async with Worker(client, "q", gates.ALL):
            await until(lambda: gates.entered["gate"])
            asyncio.get_running_loop().call_later(0.05, gates.open_gates["gate"].set)
        assert await state_of(client, jid) == "complete"

    application(work)


def test_the_end_of_the_drain_hands_back_in_order(application):
    async def work(client):
        jids = [await client.queue("q").put("gates.hold") for _ in range(3)]
        async with Worker(client, "q", gates.ALL, drain_timeout=0):
            await until(lambda: len(gates.entered["gate"]) == 3)
        assert gates.ended == ["cancelled"] * 3
        handed_back = await client.queue("q").peek(3)
        assert [job.jid for job in handed_back] == jids
        assert [(job.interruptions, job.failures) for job in handed_back] == [(1, 0)] * 3

    application(work)


def test_handlers_that_go_on_are_left_behind_and_their_jobs_handed_back(application, monkeypatch):
    monkeypatch.setattr("supervisor.in_process.worker._GRACE_S", 0.05)

    async def work(client):
        jids = [await client.queue("q").put(klass) for klass in ("gates.stay", "gates.block")]
        async with Worker(client, "q", gates.ALL, drain_timeout=0):
            await until(lambda: gates.entered["door"] and gates.started["gate"].is_set())
        assert [await state_of(client, jid) for jid in jids] == ["waiting"] * 2
        assert gates.ended == ["stayed"]
        gates.open_doors["door"].set()
        gates.open_gates["gate"].set()

    application(work)


def test_a_cancelled_application_hands_back_at_once(application):
    async def work(client):
        jid = await client.queue("q").put("gates.hold")

        draining = asyncio.Event()

        async def serve():
            async with Worker(client, "q", gates.ALL, drain_timeout="1h"):
                try:
                    await asyncio.Event().wait()
                finally:
                    draining.set()

        serving = asyncio.create_task(serve())
        await until(lambda: gates.entered["gate"])
        serving.cancel()
        await draining.wait()
        serving.cancel()
        await asyncio.wait([serving])
        assert gates.ended == ["cancelled"]
        assert serving.cancelled()
        assert await state_of(client, jid) == "waiting"

    application(work)


def test_an_error_in_the_block_is_raised_after_the_drain(application):
    async def work(client):
        with pytest.raises(LookupError):
            async with Worker(client, "q", gates.ALL):
                jid = await client.queue("q").put("gates.adouble", {"n": 1})
                await client.wait(jid, SOON_S)
                raise LookupError
        assert await client.workers() == []

    application(work)


def test_a_worker_serves_once(application):
    async def work(client):
        worker = Worker(client, "q", gates.ALL)
        async with worker:
            pass
        with pytest.raises(RuntimeError, match="serves once"):
            await worker.__aenter__()

    application(work)


# arguments


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"handlers": "no_such_package"}, HandlersError, "there is no module 'no_such_package'"),
        ({"handlers": [len]}, TypeError, "handlers must be functions with @handler, not builtin"),
        ({"handlers": []}, ValueError, "at least one"),
        ({"queues": []}, ValueError, "queues"),
        ({"queues": 5}, TypeError, "queues must be a list of names, not int"),
        ({"queues": "!q"}, ValueError, "queues only excludes"),
        ({"order": "sorted"}, ValueError, "order"),
        ({"concurrency": 0}, ValueError, "concurrency"),
        ({"concurrency": 1001}, ValueError, "concurrency"),
        ({"drain_timeout": -1}, ValueError, "drain_timeout must be 0 or more"),
        ({"lease_ttl": 0}, ValueError, "lease_ttl must be between 1s and 24h: 0"),
        ({"job_timeout": "soon"}, ValueError, "job_timeout"),
        ({"on_error": "ignore"}, ValueError, "on_error must be 'retry' or 'fail'"),
    ],
)
def test_wrong_arguments_are_named(server, namespace, given, error, words):
    client = AsyncClient(server.url, namespace)
    arguments = {"queues": "q", "handlers": gates.ALL} | given
    with pytest.raises(error, match=words):
        Worker(client, arguments.pop("queues"), arguments.pop("handlers"), **arguments)


def test_a_sync_client_is_refused(server, namespace):
    with (
        Client(server.url, namespace) as client,
        pytest.raises(TypeError, match="must be an AsyncClient, not Client"),
    ):
        Worker(client, "q", gates.ALL)


def test_a_server_that_is_away_is_said_at_the_begin(namespace):
    async def main():
        async with AsyncClient(f"redis://127.0.0.1:{free_port()}", namespace) as client:
            with pytest.raises(StoreUnavailable, match="cannot reach Redis"):
                async with Worker(client, "q", gates.ALL):
                    raise AssertionError

    asyncio.run(main())
