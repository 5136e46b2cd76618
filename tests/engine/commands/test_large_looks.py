"""Lists return sizes of large data; a query of one job reads it in pieces."""

import asyncio
import json

import pytest

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import job_queries
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.outcomes import Completed, Failed

LARGE = {"text": "x" * 20_000_000}
LISTS = ["jobs", "peek", "completed", "failed", "tagged", "tracked"]


@pytest.fixture
def listed(client):
    """Return one list with a large job, of each kind."""

    def of(kind):
        q = client.queue("q")
        q.put("k", LARGE, jid="j", tags=["t"])
        if kind == "completed":
            q.lease("w")[0].complete()
        if kind == "failed":
            q.lease("w")[0].fail("g", "m")
        if kind == "tracked":
            client.track("j")
        return {
            "jobs": lambda: q.jobs("waiting"),
            "peek": lambda: q.peek(9),
            "completed": client.completed,
            "failed": lambda: client.failed("g")[1],
            "tagged": lambda: client.tagged("t")[1],
            "tracked": lambda: client.tracked().jobs,
        }[kind]()

    return of


@pytest.mark.parametrize("kind", LISTS)
def test_list_has_the_size_of_large_data(client, listed, kind):
    (job,) = listed(kind)
    assert job.left_out == {"raw": len(json.dumps(LARGE, separators=(",", ":")))}
    assert job.data == LARGE
    assert job.left_out == {}


def test_job_has_all_of_its_data(client):
    client.queue("q").put("k", LARGE, jid="j")
    client.queue("q").put("k", b"\0" * 100_000, jid="bytes")
    assert client.job("j").data == LARGE and client.job("j").left_out == {}
    assert client.jobs("j", "bytes")[1].data == b"\0" * 100_000


def test_large_data_of_an_entry_is_fetched(client, server, namespace):
    server.redis.lpush(f"{{{namespace}}}:in:q", json.dumps({"klass": "k", "jid": "j", "data": "x" * 100_000}))
    client.queue("q").lease("w")
    (job,) = client.queue("q").jobs("running")
    assert job.left_out["raw"] > 100_000 and job.data == "x" * 100_000


def test_one_answer_has_a_bounded_sum_of_payload(client):
    q = client.queue("q")
    q.put_many({"klass": "k", "data": "x" * 60_000, "jid": f"j{i}"} for i in range(100))
    jobs = q.jobs("waiting", 0, 100)
    given = [job for job in jobs if not job.left_out]
    assert len(jobs) == 100 and 17 <= len(given) <= 19
    assert {job.data for job in jobs} == {"x" * 60_000}


def test_output_of_jobs_counts_for_the_size_of_a_reply(client):
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": f"j{i}"} for i in range(60))
    for lease in q.lease("w", 60):
        lease.checkpoint("s" * 30_000)
        client.log(lease.jid, "l" * 4_000)
        lease.fail("g", "m" * 20_000)
    total, jobs = client.failed("g", 0, 60)
    out = [job for job in jobs if job.left_out]
    assert total == 60 and len(out) > 30
    assert set(out[-1].left_out) == {"raw", "failure", "saved", "history"}
    assert out[-1].failure["message"] == "m" * 20_000
    assert [job.saved for job in jobs] == ["s" * 30_000] * 60
    assert {job.log[0]["message"] for job in jobs} == {"l" * 4_000}


def test_dependents_count_for_the_sum_as_well(client):
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": f"p{i}"} for i in range(40))
    parents = [f"p{i}" for i in range(40)]
    q.put_many({"klass": "k", "jid": f"c{i}", "depends": parents} for i in range(1_000))
    jobs = q.jobs("waiting", 0, 40)
    assert jobs[-1].left_out == {"raw": 4, "dependents": 1_000}
    assert all(len(job.dependents) == 1_000 for job in jobs)


def test_async_list_says_how_large_data_is_had(server, namespace, clock, client):
    client.queue("q").put("k", LARGE, jid="j")
    client.queue("q").recur("k", LARGE, every=60, jid="r", offset=60)

    async def look():
        async with AsyncClient(server.url, namespace, clock) as other:
            (job,) = await other.queue("q").jobs("waiting")
            with pytest.raises(LeaseholdError, match=r"raw of job j was .* \(20000011\): `await client.job\('j'"):
                _ = job.data
            (recurring,) = await other.queue("q").jobs("recurring")
            with pytest.raises(LeaseholdError, match=r"`await client.recurring\('r'\)` has it"):
                _ = recurring.data
            assert (await other.job("j")).data == (await other.jobs("j"))[0].data == LARGE
            assert (await other.recurring("r")).data == LARGE

    asyncio.run(look())


def test_recurring_job_has_large_data_when_asked(client):
    client.queue("q").recur("k", LARGE, every=60, jid="r", offset=60)
    (listed,) = client.queue("q").jobs("recurring")
    assert listed.left_out and listed.data == client.recurring("r").data == LARGE


def test_reading_data_of_a_removed_job_names_the_job(client):
    client.queue("q").put("k", LARGE, jid="j")
    (job,) = client.queue("q").jobs("waiting")
    client.cancel("j")
    with pytest.raises(LeaseholdError, match="there is no job j"):
        _ = job.data


def test_data_replaced_during_the_read_is_read_again(client):
    client.queue("q").put("k", LARGE, jid="j")
    runs = []

    plain = calls_of(client).run

    def run(command):
        if command.script.name == "data" and len(runs) == 1:
            client.queue("q").put("k", {"text": "y" * 9_000_000}, jid="j")
        runs.append(command)
        return plain(command)

    calls_of(client).run = run
    assert client.job("j").data == {"text": "y" * 9_000_000}


def test_a_piece_of_nothing_is_nothing(client):
    assert calls_of(client).run(job_queries.piece("data", "nobody", 0)) == (-1, b"")


@pytest.mark.parametrize("kind", LISTS)
def test_list_of_large_jobs_is_cheap(client, listed, kind, cpu_ms):
    listed(kind)
    with cpu_ms() as used:
        client.queue("q").jobs("waiting")
        client.queue("q").peek(9)
        client.tagged("t")
    assert used[0] < 100, "one copy of 20 MB alone takes 50 ms"


def large_job(client, size):
    """A failed job with more than one reply has room for."""
    client.queue("q").put("k", LARGE, jid="j")
    client.queue("q").put_many({"klass": "k", "depends": ["j"], "on_parent_failure": "wait"} for _ in range(3))
    (lease,) = client.queue("q").lease("w")
    lease.checkpoint("s" * 60_000)
    client.log("j", "l" * 4_000)
    client.settle([Failed(lease, "g", "m", {"traceback": "t" * size})])


def check_large(job, size):
    assert (len(job.failure["traceback"]), len(job.saved), len(job.dependents)) == (size, 60_000, 3)
    assert {entry["what"] for entry in job.history} == {"put", "log", "popped", "failed"}
    assert job.data == LARGE
    assert job.left_out == {}


SIZES = {2_000_000: {"raw", "failure"}, 1_048_000: {"raw", "dependents", "saved"}}


@pytest.mark.parametrize("size", SIZES)
def test_job_has_everything_too_large_for_one_reply(client, size):
    large_job(client, size)
    job = client.job("j")
    assert job.left_out == {}
    check_large(job, size)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("first", ["failure", "history", "dependents", "saved", "data"])
def test_job_of_a_list_fetches_whatever_is_asked_for(client, first, size):
    large_job(client, size)
    (job,) = client.failed("g")[1]
    assert set(job.left_out) == SIZES[size]
    assert getattr(job, first)
    check_large(job, size)


def test_results_of_a_list_are_fetched(client):
    q = client.queue("q")
    q.put_many({"klass": "k"} for _ in range(30))
    client.settle([Completed(lease, "r" * 60_000) for lease in q.lease("w", 30)])
    jobs = client.completed(0, 30)
    assert any("result" in job.left_out for job in jobs)
    assert {job.result for job in jobs} == {"r" * 60_000}


def test_job_without_its_large_data_is_returned_empty(client, server, namespace):
    client.queue("q").put("k", LARGE, jid="j")

    plain = calls_of(client).run

    def run(command):
        if command.script.name == "data":
            server.redis.delete(f"{{{namespace}}}:data:j")
        return plain(command)

    calls_of(client).run = run
    assert client.job("j").raw == b""
    client.cancel("j")
    assert client.job("j") is None


def test_large_message_of_a_failure_is_cut(client):
    client.queue("q").put("k", jid="j")
    client.queue("q").lease("w")[0].fail("g", "ä" * 1_000_000)
    message = client.job("j").failure["message"]
    assert message == "ä" * 32_768 + "… (the first 65536 of 2000000 bytes)"
