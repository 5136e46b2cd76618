"""Recurring jobs by interval and cron; test_recurring_times.py has the times of cron."""

import asyncio
import sys
import threading

import pytest

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import maintenance, recurrences
from supervisor.engine.model.errors import JobNotFound, LeaseholdError

MINUTE, HOUR, DAY = 60, 3600, 86_400
MIDNIGHT = 1_000_080_000.0 - 1_000_080_000.0 % DAY


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def leased(q):
    """Return the jobs of a lease, which complete at once."""

    def take(count=100):
        leases = q.lease("w", count)
        for lease in leases:
            lease.complete()
        return [lease.jid for lease in leases]

    return take


# Recurrences by interval.


def test_job_comes_at_once_and_then_at_every_interval(q, clock, leased):
    assert q.recur("k", {"n": 1}, every=60, jid="r") == "r"
    assert leased() == ["r-1"]
    assert leased() == []
    clock.tick(59.999)
    assert leased() == []
    clock.tick(0.001)
    assert leased() == ["r-2"]


def test_the_first_one_comes_after_the_offset(q, clock, leased):
    q.recur("k", every=60, offset=10, jid="r")
    assert leased() == []
    clock.tick(10)
    assert leased() == ["r-1"]
    clock.tick(60)
    assert leased() == ["r-2"]


def test_late_pickup_does_not_shift_the_times(client, q, clock, leased):
    q.recur("k", every=60, jid="r")
    start = clock.now
    for late in (1, 59, 0, 30):
        clock.now = start + late
        assert len(leased()) == 1
        start += 60
        assert client.recurring("r").next_unix == start


def test_jobs_have_the_options_of_their_recurrence(client, q, clock):
    options = {"priority": -2, "retries": 1, "timeout": 7, "max_deaths": 2, "tags": ["t", "u"]}
    q.recur("email.digest", [2**60, {}], every=60, jid="r", **options)
    clock.tick(5)
    (held,) = q.lease("w")
    job = client.job(held.jid)
    assert (held.jid, held.klass, held.data, held.tags) == ("r-1", "email.digest", [2**60, {}], ["t", "u"])
    assert (job.priority, job.retries, job.timeout_s, job.max_deaths) == (-2, 1, 7, 2)
    assert (job.spawned_from, job.put_unix, job.history[0]["when"]) == ("r", clock.now - 5, clock.now - 5)
    assert client.tagged("t")[0] == 1
    assert q.stats().wait.mean == 5


def test_each_job_of_a_recurrence_is_told_of_as_put(client, q, clock):
    clock.now = MIDNIGHT
    q.recur("k", every=60, jid="r")
    q.recur("k", cron="0 * * * *", jid="c")
    clock.tick(HOUR)
    with client.events() as events:
        q.lease("w", 100)
        heard = [events.get(5) for _ in range(61 * 2 + 1)]
    told = {event.jid for event in heard if event.name == "job.put"}
    assert told == {"c-1", *(f"r-{n}" for n in range(1, 62))}


def test_bytes_come_as_bytes(q):
    q.recur("k", b"\x00\xff", every=60)
    assert q.lease("w")[0].data == b"\x00\xff"


def test_recurring_jobs_line_up_by_priority(q, leased):
    q.put("k", jid="a", priority=1)
    q.recur("k", every=60, jid="low", priority=2)
    q.recur("k", every=60, jid="high", priority=0)
    assert leased() == ["high-1", "a", "low-1"]


def test_sweep_brings_recurring_jobs_too(client, q):
    q.recur("k", every=60, jid="r")
    client.sweep()
    assert [job.jid for job in q.jobs("waiting")] == ["r-1"]


def test_queries_put_no_recurring_jobs(client, q, server, namespace):
    q.recur("k", every=60, jid="r")
    before = server.dump(namespace)
    assert (q.peek(9), q.jobs("waiting"), q.counts().recurring, q.length()) == ([], [], 1, 0)
    assert client.recurring("r").count == 0
    assert server.dump(namespace) == before


def test_lease_takes_only_as_many_times_as_asked(q, clock, leased):
    q.recur("k", every=60, jid="r")
    clock.tick(4 * 60)
    assert [leased(2), leased(2), leased(2)] == [["r-1", "r-2"], ["r-3", "r-4"], ["r-5"]]


def test_an_empty_lease_knows_when_the_next_one_comes(live):
    live.queue("q").recur("k", every=60, offset=0.05)
    (held,) = live.queue("q").lease("w", block=20)
    assert held.complete()


# Missed.


@pytest.mark.parametrize(
    ("options", "run"),
    [
        ({}, ["r-1", "r-2", "r-3", "r-4", "r-5"]),
        ({"missed": "all"}, ["r-1", "r-2", "r-3", "r-4", "r-5"]),
        ({"missed": "once"}, ["r-1"]),
        ({"missed": "skip"}, ["r-1"]),
        ({"backlog": 0}, ["r-1"]),
        ({"backlog": 2}, ["r-1", "r-2", "r-3"]),
        ({"backlog": 99}, ["r-1", "r-2", "r-3", "r-4", "r-5"]),
    ],
)
def test_policy_limits_the_jobs_of_five_missed_times(client, q, clock, leased, options, run):
    q.recur("k", every=60, jid="r", **options)
    start = clock.now
    clock.tick(4 * 60 + 10)
    assert leased() == run
    assert client.recurring("r").next_unix == start + 5 * 60
    clock.tick(50)
    assert len(leased()) == 1


def test_missed_times_that_run_are_the_latest_ones(client, q, clock):
    q.recur("k", every=60, jid="r", backlog=1)
    start = clock.now
    clock.tick(4 * 60 + 10)
    client.sweep()
    assert [job.put_unix - start for job in q.jobs("waiting")] == [180, 240]


def test_only_times_over_a_minute_late_are_skipped(q, clock, leased):
    q.recur("k", every=HOUR, jid="r", missed="skip")
    clock.tick(60.001)
    assert leased() == []
    clock.tick(HOUR - 0.001)
    assert leased() == ["r-1"]


def test_paused_queue_misses_its_times(q, clock, leased):
    q.recur("k", every=60, jid="r", missed="once")
    q.pause()
    clock.tick(600)
    assert leased() == []
    q.unpause()
    assert leased() == ["r-1"]


# Exactly once.


@pytest.mark.parametrize("rhythm", [{"every": 60}, {"cron": "* * * * *"}])
def test_each_time_comes_once_however_many_ask_at_once(client, server, namespace, clock, rhythm):
    clock.now = MIDNIGHT
    client.queue("q").recur("k", jid="r", missed="all", **rhythm)
    clock.tick(60 * MINUTE)
    found, start = [], threading.Barrier(6)

    def ask(name, sweeps):
        with Client(server.url, namespace, clock) as other:
            start.wait()
            for _ in range(30):
                if sweeps:
                    other.sweep()
                found.extend(lease.jid for lease in other.queue("q").lease(name, 3))

    threads = [threading.Thread(target=ask, args=(f"w{i}", i % 2 == 0)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = 61 if "every" in rhythm else 60
    assert sorted(found, key=lambda jid: int(jid[2:])) == [f"r-{n}" for n in range(1, times + 1)]
    assert client.recurring("r").count == times


def test_death_of_a_worker_neither_repeats_nor_loses_its_jobs(client, q, clock):
    q.recur("k", every=60, jid="r")
    done = set()
    for round_ in range(20):
        leases = q.lease(f"w{round_}", 2, ttl=30)
        if round_ % 3:
            done |= {lease.jid for lease in leases if lease.complete()}
        clock.tick(60)
    while leases := q.lease("last", 9):
        done |= {lease.jid for lease in leases if lease.complete()}
    assert done == {f"r-{n}" for n in range(1, 22)}


def test_time_taken_by_another_worker_is_not_taken_again(client, q, clock):
    clock.now = MIDNIGHT
    q.recur("k", cron="0 * * * *", jid="r")
    clock.tick(HOUR)
    (due,) = calls_of(client).call(maintenance.sweep).due
    times = [due.due_unix]
    assert [calls_of(client).call(recurrences.spawn, due, times, MIDNIGHT + 2 * HOUR) for _ in range(2)] == [
        True,
        False,
    ]
    assert q.counts().waiting == 1


# Recurrences by cron.


def test_a_cron_comes_at_its_times_in_utc(client, q, clock, leased):
    clock.now = MIDNIGHT + 1
    q.recur("k", cron="*/5 * * * *", jid="r")
    assert client.recurring("r").next_unix == MIDNIGHT + 5 * MINUTE
    assert leased() == []
    clock.now = MIDNIGHT + 5 * MINUTE
    assert leased() == ["r-1"]
    assert client.recurring("r").next_unix == MIDNIGHT + 10 * MINUTE
    assert leased() == []


def test_a_cron_comes_at_the_times_of_its_zone(client, q, clock):
    clock.now = MIDNIGHT
    q.recur("k", cron="30 9 * * *", tz="Asia/Kolkata", jid="r")
    recurring = client.recurring("r")
    assert (recurring.next_unix - MIDNIGHT, recurring.tz) == (4 * HOUR, "Asia/Kolkata")


@pytest.mark.parametrize(
    ("options", "run"), [({}, 5), ({"missed": "once"}, 1), ({"missed": "skip"}, 0), ({"backlog": 2}, 3)]
)
def test_the_policy_for_missed_times_holds_for_crons(client, q, clock, leased, options, run):
    clock.now = MIDNIGHT
    q.recur("k", cron="0 * * * *", jid="r", **options)
    clock.now = MIDNIGHT + 5 * HOUR + 10 * MINUTE
    assert len(leased()) == run
    assert client.recurring("r").next_unix == MIDNIGHT + 6 * HOUR


def test_sweep_puts_cron_jobs_of_a_queue_without_workers(client, q, clock):
    clock.now = MIDNIGHT
    q.recur("k", cron="0 * * * *", jid="r")
    clock.tick(HOUR)
    client.sweep()
    assert [job.jid for job in q.jobs("waiting")] == ["r-1"]


# Shown, changed, ended.


def test_recurrence_is_shown_completely(client, q, clock):
    q.recur("k", [1], every=60, offset=5, jid="r", backlog=3, priority=2, tags=["t"])
    shown = client.recurring("r")
    assert (shown.queue, shown.klass, shown.data, shown.every_s, shown.cron) == ("q", "k", [1], 60, None)
    assert (shown.next_unix, shown.count, shown.missed, shown.backlog) == (clock.now + 5, 0, "all", 3)
    assert (shown.priority, shown.retries, shown.tags) == (2, 5, ["t"])
    assert [one.jid for one in q.jobs("recurring")] == ["r"]
    assert (client.recurring("nobody"), q.counts().recurring) == (None, 1)


def test_recurrence_and_its_jobs_have_jids_of_their_own(client, q, leased):
    q.put("k", jid="r")
    q.put("k", jid="r-1")
    q.recur("k", every=60, jid="r")
    found = leased()
    assert found[:2] == ["r", "r-1"]
    assert found[2].startswith("r-") and len(set(found)) == 3


def test_update_changes_only_what_is_given(client, q, clock, leased):
    q.recur("k", [1], every=60, jid="r", priority=2, tags=["t"])
    leased()
    client.recurring("r").update(queue="other", klass="k2", data=b"2", priority=0, retries=1, missed="once", tags=[])
    clock.tick(180)
    assert leased() == []
    (held,) = client.queue("other").lease("w", 9)
    assert (held.jid, held.klass, held.data, held.priority, held.retries, held.tags) == ("r-2", "k2", b"2", 0, 1, [])
    assert (q.counts().recurring, client.queue("other").counts().recurring) == (0, 1)


@pytest.mark.parametrize("every", [100, 20])
def test_changed_interval_moves_the_next_time_by_the_difference(client, q, clock, leased, every):
    q.recur("k", every=60, jid="r")
    leased()
    clock.tick(10)
    client.recurring("r").update(every=every)
    assert client.recurring("r").next_unix == clock.now - 10 + every


def test_an_update_with_an_offset_counts_from_now(client, q, clock):
    q.recur("k", every=60, jid="r")
    client.recurring("r").update(every=30, offset=7)
    assert client.recurring("r").next_unix == clock.now + 7


def test_an_interval_becomes_a_cron_and_back(client, q, clock):
    clock.now = MIDNIGHT + 1
    q.recur("k", every=60, jid="r")
    client.recurring("r").update(cron="0 * * * *")
    shown = client.recurring("r")
    assert (shown.every_s, shown.cron, shown.next_unix) == (None, "0 * * * *", MIDNIGHT + HOUR)
    shown.update(every=60, offset=0)
    shown = client.recurring("r")
    assert (shown.every_s, shown.cron, shown.next_unix) == (60, None, clock.now)


def test_recur_of_a_known_jid_keeps_only_the_count(client, q, clock, leased):
    q.recur("k", [1], every=60, jid="r", priority=2, tags=["t"])
    leased()
    client.queue("other").recur("k2", every=30, jid="r")
    shown = client.recurring("r")
    assert (shown.queue, shown.klass, shown.data, shown.every_s, shown.priority, shown.tags) == (
        "other", "k2", None, 30, 0, [],
    )  # fmt: skip
    assert [lease.jid for lease in client.queue("other").lease("w")] == ["r-2"]


def test_removed_recurrence_leaves_its_jobs(client, q, clock, keys):
    q.recur("k", every=60, jid="r", tags=["t"])
    client.sweep()
    recurring = client.recurring("r")
    assert [client.unrecur("r"), client.unrecur("r"), recurring.cancel()] == [True, False, False]
    clock.tick(600)
    assert [lease.jid for lease in q.lease("w", 9)] == ["r-1"]
    assert (client.recurring("r"), q.jobs("recurring")) == (None, [])
    assert not {key for key in keys() if key.startswith("recur")}
    with pytest.raises(LeaseholdError):
        recurring.update(priority=1)
    assert client.recurring("r") is None


def test_a_tag_is_added_for_the_jobs_to_come(client, q, clock):
    q.recur("k", every=60, jid="r", tags=["a"], priority=3)
    client.sweep()
    recurring = client.recurring("r")
    assert recurring.tag("b", "a", "c", "b") == ["a", "b", "c"]
    clock.tick(60)
    first, second = q.lease("w", 9)
    assert [first.jid, first.tags, second.jid, second.tags] == ["r-1", ["a"], "r-2", ["a", "b", "c"]]
    now = client.recurring("r")
    assert (now.tags, now.priority, now.count) == (["a", "b", "c"], 3, 2)


def test_concurrent_tag_changes_lose_none(client, q):
    q.recur("k", every=60, jid="r")
    one, other = client.recurring("r"), client.recurring("r")
    assert [one.tag("a"), other.tag("b")] == [["a"], ["a", "b"]]
    assert client.recurring("r").tags == ["a", "b"]


def test_removing_the_last_tag_leaves_no_key(client, q, clock, keys):
    q.recur("k", every=60, jid="r", tags=["a", "b"])
    recurring = client.recurring("r")
    assert [recurring.untag("a", "unknown"), recurring.untag("b"), recurring.untag("b")] == [["b"], [], []]
    assert {key for key in keys() if key.startswith("recur")} == {"recur:r", "recurdata:r"}
    client.sweep()
    assert (client.recurring("r").tags, client.jobs("r-1")[0].tags, client.check()) == ([], [], [])
    assert recurring.tag("c") == ["c"]
    clock.tick(60)
    client.sweep()
    assert (client.jobs("r-2")[0].tags, client.check()) == (["c"], [])


def test_a_recurrence_has_at_most_a_hundred_tags(client, q):
    q.recur("k", every=60, jid="r", tags=[str(n) for n in range(99)])
    recurring = client.recurring("r")
    assert len(recurring.tag("last")) == 100
    with pytest.raises(LeaseholdError, match="recurring job r cannot have more than 100 tags"):
        recurring.tag("one-more")
    assert client.recurring("r").tags == [*(str(n) for n in range(99)), "last"]


def test_removed_recurrence_has_no_tags(client, q, keys):
    q.recur("k", every=60, jid="r")
    recurring = client.recurring("r")
    client.unrecur("r")
    before = keys()
    for change in (recurring.tag, recurring.untag):
        with pytest.raises(JobNotFound, match="no job r"):
            change("a")
    assert keys() == before


def test_an_async_recurring_job_is_tagged_likewise(server, namespace, clock):
    async def main():
        async with AsyncClient(server.url, namespace, clock) as client:
            await client.queue("q").recur("k", every=60, jid="r")
            recurring = await client.recurring("r")
            assert [await recurring.tag("a", "b"), await recurring.untag("a")] == [["a", "b"], ["b"]]
            assert (await client.recurring("r")).tags == ["b"]
            await recurring.cancel()
            for change in (recurring.tag, recurring.untag):
                with pytest.raises(JobNotFound, match="no job r"):
                    await change("a")

    asyncio.run(main())


def test_recurrence_after_unrecur_counts_from_one(client, q):
    for _ in range(2):
        q.recur("k", every=60, jid="r")
        assert client.recurring("r").count == 0
        client.sweep()
        assert client.recurring("r").count == 1
        assert client.cancel("r-1") == ["r-1"]
        client.unrecur("r")


def test_new_count_skips_jids_of_earlier_jobs(client, q):
    q.recur("k", [1], every=60, jid="r")
    client.sweep()
    client.unrecur("r")
    q.recur("k", [2], every=60, jid="r")
    client.sweep()
    first, second = q.lease("w", 9)
    assert (first.jid, first.data, second.data) == ("r-1", [1], [2])
    assert second.jid != "r-1" and second.jid.startswith("r-")
    assert client.recurring("r").count == 1


def test_jobs_keep_their_dependencies_after_an_update(client, q, clock):
    q.recur("k", [1], every=60, jid="r")
    client.sweep()
    client.recurring("r").update(data=[2])
    assert client.job("r-1").data == [1]


def test_jid_leaves_room_for_job_numbers(client, q, keys):
    with pytest.raises(ValueError, match="jid"):
        q.recur("k", every=60, jid="r" * 49)
    assert keys() == set()
    q.recur("k", every=60, jid="r" * 48)
    (held,) = q.lease("w")
    assert client.job(held.jid).spawned_from == "r" * 48


def test_tags_of_a_recurrence_are_bounded(q, keys):
    with pytest.raises(ValueError, match="tags"):
        q.recur("k", every=60, tags=[f"t{i}" for i in range(101)])
    assert keys() == set()


def test_leased_jobs_survive_a_missing_cronsim(client, q, clock, monkeypatch):
    clock.now = MIDNIGHT
    q.recur("k", cron="0 * * * *", jid="r")
    q.put("k", jid="x")
    clock.tick(HOUR)
    monkeypatch.setitem(sys.modules, "cronsim", None)
    assert [lease.jid for lease in q.lease("w", 9)] == ["x"]


@pytest.mark.parametrize("bad", [{}, {"every": 0}, {"every": -1}, {"cron": "* * *"}, {"every": 1, "cron": "* * * * *"}])
def test_invalid_recurrence_is_refused_and_nothing_written(q, keys, bad):
    with pytest.raises(ValueError, match=r"every|cron"):
        q.recur("k", **bad)
    assert keys() == set()


def test_count_goes_on_beside_jobs_of_an_earlier_recurrence(client, clock):
    q = client.queue("q")
    for _ in range(2):
        q.recur("k", every=1, jid="r", offset=1)
        clock.tick(4)
        client.sweep()
        assert client.recurring("r").count == 4
        client.unrecur("r")
    assert q.counts().waiting == 8
