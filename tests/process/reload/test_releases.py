"""Two releases side by side: the older one lacks a klass, and leaves its jobs to the newer one."""

import time

OLD = """
from supervisor import handler
@handler
def common(job): pass
"""
NEW = (
    OLD
    + """
@handler
def added(job): pass
"""
)


def release(stage, name, text, **flags):
    """Start a supervisor with handlers of its own, below the stage's directory."""
    directory = stage.directory / name
    (directory / "app").mkdir(parents=True)
    (directory / "app" / "jobs.py").write_text(text)
    (directory / "app" / "__init__.py").write_text("")
    return stage.start(handlers="app", directory=directory, **flags).wait_ready()


def edit(stage, name, text):
    (stage.directory / name / "app" / "jobs.py").write_text(text)


def told(stage, pool, klass):
    """Wait until Redis knows that a supervisor has the klass."""
    stage.wait_until_counted(lambda: klass in stage.client.worker(pool.worker).klasses)


def test_new_releases_jobs_do_not_wait_for_the_old_one(stage, measured):
    old, new = release(stage, "old", OLD, processes=2), release(stage, "new", NEW, processes=1)
    told(stage, new, "jobs.added")
    told(stage, old, "jobs.common")
    stage.wait_until_idle(2)
    began_at = time.monotonic()
    jids = stage.queue.put_many([{"klass": "jobs.added"} for _ in range(20)])
    jids += stage.queue.put_many([{"klass": "jobs.common"} for _ in range(20)])
    stage.wait_until_ended(jids)
    took_s = time.monotonic() - began_at
    measured(f"20 jobs of a klass that the older of two supervisors lacks, and 20 that both have: {took_s:.2f} s")
    assert stage.states(jids) == ["complete"] * 40
    assert not new.find("job.unknown")
    assert len(new.find("job.completed", klass="jobs.added")) == 20
    bounced = len(old.find("job.unknown"))
    more = stage.queue.put_many([{"klass": "jobs.added"} for _ in range(20)])
    stage.wait_until_ended(more)
    assert len(old.find("job.unknown")) - bounced <= (0 if bounced else 20)
    assert [old.drain(), new.drain()] == [0, 0]
    stage.assert_nothing_left()


def test_joining_release_runs_its_waiting_jobs_at_once(stage):
    old = release(stage, "old", OLD)
    new = release(stage, "new", NEW)
    told(stage, new, "jobs.added")
    stage.client.ask(new.worker, "pause", argument={"by": "test"})
    jids = stage.queue.put_many([{"klass": "jobs.added"} for _ in range(5)])
    stage.wait_until_counted(lambda: all(job.left_to_others for job in stage.client.jobs(*jids)))
    assert stage.client.queues()["default"].ready == 5
    edit(stage, "old", NEW)
    stage.client.ask(old.worker, "reload", 20, {"by": "test"})
    stage.wait_until_ended(jids)
    assert len(old.find("job.completed", klass="jobs.added")) == 5
    assert [old.drain(), new.drain()] == [0, 0]
    stage.server.redis.delete(*stage.server.redis.keys(f"{stage.prefix}answer:*") or ["none"])
    stage.assert_nothing_left()


def test_jobs_bounce_again_when_their_release_leaves(stage):
    stage.config(unknown_for=0.001)
    old = release(stage, "old", OLD)
    new = release(stage, "new", NEW)
    told(stage, new, "jobs.added")
    stage.client.ask(new.worker, "pause", argument={"by": "test"})
    (jid,) = stage.queue.put_many([{"klass": "jobs.added"}])
    stage.wait_until_counted(lambda: stage.client.job(jid).left_to_others)
    assert new.drain() == 0
    old.wait_for("job.unknown", jid=jid, nth=2)
    assert stage.client.job(jid).unknown_unix is not None
    stage.client.cancel(jid)
    assert old.drain() == 0
    stage.server.redis.delete(*stage.server.redis.keys(f"{stage.prefix}answer:*") or ["none"])
    stage.assert_nothing_left()
