"""Several shards share the room for jobs. The tests need no server."""

from types import SimpleNamespace

import pytest

from supervisor.master.model.ledgers import Ledgers
from supervisor.master.redis.demand import Demand

ROOM = 8


@pytest.fixture
def ledgers():
    return Ledgers()


@pytest.fixture
def demand(ledgers):
    def to_lease(coming=0):
        return (max(0, ROOM - coming),) * 2

    admission = SimpleNamespace(why_not=lambda: None, is_open=True)
    capacity = SimpleNamespace(to_lease=to_lease, startable=lambda: ROOM, shared_room=lambda: 0)
    return Demand(ledgers, admission, capacity, SimpleNamespace(ready=True, once=(), handlers={}))


def counts(demand, ledgers):
    wanted = [demand.now(ledger, False, 0) for ledger in ledgers.by_shard]
    return [each.count if each is not None else 0 for each in wanted]


def test_what_one_shard_is_asked_for_is_not_asked_of_others(demand, ledgers):
    ledgers.divide(2)
    assert counts(demand, ledgers) == [ROOM, ROOM]
    demand.asked = 3
    assert counts(demand, ledgers) == [ROOM - 3, ROOM - 3]
    demand.asked = ROOM
    assert counts(demand, ledgers) == [0, 0]
    assert not demand.can_start


@pytest.mark.parametrize(("shards", "count"), [(1, ROOM), (2, 4), (3, 2), (8, 1), (64, 1)])
def test_lease_behind_a_wait_asks_for_a_fair_part(demand, ledgers, shards, count):
    ledgers.divide(shards)
    assert demand.behind_wait().count == count


def test_wakeup_is_passed_on_without_room(demand, ledgers):
    ledgers.divide(2)
    demand.asked = ROOM
    wanted = demand.now(ledgers.by_shard[1], True, 0)
    assert (wanted.count, wanted.woken) == (0, True)


def test_shard_that_is_held_back_is_not_leased_from(demand, ledgers, monkeypatch):
    ledgers.divide(2)
    monkeypatch.setattr(ledgers, "hold_back", lambda ledger: ledger is ledgers.by_shard[1])
    assert counts(demand, ledgers) == [ROOM, 0]
