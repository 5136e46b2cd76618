"""A lease of many queues passes over the quiet ones, and misses nothing in them."""

import pytest

from supervisor.engine.commands import leasing
from tests.engine.invariants import read_namespace

NAMES = [f"q{n:02}" for n in range(40)]
IN_TURN = pytest.mark.parametrize("order", ["strict", "round-robin", "random", "weighted"])


@pytest.fixture
def quiet(client, server, namespace):
    """Have all queues known and quiet. Return the names of those that still are."""

    def names():
        return set(read_namespace(server.redis, namespace).get("quiet", ()))

    for name in NAMES:
        client.queue(name).put("k")
    for lease in client.lease("w", NAMES, 1000):
        lease.complete()
    assert client.lease("w", NAMES) == []
    assert names() == set(NAMES)
    return names


@pytest.fixture
def lease(client, clock):
    """Return what a lease of all queues grants."""

    def grant(count=1, **options):
        command = leasing.lease("w", NAMES, count, now=clock.now, **options)
        return client._store.run(command)

    return grant


def jids(grant):
    return [one.jid for one in grant.leases]


def test_quiet_queues_are_not_read(quiet, server, lease):
    before = sum(server.calls(command) for command in ("exists", "zrange", "llen"))
    assert jids(lease()) == []
    assert sum(server.calls(command) for command in ("exists", "zrange", "llen")) <= before + 3


@IN_TURN
def test_a_put_into_a_quiet_queue_is_leased(client, quiet, lease, order):
    client.queue("q17").put("k", jid="one")
    assert quiet() == set(NAMES) - {"q17"}
    assert jids(lease(order=order)) == ["one"]
    assert jids(lease(order=order)) == []


def test_a_known_job_that_is_put_again_is_leased(client, quiet, lease):
    client.queue("q17").put("k", jid="one", tags=["t"])
    assert jids(lease()) == ["one"]
    client.queue("q23").put("k", jid="one", tags=["t"])
    assert jids(lease()) == ["one"]


def test_strict_order_holds_among_all_queues(client, quiet, lease):
    for name in ("q31", "q05", "q17"):
        client.queue(name).put("k", jid=name)
    assert jids(lease(2)) == ["q05", "q17"]
    client.queue("q02").put("k", jid="q02")
    assert jids(lease(2)) == ["q02", "q31"]


def test_turns_go_on_behind_a_queue_that_is_quiet_by_now(client, quiet, lease):
    for name in ("q05", "q17", "q31"):
        client.queue(name).put_many({"klass": "k", "jid": f"{name}-{n}"} for n in range(1 + (name != "q17")))
    assert jids(lease(2, order="round-robin")) == ["q05-0", "q17-0"]
    client.cancel("q17-0")
    assert client.lease("v", NAMES[10:25]) == []
    assert "q17" in quiet()
    assert jids(lease(1, order="round-robin")) == ["q31-0"]
    assert jids(lease(2, order="round-robin")) == ["q05-1", "q31-1"]


def test_turns_begin_anew_behind_a_queue_that_is_served_no_more(client, quiet, lease):
    client.queue("other").put("k", jid="last")
    client.lease("w", ["other", "q00"], order="round-robin")
    for name in ("q05", "q17"):
        client.queue(name).put("k", jid=name)
    assert jids(lease(1, order="round-robin")) == ["q05"]


def test_weights_are_those_of_the_queues_that_are_left(client, quiet, lease):
    for name in ("q05", "q17"):
        client.queue(name).put_many({"klass": "k", "jid": f"{name}-{n}"} for n in range(200))
    given = lease(100, order="weighted", weights={"q05": 1, "q17": 1000})
    assert sum(jid.startswith("q17") for jid in jids(given)) > 90


# Times.


@IN_TURN
def test_due_jobs_and_recurrences_end_the_quiet(client, clock, quiet, lease, order):
    client.queue("q03").put("k", jid="due", delay=50)
    client.queue("q09").recur("k", every=60, offset=20, jid="again")
    client.queue("q11").put("k", jid="much-later", delay=900)
    for _ in range(2):
        grant = lease(order=order)
        assert (jids(grant), grant.next_at_unix) == ([], clock.now + 20)
        assert quiet() == set(NAMES)
    clock.tick(20)
    assert jids(lease()) == ["again-1"]
    clock.tick(30)
    assert jids(lease()) == ["due"]


def test_an_earlier_time_ends_the_quiet(client, clock, quiet, lease):
    client.queue("q03").put("k", jid="late", delay=50)
    lease()
    client.queue("q03").put("k", jid="early", delay=10)
    assert "q03" not in quiet()
    assert lease().next_at_unix == clock.now + 10


def test_a_time_that_this_very_lease_brings_ends_the_quiet(client, clock, quiet, lease):
    client.queue("q17").put("k", jid="parent", max_deaths=1)
    client.queue("q03").put("k", jid="child", depends=["parent"], on_parent_failure="run", delay=50)
    client.lease("v", ["q17"])
    lease()
    client.queue("q03").put("k", jid="cancelled")
    client.cancel("cancelled")
    clock.tick(35)
    assert jids(lease()) == []
    assert client.failed() == {"died:lost": 1}
    assert "q03" not in quiet()
    assert lease().next_at_unix == clock.now + 15


def test_a_recurrence_by_cron_is_reported_until_its_job_is_put(client, clock, quiet, lease):
    client.queue("q09").recur("k", cron="* * * * *", tz="UTC", jid="again")
    lease()
    clock.tick(60)
    for _ in range(2):
        assert [due.jid for due in lease().due] == ["again"]


def test_an_expired_lease_is_taken_over(client, clock, quiet, lease):
    client.queue("q17").put("k", jid="one")
    client.lease("v", ["q17"])
    for _ in range(2):
        assert jids(lease()) == []
        assert "q17" not in quiet()
    clock.tick(35)
    assert jids(lease()) == ["one"]


def test_full_worker_tells_others_of_jobs_due_in_quiet_queues(client, clock, quiet, lease, server, namespace):
    client.queue("q30").put("k", jid="soon", delay=20)
    lease()
    assert "q30" in quiet()
    client.queue("q05").put("k", jid="now")
    assert jids(lease(woken=True)) == ["now"]
    assert server.redis.llen(f"{{{namespace}}}:bell:q30") == 1
    client.queue("q30").put("k", jid="meanwhile")
    assert jids(lease()) == ["meanwhile"]


# Jobs that come into a quiet queue without a put.


def test_an_entry_ends_the_quiet(quiet, server, namespace, lease):
    for name in ("q31", "q17"):
        server.redis.lpush(f"{{{namespace}}}:in:{name}", f'{{"klass":"k","jid":"{name}"}}')
    assert jids(lease(2)) == ["q17", "q31"]


def test_freed_jobs_are_leased(client, quiet, lease):
    client.limit("one", running=1)
    client.queue("q04").put("k", jid="running", limit="one")
    assert jids(lease()) == ["running"]
    client.queue("q17").put("k", jid="held", limit="one", lane="x")
    client.config.set("max-concurrency-q17", 1)
    client.queue("q17").put("k", jid="first")
    lease()
    client.queue("q17").pause()
    client.queue("q17").lane("x").pause()
    lease()
    for undo in (
        lambda: client.queue("q17").unpause(), lambda: client.config.unset("max-concurrency-q17"),
        lambda: client.queue("q17").lane("x").unpause(), lambda: client.cancel("running", "first"),
    ):  # fmt: skip
        assert jids(lease()) == []
        undo()
    assert jids(lease()) == ["held"]


def test_parents_that_end_free_jobs_of_quiet_queues(client, quiet, lease):
    client.queue("q04").put("k", jid="parent")
    client.queue("q17").put("k", jid="child", depends=["parent"])
    (parent,) = client.lease("w", NAMES)
    lease()
    assert "q17" in quiet()
    assert parent.complete()
    assert jids(lease()) == ["child"]


# Notes of quiet queues.


@pytest.mark.parametrize("lane", [None, "x"], ids=["quick", "whole"])
def test_a_full_lease_reads_no_queue_for_which_a_worker_is_woken(client, quiet, server, lease, lane):
    for name in NAMES:
        client.queue(name).put("k", jid=name, lane=lane if name == "q00" else None)
    before = server.calls("zrange")
    assert jids(lease(woken=True)) == ["q00"]
    assert server.calls("zrange") <= before + len(NAMES) // 2


def test_a_full_lease_notes_nothing(client, quiet, lease):
    for name in ("q05", "q17"):
        client.queue(name).put("k", jid=name)
    client.cancel("q17")
    assert jids(lease(1)) == ["q05"]
    assert "q17" not in quiet()
    client.queue("q17").put("k", jid="again")
    assert jids(lease()) == ["again"]


def test_queues_that_are_not_known_are_not_noted(client, quiet):
    assert client.lease("w", [f"unknown-{n}" for n in range(20)]) == []
    assert quiet() == set(NAMES)


def test_leases_of_few_queues_note_nothing(client, server, namespace):
    client.queue("q").put("k")
    client.lease("w", ["q", "r"], 2)
    assert "quiet" not in read_namespace(server.redis, namespace)


def test_a_deleted_queue_is_forgotten(client, quiet):
    client.queue("q17").delete()
    assert quiet() == set(NAMES) - {"q17"}
