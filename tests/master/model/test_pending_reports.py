"""Starts, progress, checkpoints and wanted results of running jobs go with the next exchange, each once."""

import math

import pytest

from supervisor import clock
from supervisor.engine.model.outcomes import Completed
from supervisor.engine.model.validation import STATE_BYTES
from supervisor.messages import Checkpoint, ProgressReport, ResultsWanted
from tests.master.model.conftest import add


def test_start_is_reported_once_while_the_lease_is_held(ledger):
    first, lost, ended = add(ledger, 1, 2, 3)
    for held in (first, lost, ended):
        ledger.reports.add_start(held)
    ledger.lose(lost, "cancelled")
    ledger.end(ended, Completed(ended.lease))
    ledger.settle_next(10)
    assert ledger.reports.take_starts() == [first.lease]
    assert ledger.reports.take_starts() == []
    assert first.start_reported


def test_last_progress_goes_once_with_the_next_exchange(ledger):
    first, second = add(ledger, 1, 2)
    ledger.reports.add_progress(first, ProgressReport(0.1, ""))
    ledger.reports.add_progress(second, ProgressReport(0.2, ""))
    ledger.reports.add_progress(first, ProgressReport(0.3, "x"))
    assert sorted(ledger.reports.take_progress(), key=lambda told: told[1]) == [
        (second.lease, ProgressReport(0.2, "")), (first.lease, ProgressReport(0.3, "x")),
    ]  # fmt: skip
    assert ledger.reports.take_progress() == []


def test_progress_goes_for_an_ended_job_not_for_a_lost_one(ledger):
    ended, lost = add(ledger, 1, 2)
    for held in (ended, lost):
        ledger.reports.add_progress(held, ProgressReport(0.5, ""))
    ledger.end(ended, Completed(ended.lease))
    ledger.lose(lost, "cancelled")
    assert ledger.reports.take_progress() == [(ended.lease, ProgressReport(0.5, ""))]


def test_last_checkpoint_goes_and_is_answered_once(ledger):
    first, second = add(ledger, 1, 2)
    assert ledger.reports.add_checkpoint(first, Checkpoint(1, b"1"))
    assert not ledger.reports.add_checkpoint(first, Checkpoint(2, b"2"))
    assert ledger.reports.add_checkpoint(second, Checkpoint(1, b"3"))
    assert ledger.reports.take_checkpoints() == [
        (first.lease, Checkpoint(2, b"2")),
        (second.lease, Checkpoint(1, b"3")),
    ]
    assert ledger.reports.take_checkpoints() == []
    assert [ledger.reports.take_stored(token, 2) for token in (1, 1, 7)] == [(first, 2), None, None]
    assert ledger.reports.take_unstored() == [(second, 1)]
    assert ledger.reports.take_unstored() == []


def test_checkpoint_during_an_exchange_goes_with_the_next(ledger):
    (held,) = add(ledger, 1)
    ledger.reports.add_checkpoint(held, Checkpoint(1, b"1"))
    ledger.reports.take_checkpoints()
    assert not ledger.reports.add_checkpoint(held, Checkpoint(2, b"2"))
    assert ledger.reports.take_stored(1, 1) == (held, 1)
    assert ledger.reports.take_checkpoints() == [(held.lease, Checkpoint(2, b"2"))]
    assert ledger.reports.take_stored(1, 2) == (held, 2)


def test_checkpoint_goes_for_an_ended_job_not_for_a_lost_one(ledger):
    ended, lost = add(ledger, 1, 2)
    for held in (ended, lost):
        ledger.reports.add_checkpoint(held, Checkpoint(1, b"1"))
    ledger.end(ended, Completed(ended.lease))
    ledger.lose(lost, "cancelled")
    assert ledger.reports.take_checkpoints() == [(ended.lease, Checkpoint(1, b"1"))]


def test_newest_of_large_checkpoints_is_sent_at_the_rate(ledger):
    (held,) = add(ledger, 1)
    now_at, sent = clock.monotonic(), 0
    for number in range(100):
        ledger.reports.add_checkpoint(held, Checkpoint(number, b"x" * STATE_BYTES))
        sent += len(ledger.reports.take_checkpoints(now_at))
    assert 5 <= sent <= 15  # the reserve
    assert now_at < ledger.reports.next_checkpoint_at() <= now_at + 0.05
    ledger.reports.add_checkpoint(held, Checkpoint(100, b"last"))
    assert ledger.reports.take_checkpoints(now_at) == []
    assert ledger.reports.take_checkpoints(ledger.reports.next_checkpoint_at()) == [
        (held.lease, Checkpoint(100, b"last"))
    ]
    assert ledger.reports.next_checkpoint_at() == math.inf


def test_small_checkpoints_never_wait(ledger):
    (held,) = add(ledger, 1)
    now_at = clock.monotonic()
    for number in range(1000):
        ledger.reports.add_checkpoint(held, Checkpoint(number, b"[12]"))
        assert ledger.reports.take_checkpoints(now_at + 0.0005 * number)


def test_last_checkpoint_goes_with_the_end_of_its_job(ledger):
    (held,) = add(ledger, 1)
    now_at = clock.monotonic()
    while ledger.reports.next_checkpoint_at() == math.inf:
        ledger.reports.add_checkpoint(held, Checkpoint(1, b"x" * STATE_BYTES))
        ledger.reports.take_checkpoints(now_at)
    ledger.end(held, Completed(held.lease))
    assert len(ledger.reports.take_checkpoints(now_at)) == 1


def test_steps_go_together_and_the_last_of_them_answers_for_all(ledger):
    (held,) = add(ledger, 1)
    said = [Checkpoint(1, b"1", "a"), Checkpoint(2, b"2"), Checkpoint(3, b"3", "b")]
    for checkpoint in said:
        ledger.reports.add_checkpoint(held, checkpoint)
    assert ledger.reports.take_checkpoints() == [(held.lease, checkpoint) for checkpoint in said]
    assert ledger.reports.take_stored(1, 1) is None
    assert ledger.reports.take_stored(1, 3) == (held, 3)


def test_job_has_at_most_a_megabyte_of_steps_on_their_way(ledger):
    (held,) = add(ledger, 1)
    for number in range(16):
        ledger.reports.add_checkpoint(held, Checkpoint(number, b"x" * STATE_BYTES, f"s{number}"))
    with pytest.raises(ValueError, match="steps"):
        ledger.reports.add_checkpoint(held, Checkpoint(16, b"1", "one more"))


def test_results_are_read_in_the_order_of_the_jobs_and_when_due(ledger):
    first, second, third = add(ledger, 1, 2, 3)
    first.reports.next_results_at = 10.0
    wanted = ResultsWanted(1, 0, 64)
    assert all(ledger.reports.add_wanted(held, wanted) for held in (first, second, third))
    assert ledger.reports.take_wanted(5.0, 1) == [(second, wanted)]
    assert ledger.reports.take_wanted(5.0, 9) == [(third, wanted)]
    assert ledger.reports.next_wanted_at() == 10.0
    assert ledger.reports.take_wanted(10.0, 9) == [(first, wanted)]
    assert ledger.reports.next_wanted_at() == math.inf


def test_job_that_wants_other_results_gets_no_earlier_ones(ledger):
    (held,) = add(ledger, 1)
    unanswered, later = ResultsWanted(1, 0, 64), ResultsWanted(2, 64, 64)
    ledger.reports.keep_wanted(held, unanswered)
    assert not ledger.reports.add_wanted(held, later)
    ledger.reports.keep_wanted(held, unanswered)
    assert ledger.reports.take_wanted(math.inf, 9) == [(held, later)]
