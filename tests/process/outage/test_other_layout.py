"""A supervisor in a namespace of another layout: at its start, and when the layout changes under it."""

import signal

LAYOUT_1 = "has the layout of Leasehold 0.1: stop its supervisors and clients, then run `leasehold upgrade`"
NEWER = "has a newer layout than this Leasehold knows (3, not 2): use a newer Leasehold"


def calls_of_scripts(redis):
    return redis.info("commandstats")["cmdstat_evalsha"]["calls"]


def test_start_in_another_layout_ends_and_says_what_to_do(stage):
    stage.server.redis.set(f"{stage.prefix}seq", 7)
    pool = stage.start(processes=1)
    assert pool.wait() == 69
    (failed,) = pool.find("redis.failed")
    assert LAYOUT_1 in failed["message"] and "--redis-url" not in failed["message"]
    assert list(stage.server.redis.scan_iter(f"{stage.prefix}*")) == [f"{stage.prefix}seq".encode()]
    stage.server.redis.delete(f"{stage.prefix}seq")
    stage.assert_nothing_left()


def test_layout_that_changes_meanwhile_is_an_outage(own_stage, own_server):
    """The jobs run on, and nothing is asked of Redis but a try now and then."""
    stage, redis = own_stage, own_server.redis
    pool = stage.start(processes=1, lease_ttl="3s").wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    mark = f"{stage.prefix}config"
    redis.set(mark, "3")
    lost = pool.wait_for("redis.lost")
    assert NEWER in lost["message"] and "script:" not in lost["message"]
    calls = calls_of_scripts(redis)
    assert NEWER in pool.wait_for("redis.lost", nth=2)["message"]
    assert calls_of_scripts(redis) - calls < 20
    redis.set(mark, "2")
    pool.wait_for("redis.connected")
    stage.open_gate("gate")
    stage.wait_until_ended([held])
    assert len(stage.ledger.starts(held)) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_drain_in_another_layout_says_that_leases_are_left(own_stage, own_server):
    stage, redis = own_stage, own_server.redis
    pool = stage.start(processes=1, lease_ttl="3s", drain_timeout="1s", term_grace="1s").wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    redis.set(f"{stage.prefix}config", "3")
    pool.wait_for("redis.lost")
    pool.send(signal.SIGTERM)
    assert pool.wait() == 75
    redis.set(f"{stage.prefix}config", "2")
    stage.client.cancel(held)
    stage.client.deregister(pool.worker)
    stage.assert_nothing_left()
