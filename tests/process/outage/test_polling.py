"""A server that lets no command wait (a proxy, a managed service): supervisors and clients look instead."""

import random
import time

import pytest
from servers import stopped
from supervised import quantiles

from supervisor.engine.client.sync_client import Client
from tests.lengths import PATIENCE
from tests.refusing import Refusing

INTERVAL_S = 0.5
#: All that supervisors, clients and commands send. deploy/docs/redis.md names them.
SENT = {"AUTH", "EVALSHA", "INFO", "LPOP", "MGET", "PING", "SCRIPT LOAD", "UNLINK", "ZRANGEBYSCORE", "CLIENT SETINFO"}


@pytest.fixture
def proxy(stage, server):
    proxy = Refusing(stage.directory / "proxy", server.socket)
    yield proxy
    proxy.close()


@pytest.fixture
def client(stage, proxy):
    with Client(proxy.url, stage.namespace, poll=INTERVAL_S) as client:
        yield client


@pytest.fixture
def start(stage, proxy):
    def start(interval_s=INTERVAL_S, **flags):
        return stage.start(redis_url=proxy.url, redis_poll=f"{interval_s:g}s", **flags).wait_ready()

    return start


@pytest.fixture
def leasehold(stage, proxy):
    """Run a command through the proxy, and return what it says."""

    def leasehold(*words):
        done = stage.run_command(*words, url=proxy.url, redis_poll=f"{INTERVAL_S:g}s")
        assert done.returncode == 0, done.stderr
        return done.stdout

    return leasehold


@pytest.mark.sampled(3)
def test_all_works_where_no_command_may_wait(stage, proxy, client, start, leasehold):
    pool = start()
    queue = client.queue("default")
    assert client.wait(queue.put("good.echo", 7), 20 * PATIENCE) == 7

    gate = stage.gate("gate")
    held = queue.put("good.hold", gate)
    stage.wait_for_starts(held)
    asked_at = time.monotonic()
    client.cancel(held)
    pool.wait_for("job.stale", jid=held)
    assert time.monotonic() - asked_at < INTERVAL_S + 5 * PATIENCE  # without a hint the next renewal is in 10 s

    leasehold("scale", pool.worker, "2")
    pool.wait_for("child.ready", nth=3)
    leasehold("pause", "--all-workers")
    jid = queue.put("good.echo", 8)
    leasehold("reload")
    leasehold("unpause", "--all-workers")
    assert "complete" in leasehold("job", jid, "--wait", f"{20 * PATIENCE:g}s")
    assert pool.worker in leasehold("status")
    leasehold("drain", "--all")
    assert pool.wait() == 0
    assert proxy.refused == []
    assert set(proxy.seen) <= SENT
    stage.assert_nothing_left()


def test_idle_supervisor_looks_once_in_an_interval_over_one_connection(stage, proxy, start, measured):
    pool = start(processes=2)
    with proxy.news:
        assert proxy.news.wait_for(lambda: proxy.seen.count("LPOP") >= 2, 20 * PATIENCE)
        before, began_at = len(proxy.seen), time.monotonic()
    stage.let_time_pass(20 * INTERVAL_S)
    with proxy.news:
        sent, took_s = proxy.seen[before:], time.monotonic() - began_at
    looks, leases = sent.count("LPOP"), sent.count("EVALSHA")
    measured(f"idle, every {INTERVAL_S:g} s for {took_s:.1f} s: {looks} looks, {leases} calls of scripts beside them")
    assert 2 <= looks <= took_s / INTERVAL_S + 1
    assert leases <= 1.5 * looks + 4  # a lease for each look; a sweep in 15 s
    assert proxy.connections == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_put_starts_within_an_interval_and_after_half_on_average(stage, start, measured):
    pool = start(jobs_per_child=0)
    waits_s = []
    for _ in range(20):
        stage.let_time_pass(random.uniform(0, INTERVAL_S))  # else each put comes just after a look
        waits_s.append(stage.put_to_start_s(pool))
    measured(f"put -> start, a look every {INTERVAL_S:g} s: {quantiles(waits_s)}")
    assert sorted(waits_s)[len(waits_s) // 2] <= INTERVAL_S * PATIENCE
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_delayed_job_starts_on_time_between_two_looks(stage, start):
    before_unix = time.time()
    jid = stage.queue.put("good.noop", delay=5)
    pool = start(interval_s=30)
    (begun,) = stage.wait_for_starts(jid)
    assert before_unix + 5 - 0.002 <= begun.unix <= before_unix + 5 + 5 * PATIENCE
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_pushed_entry_starts_at_the_next_look(stage, start):
    pool = start()
    stage.server.redis.lpush(f"{stage.prefix}in:default", b'{"klass": "good.noop", "jid": "pushed"}')
    pool.wait_for("job.completed", jid="pushed")
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_entry_behind_a_door_starts_within_ten_seconds(stage, start):
    """No push is noticed between two looks, so what wakes the supervisor is its lease in ten seconds."""
    key = f"foreign-{stage.namespace}"
    stage.client.doors.add("d", format="hworker", source=key, queue="default", klass="good.noop")
    pool = start()
    stage.let_time_pass(2 * INTERVAL_S)
    stage.server.redis.lpush(f"hworker-jobs-{key}", '["pushed",null]')
    pool.wait_for("job.completed", jid="pushed")
    stage.client.doors.remove("d")
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_full_supervisor_hears_of_a_request_at_the_next_look(stage, client, start):
    pool = start()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    (answer,) = client.ask(None, "stacks", 20 * PATIENCE).values()
    assert answer
    stage.open_gate(gate)
    pool.wait_for("job.completed", jid=jid)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_job_of_a_supervisor_that_waits_in_redis_starts_beside_one_that_looks(stage, start):
    looking, waiting = start(), stage.start().wait_ready()
    stage.wait_until_idle(1)
    jids = [stage.queue.put("good.noop") for _ in range(20)]
    stage.wait_until_ended(jids)
    assert [pool.drain() for pool in (looking, waiting)] == [0, 0]
    stage.assert_nothing_left()


def test_supervisor_works_behind_a_proxy_that_loads_no_script(own_stage, own_server):
    proxy = Refusing(own_stage.directory / "proxy", own_server.socket, ("CLIENT", "INFO", "SCRIPT"))
    pool = own_stage.start(redis_url=proxy.url, redis_poll="200ms", jobs_per_child=0, processes=2).wait_ready()
    with Client(proxy.url, own_stage.namespace, poll=INTERVAL_S) as client:
        large = [{"klass": "good.digest", "data": "x" * 40_000} for _ in range(20)]  # left out of the reply to a lease
        own_stage.wait_until_ended(client.queue("default").put_many(large))
    assert pool.drain() == 0
    assert pool.find("redis.lost") == pool.find("redis.failed") == []
    assert set(proxy.refused) == {"CLIENT SETINFO", "INFO", "SCRIPT LOAD"}
    assert {"EVAL", "MGET", "ZRANGEBYSCORE"} <= set(proxy.seen)
    assert set(proxy.seen) <= SENT | {"EVAL"}
    proxy.close()
    own_stage.assert_nothing_left()


def test_looks_go_on_after_an_outage(own_stage, own_server):
    pool = own_stage.start(redis_poll="200ms").wait_ready()
    own_server.kill()
    pool.wait_for("redis.lost")
    own_server.start()
    pool.wait_for("redis.connected")
    pool.wait_for("job.completed", jid=own_stage.queue.put("good.noop"))
    assert pool.drain() == 0
    own_stage.assert_nothing_left()


def test_silent_server_is_noticed_by_a_full_supervisor(own_stage, own_server, measured):
    own_stage.config(heartbeat=600)  # else a renewal would notice it
    pool = own_stage.start(redis_poll="200ms").wait_ready()
    gate = own_stage.gate("gate")
    jid = own_stage.queue.put("good.hold", gate)
    own_stage.wait_for_starts(jid)
    with stopped(own_server.process):
        stopped_unix = time.time()
        lost = pool.wait_for("redis.lost", message="Redis has not answered in time")
    measured(f"a server that hangs is noticed within {lost['time'] - stopped_unix:.1f} s")
    assert lost["time"] - stopped_unix < 5 + 3 * PATIENCE
    pool.wait_for("redis.connected")
    own_stage.open_gate(gate)
    pool.wait_for("job.completed", jid=jid)
    assert pool.drain() == 0
    own_stage.assert_nothing_left()


def test_supervisor_that_looks_exits_when_idle(stage, start):
    pool = start(exit_when_idle="1s")
    pool.wait_for("job.completed", jid=stage.queue.put("good.noop"))
    assert pool.wait() == 0
    stage.assert_nothing_left()
