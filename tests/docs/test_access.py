"""The accounts at Redis that the manual shows."""

import base64
import json
import zlib
from hashlib import md5

import pytest
import redis

import supervisor
from tests import servers
from tests.docs.pages import OPERATIONS, blocks

BODY = b'[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
SIDEKIQ = json.dumps({"class": "k", "args": [], "jid": "1", "queue": "mail"})
CELERY = json.dumps({
    "body": base64.b64encode(BODY).decode(), "content-type": "application/json", "headers": {"task": "k", "id": "1"},
    "properties": {"body_encoding": "base64"},
})  # fmt: skip
RQ = zlib.compress(b'["k", null, [], {}]')
UNIQUE = f"orders:uniqueTasks:{md5(b'x').hexdigest()}"
#: For each format the source of a door, what another program does to put a job, and keys that are there after its end.
DOORS = {
    "rwq": ("orders", [("SET", "orders:item:1", "x"), ("LPUSH", "orders:queue", "1")], []),
    "worqr": ("orders:queues:q", [("SET", UNIQUE, "1"), ("LPUSH", "orders:queues:q", "x")], []),
    "hworker": ("images", [("LPUSH", "hworker-jobs-images", '["1",1]')], ["hworker-failed-images"]),
    "client-lists": (
        "bqueues:mail", [("LPUSH", "bqueues:mail:ada", '{"client_id": "ada", "msg": 1}')], ["bqueues:dead:mail"],
    ),
    "rq-json": (
        "rq:queue:mail", [("HSET", "rq:job:1", "data", RQ, "status", "queued"), ("RPUSH", "rq:queue:mail", "1")],
        ["rq:job:1", "rq:results:1", "rq:failed:mail"],
    ),
    "sidekiq": ("queue:mail", [("ZADD", "schedule", 1, SIDEKIQ)], ["stat:failed", "stat:processed"]),
    "celery": ("celery", [("LPUSH", "celery\x06\x163", CELERY)], ["celery-task-meta-1"]),
}  # fmt: skip


def accounts():
    lines = [line for block in blocks(OPERATIONS, "") for line in block.splitlines()]
    return [line for line in lines if line.startswith("ACL SETUSER")]


@pytest.fixture(scope="module")
def other():
    """A server of its own: the other programs' keys have fixed names. Return its socket and a connection."""
    with servers.running(servers.binary()) as socket, servers.connected(socket) as connection:
        yield socket, connection


@pytest.mark.parametrize("format", DOORS)
def test_account_of_the_page_takes_and_ends_jobs_behind_a_door(other, format):
    (socket, redis), (source, pushes, left) = other, DOORS[format]
    redis.flushall()
    everything, *doors, _ = (line.split() for line in accounts())
    for command in (everything, *doors):
        redis.execute_command(*command)
    with supervisor.Client(f"unix://leasehold:PASSWORD@{socket}") as client:
        klass = None if format in ("sidekiq", "celery", "rq-json") else "k"
        client.doors.add("d", format=format, source=source, queue="q", klass=klass)
        for push in pushes:
            redis.execute_command(*push)
        assert client.doors.take("d").count == 1
        (lease,) = client.queue("q").lease("worker")
        lease.fail("g", "m")
        assert client.failed() == {"g": 1}
    ours = {key for key in redis.keys("*") if key.startswith(b"{leasehold}:")}
    shown = {key.decode() for key in {*redis.keys("*")} - ours}
    assert shown - {key for key in shown if key[-1].isdigit() and key.startswith("stat:")} == {*left}


def test_door_whose_items_an_account_may_not_read_is_refused(other):
    socket, redis = other
    redis.flushall()
    redis.execute_command(*accounts()[0].split(), "~orders:queue")
    with supervisor.Client(f"unix://leasehold:PASSWORD@{socket}") as client:
        with pytest.raises(supervisor.LeaseholdError, match="this account may not read the keys orders:item:<id>"):
            client.doors.add("d", format="rwq", source="orders", queue="q", klass="k")
        assert client.doors.list() == []


def test_accounts_can_do_their_work_and_no_more(server, namespace):
    lines = accounts()
    everything, doors, *_, pushing = (line.replace("{leasehold}", f"{{{namespace}}}").split() for line in lines)
    key = f"{{{namespace}}}:in:emails"
    try:
        for command in (everything, doors, pushing):
            server.redis.execute_command(*command)
        with redis.Redis(unix_socket_path=str(server.socket), username="producer", password="PASSWORD") as producer:
            producer.lpush(key, '{"klass": "email.send"}')
            for refused in (["LRANGE", key, 0, -1], ["LPUSH", f"{key}-2", "x"], ["HGETALL", f"{{{namespace}}}:config"]):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    producer.execute_command(*refused)
        url = server.url_with("leasehold", "PASSWORD")
        with supervisor.Client(url, namespace) as client, client.events() as events:
            with pytest.raises(supervisor.LeaseholdError, match="this account needs the right to it"):
                client.doors.add("d", format="rwq", source="closed", queue="emails", klass="k")
            client.doors.add("d", format="rwq", source="orders", queue="emails", klass="k")
            client.doors.remove("d")
            queue = client.queue("emails")
            client.limit("smtp", running=1)
            queue.put("email.send", limit="smtp", unique=True)
            assert [lease.complete("sent") for lease in queue.lease("worker", count=2, block=30)] == [True, True]
            assert client.sweep() == 0 and client.check(repair=True) == []
            assert events.get(timeout=30) is not None
        with redis.Redis(unix_socket_path=str(server.socket), username="leasehold", password="PASSWORD") as door:
            assert door.execute_command("BLMOVE", key, key, "RIGHT", "RIGHT", "0.001") is None
            assert door.llen(key) == 0
    finally:
        server.redis.acl_deluser("leasehold", "producer")
