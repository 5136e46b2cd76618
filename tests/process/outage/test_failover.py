"""Another server becomes the primary, as sentinels or the nodes of a Cluster say: supervisors and clients follow."""

import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from supervised import Stage

from supervisor import Client, LeaseholdError
from tests import clusters, sentinels
from tests.lengths import PATIENCE, SOON_S

#: Longest time from the end of the election until jobs run again.
FOLLOWED_S = 5.0 * PATIENCE


@pytest.fixture
def group(tmp_path_factory) -> Iterator[sentinels.Group]:
    with sentinels.group(tmp_path_factory.mktemp("s")) as made:
        yield made


@pytest.fixture
def group_stage(stage, group) -> Iterator[Stage]:
    """The stage, with a server that sentinels watch."""
    with stage.at(group):
        yield stage


def put_as_soon_as_possible(stage, klass):
    """Put a job by a new client: the old one waits for 3 s where the server hangs."""
    deadline_at = time.monotonic() + SOON_S
    with Client(stage.server.url, stage.namespace) as client:
        while True:
            try:
                return client.queue("default").put(klass)
            except LeaseholdError:
                assert time.monotonic() < deadline_at
                time.sleep(0.02)  # no event tells that there is a primary again


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped", "demoted"])
def test_jobs_run_on_the_new_primary_within_five_seconds(group_stage, group, measured, how):
    stage = group_stage
    pool = stage.start(processes=2).wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    stage.wait_until_heard(1)
    old = group.primary()
    old.redis.wait(2, 1000)
    if how == "demoted":
        group.fail_over()
    else:
        old.send(signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
        group.await_election(old)
    began_at = time.monotonic()
    jid = put_as_soon_as_possible(stage, "good.noop")
    stage.wait_until_ended([jid])
    took_s = time.monotonic() - began_at
    measured(f"{how}: from the election to the end of a job that was put then: {took_s:.2f} s")
    assert took_s < FOLLOWED_S
    stage.open_gate("gate")
    stage.wait_until_ended([held])
    assert len(stage.ledger.starts(held)) == 1, "its lease was resumed"
    assert len(pool.find("redis.lost")) <= 3 and len(pool.find("redis.connected")) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_idle_supervisor_notices_that_its_server_was_replaced(group_stage, group):
    stage = group_stage
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_ended([stage.queue.put("good.noop")])
    old = group.primary()
    old.send(signal.SIGSTOP)
    group.await_election(old)
    began_at = time.monotonic()
    pool.wait_for("redis.connected")
    assert time.monotonic() - began_at < FOLLOWED_S
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.fixture
def cluster(tmp_path_factory) -> Iterator[list[clusters.Node]]:
    """Four nodes of a Cluster. The last one has no slots: it is to become a replica."""
    with clusters.nodes(tmp_path_factory.mktemp("s"), 4) as made:
        clusters.join(made[:3])
        yield made


@pytest.fixture
def cluster_stage(stage, cluster) -> Iterator[Stage]:
    """The stage, in a Cluster."""
    node = clusters.holder(cluster[:3], stage.namespace)
    with stage.at(SimpleNamespace(url=clusters.url_of(cluster[:1]), redis=node.redis)):
        yield stage


@pytest.mark.slow
def test_jobs_run_where_the_slot_has_moved(cluster_stage, cluster):
    stage = cluster_stage
    pool = stage.start(processes=2).wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    stage.wait_until_heard(1)
    source = clusters.holder(cluster[:3], stage.namespace)
    target = next(node for node in cluster[:3] if node is not source)
    clusters.move_namespace(cluster[:3], stage.namespace, source, target)
    stage.server.redis = target.redis
    began_at = time.monotonic()
    stage.wait_until_ended([put_as_soon_as_possible(stage, "good.noop")])
    assert time.monotonic() - began_at < FOLLOWED_S
    stage.open_gate("gate")
    with Client(target.url, stage.namespace) as stage.client:
        stage.wait_until_ended([held])
    assert len(stage.ledger.starts(held)) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.slow
def test_jobs_run_on_the_replica_of_a_dead_node(cluster_stage, cluster, measured):
    stage, replica = cluster_stage, cluster[3]
    dead = clusters.holder(cluster[:3], stage.namespace)
    clusters.add_replica(cluster[:3], replica, dead)
    stage.server.url = clusters.url_of(cluster)
    pool = stage.start(processes=2).wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    stage.wait_until_heard(1)
    dead.redis.wait(1, 5000)
    dead.process.kill()
    clusters.until(lambda: replica.redis.role()[0] == b"master")
    others = [node for node in cluster if node is not dead]
    clusters.until(lambda: all(node.says(b"cluster_state:ok") for node in others))
    stage.server.redis = replica.redis
    began_at = time.monotonic()
    stage.wait_until_ended([put_as_soon_as_possible(stage, "good.noop")])
    took_s = time.monotonic() - began_at
    measured(f"from the replica's election to the end of a job that was put then: {took_s:.2f} s")
    assert took_s < FOLLOWED_S
    stage.open_gate("gate")
    stage.wait_until_ended([held])
    assert len(stage.ledger.starts(held)) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()
