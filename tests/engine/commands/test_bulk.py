"""Bulk operations: changes of chosen jobs that still match."""

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import bulk, choices, job_changes
from supervisor.engine.commands.bulk import BulkResult
from supervisor.engine.commands.choices import NOT_COMPLETE, Choice
from tests.engine.invariants import misplaced, read_namespace

NOT_ENDED = ("waiting", "scheduled", "depends", "parked", "running")


@pytest.fixture
def queue(client):
    return client.queue("q")


def chosen(client, **choice):
    return calls_of(client).follow(choices.found(Choice(**choice), calls_of(client).clock))


def test_choice_by_klass_changes_only_its_jobs(client, queue):
    queue.put_many({"klass": klass, "jid": f"{klass}-{n}"} for n in range(2) for klass in ("mail", "sum"))
    choice = Choice("q", klass="mail")
    moved = calls_of(client).call(bulk.move, choice, ["mail-0", "sum-0"], "other")
    assert moved.number == 1 and client.job("sum-0").queue == "q"


def test_change_can_be_left_between_two_steps(client, queue, monkeypatch):
    class Left(Exception):
        pass

    def leave(done):
        if done == 4:
            raise Left

    monkeypatch.setattr(bulk, "STEP", 2)
    queue.put_many({"klass": "k", "jid": f"j{n}"} for n in range(6))
    calls, choice = calls_of(client), Choice("q")
    change = bulk.BulkChange(
        "cancel", chosen(client, queue="q"), lambda jids: bulk.cancel(choice, jids, now=calls.clock())
    )
    with pytest.raises(Left):
        calls.follow(change.steps(leave))
    assert (change.done, change.under_way) == (4, 0)
    assert list(chosen(client, queue="q")) == ["j0", "j1"]


@pytest.mark.parametrize("act", ["cancel", "fail", "move", "set_priority"])
def test_changed_job_is_left_alone(client, queue, act, server, namespace):
    queue.put_many({"klass": "k", "jid": jid} for jid in ("runs", "waits", "moved"))
    choice = Choice("q", states=("waiting",))
    jids = list(calls_of(client).follow(choices.found(choice, calls_of(client).clock)))
    (lease,) = queue.lease("w")
    client.job("moved").move("other")
    more = {"cancel": (), "fail": ("g", "m"), "move": ("p",), "set_priority": (7,)}[act]
    assert calls_of(client).call(getattr(bulk, act), choice, [*jids, "nobody"], *more) == BulkResult(1, [])
    assert client.job("runs").state == "running" and lease.renew() > 0
    assert client.job("moved").queue == "other"
    seen = client.job("waits")
    if act == "cancel":
        assert seen is None
    else:
        assert (seen.state, seen.queue, seen.priority) == {
            "fail": ("failed", "q", 0), "move": ("waiting", "p", 0), "set_priority": ("waiting", "q", 7),
        }[act]  # fmt: skip
    assert misplaced(read_namespace(server.redis, namespace)) == []


def test_parent_is_cancelled_with_all_dependents_or_not_at_all(client, queue):
    for jid, parents in (("a", []), ("b", ["a"]), ("c", ["b"]), ("alone", [])):
        queue.put("k", jid=jid, depends=parents, on_parent_failure="wait")
    client.queue("other").put("k", jid="other", depends=["c"], on_parent_failure="wait")
    everything = Choice("q", states=NOT_ENDED)
    assert calls_of(client).call(bulk.cancel, everything, ["a", "b", "c", "alone"]) == BulkResult(1, ["c", "b", "a"])
    client.cancel("other")
    assert calls_of(client).call(bulk.cancel, everything, ["a", "b"]) == BulkResult(0, ["b", "a"])
    assert calls_of(client).call(bulk.cancel, everything, ["a", "b", "c"]) == BulkResult(3, [])
    assert client.queues()["q"].total == 0


def test_cancelled_parent_fails_or_frees_its_dependents_by_policy(client, queue):
    queue.put("k", jid="parent")
    for policy in ("fail", "run"):
        queue.put("k", jid=policy, depends=["parent"], on_parent_failure=policy)
    assert calls_of(client).call(bulk.cancel, Choice("q", states=("waiting",)), ["parent"]) == BulkResult(1, [])
    assert [client.job(jid).state for jid in ("fail", "run")] == ["failed", "waiting"]


def test_moved_job_keeps_its_time_lane_and_parents(client, queue, server, namespace):
    client.limit("used-up", running=0)
    queue.put("k", jid="parked", limit="used-up")
    assert queue.lease("w") == []
    queue.put("k", jid="waiting")
    queue.put("k", jid="laned", lane="a")
    queue.put("k", jid="scheduled", delay=600)
    queue.put("k", jid="depends", depends=["waiting"])
    before = {jid: client.job(jid) for jid in ("scheduled", "laned", "depends", "parked")}
    assert calls_of(client).call(bulk.move, Choice("q", states=NOT_ENDED), list(before), "p") == BulkResult(4, [])
    after = {jid: client.job(jid) for jid in before}
    assert all(job.queue == "p" for job in after.values())
    assert after["scheduled"].state == "scheduled" and after["scheduled"].due_unix == before["scheduled"].due_unix
    assert (after["laned"].lane, after["depends"].dependencies) == ("a", ["waiting"])
    assert misplaced(read_namespace(server.redis, namespace)) == []


def test_named_jobs_are_changed_in_any_state_but_complete(client, queue, clock):
    client.limit("used-up", running=0)
    queue.put("k", jid="parked", limit="used-up")
    assert queue.lease("w") == []
    queue.put_many({"klass": "k", "jid": jid} for jid in ("running", "failed", "complete", "stalled", "waiting"))
    _, failed, complete = queue.lease("w", 3, ttl=3600)
    failed.fail("Broken", "boom")
    complete.complete()
    queue.lease("w", 1, ttl=5)
    clock.now += 10
    queue.put("k", jid="scheduled", delay=600)
    queue.put("k", jid="depends", depends=["scheduled"])
    jids = ["depends", "scheduled", "parked", "waiting", "running", "stalled", "failed"]
    assert [job.state for job in client.jobs(*jids)] == [state.replace("parked", "waiting") for state in jids]
    moved = calls_of(client).call(bulk.set_priority, NOT_COMPLETE, [*jids, "complete", "nobody"], 7)
    assert moved == BulkResult(len(jids), [])
    assert [job.priority for job in client.jobs(*jids, "complete")] == [7] * len(jids) + [0]
    assert calls_of(client).call(bulk.retry, NOT_COMPLETE, [*jids, "complete"]) == BulkResult(1, [])


def test_failed_jobs_of_the_group_are_put_back_by_jid(client, queue):
    for jid, group in (("a", "Broken"), ("b", "Broken"), ("c", "Other")):
        queue.put("k", jid=jid)
        queue.lease("w")[0].fail(group, "m")
    assert calls_of(client).call(job_changes.unfail_jobs, ["a", "c", "nobody"], group="Broken") == 1
    assert [client.job(jid).state for jid in "abc"] == ["waiting", "failed", "failed"]
    assert calls_of(client).call(job_changes.unfail_jobs, ["a", "b", "c"]) == 2


def test_jobs_that_failed_elsewhere_meanwhile_stay_failed(client, queue):
    """The choice named one queue and one klass."""
    other = client.queue("other")
    for jid, of, klass in (("here", queue, "k"), ("there", other, "k"), ("changed", queue, "new")):
        of.put(klass, jid=jid)
        of.lease("w")[0].fail("Broken", "boom")
    choice = Choice(queue=queue.name, group="Broken", klass="k")
    answer = calls_of(client).call(bulk.retry, choice, ["here", "there", "changed"])
    assert answer == (1, [])
    assert [client.job(jid).state for jid in ("here", "there", "changed")] == ["waiting", "failed", "failed"]
