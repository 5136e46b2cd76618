"""The shards of a namespace lie on several nodes of a Cluster: one that is away holds up no other."""

import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from divided import Shards
from scraping import Scraper

from tests import clusters


@pytest.fixture
def cluster(tmp_path_factory) -> Iterator[list[clusters.Node]]:
    """Three nodes. Each goes on without the others, as a Cluster should in which shards are to."""
    with clusters.nodes(tmp_path_factory.mktemp("s"), 3) as made:
        clusters.join(made)
        for node in made:
            node.redis.config_set("cluster-require-full-coverage", "no")
        yield made


@pytest.fixture
def spread(stage, cluster) -> Iterator[Shards]:
    """Sixteen shards over three nodes."""

    def server(shard):
        return node_of(cluster, stage.namespace, shard).redis

    with stage.at(SimpleNamespace(url=clusters.url_of(cluster), redis=server(0))):
        yield Shards(stage, server, 16).divide()


def node_of(cluster, namespace, shard):
    return clusters.holder(cluster, f"{namespace}#{shard}" if shard else namespace)


def away_and_present(shards, cluster):
    """Return a node that does not have the first shard, and the shards that it has and has not."""
    node = next(each for each in cluster if each is not node_of(cluster, shards.stage.namespace, 0))
    theirs = [k for k in range(shards.count) if node_of(cluster, shards.stage.namespace, k) is node]
    return node, theirs, [k for k in range(shards.count) if k not in theirs]


@pytest.mark.slow
def test_stopped_node_holds_up_no_shard_of_others(spread, cluster):
    shards, stage = spread, spread.stage
    pool = stage.start(processes=2, http="127.0.0.1:0").wait_ready()
    stage.wait_until_ended(shards.put_in_all("good.noop"))
    node, theirs, others = away_and_present(shards, cluster)
    held = shards.put("good.hold", shards.jid_in(theirs[0], 1), stage.gate("gate"))
    stage.wait_for_starts(held)
    node.process.send_signal(signal.SIGSTOP)
    pool.wait_for("redis.lost", nth=len(theirs))
    stage.wait_until_ended([shards.put("good.noop", shards.jid_in(shard, 2)) for shard in others])
    code, _text = Scraper(pool).get("/readyz")
    assert code == 503
    node.process.send_signal(signal.SIGCONT)
    pool.wait_for("redis.connected", nth=len(theirs), timeout_s=40.0)
    stage.open_gate("gate")
    stage.wait_until_ended([held, *(shards.put("good.noop", shards.jid_in(shard, 2)) for shard in theirs)])
    assert len(stage.ledger.starts(held)) == 1
    shards.drain(pool)


@pytest.mark.slow
def test_killed_node_comes_back_empty(spread, cluster):
    shards, stage = spread, spread.stage
    pool = stage.start(processes=2).wait_ready()
    stage.wait_until_ended(shards.put_in_all("good.noop"))
    node, theirs, others = away_and_present(shards, cluster)
    node.kill()
    pool.wait_for("redis.lost", nth=len(theirs))
    stage.wait_until_ended([shards.put("good.noop", shards.jid_in(shard, 2)) for shard in others])
    node.restart()
    clusters.until(lambda: node.says(b"cluster_state:ok"))
    stage.wait_until_ended([shards.put("good.noop", shards.jid_in(shard, 3)) for shard in range(shards.count)])
    shards.drain(pool)
