"""Each start of a supervisor is a worker of its own, even with the same host name and pid."""

import signal
import time

import psutil

TTL_S, GRACE_S = 1.0, 0.5


def test_restarted_container_is_a_new_worker_and_reruns_lost_jobs(stage, as_pid_1, measured):
    """Same host name, same pid, and no second between the two. The lost worker's jobs run again within TTL + grace,
    started ones with a death, and its late outcomes do not count.
    """
    stage.config(grace=GRACE_S)
    first = stage.start(prefix=as_pid_1, processes=2, lease_ttl=f"{TTL_S}s").wait_ready()
    gate = stage.gate("gate")
    held = [stage.queue.put("good.hold", gate) for _ in range(2)]
    for jid in held:
        stage.wait_until_start_is_known(jid)
    waiting = stage.queue.put("good.noop")
    lost_at = first.send(signal.SIGKILL)
    second = stage.start(prefix=as_pid_1, processes=2, lease_ttl=f"{TTL_S}s").wait_ready()
    assert [pool.find("master.started")[0]["pid"] for pool in (first, second)] == [1, 1]
    assert first.worker != second.worker
    assert first.worker.rsplit("-", 1)[0] == second.worker.rsplit("-", 1)[0], "the same host, the same pid"
    for jid in held:
        assert stage.wait_for_starts(jid, 2)[1].attempt == 2
    again_s = time.monotonic() - lost_at
    measured(f"killed -> its jobs run in the next start, TTL {TTL_S:g} s, grace {GRACE_S:g} s: {again_s:.2f} s")
    assert again_s <= TTL_S + GRACE_S + 15.0  # with a start of the interpreter; a loaded machine makes that long
    stage.open_gate(gate)
    stage.wait_until_ended([*held, waiting])
    assert [stage.client.job(jid).deaths for jid in (*held, waiting)] == [1, 1, 0]
    workers = {worker.name for worker in stage.client.workers()}
    assert {first.worker, second.worker} <= workers, "the lost one is still told of"
    (master,) = psutil.Process(second.pid).children()
    master.send_signal(signal.SIGTERM)
    assert second.wait() == 0
    stage.client.deregister(first.worker)
    stage.assert_nothing_left(directories=True)
