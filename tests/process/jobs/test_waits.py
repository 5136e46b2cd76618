"""Jobs that wait for signals and times have no process meanwhile, and steps are done once."""

import contextlib
import os
import random
import signal

import pytest
from servers import stopped
from watched import FULL

#: Length of a wait in the tests.
NAP_S = 0.2


class Notes:
    """The notes of handlers of waits.py, read from their file."""

    def __init__(self, stage):
        self.path = stage.directory / "notes"
        self.path.touch()

    def read(self):
        return self.path.read_text().splitlines()


@pytest.fixture
def notes(stage):
    return Notes(stage)


def finish(stage, *pools):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left()


def forget(stage, killed):
    """Hand back what a killed supervisor holds. The second call takes away the hint that the first has left for it."""
    for _ in range(2):
        stage.client.deregister(killed.worker)


def put(stage, klass, notes, **more):
    return stage.queue.put(klass, {"file": str(notes.path), **more})


def test_job_waits_as_a_record_and_goes_on_at_its_signal(stage, notes):
    pool = stage.start(processes=1).wait_ready()
    jid = put(stage, "waits.approved", notes)
    pool.wait_for("job.suspended", jid=jid, signal="approval")
    job = stage.client.job(jid)
    assert (job.state, job.waiting_for, job.due_unix) == ("scheduled", "approval", None)
    assert stage.client.signal(jid, "second", {"n": [1]})
    assert stage.client.signal(jid, "approval", "yes")
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).result == ["yes", {"n": [1]}, 1]
    assert notes.read() == ["asked", "told yes"]
    assert len(stage.client.queue("elsewhere").jobs("waiting")) == 1
    stage.client.queue("elsewhere").delete()
    finish(stage, pool)


def test_wait_raises_at_its_time_out(stage, notes):
    pool = stage.start(processes=1).wait_ready()
    jid = put(stage, "waits.approved", notes, timeout=NAP_S)
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).result == "in vain"
    assert notes.read() == ["asked"]
    assert pool.find("job.suspended", jid=jid)[0]["timeout_s"] == NAP_S
    stage.client.queue("elsewhere").delete()
    finish(stage, pool)


@pytest.mark.parametrize(("handlers", "klass"), [("menu", "waits.approved_async"), ("together", "approved")])
def test_async_handler_waits_and_awaits_its_steps(stage, notes, handlers, klass):
    pool = stage.start(processes=1, handlers=handlers).wait_ready()
    jid = put(stage, klass, notes)
    pool.wait_for("job.suspended", jid=jid)
    before = sorted(notes.read())
    stage.client.signal(jid, "approval", 7)
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).result == 7
    assert sorted(notes.read()) == before
    assert before == (["asked"] if "async" in klass else ["asked", "beside 0", "beside 1", "beside 2"])
    finish(stage, pool)


def test_sleeps_of_a_start_are_slept_once(stage, notes):
    pool = stage.start(processes=1).wait_ready()
    jid = put(stage, "waits.naps", notes, nap=NAP_S)
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).result == "rested"
    assert notes.read() == ["0", "1"]
    assert [event["signal"] for event in pool.find("job.suspended", jid=jid)] == ["sleep-1", "sleep-2"]
    finish(stage, pool)


def test_except_exception_does_not_catch_a_wait(stage, notes):
    pool = stage.start(processes=1).wait_ready()
    jid = put(stage, "waits.caught", notes)
    pool.wait_for("job.suspended", jid=jid)
    assert notes.read() == ["finally"]
    stage.client.cancel(jid)
    finish(stage, pool)


def test_large_signals_and_steps_come_with_the_job(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("waits.large", b"y" * 50_000)
    pool.wait_for("job.suspended", jid=jid)
    stage.client.signal(jid, "approval", "z" * 65_000)
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).result == 60_000 + 65_000 + 50_000
    finish(stage, pool)


def test_bad_waits_and_steps_are_refused(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("waits.refused", ["wait", "name", "sleep", "size", "again", "set", "async"])
    once = stage.queue.put("waits.refused", ["persistent"], at_most_once=True)
    stage.wait_until_ended([jid, once])
    said = stage.client.job(jid).result
    parts = "timeout", "name", "duration", "65536", "give each step", "step 't'", "step 'u' is async"
    for part, text in zip(parts, said, strict=True):
        assert part in text
    assert stage.client.job(once).result == [
        "ValueError: job.wait: an at-most-once job cannot wait, because it would have to start again for that"
    ]
    finish(stage, pool)


@pytest.mark.sampled(2)
def test_waiting_job_outlives_reload_drain_and_death_of_its_supervisor(stage, notes):
    first = stage.start(processes=1).wait_ready()
    jid = put(stage, "waits.approved", notes)
    first.wait_for("job.suspended", jid=jid)
    first.send(signal.SIGHUP)
    first.wait_for("reload.completed")
    assert first.drain() == 0
    second = stage.start(processes=1).wait_ready()
    assert stage.client.job(jid).state == "scheduled"
    second.send(signal.SIGKILL)
    second.wait()
    forget(stage, second)
    stage.client.signal(jid, "second", 2)
    stage.client.signal(jid, "approval", "yes")
    third = stage.start(processes=1).wait_ready()
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.result, job.interruptions, job.deaths) == (["yes", 2, 1], 0, 0)
    assert notes.read() == ["asked", "told yes"]
    stage.client.queue("elsewhere").delete()
    finish(stage, third)


@pytest.mark.parametrize("nap", [None, NAP_S])
@pytest.mark.parametrize(("signo", "begun"), [(signal.SIGTERM, "master.draining"), (signal.SIGHUP, "signal.received")])
def test_drain_or_reload_before_the_wait_is_stored_loses_and_counts_nothing(own_stage, own_server, signo, begun, nap):
    stage = own_stage
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("waits.behind_a_gate", {"gate": stage.gate("g"), "nap": nap})
    stage.wait_until_start_is_known(jid)
    with stopped(own_server.process):
        stage.open_gate("g")
        pool.wait_for("job.printed", jid=jid, line="left")
        pool.send(signo)
        pool.wait_for(begun, signal=signo.name)
    pool.wait_for("job.suspended", jid=jid)
    if signo == signal.SIGTERM:
        assert pool.wait() == 0
        assert stage.client.job(jid).state in {"scheduled", "waiting"}  # the nap may be over
        pool = stage.start(processes=1).wait_ready()
    else:
        pool.wait_for("reload.completed")
    stage.client.signal(jid, "approval", "yes")
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.result, job.state) == ("yes" if nap is None else None, "complete")
    assert (job.failures, job.deaths, job.interruptions) == (0, 0, 0)
    assert len(stage.ledger.starts(jid)) == 2
    finish(stage, pool)


def test_stream_goes_on_behind_each_wait(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("waits.streams")
    stream = stage.client.stream(jid)
    pool.wait_for("job.suspended", jid=jid)
    assert next(stream) == "asked"
    stage.client.signal(jid, "approval", "yes")
    assert (next(stream), stream.attempt) == ("yes", 1)
    pool.wait_for("job.suspended", jid=jid, signal="second")
    assert pool.drain() == 0
    stage.client.signal(jid, "second", ["bye"])
    other = stage.start(processes=1).wait_ready()
    assert (list(stream), stream.state, stream.attempt) == ([["bye"]], "complete", 1)
    assert list(stage.client.stream(jid)) == ["asked", "yes", ["bye"]]
    finish(stage, other)


@pytest.mark.sampled(3)
def test_kill_of_the_master_around_a_wait_loses_neither_wait_nor_signal(stage, notes):
    """TEST_FULL=1: two hundred kills."""
    for number in range(200 if FULL else 4):
        killed = stage.start(processes=1).wait_ready()
        jid = put(stage, "waits.approved", notes, timeout="1h")
        stage.wait_for_starts(jid)
        stage.let_time_pass(random.uniform(0, 0.006))
        killed.send(signal.SIGKILL)
        stage.client.signal(jid, "approval", number)
        killed.wait()
        forget(stage, killed)
        stage.client.signal(jid, "second")
        pool = stage.start(processes=1).wait_ready()
        stage.wait_until_ended([jid])
        assert stage.client.job(jid).result[:2] == [number, None], number
        assert [set(notes.read()), len(notes.read()) <= 3] == [{"asked", f"told {number}"}, True], number
        notes.path.write_text("")
        assert pool.drain() == 0
    stage.client.queue("elsewhere").delete()
    stage.assert_nothing_left()


def test_kill_repeats_at_most_the_open_step(stage, notes):
    """TEST_FULL=1: a thousand kills."""
    pool = stage.start(processes=2).wait_ready()
    for number in range(1000 if FULL else 20):
        jid = stage.queue.put("waits.five_steps", str(notes.path))
        start = stage.wait_for_starts(jid)[0]
        stage.let_time_pass(random.uniform(0, 0.008))
        with contextlib.suppress(ProcessLookupError):  # the job has ended, and its child with it
            os.kill(start.pid, signal.SIGKILL)
        stage.wait_until_ended([jid])
        assert stage.client.job(jid).result == [*range(5)], number
        done = notes.read()
        assert sorted(set(done)) == [str(n) for n in range(5)], number
        assert len(done) - len(set(done)) <= 1, number
        notes.path.write_text("")
    finish(stage, pool)
