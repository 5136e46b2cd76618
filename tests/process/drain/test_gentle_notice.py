"""A handler that should stop is notified: C code does not notice, a loop that asks does."""

import signal

import pytest


@pytest.mark.parametrize(("signo", "told"), [("TERM", "master.draining"), ("HUP", "reload.completed")])
def test_should_stop_does_not_interrupt_c_code(stage, signo, told):
    pool = stage.start(processes=1, drain_timeout="60s", reload_timeout="60s").wait_ready()
    jid = stage.queue.put("native.wait", stage.gate("gate"))
    stage.wait_for_starts(jid)
    stage.let_time_pass(0.05)  # it is in C by then; no event tells of it
    pool.send(signal.Signals[f"SIG{signo}"])
    pool.wait_for(told)
    stage.let_time_pass(1.2)  # longer than signals were sent again
    stage.open_gate("gate")
    pool.wait_for("job.completed", jid=jid)
    assert stage.client.job(jid).result == "through the gate"
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_async_handler_sees_should_stop(stage):
    pool = stage.start(processes=1, drain_timeout="60s").wait_ready()
    jid = stage.queue.put("native.asynchronous")
    stage.wait_for_starts(jid)
    assert pool.drain() == 0
    assert stage.client.job(jid).result == "in peace"
    stage.assert_nothing_left()
