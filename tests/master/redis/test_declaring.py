"""A master tells Redis the declarations of its handlers once for each release of the code."""

from types import SimpleNamespace

import pytest

from supervisor.engine.model.shards import shard_of
from supervisor.engine.worker.identity import Identity
from supervisor.master.redis.declaring import Declaring


@pytest.fixture
def demand():
    return SimpleNamespace(klasses=(), recurrences={})


@pytest.fixture
def declaring(demand):
    told = []
    events = SimpleNamespace(warn=told.append, emit=lambda *said, **fields: told.append((said, fields)), told=told)
    return Declaring(Identity(), demand, events)


def test_each_release_is_told_once(demand, declaring):
    assert declaring.parts(0.0) == ()
    demand.klasses, demand.recurrences = {"a": 1, "b": 1}, {"b": {"every": 60, "queue": "q"}}
    [part] = declaring.parts(0.0)
    assert part.command.args[1] == "a" and "b" in part.command.args
    assert declaring.parts(0.0) == ()


def test_new_zygote_with_the_same_code_is_told_nothing(demand, declaring):
    demand.klasses = {"a": 1}
    assert len(declaring.parts(0.0)) == 1
    demand.klasses = {"a": 1}
    assert declaring.parts(0.0) == ()
    demand.klasses = {"a": 1, "b": 1}
    assert len(declaring.parts(0.0)) == 1


def test_lost_answer_is_asked_for_again(demand, declaring):
    demand.klasses = {"a": 1}
    [part] = declaring.parts(0.0)
    part.lost()
    assert len(declaring.parts(0.0)) == 1


def test_redis_that_has_forgotten_the_worker_is_told_what_is_missing(demand, declaring):
    demand.klasses, demand.recurrences = {"a": 1, "b": 1}, {"b": {"every": 60}}
    [part] = declaring.parts(0.0)
    assert part.command.args[1:3] == ("a", 0)
    declaring._identity.rename()
    for _ in range(2):
        [part] = declaring.parts(0.0)
        assert part.command.args[1:3] == ("", 1) and "b" in part.command.args
        part.lost()
    assert len(declaring.parts(0.0)) == 1
    assert declaring.parts(0.0) == ()


def test_declaration_that_cannot_be_put_is_told_and_harms_no_other(demand, declaring):
    demand.klasses = {"a": 1, "b": 1}
    demand.recurrences = {"a": {"cron": "x"}, "b": {"every": 60}}
    [part] = declaring.parts(0.0)
    assert "b" in part.command.args
    assert "the recurring job that a declares is not put: cron must have five fields" in declaring._events.told[0]


def test_many_declarations_go_in_batches(demand, declaring):
    demand.klasses = {f"k{number}": 1 for number in range(250)}
    demand.recurrences = {klass: {"every": 60} for klass in demand.klasses}
    assert len(declaring.parts(0.0)) == 3


def test_recurring_job_is_told_to_the_shard_of_its_jid(demand, declaring):
    events, home = declaring._events, shard_of("b", 4)
    demand.klasses, demand.recurrences = {"a": 1, "b": 1}, {"b": {"every": 60, "queue": "q"}}
    for shard in range(4):
        [part] = Declaring(Identity(), demand, events, shard, lambda: 4).parts(0.0)
        assert part.command.args[1] == ("a" if shard == home else "a\nb")
        assert (len(part.command.args) > 3) == (shard == home)


def test_recurring_job_moves_with_the_division(demand, declaring):
    shards = 1
    first = Declaring(Identity(), demand, declaring._events, 0, lambda: shards)
    demand.klasses, demand.recurrences = {"b": 1}, {"b": {"every": 60, "queue": "q"}}
    [part] = first.parts(0.0)
    assert part.command.args[1] == ""
    assert first.parts(0.0) == ()
    shards = 4
    [part] = first.parts(0.0)
    assert part.command.args[1] == ("" if shard_of("b", 4) == 0 else "b")


def test_recurring_job_whose_limit_may_lie_elsewhere_is_left_out(demand, declaring):
    demand.klasses, demand.recurrences = {"b": 1}, {"b": {"every": 60, "limit": "api"}}
    [part] = Declaring(Identity(), demand, declaring._events, shard_of("b", 4), lambda: 4).parts(0.0)
    assert len(part.command.args) == 3
    [said] = declaring._events.told
    assert "the limit api may lie in different shards" in said
    elsewhere = (shard_of("b", 4) + 1) % 4
    assert Declaring(Identity(), demand, declaring._events, elsewhere, lambda: 4).parts(0.0)[0].command.args[1] == ""
