"""The account at Redis comes from a file or from a function, and is asked for again at each connection."""

import pytest

from supervisor import Client
from tests import clusters

TOKENS = """
import pathlib

def token():
    return "app", (pathlib.Path(__file__).parent / "token").read_text()

class Provider:
    def get_credentials(self):
        return token()

number = 7
def wrong():
    return 7
"""


@pytest.mark.parametrize("how", ["file", "function", "provider"])
def test_supervisor_logs_in_with_a_rotated_password(own_stage, own_server, app, tmp_path, how):
    stage = own_stage
    (tmp_path / "tokens.py").write_text(TOKENS)
    (tmp_path / "token").write_text("first")
    url = own_server.url.replace("://", "://app@", 1)
    if how == "file":
        flags = {"redis_url": url, "redis_password_file": str(tmp_path / "token")}
    else:
        names = {"function": "tokens:token", "provider": "tokens:Provider"}
        flags = {"redis_url": own_server.url, "redis_credentials": names[how]}
    pool = stage.start(**flags).wait_ready()
    stage.wait_until_ended([stage.queue.put("good.noop")])
    (tmp_path / "token").write_text("second")
    app("second")
    pool.wait_for("redis.connected")
    stage.wait_until_ended([stage.queue.put("good.noop")])
    assert pool.drain() == 0
    assert not any("second" in str(event) for event in pool.events)
    stage.assert_nothing_left()


def test_function_lets_a_supervisor_into_a_cluster(stage, tmp_path):
    """The supervisor also logs in to ask the nodes for the owner of the namespace."""
    (tmp_path / "tokens.py").write_text(TOKENS)
    (tmp_path / "token").write_text("first")
    (tmp_path / "cluster").mkdir()
    with clusters.nodes(tmp_path / "cluster", 3) as made:
        clusters.join(made)
        rights = {"categories": ["+@all"], "keys": ["*"], "channels": ["*"]}
        for node in made:
            node.redis.acl_setuser("app", enabled=True, passwords=["+first"], **rights)
        with Client(clusters.url_of(made), stage.namespace) as client:
            jid = client.queue("default").put("good.noop")
        for node in made:
            node.redis.acl_setuser("default", enabled=True, reset_passwords=True, passwords=["+closed"], **rights)
        pool = stage.start(redis_url=clusters.url_of(made), redis_credentials="tokens:token").wait_ready()
        pool.wait_for("job.completed", jid=jid)
        assert pool.drain() == 0


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"redis_credentials": "tokens"}, "must be the import path of a module and a function in it"),
        ({"redis_credentials": "missing:token"}, "cannot be imported: ModuleNotFoundError"),
        ({"redis_credentials": "tokens:missing"}, "cannot be imported: AttributeError"),
        ({"redis_credentials": "tokens:number"}, "is int; it must be a function"),
        ({"redis_password_file": "missing"}, "must be a file that is there and can be read"),
        ({"redis_password_file": "tokens.py", "redis_url": "embedded:"}, "is the embedded server"),
        (
            {"redis_password_file": "tokens.py", "redis_url": "redis://:p@h/0"},
            "a password and the option password_file",
        ),
    ],
)
def test_accounts_that_cannot_be_had_are_refused_at_the_start(stage, tmp_path, monkeypatch, flags, why):
    (tmp_path / "tokens.py").write_text(TOKENS)
    monkeypatch.chdir(tmp_path)
    pool = stage.start(**flags)
    assert pool.wait() == 78
    assert why in "".join(pool.said)


def test_function_that_returns_no_account_is_explained(stage, tmp_path):
    (tmp_path / "tokens.py").write_text(TOKENS)
    pool = stage.start(redis_credentials="tokens:wrong")
    assert pool.wait() == 69
    assert "must return (user, password), a password, or a provider of redis-py, not int" in str(
        pool.find("redis.failed")
    )
