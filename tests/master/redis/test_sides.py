"""Several shards are spoken to side by side, and none concerns another. The tests need no server."""

import os
from types import SimpleNamespace

import pytest

from supervisor.engine.transport.link import LinkLost
from supervisor.engine.worker.identity import Identity, WorkerName
from supervisor.master.inbox import Inbox
from supervisor.master.redis.side_loop import SideLoop
from supervisor.master.redis.sides import Side, Sides
from supervisor.master.timers import Timers
from tests.parts import lease_of

SHARDS = 3


class PlayedSide:
    """A side that notes the calls to it in `steps` and `reported`. `fails`: its connection is lost by that."""

    def __init__(self, shard, inbox, timers, steps):
        self.shard, self.steps, self.fails = shard, steps, False
        self.lost, self.reported, self.connected = [], [], True
        self.loop = SideLoop(inbox, timers, shard)
        self.loop.on_lost = self.lost.append
        wakeups = SimpleNamespace(woken=False)
        self.session = SimpleNamespace(
            shard=shard, wakeups=wakeups, connected=True, report_starts=self.report_starts, has_left=False
        )
        pump = SimpleNamespace(step=self.step, deadline_at=lambda: 10.0 - shard)
        connection = SimpleNamespace(follow_name=lambda: None)
        leasing = settling = concerns = None
        self.side = Side(self.loop, self.session, leasing, settling, concerns, pump, connection)

    def step(self, _now_at):
        self.steps.append(self.shard)
        if self.fails:
            raise LinkLost("gone")

    def report_starts(self, leases):
        self.reported += [lease.token for lease in leases]
        return not self.fails


@pytest.fixture
def inbox():
    inbox = Inbox()
    yield inbox
    inbox.close()


@pytest.fixture
def timers():
    return Timers()


@pytest.fixture
def steps():
    return []


@pytest.fixture
def played(inbox, timers, steps):
    return [PlayedSide(shard, inbox, timers, steps) for shard in range(SHARDS)]


@pytest.fixture
def sides(played):
    sides = Sides()
    for each in played:
        sides.add(each.side)
    return sides


def test_each_turn_begins_with_another_shard(sides, steps):
    for _ in range(SHARDS):
        sides.step(0.0)
    assert steps == [0, 1, 2, 1, 2, 0, 2, 0, 1]


def test_lost_connection_concerns_its_own_shard(sides, played, steps):
    played[1].fails = True
    sides.step(0.0)
    assert steps == [0, 1, 2]
    assert [len(each.lost) for each in played] == [0, 1, 0]


def test_shard_with_a_wakeup_is_asked_first(sides, played, steps):
    played[2].session.wakeups.woken = True
    sides.step_woken(0.0)
    assert steps == [2]


def test_loop_turns_when_the_first_shard_is_due(sides):
    assert sides.deadline_at() == 10.0 - (SHARDS - 1)


def test_starts_are_reported_to_the_shards_of_their_leases(sides, played):
    tokens = [1, 2 * 2**45 + 1, 2]
    assert sides.report_starts([lease_of(token) for token in tokens])
    assert [each.reported for each in played] == [[1, 2], [], [2 * 2**45 + 1]]


def test_lost_report_of_one_shard_keeps_none_from_the_others(sides, played):
    played[0].fails = True
    assert not sides.report_starts([lease_of(1), lease_of(2**45)])
    assert played[1].reported == [2**45]


def test_master_is_connected_while_all_shards_are(sides, played):
    assert sides.connected
    played[1].session.connected = False
    assert (sides.connected, sides.away) == (False, [1])


def test_lost_connection_is_found_by_the_callbacks_of_its_shard(inbox, timers, played):
    def lose(*_now_at):
        raise LinkLost("gone")

    event_fd = os.eventfd(1)
    played[1].loop.watch(event_fd, lose)
    inbox.wait(0.0)
    played[2].loop.set("key", 1.0, lose)
    timers.run_due(2.0)
    played[1].loop.forget(event_fd)
    os.close(event_fd)
    assert [len(each.lost) for each in played] == [0, 1, 1]


def test_timers_of_two_shards_are_two(timers, played):
    rung = []
    for each in played:
        each.loop.set("key", 1.0, lambda _now_at, shard=each.shard: rung.append(shard))
    played[1].loop.cancel("key")
    timers.run_due(2.0)
    assert rung == [0, 2]


def test_worker_has_one_new_name_wherever_it_is_forgotten():
    shared = WorkerName()
    first, second, third = (Identity(shared) for _ in range(3))
    old = first.name
    first.rename()
    second.rename()
    assert first.name == second.name != old
    assert (third.name, third.is_outdated, first.is_outdated) == (old, True, False)
    first.rename()
    assert second.is_outdated
