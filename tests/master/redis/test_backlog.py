"""Some exchanges look at the queues, for what the scaler is told. The tests need no server."""

import math
from types import SimpleNamespace

import pytest

from supervisor.engine.commands.queue_counts import Depths
from supervisor.master.redis import backlog as module
from supervisor.master.redis.backlog import FRESH_S, MOST_DESIRED, Backlog
from supervisor.messages import HandlerSettings

KNOWN = {"k": HandlerSettings()}


@pytest.fixture
def now(monkeypatch):
    now = SimpleNamespace(at=1000.0)
    monkeypatch.setattr(module.clock, "monotonic", lambda: now.at)
    return now


def backlog(name="", most=4, busy=1, concurrency=1, handlers=KNOWN):
    slots = SimpleNamespace(busy=busy, processes=2)
    demand = SimpleNamespace(concurrency=concurrency, handlers=handlers)
    return Backlog(name, SimpleNamespace(most=most), slots, demand)


def depths(ready=0, running=0, stalled=0, oldest_s=None):
    return Depths(ready, running, stalled, 0, 0, 0, 0, False, 0, 0, ready, oldest_s)


def say(told, now, seen):
    told.on_looked(seen, "w")
    return told.take_to_say()


def test_backlog_without_a_scaler_looks_on_request_only(now):
    quiet = backlog()
    quiet.move()
    assert quiet.deadline_at() == math.inf
    assert not quiet.take_look(now.at + 100, sweeps=True)
    quiet.look(lambda _now_at: None)
    assert quiet.deadline_at() == -math.inf
    assert quiet.take_look(now.at, sweeps=False)
    assert not quiet.take_look(now.at, sweeps=False)
    assert say(quiet, now, {"q": depths(ready=9)}) is None
    assert quiet.desired == 3


def test_backlog_with_a_scaler_looks_with_sweeps_and_moves(now):
    told = backlog("pool")
    assert told.take_look(now.at, sweeps=False)  # at the start
    assert told.deadline_at() == math.inf
    assert not told.take_look(now.at + 5, sweeps=False)
    assert told.take_look(now.at + 5, sweeps=True)
    told.move()
    assert not told.take_look(now.at + 5.9, sweeps=False)
    assert told.deadline_at() == now.at + 6
    assert told.take_look(now.at + 6, sweeps=False)
    assert told.deadline_at() == math.inf


def test_many_queues_are_looked_at_less_often(now):
    told = backlog("pool")
    say(told, now, {f"q{n}": depths() for n in range(1000)})
    assert told.take_look(now.at, sweeps=False)
    told.move()
    assert told.deadline_at() == now.at + 10
    assert not told.take_look(now.at + 9, sweeps=False)
    assert told.take_look(now.at + 10, sweeps=False)


@pytest.mark.parametrize(
    ("ready", "running", "stalled", "most", "desired"),
    [(0, 0, 0, 4, 0), (1, 0, 0, 4, 1), (4, 0, 0, 4, 1), (5, 0, 0, 4, 2), (0, 3, 1, 4, 1), (3, 4, 1, 4, 2),
     (10**6, 0, 0, 1, MOST_DESIRED)],
)  # fmt: skip
def test_desired_is_jobs_by_processes(ready, running, stalled, most, desired):
    told = backlog("pool", most)
    seen = {"a": depths(ready=ready), "b": depths(running=running, stalled=stalled)}
    told.on_looked(seen, "w")
    assert told.desired == desired


def test_number_is_told_on_change_and_before_its_expiry(now):
    told = backlog("pool")
    said = say(told, now, {"q": depths(ready=9, running=2, oldest_s=7.5)})
    assert (said.name, said.supervisors) == ("pool", 3)
    assert {**said.note, "at_unix": 0} == {
        "worker": "w", "at_unix": 0, "desired": 3, "ready": 9, "running": 2, "processes": 4, "concurrency": 1,
        "oldest_s": 7.5,
    }  # fmt: skip
    now.at += 1
    assert say(told, now, {"q": depths(ready=10)}) is None
    now.at += 15
    assert say(told, now, {"q": depths(ready=10)}).supervisors == 3
    assert say(told, now, {"q": depths()}).supervisors == 0
    now.at += 100
    assert say(told, now, {"q": depths()}) is None
    told.forget_said()  # the connection was lost
    assert say(told, now, {"q": depths()}).supervisors == 0


def test_status_sums_all_queues_and_has_an_age(now):
    told = backlog("pool")
    assert told.status() is None
    told.on_looked({"a": depths(ready=1, oldest_s=2.0), "b": depths(running=1, oldest_s=9.0), "c": depths()}, "w")
    now.at += 2.5
    assert told.status() == {
        "name": "pool", "desired": 1, "ready": 1, "running": 1, "processes": 4, "concurrency": 1,
        "oldest_s": 9.0, "busy_ratio": 0.5, "age_s": 2.5,
    }  # fmt: skip


def test_scaler_is_told_nothing_until_the_handlers_are_known(now):
    handlers = {}
    told = backlog("pool", handlers=handlers)
    assert told.deadline_at() == math.inf and not told.take_look(now.at, sweeps=True)
    told.look(lambda _now_at: None)  # a person asks
    assert told.take_look(now.at, sweeps=False)
    assert say(told, now, {"q": depths(ready=9)}) is None
    assert told.desired is None
    handlers["k"] = HandlerSettings()
    told.move()
    assert told.take_look(now.at + 1, sweeps=False)
    assert say(told, now, {"q": depths(ready=9)}).supervisors == 3


@pytest.mark.parametrize(("ready", "desired"), [(0, 0), (1, 1), (800, 1), (801, 2)])
def test_jobs_beside_each_other_need_fewer_supervisors(now, ready, desired):
    told = backlog(concurrency=200)
    told.on_looked({"q": depths(ready=ready)}, "w")
    assert told.desired == desired


def test_old_figures_are_not_fresh(now):
    told = backlog()
    assert not told.is_fresh
    say(told, now, {"q": depths(ready=9)})
    now.at += FRESH_S - 1
    assert told.is_fresh
    now.at += 2
    assert not told.is_fresh


def test_depths_of_all_shards_are_added_up(now):
    told = backlog("pool", most=4)
    told.divide(2)
    told.on_looked({"q": depths(ready=5, oldest_s=1.0), "only": depths(ready=1)}, "w")
    assert told.take_to_say() is None  # the other shard has not answered
    told.on_looked({"q": depths(ready=6, running=4, oldest_s=9.0)}, "w", shard=1)
    assert (told.depths["q"].ready, told.depths["q"].oldest_s, told.depths["only"].ready) == (11, 9.0, 1)
    assert told.take_to_say().supervisors == 4


def test_answer_waits_for_all_shards(now):
    quiet, answered = backlog(), []
    quiet.divide(2)
    quiet.look(answered.append)
    assert [quiet.take_look(now.at, False, shard) for shard in (0, 1)] == [True, True]
    quiet.on_looked({}, "w", shard=1)
    assert answered == []
    quiet.on_looked({}, "w")
    assert answered == [now.at]


def test_figures_are_as_old_as_those_of_the_shard_that_is_away(now):
    quiet = backlog()
    quiet.divide(2)
    for shard in (0, 1):
        quiet.on_looked({}, "w", shard)
    now.at += FRESH_S - 1
    quiet.on_looked({}, "w")
    assert quiet.is_fresh
    now.at += 1
    assert not quiet.is_fresh
