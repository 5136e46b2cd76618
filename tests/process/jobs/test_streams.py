"""Streams: what a handler says comes to readers at once, whole, in order, and with the job's end."""

import asyncio
import signal
import statistics
import threading
import time

import pytest
from supervised import quantiles

from supervisor import AsyncClient, JobNotFound, StoreUnavailable
from tests.lengths import PATIENCE


class Reader(threading.Thread):
    """Reads a stream to its end, in a thread, also over outages. `read`: the chunks, each with its attempt."""

    def __init__(self, stream):
        super().__init__(daemon=True)
        self.stream, self.read, self.arrived_at = stream, [], []
        self.losses = 0
        self.news = threading.Condition()
        self.start()

    def run(self):
        while not self.stream.state:
            try:
                for chunk in self.stream:
                    with self.news:
                        self.arrived_at.append(time.clock_gettime(time.CLOCK_MONOTONIC))
                        self.read.append((self.stream.attempt, chunk))
                        self.news.notify_all()
            except StoreUnavailable:
                self.losses += 1
                time.sleep(0.01)

    def wait_for(self, count):
        """Wait until so many chunks have come."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.read) >= count, 20 * PATIENCE)

    def end(self):
        self.join(60 * PATIENCE)
        assert not self.is_alive()
        return self.read

    def chunks(self, attempt):
        return [chunk for of, chunk in self.read if of == attempt]


def finish(stage, *pools):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left()


CHUNKS = ["to", "kens", {"n": [None, 1.5]}, ""]


def test_reader_gets_chunks_while_the_job_runs_and_ends_with_it(stage):
    pool = stage.start(processes=1)
    jid = stage.queue.put("stream.say", {"chunks": [*CHUNKS, "last"], "gate": stage.gate("g")})
    stream = stage.client.stream(jid)
    assert [next(stream) for _ in CHUNKS] == CHUNKS
    assert stage.client.job(jid).state == "running"
    stage.open_gate("g")
    assert (list(stream), stream.state) == (["last"], "complete")
    again = stage.client.stream(jid)
    assert (list(again), again.state) == ([*CHUNKS, "last"], "complete")
    finish(stage, pool)


@pytest.mark.parametrize(("handlers", "klass"), [("menu", "stream.say_async"), ("together", "say")])
def test_coroutines_stream_without_blocking_each_other(stage, handlers, klass):
    pool = stage.start(processes=1, handlers=handlers)
    numbers = [list(range(n, n + 500)) for n in range(5)]
    jids = [stage.queue.put(klass, {"chunks": chunks}) for chunks in numbers]
    more = ["in a thread", "and in the loop"] if klass == "say" else []
    assert [list(stage.client.stream(jid)) for jid in jids] == [[*chunks, *more] for chunks in numbers]
    finish(stage, pool)


def test_failed_job_keeps_the_chunks_of_each_start(stage):
    pool = stage.start(processes=1)
    jid = stage.queue.put("stream.say", {"chunks": ["a", "b"], "fail": True}, retries=1)
    reader = Reader(stage.client.stream(jid))
    assert reader.end() == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert reader.stream.state == "failed"
    finish(stage, pool)


def test_killed_child_loses_no_streamed_chunk(stage):
    pool = stage.start(processes=1)
    jid = stage.queue.put("stream.count", {"count": 300, "die_at": 200})
    reader = Reader(stage.client.stream(jid))
    reader.end()
    assert reader.chunks(1) == list(range(201))
    assert reader.chunks(2) == list(range(300))
    assert stage.client.job(jid).deaths == 1
    finish(stage, pool)


def test_killed_master_leaves_a_beginning_and_the_next_start_streams_anew(stage):
    stage.config(heartbeat=1, grace=0.1)
    killed = stage.start(processes=1)
    jid = stage.queue.put("stream.count", {"count": 400, "nap_s": 0.005})
    reader = Reader(stage.client.stream(jid))
    reader.wait_for(50)
    killed.send(signal.SIGKILL)
    killed.wait()
    other = stage.start(processes=1)
    reader.end()
    first = reader.chunks(1)
    assert first == list(range(len(first))) and 50 <= len(first) < 400
    assert reader.chunks(2) == list(range(400))
    stage.forget(killed)
    finish(stage, other)


def test_cancel_ends_the_stream_at_once(stage):
    pool = stage.start(processes=1)
    jid = stage.queue.put("stream.say", {"chunks": ["a", "never"], "gate": stage.gate("g")})
    reader = Reader(stage.client.stream(jid))
    reader.wait_for(1)
    cancelled_at = time.monotonic()
    stage.client.cancel(jid)
    assert (reader.end(), reader.stream.state) == ([(1, "a")], "cancelled")
    assert time.monotonic() - cancelled_at < 5  # and not after the silence that makes a reader ask
    pool.wait_for("lease.lost", jid=jid, reason="cancelled")
    finish(stage, pool)


@pytest.mark.sampled(3)
def test_redis_restart_loses_and_repeats_nothing(own_stage, own_server):
    stage = own_stage
    pool = stage.start(processes=1)
    jid = stage.queue.put("stream.count", {"count": 1500, "nap_s": 0.002})
    reader = Reader(stage.client.stream(jid))
    for so_far in (100, 600):
        reader.wait_for(so_far)
        own_server.kill()
        own_server.start()
    assert reader.end() == [(1, number) for number in range(1500)]
    assert reader.losses
    finish(stage, pool)


@pytest.mark.parametrize("size_bytes", [1, 60_000])
def test_flood_of_chunks_holds_up_neither_leases_nor_other_jobs(stage, size_bytes):
    stage.config(heartbeat=1, grace=0.1)
    pool = stage.start(processes=2)
    jid = stage.queue.put("stream.flood", size_bytes)
    reader = Reader(stage.client.stream(jid))
    reader.wait_for(1)
    quick = [stage.queue.put("good.echo", n) for n in range(50)]
    stage.wait_until_ended(quick)
    stage.let_time_pass(2)  # two leases long
    assert stage.client.job(jid).state == "running"
    read, elapsed_s = list(reader.read), reader.arrived_at[-1] - reader.arrived_at[0]
    assert sum(len(chunk) + 64 for _attempt, chunk in read) < (elapsed_s + 1) * 2**20
    assert {attempt for attempt, _chunk in read} == {1}
    stage.client.cancel(jid)
    reader.end()
    pool.wait_for("lease.lost", jid=jid, reason="cancelled")
    finish(stage, pool)


def test_slow_reader_and_one_that_leaves_hold_up_nobody(stage):
    pool = stage.start(processes=1)
    jid = stage.queue.put("stream.count", {"count": 2000})
    slow, leaves = stage.client.stream(jid), stage.client.stream(jid)
    assert [next(slow), next(leaves)] == [0, 0]
    leaves.close()
    assert Reader(stage.client.stream(jid)).end() == [(1, number) for number in range(2000)]
    assert stage.client.job(jid).state == "complete"
    assert (list(slow), list(leaves)) == (list(range(1, 2000)), [])
    finish(stage, pool)


def test_async_readers_get_all_from_the_beginning_and_the_news_from_the_end(stage):
    async def main():
        async with AsyncClient(stage.server.url, stage.namespace) as client:
            beginning, end = client.stream(jid), client.stream(jid, position="end")
            assert [await anext(beginning) for _ in CHUNKS] == CHUNKS
            news = asyncio.create_task(anext(end))
            while end.position == "0-0":  # not known yet where the end is
                await asyncio.sleep(0)
            stage.open_gate("g")
            assert await news == "last"
            for stream, rest in ((beginning, ["last"]), (end, [])):
                assert ([chunk async for chunk in stream], stream.state) == (rest, "complete")

    pool = stage.start(processes=1)
    jid = stage.queue.put("stream.say", {"chunks": [*CHUNKS, "last"], "gate": stage.gate("g")})
    asyncio.run(main())
    finish(stage, pool)


def test_chunk_that_is_none_fails_the_job_in_its_own_words(stage):
    pool = stage.start(processes=1)
    jids = [stage.queue.put("stream.nonsense", kind, retries=0) for kind in ("large", "object")]
    stage.wait_until_ended(jids)
    large, strange = (stage.client.job(jid).failure for jid in jids)
    assert (large["group"], strange["group"]) == ("ValueError", "TypeError")
    assert "stream it in pieces" in large["message"] and "chunk must be JSON or bytes" in strange["message"]
    finish(stage, pool)


def test_child_that_streams_past_its_bounds_is_killed(stage):
    pool = stage.start(processes=1)
    jid = stage.queue.put("stream.cheat", max_deaths=1)
    stage.wait_until_ended([jid])
    assert "without waiting for its turn" in stage.client.job(jid).failure["message"]
    finish(stage, pool)


def test_chunks_come_to_the_reader_within_milliseconds(stage, measured):
    pool = stage.start(processes=1)
    jid = stage.queue.put("stream.times", {"count": 300, "nap_s": 0.01})
    reader = Reader(stage.client.stream(jid))
    reader.end()
    delays_s = [at - said for at, (_attempt, said) in zip(reader.arrived_at, reader.read, strict=True)]
    measured(f"chunk said -> reader has it: {quantiles(delays_s)}")
    assert statistics.median(delays_s) < 0.2
    finish(stage, pool)


def test_there_is_no_stream_before_the_put(stage):
    with pytest.raises(JobNotFound):
        next(stage.client.stream("nobody"))
