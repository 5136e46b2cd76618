"""Admission stops jobs from starting, and names the reason."""

import math

import pytest

from supervisor import clock
from supervisor.engine.model.outcomes import Released
from supervisor.master.jobs.admission import FIND_ROOM, Admission, Stop
from supervisor.master.model import ledgers
from tests.parts import held_of


def test_a_job_may_start(pool):
    assert pool().admission.why_not() is None


@pytest.mark.parametrize(
    ("begin", "stop"),
    [(Admission.close, Stop.DRAINING), (Admission.pause, Stop.PAUSED), (Admission.await_reload, Stop.EDITED)],
)
def test_each_stop_is_named(pool, begin, stop):
    admission = pool().admission
    begin(admission)
    assert admission.why_not() is stop


def test_too_many_unsettled_outcomes_stop_jobs(pool, monkeypatch):
    monkeypatch.setattr(ledgers, "MOST_WAITING", 1)
    pool = pool()
    for token in (1, 2):
        held = held_of(token)
        pool.ledger.add(held)
        pool.ledger.end(held, Released(held.lease, started=False))
    assert pool.admission.why_not() is Stop.UNSETTLED
    pool.ledger.settle_next(10)
    pool.ledger.settled()
    assert pool.admission.why_not() is None


def test_a_drain_is_named_before_a_pause(pool):
    admission = pool().admission
    admission.pause()
    admission.close()
    assert admission.why_not() is Stop.DRAINING


# one at a time


def test_serial_jobs_end_when_each_had_its_turn(pool):
    admission = pool(processes=2).admission
    admission.run_serially(math.inf)
    for _ in range(2):
        admission.job_ended()
        assert admission.at_once == 1
    admission.job_ended()
    assert admission.at_once == 2


def test_serial_jobs_end_with_their_time(pool):
    admission = pool(processes=2).admission
    admission.run_serially(clock.monotonic())
    assert admission.at_once == 2


# room


def test_jobs_that_do_not_fit_are_tried_again_after_a_while(pool):
    pool = pool()
    pool.admission.wait_for_room()
    pool.timers.run_due(pool.timers.at(FIND_ROOM))
    assert not pool.admission.waits_for_room


def test_jobs_that_do_not_fit_are_tried_again_when_one_ends(pool):
    admission = pool().admission
    admission.wait_for_room()
    admission.job_ended()
    assert not admission.waits_for_room
