"""Operator commands while Redis takes no more data: its memory is full, or it is a replica."""

import json

import pytest
from servers import OwnServer

from tests.lengths import SOON_S
from tests.process.operate.test_top import TOP, forget_answers, seat  # noqa: F401  a fixture
from tests.servers import free_port


def command(stage, server, *words):
    """Run `leasehold WORDS` beside the stage. Return exit code, stdout and stderr."""
    done = stage.run_command(*words, url=server.url)
    return done.returncode, done.stdout, done.stderr


def fill(server):
    """Fill the server to its maxmemory, so that only scripts with allow-oom are accepted."""
    server.redis.config_set("maxmemory-policy", "noeviction")
    server.redis.config_set("maxmemory", 1)


def good(stage, server, *words):
    code, out, err = command(stage, server, *words)
    assert code == 0, (words, out, err)
    return out


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_full_redis_still_accepts_operator_commands(own_stage, own_server):
    stage = own_stage
    pool = stage.start(processes="1:3").wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    other = stage.client.queue("other")
    moved, cancelled = other.put("good.noop"), other.put("good.noop")
    fill(own_server)
    for words in (
        ("status",), ("stacks",), ("scale", pool.worker, "2"), ("pause", "--all-workers"), ("unpause", "--all-workers"),
        ("pause", "other"), ("unpause", "other"), ("limit", "key", "--running", "2"), ("limit", "key"),
        ("lane", "other", "a", "--pause"), ("lane", "other", "a", "--unpause"), ("cancel", cancelled),
        ("reload", pool.worker), ("serve", pool.worker, "default", "other"),
    ):  # fmt: skip
        good(stage, own_server, *words)
    assert json.loads(good(stage, own_server, "status", "--json"))[pool.worker]["state"] == "serving"
    stage.wait_until_ended([moved])
    good(stage, own_server, "move", moved, "default")
    pool.wait_for("job.completed", jid=moved, nth=2)
    stage.open_gate("gate")
    good(stage, own_server, "drain", pool.worker)
    assert pool.wait() == 0
    own_server.redis.config_set("maxmemory", 0)
    stage.client.unlimit("key")
    forget_answers(stage)
    stage.assert_nothing_left()


def test_top_works_with_a_full_redis(own_stage, own_server, seat):  # noqa: F811
    stage = own_stage
    pool = stage.start(processes=1).wait_ready()
    fill(own_server)
    top = seat(f"{TOP}; echo code $?")
    top.wait_until(lambda: top.row(pool.worker)[1:2] == ["serving"], "the supervisor answers")
    top.press("q")
    assert top.end() == 0
    assert pool.drain() == 0


def await_replica(server):
    """Wait until the replica has all data. WAIT counts the writes of its own connection and all before them."""
    with server.redis.client() as connection:
        connection.set("last", 1)
        assert connection.wait(1, int(1000 * SOON_S)) == 1


@pytest.fixture
def replica(own_server, tmp_path_factory):
    """A read-only replica of the test's own server, with all its data."""
    port = free_port()
    own_server.redis.config_set("port", port)
    own_server.redis.config_set("repl-diskless-sync-delay", 0)
    one = OwnServer(tmp_path_factory.mktemp("r"), own_server.binary)
    one.start()
    one.redis.replicaof("127.0.0.1", port)
    await_replica(own_server)
    yield one
    one.close()


@pytest.mark.sampled(3)
def test_status_shows_the_jobs_of_a_replica(own_stage, own_server, replica):
    stage = own_stage
    pool = stage.start(processes=1).wait_ready()
    await_replica(own_server)
    code, out, err = command(stage, replica, "status")
    assert code == 1 and pool.worker in out
    assert "read-only replica" in err and "own answers are missing" in err
    code, out, _ = command(stage, replica, "status", "--json")
    assert (code, json.loads(out)) == (1, {pool.worker: None})
    for words in (
        ("queues",),
        ("workers",),
        ("jobs", "waiting", "--queue", "default"),
        ("limit",),
        ("stats", "default"),
    ):
        good(stage, replica, *words)
    code, out, err = command(stage, replica, "stacks")
    assert (code, out) == (69, "") and "name its primary" in err
    assert pool.drain() == 0


def test_top_shows_the_jobs_of_a_replica(own_stage, own_server, replica, seat):  # noqa: F811
    stage = own_stage
    pool = stage.start(processes=1).wait_ready()
    stage.client.queue("emails").put("good.noop")
    await_replica(own_server)
    top = seat(f"{TOP}; echo code $?", LEASEHOLD_REDIS_URL=replica.url)
    top.wait_until(lambda: top.row("emails")[1:2] == ["1"], "the queue is seen")
    top.wait_until(lambda: pool.worker in top.text and "no answer" in top.text, "its supervisor is, too")
    top.press("q")
    assert top.end() == 0
    assert pool.drain() == 0
