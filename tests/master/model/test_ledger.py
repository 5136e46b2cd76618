"""A lease is in the ledger from its grant until its end is accepted, or until it is lost."""

import math

import pytest

from supervisor.engine.model.new_jobs import new_job
from supervisor.engine.model.outcomes import Completed, Released
from supervisor.master.model.ledger import MOST_BYTES, MOST_WAITING
from tests.master.model.conftest import add


def test_lease_counts_until_its_end_is_accepted(ledger):
    (held,) = add(ledger, 1)
    assert (len(ledger), ledger.leases, ledger.find(1)) == (1, [held.lease], held)
    ledger.end(held, Completed(held.lease))
    assert (len(ledger), ledger.leases, ledger.has_ended) == (1, [held.lease], True)
    assert ledger.settle_next(10) == [held.outcome]
    assert (len(ledger), ledger.find(1), ledger.has_ended) == (1, None, False)
    assert ledger.leases == [held.lease]  # its outcome may be refused
    assert ledger.settled() == [held]
    assert (len(ledger), ledger.leases) == (0, [])


def test_outcomes_go_in_the_order_of_the_ends(ledger):
    held = add(ledger, 1, 2, 3, 4, 5)
    for each in reversed(held):
        ledger.end(each, Released(each.lease))
    assert [outcome.lease.token for outcome in ledger.settle_next(2)] == [5, 4]
    assert [each.lease.token for each in ledger.settled()] == [5, 4]
    assert [outcome.lease.token for outcome in ledger.settle_next(1000)] == [3, 2, 1]


def test_nothing_is_settled_before_an_end(ledger):
    add(ledger, 1)
    assert (ledger.settle_next(10), ledger.settled(), len(ledger)) == ([], [], 1)


def test_only_one_exchange_settles_at_a_time(ledger):
    for held in add(ledger, 1, 2):
        ledger.end(held, Completed(held.lease))
    ledger.settle_next(1)
    with pytest.raises(AssertionError):
        ledger.settle_next(1)


def test_end_during_an_exchange_waits_for_the_next(ledger):
    first, second = add(ledger, 1, 2)
    ledger.end(first, Completed(first.lease))
    ledger.settle_next(10)
    ledger.end(second, Completed(second.lease))
    assert (ledger.has_ended, len(ledger)) == (False, 2)
    assert ledger.settled() == [first]
    assert (ledger.has_ended, ledger.leases) == (True, [second.lease])
    assert [outcome.lease for outcome in ledger.settle_next(10)] == [second.lease]


def test_outcome_that_is_to_be_sent_again_goes_first_with_the_next_exchange(ledgers, ledger):
    first, second = add(ledger, 1, 2)
    first.weight_bytes = MOST_BYTES + 1
    ledger.end(first, Completed(first.lease, data="x"))
    ledger.settle_next(10)
    ledger.end(second, Completed(second.lease))
    ledger.settle_again(*ledger.settled())
    assert (ledger.find(1), len(ledger), ledgers.are_laden) == (first, 2, True)
    assert ledger.settle_next(1) == [first.outcome]
    ledger.settled()
    assert (len(ledger), ledgers.are_laden) == (1, False)


def test_lost_lease_is_neither_renewed_nor_sent_nor_counted(ledgers, ledger):
    lost, kept = add(ledger, 1, 2)
    ledgers.ready.extend([lost, kept])
    ledgers.lose(lost, "cancelled")
    ledgers.lose(lost, "cancelled")
    assert (lost.lost_reason, list(ledgers.ready), ledger.leases, len(ledger)) == ("cancelled", [kept], [kept.lease], 1)


def test_outcome_of_a_lost_lease_is_sent_to_be_refused(ledger):
    (held,) = add(ledger, 1)
    ledger.lose(held, "cancelled")
    ledger.end(held, Completed(held.lease))
    assert ledger.settle_next(10) == [held.outcome]
    assert ledger.settled() == [held]


def end(ledger, held, weight=1, weight_bytes=0):
    held.weight, held.weight_bytes = weight, weight_bytes
    ledger.end(held, Completed(held.lease))


def test_puts_count_as_jobs_of_an_exchange(ledger):
    for held in add(ledger, 1, 2, 3):
        end(ledger, held, weight=500)
    assert [outcome.lease.token for outcome in ledger.settle_next(1000)] == [1, 2]
    ledger.settled()
    assert [outcome.lease.token for outcome in ledger.settle_next(1000)] == [3]


def test_data_of_an_exchange_is_bounded(ledger):
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


def test_full_memory_puts_off_only_outcomes_with_puts(ledger):
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


def test_large_outcome_without_memory_holds_up_no_small_one(ledger):
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


def test_smallest_refused_outcome_is_tried_first(ledger):
    large, small, larger = add(ledger, 1, 2, 3)
    for held, size in ((large, 2**20), (small, 0), (larger, 2**21)):
        held.weight_bytes = size
        end_with_puts(ledger, held)
    assert settle(ledger) == [1, 2, 3]
    ledger.refused_for_memory(100.0)
    for tried in ([2], [1], [3]):
        assert settle(ledger, now_at=ledger.settle_at) == tried
        ledger.settled()


def test_ledger_is_laden_while_much_waits_to_be_settled(ledgers, ledger):
    many, large = add(ledger, *range(MOST_WAITING + 1)), add(ledger, *range(-3, 0))
    for held in many[1:]:
        end(ledger, held)
    assert not ledgers.are_laden
    end(ledger, many[0])
    assert ledgers.are_laden
    while ledger.has_ended:
        settle(ledger)
        ledger.settled()
    assert not ledgers.are_laden
    for held in large:
        end(ledger, held, weight_bytes=MOST_BYTES // 2)
    assert ledgers.are_laden
    settle(ledger)
    assert ledgers.are_laden, "what is settling is still here"
    for held in ledger.settled():
        ledger.end_again(held, Released(held.lease))
    assert not ledgers.are_laden


def test_no_outcome_is_for_an_exchange_while_others_are_settling(ledger):
    first, put_off, limited = add(ledger, 1, 2, 3)
    end_with_puts(ledger, put_off)
    settle(ledger)
    ledger.refused_for_memory(100.0)
    end(ledger, first)
    ledger.settle_next(10)
    limited.lease.limited = True
    end(ledger, limited)
    assert (ledger.has_ended, ledger.settle_at, ledger.slots_freed) == (False, math.inf, 0)
    ledger.settled()
    assert (ledger.has_ended, ledger.settle_at < math.inf, ledger.slots_freed) == (True, True, 1)


def test_outcome_put_off_can_be_replaced_by_one_without_puts(ledger):
    (held,) = add(ledger, 1)
    end_with_puts(ledger, held)
    settle(ledger)
    ledger.refused_for_memory(100.0)
    ledger.end_put_off(Released)
    assert (ledger.settle_next(1000, 100.0), ledger.settle_at) == ([Released(held.lease)], math.inf)


def test_large_data_for_the_next_stage_is_put_off(ledger):
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


def test_refused_outcome_is_replaced_by_another(ledger):
    (held,) = add(ledger, 1)
    end(ledger, held, weight=1000)
    ledger.settle_next(10)
    for each in ledger.settled():
        ledger.end_again(each, Released(each.lease))
    assert (len(ledger), ledger.leases, ledger.has_ended, held.weight) == (1, [held.lease], True, 1)
    assert ledger.settle_next(10) == [held.outcome]
    ledger.settled()
    assert len(ledger) == 0
