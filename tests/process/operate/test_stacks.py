"""Stack dumps of children, by SIGUSR1 and by `leasehold stacks`."""

import json
import os
import signal

import pytest


def finish(stage, *pools, **left):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(**left)


def seen_of(stage, pool, count):
    """Send USR1, and return the stacks of so many children by jid."""
    before = len(pool.find("child.seen"))
    pool.send(signal.SIGUSR1)
    stage.wait_until(lambda: len(pool.find("child.seen")) >= before + count, f"{count} children seen")
    return {event.get("jid"): event for event in pool.find("child.seen")[before:]}


def leasehold(stage, *arguments):
    """Run the command as a user types it."""
    return stage.run_command(*arguments, "--redis-url", stage.server.url, "--namespace", stage.namespace)


def test_usr1_logs_the_stacks_of_all_children(stage):
    pool = stage.start(processes=5, jobs_per_child=0, drain_timeout="0s", term_grace="200ms").wait_ready()
    pool.wait_for("child.ready", nth=5)
    gate = stage.gate("gate")
    where = {"stacks.python_loop": None, "stacks.sleeping": None, "stacks.c_loop": None, "stacks.two_threads": gate}
    jids = {klass: stage.queue.put(klass, data) for klass, data in where.items()}
    for jid in jids.values():
        stage.wait_for_starts(jid)
    seen = seen_of(stage, pool, 5)
    for klass, jid in jids.items():
        event = seen[jid]
        assert (event["klass"], event["pid"]) == (klass, stage.ledger.starts(jid)[0].pid)
        assert 'menu/stacks.py", line ' in event["stack"]
        assert f"in {klass.removeprefix('stacks.')}" in event["stack"]
        assert 0 <= event["running_s"] < 60
    assert "in beside" in seen[jids["stacks.two_threads"]]["stack"]
    idle = seen[None]
    assert idle["pid"] in pool.child_pids()
    assert "supervisor/" in idle["stack"] and "menu/" not in idle["stack"]  # in no handler: it waits, or rehearses
    assert pool.find("job.died") == [] and pool.said == []
    assert {start.jid: 1 for start in stage.ledger.starts()} == dict.fromkeys(jids.values(), 1)
    finish(stage, pool, waiting=["default"])


def test_stack_dumps_do_not_mix_with_job_output(stage):
    pool = stage.start(jobs_per_child=0).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("stacks.talk_on", gate)
    stage.wait_for_starts(jid)
    for _ in range(3):
        assert "in talk_on" in seen_of(stage, pool, 1)[jid]["stack"]
    stage.open_gate(gate)
    pool.wait_for("job.completed", jid=jid)
    assert pool.drain() == 0  # its last words may come after its outcome
    *lines, last = [event["line"] for event in pool.find("job.printed", jid=jid)]
    assert lines == [f"line {number}" for number in range(len(lines))]
    assert last == f"all {len(lines)}"
    assert pool.said == []
    assert len(pool.find("child.seen")) == 3
    stage.assert_nothing_left()


@pytest.mark.parametrize("klass", ["stacks.become_a_program", "stacks.forget_signals"])
def test_a_child_that_would_die_of_the_signal_is_not_asked(stage, klass):
    pool = stage.start(processes=2, jobs_per_child=0).wait_ready()
    pool.wait_for("child.ready", nth=2)  # a child that is not ready is not asked
    gate = stage.gate("gate")
    jid = stage.queue.put(klass, gate, max_deaths=1)
    stage.wait_for_starts(jid)
    if klass == "stacks.become_a_program":
        pool.wait_for("job.printed", jid=jid, line="there")
    assert seen_of(stage, pool, 2)[jid]["stack"] == "it has not answered"
    assert pool.find("job.died") == []
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    died = pool.find("job.died", jid=jid)
    assert [event["reason"] for event in died] == (["exit-7"] if klass == "stacks.become_a_program" else [])
    finish(stage, pool)


@pytest.mark.sampled(2)
def test_stacks_queries_all_or_named_supervisors(stage):
    gate = stage.gate("gate")
    jids = []
    for number in range(2):
        stage.start(processes=2, queue=f"q{number}").wait_ready()
        jids.append(stage.client.queue(f"q{number}").put("good.hold", gate))
        stage.wait_for_starts(jids[-1])
    first, second = stage.pools
    said = leasehold(stage, "stacks")
    assert (said.returncode, said.stderr) == (0, "")
    for pool, jid in zip(stage.pools, jids, strict=True):
        assert pool.worker in said.stdout
        assert f"good.hold {jid}" in said.stdout
        assert f"pid {stage.ledger.starts(jid)[0].pid}" in said.stdout
    assert said.stdout.count("in wait_at") == 2
    one = leasehold(stage, "stacks", second.worker, "--json")
    assert one.returncode == 0
    answer = json.loads(one.stdout)
    assert list(answer) == [second.worker]
    (busy,) = [child for child in answer[second.worker] if child.get("jid") == jids[1]]
    assert "in wait_at" in busy["stack"] and busy["klass"] == "good.hold"
    wrong = leasehold(stage, "stacks", "nobody")
    assert wrong.returncode == 1 and "nobody" in wrong.stderr
    assert [pool.find("child.seen") for pool in stage.pools] == [
        [],
        [],
    ]  # the command alone gets the answer
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    finish(stage, first, second)


def test_a_stopped_supervisor_does_not_delay_another(stage):
    stopped, other = stage.start(lease_ttl="60s").wait_ready(), stage.start().wait_ready()
    stage.wait_until_idle(2)
    stopped.send(signal.SIGSTOP)
    said = leasehold(stage, "stacks", "--timeout", "4s", "--json")
    assert said.returncode == 1
    assert f"{stopped.worker} has not answered within 4s" in said.stderr
    answer = json.loads(said.stdout)
    assert answer[stopped.worker] is None and len(answer[other.worker]) == 1
    stopped.send(signal.SIGCONT)
    finish(stage, stopped, other)


def test_a_queried_idle_supervisor_stays_idle(stage, proxies):
    proxy = proxies(0)
    pool = stage.start(redis_url=proxy.url).wait_ready()
    assert leasehold(stage, "stacks", pool.worker).returncode == 0
    seen_of(stage, pool, 1)
    stage.wait_until_idle(1)
    asked = proxy.wait_until_quiet()
    before_s = cpu_s(pool.pid)
    stage.let_time_pass(1.5)
    assert proxy.counts()["batches"] - asked <= 1, "a sweep, at the most"
    assert cpu_s(pool.pid) - before_s <= 0.2
    finish(stage, pool)


def cpu_s(pid):
    """Return the processor time of a process."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
