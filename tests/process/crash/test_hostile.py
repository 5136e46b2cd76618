"""Misuse of shared resources: memory, descriptors, hooks that end, grow or hang, and forged messages.

Each costs its author, and no job beside or after it.
"""

import re
import signal
import subprocess
import time
from functools import partial

import pytest
from apps import flag, start_app

IN_A_ROW = 6

MEMORY = """
KEPT = []


def take(mb):
    return bytearray(b"x") * (mb << 20)


def wait_at(gate):
    os.close(os.open(HERE / "gates" / gate, os.O_RDONLY))


@handler
def big(job):
    block = take(job.data)
    time.sleep(1.5)  # it is looked at meanwhile


@handler
def big_and_long(job):
    block = take(job.data["mb"])
    time.sleep(1.5)
    (HERE / "has-it").touch()
    wait_at(job.data["gate"])


@handler(memory=0)
def leave_behind(job):
    KEPT.append(take(job.data["mb"]))
    if "gate" in job.data:
        time.sleep(1.5)
        (HERE / f"has-it-{job.jid}").touch()
        wait_at(job.data["gate"])


@handler(memory=0)
def leave_a_thread_that_takes(job):
    def eat():
        while True:
            KEPT.append(take(2))
            time.sleep(0.02)
    threading.Thread(target=eat, daemon=True).start()


@handler(memory="64M")
def small(job):
    time.sleep(0.3)
    return os.getpid()


@handler(memory="16M")
def tiny(job):
    return os.getpid()


@handler(memory=0)
def measure(job):
    return [os.getpid(), len(job.data)]
"""

FLUSH = """
@on_exit
def flush():
    if is_set("hang"): time.sleep(1000)
    time.sleep(0.3)
    (HERE / f"flushed-{os.getpid()}").touch()


@handler
def hold_in_hand(job):
    (HERE / "has-it").touch()
    os.close(os.open(HERE / "gates" / job.data, os.O_RDONLY))
"""


@pytest.fixture
def app(stage):
    """Writes the handlers, and starts a supervisor for them."""
    return partial(start_app, stage)


def finish(stage, *pools, **left):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(**left)


def wait_for_file(stage, name):
    stage.wait_until_counted((stage.directory / name).exists)


def counts(stage, *jids):
    """Return states and counts of these jobs, equal ones once."""
    return {(job.state, job.failures, job.deaths, job.interruptions) for job in stage.client.jobs(*jids)}


UNHARMED = {("complete", 0, 0, 0)}


def run(stage, klass, data=None, **options):
    """Run one job to its end, and return it."""
    jid = stage.queue.put(klass, data, **options)
    stage.wait_until_ended([jid])
    return stage.client.job(jid)


def warnings(pool, text):
    return [event["message"] for event in pool.find("master.warned") if text in event["message"]]


# memory


def test_job_that_does_not_fit_waits_and_is_named(stage, app, measured):
    pool = app(MEMORY, processes=3, memory_budget="220M").wait_ready()
    run(stage, "big", 110)
    gate = stage.gate("gate")
    long = stage.queue.put("big_and_long", {"mb": 100, "gate": gate})
    wait_for_file(stage, "has-it")
    large = stage.queue.put("big", 110)
    stage.wait_until_counted(lambda: stage.states([large]) == ["running"])
    began_at = time.monotonic()
    others = stage.queue.put_many([{"klass": "noop"}] * 10)
    stage.wait_until_ended(others)
    waited_s = time.monotonic() - began_at
    measured(f"others wait {waited_s:.1f} s for a job that does not fit")
    assert waited_s < 25
    (warning,) = warnings(pool, large)
    assert "does not start here" in warning
    assert "of the memory budget of 220 MB" in warning
    assert counts(stage, large) == {("scheduled", 0, 0, 0)}
    assert 0 < stage.client.job(large).due_unix - time.time() <= 10
    stage.open_gate(gate)
    stage.wait_until_ended([long])
    stage.client.job(large).move("default")  # only to save time: it would come by itself
    stage.wait_until_ended([large])
    assert counts(stage, long, large, *others) == UNHARMED
    assert not pool.find("child.killed")
    finish(stage, pool)


def test_memory_limit_ignores_what_earlier_jobs_left(stage, app):
    pool = app(MEMORY, processes=2, jobs_per_child=0).wait_ready()
    pool.wait_for("child.ready", nth=2)
    gate = stage.gate("gate")
    jids = [stage.queue.put("leave_behind", {"mb": 150, "gate": gate}) for _ in range(2)]
    for jid in jids:
        wait_for_file(stage, f"has-it-{jid}")
    jids += [stage.queue.put("small", max_deaths=1) for _ in range(4)]
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    assert counts(stage, *jids) == UNHARMED
    finish(stage, pool)


def test_memory_limit_ignores_an_unmeasured_earlier_job(stage, app):
    pool = app(MEMORY, jobs_per_child=0).wait_ready()
    jids = [run(stage, klass, {"mb": 150}, max_deaths=1).jid for klass in ("noop", "leave_behind", "small", "noop")]
    assert counts(stage, *jids) == UNHARMED
    finish(stage, pool)


def test_out_of_descriptors_fewer_children_run_and_no_job_is_interrupted(stage, app, measured):
    source = "@handler\ndef nap(job): time.sleep(0.2)"
    pool = app(source, processes=16, prefix=["sh", "-c", 'ulimit -n 80 && exec "$@"', "sh"]).wait_ready()
    jids = stage.queue.put_many([{"klass": "nap"}] * 20)
    stage.wait_until_ended(jids)
    assert counts(stage, *jids) == UNHARMED
    assert "Too many open files" in warnings(pool, "no child can be asked for")[0]
    assert len(pool.find("zygote.spawned")) == 1
    finish(stage, pool)


def test_sockets_of_dead_children_are_closed_when_descriptors_run_out(stage, app, measured):
    prefix = ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh"]
    pool = app("", processes=1, jobs_per_child=1, prefix=prefix).wait_ready()
    jids = stage.queue.put_many([{"klass": "noop"}] * 40)
    stage.wait_until_ended(jids)
    assert counts(stage, *jids) == UNHARMED
    finish(stage, pool)


def test_memory_limit_does_not_apply_to_the_next_payload(stage, app):
    pool = app(MEMORY, jobs_per_child=0).wait_ready()
    limited = run(stage, "tiny")
    large = run(stage, "measure", "x" * (30 << 20), max_deaths=1)
    assert counts(stage, limited.jid, large.jid) == UNHARMED
    assert large.result == [limited.result, 30 << 20], "in the same child"
    finish(stage, pool)


def test_time_in_before_fork_hooks_counts_against_no_job(stage, app):
    pool = app(f"{MEMORY}\n@before_fork\ndef refresh():\n    if not KEPT: KEPT.append(take(150))").wait_ready()
    jids = [stage.queue.put("small", max_deaths=1) for _ in range(2)]
    stage.wait_until_ended(jids)
    assert counts(stage, *jids) == UNHARMED
    finish(stage, pool)


def test_growing_idle_child_is_ended_at_the_budget(stage, app):
    pool = app(MEMORY, jobs_per_child=0, memory_budget="150M").wait_ready()
    jids = [run(stage, "leave_a_thread_that_takes").jid]
    killed = pool.wait_for("child.killed")
    assert killed["reason"] == "memory"
    assert "beyond the memory budget of 150 MB" in killed["message"]
    assert "for nobody" in killed["message"]
    jids.append(run(stage, "noop").jid)
    assert counts(stage, *jids) == UNHARMED
    finish(stage, pool)


# children that end


@pytest.mark.slow
def test_children_that_exit_when_ready_make_status_71(stage, app, measured):
    source = """
@after_fork
def watch():
    def give_up():
        time.sleep(0.03)
        print("the licence server is gone", flush=True)
        os._exit(3)
    threading.Thread(target=give_up).start()
"""
    pool = app(source, processes=4)
    pool.wait_for("zygote.ready")
    began_at = time.monotonic()
    assert pool.wait() == 71
    measured(f"children that end at once: exit after {time.monotonic() - began_at:.1f} s")
    last = pool.events[-1]
    assert last["event"] == "zygote.failed"
    times = re.search(r"exit-3\), (\d+) times in a row", last["message"])
    assert times is not None
    assert int(times[1]) >= IN_A_ROW
    assert "the licence server is gone" in last["traceback"]
    assert "the licence server is gone" in warnings(pool, "before it had answered a job")[0]
    assert len(pool.find("child.spawned")) <= 2 * 4 * int(times[1])
    stage.assert_nothing_left()


def test_children_that_send_nonsense_are_forked_with_back_off(stage, app):
    source = """
@after_fork
def babble():
    def babble_soon():
        time.sleep(0.03)
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                os.write(fd, b"x" * 40) if "socket" in os.readlink(f"/proc/self/fd/{fd}") else None
            except OSError:
                continue
    threading.Thread(target=babble_soon, daemon=True).start()
"""
    pool = app(source, processes=2)
    said = pool.wait_for("master.warned", nth=5)["message"]
    assert "it spoke nonsense" in said
    assert "5 times in a row; the next one is forked in 1.6 s" in said
    assert len(pool.find("child.spawned")) <= 3 * 2 * 5
    finish(stage, pool)


def test_fork_returning_from_after_fork_is_no_second_child(stage, app):
    pool = app("@after_fork\ndef twice(): os.fork()", processes=2).wait_ready()
    jids = stage.queue.put_many([{"klass": "noop"}] * 6)
    stage.wait_until_ended(jids)
    assert counts(stage, *jids) == UNHARMED
    assert not pool.find("child.killed")
    assert len(pool.find("child.ready")) <= 6 + 2 + 2
    finish(stage, pool)


# hooks


def flushed(stage):
    return {int(path.name.removeprefix("flushed-")) for path in stage.directory.glob("flushed-*")}


@pytest.mark.parametrize("jobs_per_child", [0, 1])
def test_each_child_calls_its_on_exit_hooks_in_a_drain(stage, app, jobs_per_child):
    pool = app(FLUSH, processes=2, jobs_per_child=jobs_per_child).wait_ready()
    pool.wait_for("child.ready", nth=2)
    children = set(pool.child_pids())
    gate = stage.gate("gate")
    ended, busy = run(stage, "noop"), stage.queue.put("hold_in_hand", gate)
    wait_for_file(stage, "has-it")
    if jobs_per_child:
        pool.wait_for("child.ready", nth=4)  # an idle one beside each that was used
        children |= set(pool.child_pids())
    pool.send(signal.SIGTERM)
    pool.wait_for("master.draining")
    stage.open_gate(gate)
    assert pool.wait() == 0
    assert flushed(stage) >= children
    assert counts(stage, ended.jid, busy) == UNHARMED
    stage.assert_nothing_left()


def test_hanging_on_exit_hook_is_killed_in_a_drain(stage, app, measured):
    pool = app(FLUSH, processes=2, jobs_per_child=0, drain_timeout="0.5s", term_grace="0.5s").wait_ready()
    run(stage, "noop")
    flag(stage, "hang")
    began_at = time.monotonic()
    assert pool.drain() == 0
    took_s = time.monotonic() - began_at
    measured(f"a drain of 1 s with hooks that hang: {took_s:.1f} s")
    assert 0.9 < took_s < 10
    stage.assert_nothing_left()
    assert flushed(stage) == set()


def test_slow_on_exit_hooks_do_not_pile_up_processes(stage, app, measured):
    pool = app(FLUSH, processes=2).wait_ready()
    jids = stage.queue.put_many([{"klass": "noop"}] * 40)
    stage.wait_until_ended(jids)
    living = most = 0
    for event in list(pool.events):
        living += (event["event"] == "child.spawned") - (event["event"] == "child.reaped")
        most = max(most, living)
    measured(f"2 processes, 40 jobs, hooks of 0.3 s: {most} children at once")
    assert most <= 3 * 2 + 2
    assert counts(stage, *jids) == UNHARMED
    finish(stage, pool)


def test_slow_before_fork_hook_keeps_its_zygote(stage, app):
    pool = app("@before_fork\ndef slow():\n    if is_set('slow'): time.sleep(2.6)").wait_ready()
    gate = stage.gate("gate")
    flag(stage, "slow")
    jids = [stage.queue.put("hold", gate), stage.queue.put("noop")]
    pool.wait_for("job.started", jid=jids[0])
    stage.open_gate(gate)  # its child ends while the next one is forked
    stage.wait_until_ended(jids)
    flag(stage, "slow", on=False)
    assert counts(stage, *jids) == UNHARMED
    assert not pool.find("zygote.retired")
    finish(stage, pool)


def test_fork_returning_from_before_fork_is_no_second_zygote(stage, app):
    pool = app("@before_fork\ndef twice(): os.fork()", processes=2).wait_ready()
    jids = stage.queue.put_many([{"klass": "noop"}] * 6)
    stage.wait_until_ended(jids)
    assert counts(stage, *jids) == UNHARMED
    assert not pool.find("zygote.retired")
    assert not pool.find("zygote.lost")
    finish(stage, pool)


# forged messages


@pytest.mark.parametrize("klass", ["overflow_and_return", "overflow_for_ever"])
def test_child_that_sends_after_its_outcome_is_killed(stage, klass):
    pool = stage.start(jobs_per_child=0).wait_ready()
    forger = run(stage, f"hostile.{klass}", max_deaths=1, timeout=30)
    assert (forger.state, forger.deaths) == ("failed", 1)
    assert "after its last word" in pool.wait_for("child.killed")["reason"]
    after = run(stage, "hostile.exit_3", max_deaths=1)
    (died,) = pool.find("job.died", jid=after.jid)
    assert died["reason"] == "exit-3"
    assert not after.failure.keys() & {"traceback", "stack", "memory_bytes"}
    assert run(stage, "good.noop").state == "complete"
    finish(stage, pool)


def test_too_deeply_nested_data_costs_only_its_sender(stage, app):
    source = """
from supervisor import messages

@handler
def forge(job):
    body = b"[" + b"[" * 1000 + b"]" * 1000 + b',"far"]'
    packet = messages.pack_outcome(messages.Verb.PROGRESS, job.token, 0.0, body)
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            os.write(fd, packet) if "socket" in os.readlink(f"/proc/self/fd/{fd}") else None
        except OSError:
            continue
    time.sleep(1000)
"""
    pool = app(source).wait_ready()
    forger = run(stage, "forge", max_deaths=1, timeout=30)
    assert (forger.state, forger.deaths) == ("failed", 1)
    assert "it spoke nonsense" in pool.wait_for("child.killed")["reason"]
    assert run(stage, "noop").state == "complete"
    finish(stage, pool)


def test_text_in_the_stack_file_stays_with_its_job(stage):
    pool = stage.start(jobs_per_child=0).wait_ready()
    writer = run(stage, "hostile.write_stacks_and_return")
    failed = run(stage, "hostile.fail_of_its_own")
    died = run(stage, "hostile.exit_3", max_deaths=1)
    assert counts(stage, writer.jid) == UNHARMED
    assert len({start.pid for start in stage.ledger.starts()}) == 1, "all in the same child"
    assert "STACK OF ANOTHER JOB" not in f"{failed.failure} {died.failure}"
    assert died.failure["reason"] == "exit-3"
    finish(stage, pool)


# hidden /proc


def test_time_limit_holds_where_proc_is_hidden(stage, app):
    """A master without root meets that on a machine whose /proc hides other users' processes."""
    hide = 'mount -t proc -o hidepid=1,gid=12345 proc /proc && exec setpriv --bounding-set -sys_ptrace "$@"'
    prefix = ["unshare", "-m", "sh", "-c", hide, "sh"]
    tried = subprocess.run([*prefix, "true"], stderr=subprocess.PIPE, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"/proc cannot be hidden here: {tried.stderr.strip()}")
    source = """
@handler(timeout=5, retries=0)
def hidden(job):
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable: its /proc is root's
    while True:
        try: time.sleep(1000)
        except BaseException as error: print(type(error).__name__)
"""
    pool = app(source, jobs_per_child=0, prefix=prefix).wait_ready()
    job = run(stage, "hidden", max_deaths=1)
    assert job.failure["reason"] == "timeout"
    assert "SoftTimeout" in job.failure["output"]
    assert any("no memory limit holds" in warned["message"] for warned in pool.find("master.warned"))
    assert run(stage, "noop").state == "complete"
    assert not pool.find("master.crashed")
    finish(stage, pool)
