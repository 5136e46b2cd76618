"""Each kind of invalid input gives one sentence and the documented exit code, and loses nothing."""

import hashlib
import os
import signal
import time

import pytest


def _sentences(pool):
    """Return what the supervisor printed outside its log, and the messages of its errors."""
    return [*pool.said, *(event.get("message", "") for event in pool.events if event["level"] == "error")]


def test_an_unknown_klass_comes_back_later_and_is_never_lost(stage):
    pool = stage.start().wait_ready()
    unknown = [stage.queue.put("no.such", {"n": n}) for n in range(3)]
    known = stage.queue.put("good.noop")
    pool.wait_for("job.completed", jid=known)
    for jid in unknown:
        pool.wait_for("job.unknown", jid=jid)
        job = stage.client.job(jid)
        assert (job.state, job.deaths, job.failures, job.interruptions) == ("scheduled", 0, 0, 0)
    assert pool.drain() == 0
    assert stage.states(unknown) == ["scheduled"] * 3
    stage.assert_nothing_left(waiting=["default"])


def test_an_unknown_klass_ends_in_its_group_after_unknown_for(stage):
    stage.config(unknown_for=0.001)
    pool = stage.start().wait_ready()
    jid = stage.queue.put("no.such")
    pool.wait_for("job.unknown", jid=jid)
    # The first refusal starts the clock; the next one, when it is offered again, finds the time over.
    redis = stage.server.redis
    key = f"{stage.prefix}queue:default:scheduled"
    member = redis.zrange(key, 0, 0)[0]
    redis.zadd(key, {member: 1})
    stage.queue.put("good.noop")
    stage.wait_until(lambda: stage.client.failed() == {"unknown-handler": 1}, "the failed group")
    assert "no.such" in stage.client.job(jid).failure["message"]
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize(
    "url", ["redis://:sesame-77@127.0.0.1:1/0", "unix:///nowhere/at/all", "redis://no-such-host.invalid:6379"]
)
def test_an_unreachable_redis_is_69_without_the_password(stage, url):
    pool = stage.start(redis_url=url)
    assert pool.wait() == 69
    (sentence,) = _sentences(pool)
    assert "Redis at" in sentence
    assert "sesame-77" not in str(pool.events) + str(pool.said)
    assert "Traceback" not in str(pool.events) + str(pool.said)
    stage.assert_nothing_left()


def test_a_wrong_password_is_69(stage):
    pool = stage.start(redis_url=stage.server.url_with("nobody", "sesame-77"))
    assert pool.wait() == 69
    assert len(_sentences(pool)) == 1
    assert "sesame-77" not in str(pool.events) + str(pool.said)
    stage.assert_nothing_left()


BROKEN = {
    "raises": ("raise LookupError('no such thing')", "no such thing"),
    "syntax": ("def f(:\n", "SyntaxError"),
    "imports": ("import no_such_module_anywhere", "no_such_module_anywhere"),
    "leaves": ("import os\nos._exit(5)", "exit-5"),
    "exits": ("import sys\nsys.exit(4)", "SystemExit"),
    "segfaults": ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
    "hangs": ("import time\ntime.sleep(1000)", "1.5 s"),
    "hangs_deaf": (
        "import signal, ctypes\nfor s in (1, 2, 15): signal.signal(s, 1)\nctypes.CDLL(None).sleep(1000)",
        "1.5 s",
    ),
    "empty": ("", "no @handler"),
    "twice": (
        "from supervisor import handler as h\n@h(name='one')\ndef a(job): ...\n@h(name='one')\ndef b(job): ...\n",
        "two handlers are named 'one'",
    ),
    "bad_setting": ("from supervisor import handler\n@handler(timeout='soon')\ndef a(job): ...\n", "soon"),
    "leaves_processes": (
        "import subprocess\nsubprocess.Popen(['sleep', '1000'])\nraise LookupError('after it')",
        "after it",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", BROKEN)
def test_handlers_that_do_not_boot_are_71_and_one_sentence(stage, how):
    source, why = BROKEN[how]
    (stage.directory / "broken").mkdir()
    (stage.directory / "broken" / "__init__.py").write_text(source)
    jid = stage.queue.put("one")
    pool = stage.start(handlers="broken", boot_timeout="1.5s" if how.startswith("hangs") else "60s")
    assert pool.wait() == 71
    (failure,) = pool.find("zygote.failed")
    assert why in failure["message"]
    assert "\n" not in failure["message"].strip()
    assert pool.said == [] or how == "segfaults" or all("Traceback" not in line for line in pool.said)
    if how in ("raises", "imports", "syntax"):
        assert "broken/__init__.py" in failure["traceback"]
    assert stage.states([jid]) == ["waiting"]
    stage.assert_nothing_left(waiting=["default"])


def test_missing_handlers_package_exits_71(stage):
    pool = stage.start(handlers="no_such_package")
    assert pool.wait() == 71
    (failure,) = pool.find("zygote.failed")
    assert "no_such_package" in failure["message"]
    assert "--handlers" in failure["message"]
    stage.assert_nothing_left()


def test_term_during_a_hanging_import_drains(stage):
    (stage.directory / "broken").mkdir()
    (stage.directory / "broken" / "__init__.py").write_text(
        "import subprocess, time\nsubprocess.Popen(['sleep', '1000'])\ntime.sleep(1000)"
    )
    pool = stage.start(handlers="broken")
    pool.wait_for("master.started")
    began_at = pool.send(signal.SIGTERM)
    assert pool.wait() == 0
    assert time.monotonic() - began_at < 12
    stage.assert_nothing_left()


@pytest.mark.parametrize("kind", ["bytes", "json"])
def test_fifty_megabytes_arrive_unchanged(stage, kind):
    pool = stage.start(processes=1).wait_ready()
    raw = os.urandom(50_000_000) if kind == "bytes" else b'"' + b"x" * 50_000_000 + b'"'
    jid = stage.queue.put("good.digest", raw if kind == "bytes" else "x" * 50_000_000)
    stage.wait_until_ended([jid], 60)
    result = stage.client.job(jid).result
    assert result == {
        "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest(), "kind": "bytes" if kind == "bytes" else "str",
    }  # fmt: skip
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_invalid_json_fails_as_broken_and_keeps_its_bytes(stage):
    jid = stage.queue.put("good.echo", "n" * 1000)  # too long for the record, so it has a key of its own
    stage.server.redis.set(f"{stage.prefix}data:{jid}", b'{"n": \xff')
    pool = stage.start(processes=1)
    stage.wait_until_ended([jid])
    assert stage.client.failed() == {"broken": 1}
    job = stage.client.job(jid)
    assert job.raw == b'{"n": \xff'
    assert stage.ledger.starts(jid) == []
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize(("klass", "data"), [("good.bad_result", None), ("good.big_result", 100_000)])
def test_unstorable_result_still_completes_the_job(stage, klass, data):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put(klass, data)
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.state, job.result) == ("complete", None)
    assert "not kept" in pool.wait_for("job.printed", jid=jid)["line"]
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize("jobs_per_child", [1, 0])
def test_handler_that_closes_its_output_does_not_disturb_the_master(stage, jobs_per_child):
    """The pipe then reads as ended for as long as the child lives."""
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("bad.close_output", gate)
    stage.wait_for_starts(jid)
    ticks = os.sysconf("SC_CLK_TCK")

    def cpu_s():
        with open(f"/proc/{pool.pid}/stat") as stat:
            return sum(map(int, stat.read().rpartition(")")[2].split()[11:13])) / ticks

    began_s = cpu_s()
    stage.let_time_pass(1.0)
    assert cpu_s() - began_s < 0.3
    stage.open_gate(gate)
    pool.wait_for("job.completed", jid=jid)
    assert not pool.find("job.died")
    after = stage.queue.put("good.noop")
    pool.wait_for("job.completed", jid=after)
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize("jobs_per_child", [1, 0])
def test_fork_returning_from_the_handler_does_not_answer_twice(stage, jobs_per_child):
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child).wait_ready()
    jids = stage.queue.put_many([{"klass": "bad.fork_returns_twice"} for _ in range(5)])
    stage.wait_until_ended(jids)
    assert set(stage.states(jids)) == {"complete"}
    assert len(pool.find("job.completed")) == 5
    assert not pool.find("child.killed")
    assert pool.drain() == 0
    stage.assert_nothing_left()
