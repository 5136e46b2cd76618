"""Why a supervisor has ended: every exit code that `run` has, each brought about."""

import signal

import pytest

from supervisor.config import Exit

#: Descriptors that are enough to begin, and too few to go on.
TOO_FEW = ["prlimit", "--nofile=9"]


@pytest.mark.timeout(180)
def test_the_exit_code_says_why_it_has_ended(own_stage, own_server):
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


def test_a_term_while_redis_does_not_say_a_word_ends_it_at_once(own_stage, own_server):
    """It has connected, and waits for the first answer: nothing is in its hands."""
    own_server.process.send_signal(signal.SIGSTOP)
    pool = own_stage.start()
    pool.wait_for("zygote.ready")
    pool.send(signal.SIGTERM)
    assert pool.wait() == Exit.OK
    draining, stopped = pool.find("master.draining")[0], pool.find("master.stopped")[0]
    assert stopped["time"] - draining["time"] < 10.0
    own_server.process.send_signal(signal.SIGCONT)
    own_stage.assert_nothing_left()


def test_an_idle_one_does_not_wait_for_a_redis_that_has_fallen_silent(own_stage, own_server):
    """It has nothing to hand back: it waits for as long as an exchange may take, and not to the end of the ladder."""
    pool = own_stage.start(lease_ttl="1s").wait_ready()
    own_stage.wait_until_idle(1)
    own_server.process.send_signal(signal.SIGSTOP)
    pool.send(signal.SIGTERM)
    assert pool.wait() == Exit.OK
    draining, stopped = pool.find("master.draining")[0], pool.find("master.stopped")[0]
    assert stopped["time"] - draining["time"] < 10.0
    own_server.process.send_signal(signal.SIGCONT)


def test_whose_streams_are_closed_is_no_worse_off(stage):
    without = ["sh", "-c", 'exec "$@" <&- >&-', "sh"]
    pool = stage.start(prefix=without).wait_ready()
    stage.wait_until_ended([stage.queue.put("good.noop")])
    assert pool.drain() == 0
    stage.assert_nothing_left()
