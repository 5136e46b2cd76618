"""Two releases whose handlers take different data of one klass: each job runs where its data fit."""

import pytest

from tests.process.apps import start_app

OLD = """
@handler
def welcome(job, user: int):
    return "old"
"""
NEW = """
@handler
def welcome(job, user: int, country: str):
    return "new"
"""


def two(stage, **flags):
    """Start a supervisor of each release, and wait until both have reported their handlers."""
    old = start_app(stage, OLD, processes=2, **flags)
    old.wait_ready()
    new = start_app(stage, NEW, processes=2, **flags)
    for pool in (old, new):
        pool.wait_ready()
        stage.wait_until(
            lambda pool=pool: any(one.klasses for one in stage.client.workers() if one.name == pool.worker),
            "its report",
        )
    return old, new


def finish(stage, *pools):
    for pool in pools:
        assert pool.drain() == 0
    stage.assert_nothing_left()


def test_thousand_jobs_that_only_one_release_can_take_run_there(stage):
    old, new = two(stage, jobs_per_child=0)
    jids = stage.queue.put_many(
        {"klass": "welcome", "data": {"user": number, "country": "de"}} for number in range(1000)
    )
    stage.wait_until_ended(jids, 120)
    jobs = stage.client.jobs(*jids)
    assert {(job.state, job.result, job.failures) for job in jobs} == {("complete", "new", 0)}
    refused = [event["jid"] for event in old.find("job.misfit")]
    assert len(refused) == len(set(refused))
    assert new.find("job.misfit") == []
    finish(stage, old, new)


@pytest.mark.sampled(2)
def test_each_release_gets_its_own_jobs(stage):
    old, new = two(stage)
    data = [{"user": number, **({"country": "de"} if number % 2 else {})} for number in range(60)]
    jids = stage.queue.put_many({"klass": "welcome", "data": one} for one in data)
    stage.wait_until_ended(jids, 120)
    jobs = stage.client.jobs(*jids)
    assert [job.result for job in jobs] == ["new" if number % 2 else "old" for number in range(60)]
    assert sum(job.failures + job.interruptions for job in jobs) == 0
    for pool in (old, new):
        refused = [event["jid"] for event in pool.find("job.misfit")]
        assert len(refused) == len(set(refused))
    finish(stage, old, new)


HOOKED = """
from supervisor import around_job

@around_job
def look(job):
    ending = yield
    print("hook", ending.outcome, ending.exception, ending.trouble and (ending.trouble.group, ending.trouble.message))

@handler{options}
{kind} welcome(job, user: int):
    return "old"
"""


@pytest.mark.parametrize(("kind", "options"), [("def", ""), ("async def", "(concurrency=5)")])
def test_hook_sees_a_misfit_and_no_failure(stage, kind, options):
    old = start_app(stage, HOOKED.format(kind=kind, options=options), processes=1)
    old.wait_ready()
    jid = stage.queue.put("welcome", {"user": "seven"})
    stage.wait_until_ended([jid])
    line = old.wait_for("job.printed", jid=jid)["line"]
    assert line.startswith('hook misfit None (None, "user: ')
    assert stage.client.job(jid).failure["group"] == "broken"
    finish(stage, old)


def test_job_is_broken_once_no_peer_takes_its_shape(stage):
    old, new = two(stage)
    wrong = stage.queue.put("welcome", {"user": "seven"})
    stage.wait_until_ended([wrong])
    job = stage.client.job(wrong)
    assert (job.state, job.failure["group"], job.failures) == ("failed", "broken", 0)
    assert new.drain() == 0
    late = stage.queue.put("welcome", {"user": 7, "country": "de"})
    stage.wait_until_ended([late])
    assert stage.client.job(late).failure["group"] == "broken"
    finish(stage, old)


def test_release_is_named_by_its_flag(stage):
    pool = start_app(stage, OLD, processes=1, release="v1.7")
    stage.wait_until(lambda: [worker.release for worker in stage.client.workers()] == ["v1.7"], "its release")
    finish(stage, pool)
