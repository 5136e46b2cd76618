"""An external scaler reads how many supervisors there should be, and sees work when none runs."""

import json
import signal

KEY = "desired:pool"
#: KEDA's script to read a key (its pkg/scalers/redis_scaler.go).
KEDA = """
    local listName = KEYS[1]
    local listType = redis.call('type', listName).ok
    local cmd = {
        zset = 'zcard',
        set = 'scard',
        list = 'llen',
        hash = 'hlen',
        none = 'llen'
    }
    return redis.call(cmd[listType], listName)
"""


def keda(stage, key):
    return stage.server.redis.eval(KEDA, 1, stage.prefix + key)


def test_the_number_follows_the_backlog_and_expires(stage):
    gate = stage.gate("gate")
    pool = stage.start(processes=2, autoscale="pool").wait_ready()
    pool.wait_for("child.ready", nth=2)
    stage.wait_until_idle(1)  # else its first look could come between two leases
    assert keda(stage, KEY) == 0
    jids = stage.queue.put_many([{"klass": "good.hold", "data": gate} for _ in range(9)])
    stage.wait_until_counted(lambda: keda(stage, KEY) == 5)
    note = json.loads(stage.server.redis.lindex(stage.prefix + KEY, 0))
    assert note.pop("oldest_s") >= 0 and note.pop("at_unix") > 0
    # An unchanged number is not told again at once, so the note may be of the moment when one job was leased.
    assert note.pop("ready") + note.pop("running") == 9
    assert note == {"worker": pool.worker, "desired": 5, "processes": 2, "concurrency": 1}
    assert 0 < stage.server.redis.pttl(stage.prefix + KEY) <= 60_000
    (told,) = stage.client.ask([pool.worker], "status", timeout=20).values()
    assert (told["autoscaling"]["name"], told["autoscaling"]["desired"]) == ("pool", 5)
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    stage.wait_until_counted(lambda: not stage.server.redis.exists(stage.prefix + KEY))
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_jobs_beside_each_other_ask_for_fewer_supervisors(stage):
    source = "import asyncio\nfrom supervisor import handler\n\n@handler(concurrency=10)\nasync def sleep(job):\n"
    (stage.directory / "beside.py").write_text(f"{source}    await asyncio.sleep(1000)\n")
    pool = stage.start(handlers="beside", processes=2, autoscale="pool").wait_ready()
    jids = stage.queue.put_many([{"klass": "sleep"} for _ in range(21)])
    stage.wait_until_counted(lambda: keda(stage, KEY) == 2)
    note = json.loads(stage.server.redis.lindex(stage.prefix + KEY, 0))
    assert (note["ready"] + note["running"], note["processes"], note["concurrency"]) == (21, 2, 10)
    stage.client.cancel(*jids)
    stage.wait_until_counted(lambda: not stage.server.redis.exists(stage.prefix + KEY))
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_a_number_without_its_supervisor_expires(stage):
    gate = stage.gate("gate")
    pool = stage.start(processes=1, autoscale="pool").wait_ready()
    stage.queue.put("good.hold", gate)
    stage.wait_until_counted(lambda: keda(stage, KEY) == 1)
    pool.send(signal.SIGKILL)
    pool.wait()
    assert keda(stage, KEY) == 1
    stage.server.redis.pexpire(stage.prefix + KEY, 1)  # instead of a minute
    stage.wait_until_counted(lambda: keda(stage, KEY) == 0)
    stage.open_gate(gate)


def test_a_put_without_supervisors_leaves_a_visible_token(stage):
    pool = stage.start(processes=1, autoscale="pool").wait_ready()
    stage.wait_until_idle(1)
    assert pool.drain() == 0
    assert keda(stage, "bell:default") == 0
    stage.queue.put("good.noop")
    assert (keda(stage, "bell:default"), keda(stage, KEY)) == (1, 0)
    pool = stage.start(processes=1, autoscale="pool")
    pool.wait_for("job.completed")
    stage.wait_until_counted(lambda: keda(stage, KEY) == 0)
    stage.wait_until_idle(1)
    assert keda(stage, "bell:default") == 0
    assert pool.drain() == 0
    stage.assert_nothing_left()
