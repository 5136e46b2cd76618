"""Each exit code of `leasehold run`, with what causes it."""

import os
import signal

import pytest

from supervisor.exit_codes import Exit

#: Descriptors that are enough to begin, and too few to go on.
TOO_FEW = ["prlimit", "--nofile=9"]


@pytest.mark.sampled(2)
def test_exit_code_says_why_the_supervisor_ended(own_stage, own_server):
    stage = own_stage
    gate = stage.gate("gate")
    held = stage.queue.put("good.hold", gate)
    short = {"queue": "other", "drain_timeout": "0.2s", "term_grace": "0.2s"}
    drained = stage.start(queue="nothing-here")
    cut_off = stage.start(drain_timeout="0.2s", term_grace="0.2s", lease_ttl="1s")
    ended = {
        Exit.UNREACHABLE: stage.start(redis_url=f"unix://{stage.directory}/no-server", **short),
        Exit.HANDLERS: stage.start(handlers="nowhere", **short),
        Exit.CONFIG: stage.start(drain_timeout="soon"),
        Exit.USAGE: stage.start(frobnicate=1),
        Exit.INTERNAL: stage.start(prefix=TOO_FEW, **short),
    }
    for code, pool in ended.items():
        assert pool.wait() == code, (code, stage.last_words())
    drained.wait_ready()
    assert drained.drain() == Exit.OK
    cut_off.wait_for("job.started", jid=held)
    own_server.kill()
    cut_off.wait_for("redis.lost")
    cut_off.send(signal.SIGTERM)
    assert cut_off.wait() == Exit.NOT_HANDED_BACK
    said = {code: pool.find("master.stopped") for code, pool in ended.items()}
    assert {code: said[code][0]["exit_code"] for code in said if said[code]} == {
        Exit.UNREACHABLE: Exit.UNREACHABLE,
        Exit.HANDLERS: Exit.HANDLERS,
    }
    assert ended[Exit.HANDLERS].events[-1]["event"] == "zygote.failed", "the cause is in the last line"
    assert ended[Exit.UNREACHABLE].find("redis.failed")
    assert ended[Exit.INTERNAL].find("master.crashed")
    for code in (Exit.CONFIG, Exit.USAGE):
        assert not ended[code].events and len(ended[code].said) == 1, "one sentence"


#: Nothing can be written where temporary files would be.
READ_ONLY = """
for place in /tmp /var/tmp "$PWD" "$TMPDIR"; do
    mount --bind "$place" "$place" && mount -o remount,ro,bind "$place" || exit 99
done
exec "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_missing_temporary_directory_names_the_setting(stage):
    pool = stage.start(prefix=["unshare", "--mount", "sh", "-c", READ_ONLY, "sh"])
    assert pool.wait() == Exit.CONFIG
    (said,) = pool.said
    assert "set --workdir or TMPDIR to one that this user may write to" in said
    assert pool.events == []
    stage.assert_nothing_left()


def test_impossible_workdir_names_the_setting(stage):
    pool = stage.start(workdir="/proc")
    assert pool.wait() == Exit.CONFIG
    (said,) = pool.said
    assert "no directory can be made for the children" in said and "/proc" in said
    assert not pool.find("master.crashed")
    stage.assert_nothing_left()


def test_failed_start_prints_its_cause_and_little_else(stage):
    pool = stage.start(handlers="nowhere")
    assert pool.wait() == Exit.HANDLERS
    assert not pool.find("master.draining") and not pool.find("master.leaving")
    assert [event["event"] for event in pool.events[-2:]] == ["master.stopped", "zygote.failed"]
    stage.assert_nothing_left()


def test_term_ends_a_start_with_a_silent_redis_at_once(own_stage, own_server):
    """The supervisor has connected, waits for the first reply and holds no job."""
    own_server.process.send_signal(signal.SIGSTOP)
    pool = own_stage.start()
    pool.wait_for("zygote.ready")
    pool.send(signal.SIGTERM)
    assert pool.wait() == Exit.OK
    draining, stopped = pool.find("master.draining")[0], pool.find("master.stopped")[0]
    assert stopped["time"] - draining["time"] < 10.0
    own_server.process.send_signal(signal.SIGCONT)
    own_stage.assert_nothing_left()


def test_idle_drain_does_not_wait_for_a_silent_redis(own_stage, own_server):
    """The drain waits as long as an exchange may take, not longer. The server may have leased jobs to it."""
    pool = own_stage.start(lease_ttl="1s").wait_ready()
    own_stage.wait_until_idle(1)
    own_server.process.send_signal(signal.SIGSTOP)
    pool.send(signal.SIGTERM)
    assert pool.wait() == Exit.NOT_HANDED_BACK
    draining, stopped = pool.find("master.draining")[0], pool.find("master.stopped")[0]
    assert stopped["time"] - draining["time"] < 10.0
    own_server.process.send_signal(signal.SIGCONT)


def test_supervisor_runs_with_closed_standard_streams(stage):
    without = ["sh", "-c", 'exec "$@" <&- >&-', "sh"]
    pool = stage.start(prefix=without).wait_ready()
    stage.wait_until_ended([stage.queue.put("good.noop")])
    assert pool.drain() == 0
    stage.assert_nothing_left()
