"""Leases of several queues: their order, and globs."""

from collections import Counter

import pytest


@pytest.fixture
def cba(client):
    """Lease five jobs in A, two in B, three in C as C, B, A; return the queues of the jobs in order."""
    for queue, n in (("A", 5), ("B", 2), ("C", 3)):
        fill(client, queue, n)

    def served(order, batch, queues=("C", "B", "A")):
        found = ""
        while leases := client.lease("w", queues, batch, order=order):
            found += "".join(lease.queue for lease in leases)
        return found

    return served


def fill(client, queue, n):
    client.queue(queue).put_many({"klass": "k", "jid": f"{queue}{i}"} for i in range(n))


def jids(leases):
    return [lease.jid for lease in leases]


BATCHES = pytest.mark.parametrize("batch", [1, 2, 3, 4, 10])


# Strict and round-robin.


@BATCHES
def test_strict_empties_the_queues_in_their_order(cba, batch):
    assert cba("strict", batch) == "CCCBBAAAAA"


@BATCHES
def test_round_robin_takes_one_of_each_in_turn(cba, batch):
    assert cba("round-robin", batch) == "CBACBACAAA"


@BATCHES
def test_order_within_a_queue_never_changes(client, cba, batch):
    taken = []
    while leases := client.lease("w", ["C", "B", "A"], batch, order="round-robin"):
        taken += jids(leases)
    assert [jid for jid in taken if jid[0] == "A"] == ["A0", "A1", "A2", "A3", "A4"]


def test_round_robin_continues_after_the_workers_last_lease(client, cba):
    assert jids(client.lease("w", ["C", "B", "A"], 2, order="round-robin")) == ["C0", "B0"]
    assert jids(client.lease("v", ["C", "B", "A"], 1, order="round-robin")) == ["C1"]
    assert jids(client.lease("w", ["C", "B", "A"], 2, order="round-robin")) == ["A0", "C2"]
    assert jids(client.lease("v", ["C", "B", "A"], 1, order="round-robin")) == ["B1"]


def test_an_empty_lease_does_not_move_the_turn_on(client):
    fill(client, "A", 1)
    assert jids(client.lease("w", ["A", "B"], order="round-robin")) == ["A0"]
    assert client.lease("w", ["A", "B"], order="round-robin") == []
    fill(client, "A", 2)
    fill(client, "B", 1)
    assert jids(client.lease("w", ["A", "B"], order="round-robin")) == ["B0"]


def test_round_robin_restarts_when_its_last_queue_has_gone(client, cba):
    client.lease("w", ["C", "B", "A"], 1, order="round-robin")
    assert jids(client.lease("w", ["B", "A"], 2, order="round-robin")) == ["B0", "A0"]


def test_a_paused_or_full_queue_costs_no_turn(client, cba):
    client.queue("B").pause()
    client.config.set("max-concurrency-A", 1)
    assert cba("round-robin", 3) == "CACC"


def test_round_robin_includes_due_and_recurring_jobs(client, clock):
    client.queue("A").put("k", jid="due", delay=5)
    client.queue("B").recur("k", every=60, offset=5, jid="again")
    client.queue("C").put("k", jid="there")
    clock.tick(5)
    assert jids(client.lease("w", ["A", "B", "C"], 9, order="round-robin")) == ["due", "again-1", "there"]


@pytest.mark.parametrize("order", ["strict", "round-robin", "random", "weighted"])
def test_front_comes_first_in_every_order(client, cba, order):
    (held,) = client.lease("w", ["A"])
    client.queue("A").put("k", jid="urgent", priority=-9)
    held.release()
    taken = jids(client.lease("w", ["C", "B", "A"], 20, order=order))
    assert [jid for jid in taken if jid not in ("B0", "B1", "C0", "C1", "C2")][:2] == ["A0", "urgent"]
    assert len(taken) == 11


@pytest.mark.parametrize("order", ["strict", "round-robin", "random", "weighted"])
def test_every_order_gives_all_there_is_and_nothing_twice(cba, order):
    assert Counter(cba(order, 4)) == {"A": 5, "B": 2, "C": 3}


# The order `random`. The draws are the script's own, and the bounds are six standard deviations wide.


def test_random_gives_each_queue_with_work_the_same_chance(client):
    for queue in "AB":
        fill(client, queue, 1000)
    counts = Counter(lease.queue for lease in client.lease("w", ["A", "B"], 1000, order="random"))
    assert 405 < counts["A"] < 595


def test_weighted_gives_each_queue_its_share(client):
    for queue in "AB":
        fill(client, queue, 1000)
    counts = Counter(lease.queue for lease in client.lease("w", ["A:3", "B"], 1000, order="weighted"))
    assert 668 < counts["A"] < 832


def test_an_empty_queue_has_no_share_however_heavy(client):
    fill(client, "B", 3)
    assert jids(client.lease("w", ["A:1000", "B"], 3, order="weighted")) == ["B0", "B1", "B2"]


# Globs.


def test_glob_is_served_alphabetically_without_exclusions(client):
    for queue in ("email-b", "email-bulk", "other", "email-a"):
        fill(client, queue, 1)
    assert jids(client.lease("w", ["email-*", "!email-bulk"], 9)) == ["email-a0", "email-b0"]


def test_a_glob_goes_in_turns_and_by_weight_too(client):
    for queue in ("email-a", "email-b"):
        fill(client, queue, 2)
    taken = jids(client.lease("w", ["email-*"], 3, order="round-robin"))
    assert taken == ["email-a0", "email-b0", "email-a1"]
    assert jids(client.lease("w", ["email-*:7"], 9, order="weighted")) == ["email-b1"]


def test_new_queue_is_served_by_the_next_lease(client):
    fill(client, "email-a", 1)
    client.lease("w", ["email-*"], 9)
    fill(client, "email-new", 1)
    assert jids(client.lease("w", ["email-*"], 9)) == ["email-new0"]


def test_a_glob_that_matches_no_queue_gives_nothing(client):
    assert client.lease("w", ["email-*"]) == []
    fill(client, "other", 1)
    assert client.lease("w", ["email-*"]) == []


def test_queues_take_turns_beside_others_whose_jobs_do_not_start(client):
    client.limit("none", running=0)
    for name in ("x1", "x2", "x3", "x4"):
        client.queue(name).put("k", limit="none")
    for name in ("a", "b"):
        client.queue(name).put_many({"klass": "k"} for _ in range(8))
    found = client.lease("w", ["x1", "x2", "x3", "x4", "a", "b"], 4, order="round-robin")
    assert [lease.queue for lease in found] == ["a", "b", "a", "b"]
