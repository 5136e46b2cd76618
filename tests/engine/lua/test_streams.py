"""Streams: appended under a lease, read from any position, ended with their job, and bounded."""

import asyncio
import threading

import pytest

from supervisor import AsyncClient, JobNotFound, LeaseLost, StoreUnavailable
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing
from supervisor.engine.commands.leasing import Streamed
from supervisor.engine.model.chunks import CHUNK_BYTES, COST_BYTES, to_chunk

CHUNKS = ["to", "kens", b"\x00raw", {"n": 1, "ä": [None, 2.5]}, None, "", 7]
#: The ends of a job, by the state that its readers see.
ENDS = {
    "complete": lambda client, lease: lease.complete(),
    "failed": lambda client, lease: lease.fail("g", "m"),
    "cancelled": lambda client, lease: client.cancel("j"),
}


def leased(client, **options):
    client.queue("q").put("k", 1, jid="j", **options)
    return again(client)


def again(client, worker="w"):
    (lease,) = client.queue("q").lease(worker)
    return lease


def send(client, lease, before, *chunks):
    entry = Streamed(lease.jid, lease.token, before, [to_chunk(chunk) for chunk in chunks])
    return calls_of(client).call(leasing.stream, lease.worker, [entry])


def key_of(namespace):
    return f"{{{namespace}}}:stream:j"


class Reader(threading.Thread):
    """Reads a stream to its end, in a thread."""

    def __init__(self, stream):
        super().__init__(daemon=True)
        self.stream, self.read = stream, []
        self.start()

    def run(self):
        self.read.extend(self.stream)

    def end(self):
        self.join(20)
        assert not self.is_alive()
        return self.read


@pytest.fixture
def reader(client, server):
    """Start readers that already wait for more."""
    readers = []

    def start(**options):
        waiting = server.redis.info("clients")["blocked_clients"]
        readers.append(Reader(client.stream("j", **options)))
        while server.redis.info("clients")["blocked_clients"] == waiting:
            assert readers[-1].is_alive()
        return readers[-1]

    yield start
    for one in readers:
        one.stream.close()
        one.join(20)


def test_a_reader_gets_each_chunk_unchanged_until_the_job_ends(client, reader):
    lease = leased(client)
    waits = reader()
    lease.stream(*CHUNKS[:3])
    for chunk in CHUNKS[3:]:
        lease.stream(chunk)
    lease.complete()
    assert waits.end() == CHUNKS
    assert (waits.stream.state, waits.stream.attempt, waits.stream.missed) == ("complete", 1, 0)


@pytest.mark.parametrize("end", ENDS)
def test_a_reader_learns_how_the_job_ended_also_if_nothing_was_streamed(client, reader, end):
    lease = leased(client)
    waits = reader(timeout=20)
    ENDS[end](client, lease)
    assert waits.end() == []
    assert waits.stream.state == end


@pytest.mark.parametrize("end", ENDS)
def test_ended_stream_can_be_read_unless_its_job_was_cancelled(client, end):
    lease = leased(client)
    lease.stream("a", "b")
    ENDS[end](client, lease)
    stream = client.stream("j")
    assert (list(stream), stream.state) == ([] if end == "cancelled" else ["a", "b"], end)
    after = client.stream("j", position="end")
    assert (list(after), after.state) == ([], "gone" if end == "cancelled" else end)


@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_ended_without_a_stream_has_an_empty_one(client, end):
    ENDS[end](client, leased(client))
    stream = client.stream("j")
    assert (list(stream), stream.state) == ([], end)


def test_a_waiting_job_can_be_followed_before_its_start(client, reader):
    client.queue("q").put("k", 1, jid="j")
    waits = reader()
    lease = again(client)
    lease.stream("a")
    lease.complete()
    assert waits.end() == ["a"]


def test_there_is_no_stream_of_an_unknown_job(client):
    with pytest.raises(JobNotFound):
        next(client.stream("j"))


def test_a_stream_outlives_its_record_where_completed_jobs_are_not_kept(client, config, server, namespace):
    config(jobs_history=0)
    lease = leased(client)
    lease.stream("a")
    lease.complete()
    stream = client.stream("j")
    assert (list(stream), stream.state, client.job("j")) == (["a"], "complete", None)
    assert 3_500_000 < server.redis.pttl(key_of(namespace)) <= 3_600_000


def test_readers_go_on_from_any_position_whatever_came_in_one_batch(client):
    lease = leased(client)
    lease.stream("a", "b", "c")
    lease.stream("d")
    lease.complete()
    stream, positions = client.stream("j"), []
    for chunk in stream:
        positions.append((chunk, stream.position))
    rest = ["a", "b", "c", "d"]
    for chunk, position in positions:
        assert chunk == rest.pop(0)
        assert list(client.stream("j", position=position)) == rest


def test_a_reader_from_the_end_gets_only_what_is_to_come(client, reader):
    lease = leased(client)
    lease.stream("a")
    waits = reader(position="end")
    lease.stream("b")
    lease.complete()
    assert waits.end() == ["b"]
    assert waits.stream.missed == 0


def test_a_new_start_is_seen_by_its_attempt(client):
    lease = leased(client)
    lease.stream("a")
    lease.retry()
    lease = again(client)
    lease.stream("b")
    lease.complete()
    stream = client.stream("j")
    assert [(chunk, stream.attempt) for chunk in stream] == [("a", 1), ("b", 2)]


def test_a_stream_goes_on_in_the_next_queue(client):
    lease = leased(client)
    lease.stream("a")
    lease.complete(next="q")
    lease = again(client)
    lease.stream("b")
    lease.complete()
    assert list(client.stream("j")) == ["a", "b"]


@pytest.mark.parametrize("anew", ["put", "unfail"])
def test_a_job_that_had_ended_begins_a_new_stream(client, anew):
    lease = leased(client)
    lease.stream("a")
    lease.fail("g", "m")
    if anew == "put":
        client.queue("q").put("k", 1, jid="j")
    else:
        client.unfail("g")
    lease = again(client)
    lease.stream("b")
    lease.complete()
    assert list(client.stream("j")) == ["b"]


@pytest.mark.parametrize("end", ["cancelled", "no history"])
def test_new_job_of_a_jid_begins_a_new_stream(client, end):
    if end == "no history":
        client.config.set("jobs-history", 0)
    lease = leased(client)
    lease.stream("a")
    if end == "cancelled":
        client.cancel("j")
    else:
        lease.complete()
    assert client.job("j") is None
    lease = leased(client)
    reader = client.stream("j")
    lease.stream("b")
    lease.complete()
    assert list(reader) == ["b"]


def test_worker_that_lost_the_job_streams_no_more(client):
    lease = leased(client)
    lease.release()
    after = again(client, "other")
    assert send(client, lease, 0, "late") == [False]
    with pytest.raises(LeaseLost):
        lease.stream("late")
    after.stream("a")
    after.complete()
    with pytest.raises(LeaseLost):
        after.stream("later")
    assert list(client.stream("j")) == ["a"]


def test_chunks_sent_again_are_there_once(client):
    lease = leased(client)
    for _ in range(2):
        assert send(client, lease, 0, "a", "b") == [True]
    for _ in range(2):
        assert send(client, lease, 2, "c") == [True]
    assert send(client, lease, 0, "a", "b") == [True]
    lease.complete()
    assert list(client.stream("j")) == ["a", "b", "c"]


def test_a_stream_keeps_its_newest_four_megabytes(client, server, namespace):
    lease = leased(client)
    fit = 2**22 // (CHUNK_BYTES + COST_BYTES)
    for n in range(fit + 10):
        lease.stream(bytes([n]) * CHUNK_BYTES)
    lease.complete()
    stream = client.stream("j")
    assert [chunk[0] for chunk in stream] == list(range(9, fit + 10))  # the oldest one reaches into them
    assert stream.missed == 9
    assert server.redis.memory_usage(key_of(namespace), samples=0) < 2**22 * 1.3


def test_small_chunks_take_no_more_memory_than_their_count(client, server, namespace):
    lease = leased(client)
    for _ in range(4):
        one_by_one = [Streamed(lease.jid, lease.token, None, [to_chunk(7)])] * 1000
        calls_of(client).call(leasing.stream, lease.worker, one_by_one)
    assert server.redis.xlen(key_of(namespace)) == 4000
    assert server.redis.memory_usage(key_of(namespace), samples=0) < 4000 * COST_BYTES * 1.2


def test_a_stream_has_an_end_of_its_own_also_while_its_job_runs(client, server, namespace):
    leased(client).stream("a")
    assert server.redis.pttl(key_of(namespace)) > 6 * 86_400_000


def test_a_reader_goes_on_at_its_place_after_a_lost_connection(client, server, namespace):
    lease = leased(client)
    lease.stream("a", "b")
    stream = client.stream("j")
    assert next(stream) == "a"
    server.redis.client_kill_filter(_type="normal", skipme=True)
    lease.stream("c")
    assert next(stream) == "b"
    lease.complete()
    read = []
    for _ in range(2):
        try:
            read.extend(stream)
        except StoreUnavailable as error:  # the first read finds the connection closed
            assert "goes on where it was" in str(error)
    assert read == ["c"]


def test_a_closed_stream_ends_for_waiting_threads_too(client, reader):
    leased(client)
    waits = reader()
    waits.stream.close()
    assert waits.end() == []
    assert waits.stream.state == ""


def test_silence_beyond_the_timeout_raises(client):
    leased(client).stream("a")
    stream = client.stream("j", timeout=0.05)
    assert next(stream) == "a"
    with pytest.raises(TimeoutError, match="nothing has come of job j"):
        next(stream)


@pytest.mark.parametrize("position", ["", "1", "1-", "a-1", "-1-1"])
def test_a_position_that_is_none_is_refused(client, position):
    with pytest.raises(ValueError, match="position must be"):
        client.stream("j", position=position)


def test_foreign_entries_of_a_stream_are_passed_over(client, server, namespace):
    lease = leased(client)
    lease.stream("a")
    server.redis.xadd(key_of(namespace), {"foreign": 1}, id="1000000000-1")
    lease.stream("refused by Redis, whose newest id is larger")
    lease.complete()
    assert list(client.stream("j", timeout=20)) == ["a"]


def test_many_tasks_read_one_stream_and_a_cancelled_one_loses_nothing(client, server, namespace, clock):
    lease = leased(client)
    before = server.redis.info("clients")["blocked_clients"]

    async def read(stream):
        return [chunk async for chunk in stream]

    async def main():
        async with AsyncClient(server.url, namespace, clock) as one:
            streams = [one.stream("j") for _ in range(20)]
            reading = [asyncio.create_task(read(stream)) for stream in streams]
            left = one.stream("j")
            waiting = asyncio.create_task(left.__anext__())
            while server.redis.info("clients")["blocked_clients"] < before + 21:
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.to_thread(lease.stream, "a", "b")
            async with asyncio.timeout(20):
                assert await anext(left) == "a"
                await asyncio.to_thread(lease.complete)
                assert await read(left) == ["b"]
                assert await asyncio.gather(*reading) == [["a", "b"]] * 20
            assert {stream.state for stream in (*streams, left)} == {"complete"}

    asyncio.run(main())
