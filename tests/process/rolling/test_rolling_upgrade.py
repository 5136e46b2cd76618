"""Supervisors and clients of the release before work beside those of this one, as long as both have the same layout."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervised import HERE, ROOT, Pool, Stage

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import data_schemas
from tests.lengths import LONG, PATIENCE

#: The code before the addresses of sentinels and Clusters. Both have layout 2.
BEFORE = "7dea7c180bcab1705ea766a683d2567100649a2b"
JOBS = 20_000 if LONG else 600

PRODUCER = """
import sys
from supervisor import Client

url, namespace, count, name = sys.argv[1:]
with Client(url, namespace) as client:
    jobs = ({"klass": "good.noop", "jid": f"{name}-{n}", "retries": 0} for n in range(int(count)))
    client.queue("default").put_many(jobs)
"""


@pytest.fixture(scope="session")
def before(tmp_path_factory) -> Path:
    """Return a directory with the package of the release before."""
    directory = tmp_path_factory.mktemp("before")
    packed = subprocess.run(["git", "-C", ROOT, "archive", BEFORE, "supervisor"], capture_output=True, check=False)
    if packed.returncode:
        pytest.skip("the history of the repository is not here")
    subprocess.run(["tar", "-x", "-C", directory], input=packed.stdout, check=True)
    return directory


class Releases:
    """Starts programs of either release."""

    def __init__(self, stage: Stage, before: Path) -> None:
        self._stage = stage
        self._paths = {"before": before, "this": ROOT}
        self._names = itertools.count()

    def supervisor(self, release: str) -> Pool:
        environment = {"PYTHONPATH": f"{self._paths[release]}:{HERE}"}
        return self._stage.start(processes=2, jobs_per_child=0, environment=environment).wait_ready()

    def put(self, release: str, count: int) -> list[str]:
        """Put jobs by a client of this release, and return their jids."""
        name, stage = f"{release}{next(self._names)}", self._stage
        words = [sys.executable, "-c", PRODUCER, stage.server.url, stage.namespace, str(count), name]
        subprocess.run(words, env={"PYTHONPATH": str(self._paths[release])}, check=True, timeout=300)
        return [f"{name}-{n}" for n in range(count)]


@pytest.fixture
def releases(stage, before) -> Iterator[Releases]:
    yield Releases(stage, before)


@pytest.mark.slow
@pytest.mark.parametrize("way", [("before", "this"), ("this", "before")], ids=["up", "down"])
def test_releases_replace_each_other_under_load_and_lose_nothing(stage, releases, way):
    first, then = way
    pools, jids = [releases.supervisor(first) for _ in range(2)], []
    for _ in range(2):
        for release in way:
            jids += releases.put(release, JOBS // 8)
        pools.append(releases.supervisor(then))
        for release in way:
            jids += releases.put(release, JOBS // 8)
        assert pools.pop(0).drain() == 0
    stage.wait_until_counted(lambda: not any((stage.queue.length(), stage.queue.counts().running)), timeout_s=120)
    assert set(stage.states(jids)) == {"complete"}
    assert sorted(stage.ledger.order()) == sorted(jids), "each has started once"
    assert stage.client.check() == []
    for pool in pools:
        assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.slow
def test_stream_ends_with_a_job_that_the_release_before_runs(stage, releases):
    (jid,) = releases.put("this", 1)
    stream = stage.client.stream(jid, timeout=60 * PATIENCE)
    pool = releases.supervisor("before")
    assert (list(stream), stream.state) == ([], "complete")
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_check_of_the_release_before_leaves_schemas_alone(stage, before):
    stage.client.queue("default").put("k", jid="a")
    calls_of(stage.client).run(data_schemas.describe((), {"bf21a9e8fbc5a384": "{}"}))
    words = [sys.executable, "-P", "-m", "supervisor", "check", "--repair"]
    named = {"LEASEHOLD_REDIS_URL": stage.server.url, "LEASEHOLD_NAMESPACE": stage.namespace}
    named["PYTHONPATH"] = str(before)
    assert subprocess.run(words, env=named, capture_output=True, text=True, check=True).stdout == "nothing is wrong\n"
    assert stage.server.redis.get(f"{stage.prefix}schema:bf21a9e8fbc5a384") == b"{}"
    assert stage.client.check() == []
    stage.client.cancel("a")
