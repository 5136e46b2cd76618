"""The ledgers of several shards, and what they share."""

import pytest

from supervisor.engine.model.outcomes import Completed
from supervisor.master.model import ledgers as module
from supervisor.master.model.ledger import MOST_BYTES
from tests.parts import held_of

FIRST = [shard * 2**45 for shard in range(4)]


@pytest.fixture
def divided(ledgers):
    ledgers.divide(4)
    return ledgers


def hold(ledgers, shard, number=1, ends=False):
    held = held_of(FIRST[shard] + number)
    held.shard = shard
    ledgers.by_shard[shard].add(held)
    if ends:
        ledgers.by_shard[shard].end(held, Completed(held.lease))
    return held


def test_lease_is_found_in_the_shard_of_its_token(divided):
    held = [hold(divided, shard) for shard in range(4)]
    assert [divided.find(each.lease.token) for each in held] == held


@pytest.mark.parametrize("token", [-1, 0, 2, 4 * 2**45 + 1, 2**63])
def test_unknown_token_has_no_lease(divided, token):
    hold(divided, 0)
    assert divided.find(token) is None


def test_ledgers_are_empty_once_each_is(divided):
    held = hold(divided, 3, ends=True)
    assert not divided.are_empty
    assert divided.by_shard[3].settle_next(1) == [held.outcome]
    assert not divided.are_empty
    divided.by_shard[3].settled()
    assert divided.are_empty


def test_lost_lease_is_ready_no_more(divided):
    lost, kept = hold(divided, 1), hold(divided, 2)
    divided.ready.extend([lost, kept])
    divided.lose(lost, "cancelled")
    assert (list(divided.ready), divided.find(lost.lease.token), lost.lost_reason) == ([kept], None, "cancelled")


def test_what_is_held_stays_where_it_was_leased(ledgers):
    held = hold(ledgers, 0)
    assert not ledgers.is_divided
    ledgers.divide(4)
    assert ledgers.is_divided and ledgers.find(held.lease.token) is held


def test_outcomes_of_some_shards_stop_no_jobs_of_others(divided, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 4)
    for number in range(30):
        for shard in (0, 1, 3):
            hold(divided, shard, number, ends=True)
    assert not divided.are_laden
    for number in range(3):
        hold(divided, 2, number, ends=True)
    assert divided.are_laden


def test_data_of_all_shards_together_stop_jobs(divided):
    held = hold(divided, 1)
    held.weight_bytes = 4 * MOST_BYTES
    divided.by_shard[1].end(held, Completed(held.lease))
    assert not divided.are_laden
    held = hold(divided, 2)
    held.weight_bytes = 1
    divided.by_shard[2].end(held, Completed(held.lease))
    assert divided.are_laden


def test_shard_with_half_of_what_may_wait_is_held_back(divided, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 4)
    for number in range(3):
        hold(divided, 1, number, ends=True)
    assert [divided.hold_back(ledger) for ledger in divided.by_shard] == [False, True, False, False]


def test_only_shard_has_any_token(ledgers):
    held = held_of(2**51)
    ledgers.by_shard[0].add(held)
    assert (ledgers.shard_of(2**51), ledgers.find(2**51)) == (0, held)


def test_only_shard_is_not_held_back(ledgers, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 4)
    for number in range(3):
        hold(ledgers, 0, number, ends=True)
    assert not ledgers.hold_back(ledgers.by_shard[0])
