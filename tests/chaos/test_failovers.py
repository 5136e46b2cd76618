"""Primaries are lost again and again, while supervisors work and producers put: what replicas have acknowledged is
there afterwards, and has ended once. TEST_FULL=1: 200 times.
"""

import signal
import time
from collections import Counter
from contextlib import contextmanager
from itertools import cycle, islice
from types import SimpleNamespace

import pytest

from tests import clusters, sentinels
from tests.chaos.failovers import Puts, await_leases, elections, producing, table
from tests.lengths import FULL, LONG, PATIENCE

REPLICAS = 2
LOSSES = 200 if FULL else 4
#: Losses, and moves of the slot.
MOVES = 200 if FULL else 4
#: Longest time from the end of the election until jobs are leased again.
FOLLOWED_S = 5.0 * PATIENCE

#: The number of unacknowledged puts that are lost is a figure, not a promise.
acknowledged_or_not = pytest.mark.parametrize(
    "is_acknowledged",
    [True, pytest.param(False, marks=pytest.mark.skipif(not LONG, reason="it needs many losses to tell"))],
    ids=["acknowledged", "unacknowledged"],
)


@pytest.fixture
def start(stage, runs):
    """Starts a supervisor that works under load, and waits until it is ready."""

    def start(**flags):
        environment = runs.environment(len(stage.pools) + 1)
        return stage.start(environment=environment, processes=2, jobs_per_child=0, **flags).wait_ready()

    return start


def assert_all_is_there(puts, runs, failovers, is_acknowledged, measured):
    """Hold the accounts against each other, and say what they tell."""
    runs.sync()
    for line in table(failovers):
        measured(line)
    starts = Counter(run.jid for run in runs.all)
    again = [jid for jid, count in starts.items() if count > 1]
    once = [jid for jid in again if jid.startswith("once")]
    measured(f"{len(starts)} jobs, {len(again)} of them started again, {len(once)} of which were at-most-once")
    for each in puts:
        measured(each.account())
        assert [jid for jid in each.of("refused") if jid in each.ended] == [], "nothing had changed"
        if is_acknowledged:
            assert (each.lost(), each.completed_twice()) == ([], set())
    assert not (is_acknowledged and once)
    assert max(each.first_lease_s for each in failovers) <= FOLLOWED_S


@pytest.fixture
def group(tmp_path_factory):
    with sentinels.group(tmp_path_factory.mktemp("s"), REPLICAS, is_wired=True) as made:
        yield made


@pytest.fixture
def group_stage(stage, group):
    with stage.at(group):
        yield stage


def lose(primary, how):
    """Lose a server. Return when (unix s)."""
    began_unix = time.time()
    match how:
        case "killed":
            primary.kill()
        case "stopped" | "paused":
            primary.send(signal.SIGSTOP)
        case "cut off":
            primary.cut_off()
    return began_unix


def go_on_until_demoted(group, paused):
    """Have a server go on as the primary that it is no longer. Return when it is demoted (unix s)."""
    paused.send(signal.SIGCONT)
    if not LONG:
        group.demote(paused)
    clusters.until(lambda: paused.role() == "slave")
    return time.time()


def bring_back(group, lost, how):
    """Have all servers be there again, the lost one as a replica."""
    match how:
        case "killed":
            group.join(lost)
        case "stopped" | "paused":
            lost.send(signal.SIGCONT)
        case "cut off":
            lost.reconnect()
    if not LONG:
        group.demote(lost)
    group.await_replicas()


@pytest.mark.full
@pytest.mark.timeout(14_400)
@acknowledged_or_not
def test_acknowledged_jobs_outlive_every_primary(group_stage, group, runs, start, measured, is_acknowledged):
    stage, failovers = group_stage, []
    acknowledge = REPLICAS if is_acknowledged else 0
    pools = [start(acknowledge=acknowledge) for _ in range(2)]
    with (
        elections(group.sentinels) as heard,
        producing(stage, [stage.namespace] * 2, acknowledge) as files,
    ):
        puts = Puts(stage, stage.namespace, pools, files)
        assert runs.wait_for(50, 30)
        for how in islice(cycle(("killed", "stopped", "cut off", "paused")), LOSSES):
            lost = group.primary()
            since_unix = heard.wait_for_one_after(lose(lost, how))
            if how == "paused":
                since_unix = go_on_until_demoted(group, lost)
            failovers.append(await_leases(stage, pools, how, since_unix))
            bring_back(group, lost, how)
            puts.collect()
    puts.wait_until_ended()
    assert [pool.drain() for pool in pools] == [0, 0]
    puts.collect()
    assert_all_is_there([puts], runs, failovers, is_acknowledged, measured)
    stage.assert_nothing_left()


@pytest.fixture
def cluster(tmp_path_factory):
    """Three primaries with a replica each."""
    with clusters.nodes(tmp_path_factory.mktemp("s"), 6) as made:
        clusters.join(made[:3])
        for replica, of in zip(made[3:], made[:3], strict=True):
            clusters.add_replica(made[:3], replica, of)
        yield made


@pytest.fixture
def cluster_stage(stage, cluster):
    with stage.at(SimpleNamespace(url=clusters.url_of(cluster), redis=cluster[0].redis)):
        yield stage


def one_in_each(cluster, name):
    """Return namespaces, one in each of the primaries."""
    found = {}
    for number in range(100):
        found.setdefault(clusters.holder(cluster[:3], f"{name}-{number}"), f"{name}-{number}")
    return list(found.values())


@contextmanager
def moved(cluster, namespace, how):
    """Have another node be the owner of a namespace. Yields since when (unix s). At the end all are there again."""
    before = clusters.owner(cluster, namespace)
    others = [node for node in cluster if node is not before]
    match how:
        case "killed":
            before.kill()
        case "stopped":
            before.process.send_signal(signal.SIGSTOP)
        case "handed over":
            replica = clusters.replica_of(others, before)
            replica.redis.execute_command("CLUSTER", "FAILOVER")
        case "moved":
            primaries = [node for node in cluster if node.redis.role()[0] == b"master"]
            target = next(node for node in primaries if node is not before)
            clusters.move_namespace(primaries, namespace, before, target)
    clusters.until(lambda: all(_is_elsewhere(node, namespace, before) for node in others))
    yield time.time()
    match how:
        case "killed":
            before.restart()
        case "stopped":
            before.process.send_signal(signal.SIGCONT)
    clusters.until(lambda: sum(node.redis.role()[0] == b"slave" for node in cluster) == 3)
    for node in cluster:
        clusters.until(lambda node=node: node.redis.role()[0] == b"master" or node.redis.role()[3] == b"connected")


def _is_elsewhere(node, namespace, before):
    """Return whether this node knows that another one has the namespace."""
    return node.says(b"cluster_state:ok") and clusters.port_of_owner(node, namespace) != before.port


@pytest.mark.full
@pytest.mark.timeout(14_400)
@acknowledged_or_not
def test_acknowledged_jobs_outlive_moves_in_a_cluster(cluster_stage, cluster, runs, start, measured, is_acknowledged):
    stage, failovers = cluster_stage, []
    acknowledge = 1 if is_acknowledged else 0
    namespaces = one_in_each(cluster, stage.namespace)
    pools = [start(namespace=each, acknowledge=acknowledge) for each in namespaces]
    with producing(stage, namespaces, acknowledge) as files:
        puts = [
            Puts(stage, *each)
            for each in zip(namespaces, [[one] for one in pools], [[one] for one in files], strict=True)
        ]
        assert runs.wait_for(50, 30)
        ways = cycle(("killed", "moved", "stopped", "handed over"))
        for n, how in enumerate(islice(ways, MOVES)):
            with moved(cluster, namespaces[n % 3], how) as moved_unix:
                failovers.append(await_leases(stage, [pools[n % 3]], how, moved_unix))
            for each in puts:
                each.collect()
    for each in puts:
        each.wait_until_ended()
    assert [pool.drain() for pool in pools] == [0, 0, 0]
    for each in puts:
        each.collect()
    assert_all_is_there(puts, runs, failovers, is_acknowledged, measured)
    for each in namespaces:
        stage.prefix, stage.server.redis = f"{{{each}}}:", clusters.owner(cluster, each).redis
        stage.assert_nothing_left()
