"""Records as qless and reqless leave them in Redis, made without their code. test_qless_packages.py compares both."""

import json


class OldQless:
    """The calls of which a scene is made. `now`: the time of the last call, in unix seconds, which a test moves on.

    `throttles`: whether there are any, as in reqless.
    """

    def __init__(self, redis, now, throttles=True):
        self.redis = redis
        self.now = now
        self._throttles = throttles

    def put(self, queue, jid, klass, data, delay=0, priority=0, tags=(), retries=5, depends=(), throttles=()):
        self._history(jid, "put", q=queue)
        for tag in tags:
            self.redis.zadd(f"ql:t:{tag}", {jid: self.now})
            self.redis.zincrby("ql:tags", 1, tag)
        own = [*throttles, f"ql:q:{queue}"]
        record = {
            "jid": jid, "klass": klass, "data": data, "priority": priority, "tags": _lua(tags), "state": "waiting",
            "worker": "", "expires": 0, "queue": queue, "retries": retries, "remaining": retries,
            "time": f"{self.now:.20f}",
        }  # fmt: skip
        if self._throttles:
            record["throttles"] = _lua(own)
        parents = [each for each in depends if self.redis.hget(f"ql:j:{each}", "state") not in (None, b"complete")]
        for parent in parents:
            self.redis.sadd(f"ql:j:{parent}-dependents", jid)
            self.redis.sadd(f"ql:j:{jid}-dependencies", parent)
        full = next((each for each in own if self._is_full(each)), None)
        if parents:
            record["state"] = "depends"
            self._place(queue, "depends", jid, self.now)
            if delay:
                record["scheduled"] = _number(self.now + delay)
        elif delay:
            record["state"] = "scheduled"
            self._place(queue, "scheduled", jid, self.now + delay)
        elif full:
            record["state"] = "throttled"
            self._place(queue, "throttled", jid, self.now)
            self.redis.zadd(f"ql:th:{full}-pending", {jid: self.now})
            self._history(jid, "throttled", queue=queue)
        else:
            self._place(queue, "work", jid, priority - self.now / 10000000000)
        self.redis.hset(f"ql:j:{jid}", mapping=record)
        self.redis.zadd("ql:queues", {queue: self.now}, nx=True)

    def pop(self, queue, worker):
        """Give the next waiting job of a queue to a worker. None is due, recurs or has expired."""
        [jid] = (each.decode() for each in self.redis.zrevrange(f"ql:q:{queue}-work", 0, 0))
        self.redis.zrem(f"ql:q:{queue}-work", jid)
        self.redis.zadd("ql:workers", {worker: self.now})
        self._history(jid, "popped", worker=worker)
        self._place(queue, "locks", jid, self.now + 60)
        self.redis.zadd(f"ql:w:{worker}:jobs", {jid: self.now + 60})
        for name in json.loads(self.redis.hget(f"ql:j:{jid}", "throttles") or "[]"):
            self.redis.zadd(f"ql:th:{name}-locks", {jid: 1})
        record = {"state": "running", "worker": worker, "expires": _number(self.now + 60)}
        self.redis.hset(f"ql:j:{jid}", mapping=record | {"time": f"{self.now:.20f}"})
        return jid

    def fail(self, jid, worker, group, message):
        self._put_back(jid, worker)
        self._history(jid, "failed", worker=worker, group=group)
        failure = {"group": group, "message": message, "when": int(self.now), "worker": worker}
        record = {"state": "failed", "worker": "", "expires": "", "failure": json.dumps(failure)}
        self.redis.hset(f"ql:j:{jid}", mapping=record)
        self.redis.sadd("ql:failures", group)
        self.redis.lpush(f"ql:f:{group}", jid)

    def retry(self, jid, queue, worker):
        self._put_back(jid, worker)
        self.redis.hincrby(f"ql:j:{jid}", "remaining", -1)
        self.redis.hset(f"ql:j:{jid}", "state", "waiting")
        priority = int(self.redis.hget(f"ql:j:{jid}", "priority"))
        self._place(queue, "work", jid, priority - self.now / 10000000000)

    def complete(self, jid, worker, data):
        self._put_back(jid, worker)
        self._history(jid, "done")
        record = {"state": "complete", "worker": "", "expires": 0, "queue": "", "failure": "{}", "data": data}
        remaining = self.redis.hget(f"ql:j:{jid}", "retries")
        self.redis.hset(f"ql:j:{jid}", mapping=record | {"remaining": remaining})
        self.redis.zadd("ql:completed", {jid: self.now})

    def recur(self, queue, jid, klass, data, interval, offset, priority=0, tags=(), retries=0, backlog=0):
        record = {
            "jid": jid, "klass": klass, "data": data, "priority": priority, "tags": _lua(tags), "state": "recur",
            "queue": queue, "type": "interval", "count": 0, "interval": interval, "retries": retries,
            "backlog": backlog,
        }  # fmt: skip
        if self._throttles:
            record["throttles"] = _lua([f"ql:q:{queue}"])
        self.redis.hset(f"ql:r:{jid}", mapping=record)
        self._place(queue, "recur", jid, self.now + offset)
        self.redis.zadd("ql:queues", {queue: self.now}, nx=True)

    def throttle(self, name, maximum):
        self.redis.hset(f"ql:th:{name}", mapping={"id": name, "maximum": maximum})

    def pause(self, queue):
        self.redis.sadd("ql:paused_queues", queue)

    def track(self, jid):
        self.redis.zadd("ql:tracked", {jid: self.now})

    def configure(self, option, value):
        self.redis.hset("ql:config", option, value)

    def _is_full(self, name):
        maximum = int(self.redis.hget(f"ql:th:{name}", "maximum") or 0)
        return 0 < maximum <= self.redis.zcard(f"ql:th:{name}-locks")

    def _put_back(self, jid, worker):
        queue = self.redis.hget(f"ql:j:{jid}", "queue").decode()
        self.redis.zrem(f"ql:q:{queue}-locks", jid)
        self.redis.zrem(f"ql:w:{worker}:jobs", jid)
        for name in json.loads(self.redis.hget(f"ql:j:{jid}", "throttles") or "[]"):
            self.redis.zrem(f"ql:th:{name}-locks", jid)

    def _place(self, queue, kind, jid, score):
        self.redis.zadd(f"ql:q:{queue}-{kind}", {jid: score})

    def _history(self, jid, what, **more):
        self.redis.rpush(f"ql:j:{jid}-history", json.dumps([int(self.now), what, *([more] if more else [])]))


def scene(old, throttles=True):
    """Bring about every state. All workers are lost for long: their locks ended half an hour before the last call."""
    old.put("mail", "failed", "shop.Mail", '{"to": 1}', priority=90, tags=["red"], retries=2)
    old.pop("mail", "w-1")
    old.now += 1
    old.fail("failed", "w-1", "mail-refused", "550 no such user")
    old.put("mail", "complete", "shop.Mail", "{}", priority=80)
    old.pop("mail", "w-1")
    old.complete("complete", "w-1", "{}")
    old.put("mail", "retried", "shop.Mail", "[]", priority=70, retries=3)
    old.pop("mail", "w-1")
    old.now += 1
    old.retry("retried", "mail", "w-1")
    old.put("slow", "stalled", "shop.Slow", '{"n": 1}')
    old.pop("slow", "w-2")
    old.now += 1800
    for n, priority in enumerate((0, 5, -5, 5)):
        old.now += 0.25
        data = '{"n": 12345678901234567890123, "list": [ ]}'
        old.put("mail", f"waiting-{n}", "shop.Mail", data, priority=priority, tags=["red", "blue"])
    old.put("mail", "scheduled", "shop.Mail", '"later"', delay=3600, priority=1)
    old.put("mail", "child", "shop.Album", "null", depends=["waiting-0", "failed", "complete", "gone"])
    old.put("slow", "grandchild", "shop.Album", "null", depends=["child", "scheduled"])
    old.put("slow", "older", "shop.Album", "null")
    old.recur("slow", "tick", "shop.Tick", '{"at": []}', 60, 30, priority=2, tags=["clock"], retries=1, backlog=3)
    old.recur("slow", "late", "shop.Tick", "{}", 600, -100)
    old.pause("slow")
    old.track("waiting-1")
    old.configure("heartbeat", 60)
    if not throttles:
        old.configure("mail-max-concurrency", 7)
        return
    old.throttle("api", 1)
    old.throttle("ql:q:mail", 7)
    old.put("third", "at-api", "shop.Call", "{}", throttles=["api"])
    old.now -= 1800
    old.pop("third", "w-3")
    old.now += 1800
    old.put("third", "throttled", "shop.Call", "{}", throttles=["api"])


def _lua(names):
    return json.dumps(list(names)) if names else "{}"


def _number(value):
    return f"{value:.17g}"
