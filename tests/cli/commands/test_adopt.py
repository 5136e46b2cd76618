"""`leasehold adopt` looks at a running system of another program, and adds doors only when it is told to."""

import base64
import json
import pickle
import time
import zlib

import pytest

from tests import servers
from tests.engine.client.old_qless import OldQless, scene

NONE = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


@pytest.fixture(scope="module")
def other():
    """A server of its own: the other programs' keys have fixed names. Return its socket and a connection."""
    with servers.running(servers.binary()) as socket, servers.connected(socket) as connection:
        yield socket, connection


@pytest.fixture
def redis(other, namespace, monkeypatch):
    _, connection = other
    monkeypatch.setenv("LEASEHOLD_NAMESPACE", namespace)
    connection.flushall()
    return connection


@pytest.fixture
def adopt(other, redis, shell):
    """Run the command for a program on that server."""
    socket, _ = other
    return lambda program, *words: shell("adopt", f"{program}+unix://{socket}", *words)


def message(name, *args, content="application/json", chain=None, **headers):
    body = base64.b64encode(json.dumps([args, {}, NONE | {"chain": chain}]).encode()).decode()
    properties = {"body_encoding": "base64"}
    headers = {"task": name, "id": "t", **headers}
    return json.dumps({"body": body, "content-type": content, "headers": headers, "properties": properties})


def rows(said):
    assert said.code == 0, said
    return {row["queue"]: row for row in json.loads(said.out)}


def test_queues_of_celery_are_shown_with_what_would_not_work(adopt, redis):
    redis.sadd("_kombu.binding.celery", "celery\x06\x16\x06\x16celery", "mail\x06\x16\x06\x16mail")
    redis.sadd("_kombu.binding.celery.pidbox", "\x06\x16\x06\x16web-1.celery.pidbox")
    redis.sadd("_kombu.binding.celeryev", "worker.#\x06\x16\x06\x16celeryev.6f1c2b")
    good = [message("shop.add", 1, 2)] * 3
    bad = [
        message("shop.add", chain=[{}]),
        message("shop.load", content="application/x-python-serialize"),
        message("shop.zip", compression="gzip"),
        message("shop.yaml", content="application/x-yaml"),
        json.dumps({"body": "", "headers": {}}),
        pickle.dumps({"headers": {}}),
        "{",
    ]
    redis.lpush("celery", *good, *bad)
    redis.lpush("celery\x06\x163", message("shop.add"), message("shop.end", chain=[{}]))
    redis.hset("unacked", "tag", "entry")
    before = {key: redis.dump(key) for key in redis.keys("*")}
    found = rows(adopt("celery", "--json"))
    assert found["celery"] | {"problems": {}} == {
        "would_run": {"shop.add": 4},
        "queue": "celery", "list": "celery", "waiting": 12, "looked_at": 12, "door": "celery-celery", "why_not": None,
        "names": {"shop.add": 5, "shop.load": 1, "shop.zip": 1, "shop.yaml": 1, "shop.end": 1}, "problems": {},
    }  # fmt: skip
    assert found["celery"]["problems"] == {
        "callbacks, chains and chords are for Celery's own worker": 2,
        "it is pickled, which is never loaded": 2,
        "it is compressed": 1,
        "its content is not JSON": 1,
        "it is of message protocol 1: set task_protocol = 2": 1,
        "it is no message of Celery": 1,
    }
    assert (found["mail"]["waiting"], found["mail"]["names"], len(found)) == (0, {}, 2)
    said = adopt("celery")
    assert said.err == ""
    lines = said.out.splitlines()
    would_not = {line.removeprefix("queue celery: would not run, ") for line in lines if "would not run, " in line}
    assert would_not == {f"{count} of 12: {problem}" for problem, count in found["celery"]["problems"].items()}
    forced = "leasehold door add celery-celery --format celery --source celery --queue celery"
    handlers = "supervisor.contrib.celery.adopt(app) makes handlers of the tasks of an application"
    for line in (
        "queue celery: would run: shop.add (4)",
        "queue celery: it gets no door, because what would not run would be `broken`; to add one all the same: "
        + forced,
        "queue mail: nothing is against door celery-mail, which --apply adds",
        "elsewhere: messages of Celery that its own workers hold and will finish, so that no door takes them: 1",
        f'each name needs a handler of this name, such as @handler(name="shop.add"); {handlers}',
        "nothing is changed; --apply adds 1 door",
    ):
        assert line in lines
    assert {key: redis.dump(key) for key in redis.keys("*")} == before


def test_tasks_of_celery_are_judged_as_the_door_does(adopt, redis, other, namespace):
    from supervisor import Client

    def told(name, embed, encoding="base64"):
        body = base64.b64encode(json.dumps([[], {}, embed], separators=(",", ":")).encode()).decode()
        headers, properties = {"task": name, "id": name}, {"body_encoding": encoding}
        return json.dumps({
            "body": body, "content-type": "application/json", "headers": headers, "properties": properties,
        })  # fmt: skip

    swapped = dict(reversed(NONE.items()))
    redis.lpush("celery", told("all", NONE), told("empty", {}), told("swapped", swapped), told("plain", {}, "none"))
    found = rows(adopt("celery", "--json"))["celery"]
    assert found["would_run"] == {"all": 1, "empty": 1}
    with Client(f"unix://{other[0]}", namespace) as client:
        client.doors.add("celery", format="celery", source="celery", queue="celery")
        client.doors.take("celery")
        assert {lease.jid for lease in client.queue("celery").lease("w", 9)} == set(found["would_run"])
        assert client.failed() == {"broken": sum(found["problems"].values())}


def test_doors_are_added_when_that_is_wanted(adopt, redis, other, namespace):
    from supervisor import Client

    job = {"class": "Hard", "args": [1], "jid": "abc", "queue": "low"}
    redis.sadd("queues", "low")
    redis.lpush("queue:low", json.dumps(job), json.dumps({"class": "Hard"}))
    redis.zadd("schedule", {json.dumps(job): 1})
    with Client(f"unix://{other[0]}", namespace) as client:
        found = rows(adopt("sidekiq", "--json"))["low"]
        assert (found["names"], found["problems"]) == ({"Hard": 2}, {"it is no job of Sidekiq": 1})
        redis.lpush("queue:low", *(json.dumps({**job, **more}) for more in ({"bid": "b"}, {"encrypt": True})))
        problems = rows(adopt("sidekiq", "--json"))["low"]["problems"]
        assert {f"{what} are for Sidekiq's own worker" for what in ("batches", "encrypted arguments")} < set(problems)
        redis.ltrim("queue:low", 2, -1)
        assert "queue low: it gets no door, because what would not run" in adopt("sidekiq", "--apply").out
        assert client.doors.list() == []
        redis.lrem("queue:low", 0, json.dumps({"class": "Hard"}))
        said = adopt("sidekiq", "--apply")
        assert said.err == "leasehold: door sidekiq-low leads from queue:low to queue low\n"
        assert said.out.endswith("supervisors of these queues take what waits there: leasehold run --queue low\n")
        assert "set schedule, from which a door takes those of its queue when they are due: 1" in said.out
        client.doors.add("sidekiq-low", format="sidekiq", source="queue:low", queue="low", klasses={"Hard": "Hard"})
        for options in ((), ("--apply",)):
            assert "door sidekiq-low leads from queue:low to queue low already" in adopt("sidekiq", *options).out
        assert "nothing is changed; --apply adds 0 doors" in adopt("sidekiq").out
        assert client.doors.list()[0].klasses == {"Hard": "Hard"}
        (door,) = client.doors.list()
        assert (door.name, door.format, door.source, door.queue) == ("sidekiq-low", "sidekiq", "queue:low", "low")
        assert client.doors.take("sidekiq-low").count == 2
        assert client.job("abc").klass == "Hard"


def test_queue_whose_name_no_door_can_have_holds_up_no_other(adopt, redis, other, namespace):
    from supervisor import Client

    redis.sadd("queues", "a" * 57, "b", "c" * 65)
    said = adopt("sidekiq", "--apply")
    assert said.code == 0 and "door sidekiq-b leads from queue:b to queue b" in said.err
    assert "can have no door of this name: name must have 1 to 64 bytes in UTF-8, not 65" in said.out
    found = rows(adopt("sidekiq", "--json"))
    assert [found[queue]["door"] for queue in ("a" * 57, "b", "c" * 65)] == [None, "sidekiq-b", None]
    with Client(f"unix://{other[0]}", namespace) as client:
        assert [door.name for door in client.doors.list()] == ["sidekiq-b"]


def test_door_that_leads_from_elsewhere_is_not_replaced(adopt, redis, other, namespace):
    from supervisor import Client

    redis.sadd("queues", "low", "mail")
    with Client(f"unix://{other[0]}", namespace) as client:
        client.doors.add("sidekiq-low", format="sidekiq", source="other:queue:low", queue="mine")
        said = adopt("sidekiq", "--apply")
        assert said.code == 0 and "door sidekiq-mail leads from queue:mail" in said.err
        assert "queue low: it can have no door of this name: door sidekiq-low leads from other:queue:low" in said.out
        assert rows(adopt("sidekiq", "--json"))["low"]["door"] is None
        doors = {door.name: (door.list, door.queue) for door in client.doors.list()}
    assert doors == {"sidekiq-low": ("other:queue:low", "mine"), "sidekiq-mail": ("queue:mail", "mail")}


def test_jobs_of_rq_are_shown_with_what_would_not_work(adopt, redis):
    redis.sadd("rq:queues", "rq:queue:default")
    jobs = {
        "pickled": {"data": zlib.compress(pickle.dumps(("shop.add", None, [1], {})))},
        "good": {"data": zlib.compress(b'["shop.add", null, [1], {}]'), "success_callback_name": ""},
        "told": {"data": zlib.compress(b'["shop.add", null, [1], {}]'), "success_callback_name": "shop.told"},
        "again": {"data": zlib.compress(b'["shop.add", null, [1], {}]'), "repeats_left": 2},
        "text": {"data": b"text"},
    }
    for jid, fields in jobs.items():
        redis.hset(f"rq:job:{jid}", mapping=fields)
    redis.rpush("rq:queue:default", *jobs, "gone")
    redis.zadd("rq:scheduled:default", {"later": 2_000_000_000})
    redis.zadd("rq:wip:default", {"running:1": 2_000_000_000})
    said = adopt("rq", "--json")
    found = rows(said)["default"]
    assert (found["waiting"], found["looked_at"], found["names"]) == (6, 6, {"shop.add": 3})
    assert found["problems"] == {
        "it is pickled, which is never loaded": 1,
        "callbacks and webhooks are for RQ's own worker": 1,
        "repeats are for RQ's own worker": 1,
        "it is not JSON": 1,
    }
    said = adopt("rq").out
    assert "queue default: would run: shop.add (1)" in said
    assert "scheduled jobs, which a door takes when they are due: 1" in said
    assert "jobs of RQ that its own workers hold and will finish, so that no door takes them: 1" in said


def test_door_to_a_queue_of_rq_is_added_when_that_is_wanted(adopt, redis, other, namespace):
    from supervisor import Client

    redis.sadd("rq:queues", "rq:queue:default")
    redis.hset("rq:job:a", mapping={"data": zlib.compress(b'["shop.add", null, [1], {}]'), "status": "queued"})
    redis.rpush("rq:queue:default", "a")
    assert "door rq-default leads from rq:queue:default to queue default" in adopt("rq", "--apply").err
    with Client(f"unix://{other[0]}", namespace) as client:
        (door,) = client.doors.list()
        assert (door.format, door.source, door.queue, door.waiting) == ("rq-json", "rq:queue:default", "default", 1)
        assert client.doors.take("rq-default").count == 1
        assert (client.job("a").klass, client.job("a").data) == ("shop.add", [1])


def test_look_at_many_and_large_entries_is_bounded(adopt, redis):
    redis.lpush("celery", message("a" * 65), *[message("shop.add", "x" * 100_000)] * 15, *[message("shop.add")] * 500)
    found = rows(adopt("celery", "--json"))["celery"]
    assert (found["waiting"], found["looked_at"]) == (516, 10)
    assert found["problems"] == {"its name is too long: it needs a --klass-map": 1}
    redis.delete("celery")
    redis.lpush("celery", *[message("shop.add")] * 500)
    assert rows(adopt("celery", "--json"))["celery"]["looked_at"] == 100


def test_key_of_another_type_holds_up_no_other_queue(adopt, redis):
    redis.sadd("rq:queues", "rq:queue:a", "rq:queue:b")
    redis.set("rq:queue:a", "x")
    redis.rpush("rq:queue:b", "job")
    redis.set("rq:job:job", "x")
    assert [row["problems"] for row in rows(adopt("rq", "--json")).values()] == [
        {"the key rq:queue:a is a string, and no list": 1}, {"the key rq:job:job is a string, and no hash": 1},
    ]  # fmt: skip
    redis.set("celery", "x")
    redis.sadd("_kombu.binding.celery", "celery\x06\x16\x06\x16celery", "mail\x06\x16\x06\x16mail")
    found = rows(adopt("celery", "--json"))
    assert found["celery"]["problems"] == {"the key celery is a string, and no list": 1}
    assert found["mail"]["problems"] == {}


@pytest.mark.parametrize(
    ("program", "keys"),
    [("celery", ["unacked"]), ("sidekiq", ["schedule", "retry"]), ("rq", ["rq:wip:a", "rq:scheduled:a"])],
)
def test_key_of_another_type_elsewhere_is_told_beside_the_queues(adopt, redis, program, keys):
    redis.lpush("celery", message("shop.add"))
    redis.sadd("queues", "a")
    redis.sadd("rq:queues", "rq:queue:a")
    redis.mset(dict.fromkeys([*keys, "_kombu.binding.mail"], "x"))
    said = adopt(program)
    assert said.code == 0 and "--apply adds 1 door" in said.out
    for key in keys:
        assert f"elsewhere: the key {key} is a string, and no" in said.out


def test_keys_of_another_type_are_told_in_one_sentence(adopt, redis):
    redis.set("queues", "no set")
    said = adopt("sidekiq")
    assert said.code == 1 and said.err.count("\n") == 1 and "the key queues is a string, and no set" in said.err


@pytest.fixture
def target(server, monkeypatch):
    """The address of the supervisors, where it is another one than that of the other program."""
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", server.url)


def contents(connection):
    return {key: connection.dump(key) for key in connection.keys("*")}


def test_look_at_qless_changes_nothing(adopt, redis, server, namespace, target):
    scene(OldQless(redis, time.time() - 2000))
    redis.hset("ql:j:older", "data", "{")
    redis.hset("ql:j:failed", "data", "[")
    before, ours = contents(redis), server.dump(namespace)
    found = json.loads(adopt("qless", "--json").out)
    queues = {row.pop("queue"): row for row in found.pop("queues")}
    why = "its data is not JSON: unexpected end of data: line 1 column 2 (char 1)"
    assert found == {
        "number_of_queues": 3, "failed": {"mail-refused": 1}, "failed_problems": {why: 1}, "complete": 1, "living": [],
        "moved": None,
    }  # fmt: skip
    counts = {
        "running": 0, "stalled": 1, "waiting": 1, "scheduled": 0, "depends": 1, "throttled": 0, "recurring": 2,
    }  # fmt: skip
    klasses = {"shop.Slow": 1, "shop.Album": 1, "shop.Tick": 2}
    assert queues["slow"] == {
        "counts": counts, "paused": True, "klasses": klasses, "looked_at": 5, "problems": {why: 1},
    }  # fmt: skip
    assert queues["third"]["counts"]["throttled"] == queues["third"]["counts"]["stalled"] == 1
    said = adopt("qless")
    assert "nothing is changed; --apply moves the jobs" in said.out and f"1 of 5: {why}" in said.out
    for line in (
        "failed in group mail-refused: 1",
        f"1 of the first failed jobs would stay there: {why}",
        "completed jobs stay there with their history: 1",
    ):
        assert line in said.err
    assert (contents(redis), server.dump(namespace)) == (before, ours)


@pytest.mark.parametrize("program", ["qless", "reqless"])
def test_jobs_of_qless_are_moved_when_that_is_wanted(adopt, redis, server, namespace, target, shell, program):
    scene(OldQless(redis, time.time() - 2000))
    redis.hset("ql:j:older", "data", "{")
    said = adopt(program, "--apply")
    assert said.out.endswith("moved 12 jobs, and 2 recurring jobs\n")
    assert "job older of queue slow stays there: its data is not JSON" in said.err
    assert shell.json("job", "scheduled")["state"] == "scheduled" and shell.json("failed") == {"mail-refused": 1}
    [left] = json.loads(adopt(program, "--apply", "--json").out)["moved"]["left"]
    assert (left["queue"], left["jid"]) == ("slow", "older") and left["why"].startswith("its data is not JSON")
    redis.hset("ql:j:older", "data", "{}")
    moved = json.loads(adopt(program, "--apply", "--json").out)["moved"]
    assert moved == {"jobs": 1, "recurring": 0, "number_left": 0, "left": []}
    assert f"there is no queue of {program}" in adopt(program, "--apply").err


def test_move_that_ends_early_reports_its_part(adopt, redis, server, namespace, target):
    old = OldQless(redis, time.time() - 2000)
    old.put("a", "good", "K", "{}")
    old.put("a", "bad", "K", "{")
    old.put("b", "throttled", "K", "{}", throttles=["api"])
    redis.set("ql:th:api", "no hash")
    said = adopt("qless", "--apply")
    assert said.code == 69 and said.out == ""
    stays, so_far, error = said.err.splitlines()
    assert "job bad of queue a stays there: its data is not JSON" in stays and "WRONGTYPE" in error
    assert "moved 1 job, and 0 recurring jobs before this error" in so_far


def test_workers_of_qless_are_named(adopt, redis, server, namespace, target):
    old = OldQless(redis, time.time())
    old.put("q", "a", "K", "{}")
    old.pop("q", "web-1")
    before = contents(redis)
    said = adopt("qless")
    assert said.code == 0 and "nothing could be moved now: worker web-1 was seen" in said.err
    said = adopt("qless", "--apply")
    assert said.code == 1 and said.err.count("\n") == 1
    assert "worker web-1 was seen" in said.err and "job a of queue q is held by a worker" in said.err
    assert contents(redis) == before and server.dump(namespace) == {}


def test_record_of_another_type_does_not_stop_the_look(adopt, redis, target):
    OldQless(redis, time.time() - 2000).put("q", "a", "K", "{}")
    redis.set("ql:j:bad", "x")
    redis.zadd("ql:q:q-work", {"bad": 9})
    said = adopt("qless")
    assert said.code == 0 and "1 of 2: its record is no hash" in said.out


def test_look_that_reaches_no_qless_promises_no_move(shell, tmp_path, target):
    said = shell("adopt", f"qless+unix://{tmp_path}/none")
    assert said.code == 69 and "cannot reach Redis" in said.err and "A move" not in said.err


def test_jobs_of_qless_go_nowhere_unsaid(adopt, redis, monkeypatch):
    monkeypatch.delenv("LEASEHOLD_REDIS_URL", raising=False)
    OldQless(redis, time.time() - 2000).put("q", "a", "K", "{}")
    assert adopt("qless").code == 0
    said = adopt("qless", "--apply")
    assert said.code == 2 and "--apply needs --redis-url, or LEASEHOLD_REDIS_URL" in said.err


def test_keys_of_qless_of_another_type_are_told_in_one_sentence(adopt, redis, target):
    redis.set("ql:queues", "no zset")
    said = adopt("qless")
    assert said.code == 69 and said.err.count("\n") == 1 and "WRONGTYPE" in said.err


@pytest.mark.parametrize("program", ["celery", "sidekiq", "rq", "qless", "reqless"])
def test_nothing_to_adopt_is_refused(adopt, program):
    said = adopt(program)
    assert said.code == 1 and f"there is no queue of {program}" in said.err
