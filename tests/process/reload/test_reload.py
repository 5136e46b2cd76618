"""A reload: new code takes over without a pause once it has proved that it runs. Broken code changes nothing.

TEST_FULL=1: 50 reloads under load.
"""

import os
import signal
import time
from functools import partial

import psutil
import pytest
from apps import VERSION, flag, put, run, start_app, wait_for_arrival, wait_for_zygotes, write_app, zygotes
from supervised import await_ends
from watched import FULL

#: Waits until the test opens the gate of this name.
WAIT = 'wait_at("{}")\n'
WAIT_IF = 'if is_set("{0}"): wait_at("{0}")\n'
NO_HOOK = "def bite(): raise LookupError('no such hook')"
BROKEN = {
    "does not parse": ("def (:", "invalid syntax"),
    "exits": ("os._exit(5)", "exit-5"),
    "exits, and leaves a process": ("if os.fork(): os._exit(5)\nelse: time.sleep(1000)", "exit-5"),
    "segfaults": ("ctypes.string_at(0)", "SIGSEGV"),
    "hangs": ("time.sleep(1000)", "was not imported within 8 s"),
    "has a hook before the fork that raises": (f"@before_fork\n{NO_HOOK}", "no such hook"),
    "has a hook after the fork that raises": (f"@after_fork\n{NO_HOOK}", "no such hook"),
    "has a hook after the fork that hangs": ("@after_fork\ndef bite(): time.sleep(1000)", "not ready within 8 s"),
    "kills its zygote": ("@after_fork\ndef bite(): os.kill(os.getppid(), signal.SIGKILL); time.sleep(9)", "SIGKILL"),
}  # fmt: skip


@pytest.fixture
def app(stage):
    """Write the handlers, and start a supervisor for them."""
    return partial(start_app, stage)


def assert_ends_well(stage, pool):
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_jobs_run_the_new_code_after_a_reload(stage, app):
    pool = app(VERSION.format(1), processes=2).wait_ready()
    write_app(stage, VERSION.format(2))
    assert run(stage, "version", 4) == [1] * 4
    old = pool.zygote_pid
    pool.send(signal.SIGHUP)
    done = pool.wait_for("reload.completed", zygote=2)
    assert run(stage, "version", 4) == [2] * 4
    assert await_ends([old], 15.0) == []
    (new,) = zygotes(pool)
    assert psutil.Process(new).cmdline()[0] == "leasehold: zygote 2 app"
    assert "added" not in done
    assert len(pool.find("sandbox.reported")) == 1  # it is as it was
    assert_ends_well(stage, pool)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", BROKEN)
def test_broken_code_changes_nothing_and_is_logged(stage, app, how):
    source, why = BROKEN[how]
    pool = app(VERSION.format(1), boot_timeout="8s" if "hangs" in how else "60s").wait_ready()
    write_app(stage, f"{VERSION.format(2)}{source}\n")
    pool.send(signal.SIGHUP)
    assert run(stage, "version", 3) == [1] * 3
    failed = pool.wait_for("reload.failed")
    assert why in failed["message"] + failed.get("traceback", "")
    if how in ("does not parse", "segfaults", "hangs"):
        assert "app/__init__.py" in failed["traceback"]
    assert run(stage, "version", 3) == [1] * 3
    wait_for_zygotes(stage, pool, 1)
    assert not pool.find("zygote.lost") + pool.find("zygote.failed")
    write_app(stage, VERSION.format(3))
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    assert run(stage, "version", 3) == [3] * 3
    assert_ends_well(stage, pool)


def test_running_jobs_finish_on_the_old_code(stage, app):
    slow = WAIT.format("slow")
    held = f"@handler\ndef slow(job):\n    {slow}    return {{}}\n"
    pool = app(VERSION.format(1) + held.format(1), processes=2).wait_ready()
    stage.gate("slow")
    (jid,) = put(stage, "slow")
    wait_for_arrival(stage, "slow")
    write_app(stage, VERSION.format(2) + held.format(2))
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    assert run(stage, "version", 5) == [2] * 5
    assert len(zygotes(pool)) == 2
    stage.open_gate("slow")
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).result == 1
    wait_for_zygotes(stage, pool, 1)
    assert_ends_well(stage, pool)


def test_jobs_past_the_reload_timeout_rerun_on_the_new_code(stage, app):
    deaf = "\n    while True:\n        try: time.sleep(1000)\n        except BaseException: count('deaf')\n"
    stuck = "@handler\ndef polite(job): wait_at('polite')\n@handler\ndef rude(job):\n    count('rude')" + deaf
    pool = app(stuck, processes=2, reload_timeout="1s", term_grace="1s").wait_ready()
    stage.gate("polite")
    polite, rude = put(stage, "polite") + put(stage, "rude")
    wait_for_arrival(stage, "polite")
    stage.wait_until_counted(lambda: (stage.directory / "rude").exists())
    write_app(stage, "@handler\ndef polite(job): return job.interruptions\nrude = handler(name='rude')(polite)\n")
    pool.send(signal.SIGHUP)
    stage.wait_until_ended([polite, rude])
    assert [stage.client.job(jid).result for jid in (polite, rude)] == [1, 1]
    assert [event["reason"] for event in pool.find("job.released")] == ["reload", "reload"]
    assert (stage.directory / "deaf").exists()
    assert not pool.find("job.died")
    assert_ends_well(stage, pool)


def test_persistent_job_continues_with_the_new_code(stage, app):
    endless = "@handler\ndef endless(job):\n    count('{}')\n    time.sleep(1000)\n"
    pool = app(endless.format("old")).wait_ready()
    (jid,) = put(stage, "endless", persistent=True)
    stage.wait_until_counted(lambda: (stage.directory / "old").exists())
    write_app(stage, endless.format("new"))
    pool.send(signal.SIGHUP)
    pool.wait_for("job.started", jid=jid, nth=2)
    stage.wait_until_counted(lambda: (stage.directory / "new").exists())
    assert (stage.directory / "old").stat().st_size == 1
    wait_for_zygotes(stage, pool, 1)
    assert pool.drain() == 0
    stage.client.cancel(jid)
    stage.assert_nothing_left()


def test_handlers_come_and_go_with_the_code(stage, app):
    pool = app("@handler\ndef old(job): return 1\n", processes=1).wait_ready()
    assert run(stage, "old") == [1]
    (early,) = put(stage, "new")
    pool.wait_for("job.unknown", jid=early)
    write_app(stage, "@handler\ndef new(job): return 2\n")
    pool.send(signal.SIGHUP)
    done = pool.wait_for("reload.completed")
    assert (done["added"], done["removed"]) == (["new"], ["old"])
    assert run(stage, "new") == [2]
    (late,) = put(stage, "old")
    pool.wait_for("job.unknown", jid=late)
    assert pool.drain() == 0
    stage.client.cancel(early, late)
    stage.assert_nothing_left()


DEADLY = """
@handler(at_most_once={})
def deadly(job):
    count("starts")
    os.kill(os.getpid(), signal.SIGKILL)

"""


def test_leased_job_of_a_now_at_most_once_klass_starts_once(stage, app):
    pool = app(DEADLY.format(False), processes=1, jobs_per_child=0, dispatch_ahead="20s").wait_ready()
    run(stage, "noop")
    stage.gate("g")
    _hold, *jids = stage.queue.put_many([{"klass": "hold", "data": "g"}, {"klass": "deadly"}])  # leased as one
    wait_for_arrival(stage, "g")
    stage.wait_until(lambda: sum(e["count"] for e in pool.find("lease.granted")) == 3, "all are leased")
    write_app(stage, DEADLY.format(True))
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    stage.open_gate("g")
    stage.wait_until_ended(jids)
    assert (stage.directory / "starts").read_text() == "x"
    assert stage.client.job(jids[0]).deaths == 1
    assert_ends_well(stage, pool)


def test_jobs_sent_ahead_run_with_the_new_codes_settings(stage, app):
    source = "@handler{}\ndef quick(job):\n    if job.data: {}    return {}\n"
    wait = WAIT.format("held")
    pool = app(source.format("", wait, 1), jobs_per_child=0, dispatch_ahead="10s").wait_ready()
    stage.gate("held")
    assert run(stage, "quick", 50) == [1] * 50
    first, *behind = stage.queue.put_many([{"klass": "quick", "data": index == 0} for index in range(6)])
    wait_for_arrival(stage, "held")
    stage.wait_until_counted(lambda: set(stage.states(behind)) == {"running"})
    write_app(stage, source.format("(on_error='fail')", wait, "1 / 0"))
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    stage.open_gate("held")
    stage.wait_until_ended([first, *behind])
    assert stage.client.job(first).result == 1
    assert set(stage.states(behind)) == {"failed"}
    assert_ends_well(stage, pool)


def test_new_code_with_one_ready_child_is_rolled_back(stage, app):
    pool = app(VERSION.format(1), processes=2, jobs_per_child=0).wait_ready()
    assert run(stage, "version") == [1]
    once = "import os\nfrom supervisor import after_fork\n@after_fork\ndef take(): os.mkdir({!r})\n"
    write_app(stage, VERSION.format(2) + once.format(str(stage.directory / "taken")))
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    failed = pool.wait_for("reload.failed", timeout_s=60)
    assert "the code before runs again" in failed["message"] and "FileExistsError" in failed["traceback"]
    assert set(run(stage, "version", 5)) == {1}
    wait_for_zygotes(stage, pool, 1)
    assert_ends_well(stage, pool)


# whenever it comes


def test_reload_requested_during_another_brings_the_newest_code(stage, app):
    pool = app(VERSION.format(1)).wait_ready()
    for gate in ("first", "second"):
        stage.gate(gate)
    write_app(stage, VERSION.format(2) + WAIT.format("first"))
    pool.send(signal.SIGHUP)
    pool.wait_for("zygote.spawned", zygote=2)
    write_app(stage, VERSION.format(3) + WAIT.format("second"))
    pool.send(signal.SIGHUP)
    pool.wait_for("zygote.spawned", zygote=3)
    assert run(stage, "version", 3) == [1] * 3
    stage.open_gate("second")
    assert pool.wait_for("reload.completed")["zygote"] == 3
    assert run(stage, "version", 3) == [3] * 3
    assert len(pool.find("reload.requested")) == 2
    wait_for_zygotes(stage, pool, 1)
    assert_ends_well(stage, pool)


def test_repeated_request_lets_a_reload_finish_and_adds_one(stage, app):
    pool = app(VERSION.format(1)).wait_ready()
    stage.gate("import")
    write_app(stage, VERSION.format(2) + WAIT_IF.format("import"))
    flag(stage, "import")
    pool.send(signal.SIGHUP)
    wait_for_arrival(stage, "import")
    for nth in range(2, 5):
        pool.send(signal.SIGHUP)
        pool.wait_for("reload.requested", nth=nth)
    flag(stage, "import", on=False)
    stage.open_gate("import")
    assert [pool.wait_for("reload.completed", nth=nth)["zygote"] for nth in (1, 2)] == [2, 3]
    assert run(stage, "version", 3) == [2] * 3
    wait_for_zygotes(stage, pool, 1)
    assert len(pool.find("zygote.spawned")) == 3
    assert_ends_well(stage, pool)


def test_frequent_requests_and_edits_starve_no_reload(stage, app, measured):
    pool = app(VERSION.format(1), processes=1).wait_ready()
    requests = 0
    while not pool.find("reload.completed"):
        requests += 1
        write_app(stage, VERSION.format(1 + requests))
        pool.send(signal.SIGHUP)
        pool.wait_for("reload.requested", nth=requests)
        time.sleep(0.05)  # as an impatient operator would
        assert requests < 1000
    write_app(stage, VERSION.format(-1))
    pool.send(signal.SIGHUP)
    stage.wait_until(lambda: run(stage, "version") == [-1], "the newest code runs")
    assert not pool.find("reload.failed") + pool.find("job.died") + pool.find("zygote.lost")
    boots = len(pool.find("zygote.spawned"))
    measured(f"{requests} edits and requests, 50 ms apart, until one was loaded; {boots} boots in all")
    assert_ends_well(stage, pool)


@pytest.mark.parametrize("to", ["the master", "the group"])
def test_doubled_signal_adds_one_harmless_reload(stage, app, to):
    pool = app(VERSION.format(1), processes=2).wait_ready()
    stage.gate("g")
    (held,) = put(stage, "hold", data="g")
    wait_for_arrival(stage, "g")
    write_app(stage, VERSION.format(2))
    for _ in range(2):
        pool.send(signal.SIGHUP) if to == "the master" else pool.send_group(signal.SIGHUP)
    pool.wait_for("reload.completed")
    assert run(stage, "version", 3) == [2] * 3
    stage.open_gate("g")
    stage.wait_until_ended([held])
    assert not pool.find("reload.failed") + pool.find("zygote.lost") + pool.find("job.released")
    assert_ends_well(stage, pool)


def test_drain_ends_a_reload_and_none_begins_later(stage, app):
    pool = app(VERSION.format(1)).wait_ready()
    for gate in ("import", "job"):
        stage.gate(gate)
    (held,) = put(stage, "hold", data="job")
    wait_for_arrival(stage, "job")
    write_app(stage, WAIT.format("import"))
    pool.send(signal.SIGHUP)
    pool.wait_for("zygote.spawned", zygote=2)
    pool.send(signal.SIGTERM)
    assert "drains" in pool.wait_for("reload.failed")["message"]
    wait_for_zygotes(stage, pool, 1)
    pool.send(signal.SIGHUP)
    assert "drains" in pool.wait_for("signal.received", nth=2, signal="SIGHUP")["effect"]
    stage.open_gate("job")
    assert pool.wait() == 0
    assert stage.states([held]) == ["complete"]
    assert len(pool.find("zygote.spawned")) == 2
    stage.assert_nothing_left()


def test_reload_during_the_first_import_restarts_the_import(stage, app):
    stage.gate("import")
    pool = app(WAIT.format("import") + "raise LookupError('the old code')")
    pool.wait_for("zygote.spawned")
    write_app(stage, VERSION.format(2))
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    assert run(stage, "version") == [2]
    wait_for_zygotes(stage, pool, 1)
    assert_ends_well(stage, pool)


def test_reload_to_broken_code_during_the_first_import_is_71(stage, app):
    stage.gate("import")
    pool = app(WAIT.format("import"))
    pool.wait_for("zygote.spawned")
    write_app(stage, "raise LookupError('no such thing')")
    pool.send(signal.SIGHUP)
    assert pool.wait() == 71
    assert "no such thing" in pool.find("reload.failed")[0]["message"]
    assert "no such thing" in pool.events[-1]["message"]
    stage.assert_nothing_left()


def test_reload_rescues_code_whose_children_fail(stage, app):
    pool = app(VERSION.format(1) + "@after_fork\ndef bite(): raise LookupError('no such thing')\n")
    stage.wait_until(lambda: len(pool.find("master.warned")) >= 3, "three children that do not get ready")
    write_app(stage, VERSION.format(2))
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    assert run(stage, "version", 3) == [2] * 3
    assert_ends_well(stage, pool)


def test_reload_during_an_outage_is_done_after_it(own_stage, own_server):
    stage = own_stage
    pool = start_app(stage, VERSION.format(1)).wait_ready()
    own_server.kill()
    pool.wait_for("redis.lost")
    write_app(stage, VERSION.format(2))
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    own_server.start()
    pool.wait_for("redis.connected")
    assert run(stage, "version", 3) == [2] * 3
    assert_ends_well(stage, pool)


def test_candidate_takes_over_if_the_zygote_dies(stage, app):
    pool = app(VERSION.format(1) + WAIT_IF.format("again")).wait_ready()
    for gate in ("candidate", "again"):
        stage.gate(gate)
    flag(stage, "again")
    write_app(stage, VERSION.format(2) + WAIT.format("candidate"))
    old = pool.zygote_pid
    pool.send(signal.SIGHUP)
    pool.wait_for("zygote.spawned", zygote=2)
    os.kill(old, signal.SIGKILL)
    pool.wait_for("zygote.spawned", zygote=3)  # it waits for the same gate, as it reads the same files
    stage.open_gate("candidate")
    pool.wait_for("reload.completed", zygote=2)
    assert run(stage, "version", 3) == [2] * 3
    wait_for_zygotes(stage, pool, 1)
    assert len(pool.find("zygote.lost")) == 1
    assert not pool.find("zygote.failed")
    assert_ends_well(stage, pool)


def test_zygotes_death_is_seen_though_its_fork_holds_the_socket(stage, app):
    pool = app("if not os.fork(): time.sleep(1000)\n", jobs_per_child=0).wait_ready()
    os.kill(pool.zygote_pid, signal.SIGKILL)
    pool.wait_for("zygote.lost")
    assert run(stage, "noop") == [None]
    wait_for_zygotes(stage, pool, 1)
    assert_ends_well(stage, pool)


def test_lost_old_zygote_interrupts_its_jobs_and_is_logged(stage, app):
    pool = app(VERSION.format(1), jobs_per_child=0).wait_ready()
    old = pool.zygote_pid
    stage.gate("g")
    (jid,) = put(stage, "hold", data="g")
    wait_for_arrival(stage, "g")
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    os.kill(old, signal.SIGKILL)
    assert pool.wait_for("zygote.lost")["running"] == 1
    assert pool.wait_for("job.released", jid=jid)["reason"] == "zygote-lost"
    stage.open_gate("g")
    stage.wait_until_ended([jid])
    assert len(pool.find("zygote.ready")) == 2
    assert_ends_well(stage, pool)


def test_killed_candidate_is_a_failed_reload(stage, app):
    pool = app(VERSION.format(1)).wait_ready()
    stage.gate("import")
    write_app(stage, VERSION.format(2) + WAIT.format("import"))
    pool.send(signal.SIGHUP)
    os.kill(pool.wait_for("zygote.spawned", zygote=2)["pid"], signal.SIGKILL)
    assert "SIGKILL" in pool.wait_for("reload.failed")["message"]
    assert run(stage, "version", 3) == [1] * 3
    assert_ends_well(stage, pool)


EAT = """
@handler
def eat(job):
    eaten = b"x" * (60 << 20)
    wait_at(job.data)

"""
#: Code whose candidate zygote is asked for one child, and takes over only once the gate opens.
FAT = "FAT = b'x' * (80 << 20)\n@after_fork\ndef wait(): wait_at('probe')\n"


def test_memory_budget_counts_both_zygotes_of_a_reload(stage, app):
    pool = app(EAT, processes=2, jobs_per_child=0, memory_budget="200M").wait_ready()
    for gate in ("learn", "probe", "one", "two"):
        stage.gate(gate)
    put(stage, "eat", data="learn")
    wait_for_arrival(stage, "learn")
    stage.let_time_pass(2.0)  # it is looked at meanwhile
    stage.open_gate("learn")
    pool.wait_for("job.completed")
    write_app(stage, EAT + FAT)
    pool.send(signal.SIGHUP)
    wait_for_arrival(stage, "probe")
    (first,) = put(stage, "eat", data="one")
    wait_for_arrival(stage, "one")
    (second,) = put(stage, "eat", data="two")
    stage.wait_until_counted(lambda: stage.states([second]) == ["running"])
    stage.open_gate("probe")
    pool.wait_for("reload.completed")
    assert not [event for event in pool.find("job.started") if event["jid"] == second]
    for gate in ("one", "two"):
        stage.open_gate(gate)
    stage.wait_until_ended([first, second], 60)
    assert not pool.find("job.died")
    assert_ends_well(stage, pool)


# where the code lies


def test_only_a_reload_follows_a_repointed_link(stage):
    for release in (1, 2):
        folder = stage.directory / "releases" / str(release) / "app"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(
            f"from supervisor import handler\n@handler\ndef version(job):\n    from app import late\n"
            f"    return [{release}, late.VERSION]\n"
        )
        (folder / "late.py").write_text(f"VERSION = {release}\n")
    current = stage.directory / "current"
    current.symlink_to("releases/1")
    pool = stage.start(handlers="app", directory=current).wait_ready()
    swapped = stage.directory / "swapped"
    swapped.symlink_to("releases/2")
    swapped.rename(current)
    assert run(stage, "version") == [[1, 1]]
    os.kill(pool.zygote_pid, signal.SIGKILL)
    pool.wait_for("zygote.ready", nth=2)
    assert run(stage, "version") == [[1, 1]]
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    assert run(stage, "version") == [[2, 2]]
    os.kill(pool.zygote_pid, signal.SIGKILL)
    pool.wait_for("zygote.ready", nth=4)
    assert run(stage, "version") == [[2, 2]]
    current.unlink()
    pool.send(signal.SIGHUP)
    assert "cannot be entered" in pool.wait_for("reload.failed")["message"]
    assert run(stage, "version") == [[2, 2]]
    assert_ends_well(stage, pool)


# under load

HALVES = """
from app.other import VERSION as OTHER
VERSION = {0}
if OTHER != VERSION:
    raise RuntimeError(f"{{VERSION}} beside {{OTHER}}")


@handler
def both(job):
    time.sleep(job.data)
    return [VERSION, OTHER]

"""
#: The fault of every third release.
WRONG = {
    "does not parse": "def (:\n",
    "exits": "os._exit(5)\n",
    "segfaults": "ctypes.string_at(0)\n",
    "hangs": "time.sleep(1000)\n",
    "is half deployed": "",
}


def release(stage, number, wrong=None):
    if wrong != "is half deployed":
        write_app(stage, f"VERSION = {number}\n", "other.py")
    write_app(stage, HALVES.format(number) + (WRONG[wrong] if wrong else ""))


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_reloads_under_load_lose_and_mix_no_jobs(stage, app, measured):
    """Check for each job that it ran the release that was current when it started."""
    reloads = 50 if FULL else 12
    release(stage, 1)
    pool = app(HALVES.format(1), processes=2, boot_timeout="8s").wait_ready()
    jids, took_s, wrong_ones = [], [], list(WRONG)
    for step in range(1, reloads + 1):
        jids += put(stage, "both", 20, data=0.003)
        wrong = wrong_ones[(step // 3 - 1) % len(wrong_ones)] if step % 3 == 0 else None
        release(stage, step + 1, wrong)
        began_at = pool.send(signal.SIGHUP)
        if wrong:
            pool.wait_for("reload.failed", nth=step // 3)
        else:
            pool.wait_for("reload.completed", zygote=step + 1)
            took_s.append(time.monotonic() - began_at)
    stage.wait_until_ended(jids, 60)
    assert set(stage.states(jids)) == {"complete"}
    ran = {jid: stage.client.job(jid).result for jid in jids}
    current, held = 1, {}
    for event in pool.events:
        if event["event"] == "reload.completed":
            current = event["zygote"]
        elif event["event"] == "job.started":  # again, where a child of the code before had not received it
            held[event["jid"]] = [current, current]
    assert ran == held
    assert (
        not stage.find("job.released") + stage.find("job.died") + stage.find("job.retried") + stage.find("job.unknown")
    )
    wait_for_zygotes(stage, pool, 1)
    measured(f"{reloads} reloads, {len(jids)} jobs beside them: {sorted(took_s)[len(took_s) // 2]:.2f} s each")
    assert_ends_well(stage, pool)
