"""A supervisor whose own clock is wrong: leases and delays do not depend on it."""

import time

import pytest
from supervised import HERE, ROOT

#: Python reads a module of this name at its start.
SHIFT = "import os, time\n_true = time.time\ntime.time = lambda: _true() + float(os.environ['SHIFT'])\n"


@pytest.mark.parametrize("shift_s", [3600, -3600])
def test_clock_wrong_by_an_hour_changes_nothing(stage, shift_s):
    (stage.directory / "wrong").mkdir()
    (stage.directory / "wrong" / "sitecustomize.py").write_text(SHIFT)
    stage.config(grace=2)
    environment = {"PYTHONPATH": f"{stage.directory / 'wrong'}:{ROOT}:{HERE}", "SHIFT": str(shift_s)}
    wrong = stage.start(processes=1, lease_ttl="2s", environment=environment).wait_ready()
    right = stage.start(processes=1, lease_ttl="2s").wait_ready()
    assert abs(wrong.find("master.started")[0]["time"] - right.find("master.started")[0]["time"]) > 3000
    began_unix = time.time()
    long = [stage.queue.put("good.nap", 5) for _ in range(2)]
    for jid in long:
        stage.wait_for_starts(jid)
    later = [stage.queue.put("good.noop", delay=2) for _ in range(4)]
    stage.wait_until_ended([*long, *later])
    assert [len(stage.ledger.starts(jid)) for jid in [*long, *later]] == [1] * 6
    for jid in later:
        (leased_unix,) = (entry["when"] for entry in stage.client.job(jid).history if entry["what"] == "popped")
        assert 2 <= leased_unix - began_unix < 20
    assert wrong.find("job.completed") and right.find("job.completed")
    assert stage.find("lease.lost") == stage.find("job.stale") == stage.find("job.died") == []
    assert [pool.drain() for pool in stage.pools] == [0, 0]
    stage.assert_nothing_left()
