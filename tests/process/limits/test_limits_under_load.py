"""Jobs under a limit beside a backlog of others: a free slot is used, however much else waits."""

import time

import pytest

from tests.lengths import LONG

RUNNING, RATE = 2, 200
#: Jobs of others that the pool is watched with. Half as many more wait behind them.
WATCHED = 9_000 if LONG else 2_500


@pytest.mark.sampled(3)
def test_backlog_does_not_starve_jobs_under_a_limit(stage, measured):
    """Jobs start as often as the limit lets them and exchanges allow, not once per batch of the others."""
    stage.client.limit("api", running=RUNNING, rate=f"{RATE}/s")
    limited = stage.queue.put_many([{"klass": "good.noop", "limit": "api"} for _ in range(1000)])
    plain = []
    for _ in range(3 * WATCHED // 2_000):
        plain += stage.queue.put_many([{"klass": "good.noop"} for _ in range(1000)])
    pool = stage.start(processes=2, jobs_per_child=0, log_level="warning")
    stage.wait_until_counted(lambda: stage.states(plain[:1])[0] == "complete")
    began_at, done = time.monotonic(), stage.states(limited).count("complete")
    stage.wait_until_counted(lambda: stage.states(plain[WATCHED : WATCHED + 1])[0] == "complete", 60.0)
    took_s, done = time.monotonic() - began_at, stage.states(limited).count("complete") - done
    measured(
        f"{done / took_s:.0f} jobs/s under running={RUNNING}, rate={RATE}/s beside {WATCHED / took_s:.0f} others/s"
    )
    assert done > 0
    stage.wait_until_counted(lambda: set(stage.states([*limited, *plain])) == {"complete"}, 120.0)
    assert pool.drain() == 0
    stage.client.unlimit("api")
    stage.assert_nothing_left()
