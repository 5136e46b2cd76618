"""The master stops a job whose lease was not renewed in time. Children are forks of the test, without Redis."""

import math

import pytest

from supervisor import clock
from supervisor.engine.worker.exchange import Confirmation
from supervisor.master.jobs.cut_off import _KILL_AHEAD_S, _TICK_S, CUT_OFF, CutOff
from supervisor.master.model.states import ChildState
from supervisor.master.timers import Timers
from tests.parts import holding, lease_of

TTL_S, GRACE_S, TERM_GRACE_S = 30.0, 5.0, 3.0


@pytest.fixture
def boot(monkeypatch):
    """The clock that counts a suspend. Its seconds pass on no other clock."""
    since = {"start_at": clock.boottime(), "s": 0.0}
    monkeypatch.setattr(clock, "boottime", lambda: since["start_at"] + since["s"])
    return since


@pytest.fixture
def timers():
    return Timers()


@pytest.fixture
def run(desk, timers):
    """Let a job run that was leased when the clock was read last."""

    def start(boot, ttl_s=TTL_S, grace_s=GRACE_S, **flags):
        made = desk(**{"term_grace": f"{TERM_GRACE_S:g}", "processes": "1", **flags})
        cut_off = CutOff(made.config, made.slots, made.ledger, made.interrupter, timers)
        child = made.child(holding)
        lease = lease_of(1, persistent=True)
        made.give(lease)
        assert cut_off.on_granted([lease], {}, Confirmation(clock.boottime(), lease.expires_unix - ttl_s, grace_s))
        timers.run_due(clock.monotonic())
        return cut_off, child, lease

    return start


def is_stopped(boot, timers, child, at_s):
    boot["s"] = at_s + 1e-6  # sums of floats differ in their last digits
    timers.run_due(clock.monotonic() + _TICK_S)
    return child.end_plan.kill_at is not None


def test_a_job_is_stopped_the_term_grace_before_a_peer_may_have_it(boot, run, timers):
    _, child, _ = run(boot)
    stop_s = TTL_S + GRACE_S - _KILL_AHEAD_S - TERM_GRACE_S
    assert not is_stopped(boot, timers, child, stop_s - 0.1)
    assert is_stopped(boot, timers, child, stop_s)
    assert child.end_plan.kill_reason == "cut-off"
    assert child.end_plan.kill_at - clock.monotonic() == pytest.approx(TERM_GRACE_S, abs=1.0)


def test_a_job_is_never_stopped_before_its_lease_has_run_out(boot, run, timers):
    _, child, _ = run(boot, term_grace="20s")
    assert not is_stopped(boot, timers, child, TTL_S - 0.1)
    assert is_stopped(boot, timers, child, TTL_S)
    assert child.end_plan.kill_at - clock.monotonic() == pytest.approx(GRACE_S - _KILL_AHEAD_S, abs=1.0)


def test_a_renewal_counts_from_its_sending(boot, run, timers):
    cut_off, child, lease = run(boot)
    boot["s"] = 12.0
    cut_off.on_renewed(lease, 2000.0 + TTL_S, Confirmation(clock.boottime() - 2.0, 2000.0, GRACE_S))
    stop_s = 10.0 + TTL_S + GRACE_S - _KILL_AHEAD_S - TERM_GRACE_S
    assert not is_stopped(boot, timers, child, stop_s - 0.1)
    assert is_stopped(boot, timers, child, stop_s)


def test_a_job_that_slept_with_its_machine_is_killed_at_once(boot, run, timers):
    _, child, _ = run(boot)
    assert timers.at(CUT_OFF) <= clock.monotonic() + _TICK_S  # no timer of ours counts a suspend
    assert is_stopped(boot, timers, child, 3600.0)
    assert child.end_plan.kill_at < clock.monotonic()


def test_a_stop_that_is_under_way_is_not_put_off(boot, run, timers):
    cut_off, child, _ = run(boot)
    child.end_plan.kill_by(clock.monotonic() - 1.0, "drain")
    assert is_stopped(boot, timers, child, 3600.0 - 1.0)
    child.end_plan.kill_by(kill_at := clock.monotonic() - 7200.0, "drain")
    cut_off.look_now()
    timers.run_due(clock.monotonic())
    assert (child.end_plan.kill_at, child.end_plan.kill_reason) == (kill_at, "drain")


@pytest.mark.parametrize(
    ("own", "flag", "has_fence"),
    [(None, "go-on", False), (None, "stop", True), ("go-on", "stop", False), ("stop", "go-on", True)],
)
def test_the_handler_decides_before_the_flag(desk, timers, own, flag, has_fence):
    made = desk(on_cut_off=flag)
    cut_off = CutOff(made.config, made.slots, made.ledger, made.interrupter, timers)
    made.child(holding)
    lease = lease_of(1)
    (held,) = made.give(lease, on_cut_off=own)
    handlers = {lease.klass: held.settings}
    assert cut_off.on_granted([lease], handlers, Confirmation(clock.boottime(), 0.0, GRACE_S)) == has_fence
    assert (held.fence is not None) == has_fence
    assert (timers.at(CUT_OFF) < math.inf) == has_fence
    assert made.slots.busy == 1 and all(child.state is ChildState.BUSY for child in made.slots)
