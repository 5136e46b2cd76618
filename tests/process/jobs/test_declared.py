"""Recurring jobs that handlers declare: put, changed and removed with the code that declares them."""

import signal

import pytest

from tests.process.apps import start_app, write_app

OFTEN = '@handler(every=0.2, tags=["often"])\ndef often(job, times: int = 1):\n    count("calls")\n'
RARELY = OFTEN.replace("every=0.2", 'cron="0 6 * * *", tz="Europe/Berlin"')
NEVER = OFTEN.replace('every=0.2, tags=["often"]', "")


def calls(stage):
    path = stage.directory / "calls"
    return path.stat().st_size if path.exists() else 0


def finish(stage, *pools):
    for pool in pools:
        assert pool.drain() == 0
    stage.client.queue("default").delete()
    stage.assert_nothing_left()


@pytest.mark.sampled(2)
def test_declared_job_follows_the_code_over_reloads_and_a_rollback(stage):
    pool = start_app(stage, OFTEN, processes=1)
    stage.wait_until(lambda: calls(stage) >= 2, "two of its jobs")
    assert stage.client.recurring("often").tags == ["often"]
    for source, cron in ((RARELY, "0 6 * * *"), (OFTEN, None), (NEVER, "gone"), (OFTEN, None)):
        write_app(stage, source)
        pool.send(signal.SIGHUP)
        stage.wait_until(
            lambda cron=cron: getattr(stage.client.recurring("often"), "cron", "gone") == cron, f"cron {cron}"
        )
    finish(stage, pool)


def test_restart_leaves_what_an_operator_has_removed(stage):
    first = start_app(stage, OFTEN, processes=1)
    stage.wait_until(lambda: calls(stage) >= 1, "a job")
    stage.client.unrecur("often")
    second = start_app(stage, OFTEN, processes=1)
    second.wait_ready()
    stage.wait_until(lambda: any("often" in worker.klasses for worker in stage.client.workers()
                                 if worker.name == second.worker), "its report")  # fmt: skip
    assert stage.client.recurring("often") is None
    assert second.find("recurring.declared") == []
    finish(stage, first, second)


def test_emptied_redis_gets_the_declared_jobs_again(own_stage, own_server):
    stage = own_stage
    pool = start_app(stage, RARELY, processes=1).wait_ready()
    stage.wait_until(lambda: stage.client.recurring("often") is not None, "the declared job")
    own_server.redis.flushall()
    stage.wait_until(lambda: stage.client.recurring("often") is not None, "the declared job once more")
    assert pool.wait_for("recurring.declared", nth=2)["put"] == ["often"]
    finish(stage, pool)


@pytest.mark.parametrize(("newer", "cron"), [(RARELY.replace("6 * *", "7 * *"), "0 7 * * *"), (NEVER, None)])
def test_deregistered_supervisor_leaves_what_another_release_has_declared_or_removed(stage, newer, cron):
    def declared():
        return getattr(stage.client.recurring("often"), "cron", None)

    old = start_app(stage, RARELY, processes=1).wait_ready()
    stage.wait_until(lambda: declared() == "0 6 * * *", "the declared job")
    new = start_app(stage, newer, processes=1).wait_ready()
    stage.wait_until(lambda: declared() == cron, "what the newer release says")
    stage.client.deregister(old.worker)
    renamed = old.wait_for("worker.deregistered")["new"]
    stage.wait_until_counted(lambda: any("often" in worker.klasses for worker in stage.client.workers()
                                         if worker.name == renamed))  # fmt: skip
    assert declared() == cron
    finish(stage, old, new)
    assert [said["put"] for said in old.find("recurring.declared")] == [["often"]]  # only at its start


def test_handler_whose_parameter_has_no_default_does_not_boot(stage):
    pool = start_app(stage, "@handler(every=60)\ndef often(job, times: int): ...\n", processes=1)
    assert pool.wait() == 71
    assert "'often' recurs without data, so its parameter 'times' needs a default" in str(pool.events)
    stage.assert_nothing_left()
