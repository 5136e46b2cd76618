"""Producers of other programs: how each puts a job, and what it finds when all of its jobs have completed."""

import base64
import hashlib
import json
import shutil
import subprocess
import zlib

CLI = shutil.which("redis-cli") or shutil.which("valkey-cli")


class Cli:
    """Puts by redis-cli, which is told each command on a line, as documents show it."""

    def __init__(self, socket):
        command = [CLI, "-s", str(socket)]
        self._cli = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def _say(self, *words):
        quoted = (word.replace("\\", "\\\\").replace('"', '\\"') for word in words)
        self._cli.stdin.write(" ".join(f'"{word}"' for word in quoted) + "\n")
        self._cli.stdin.flush()

    def lpush(self, key, value):
        self._say("LPUSH", key, value)

    def set(self, key, value):
        self._say("SET", key, value)

    def close(self):
        self._cli.stdin.close()
        assert self._cli.wait(60) == 0


class RedisWorkQueue:
    """Knows of an item by its key."""

    door = {"format": "rwq", "klass": "good.noop"}

    def __init__(self, redis, prefix):
        self.redis, self.prefix, self.source = redis, prefix, prefix

    def put(self, number):
        if self.redis.setnx(f"{self.prefix}:item:{number}", f"data of {number}"):
            self.redis.lpush(f"{self.prefix}:queue", number)

    def assert_done(self, count):
        """Check what is left of so many jobs."""
        assert self.redis.keys(f"{self.prefix}:*") == []


class HWorker:
    """Knows of a job by the list of failed ones."""

    door = {"format": "hworker", "klass": "good.noop"}

    def __init__(self, redis, prefix, writer=None):
        self.redis, self.prefix, self.source, self.writer = redis, prefix, prefix, writer or redis

    def put(self, number):
        self.writer.lpush(f"hworker-jobs-{self.prefix}", f'["{number:06}",{{"n":{number}}}]')

    def assert_done(self, count):
        assert self.redis.keys(f"hworker-*-{self.prefix}") == []


class Worqr:
    """Is told of each completed task, and puts no unique one again before."""

    door = {"format": "worqr", "klass": "good.noop"}

    def __init__(self, redis, prefix, writer=None):
        self.redis, self.prefix, self.source, self.writer = redis, prefix, f"{prefix}:queues:mail", writer or redis
        self._told = []
        self._channel = redis.pubsub(ignore_subscribe_messages=True)
        self._channel.subscribe(f"{prefix}_mail_done")

    def put(self, number):
        task = f"task {number:06}"
        self.writer.set(f"{self.prefix}:uniqueTasks:{hashlib.md5(task.encode()).hexdigest()}", "1")
        self.writer.lpush(self.source, task)
        self._listen()

    def _listen(self):
        while message := self._channel.get_message():
            self._told.append(json.loads(message["data"])["task"])

    def assert_done(self, count):
        self._listen()
        assert sorted(self._told) == [f"task {number:06}" for number in range(count)]
        assert self.redis.keys(f"{self.prefix}:*") == []
        self._channel.close()


class Sidekiq:
    """Shows how many runs there were, and how many failed."""

    door = {"format": "sidekiq"}

    def __init__(self, redis, prefix):
        self.redis, self.prefix, self.source = redis, prefix, f"{prefix}:queue:default"

    def put(self, number):
        job = {"class": "good.noop", "args": [number], "retry": True, "jid": f"{number:024x}", "queue": "default"}
        self.redis.lpush(self.source, json.dumps(job))

    def assert_done(self, count):
        shown = {key.decode().split(":")[2]: 0 for key in self.redis.keys(f"{self.prefix}:stat:*:*")}
        for key in self.redis.keys(f"{self.prefix}:stat:*:*"):
            shown[key.decode().split(":")[2]] += int(self.redis.get(key))
        assert shown == {"processed": count}
        assert int(self.redis.get(f"{self.prefix}:stat:processed")) == count


class Celery:
    """Asks for the result of each task, and puts into the lists of several priorities."""

    door = {"format": "celery"}

    def __init__(self, redis, prefix):
        self.redis, self.prefix, self.source = redis, prefix, prefix

    def put(self, number):
        priority = number % 4 * 3
        body = f'[[{number}], {{}}, {{"callbacks": null, "errbacks": null, "chain": null, "chord": null}}]'
        message = {
            "body": base64.b64encode(body.encode()).decode(), "content-type": "application/json",
            "headers": {"task": "good.noop", "id": f"{self.prefix}-{number}", "eta": None, "expires": None},
            "properties": {"body_encoding": "base64", "priority": priority},
        }  # fmt: skip
        self.redis.lpush(f"{self.prefix}\x06\x16{priority}" if priority else self.prefix, json.dumps(message))

    def assert_done(self, count):
        keys = [f"celery-task-meta-{self.prefix}-{number}" for number in range(count)]
        assert {json.loads(meta or "{}").get("status") for meta in self.redis.mget(keys)} == {"SUCCESS"}
        assert self.redis.keys(f"{self.prefix}*") == []


class Clients:
    """Know of a message by their lists and the dead set. Each client has a list of its own."""

    door = {"format": "client-lists", "klass": "good.noop"}

    def __init__(self, redis, prefix, writer=None):
        self.redis, self.prefix, self.source, self.writer = redis, prefix, f"{prefix}:mail", writer or redis

    def put(self, number):
        client = f"client-{number % 20}"
        message = {"client_id": client, "msg": {"n": number}, "attempts": 0}
        self.writer.lpush(f"{self.source}:{client}", json.dumps(message))

    def assert_done(self, count):
        assert self.redis.keys(f"{self.prefix}:*") == []


class Rq:
    """Asks for the result of each job, and looks into the registries."""

    door = {"format": "rq-json"}

    def __init__(self, redis, prefix):
        self.redis, self.prefix, self.source = redis, prefix, f"{prefix}:queue:default"

    def put(self, number):
        call = json.dumps(["good.echo", None, [number], {}])
        fields = {"data": zlib.compress(call.encode()), "status": "queued", "origin": "default", "result_ttl": 86400}
        self.redis.hset(f"{self.prefix}:job:{number}", mapping=fields)
        self.redis.rpush(self.source, number)

    def assert_done(self, count):
        assert self.redis.zcard(f"{self.prefix}:finished:default") == count
        for number in range(count):
            ((_, result),) = self.redis.xrange(f"{self.prefix}:results:{number}")
            assert json.loads(base64.b64decode(result[b"return_value"])) == [number]
            assert self.redis.hget(f"{self.prefix}:job:{number}", "status") == b"finished"
        assert self.redis.exists(self.source, f"{self.prefix}:failed:default") == 0


ALL = (RedisWorkQueue, HWorker, Worqr, Clients, Sidekiq, Celery, Rq)
#: Those whose documents show how to put by redis-cli.
BY_CLI = (HWorker, Worqr, Clients)
