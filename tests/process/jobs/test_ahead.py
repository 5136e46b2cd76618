"""Jobs sent ahead to a busy child are not held up by its job."""

import time


def _warm(stage, pools):
    """Run quick jobs until both supervisors know the handler as quick."""
    for pool in pools:
        pool.wait_ready()
    warm = stage.queue.put_many([{"klass": "good.as_told"} for _ in range(400)])
    stage.wait_until_ended(warm)


def test_short_jobs_behind_an_unforeseen_long_one_run_elsewhere(stage, measured):
    pools = [stage.start(processes=1, jobs_per_child=0) for _ in range(2)]
    _warm(stage, pools)
    gate = stage.gate("gate")
    began_unix = time.time()
    long, *short = stage.queue.put_many(
        [{"klass": "good.as_told", "data": {"gate": gate}}] + [{"klass": "good.as_told"}] * 10
    )
    stage.wait_until_ended(short)  # while the long one runs
    assert stage.client.job(long).state == "running"
    took_s = max(start.unix for jid in short for start in stage.ledger.starts(jid)) - began_unix
    measured(f"10 short jobs behind a long one, two supervisors: all started within {1000 * took_s:.0f} ms")
    assert took_s <= 8
    for jid in short:
        job = stage.client.job(jid)
        assert (job.deaths, job.failures, job.interruptions) == (0, 0, 0)
        assert len(stage.ledger.starts(jid)) == 1
    stage.open_gate(gate)
    stage.wait_until_ended([long])
    assert [pool.drain() for pool in pools] == [0, 0]
    stage.assert_nothing_left()


def test_death_costs_only_the_running_job(stage):
    pool = stage.start(processes=2, jobs_per_child=0)
    _warm(stage, [pool])
    mortal = set(range(50, 1000, 100))
    jids = stage.queue.put_many(
        [{"klass": "good.as_told", "data": {"die": 7} if n in mortal else None} for n in range(1000)]
    )
    stage.wait_until_ended(jids)
    died = {jid for n, jid in enumerate(jids) if n in mortal}
    assert {event["jid"] for event in pool.find("job.died")} == died
    assert len(pool.find("job.died")) == len(died)
    assert set(stage.states(jids)) == {"complete"}
    assert {jid for jid in jids if len(stage.ledger.starts(jid)) != 1} == died
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_time_limit_counts_from_each_jobs_start(stage):
    """Each job runs for half its limit. The jobs sent ahead together wait for longer than that."""
    pool = stage.start(processes=1, jobs_per_child=0, dispatch_ahead="5s").wait_ready()
    jids = stage.queue.put_many([{"klass": "good.nap", "data": 0.6, "timeout": 1.2} for _ in range(8)])
    stage.wait_until_ended(jids)
    assert set(stage.states(jids)) == {"complete"}
    assert not pool.find("child.killed")
    assert pool.drain() == 0
    stage.assert_nothing_left()
