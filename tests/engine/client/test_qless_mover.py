"""Jobs of qless and reqless move here with all that they have, each exactly once, wherever the move is killed."""

import json
import re
import subprocess
import sys
import time
from collections import Counter

import pytest
from redis.connection import AbstractConnection

from supervisor.engine.client.connection import find_server
from supervisor.engine.client.qless import RIGHTS, JobsChanged, Left, OldPlace, Qless
from supervisor.engine.client.qless_mover import Mover
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands.qless import MOVED
from supervisor.engine.model.errors import LeaseholdError, StoreUnavailable
from tests import servers
from tests.docs.pages import ROOT
from tests.engine.client.old_qless import OldQless, scene
from tests.lengths import LONG, SOON_S

PAGE = ROOT / "supervisor/docs/from_qless.md"
PLACED = {
    "mail": {"failed", "retried", "waiting-0", "waiting-1", "waiting-2", "waiting-3", "scheduled", "child"},
    "slow": {"stalled", "grandchild", "older"},
    "third": {"at-api", "throttled"},
}
JIDS = set().union(*PLACED.values())
ANOTHER = "another job of this jid is here already, or it has changed there since"
MOVER = "ql:leasehold:mover"
#: Jobs that a process moves while it is killed.
JOBS = 3000 if LONG else 1500
#: Keys that stay: completed jobs, what only counts, and settings.
STAY = {
    "ql:completed", "ql:config", "ql:j:complete", "ql:j:complete-history", "ql:th:api", "ql:th:ql:q:mail",
    "ql:workers",
}  # fmt: skip


@pytest.fixture(scope="module")
def there():
    """A server of its own: qless's keys have fixed names."""
    with servers.running(servers.binary()) as socket, servers.connected(socket) as connection:
        yield f"unix://{socket}", connection


@pytest.fixture
def redis(there):
    there[1].flushall()
    return there[1]


@pytest.fixture
def old(redis):
    """Records whose workers are lost for long."""
    return OldQless(redis, time.time() - 2000)


@pytest.fixture
def source(there):
    source = Qless(find_server(there[0]))
    yield source
    source.close()


@pytest.fixture
def move(source, live):
    return lambda: Mover(source, live).move()


def names(redis):
    return {key.decode() for key in redis.keys("*")}


def test_moved_jobs_keep_their_attributes(move, old, redis, live):
    scene(old)
    due_unix = redis.zscore("ql:q:mail-scheduled", "scheduled")
    moved = move()
    assert (moved.jobs, moved.recurring, moved.left) == (len(JIDS), 2, [])
    assert names(redis) == STAY
    jobs = {jid: live.job(jid) for jid in JIDS}
    assert {queue: {jid for jid in JIDS if jobs[jid].queue == queue} for queue in PLACED} == PLACED
    states = {"failed": "failed", "scheduled": "scheduled", "child": "depends", "grandchild": "depends"}
    assert {jid: job.state for jid, job in jobs.items()} == dict.fromkeys(JIDS, "waiting") | states
    assert jobs["waiting-1"].raw == b'{"n": 12345678901234567890123, "list": [ ]}'
    assert (jobs["waiting-1"].priority, jobs["waiting-1"].tags) == (-5, ["red", "blue"])
    assert (jobs["retried"].retries, jobs["failed"].retries, jobs["waiting-1"].retries) == (2, 2, 5)
    assert jobs["scheduled"].due_unix == pytest.approx(due_unix, abs=0.001)
    assert [jid for jid, job in jobs.items() if job.tracked] == ["waiting-1"]
    parents = {"child": ["failed", "waiting-0"], "grandchild": ["child", "scheduled"]}
    assert {jid: sorted(job.dependencies) for jid, job in jobs.items() if job.dependencies} == parents
    assert jobs["child"].on_parent_failure == "wait"
    failure = {"group": "mail-refused", "message": "550 no such user", "when": int(old.now) - 1802, "worker": "w-1"}
    assert jobs["failed"].failure == failure and live.failed() == {"mail-refused": 1}
    assert [entry["what"] for entry in jobs["failed"].log[0]["data"]] == ["put", "popped", "failed"]
    assert jobs["at-api"].limit == jobs["throttled"].limit == "api" and live.limit("api").running == 1
    assert live.config.get("max-concurrency-mail") == 7 and live.queue("slow").counts().paused


def test_jobs_start_in_the_order_of_qless(move, old, live):
    scene(old)
    there = old.redis.zrevrange("ql:q:mail-work", 0, -1)
    move()
    here = [lease.jid for lease in live.queue("mail").lease("w", 7)]
    assert here == [jid.decode() for jid in there] == ["retried", "waiting-1", "waiting-3", "waiting-0", "waiting-2"]


def test_recurring_jobs_keep_their_times(move, old, redis, live):
    scene(old)
    times = dict(redis.zrange("ql:q:slow-recur", 0, -1, withscores=True))
    move()
    tick, late = live.recurring("tick"), live.recurring("late")
    assert (tick.klass, tick.raw, tick.every_s, tick.priority, tick.tags, tick.retries, tick.backlog) == (
        "shop.Tick", b'{"at": []}', 60, -2, ["clock"], 1, 3,
    )  # fmt: skip
    assert (late.every_s, late.backlog, late.missed, late.queue) == (600, None, "all", "slow")
    found = [tick.next_unix, late.next_unix]
    assert found == pytest.approx([times[b"tick"], times[b"late"]], abs=0.001)


def test_jobs_of_the_oldest_qless_have_no_throttles(move, redis, live):
    scene(OldQless(redis, time.time() - 2000, throttles=False), throttles=False)
    moved = move()
    assert (moved.jobs, moved.left) == (len(JIDS) - 2, [])
    assert names(redis) == STAY - {"ql:th:api", "ql:th:ql:q:mail"}
    assert live.config.get("max-concurrency-mail") == 7


def test_history_in_the_record_is_kept(move, old, redis, live):
    old.put("q", "a", "K", "{}")
    older = [{"q": "q", "put": 100, "popped": 110, "worker": "w"}]
    redis.hset("ql:j:a", "history", json.dumps(older))
    redis.rpush("ql:j:a-history", *[json.dumps([n, "log", {"text": "x" * 300}]) for n in range(30)])
    redis.rpush("ql:j:a-history", json.dumps([31, "log", {"text": "x" * 10_000}]))
    move()
    entries = [entry for line in live.job("a").log for entry in line["data"]]
    assert entries[0] == older[0] and [entry["when"] for entry in entries[2:]] == [*range(30), 31]
    assert entries[-1]["left_out_bytes"] > 10_000 and entries[-2]["text"] == "x" * 300


def test_many_large_entries_of_a_history_keep_within_its_lines(move, old, redis, live):
    old.put("q", "a", "K", "{}")
    redis.rpush("ql:j:a-history", *[json.dumps([n, "log", {"text": "x" * 4000}]) for n in range(80)])
    assert move().left == []
    assert sum(len(line["data"]) for line in live.job("a").log) > 80


def test_long_history_is_cut_and_told_again(old, redis, source, live, monkeypatch):
    """A history here keeps its first and its last 99 entries."""
    old.put("q", "a", "K", "{}")
    redis.hset("ql:j:a", "history", json.dumps([{"put": n} for n in range(20_000)]))
    old.put("q", "b", "K", "{}")
    redis.rpush("ql:j:b-history", *[json.dumps([n, "log", {"text": "x" * 3400}]) for n in range(150)])
    monkeypatch.setattr(source, "remove", killed_here)
    with pytest.raises(Killed):
        Mover(source, live).move()
    monkeypatch.undo()
    assert Mover(source, live).move().jobs == 2
    logs = {jid: [[*line["data"]] for line in live.job(jid).log if line["message"] == MOVED] for jid in ("a", "b")}
    assert sum(map(len, logs["a"])) == 200 and logs["a"][-1][-1]["what"] == "put"
    assert [entry["when"] for [entry] in logs["b"]] == list(range(60, 150))


def test_data_of_any_size_are_read_in_bounded_steps(move, old, source, live, redis, monkeypatch):
    for n in range(3):
        old.recur("q", f"r-{n}", "K", json.dumps("x" * 5 * 2**20), 60, 60)
    assert len(source.page(OldPlace(b"ql:q:q-recur", b"q", "recur"), 0)) == 1
    assert move().recurring == 3
    for name in ("failure", "history", "tags"):
        jids = [f"{name}-{n}" for n in range(3)]
        for jid in jids:
            old.put(name, jid, "K", "{}")
            redis.hset(f"ql:j:{jid}", name, json.dumps(["x" * 5 * 2**20]))
        assert len(source.page(OldPlace(f"ql:q:{name}-work".encode(), name.encode(), "work"), 0)) == 1
        redis.delete(f"ql:q:{name}-work")
    old.put("q", "a", "K", json.dumps("x" * 998))
    old.recur("q", "tick", "K", json.dumps("x" * 998), 60, 60)
    monkeypatch.setattr("supervisor.engine.client.qless.DATA_BYTES", 999)
    why = "its data has 1000 bytes, of at most 999"
    assert move().left == [Left("q", "a", why), Left("q", "tick", why)]


def test_fields_that_are_too_large_are_not_read(move, old, redis, monkeypatch):
    monkeypatch.setattr("supervisor.engine.client.qless._PAGE_BYTES", 999)
    for name in ("failure", "history", "tags"):
        old.put("q", name, "K", "{}")
        redis.hset(f"ql:j:{name}", name, json.dumps(["x" * 996]))
    old.recur("q", "tick", "K", "{}", 60, 60, tags=["x" * 996])
    named = {left.jid: left.why for left in move().left}
    of_field = {name: f"its {name} has 1000 bytes, of at most 999" for name in ("failure", "history", "tags")}
    assert named == of_field | {"tick": of_field["tags"]}


def test_only_so_many_bytes_of_a_history_are_read(old, source, redis):
    old.put("q", "few", "K", "{}")
    old.put("q", "many", "K", "{}")
    for n in range(200):
        redis.rpush("ql:j:many-history", json.dumps([n, "log", {"text": "x" * 20_000}]))
    before = redis.info("stats")["total_net_output_bytes"]
    place = OldPlace(b"ql:q:q-work", b"q", "work")
    jobs = source.jobs(place, source.page(place, 0))
    assert redis.info("stats")["total_net_output_bytes"] - before < 1_000_000
    entries = {job.jid: [each for log in job.logs for each in json.loads(log.args[-1])["data"]] for job in jobs}
    assert {jid: len(each) for jid, each in entries.items()} == {"few": 1, "many": 31}
    assert [each["when"] for each in entries["many"]] == [*range(169, 200)]


class Killed(BaseException):
    """The process ends here."""


def killed_here(*_):
    raise Killed


def kill_at(monkeypatch, number, *, sent):
    """End the move at this command of either connection: before it is sent, or after. Return how many there were."""
    real, count = AbstractConnection.send_packed_command, iter(range(1_000_000))
    said = []

    def send(self, command, check_health=True):
        said.append(next(count))
        if sent:
            real(self, command, check_health)
        if said[-1] == number:
            raise Killed
        if not sent:
            real(self, command, check_health)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", send)
    return said


@pytest.mark.parametrize("sent", [False, True], ids=["unsent", "unanswered"])
def test_killed_move_goes_on_and_doubles_nothing(there, old, redis, server, live, namespace, monkeypatch, sent):
    """Workers here run what comes, in between."""
    number, stride, was_killed = 0, 1 if LONG else 5, True
    while was_killed:
        redis.flushall()
        for key in server.redis.scan_iter(f"{{{namespace}}}:*", count=1000):
            server.redis.unlink(key)
        old.now = time.time() - 2000
        scene(old)
        ran = Counter()
        with monkeypatch.context() as patched:
            kill_at(patched, number, sent=sent)
            was_killed = killed(there, live)
        run_all(live, ran)
        source = Qless(find_server(there[0]))
        assert not Mover(source, live).move().left, number
        source.close()
        run_all(live, ran)
        assert names(redis) == STAY, number
        here = {jid: job.state for jid, job in zip(sorted(JIDS), live.jobs(*sorted(JIDS)), strict=True)}
        assert ran == Counter(jid for jid, state in here.items() if state == "complete"), number
        free = {"retried", "at-api", "throttled", *(f"waiting-{n}" for n in range(4))}
        rest = {"failed": "failed", "scheduled": "scheduled", "stalled": "waiting", "older": "waiting"}
        depend = {"child": "depends", "grandchild": "depends"}
        assert here == dict.fromkeys(free, "complete") | rest | depend, number
        assert live.failed() == {"mail-refused": 1} and sorted(live.job("child").dependencies) == ["failed"]
        logged = [entry for jid in free for line in live.job(jid).log for entry in line["data"]]
        assert len(logged) == 7 + 3, number  # each was put, three have more
        number += stride
    assert number > 100


def killed(there, live):
    source = Qless(find_server(there[0]))
    try:
        Mover(source, live).move()
    except Killed:
        time_passes(there[1])
        return True
    return False


def time_passes(redis):
    """Let 10 seconds pass for the move that is under way."""
    for name in redis.zrange(MOVER, 0, -1):
        redis.zincrby(MOVER, -10.001, name)


def meanwhile(monkeypatch, source, act, call="begin_removal", at=1):
    """Do this once, before a call of the move: by default when the jobs of its first step have been put here."""
    real, calls = getattr(source, call), iter(range(1, 1_000_000))

    def act_and_call(*given):
        if next(calls) == at:
            act()
        return real(*given)

    monkeypatch.setattr(source, call, act_and_call)


def run_all(live, ran):
    for queue in ("mail", "third"):
        while leases := live.queue(queue).lease("w", 10):
            for lease in leases:
                ran[lease.jid] += lease.complete() is True


def apply(there, server, namespace):
    """Return the command that moves all."""
    words = ["adopt", f"qless+{there[0]}", "--apply", "--redis-url", server.url, "--namespace", namespace]
    return [sys.executable, "-m", "supervisor", *words]


@pytest.mark.sampled(3)
def test_killed_process_loses_and_doubles_nothing(there, redis, server, namespace, live):
    old = OldQless(redis, time.time() - 2000)
    for n in range(JOBS):
        old.put("mail", f"job-{n}", "K", f'{{"n": {n}}}', tags=["t"], depends=[f"job-{n - 1}"] if n % 10 == 9 else [])
    command = apply(there, server, namespace)
    kills, ran = 0, Counter()
    while kills < 5:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        before, deadline_at = redis.zcard("ql:q:mail-work"), time.monotonic() + SOON_S
        while process.poll() is None and redis.zcard("ql:q:mail-work") > max(before - JOBS // 8, 0):
            assert time.monotonic() < deadline_at
        process.kill()
        process.communicate()
        time_passes(redis)
        kills += 1
        for lease in live.queue("mail").lease("w", JOBS // 15):
            ran[lease.jid] += lease.complete() is True
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON_S * 10, check=False)
    assert done.returncode == 0, done.stderr
    while leases := live.queue("mail").lease("w", 1000):
        for lease in leases:
            ran[lease.jid] += lease.complete() is True
    assert ran == Counter(f"job-{n}" for n in range(JOBS))
    assert names(redis) == set()


def test_parents_move_before_their_children(move, old, live):
    old.put("a", "root", "K", "{}")
    for n in range(250):
        queue = "ab"[n % 2]
        old.put(queue, f"child-{n}", "K", "{}", depends=[f"child-{n - 1}" if n else "root"])
    moved = move()
    assert (moved.jobs, moved.left) == (251, [])
    assert all(live.job(f"child-{n}").dependencies for n in range(250))


@pytest.mark.sampled(3)
def test_chain_through_queues_is_followed(old, source, live, monkeypatch):
    """A look at all of a queue for each job of the chain would take minutes."""
    old.put("a", "child-0", "K", "{}")
    for n in range(1, 1001):
        old.put("ab"[n % 2], f"child-{n}", "K", "{}", depends=[f"child-{n - 1}"])
    pages, page = [], source.page
    monkeypatch.setattr(source, "page", lambda *given: pages.append(given) or page(*given))
    assert Mover(source, live).move().jobs == 1001
    assert len(pages) < 40


def test_jobs_that_are_none_here_stay_and_are_named(move, old, redis, live):
    long = "x" * 65
    old.put("q", "good", "K", "{}")
    for jid in ("data", "tags", "priority", "retries", "failure", "history", "parents"):
        old.put("q", jid, "K", "{}")
    redis.hset("ql:j:data", "data", "{")
    redis.hset("ql:j:tags", "tags", "[1]")
    redis.hset("ql:j:priority", "priority", "0.5")
    redis.hset("ql:j:retries", "remaining", "many")
    redis.rpush("ql:j:history-history", "{")
    redis.hset("ql:j:failure", mapping={"state": "failed", "failure": '{"group": 7}'})
    redis.zrem("ql:q:q-work", "failure")
    redis.lpush("ql:f:g", "failure")
    redis.sadd("ql:failures", "g")
    old.put("q", long, "K", "{}")
    old.put("q", "klass", long, "{}")
    old.put(long, "queue", "K", "{}")
    old.put("q", "orphan", "K", "{}", depends=["data"])
    old.put("q", b"\xff\xfe".decode("latin1"), "K", "{}")
    redis.zadd("ql:q:q-work", {b"\xff": 1, "phantom": 1})
    redis.hset(b"ql:j:\xff", mapping=redis.hgetall("ql:j:good"))
    old.put("q", "done", "K", "{}")
    redis.hset("ql:j:done", "state", "complete")
    old.put("q", "loop-1", "K", "{}", depends=["good"])
    old.put("q", "loop-2", "K", "{}", depends=["loop-1"])
    redis.sadd("ql:j:loop-1-dependencies", "loop-2")
    old.recur("q", "recurring", "K", "{}", 0, 0)
    old.put("q", "huge", "K", "{}", depends=["good"])
    redis.sadd("ql:j:huge-dependencies", *range(1200))
    for jid, next_unix in (("beyond", 1e300), ("before", -1e18)):
        old.recur("q", jid, "K", "{}", 60, 0)
        redis.zadd("ql:q:q-recur", {jid: next_unix})
    live.queue("q").put("Other", jid="parents")
    redis.set("ql:j:string", "x")
    redis.set("ql:r:string", "x")
    redis.zadd("ql:q:q-work", {"string": 9})
    redis.zadd("ql:q:q-recur", {"string": 9})
    for jid, more in (("no-list", "history"), ("no-set", "dependencies")):
        old.put("q", jid, "K", "{}")
        redis.delete(f"ql:j:{jid}-{more}")
        redis.set(f"ql:j:{jid}-{more}", "x")
    old.put("q", "of-string", "K", "{}", depends=["good"])
    redis.sadd("ql:j:of-string-dependencies", "string")
    redis.zadd("ql:queues", {b"q\xff": 1})
    redis.zadd(b"ql:q:q\xff-work", {"phantom-2": 1})
    redis.hset("ql:j:phantom-2", mapping=redis.hgetall("ql:j:good"))
    moved = move()
    why = {left.jid: left.why for left in moved.left}
    assert {jid: reason.partition(":")[0] for jid, reason in why.items()} == {
        "data": "its data is not JSON",
        "tags": "its tags are no list of names",
        "priority": "its priority is not a whole number",
        "retries": "its remaining is no number",
        "history": "its history is not JSON",
        "failure": "its failure has no group",
        long: "jid must have 1 to 64 bytes in UTF-8, not 65",
        "klass": "klass must have 1 to 64 bytes in UTF-8, not 65",
        "queue": "queue must have 1 to 64 bytes in UTF-8, not 65",
        "orphan": "it waits for data, which stays there",
        "\\xff": "its jid is not UTF-8",
        "phantom": "its record is gone",
        "done": "it lies where jobs wait, and its record says that it is complete",
        "loop-1": "it waits for loop-2, which stays there",
        "loop-2": "it waits for loop-1, which stays there",
        "recurring": "every must be 0.001 or more",
        "huge": "depends must be at most 1000 names, not 1001",
        "parents": ANOTHER,
        "beyond": "next time must be a finite number of seconds",
        "before": "next time must be a finite number of seconds",
        "string": "its record is no hash",
        "no-list": "its dependencies or dependents are no set, or its history is no list",
        "no-set": "its dependencies or dependents are no set, or its history is no list",
        "of-string": "it waits for string, which stays there",
        "phantom-2": "its queue is not UTF-8",
    }
    assert (moved.jobs, moved.number_left) == (2, len(why) + 1)  # a job and a recurring job have one jid
    assert live.job("parents").klass == "Other" and redis.hget("ql:j:data", "data") == b"{"
    redis.hset("ql:j:data", "data", "[]")
    assert "orphan" not in {left.jid for left in move().left} and live.job("orphan").dependencies == ["data"]


def test_index_of_another_type_stops_nothing(move, old, redis, live):
    for n in range(150):
        old.put("q", f"a-{n}", "K", "{}", tags=["t"])
    redis.delete("ql:t:t")
    redis.set("ql:t:t", "x")
    assert move().jobs == 150 and names(redis) == {"ql:t:t"}


def test_job_stays_with_a_parent_of_its_page(move, old, live):
    live.queue("q").put("Other", jid="taken")
    old.put("q", "root", "K", "{}")
    old.put("q", "taken", "K", "{}", depends=["root"])
    old.put("q", "child", "K", "{}", depends=["taken"])
    old.put("q", "brother", "K", "{}", depends=["root"])
    moved = move()
    assert [(left.jid, left.why) for left in moved.left] == [
        ("taken", ANOTHER),
        ("child", "it waits for taken, which stays there"),
    ]
    assert moved.jobs == 2 and live.job("brother").dependencies == ["root"]


@pytest.mark.parametrize("part", ["history", "dependencies", "dependents"])
def test_job_of_the_name_of_a_part_is_not_removed_with_the_part(move, old, redis, live, part):
    old.put("q", "a", "K", "{}")
    redis.delete(f"ql:j:a-{part}")
    old.put("q", f"a-{part}", "K", "{}", delay=5000)
    moved = move()
    why = "its dependencies or dependents are no set, or its history is no list"
    assert moved.left == [Left("q", "a", why)] and live.job(f"a-{part}").state == "scheduled"
    assert move().jobs == 1 and names(redis) == set()


def test_job_that_is_refused_here_stays_alone(move, old, live):
    """A parent may have 1,000 children here."""
    old.put("q", "root", "K", "{}")
    for n in range(1001):
        old.now += 0.001
        old.put("q", f"child-{n}", "K", "{}", depends=["root"])
    old.put("q", "grandchild", "K", "{}", depends=["child-1000"])
    moved = move()
    assert [left.jid for left in moved.left] == ["child-1000", "grandchild"] and moved.jobs == 1001
    assert "as 1000 jobs do" in moved.left[0].why and moved.left[1].why == "it waits for child-1000, which stays there"


@pytest.mark.parametrize("living", ["seen", "holds"])
def test_nothing_moves_while_a_worker_lives(move, old, redis, live, server, namespace, living):
    old.put("q", "a", "K", "{}")
    old.now = time.time() - (0 if living == "seen" else 30)
    old.put("q", "b", "K", "{}", priority=1)
    old.pop("q", "web-1")
    if living == "holds":
        redis.delete("ql:workers")
    before, ours = {key: redis.dump(key) for key in redis.keys("*")}, server.dump(namespace)
    said = "worker web-1 was seen" if living == "seen" else "job b of queue q is held by a worker for another"
    with pytest.raises(LeaseholdError, match=f"nothing can be moved while workers live there: .*{said}"):
        move()
    assert ({key: redis.dump(key) for key in redis.keys("*")}, server.dump(namespace)) == (before, ours)


def test_worker_counts_as_living_for_its_longest_heartbeat(move, old, redis):
    old.put("q", "a", "K", "{}")
    redis.zadd("ql:workers", {"web-1": time.time() - 90})
    old.configure("q-heartbeat", 300)
    with pytest.raises(LeaseholdError, match="310 s after it was seen last"):
        move()
    redis.hdel("ql:config", "q-heartbeat")
    assert move().jobs == 1


def test_change_during_the_move_ends_the_move(old, redis, source, live, monkeypatch):
    old.put("q", "a", "K", "{}")
    calls = calls_of(live)
    put = calls.put_jobs

    def put_and_change(jobs):
        old.put("q", "a", "K", "[1]")
        return put(jobs)

    monkeypatch.setattr(calls, "put_jobs", put_and_change)
    with pytest.raises(LeaseholdError, match="jobs changed there while they were moved"):
        Mover(source, live).move()
    monkeypatch.undo()
    assert redis.hget("ql:j:a", "data") == b"[1]" and live.job("a") is None
    assert Mover(source, live).move().jobs == 1 and live.job("a").raw == b"[1]"


def test_job_that_a_worker_there_takes_meanwhile_runs_only_there(old, source, live, server, namespace, monkeypatch):
    scene(old)
    remove, jids = source.remove, []

    def pop_and_remove(*given):
        if not jids:
            old.now = time.time()
            jids.append(old.pop("mail", "web-9"))
        remove(*given)

    monkeypatch.setattr(source, "remove", pop_and_remove)
    with pytest.raises(JobsChanged, match=r"a worker, a producer or another move still runs.* goes on where it was$"):
        Mover(source, live).move()
    assert len(jids) == 1 and old.redis.hget(f"ql:j:{jids[0]}", "state") == b"running"
    assert live.jobs(*JIDS) == [None] * len(JIDS)


def test_jobs_that_have_started_in_both_places_are_named(old, source, live, monkeypatch):
    for jid in ("a", "b"):
        old.put("q", jid, "K", "{}")
        old.now += 1
    remove = source.remove

    def start_and_remove(pipe, place, job):
        if job.jid == "a":
            assert [lease.jid for lease in live.queue("q").lease("w", 1)] == ["a"]
            old.put("q", "a", "K", "[1]")
        remove(pipe, place, job)

    monkeypatch.setattr(source, "remove", start_and_remove)
    with pytest.raises(JobsChanged, match=r"may run in both places: a \(running here\)$"):
        Mover(source, live).move()
    assert live.job("a").state == "running" and live.job("b") is None
    monkeypatch.undo()
    [left] = Mover(source, live).move().left
    assert left == Left("q", "a", ANOTHER)


def test_job_that_starts_here_in_the_instant_of_its_cancellation_is_named(old, redis, source, live, monkeypatch):
    old.put("q", "a", "K", "{}")
    look, leased = live.job, []

    def look_and_lease(jid):
        found = look(jid)
        if not leased:
            leased.extend(live.queue("q").lease("w"))
        return found

    meanwhile(monkeypatch, source, lambda: redis.hset("ql:j:a", "priority", 3))
    monkeypatch.setattr(live, "job", look_and_lease)
    with pytest.raises(JobsChanged, match=r"may run in both places: a \(running here\)$"):
        Mover(source, live).move()
    assert [lease.complete() for lease in leased] == [True]


def test_mover_names_a_job_with_dependents_and_takes_others_back(old, redis, source, live, monkeypatch):
    for n in range(5):
        old.put("q", f"a-{n}", "K", "{}", delay=5000)

    def put_child_and_change():
        live.queue("q").put("K", jid="child", depends=["a-0"], on_parent_failure="wait")
        redis.hset("ql:j:a-1", "priority", 3)

    meanwhile(monkeypatch, source, put_child_and_change)
    with pytest.raises(JobsChanged, match=r"may run in both places: a-0 \(scheduled here\)$"):
        Mover(source, live).move()
    assert live.job("a-0").state == "scheduled" and live.jobs(*(f"a-{n}" for n in range(1, 5))) == [None] * 4


def test_family_of_a_step_is_taken_back(old, redis, source, live, monkeypatch):
    for n in range(4):
        old.put("q", f"a-{n}", "K", "{}", delay=5000, depends=[f"a-{n - 1}"] if n else [])
    steps = "begin_removal", 2
    meanwhile(monkeypatch, source, lambda: redis.hset("ql:j:a-2", "priority", 3), *steps)
    with pytest.raises(JobsChanged, match=r"goes on where it was$"):
        Mover(source, live).move()
    assert live.jobs("a-1", "a-2", "a-3") == [None] * 3 and live.job("a-0").state == "scheduled"


def test_job_that_is_gone_there_meanwhile_is_not_taken_back(old, redis, source, live, monkeypatch):
    old.put("q", "a", "K", "{}")
    old.put("q", "b", "K", "{}")

    def cancel_and_change():
        redis.zrem("ql:q:q-work", "b")
        redis.delete("ql:j:b", "ql:j:b-history")
        redis.hset("ql:j:a", "priority", 3)

    meanwhile(monkeypatch, source, cancel_and_change)
    with pytest.raises(JobsChanged, match=r"Gone there, and only here now: b$"):
        Mover(source, live).move()
    assert live.job("a") is None and live.job("b").state == "waiting"


def test_job_that_has_completed_there_meanwhile_is_taken_back(old, redis, source, live, monkeypatch):
    old.put("q", "a", "K", "{}")

    def complete():
        old.pop("q", "w-1")
        old.complete("a", "w-1", "{}")

    meanwhile(monkeypatch, source, complete)
    with pytest.raises(JobsChanged, match=r"goes on where it was$"):
        Mover(source, live).move()
    assert live.job("a") is None


@pytest.fixture
def other(there):
    """The connection of another move."""
    other = Qless(find_server(there[0]))
    yield other
    other.close()


def test_two_moves_are_never_under_way(old, redis, source, other, live, monkeypatch):
    old.put("q", "a", "K", "{}")
    old.recur("q", "tick", "K", "{}", 60, 5000)

    def move_too():
        with pytest.raises(LeaseholdError, match="another move is under way there, or was killed less than 10 s ago"):
            Mover(other, live).move()

    meanwhile(monkeypatch, source, move_too)
    moved = Mover(source, live).move()
    assert (moved.jobs, moved.recurring, names(redis)) == (1, 1, set())
    assert live.job("a").state == "waiting" and live.recurring("tick").every_s == 60


@pytest.mark.parametrize("kind", ["job", "recurring"])
def test_slow_move_takes_nothing_back_from_the_next_one(old, redis, source, other, live, monkeypatch, kind):
    """The next move has removed these jobs there: they would be lost if this one cancelled them here."""
    if kind == "job":
        old.put("q", "a", "K", "{}")
    else:
        old.recur("q", "a", "K", "{}", 60, 5000)

    def move_too():
        time_passes(redis)
        moved = Mover(other, live).move()
        assert moved.jobs + moved.recurring == 1

    meanwhile(monkeypatch, source, move_too)
    with pytest.raises(JobsChanged, match="another move still runs"):
        Mover(source, live).move()
    assert (live.job("a") if kind == "job" else live.recurring("a")) is not None and names(redis) == set()


def test_slow_move_ends_before_its_next_step(old, redis, source, other, live, monkeypatch):
    old.put("q", "a", "K", "{}")
    old.put("r", "b", "K", "{}")

    def begin_another():
        time_passes(redis)
        monkeypatch.setattr(other, "remove", killed_here)
        with pytest.raises(Killed):
            Mover(other, live).move()

    meanwhile(monkeypatch, source, begin_another, "step", at=2)
    with pytest.raises(LeaseholdError, match="another move has begun there"):
        Mover(source, live).move()
    monkeypatch.undo()
    assert Mover(source, live).move().jobs == 1 and live.job("a").state == live.job("b").state == "waiting"


@pytest.mark.sampled(3)
def test_two_processes_lose_and_double_nothing(there, redis, server, namespace, live):
    old = OldQless(redis, time.time() - 2000)
    for n in range(JOBS):
        old.put("mail", f"job-{n}", "K", f'{{"n": {n}}}', tags=["t"])
    moves = [
        subprocess.Popen(apply(there, server, namespace), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=SOON_S * 10) for process in moves]
    assert min(process.returncode for process in moves) == 0, said
    ran = Counter()
    while leases := live.queue("mail").lease("w", 1000):
        for lease in leases:
            ran[lease.jid] += lease.complete() is True
    assert ran == Counter(f"job-{n}" for n in range(JOBS)) and names(redis) == set()


def test_parent_that_is_added_meanwhile_is_not_lost(old, redis, source, live, monkeypatch):
    for jid in ("p-1", "p-2"):
        old.put("q", jid, "K", "{}", delay=5000)
    old.put("q", "child", "K", "{}", depends=["p-1"])

    def depend():
        redis.sadd("ql:j:p-2-dependents", "child")
        redis.sadd("ql:j:child-dependencies", "p-2")

    meanwhile(monkeypatch, source, depend, at=2)
    with pytest.raises(JobsChanged):
        Mover(source, live).move()
    monkeypatch.undo()
    assert live.job("child") is None
    assert Mover(source, live).move().jobs == 1 and sorted(live.job("child").dependencies) == ["p-1", "p-2"]


def test_lost_connection_is_told_as_one_and_takes_nothing_back(old, redis, source, live, monkeypatch):
    old.put("q", "a", "K", "{}")
    remove = source.remove

    def lose_and_remove(*given):
        redis.client_kill_filter(_type="normal", skipme=True)
        remove(*given)

    monkeypatch.setattr(source, "remove", lose_and_remove)
    with pytest.raises(StoreUnavailable, match=r"cannot reach Redis .* A move goes on where it was"):
        Mover(source, live).move()
    assert live.job("a").state == "waiting" and redis.exists("ql:j:a")
    monkeypatch.undo()
    assert Mover(source, live).move().jobs == 1 and not redis.exists("ql:j:a")


def test_recurrence_that_changes_meanwhile_is_taken_back(old, redis, source, live, monkeypatch):
    old.recur("q", "tick", "K", "{}", 60, 600)
    recurrences = source.recurrences

    def read_and_count(*given):
        found = recurrences(*given)
        redis.hincrby("ql:r:tick", "count", 1)
        return found

    monkeypatch.setattr(source, "recurrences", read_and_count)
    with pytest.raises(JobsChanged, match="jobs changed there"):
        Mover(source, live).move()
    assert live.recurring("tick") is None and redis.exists("ql:r:tick")


def test_jobs_that_a_recurrence_has_made_meanwhile_are_named(old, redis, source, live, monkeypatch):
    old.recur("q", "late", "K", "{}", 600, -1000)

    def lease_and_count():
        assert [lease.jid for lease in live.queue("q").lease("w")] == ["late-1"]
        redis.hincrby("ql:r:late", "count", 1)

    meanwhile(monkeypatch, source, lease_and_count)
    with pytest.raises(JobsChanged, match=r"may run in both places: late-1 \(running here\), late-2 \(waiting here\)"):
        Mover(source, live).move()
    assert live.recurring("late") is None and redis.exists("ql:r:late")


def test_failed_job_never_starts_before_its_failure_is_stored_here(old, source, live, monkeypatch):
    scene(old)
    calls = calls_of(live)
    run = calls.run
    monkeypatch.setattr(calls, "run", lambda command: killed_here() if command.script.name == "fail" else run(command))
    with pytest.raises(Killed):
        Mover(source, live).move()
    monkeypatch.undo()
    assert live.job("failed").state == "scheduled" and old.redis.exists("ql:j:failed")
    assert "failed" not in [lease.jid for lease in live.queue("mail").lease("w", 10)]
    Mover(source, live).move()
    assert live.job("failed").failure["message"] == "550 no such user" and not old.redis.exists("ql:j:failed")


def test_handler_may_change_the_data_of_what_was_put(old, source, live, monkeypatch):
    old.put("q", "a", "K", "{}")
    monkeypatch.setattr(source, "remove", killed_here)
    with pytest.raises(Killed):
        Mover(source, live).move()
    [lease] = live.queue("q").lease("w")
    assert lease.complete(data=[1])
    monkeypatch.undo()
    assert Mover(source, live).move().jobs == 1 and live.job("a").state == "complete"


def test_equal_job_that_was_put_here_is_another(move, old, live, redis):
    for queue, jid in (("q", "daily"), ("other", "elsewhere"), ("q", "waiting")):
        live.queue(queue).put("K", {}, jid=jid)
    [lease] = live.queue("q").lease("w")
    assert lease.jid == "daily" and lease.complete()
    for jid in ("daily", "elsewhere", "waiting"):
        old.put("q", jid, "K", "{}")
    moved = move()
    assert moved.jobs == 0 and {left.jid: left.why for left in moved.left} == dict.fromkeys(
        ("daily", "elsewhere", "waiting"),
        ANOTHER,
    )
    assert redis.hget("ql:j:daily", "state") == b"waiting"


def test_equal_job_of_the_same_second_is_another(move, old, redis, live):
    old.now = int(old.now) + 0.1
    old.put("q", "a", "K", "{}")
    assert move().jobs == 1
    [lease] = live.queue("q").lease("w")
    assert lease.complete()
    old.now += 0.5
    old.put("q", "a", "K", "{}")
    assert move().left == [Left("q", "a", ANOTHER)] and redis.hget("ql:j:a", "state") == b"waiting"


@pytest.mark.parametrize("change", ["priority", "tags", "remaining", "due"])
def test_job_that_changes_after_a_killed_move_stays(old, redis, source, live, monkeypatch, change):
    old.put("q", "a", "K", "{}", delay=5000)
    monkeypatch.setattr(source, "remove", killed_here)
    with pytest.raises(Killed):
        Mover(source, live).move()
    monkeypatch.undo()
    if change == "due":
        redis.zincrby("ql:q:q-scheduled", 60, "a")
    else:
        redis.hset("ql:j:a", change, '["t"]' if change == "tags" else 3)
    assert Mover(source, live).move().left == [Left("q", "a", ANOTHER)] and redis.exists("ql:j:a")


def test_job_of_a_moved_recurrence_is_not_taken_for_one_that_stayed(move, old, live, redis):
    old.recur("q", "tick", "K", "{}", 60, 0)
    old.put("q", "tick-1", "K", "{")
    assert move().recurring == 1
    [lease] = live.queue("q").lease("w")
    assert lease.jid == "tick-1" and lease.complete()
    redis.hset("ql:j:tick-1", "data", "{}")
    assert [left.jid for left in move().left] == ["tick-1"] and redis.exists("ql:j:tick-1")


@pytest.mark.parametrize(
    "other",
    [
        {"every": 86400}, {"priority": 1}, {"tags": ["t"]}, {"retries": 1}, {"backlog": None}, {"missed": "once"},
        {"missed": "skip"}, {"backlog": 4}, {"lane": "acme"}, {"limit": None}, {"limit": ["api", "more"]},
        {"unique": True}, {"timeout": 9}, {"max_deaths": 1}, {"expires": 9}, {"at_most_once": True},
        {"trace": f"00-{'1' * 32}-{'2' * 16}-01"},
    ],
    ids=str,
)  # fmt: skip
def test_recurrence_of_other_options_is_another(move, old, redis, live, other):
    old.recur("q", "tick", "K", "{}", 60, 5000, retries=5, backlog=5)
    redis.hset("ql:r:tick", "throttles", '["ql:q:q", "api"]')
    options = {"every": 60, "retries": 5, "backlog": 5, "limit": "api"}
    rule = {"backlog": None} if "missed" in other else {}
    live.queue("q").recur("K", {}, jid="tick", **options | rule | other)
    why = "another recurring job of this jid is here already, or it has changed there since"
    assert move().left == [Left("q", "tick", why)] and redis.exists("ql:r:tick")
    live.unrecur("tick")
    live.queue("q").recur("K", {}, jid="tick", priority=0, tags=[], **options)
    assert move().recurring == 1


def test_producer_that_is_faster_here_loses_no_job(old, source, live, redis, monkeypatch):
    old.put("q", "parent", "K", '{"old": 1}')
    old.put("q", "brother", "K", "{}")
    once = iter([1])
    calls = calls_of(live)
    put = calls.put_jobs

    def put_later(jobs, *more):
        for _ in once:
            live.queue("q").put("Other", {"new": 1}, jid="parent")
        return put(jobs, *more)

    monkeypatch.setattr(calls, "put_jobs", put_later)
    moved = Mover(source, live).move()
    assert moved.jobs == 1 and [left.jid for left in moved.left] == ["parent"]
    assert redis.hget("ql:j:parent", "data") == b'{"old": 1}' and live.job("parent").klass == "Other"


def test_child_of_a_step_stays_with_its_parent_if_a_producer_is_faster(old, source, live, redis, monkeypatch):
    old.put("q", "root", "K", "{}")
    old.put("q", "parent", "K", "{}", depends=["root"])
    old.put("q", "child", "K", "{}", depends=["parent"])
    once = iter([1])
    calls = calls_of(live)
    put = calls.put_jobs

    def put_later(jobs, *more):
        if jobs[0].jid == "parent":
            for _ in once:
                live.queue("q").put("Other", jid="parent")
        return put(jobs, *more)

    monkeypatch.setattr(calls, "put_jobs", put_later)
    moved = Mover(source, live).move()
    assert moved.jobs == 1 and {left.jid for left in moved.left} == {"parent", "child"}
    assert live.job("child") is None and redis.exists("ql:j:child") and live.job("parent").klass == "Other"


def test_records_that_are_not_kept_could_not_be_told_again(move, old, live, redis):
    old.put("q", "a", "K", "{}")
    live.config.set("jobs-history", 0)
    with pytest.raises(LeaseholdError, match="jobs-history is 0"):
        move()
    assert redis.exists("ql:j:a")
    live.config.unset("jobs-history")
    assert move().jobs == 1


def test_failed_jobs_that_would_be_dropped_stay(move, old, live, redis):
    scene(old)
    live.config.set("failed-history-count", 0)
    with pytest.raises(LeaseholdError, match="1 jobs have failed there and 0 here, and failed-history-count is 0"):
        move()
    live.config.set("failed-history-count", 1)
    assert move().jobs == len(JIDS) and live.failed() == {"mail-refused": 1}


def test_limits_that_are_set_here_stay(move, old, live):
    scene(old)
    live.limit("api", running=9)
    live.config.set("max-concurrency-mail", 2)
    move()
    assert (live.limit("api").running, live.config.get("max-concurrency-mail")) == (9, 2)


def test_limit_that_is_too_large_bounds_nothing_and_drops_no_pause(move, old, live):
    old.put("q", "a", "K", "{}", throttles=["api"])
    old.throttle("ql:q:q", 10**18)
    old.throttle("api", 10**18)
    old.pause("q")
    assert move().jobs == 1
    assert live.queue("q").counts().paused and live.queue("q").lease("w") == []
    assert live.limit("api").running is None and live.config.get("max-concurrency-q") == 0


def test_account_of_the_page_may_move(old, redis, there, live):
    [rights] = re.findall(r"^ACL SETUSER mover (.*)$", PAGE.read_text(), re.MULTILINE)
    redis.execute_command("ACL", "SETUSER", "mover", *rights.split())
    scene(old)
    source = Qless(find_server(there[0].replace("unix://", "unix://mover:secret@")))
    assert Mover(source, live).move().jobs == len(JIDS)
    source.close()
    redis.execute_command("ACL", "DELUSER", "mover")


def test_rights_of_the_page_are_those_that_are_asked_for():
    [rights] = re.findall(r"^ACL SETUSER mover on >secret (.*)$", PAGE.read_text(), re.MULTILINE)
    assert rights == RIGHTS


@pytest.mark.parametrize("missing", [None, "del", "zrem", "lrem", "srem", "zincrby", "zremrangebyscore"])
def test_nothing_is_put_that_could_not_be_removed(old, redis, there, server, namespace, live, missing):
    rights = RIGHTS.split() if missing else ["~ql:*", "+@read", "+@transaction", "+time"]
    granted = [right for right in rights if right != f"+{missing}"]
    redis.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">secret", *granted)
    scene(old)
    before = {key: redis.dump(key) for key in redis.keys("*")}
    source = Qless(find_server(there[0].replace("unix://", "unix://reader:secret@")))
    with pytest.raises(StoreUnavailable, match=f"so nothing was put here: .*{missing or 'lrem'}.* \\+zrem"):
        Mover(source, live).move()
    source.close()
    redis.execute_command("ACL", "DELUSER", "reader")
    assert ({key: redis.dump(key) for key in redis.keys("*")}, server.dump(namespace)) == (before, {})


def test_nothing_is_put_from_a_replica(old, redis, source, server, namespace, live):
    scene(old)
    with servers.running(servers.binary()) as socket, servers.connected(socket) as replica:
        for key in redis.keys("*"):
            replica.restore(key, 0, redis.dump(key))
        replica.execute_command("REPLICAOF", "localhost", "1")  # of none: it keeps what it has
        of_replica = Qless(find_server(f"unix://{socket}"))
        with pytest.raises(StoreUnavailable, match=r"read only replica.* A move needs a master"):
            Mover(of_replica, live).move()
        of_replica.close()
    assert server.dump(namespace) == {}


def test_same_server_may_have_both(server, namespace, redis, there):
    scene(OldQless(redis, time.time() - 2000))
    with Client(there[0], namespace) as client:
        source = Qless(find_server(there[0]))
        assert Mover(source, client).move().jobs == len(JIDS)
        source.close()
        assert {key for key in names(redis) if key.startswith("ql:")} == STAY
        assert client.check() == []
