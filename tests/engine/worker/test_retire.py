"""A worker without work retires only if no queue needs it, and no job is lost meanwhile."""

import random
import threading
import time

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import leasing, mailbox, maintenance, workers
from tests.lengths import LONG


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def retire(client):
    return lambda worker="me", queues=("q",), soon_s=60: calls_of(client).call(workers.retire, worker, queues, soon_s)


def known(client, worker="me"):
    return worker in {each.name for each in client.workers()}


def wakeup_tokens(server, namespace, queue="q"):
    return server.redis.llen(f"{{{namespace}}}:bell:{queue}")


@pytest.fixture
def idle(client, q):
    """Make the worker known by a lease that finds no job."""
    assert q.lease("me") == []


def test_idle_worker_retires_and_the_next_put_leaves_a_token(client, q, idle, retire, server, namespace):
    assert known(client)
    assert retire() == ""
    assert not known(client)
    assert wakeup_tokens(server, namespace) == 0
    q.put("k")
    assert wakeup_tokens(server, namespace) == 1


def put(client, q, _clock):
    q.put("k")


def put_into_a_lane(client, q, _clock):
    q.put("k", lane="a")


def come_due(client, q, clock):
    q.put("k", delay=5)
    clock.tick(6)


def hand_back(client, q, _clock):
    q.put("k")
    q.lease("other")[0].release()


def recur(client, q, clock):
    q.recur("k", every=100)


@pytest.mark.parametrize("happen", [put, put_into_a_lane, come_due, hand_back, recur], ids=lambda each: each.__name__)
def test_leasable_jobs_keep_the_worker(client, q, clock, idle, retire, happen):
    happen(client, q, clock)
    assert retire() == "work"
    assert known(client)


def test_entry_of_another_program_keeps_the_worker(client, idle, retire, server, namespace):
    server.redis.lpush(f"{{{namespace}}}:in:q", '{"klass": "k"}')
    assert retire() == "work"


@pytest.mark.parametrize(("delay", "why"), [(59, "soon"), (60, "soon"), (61, "")])
def test_jobs_due_soon_keep_the_worker_and_later_ones_do_not(q, idle, retire, delay, why):
    q.put("k", delay=delay)
    assert retire(soon_s=60) == why


def test_recurrence_due_soon_keeps_the_worker(q, clock, idle, retire):
    q.recur("k", every=100, offset=30)
    assert retire(soon_s=60) == "soon"
    assert retire(soon_s=20) == ""


def test_a_limit_that_soon_lets_a_job_start_keeps_the_worker(client, q, clock, retire):
    client.limit("slow", rate="1/30s")
    q.put_many([{"klass": "k", "limit": "slow"}] * 2)
    (lease,) = q.lease("me", 2)
    assert retire(soon_s=60) == "held"
    lease.complete()
    assert retire(soon_s=60) == "soon"
    assert retire(soon_s=10) == ""


@pytest.fixture
def watchers(client):
    """Two other supervisors that have just been seen."""
    for worker in ("busy", "watching"):
        calls_of(client).call(leasing.resume, worker, 1, [])


def test_one_worker_stays_to_take_over_lost_jobs_of_others(client, q, clock, retire):
    calls_of(client).call(leasing.resume, "busy", 1, [])
    q.put("k")
    q.lease("busy", ttl=100_000)
    assert q.lease("only a client") == q.lease("me") == []
    assert retire() == "watch"
    calls_of(client).call(leasing.resume, "busy too", 1, [])
    q.put("k")
    q.lease("busy too", ttl=100_000)
    assert retire() == "watch"  # both may be on one host, and that be lost
    calls_of(client).call(leasing.resume, "idle", 1, [])
    clock.tick(61)
    assert retire() == "watch"  # they were not seen for long
    calls_of(client).call(maintenance.sweep, worker="idle")
    assert retire() == ""
    assert retire("idle") == "watch"


def test_used_up_limit_does_not_keep_the_worker(client, q, watchers, retire, server, namespace):
    client.limit("one", running=1)
    q.put_many([{"klass": "k", "limit": "one"}] * 2)
    (theirs,) = q.lease("other", 2)
    assert q.lease("me") == []
    assert retire() == ""
    assert wakeup_tokens(server, namespace) == 0
    theirs.complete()
    assert wakeup_tokens(server, namespace) == 1


def test_expired_lease_keeps_the_worker_and_a_living_one_does_not(q, clock, watchers, retire):
    q.put("k")
    q.lease("other", ttl=10)
    assert q.lease("me") == []
    clock.tick(11)
    assert retire() == "lost"
    assert q.lease("third") == []  # within the grace
    clock.tick(-5)
    assert retire() == ""


def test_jobs_held_back_do_not_keep_the_worker(client, q, idle, watchers, retire, server, namespace):
    q.put("k")
    q.pause()
    assert retire() == ""
    q.unpause()
    assert wakeup_tokens(server, namespace) == 1
    client.config.set("max-concurrency-q", 1)
    q.put("k")
    q.lease("other", 1, ttl=1000)
    assert q.lease("me") == []
    assert retire() == ""
    q.lane("a").pause()
    q.put("k", lane="a")
    client.config.unset("max-concurrency-q")
    client.cancel(*(job.jid for job in q.jobs("waiting") if job.lane is None))
    assert retire() == ""


def test_mail_and_requests_keep_the_worker(client, q, retire, server, namespace):
    calls_of(client).call(leasing.resume, "me", 1, [])
    server.redis.rpush(f"{{{namespace}}}:mail:me", "queues")
    assert retire() == "mail"
    server.redis.delete(f"{{{namespace}}}:mail:me")
    calls_of(client).call(mailbox.ask, "request", ["me"], "status", stands_s=60)
    server.redis.delete(f"{{{namespace}}}:mail:me")
    assert retire() == "asked"


def test_only_queues_that_the_worker_serves_keep_the_worker(client, idle, retire):
    client.queue("others").put("k")
    assert retire(queues=("q", "more")) == ""
    assert retire(queues=("q", "others")) == "work"


@pytest.mark.sampled(2)
def test_a_put_at_any_instant_is_seen_or_leaves_its_token(server, namespace):
    """Each trial on a queue of its own: the put falls before, into or after the leave."""
    chance, seen = random.Random(7), {"": 0, "work": 0}
    for trial in range(1000 if LONG else 200):
        name, worker = f"q{trial}", f"w{trial}"
        with Client(server.url, namespace) as ours, Client(server.url, namespace) as theirs:
            assert ours.queue(name).lease(worker) == []
            barrier = threading.Barrier(2)

            def put_after(delay_s, client=theirs, queue=name, barrier=barrier):
                client.queues()
                barrier.wait()
                time.sleep(delay_s)
                client.queue(queue).put("k")

            thread = threading.Thread(target=put_after, args=(chance.uniform(0, 0.0004),))
            thread.start()
            barrier.wait()
            time.sleep(chance.uniform(0, 0.0004))
            why = calls_of(ours).call(workers.retire, worker, [name], 60)
            thread.join()
            seen[why] += 1
            token = wakeup_tokens(server, namespace, name)
            assert token == 1  # no worker has waited
            (lease,) = ours.queue(name).lease(f"{worker}-next" if not why else worker)
            assert lease.complete()
    assert min(seen.values()) > 0, seen
