"""A supervisor serves all shards of a namespace: each job runs once, wherever it lies."""

import os
import signal

from supervisor.engine.commands import dividing
from supervisor.exit_codes import Exit
from tests.lengths import PATIENCE


def test_jobs_of_all_shards_run_once(shards):
    stage = shards.stage
    jids = shards.put_in_all("good.noop", times=10)
    pool = stage.start(processes=2).wait_ready()
    assert pool.find("master.started")[0]["shards"] == shards.count
    stage.wait_until_ended(jids)
    assert sorted(start.jid for start in stage.ledger.starts(*jids)) == sorted(jids)
    shards.drain(pool)


def test_idle_supervisor_is_woken_by_each_shard(shards):
    stage = shards.stage
    pool = stage.start(processes=2).wait_ready()
    stage.wait_until_heard(shards.count)
    for number in range(3):
        for shard in range(shards.count):
            stage.wait_until_ended([shards.put("good.noop", shards.jid_in(shard, number))], timeout_s=5.0)
    shards.drain(pool)


def test_supervisor_that_polls_serves_all_shards(shards):
    stage = shards.stage
    pool = stage.start(processes=2, redis_poll="50ms").wait_ready()
    for number in range(2):
        stage.wait_until_ended([shards.put("good.noop", shards.jid_in(s, number)) for s in range(shards.count)])
    shards.drain(pool)


def test_long_queue_of_one_shard_holds_up_no_other(shards):
    stage = shards.stage
    naps = [shards.put("good.nap", shards.jid_in(1, number), 0.05) for number in range(60)]
    pool = stage.start(processes=1, jobs_per_child=0).wait_ready()
    stage.wait_for_starts(naps[5])
    others = [shards.put("good.noop", shards.jid_in(shard)) for shard in (0, 2, 3)]
    stage.wait_until_ended([*naps, *others])
    order = stage.ledger.order()
    assert max(map(order.index, others)) < order.index(naps[50])
    shards.drain(pool)


# how many there are


def test_first_supervisor_divides_a_new_namespace(undivided):
    shards, stage = undivided, undivided.stage
    first = stage.start(shards=shards.count).wait_ready()
    second = stage.start().wait_ready()
    assert [pool.find("master.started")[0]["shards"] for pool in (first, second)] == [shards.count] * 2
    assert shards.run_undivided(dividing.divide()).number == shards.count
    stage.wait_until_ended(shards.put_in_all("good.noop"))
    assert first.drain() == 0
    shards.drain(second)


def test_another_number_of_shards_ends_the_start(shards):
    pool = shards.stage.start(shards=8)
    assert pool.wait() == Exit.CONFIG
    [failed] = pool.find("redis.failed")
    assert "has 4 shards, and --shards 8 asks for another number" in failed["message"]


def test_end_of_an_idle_supervisor_is_refused(shards):
    pool = shards.stage.start(exit_when_idle="1s")
    assert pool.wait() == Exit.CONFIG
    [failed] = pool.find("redis.failed")
    assert "--exit-when-idle holds in a namespace of one shard only" in failed["message"]


def test_running_supervisor_follows_the_move_to_several_shards(undivided):
    shards, stage = undivided, undivided.stage
    held, ended = (stage.queue.put("good.hold", stage.gate(name)) for name in ("held", "ended"))
    pool = stage.start(processes=2).wait_ready()
    stage.wait_for_starts(held)
    stage.wait_for_starts(ended)
    shards.set_mark(f"3/1>{shards.count}")
    stage.open_gate("ended")
    stage.wait_until_ended([ended])
    pool.wait_for("shards.moving")
    shards.set_mark(f"3/{shards.count}<")
    assert pool.wait_for("shards.changed")["shards"] == shards.count
    stage.wait_until_ended(shards.put_in_all("good.noop"))
    stage.open_gate("held")
    stage.wait_until_ended([held])
    assert len(stage.ledger.starts(held)) == 1
    assert [len(pool.find(event)) for event in ("shards.moving", "redis.lost", "lease.lost")] == [1, 0, 0]
    shards.drain(pool)


# ends


def test_killed_child_has_its_job_run_again_in_each_shard(shards):
    stage = shards.stage
    pool = stage.start(processes=shards.count).wait_ready()
    jids = shards.put_in_all("good.hold", stage.gate("gate"))
    for jid in jids:
        [start] = stage.wait_for_starts(jid)
        os.kill(start.pid, signal.SIGKILL)
    for jid in jids:
        stage.wait_for_starts(jid, 2)
    stage.open_gate("gate")
    stage.wait_until_ended(jids)
    assert {shards.job(jid).deaths for jid in jids} == {1}
    shards.drain(pool)


def test_killed_supervisor_has_its_jobs_taken_over_in_each_shard(shards):
    stage = shards.stage
    shards.configure("grace", "0.5")
    killed = stage.start(processes=shards.count, lease_ttl="1s").wait_ready()
    jids = shards.put_in_all("good.hold", stage.gate("gate"))
    for jid in jids:
        stage.wait_for_starts(jid)
    killed.send(signal.SIGKILL)
    killed.wait()
    stage.open_gate("gate")
    pool = stage.start(processes=shards.count).wait_ready()
    stage.wait_until_ended(jids)
    assert [len(stage.ledger.starts(jid)) for jid in jids] == [2] * shards.count
    shards.deregister(killed.worker, *range(shards.count))
    shards.drain(pool)


def test_drain_hands_back_the_jobs_of_all_shards(shards):
    stage = shards.stage
    pool = stage.start(processes=shards.count, drain_timeout="0", term_grace="0.5s").wait_ready()
    jids = shards.put_in_all("good.hold", stage.gate("gate"))
    for jid in jids:
        stage.wait_for_starts(jid)
    shards.drain(pool)
    assert shards.states(jids) == {"waiting"}


# names


def test_deregistered_supervisor_has_one_new_name_in_all_shards(shards):
    stage = shards.stage
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_heard(shards.count)
    shards.deregister(pool.worker, *range(shards.count))
    stage.wait_until_ended(shards.put_in_all("good.noop"))
    [name] = [event["new"] for event in pool.find("worker.deregistered")]
    stage.wait_until_counted(lambda: shards.workers() == [{name}] * shards.count)
    shards.drain(pool)


def test_shards_take_the_name_of_one_that_has_forgotten_the_supervisor(shards):
    stage = shards.stage
    pool = stage.start(processes=2).wait_ready()
    held = shards.put("good.hold", shards.jid_in(1), stage.gate("gate"))
    stage.wait_for_starts(held)
    stage.wait_until_heard(shards.count)
    shards.deregister(pool.worker, 2)
    name = pool.wait_for("worker.deregistered")["new"]
    stage.wait_until_counted(lambda: shards.workers() == [{name}, {pool.worker}, {name}, {name}])
    stage.open_gate("gate")
    stage.wait_until_ended([held])
    assert len(stage.ledger.starts(held)) == 1
    stage.wait_until_counted(lambda: shards.workers() == [{name}] * shards.count, 10.0 * PATIENCE)
    shards.drain(pool)


# follow-ups


def test_follow_ups_lie_in_the_shard_of_their_job(shards):
    stage = shards.stage
    pool = stage.start(processes=2).wait_ready()
    told = {"put": [["default", "good.noop", None, {}]] * 2}
    jids = [shards.put("follow.after", shards.jid_in(shard), told) for shard in range(shards.count)]
    stage.wait_until_ended(jids)
    stage.wait_until(lambda: len(stage.ledger.starts()) >= 3 * shards.count, "the follow-ups")
    following = {start.jid for start in stage.ledger.starts()} - {*jids}
    stage.wait_until_ended(following)
    assert shards.states(following) == {"complete"}
    shards.drain(pool)
