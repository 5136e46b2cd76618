"""A job or the connection is lost after the lease, before the master has read the job's payload."""

from collections.abc import Callable

import pytest

from tests.between import Between

LARGE = "x" * 100_000
CUTS = 5


class Reading(Between):
    """A proxy that acts once when a payload is asked for, and hangs up on the first `cuts` such requests."""

    act: Callable[[], object] | None = None
    cuts = 0

    def request(self, far, data):
        if b"MGET" in data:
            act, self.act = self.act, None
            if act is not None:
                act()
            if self.cuts:
                self.cuts -= 1
                return False
        return super().request(far, data)


@pytest.fixture
def proxy(server, tmp_path):
    proxy = Reading(tmp_path / "reading", server.socket)
    yield proxy
    proxy.close()


@pytest.fixture(params=["idle", "busy"])
def pool(request, stage, proxy):
    """A pool that leases behind its wait, or that has something to do when the jobs come."""
    stage.config(grace=0.3)
    pool = stage.start(redis_url=f"unix://{proxy.path}", processes=2, jobs_per_child=0).wait_ready()
    if request.param == "idle":
        stage.wait_until_idle(1)
    else:
        stage.queue.put_many({"klass": "good.nap", "data": 0.005} for _ in range(40))
    return pool


def finish(stage, pool):
    stage.wait_until(lambda: not stage.queue.counts().total, "the end of what the pool was busy with")
    for bad in ("job.died", "job.stale", "job.failed", "child.killed"):
        assert not pool.find(bad), bad
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_job_that_is_put_anew_runs_only_as_the_new_one(stage, proxy, pool):
    proxy.act = lambda: stage.queue.put("good.digest", b"new" * 20_000, jid="a")
    stage.queue.put("good.echo", LARGE, jid="a")
    other = stage.queue.put("good.digest", LARGE.encode())
    stage.wait_until_ended(["a", other])
    assert proxy.act is None
    assert stage.client.job("a").result["bytes"] == 60_000
    assert [len(stage.ledger.starts(jid)) for jid in ("a", other)] == [1, 1]
    finish(stage, pool)


def test_cancelled_job_never_starts(stage, proxy, pool):
    proxy.act = lambda: stage.client.cancel("a")
    stage.queue.put("good.echo", LARGE, jid="a")
    other = stage.queue.put("good.digest", LARGE.encode())
    stage.wait_until_ended([other])
    assert proxy.act is None
    assert stage.client.job("a") is None
    assert stage.ledger.starts("a") == []
    finish(stage, pool)


def test_lost_connections_count_no_death_and_start_no_job_twice(stage, proxy, pool):
    proxy.cuts = CUTS
    jids = stage.queue.put_many(
        {"klass": "good.digest", "data": bytes([n]) * 40_000, "at_most_once": n % 2 == 0} for n in range(100)
    )
    stage.wait_until_ended(jids, 60)
    jobs = stage.client.jobs(*jids)
    assert {(job.state, job.deaths, job.interruptions) for job in jobs} == {("complete", 0, 0)}
    assert sorted(start.jid for start in stage.ledger.starts(*jids)) == sorted(jids)
    assert pool.find("redis.lost") and proxy.cuts == 0
    assert not pool.find("lease.lost")
    finish(stage, pool)
