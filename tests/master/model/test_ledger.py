"""Every lease is in the ledger from its grant until its end is accepted, or until it is lost."""

import math

import pytest

from supervisor import clock
from supervisor.engine.model.jobs import new_job
from supervisor.engine.model.outcomes import Completed, Released
from supervisor.engine.model.validation import STATE_BYTES
from supervisor.master.model.ledger import MOST_BYTES, MOST_WAITING, Ledger
from supervisor.messages import Checkpoint, ProgressReport
from tests.parts import held_of


@pytest.fixture
def ledger():
    return Ledger()


def add(ledger, *tokens):
    made = [held_of(token) for token in tokens]
    for held in made:
        ledger.add(held)
    return made


def test_a_lease_counts_until_its_end_is_accepted(ledger):
    (held,) = add(ledger, 1)
    assert (len(ledger), ledger.leases, ledger.find(1)) == (1, [held.lease], held)
    ledger.end(held, Completed(held.lease))
    assert (len(ledger), ledger.leases, ledger.has_ended) == (1, [held.lease], True)
    assert ledger.settle_next(10) == [held.outcome]
    assert (len(ledger), ledger.leases, ledger.find(1), ledger.has_ended) == (1, [], None, False)
    assert ledger.claims == [held.lease]  # its outcome may be refused
    assert ledger.settled() == [held]
    assert (len(ledger), ledger.claims) == (0, [])


def test_outcomes_go_in_the_order_of_the_ends_and_no_more_than_fit_into_an_exchange(ledger):
    held = add(ledger, 1, 2, 3, 4, 5)
    for each in reversed(held):
        ledger.end(each, Released(each.lease))
    assert [outcome.lease.token for outcome in ledger.settle_next(2)] == [5, 4]
    assert [each.lease.token for each in ledger.settled()] == [5, 4]
    assert [outcome.lease.token for outcome in ledger.settle_next(1000)] == [3, 2, 1]


def test_nothing_has_ended_where_nothing_has(ledger):
    add(ledger, 1)
    assert (ledger.settle_next(10), ledger.settled(), len(ledger)) == ([], [], 1)


def test_there_is_one_exchange_at_a_time(ledger):
    for held in add(ledger, 1, 2):
        ledger.end(held, Completed(held.lease))
    ledger.settle_next(1)
    with pytest.raises(AssertionError):
        ledger.settle_next(1)


def test_what_ends_while_others_are_settling_waits_for_the_next_exchange(ledger):
    first, second = add(ledger, 1, 2)
    ledger.end(first, Completed(first.lease))
    ledger.settle_next(10)
    ledger.end(second, Completed(second.lease))
    assert (ledger.has_ended, ledger.leases, len(ledger)) == (True, [second.lease], 2)
    assert ledger.settled() == [first]
    assert [outcome.lease for outcome in ledger.settle_next(10)] == [second.lease]


def test_outcome_that_is_to_be_sent_again_goes_first_with_the_next_exchange(ledger):
    first, second = add(ledger, 1, 2)
    first.weight_bytes = MOST_BYTES + 1
    ledger.end(first, Completed(first.lease, data="x"))
    ledger.settle_next(10)
    ledger.end(second, Completed(second.lease))
    ledger.settle_again(*ledger.settled())
    assert (ledger.find(1), len(ledger), ledger.is_laden) == (first, 2, True)
    assert ledger.settle_next(1) == [first.outcome]
    ledger.settled()
    assert (len(ledger), ledger.is_laden) == (1, False)


def test_a_lost_lease_is_neither_renewed_nor_sent_nor_counted(ledger):
    lost, kept = add(ledger, 1, 2)
    ledger.ready.extend([lost, kept])
    ledger.lose(lost, "cancelled")
    ledger.lose(lost, "cancelled")
    assert (lost.lost_reason, list(ledger.ready), ledger.leases, len(ledger)) == ("cancelled", [kept], [kept.lease], 1)


def test_the_outcome_of_a_lost_lease_is_sent_all_the_same_to_be_refused(ledger):
    (held,) = add(ledger, 1)
    ledger.lose(held, "cancelled")
    ledger.end(held, Completed(held.lease))
    assert ledger.settle_next(10) == [held.outcome]
    assert ledger.settled() == [held]


def test_what_has_started_is_told_once_and_only_while_it_is_held(ledger):
    first, lost, ended = add(ledger, 1, 2, 3)
    for held in (first, lost, ended):
        ledger.reports.add_start(held)
    ledger.lose(lost, "cancelled")
    ledger.end(ended, Completed(ended.lease))
    ledger.settle_next(10)
    assert ledger.reports.take_starts() == [first.lease]
    assert ledger.reports.take_starts() == []
    assert first.start_reported


# what follows, what is told


def end(ledger, held, weight=1, weight_bytes=0):
    held.weight, held.weight_bytes = weight, weight_bytes
    ledger.end(held, Completed(held.lease))


def test_an_exchange_has_no_more_jobs_to_put_than_to_settle(ledger):
    for held in add(ledger, 1, 2, 3):
        end(ledger, held, weight=500)
    assert [outcome.lease.token for outcome in ledger.settle_next(1000)] == [1, 2]
    ledger.settled()
    assert [outcome.lease.token for outcome in ledger.settle_next(1000)] == [3]


def test_an_exchange_has_no_more_data_than_the_server_takes_at_once_but_one_outcome_always(ledger):
    for held in add(ledger, 1, 2):
        end(ledger, held, weight_bytes=256 * 2**20)
    assert [outcome.lease.token for outcome in ledger.settle_next(1000)] == [1]
    ledger.settled()
    assert [outcome.lease.token for outcome in ledger.settle_next(1000)] == [2]


def end_with_puts(ledger, *ended):
    for held in ended:
        held.weight = 2
        ledger.end(held, Completed(held.lease, then=[new_job("put", "q", "k", None, {})]))


def settle(ledger, most=1000, now_at=0.0):
    """The tokens of the next exchange."""
    return [outcome.lease.token for outcome in ledger.settle_next(most, now_at)]


def test_outcomes_with_and_without_puts_share_an_exchange(ledger):
    held = add(ledger, *range(100))
    for plain, puts in zip(held[::2], held[1::2], strict=True):
        end(ledger, plain)
        end_with_puts(ledger, puts)
    assert settle(ledger) == list(range(100))


def test_full_memory_puts_off_only_what_puts_jobs(ledger):
    plain, first, second, later = add(ledger, 1, 2, 3, 4)
    end_with_puts(ledger, first)
    end(ledger, plain)
    end_with_puts(ledger, second)
    assert settle(ledger) == [2, 1, 3]
    assert ledger.refused_for_memory(100.0) == 2
    assert (len(ledger), ledger.has_ended, ledger.settle_at > 100.0) == (4, True, True)
    end_with_puts(ledger, later)
    assert settle(ledger, now_at=100.0) == [1]
    assert ledger.settled() == [plain]
    assert (ledger.has_ended, sorted(lease.token for lease in ledger.leases)) == (False, [2, 3, 4])
    retry_at = ledger.settle_at
    assert settle(ledger, now_at=retry_at) == [2], "one outcome tells whether there is memory"
    ledger.refused_for_memory(retry_at)
    assert ledger.settle_at > retry_at + (retry_at - 100.0)
    assert settle(ledger, now_at=ledger.settle_at) == [2]
    assert ledger.settled() == [first]
    assert settle(ledger) == [3, 4]


def test_large_outcome_that_finds_no_memory_holds_up_no_small_one(ledger):
    large, before, meanwhile, after = add(ledger, 1, 2, 3, 4)
    large.weight_bytes = MOST_BYTES + 1
    end_with_puts(ledger, large)
    end_with_puts(ledger, before)
    assert settle(ledger) == [1]
    end_with_puts(ledger, meanwhile)
    ledger.refused_for_memory(100.0)
    assert settle(ledger, now_at=100.0) == [2, 3]
    assert ledger.settled() == [before, meanwhile]
    end_with_puts(ledger, after)
    assert settle(ledger, now_at=100.0) == [4]
    assert ledger.settled() == [after]
    assert (ledger.has_ended, settle(ledger, now_at=ledger.settle_at)) == (False, [1])
    ledger.settled()
    assert ledger.settle_at == math.inf


def test_smallest_of_outcomes_that_were_refused_together_is_tried_first(ledger):
    large, small, larger = add(ledger, 1, 2, 3)
    for held, size in ((large, 2**20), (small, 0), (larger, 2**21)):
        held.weight_bytes = size
        end_with_puts(ledger, held)
    assert settle(ledger) == [1, 2, 3]
    ledger.refused_for_memory(100.0)
    for tried in ([2], [1], [3]):
        assert settle(ledger, now_at=ledger.settle_at) == tried
        ledger.settled()


def test_ledger_is_laden_while_much_waits_to_be_settled(ledger):
    many, large = add(ledger, *range(MOST_WAITING + 1)), add(ledger, *range(-3, 0))
    for held in many[1:]:
        end(ledger, held)
    assert not ledger.is_laden
    end(ledger, many[0])
    assert ledger.is_laden
    while ledger.has_ended:
        settle(ledger)
        ledger.settled()
    assert not ledger.is_laden
    for held in large:
        end(ledger, held, weight_bytes=MOST_BYTES // 2)
    assert ledger.is_laden
    settle(ledger)
    assert ledger.is_laden, "what is settling is still here"
    for held in ledger.settled():
        ledger.end_again(held, Released(held.lease))
    assert not ledger.is_laden


def test_what_was_put_off_ends_in_a_way_that_needs_no_memory(ledger):
    (held,) = add(ledger, 1)
    end_with_puts(ledger, held)
    settle(ledger)
    ledger.refused_for_memory(100.0)
    ledger.end_put_off(Released)
    assert (ledger.settle_next(1000, 100.0), ledger.settle_at) == ([Released(held.lease)], math.inf)


def test_large_data_to_go_on_with_is_put_off(ledger):
    small, large = add(ledger, 1, 2)
    for held, size in ((small, 1000), (large, 65537)):
        held.weight_bytes = size
        ledger.end(held, Completed(held.lease, next="q", data=b"x" * size))
    settle(ledger)
    assert ledger.refused_for_memory(100.0) == 1
    assert settle(ledger, now_at=100.0) == [1]


def test_lost_lease_that_was_refused_is_not_renewed(ledger):
    (held,) = add(ledger, 1)
    end_with_puts(ledger, held)
    ledger.lose(held, "cancelled")
    settle(ledger)
    ledger.refused_for_memory(100.0)
    assert ledger.leases == []


def test_what_was_refused_ends_again_in_another_way(ledger):
    (held,) = add(ledger, 1)
    end(ledger, held, weight=1000)
    ledger.settle_next(10)
    for each in ledger.settled():
        ledger.end_again(each, Released(each.lease))
    assert (len(ledger), ledger.leases, ledger.has_ended, held.weight) == (1, [held.lease], True, 1)
    assert ledger.settle_next(10) == [held.outcome]
    ledger.settled()
    assert len(ledger) == 0


def test_the_last_progress_goes_with_the_next_exchange_once(ledger):
    first, second = add(ledger, 1, 2)
    ledger.reports.add_progress(first, ProgressReport(0.1, ""))
    ledger.reports.add_progress(second, ProgressReport(0.2, ""))
    ledger.reports.add_progress(first, ProgressReport(0.3, "x"))
    assert sorted(ledger.reports.take_progress(), key=lambda told: told[1]) == [
        (second.lease, ProgressReport(0.2, "")), (first.lease, ProgressReport(0.3, "x")),
    ]  # fmt: skip
    assert ledger.reports.take_progress() == []


def test_the_progress_of_a_job_that_has_ended_since_goes_and_of_one_that_is_lost_does_not(ledger):
    ended, lost = add(ledger, 1, 2)
    for held in (ended, lost):
        ledger.reports.add_progress(held, ProgressReport(0.5, ""))
    ledger.end(ended, Completed(ended.lease))
    ledger.lose(lost, "cancelled")
    assert ledger.reports.take_progress() == [(ended.lease, ProgressReport(0.5, ""))]


def test_the_last_checkpoint_goes_with_the_next_exchange_and_is_answered_for_once(ledger):
    first, second = add(ledger, 1, 2)
    assert ledger.reports.add_checkpoint(first, Checkpoint(1, b"1"))
    assert not ledger.reports.add_checkpoint(first, Checkpoint(2, b"2"))
    assert ledger.reports.add_checkpoint(second, Checkpoint(1, b"3"))
    assert ledger.reports.take_checkpoints() == [(first.lease, b"2"), (second.lease, b"3")]
    assert ledger.reports.take_checkpoints() == []
    assert [ledger.reports.take_stored(token) for token in (1, 1, 7)] == [(first, 2), None, None]
    assert ledger.reports.take_unstored() == [(second, 1)]
    assert ledger.reports.take_unstored() == []


def test_a_checkpoint_during_the_exchange_with_another_goes_with_the_next(ledger):
    (held,) = add(ledger, 1)
    ledger.reports.add_checkpoint(held, Checkpoint(1, b"1"))
    ledger.reports.take_checkpoints()
    assert not ledger.reports.add_checkpoint(held, Checkpoint(2, b"2"))
    assert ledger.reports.take_stored(1) == (held, 1)
    assert ledger.reports.take_checkpoints() == [(held.lease, b"2")]
    assert ledger.reports.take_stored(1) == (held, 2)


def test_the_checkpoint_of_a_job_that_has_ended_since_goes_and_of_one_that_is_lost_does_not(ledger):
    ended, lost = add(ledger, 1, 2)
    for held in (ended, lost):
        ledger.reports.add_checkpoint(held, Checkpoint(1, b"1"))
    ledger.end(ended, Completed(ended.lease))
    ledger.lose(lost, "cancelled")
    assert ledger.reports.take_checkpoints() == [(ended.lease, b"1")]


def test_large_checkpoints_wait_for_their_turn_and_the_newest_is_sent(ledger):
    (held,) = add(ledger, 1)
    now_at, sent = clock.monotonic(), 0
    for number in range(100):
        ledger.reports.add_checkpoint(held, Checkpoint(number, b"x" * STATE_BYTES))
        sent += len(ledger.reports.take_checkpoints(now_at))
    assert 5 <= sent <= 15  # the reserve
    assert now_at < ledger.reports.next_checkpoint_at() <= now_at + 0.05
    ledger.reports.add_checkpoint(held, Checkpoint(100, b"last"))
    assert ledger.reports.take_checkpoints(now_at) == []
    assert ledger.reports.take_checkpoints(ledger.reports.next_checkpoint_at()) == [(held.lease, b"last")]
    assert ledger.reports.next_checkpoint_at() == math.inf


def test_small_checkpoints_wait_for_nothing(ledger):
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
