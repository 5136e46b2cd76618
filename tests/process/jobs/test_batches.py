"""Batches with real supervisors: handlers add to them, and callbacks are put once, whatever is killed."""

import contextlib
import os
import random
import signal

from watched import FULL

NAMES = ("on_success", "on_failure", "on_complete")


def tell_and_grow(stage, width, depth):
    """Put a batch with another one in it. Their jobs add to them. Return both."""
    told = {
        of: {
            name: {"queue": "default", "klass": "batches.told", "data": f"{of} {name}", "tags": ["told"]}
            for name in NAMES
        }
        for of in ("outer", "inner")
    }
    data = {"width": width, "depth": depth}
    with stage.client.batch(**told["outer"]) as outer:
        outer.put("default", "batches.grow", data, max_deaths=0)
        with outer.batch(**told["inner"]) as inner:
            inner.put("default", "batches.grow", data, max_deaths=0)
    return outer, inner


def told_by(stage):
    _, jobs = stage.client.tagged("told", count=1000)
    return sorted(job.data for job in jobs if job.state == "complete")


WANTED = ["inner on_complete", "inner on_success", "outer on_complete", "outer on_success"]


def test_handlers_add_to_their_open_batch(stage):
    pool = stage.start(processes=2).wait_ready()
    outer, inner = tell_and_grow(stage, width=3, depth=2)
    stage.wait_until(lambda: told_by(stage) == WANTED, "the callbacks")
    assert (inner.total, inner.complete, outer.total, outer.complete) == (13, 13, 14, 14)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_paused_batch_waits_through_a_restart_and_ends_after_resume(stage):
    outer, inner = tell_and_grow(stage, width=2, depth=1)
    outer.pause()
    pool = stage.start(processes=2).wait_ready()
    stage.client.queue("default").put("good.noop", jid="beside")
    stage.wait_until_ended(["beside"])
    assert pool.drain() == 0
    again = stage.start(processes=2).wait_ready()
    stage.wait_until(lambda: stage.client.queue("default").counts().parked == 2, "both members to be parked")
    assert (inner.complete, told_by(stage)) == (0, [])
    outer.resume()
    stage.wait_until(lambda: told_by(stage) == WANTED, "the callbacks")
    assert again.drain() == 0
    stage.assert_nothing_left()


def test_callbacks_are_put_once_under_random_kills(stage):
    """TEST_FULL=1: three hundred kills, each of a child or of a master."""
    rounds = 75 if FULL else 2
    for number in range(rounds):
        pool = stage.start(processes=2).wait_ready()
        outer, inner = tell_and_grow(stage, width=2, depth=3)
        for _ in range(3):
            stage.let_time_pass(random.uniform(0, 0.03))
            for pid in pool.child_pids()[:1]:
                with contextlib.suppress(ProcessLookupError):  # the job has ended, and its child with it
                    os.kill(pid, signal.SIGKILL)
        pool.send(signal.SIGKILL)
        pool.wait()
        stage.forget(pool)
        after = stage.start(processes=2).wait_ready()
        wanted = sorted(WANTED * (number + 1))
        stage.wait_until(lambda wanted=wanted: told_by(stage) == wanted, "the callbacks")
        assert (inner.total, inner.complete, outer.total, outer.complete) == (15, 15, 16, 16), number
        assert after.drain() == 0
    stage.assert_nothing_left()
