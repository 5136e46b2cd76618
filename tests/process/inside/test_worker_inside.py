"""Workers inside of applications lose nothing: when their process is killed, when Redis is away, beside supervisors."""

import asyncio
import subprocess
import sys
import time
from collections import Counter

import pytest

from supervisor import AsyncClient, StoreUnavailable, Worker, handler
from supervisor.child import handlers
from tests.environment import without_settings
from tests.in_process import gates
from tests.lengths import SOON_S
from tests.process.apps import start_app
from tests.process.supervised import ROOT

#: Handlers of an application and of a supervisor. Each start adds a line to a file.
HANDLERS = """
import asyncio, os

from supervisor import handler


def mark(job):
    file = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{job.jid}\\n".encode())
    os.close(file)


@handler(name="inside.thread")
def thread(job):
    mark(job)


@handler(name="inside.task")
async def task(job):
    mark(job)


@handler(name="inside.hang")
async def hang(job):
    mark(job)
    if len(open(FILE).readlines()) <= 3:
        await asyncio.Event().wait()
"""

APPLICATION = """
import asyncio, sys

from supervisor import AsyncClient, Worker

async def main():
    async with AsyncClient(sys.argv[1], sys.argv[2]) as client:
        async with Worker(client, "q", [thread, task, hang], lease_ttl=1):
            await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


class Applications:
    def __init__(self, stage):
        self._stage = stage
        self._file = stage.directory / "marks"
        self._processes = []
        self.handlers = f"FILE = {str(self._file)!r}\n{HANDLERS}"

    def start(self):
        """Start an application with a worker. The worker drains when stdin ends."""
        words = [sys.executable, "-c", self.handlers + APPLICATION, self._stage.server.url, self._stage.namespace]
        process = subprocess.Popen(words, cwd=ROOT, env=without_settings(), stdin=subprocess.PIPE)
        self._processes.append(process)
        return process

    def marks(self):
        return self._file.read_text().split() if self._file.exists() else []

    def close(self):
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def applications(stage):
    applications = Applications(stage)
    yield applications
    applications.close()


@pytest.fixture(autouse=True)
def _own_gates(monkeypatch):
    monkeypatch.setattr(handlers, "_registered", [*handlers.registered()])
    gates.forget()
    yield
    gates.forget()


def wait_until(holds):
    deadline_at = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline_at
        time.sleep(0.01)  # no event tells what other processes have done


def test_jobs_of_a_killed_application_run_at_another_one(stage, applications):
    stage.config(grace=0)
    jids = stage.client.queue("q").put_many({"klass": "inside.hang"} for _ in range(3))
    killed = applications.start()
    wait_until(lambda: len(applications.marks()) == 3)
    [record] = stage.client.workers()
    killed.kill()
    other = applications.start()
    stage.wait_until_settled(jids)
    other.communicate()
    assert other.returncode == 0
    assert Counter(applications.marks()) == dict.fromkeys(jids, 2)
    assert [job.deaths for job in stage.client.jobs(*jids)] == [1, 1, 1]
    stage.client.deregister(record.name)  # as time would do
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
def test_each_job_runs_once_beside_a_supervisor(stage, applications):
    pool = start_app(stage, applications.handlers, queue="q", processes=2, jobs_per_child=0)
    both = [applications.start(), applications.start()]
    wait_until(lambda: sum(bool(each.klasses) for each in stage.client.workers()) == 3)
    klasses = ["inside.thread", "inside.task"]
    jids = stage.client.queue("q").put_many({"klass": klasses[n % 2]} for n in range(2000))
    for jid in jids:
        stage.client.wait(jid, SOON_S)
    for each in both:
        each.communicate()
        assert each.returncode == 0
    assert pool.drain() == 0
    assert Counter(applications.marks()) == dict.fromkeys(jids, 1)
    assert 0 < len(pool.find("job.completed")) < 2000
    assert stage.client.check() == []
    stage.assert_nothing_left()


async def _until(holds):
    async with asyncio.timeout(SOON_S):
        while not holds():
            await asyncio.sleep(0.01)


async def _result_of(client, jid):
    """Wait for a job's end by a client whose server may be away."""
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                return await client.wait(jid, SOON_S)
            except StoreUnavailable:
                await asyncio.sleep(0.05)


def test_an_outage_costs_no_job_and_none_runs_twice(own_server, namespace):
    async def main():
        async with AsyncClient(own_server.url, namespace) as client, Worker(client, "q", gates.ALL):
            queue = client.queue("q")
            during = await queue.put("gates.hold", {"gate": "during"})
            after = await queue.put("gates.hold", {"gate": "after"})
            waits = await queue.put("gates.block")
            await _until(lambda: gates.entered["during"] and gates.entered["after"] and gates.entered["door"])
            own_server.kill()
            gates.open_gates["during"].set()
            gates.open_doors["door"].set()
            await _until(lambda: gates.ended)
            await asyncio.to_thread(own_server.start)
            gates.open_gates["after"].set()
            assert [await _result_of(client, jid) for jid in (during, after, waits)] == ["during", "after", "door"]
            late = await queue.put("gates.adouble", {"n": 2})
            assert await client.wait(late, SOON_S) == 4
            assert [len(gates.entered[name]) for name in ("during", "after", "door")] == [1, 1, 1]
            assert await client.check() == []
        async with AsyncClient(own_server.url, namespace) as client:
            assert await client.workers() == []

    asyncio.run(main())


def test_a_thread_waits_for_its_checkpoint_through_an_outage(own_server, namespace):
    @handler(name="inside.keep")
    def keep(job):
        gates.entered["keep"].append(job.jid)
        gates.open_doors["keep"].wait(SOON_S)
        job.checkpoint({"at": 2})
        job.stream("x")
        return "kept"

    async def main():
        async with AsyncClient(own_server.url, namespace) as client, Worker(client, "q", [keep]):
            jid = await client.queue("q").put("inside.keep")
            await _until(lambda: gates.entered["keep"])
            own_server.kill()
            gates.open_doors["keep"].set()
            await asyncio.to_thread(own_server.start)
            assert await _result_of(client, jid) == "kept"
            assert [chunk async for chunk in client.stream(jid)] == ["x"]

    asyncio.run(main())


def test_jobs_that_the_server_has_forgotten_are_stopped(own_server, namespace):
    async def main():
        async with AsyncClient(own_server.url, namespace) as client, Worker(client, "q", gates.ALL):
            await client.queue("q").put("gates.hold")
            await _until(lambda: gates.entered["gate"])
            own_server.redis.flushall()
            await _until(lambda: gates.ended == ["cancelled"])
            late = await client.queue("q").put("gates.adouble", {"n": 2})
            assert await client.wait(late, SOON_S) == 4

    asyncio.run(main())
