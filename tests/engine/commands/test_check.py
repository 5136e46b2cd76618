"""The consistency check finds damage, repairs it, and reports no moving job."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.client.sync_handles import Lease
from supervisor.engine.commands import check as checks
from supervisor.engine.commands import job_changes, leasing, mailbox, recurrences, waits
from supervisor.engine.commands.check import KINDS, SLICE, Violation, of_keys
from supervisor.engine.commands.command import Command
from supervisor.engine.model import scripts
from supervisor.engine.model.errors import LeaseholdError, LeaseLost
from supervisor.engine.model.validation import EXACT_INT
from tests.engine.invariants import left_over, misplaced, read_namespace
from tests.lengths import LONG

START = 1_000_000.0
DAY = 950_400  # 1970-01-12, the day of START
COUNTERS = (f"bins:{DAY}:q", f"recent:{DAY + 49_200}:q")


@dataclass
class Namespace:
    """A namespace with jobs in every place, and ways to damage it."""

    client: Client
    redis: Any
    prefix: str
    time: list[float]
    slot: Lease | None = None  # of the job that has the only slot of its limit

    def key(self, name: str) -> str:
        return self.prefix + name

    def check(self, repair: bool = False) -> list[Violation]:
        return self.client.check(repair)

    def run(self, command: Command[Any]) -> Any:
        return self.client._store.run(command)

    def write(self, name: str, fields: dict[str, object]) -> object:
        return self.redis.hset(self.key(name), mapping=fields)

    def lease(self, *queues: str, most: int = 20) -> list[str]:
        return [lease.jid for lease in self.client.lease("anybody", queues or ["q"], most)]

    def states(self, *jids: str) -> list[str | None]:
        return [job and job.state for job in self.client.jobs(*jids)]

    def members(self, name: str) -> set[str]:
        return {member.decode() for member in self.redis.zrange(self.key(name), 0, -1)}

    def member(self, jid: str) -> str:
        """Return the member of a job in waiting or scheduled."""
        return f"{int(read_namespace(self.redis, self.prefix[1:-2])[f'job:{jid}']['seq']):013x}{jid}"

    def dump(self) -> dict[bytes, bytes]:
        return {key: value for key, (_, value) in self.keys().items()}

    def keys(self) -> dict[bytes, tuple[int, bytes]]:
        """Return all keys: when each ends (ms; 0: never), and its value."""
        names = list(self.redis.scan_iter(f"{self.prefix}*", count=1000))
        with self.redis.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.pttl(name).dump(name)
            found = pipeline.execute()
        return {name: (max(0, ms), value) for name, ms, value in zip(names, found[::2], found[1::2], strict=True)}

    def fill_like(self, other: "Namespace") -> None:
        """Make this the twin of a namespace."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for name, (ms, value) in other.keys().items():
                pipeline.restore(self.prefix.encode() + name.partition(b"}:")[2], ms, value)
            pipeline.execute()
        assert other.slot is not None
        self.slot = Lease(other.slot, calls_of(self.client))


@pytest.fixture(scope="module")
def filled(server) -> Iterator[Namespace]:
    """A filled namespace to copy: a copy takes two calls, filling takes a hundred."""
    with Client(server.url, server.seen("filled"), lambda: START) as client:
        built = Namespace(client, server.redis, client._namespace.prefix, [START])
        fill(built)
        yield built
        server.redis.unlink(*built.keys())


@pytest.fixture
def ns(server, namespace, filled) -> Iterator[Namespace]:
    time = [START]
    with Client(server.url, namespace, lambda: time[0]) as client:
        built = Namespace(client, server.redis, f"{{{namespace}}}:", time)
        built.fill_like(filled)
        yield built


def fill(ns: Namespace) -> None:
    q = ns.client.queue("q")
    q.put("k", {"a": 1}, jid="completed", tags=["red"])
    q.put("k", jid="failing")
    q.put("k", jid="released")
    q.put("k", jid="running", tags=["red", "blue"])
    q.put("k", jid="ahead")
    done, failing, released, _ = q.lease("w", 4)
    done.complete("result")
    failing.fail("g", "m")
    released.release()
    q.put("k", jid="waiting", priority=3, tags=["red"])
    q.put("k", jid="later", delay=100)
    q.put("k", jid="parent")
    q.put("k", jid="child", depends=["parent", "running"], on_parent_failure="wait", delay=500)
    q.put("k", jid="heir", depends=["failing"], on_parent_failure="wait")
    q.put("k", jid="expired")
    ns.run(job_changes.track("expired", now=START))
    ns.client.cancel("expired")
    ns.run(job_changes.track("ahead", now=START))
    ns.run(recurrences.recur("r", "k", {"again": 1}, {"jid": "again", "every": 60, "tags": ["red"]}, now=START))
    ns.run(mailbox.tell("w", "hint"))
    assert ns.states("completed", "failing", "released", "running", "ahead", "waiting", "later", "child", "heir") == [
        "complete", "failed", "waiting", "running", "waiting", "waiting", "scheduled", "depends", "depends",
    ]  # fmt: skip
    fill_lines(ns)
    modes = ns.client.queue("modes")
    for n in range(2):
        modes.put("k", n, jid=f"collects-{n}", unique="all", collect=200)
    modes.put("k", jid="throttled", unique="rare", throttle=1000)
    assert ns.check() == []


def fill_lines(ns: Namespace) -> None:
    """Put jobs with lanes, limits and claims into a queue of their own."""
    q = ns.client.queue("l")
    ns.client.limit("K", running=2)
    ns.client.limit("R", rate="1000/d")
    ns.client.config.set("grace-l", 7)
    q.put("k", jid="slot", limit="K", unique="one")
    q.put("k", jid="back", limit="K", persistent=True)
    q.put("k", jid="rated", limit="R", at_most_once=True)
    q.put("k", jid="aside", lane="p")
    leases = {lease.jid: lease for lease in q.lease("v", 4)}
    slot = ns.slot = leases["slot"]
    ns.run(leasing.renew("v", [leasing.Renewal("slot", slot.token, progress=(0.5, "half"), state=b"[1]")], now=START))
    ns.client.limit("K", running=1)
    q.put("k", jid="parked", limit="K", lane="a", priority=4)
    leases["back"].release()
    leases["aside"].release()
    q.lane("p").pause()
    assert q.lease("u", 4) == []
    q.put("k", jid="laned", lane="a", priority=2)
    q.put("k", jid="dated", expires=5_000, unique=True)
    q.lane("a").weight(3)
    ns.redis.lpush(ns.key("in:elsewhere"), b"\xff\x00", "{")
    ns.redis.hset(ns.key("announced"), "l", 5)
    assert [job and (job.parked, job.lane) for job in ns.client.jobs("back", "parked", "aside")] == [
        (True, None), (True, "a"), (False, "p"),
    ]  # fmt: skip
    assert ns.redis.hget(ns.key("job:aside"), "aside") == b"1"


# The damages: what is done, which violations are named, and what must hold when it is mended.


@dataclass(frozen=True)
class Damage:
    do: Callable[[Namespace], object]
    named: set[tuple[str, str]]
    then: Callable[[Namespace], object]


def drop_field(jid: str, *fields: str) -> Callable[[Namespace], object]:
    return lambda ns: ns.redis.hdel(ns.key(f"job:{jid}"), *fields)


def set_field(jid: str, field: str, value: object) -> Callable[[Namespace], object]:
    return lambda ns: ns.redis.hset(ns.key(f"job:{jid}"), field, value)


def delete(*names: str) -> Callable[[Namespace], object]:
    return lambda ns: ns.redis.delete(*map(ns.key, names))


def add(name: str, member: str, score: float = 1) -> Callable[[Namespace], object]:
    return lambda ns: ns.redis.zadd(ns.key(name), {member: score})


def remove(name: str, *members: str) -> Callable[[Namespace], object]:
    return lambda ns: ns.redis.zrem(ns.key(name), *members)


def end_slot(ns: Namespace) -> None:
    """Complete the job with the only slot of its limit."""
    assert ns.slot is not None and ns.slot.complete()


def is_broken(jid: str) -> Callable[[Namespace], object]:
    def look(ns: Namespace) -> bool:
        total, jobs = ns.client.failed("broken")
        return total == 1 and jobs[0].jid == jid and "no " in jobs[0].failure["message"]

    return look


DAMAGES: dict[str, Damage] = {
    "a record without klass": Damage(
        drop_field("waiting", "klass"),
        {("half-written-job", "waiting")},
        lambda ns: is_broken("waiting")(ns) and ns.client.job("waiting").queue == "q",
    ),
    "a record without queue": Damage(
        drop_field("running", "queue"),
        {
            ("half-written-job", "running"),
            ("lease-without-job", "running"),
        },
        lambda ns: is_broken("running")(ns) and ns.client.job("running").tags == ["red", "blue"],
    ),
    "a record that only says that it was put": Damage(
        drop_field("ahead", "klass", "queue", "seq"),
        {("half-written-job", "ahead"), ("job-in-two-places", "ahead")},
        is_broken("ahead"),
    ),
    "a job without data": Damage(delete("data:released"), {("half-written-job", "released")}, is_broken("released")),
    "a completed job without data": Damage(
        delete("data:completed"),
        {("half-written-job", "completed")},
        lambda ns: ns.states("completed") == ["complete"] and ns.client.job("completed").result == "result",
    ),
    "a record without sequence": Damage(
        drop_field("ahead", "seq"),
        {("half-written-job", "ahead"), ("job-in-no-place", "ahead"), ("job-in-two-places", "ahead")},
        lambda ns: ns.lease() == ["released", "parent", "ahead", "waiting"],
    ),
    "a record without its time": Damage(
        drop_field("ahead", "put"), {("half-written-job", "ahead")}, lambda ns: ns.client.job("ahead").put_unix == START
    ),
    "numbers that are none": Damage(
        lambda ns: (set_field("waiting", "priority", "nan")(ns), set_field("ahead", "turn", "x")(ns)),
        {("half-written-job", "waiting"), ("half-written-job", "ahead"), ("wrong-score", "waiting")},
        lambda ns: ns.client.job("waiting").priority == 0 and "ahead" in ns.lease(),
    ),
    "a state that there is not": Damage(
        set_field("waiting", "state", "dreaming"),
        {("half-written-job", "waiting")},
        lambda ns: "waiting" in ns.lease(),
    ),
    "a running job without owner": Damage(
        drop_field("running", "owner"),
        {("half-written-job", "running"), ("lease-without-job", "running")},
        lambda ns: "running" in ns.lease(),
    ),
    "a failed job without group": Damage(
        drop_field("failing", "group"),
        {("half-written-job", "failing"), ("job-in-no-place", "failing"), ("job-in-two-places", "failing")},
        lambda ns: ns.client.failed() == {"broken": 1},
    ),
    "an id without a record, in every place": Damage(
        lambda ns: [
            add(name, member)(ns)
            for name, member in {
                "queue:q:waiting": f"{1:013x}ghost",
                "queue:q:front": "ghost",
                "queue:q:scheduled": f"{1:013x}ghost",
                "queue:q:depends": "ghost",
                "queue:r:recurring": "ghost",
                "complete": "ghost",
                "failed": "ghost",
                "failed:g": "ghost",
            }.items()
        ],
        {("id-without-record", "ghost")},
        lambda ns: "ghost" not in ns.lease("q", "r") and ns.client.failed() == {"g": 1},
    ),
    "a job that lies in no place: waiting": Damage(
        lambda ns: remove("queue:q:waiting", ns.member("waiting"))(ns),
        {("job-in-no-place", "waiting")},
        lambda ns: ns.lease() == ["released", "ahead", "parent", "waiting"],
    ),
    "a job that lies in no place: front": Damage(
        remove("queue:q:front", "released"), {("job-in-no-place", "released")}, lambda ns: ns.lease()[0] == "released"
    ),
    "a job that lies in no place: scheduled": Damage(
        lambda ns: remove("queue:q:scheduled", ns.member("later"))(ns),
        {("job-in-no-place", "later")},
        lambda ns: "later" in ns.lease(),
    ),
    "a job that lies in no place: failed": Damage(
        delete("failed", "failed:g", "groups"),
        {("job-in-no-place", "failing")},
        lambda ns: ns.client.failed() == {"g": 1} and ns.client.failed("g")[0] == 1,
    ),
    "a job that lies in no place: complete": Damage(
        delete("complete"), {("job-in-no-place", "completed")}, lambda ns: ns.members("complete") == {"completed"}
    ),
    "a job that lies in no place: depends": Damage(
        remove("queue:q:depends", "child"),
        {("job-in-no-place", "child")},
        lambda ns: ns.members("queue:q:depends") == {"child", "heir"},
    ),
    "a running job without a lease": Damage(
        remove("queue:q:running", "running"),
        {("job-in-no-place", "running")},
        lambda ns: (
            (
                ns.states("running") == ["stalled"],
                ns.time.__setitem__(0, START + 5),
                ns.client.sweep() == 1,
                ns.client.job("running").deaths == 1,
            )
            == (True, None, True, True)
        ),
    ),
    "a running job that its worker does not hold": Damage(
        delete("held:w"),
        {("job-in-no-place", "running")},
        lambda ns: ns.members("held:w") == {"running"} and ns.client.deregister("w") == 1,
    ),
    "a lease without a job": Damage(
        lambda ns: (add("queue:q:running", "ghost")(ns), add("held:w", "ghost")(ns), add("held:v", "waiting")(ns)),
        {("lease-without-job", "ghost"), ("lease-without-job", "waiting")},
        lambda ns: ns.members("held:w") == {"running"} == ns.members("queue:q:running"),
    ),
    "a lease with another token": Damage(
        add("held:w", "running", 1),
        {("wrong-score", "running")},
        lambda ns: ns.redis.zscore(ns.key("held:w"), "running") == ns.client.job("running").token + 0.5,
    ),
    "a job in two places": Damage(
        lambda ns: (
            add("queue:q:front", "waiting")(ns),
            add("queue:other:waiting", ns.member("ahead"))(ns),
            add("failed", "parent")(ns),
            add("complete", "parent")(ns),
            add("queue:q:depends", "later")(ns),
            add("queue:q:running", "parent")(ns),
        ),
        {
            ("job-in-two-places", "waiting"),
            ("job-in-two-places", "ahead"),
            ("job-in-two-places", "parent"),
            ("job-in-two-places", "later"),
            ("lease-without-job", "parent"),
            ("unlisted-queue", "other"),
        },
        lambda ns: ns.lease("q", "other") == ["released", "ahead", "parent", "waiting"],
    ),
    "a job twice in one place": Damage(
        add("queue:q:waiting", f"{1:013x}waiting"),
        {("job-in-two-places", "waiting")},
        lambda ns: ns.lease() == ["released", "ahead", "parent", "waiting"],
    ),
    "a job in the wrong order": Damage(
        lambda ns: (add("queue:q:waiting", ns.member("waiting"), -1)(ns), add("queue:q:front", "released", 99)(ns)),
        {("wrong-score", "waiting"), ("wrong-score", "released")},
        lambda ns: ns.lease() == ["released", "ahead", "parent", "waiting"],
    ),
    "an owner of a job that does not run": Damage(
        set_field("waiting", "owner", "3:w"),
        {("stray-lease", "waiting")},
        lambda ns: not ns.redis.hexists(ns.key("job:waiting"), "owner"),
    ),
    "wrong counts of tags": Damage(
        lambda ns: (
            add("tag-counts", "red", 7)(ns),
            add("tag-counts", "blank", 2)(ns),
            remove("tag-counts", "blue")(ns),
        ),
        {("wrong-count", "tag:red"), ("wrong-count", "tag:blank"), ("wrong-count", "tag:blue")},
        lambda ns: ns.redis.zrange(ns.key("tag-counts"), 0, -1, withscores=True) == [(b"blue", 1.0), (b"red", 3.0)],
    ),
    "wrong list of groups": Damage(
        lambda ns: (delete("groups")(ns), add("groups", "gone")(ns)),
        {("wrong-count", "failed:g"), ("wrong-count", "failed:gone")},
        lambda ns: ns.client.failed() == {"g": 1},
    ),
    "a tag without a job": Damage(
        lambda ns: (add("tag:red", "ghost")(ns), add("tag:blue", "waiting")(ns), add("tag:lone", "ghost")(ns)),
        {
            ("tag-without-job", "ghost"),
            ("tag-without-job", "waiting"),
            ("wrong-count", "tag:red"),
            ("wrong-count", "tag:blue"),
            ("wrong-count", "tag:lone"),
        },
        lambda ns: ns.members("tag-counts") == {"red", "blue"} and ns.members("tag:blue") == {"running"},
    ),
    "a job that its tag does not list": Damage(
        delete("tag:red"),
        {("wrong-count", "tag:red"), *(("untagged-job", jid) for jid in ("completed", "running", "waiting"))},
        lambda ns: ns.redis.zscore(ns.key("tag-counts"), "red") == 3 == len(ns.members("tag:red")),
    ),
    "tags that the record does not know of": Damage(
        lambda ns: (drop_field("waiting", "tagged")(ns), set_field("ahead", "tagged", 1)(ns)),
        {("unsaid-rest", "waiting"), ("unsaid-rest", "ahead")},
        lambda ns: ns.client.job("waiting").tags == ["red"] and ns.client.job("ahead").tags == [],
    ),
    "a tracked job that is not listed": Damage(
        delete("tracked-jobs"), {("untracked-job", "ahead")}, lambda ns: ns.members("tracked-jobs") == {"ahead"}
    ),
    "a tracked job whose record does not know": Damage(
        drop_field("ahead", "tracked"), {("untracked-job", "ahead")}, lambda ns: ns.client.job("ahead").tracked
    ),
    "a job that does not say that there is more of it": Damage(
        drop_field("released", "noted"),
        {("unsaid-rest", "released")},
        lambda ns: ns.redis.hget(ns.key("job:released"), "noted") == b"1",
    ),
    "a completed job that retention would delete unread": Damage(
        add("complete", "completed", START * 1000),
        {("unsaid-rest", "completed")},
        lambda ns: ns.redis.zscore(ns.key("complete"), "completed") == START * 1000 + 0.5,
    ),
    "a dangling dependency": Damage(
        lambda ns: (add("dependencies:child", "nobody")(ns), add("dependencies:child", "completed")(ns)),
        {("dangling-dependency", "child")},
        lambda ns: ns.members("dependencies:child") == {"parent", "running"},
    ),
    "dependencies of which none is left": Damage(
        lambda ns: (
            remove("dependencies:child", "parent", "running")(ns),
            add("dependencies:child", "nobody")(ns),
            remove("dependencies:heir", "failing")(ns),
        ),
        {
            ("dangling-dependency", "child"),
            ("dangling-dependency", "heir"),
            ("stray-dependent", "child"),
            ("stray-dependent", "heir"),
        },
        lambda ns: (
            ns.states("child", "heir") == ["scheduled", "waiting"] and ns.client.job("child").due_unix == START + 500
        ),
    ),
    "a job that waits for itself": Damage(
        lambda ns: (remove("dependencies:heir", "failing")(ns), add("dependencies:heir", "heir")(ns)),
        {("dangling-dependency", "heir"), ("stray-dependent", "heir")},
        lambda ns: "heir" in ns.lease(),
    ),
    "a parent that is gone": Damage(
        lambda ns: delete("job:failing")(ns),
        {
            ("dangling-dependency", "heir"),
            ("id-without-record", "failing"),
            ("orphan", "data:failing"),
            ("orphan", "failure:failing"),
            ("orphan", "history:failing"),
        },
        lambda ns: "heir" in ns.lease() and ns.client.failed() == {},
    ),
    "a failed parent whose child should have run": Damage(
        set_field("heir", "policy", "run"),
        {("dangling-dependency", "heir")},
        lambda ns: ns.states("heir") == ["waiting"],
    ),
    "a failed parent whose child should have failed": Damage(
        set_field("heir", "policy", "fail"),
        {("dangling-dependency", "heir")},
        lambda ns: ns.client.failed() == {"g": 1, "parent-failed": 1},
    ),
    "a parent that does not know of its child": Damage(
        lambda ns: (delete("dependents:parent", "dependents:running")(ns), drop_field("running", "kin")(ns)),
        {("missing-dependent", "child"), ("missing-dependent", "running")},
        lambda ns: ns.members("dependents:parent") == {"child"} == ns.members("dependents:running"),
    ),
    "a child that does not wait": Damage(
        lambda ns: (add("dependents:parent", "waiting")(ns), add("dependents:parent", "ghost")(ns)),
        {("stray-dependent", "waiting"), ("id-without-record", "ghost")},
        lambda ns: ns.members("dependents:parent") == {"child"},
    ),
    "dependencies of a job that does not wait": Damage(
        add("dependencies:waiting", "parent"),
        {("orphan", "dependencies:waiting")},
        lambda ns: not ns.redis.exists(ns.key("dependencies:waiting")),
    ),
    "counters behind what was used": Damage(
        lambda ns: ns.redis.mset({ns.key("seq"): 2, ns.key("token"): 1}),
        {("counter-behind", "seq"), ("counter-behind", "token")},
        lambda ns: ns.client.lease("w", ["q"])[0].token > 4,
    ),
    "counters that are lost": Damage(
        delete("seq", "token"),
        {("counter-behind", "seq"), ("counter-behind", "token")},
        lambda ns: ns.client.lease("w", ["q"])[0].token > 4,
    ),
    "a sequence and a turn that leave counters no room": Damage(
        lambda ns: (
            ns.write("job:waiting", {"seq": 2**51 + 1}),
            ns.write("job:released", {"turn": 2**51 + 1}),
        ),
        {
            (kind, jid)
            for kind in ("half-written-job", "job-in-no-place", "job-in-two-places")
            for jid in ("waiting", "released")
        },
        lambda ns: set(ns.lease()) >= {"waiting", "released"},
    ),
    "counters that are no numbers": Damage(
        lambda ns: ns.redis.mset({ns.key("seq"): "many", ns.key("token"): "1e3.5"}),
        {("counter-behind", "seq"), ("counter-behind", "token")},
        lambda ns: ns.lease()[:1] == ["released"],
    ),
    "a place of a foreign type": Damage(
        lambda ns: (delete("queue:q:waiting")(ns), ns.redis.rpush(ns.key("queue:q:waiting"), "x")),
        {
            ("foreign-type", "queue:q:waiting"),
            *(("job-in-no-place", jid) for jid in ("ahead", "waiting", "parent")),
        },
        lambda ns: ns.lease() == ["released", "ahead", "parent", "waiting"],
    ),
    "a record of a foreign type": Damage(
        lambda ns: (delete("job:waiting")(ns), ns.redis.set(ns.key("job:waiting"), "text")),
        {
            ("foreign-type", "job:waiting"),
            ("id-without-record", "waiting"),
            ("tag-without-job", "waiting"),
            ("orphan", "data:waiting"),
            ("orphan", "tags:waiting"),
        },
        lambda ns: ns.states("waiting") == [None],
    ),
    "every kind of key of a foreign type": Damage(
        lambda ns: [
            (ns.redis.delete(key), ns.redis.xadd(key, {"of a type": "that we never use"}))
            for key in list(ns.redis.scan_iter(f"{ns.prefix}*"))
        ],
        set(),  # all of them
        lambda ns: ns.client.queues() == {},
    ),
    "leftovers of jobs that are gone": Damage(
        lambda ns: (
            [
                ns.redis.set(ns.key(f"{part}:gone"), "x")
                for part in ("data", "failure", "result", "tags", "recurdata", "progress", "saved")
            ],
            ns.redis.rpush(ns.key("history:gone"), "x"),
            add("dependencies:gone", "parent")(ns),
        ),
        {
            ("orphan", f"{part}:gone")
            for part in (
                "data",
                "failure",
                "result",
                "tags",
                "recurdata",
                "history",
                "dependencies",
                "progress",
                "saved",
            )
        },
        lambda ns: (
            {key.rpartition(b":aside:")[2].partition(b":")[2] for key in ns.redis.scan_iter(f"{ns.prefix}*:gone")}
            == {b"data:gone", b"recurdata:gone"}
        ),  # that may be all there is of a job
    ),
    "phantoms": Damage(
        lambda ns: (add("phantoms", "ghost")(ns), add("phantoms", "waiting")(ns)),
        {("phantom", "ghost"), ("phantom", "waiting")},
        lambda ns: ns.members("phantoms") == set() and "waiting" in ns.lease(),
    ),
    "idle queues that are in use, or none": Damage(
        lambda ns: (add("idle", "q")(ns), add("idle", "ghost")(ns)),
        {("idle-queue", "q"), ("orphan", "ghost")},
        lambda ns: ns.members("idle") == set(),
    ),
    "quiet queues that have jobs, or are none": Damage(
        lambda ns: (*(add("quiet", queue, 9e15)(ns) for queue in ("q", "r", "ghost")), delete("bell:q")(ns)),
        {("quiet-queue", "q"), ("quiet-queue", "r"), ("orphan", "ghost")},
        lambda ns: ns.members("quiet") == set() and ns.redis.llen(ns.key("bell:q")) == 1,
    ),
    "a queue that is not listed": Damage(
        delete("queues"),
        {("unlisted-queue", queue) for queue in ("q", "r", "l", "modes")},
        lambda ns: set(ns.client.queues()) == {"q", "r", "l", "modes"},
    ),
    "a day of statistics that is not listed": Damage(
        lambda ns: (delete("days")(ns), add("days", f"{DAY}:gone", DAY)(ns)),
        {("unlisted-day", f"{DAY}:q"), ("unlisted-day", f"{DAY}:l"), ("orphan", f"{DAY}:gone")},
        lambda ns: ns.members("days") == {f"{DAY}:q", f"{DAY}:l"},
    ),
    "a histogram of the release before that is not listed": Damage(
        lambda ns: (ns.write(f"histogram:{DAY}:q", {"r0": "1"}), add("histograms", f"{DAY}:gone", DAY)(ns)),
        {("unlisted-day", f"{DAY}:q"), ("orphan", f"{DAY}:gone")},
        lambda ns: ns.members("histograms") == {f"{DAY}:q"},
    ),
    "counters of times that would stay": Damage(
        lambda ns: [ns.redis.persist(ns.key(name)) for name in COUNTERS],
        {("no-expiry", name) for name in COUNTERS},
        lambda ns: all(ns.redis.ttl(ns.key(name)) > 0 for name in COUNTERS),
    ),
    "a recurrence that lies nowhere": Damage(
        delete("queue:r:recurring"),
        {("recurrence-in-no-place", "again")},
        lambda ns: ns.lease("r") == ["again-1"],
    ),
    "a recurrence at the wrong time and in a wrong place": Damage(
        lambda ns: (add("queue:r:recurring", "again", 5)(ns), add("queue:q:recurring", "again", 5)(ns)),
        {("recurrence-in-no-place", "again"), ("id-without-record", "again")},
        lambda ns: ns.members("queue:q:recurring") == set() and ns.lease("r") == ["again-1"],
    ),
    "a recurrence that does not tell all": Damage(
        lambda ns: ns.redis.hdel(ns.key("recur:again"), "klass"),
        {("half-written-recurrence", "again")},
        lambda ns: ns.lease("r") == [] and len(list(ns.redis.scan_iter(f"{ns.prefix}aside:*again"))) == 3,
    ),
    "a worker that would never be forgotten": Damage(
        lambda ns: (ns.redis.hset(ns.key("worker:v"), "number", 1), ns.redis.persist(ns.key("mail:w"))),
        {("no-expiry", "worker:v"), ("no-expiry", "mail:w")},
        lambda ns: ns.redis.ttl(ns.key("worker:v")) > 0 < ns.redis.ttl(ns.key("mail:w")),
    ),
    "a schema that would stay, and one that is another": Damage(
        lambda ns: (ns.redis.set(ns.key("schema:bf21a9e8fbc5a384"), "{}"), ns.redis.set(ns.key("schema:a"), "{}")),
        {("no-expiry", "schema:bf21a9e8fbc5a384"), ("foreign-value", "schema:a")},
        lambda ns: ns.redis.ttl(ns.key("schema:bf21a9e8fbc5a384")) > 0 == ns.redis.exists(ns.key("schema:a")),
    ),
    "a request and an answer that would stay": Damage(
        lambda ns: (ns.redis.rpush(ns.key("asks:w"), "1"), ns.redis.rpush(ns.key("answer:x"), "1")),
        {("no-expiry", "asks:w"), ("no-expiry", "answer:x")},
        lambda ns: ns.redis.ttl(ns.key("asks:w")) > 0 < ns.redis.ttl(ns.key("answer:x")),
    ),
    "a running job without its slot": Damage(
        remove("holders:K", "slot"),
        {("job-in-no-place", "slot")},
        lambda ns: ns.members("holders:K") == {"slot"} and not {"back", "parked"} & set(ns.lease("l")),
    ),
    "a slot with another token": Damage(
        add("holders:K", "slot", 1),
        {("wrong-score", "slot")},
        lambda ns: ns.redis.zscore(ns.key("holders:K"), "slot") == ns.client.job("slot").token,
    ),
    "a slot that leaked": Damage(
        lambda ns: (end_slot(ns), add("holders:K", "ghost")(ns), add("holders:K", "waiting")(ns), ns.lease("l")),
        {("leaked-slot", "ghost"), ("leaked-slot", "waiting")},
        lambda ns: ns.lease("l") == ["back"],
    ),
    "a parked job that lies in no line": Damage(
        delete("limited:K\nl\na", "limited:K\nl\n"),
        {("job-in-no-place", "back"), ("job-in-no-place", "parked")},
        lambda ns: (end_slot(ns), set(ns.lease("l")))[1] == {"back", "laned", "dated"},
    ),
    "parked jobs that are not listed": Damage(
        delete("queue:l:parked"),
        {("job-in-no-place", "back"), ("job-in-no-place", "parked")},
        lambda ns: ns.client.queue("l").counts().parked == 2,
    ),
    **{
        f"parked jobs that {index!r} does not name": Damage(
            delete(index),
            named,
            lambda ns: (end_slot(ns), set(ns.lease("l")))[1] == {"back", "laned", "dated"},
        )
        for index, named in (
            ("limited:K\nl", {("unlisted-limit", "limited:K\nl\n"), ("unlisted-limit", "limited:K\nl\na")}),
            ("limited:K", {("unlisted-limit", "limited:K\nl")}),
            ("queue:l:limits", {("unlisted-limit", "limited:K\nl")}),
        )
    },
    "an id among the parked jobs": Damage(
        lambda ns: (
            add("queue:l:parked", "ghost")(ns),
            add("queue:l:parked", "laned")(ns),
            add("limited:K\nl\na", f"{1:013x}ghost")(ns),
            add("limited:K\nl\nb", ns.member("laned"))(ns),
        ),
        {("id-without-record", "ghost"), ("job-in-two-places", "laned"), ("unlisted-limit", "limited:K\nl\nb")},
        lambda ns: ns.client.queue("l").counts().parked == 2,
    ),
    "a job that is parked under no limit": Damage(
        drop_field("parked", "limit"),
        {
            ("half-written-job", "parked"),
            ("job-in-no-place", "parked"),
            ("job-in-two-places", "parked"),
        },
        lambda ns: set(ns.lease("l")) == {"laned", "dated", "parked"},
    ),
    "a running job that is parked": Damage(
        set_field("running", "parked", 1),
        {("half-written-job", "running")},
        lambda ns: not ns.client.job("running").parked,
    ),
    "a job that lies aside without a lane": Damage(
        drop_field("aside", "lane"),
        {("half-written-job", "aside"), ("job-in-no-place", "aside"), ("job-in-two-places", "aside")},
        lambda ns: ns.lease("l")[0] == "aside",
    ),
    "a job that lies aside without a turn": Damage(
        drop_field("aside", "turn"),
        {("half-written-job", "aside"), ("job-in-no-place", "aside"), ("job-in-two-places", "aside")},
        lambda ns: (ns.client.queue("l").lane("p").unpause(), "aside" in ns.lease("l"))[1],
    ),
    "names and answers that are none": Damage(
        lambda ns: ns.write("job:laned", {"lane": "a\nb", "once": "maybe", "persistent": "0", "trace": ""}),
        {
            ("half-written-job", "laned"),
            ("job-in-no-place", "laned"),
            ("job-in-two-places", "laned"),
        },
        lambda ns: ns.client.job("laned").lane is None and "laned" in ns.lease("l"),
    ),
    "a persistent job that must not start twice": Damage(
        set_field("back", "once", 1),
        {("half-written-job", "back")},
        lambda ns: ns.client.job("back").at_most_once and not ns.client.job("back").persistent,
    ),
    "a job that lies in no place: lane": Damage(
        lambda ns: remove("lane:l\na", ns.member("laned"))(ns),
        {("job-in-no-place", "laned"), ("wrong-count", "laned:l")},
        lambda ns: set(ns.lease("l")) == {"laned", "dated"},
    ),
    "an id without a record, in a lane": Damage(
        add("lane:m\nx", f"{1:013x}ghost"),
        {
            ("id-without-record", "ghost"),
            ("unlisted-lane", "lane:m\nx"),
            ("unlisted-queue", "m"),
            ("wrong-count", "laned:m"),
        },
        lambda ns: ns.lease("m") == [] and ns.client.queue("m").length() == 0,
    ),
    "a lane to which no lease comes": Damage(
        delete("queue:l:lanes"), {("unlisted-lane", "lane:l\na")}, lambda ns: set(ns.lease("l")) == {"laned", "dated"}
    ),
    "a paused lane to which leases come": Damage(
        add("queue:l:lanes", "p"), {("stray-lane", "lane:l\np")}, lambda ns: "aside" not in ns.lease("l")
    ),
    "a lane whose turn never comes": Damage(
        lambda ns: (add("queue:l:lanes", "a", float("inf"))(ns), add("limited:K\nl", "a", float("-inf"))(ns)),
        {("wrong-score", "queue:l:lanes"), ("wrong-score", "limited:K\nl")},
        lambda ns: "laned" in ns.lease("l"),
    ),
    "a count of jobs in lanes that is wrong": Damage(
        lambda ns: ns.redis.set(ns.key("laned:l"), 7),
        {("wrong-count", "laned:l")},
        lambda ns: ns.client.queue("l").length() == 2 + 1,
    ),
    "a count of jobs in lanes that is none": Damage(
        lambda ns: (ns.redis.set(ns.key("laned:l"), "many"), ns.redis.set(ns.key("laned:m"), "-1")),
        {("wrong-count", "laned:l"), ("wrong-count", "laned:m")},
        lambda ns: ns.client.queue("l").length() == 2 + 1,
    ),
    "a count of jobs in lanes that is lost, with the index": Damage(
        delete("laned:l", "queue:l:lanes"),
        {("wrong-count", "laned:l"), ("unlisted-lane", "lane:l\na")},
        lambda ns: ns.client.queue("l").length() == 2 + 1,
    ),
    "a look at a limit that never comes": Damage(
        add("queue:l:limits", "K", 10**15),
        {("wrong-score", "queue:l:limits")},
        lambda ns: ns.redis.zscore(ns.key("queue:l:limits"), "K") == 0,
    ),
    "limits that are not listed": Damage(
        lambda ns: (delete("limits")(ns), add("limits", "gone")(ns)),
        {("unlisted-limit", "limit:K"), ("unlisted-limit", "limit:R"), ("orphan", "gone")},
        lambda ns: set(ns.client.limits()) == {"K", "R"},
    ),
    "a limit that is none": Damage(
        lambda ns: (ns.write("limit:K", {"running": "nan"}), ns.redis.hdel(ns.key("limit:R"), "per")),
        {("foreign-value", "limit:K"), ("foreign-value", "limit:R")},
        lambda ns: {"back", "parked"} <= set(ns.lease("l")) and ns.client.limits() == {},
    ),
    "a limit that is gone, and nobody was told": Damage(
        delete("limit:K"), {("orphan", "K")}, lambda ns: {"back", "parked"} <= set(ns.lease("l"))
    ),
    "starts that are none, and stay": Damage(
        lambda ns: (ns.redis.rpush(ns.key("starts:K"), "noon"), ns.redis.persist(ns.key("starts:R"))),
        {("foreign-value", "starts:K"), ("no-expiry", "starts:K"), ("no-expiry", "starts:R")},
        lambda ns: not ns.redis.exists(ns.key("starts:K")) and ns.redis.ttl(ns.key("starts:R")) > 0,
    ),
    "throttles that are none, and stay": Damage(
        lambda ns: (
            ns.redis.rpush(ns.key("throttled:modes\nodd"), "noon"),
            ns.redis.rpush(ns.key("throttled:modes\ntwice"), "5 a", "5 b"),
            ns.redis.persist(ns.key("throttled:modes\nrare")),
        ),
        {
            ("foreign-value", "throttled:modes\nodd"),
            ("foreign-value", "throttled:modes\ntwice"),
            ("no-expiry", "throttled:modes\nrare"),
        },
        lambda ns: (
            not ns.redis.exists(ns.key("throttled:modes\nodd"), ns.key("throttled:modes\ntwice"))
            and ns.redis.ttl(ns.key("throttled:modes\nrare")) > 0
        ),
    ),
    "a collection that says wrong things of itself": Damage(
        lambda ns: ns.write("job:collects-0", {"mode": "gather", "collected": "many"}),
        {("half-written-job", "collects-0")},
        lambda ns: ns.client.queue("modes").put("k", 2, unique="all", collect=200) == "collects-0",
    ),
    "unique jobs that do not hold their keys": Damage(
        delete("unique:l"),
        {("lost-key", "slot"), ("lost-key", "dated")},
        lambda ns: ns.client.queue("l").put("k", unique="one") == "slot",
    ),
    "a unique key that is held by what has no claim": Damage(
        lambda ns: ns.write("unique:l", {"one": "ghost", "two": "laned", "three": "slot", "four": "completed"}),
        {
            ("lost-key", "slot"),
            ("stray-key", "ghost"),
            ("stray-key", "laned"),
            ("stray-key", "slot"),
            ("stray-key", "completed"),
        },
        lambda ns: ns.client.queue("l").put("k", unique="two") not in ("laned", "slot"),
    ),
    "two jobs that are unique by the same": Damage(
        lambda ns: ns.write("job:laned", {"unique": "one", "special": "1"}),
        {("lost-key", "laned")},
        lambda ns: ns.client.job("laned").unique is None and ns.client.job("slot").unique == "one",
    ),
    "a time to start by that is not listed": Damage(
        delete("expiring"),
        {("wrong-deadline", "dated")},
        lambda ns: (
            (
                ns.time.__setitem__(0, START + 5_000),
                ns.client.sweep(),
                ns.client.job("dated").failure["group"],
            )[2]
            == "expired"
        ),
    ),
    "times to start by that are no job's": Damage(
        lambda ns: (add("expiring", "ghost")(ns), add("expiring", "laned")(ns), add("expiring", "dated", 5)(ns)),
        {("wrong-deadline", "ghost"), ("wrong-deadline", "laned"), ("wrong-deadline", "dated")},
        lambda ns: ns.members("expiring") == {"dated"} and "dated" in ns.lease("l"),
    ),
    "progress that only one of the two knows of": Damage(
        lambda ns: (delete("progress:slot")(ns), ns.redis.set(ns.key("progress:laned"), '[1,"x",2.5]')),
        {("unsaid-rest", "slot"), ("unsaid-rest", "laned")},
        lambda ns: ns.client.job("slot").progress is None and ns.client.job("laned").progress.text == "x",
    ),
    "a checkpoint that only one of the two knows of": Damage(
        lambda ns: (delete("saved:slot")(ns), ns.redis.set(ns.key("saved:laned"), '{"n":1}')),
        {("unsaid-rest", "slot"), ("unsaid-rest", "laned")},
        lambda ns: ns.client.job("slot").saved is None and ns.client.job("laned").saved == {"n": 1},
    ),
    "marks of the layout that are gone": Damage(
        delete("config", "tracked"),
        {("lost-mark", "config"), ("lost-mark", "tracked")},
        lambda ns: ns.client.config.get("grace") is not None,
    ),
    "a mark that hides the options": Damage(
        lambda ns: ns.redis.set(ns.key("config"), "2"),
        {("lost-mark", "config")},
        lambda ns: ns.redis.get(ns.key("config")) == b"2+",
    ),
    "a checkpoint of another size": Damage(
        lambda ns: ns.redis.set(ns.key("saved:slot"), '{"n":12}'),
        {("unsaid-rest", "slot")},
        lambda ns: ns.client.job("slot").saved == {"n": 12},
    ),
    "progress that is none": Damage(
        lambda ns: ns.redis.set(ns.key("progress:slot"), '{"fraction": 1}'),
        {("foreign-value", "progress:slot")},
        lambda ns: ns.client.job("slot").progress is None,
    ),
    "settings that cannot be": Damage(
        lambda ns: ns.write(
            "options",
            {
                "grace": "nan",
                "heartbeat-q": "inf",
                "max-deaths": "1.5",
                "paused-l": "perhaps",
                "klass-q": "",
                "max-concurrency": "-1",
                "jobs-history": "0x10",
                "application": "qless",
                "heartbeat": "2.5",
            },
        ),
        {("foreign-value", "options")},
        lambda ns: (
            {name.decode() for name in ns.redis.hkeys(ns.key("options"))} == {"application", "heartbeat", "grace-l"}
        ),
    ),
    "figures that cannot be": Damage(
        lambda ns: (
            ns.write(f"stats:{DAY}:q", {"run.mean": "nan", "failed": "-nan"}),
            ns.write(f"histogram:{DAY}:q", {"r0": "many"}),
            add("histograms", f"{DAY}:q", DAY)(ns),
            ns.write("announced", {"q": "nan"}),
            ns.write("worker:v", {"wish": "none"}),
            ns.redis.expire(ns.key("worker:v"), 60),
            ns.write("lanes:l", {"weight:a": "0", "weight:b": "nan"}),
        ),
        {
            ("foreign-value", name)
            for name in (f"stats:{DAY}:q", f"histogram:{DAY}:q", "announced", "worker:v", "lanes:l")
        },
        lambda ns: (
            (ns.client.queue("q").stats().run.count, ns.client.queue("l").lanes()["a"].weight, ns.lease()[0])
            == (0, 1, "released")
        ),
    ),
    "counters of what was dropped that are none": Damage(
        lambda ns: ns.redis.set(ns.key("failed-dropped"), "x"),
        {("counter-behind", "failed-dropped")},
        lambda ns: ns.redis.get(ns.key("failed-dropped")) == b"0",
    ),
    "entries that are no list": Damage(
        lambda ns: ns.redis.set(ns.key("in:l"), "x"),
        {("foreign-type", "in:l")},
        lambda ns: "laned" in ns.lease("l"),
    ),
    "tokens for waiters that would stay": Damage(
        lambda ns: ns.redis.rpush(ns.key("ended:gone"), "1"),
        {("no-expiry", "ended:gone")},
        lambda ns: ns.redis.ttl(ns.key("ended:gone")) > 0,
    ),
    "a broken job that held keys and slots": Damage(
        drop_field("slot", "klass"),
        {("half-written-job", "slot")},
        lambda ns: ns.client.failed() == {"g": 1, "broken": 1} and ns.lease("l")[0] == "back",
    ),
}


@pytest.fixture(params=[SLICE, 1], ids=["all at once", "key by key"])
def slices(request, monkeypatch):
    """The violations found must not depend on how the walk groups its calls."""
    monkeypatch.setattr(checks, "SLICE", request.param)


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("what", DAMAGES)
def test_a_check_names_what_is_wrong_and_changes_nothing(ns, what):
    damage = DAMAGES[what]
    damage.do(ns)
    before = ns.dump()
    found = ns.check()
    assert {violation.repaired for violation in found} == {None}
    assert {violation.kind for violation in found} <= set(KINDS)
    if damage.named:
        assert {(violation.kind, violation.subject) for violation in found} == damage.named
    assert ns.dump() == before
    assert {*ns.check()} == {*found}  # the order of a SCAN may change


@pytest.mark.sampled(3)
@pytest.mark.parametrize("slices", [SLICE, 1] if LONG else [SLICE], indirect=True)
@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("what", DAMAGES)
def test_repair_reports_its_acts_and_leaves_no_violation(ns, what):
    damage = DAMAGES[what]
    damage.do(ns)
    found = ns.check(repair=True)
    assert found
    assert all(violation.repaired and violation.detail for violation in found), found
    if damage.named:
        assert {violation.subject for violation in found} >= {subject for _, subject in damage.named}
    assert ns.check() == []
    assert damage.then(ns)
    assert ns.check() == []


# Damage that only payloads, policies or values show.
UNSEEN_FROM_OUTSIDE = {
    "a failed parent whose child should have run", "a failed parent whose child should have failed",
    "a recurrence that does not tell all", "a look at a limit that never comes", "progress that is none",
    "settings that cannot be", "figures that cannot be", "counters of what was dropped that are none",
    "entries that are no list",
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", [what for what in DAMAGES if what not in UNSEEN_FROM_OUTSIDE])
def test_invariants_of_other_tests_see_the_damage_too(ns, server, namespace, what):
    def wrong() -> list[str]:
        found = read_namespace(server.redis, namespace)
        return misplaced(found, START * 1000) + left_over(found)

    assert wrong() == []
    DAMAGES[what].do(ns)
    with suppress(AttributeError, KeyError, TypeError, ValueError):  # of a wrong type, or half written: it stumbles
        assert wrong() != []


# Any damage at all.

VALUES = [
    "",
    "x",
    "-1",
    "0",
    "7",
    "nan",
    "1e400",
    "running",
    "scheduled",
    "depends",
    "failed",
    "complete",
    "5:w",
    "q",
    "one",
    "K",
]
NAMES = [
    *(f"job:{jid}" for jid in ("waiting", "running", "released", "later", "child", "failing", "completed", "parent")),
    *(f"queue:q:{place}" for place in ("waiting", "front", "running", "scheduled", "depends")),
    "queue:r:recurring", "recur:again", "recurdata:again", "recurtags:again", "failed", "failed:g", "complete",
    "groups", "bell:q", "bell:r", "mail:w", "asks:w", "answer:x",
    "tag-counts", "tag:red", "tags:waiting", "tags:running", "held:w", "dependents:parent", "dependencies:child",
    "tracked-jobs", "config", "tracked", "tags", "workers",
    "data:child", "data:running", "queues", "idle", "quiet", "seq", "token", "days", "histograms", "phantoms",
    "history:failing", "workers-seen", "options", "announced", "worker:v", "failed-dropped",
    *(f"job:{jid}" for jid in ("slot", "back", "rated", "aside", "parked", "laned", "dated", "collects-0")),
    "lane:l\na", "lane:l\np", "queue:l:lanes", "laned:l", "lanes:l", "queue:l:parked", "queue:l:limits", "limits",
    "limit:K", "limit:R", "limited:K", "limited:K\nl", "limited:K\nl\na", "limited:K\nl\n", "holders:K", "holders:R",
    "starts:R", "throttled:modes\nrare", "unique:l", "unique:modes", "expiring", "progress:slot", "saved:slot", "in:l",
    f"stats:{DAY}:q", f"histogram:{DAY}:q", *COUNTERS,
]  # fmt: skip
FIELDS = [
    "klass", "queue", "seq", "put", "state", "owner", "turn", "group", "kin", "policy", "priority", "tagged", "due",
    "every", "next", "special", "noted", "lane", "limit", "parked", "aside", "unique", "expires", "once", "persistent",
    "progress", "saved", "one", "running", "starts", "weight:a", "paused:p", "paused:a", "grace-l", "run.mean",
    "awaited", "trace", "mode", "collected",
]  # fmt: skip
JIDS = [
    "waiting", "running", "released", "later", "child", "heir", "failing", "completed", "parent", "again", "ghost",
    "slot", "back", "rated", "aside", "parked", "laned", "dated", "K", "l", "a", "p",
]  # fmt: skip

blows = st.lists(
    st.one_of(
        st.tuples(st.just("delete"), st.sampled_from(NAMES)),
        st.tuples(st.just("replace"), st.sampled_from(NAMES), st.sampled_from(["set", "rpush", "sadd"])),
        st.tuples(st.just("field"), st.sampled_from(NAMES), st.sampled_from(FIELDS), st.sampled_from(VALUES)),
        st.tuples(st.just("no field"), st.sampled_from(NAMES), st.sampled_from(FIELDS)),
        st.tuples(
            st.just("member"), st.sampled_from(NAMES), st.sampled_from(JIDS), st.integers(-9, 9) | st.just(10**15)
        ),
        st.tuples(st.just("no member"), st.sampled_from(NAMES), st.sampled_from(JIDS)),
    ),
    min_size=1,
    max_size=8,
)


def strike(ns: Namespace, verb: str, name: str, *rest: Any) -> None:
    key, kind = ns.key(name), ns.redis.type(ns.key(name))
    if verb == "delete":
        ns.redis.delete(key)
    elif verb == "replace":
        ns.redis.delete(key)
        getattr(ns.redis, rest[0])(key, '{"what": "x", "when": 1}')
    elif verb == "field" and kind == b"hash":
        ns.redis.hset(key, *rest)
    elif verb == "no field" and kind == b"hash":
        ns.redis.hdel(key, *rest)
    elif verb == "member" and kind == b"zset":
        jid, score = rest
        ns.redis.zadd(key, {jid: score, f"{7:013x}{jid}": score})
    elif verb == "no member" and kind == b"zset":
        for member in ns.redis.zrange(key, 0, -1):
            if member.endswith(rest[0].encode()):
                ns.redis.zrem(key, member)


def free_all(ns: Namespace) -> None:
    """End all that holds jobs back."""
    for limit in ("K", "R", "one", "q"):
        ns.client.limit(limit, running=1_000)
    for lane in ("a", "p", "K", "q", "one"):
        ns.client.queue("l").lane(lane).unpause()


_runs = count()


@settings(
    max_examples=150 if LONG else 40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@pytest.mark.sampled(2)
@given(blows=blows)
def test_repair_mends_any_damage_and_loses_no_job(server, namespace, filled, blows):
    time = [START]
    with Client(server.url, server.seen(f"{namespace}-{next(_runs)}"), lambda: time[0]) as client:
        ns = Namespace(client, server.redis, client._namespace.prefix, time)
        try:
            ns.fill_like(filled)
            for blow in blows:
                strike(ns, *blow)
            alive = [jid for jid in JIDS if ns.redis.type(ns.key(f"job:{jid}")) == b"hash"]
            found = ns.check()
            mended = ns.check(repair=True)
            assert {(v.kind, v.subject) for v in found} <= {(v.kind, v.subject) for v in mended}
            assert ns.check() == []
            assert None not in ns.states(*alive)
            time[0] += 1_000
            client.sweep()
            free_all(ns)
            leased = set(ns.lease(*client.queues(), most=200))
            assert leased >= {jid for jid, state in zip(alive, ns.states(*alive), strict=True) if state == "waiting"}
            assert ns.check() == []
        finally:
            ns.redis.delete(*ns.redis.scan_iter(f"{ns.prefix}*"))


# Checks beside running work.


def test_large_sorted_set_is_judged_in_parts(ns):
    many = [{"klass": "k", "jid": f"many-{i}", "tags": ["red"]} for i in range(3 * SLICE)]
    ns.client.queue("q").put_many(many)
    assert ns.check() == []
    ns.redis.zadd(ns.key("queue:q:waiting"), {f"{i:013x}ghost-{i}": i for i in range(2 * SLICE)})
    ns.redis.zadd(ns.key("tag:red"), {f"ghost-{i}": i for i in range(2 * SLICE)})
    ns.redis.zrem(ns.key("queue:q:waiting"), *(ns.member(job["jid"]) for job in many[::3]))
    found = ns.check()
    kinds = [violation.kind for violation in found]
    assert kinds.count("id-without-record") == kinds.count("tag-without-job") == 2 * SLICE
    assert (kinds.count("job-in-no-place"), kinds.count("wrong-count")) == (SLICE, 1)
    assert len(found) == len(kinds) == 5 * SLICE + 1
    assert {v.subject for v in ns.check(repair=True)} == {v.subject for v in found}
    assert ns.check() == []
    assert len(ns.lease(most=1000)) == 3 * SLICE + 4


def test_large_hash_is_judged_in_parts(ns):
    keys = [f"key {i}" for i in range(3 * SLICE)]
    ns.client.queue("u").put_many({"klass": "k", "jid": f"many-{key}", "unique": key} for key in keys)
    for i in range(3 * SLICE):
        ns.client.queue("u").lane(f"lane {i}").weight(2)
    assert ns.check() == []
    ns.redis.hset(ns.key("unique:u"), mapping={f"stray {i}": "ghost" for i in range(SLICE)})
    ns.redis.hdel(ns.key("unique:u"), *keys[::3])
    ns.redis.hset(ns.key("lanes:u"), mapping={f"weight:lane {i}": "0" for i in range(SLICE)})
    found = ns.check()
    kinds = [violation.kind for violation in found]
    assert [kinds.count(kind) for kind in ("stray-key", "lost-key", "foreign-value")] == [SLICE] * 3
    assert len(found) == 3 * SLICE
    assert ns.check(repair=True) != []
    assert ns.check() == []
    assert ns.client.queue("u").put("k", unique="key 3") == "many-key 3"


def test_too_many_lanes_are_not_counted_but_an_invalid_count_is_repaired(ns):
    ns.client.queue("u").put_many({"klass": "k", "lane": f"lane {i}"} for i in range(checks.MOST_LANES + 1))
    assert ns.check() == []
    ns.redis.incr(ns.key("laned:u"))
    assert ns.check() == []
    ns.redis.set(ns.key("laned:u"), "many")
    assert [violation.kind for violation in ns.check(repair=True)] == ["wrong-count"]
    assert ns.redis.get(ns.key("laned:u")) == b"1001"
    assert ns.check() == []


THREADS = 8


@pytest.fixture
def busy(server, namespace) -> Iterator[list[int]]:
    """Run threads that put, push, lease, end and cancel jobs of every kind; count the rounds of each."""
    stop, rounds = threading.Event(), [0] * THREADS

    def work(n: int) -> None:
        with Client(server.url, namespace) as client:
            numbers, q = count(), client.queue(f"q{n % 2}")
            while not stop.is_set():
                first = f"{n}-{next(numbers)}"
                q.put("k", jid=first, tags=["red", f"t{n}"], expires=5, lane=f"lane{n % 3}")
                q.put_many(
                    {"klass": "k", "depends": [first], "tags": ["red"], "on_parent_failure": "run"} for _ in "12"
                )
                q.put("k", delay=0.01, limit="L", persistent=n == 0)
                q.put("k", limit=f"M{n % 2}", lane=f"lane{rounds[n] % 5}", unique=f"u{n % 3}", expires=0.02)
                server.redis.lpush(f"{{{namespace}}}:in:q{n % 2}", *ENTRIES)
                leases = client.lease(f"w{n}", ["q0", "q1"], 6)
                for lease, end in zip(leases, ENDS[n % 5 :] + ENDS[: n % 5], strict=False):
                    with suppress(LeaseLost, LeaseholdError):  # lost to a cancel of another thread, or it has no end
                        end(lease)
                client.cancel(first, *(lease.jid for lease in leases if lease.persistent))
                if rounds[n] % 10 == n:
                    turn_the_screws(client, q, rounds[n])
                rounds[n] += 1

    with Client(server.url, namespace) as client, ThreadPoolExecutor(THREADS) as threads:
        client.config.set("jobs-history-count", 50)
        client.config.set("failed-history-count", 20)
        client.config.set("klass-q1", "bare")
        working = [threads.submit(work, n) for n in range(THREADS)]
        for done in working:
            done.add_done_callback(lambda _: rounds.__setitem__(slice(THREADS), [10**9] * THREADS))
        try:
            yield rounds
        finally:
            stop.set()
        assert [one.result() for one in working] == [None] * THREADS
        assert client.check() == []
    assert misplaced(read_namespace(server.redis, namespace)) == []


ENTRIES = [b'{"klass": "k", "data": [1], "lane": "lane1", "limit": "L"}', b"\xff\x00", b'{"klass": "k", "unknown": 1}']


def turn_the_screws(client: Client, q: Any, n: int) -> None:
    lane = q.lane(f"lane{n % 3}")
    (lane.unpause if lane.counts().paused else lane.pause)()
    lane.weight(1 + n % 4)
    client.limit("L", running=n % 7)
    client.limit("M0", running=2, rate="50/s")
    if not client.unlimit("M1"):
        client.limit("M1", rate="5/100ms")
    client.unfail("broken", count=5)
    client.sweep()


@pytest.mark.sampled(3)
def test_check_reports_no_job_that_moves_meanwhile(busy, live):
    checks_made = 0
    while checks_made < 10 or min(busy) < 20:
        assert live.check() == []
        checks_made += 1
    assert live.check(repair=True) == []


@pytest.mark.sampled(2)
def test_repair_harms_no_job_that_moves_meanwhile(busy, live, server, namespace):
    prefix = f"{{{namespace}}}:"
    damaged = 0
    while damaged < (10 if LONG else 4) or min(busy) < (15 if LONG else 6):
        for queue in ("q0", "q1"):
            server.redis.zpopmin(f"{prefix}queue:{queue}:waiting", 2)
            server.redis.zpopmin(f"{prefix}lane:{queue}\nlane1", 2)
            server.redis.zadd(f"{prefix}queue:{queue}:running", {f"ghost-{damaged}": damaged})
            server.redis.hset(f"{prefix}unique:{queue}", f"key-{damaged}", "ghost")
        server.redis.zadd(f"{prefix}holders:L", {f"ghost-{damaged}": damaged})
        server.redis.zincrby(f"{prefix}tag-counts", 5, "red")
        found = live.check(repair=True)
        assert found and all(violation.repaired for violation in found)
        damaged += 1


ENDS: list[Callable[[Any], object]] = [
    lambda lease: lease.complete(1),
    lambda lease: lease.fail("g", "m"),
    lambda lease: lease.release(),
    lambda lease: lease.retry(delay=0.01),
    lambda lease: lease.complete(next="q0", delay=0.01),
]


def test_an_empty_namespace_is_in_order_and_stays_empty(live, keys):
    assert live.check() == live.check(repair=True) == []
    assert keys() == set()


def test_largest_accepted_numbers_are_valid(client):
    longest_s = EXACT_INT // 1000
    options = {"retries": EXACT_INT, "max_deaths": EXACT_INT, "timeout": longest_s, "expires": longest_s}
    client.queue("q").put("k", **options, priority=EXACT_INT, lane="x")
    client.queue("q").put("k", jid="later", delay=longest_s, priority=-EXACT_INT)
    client.queue("q").put("k", jid="child", delay=longest_s, depends=["later"])
    client.queue("q").recur("k", every=longest_s, offset=longest_s)
    client.limit("l", running=EXACT_INT)
    client.config.set("max-concurrency", EXACT_INT // 1000)
    before = [client.job("later").due_unix, client.limit("l").running]
    assert client.check() == client.check(repair=True) == []
    assert [client.job("later").due_unix, client.limit("l").running] == before


def test_names_may_hold_any_allowed_character(client):
    q = client.queue("a:b:waiting")
    for jid in ("queue:q:waiting", "job:x", "ü:*?[a]", "held"):
        q.put("k", jid=jid, tags=["tag:x", "a b", "%:^"])
    for lease in q.lease("host:1:running", 2):
        lease.fail("died:lost", "m")
    q.lease("host:1:running", 1)
    assert client.check() == []


def test_another_namespace_whose_name_is_longer_is_left_alone(ns, server):
    other = f"{ns.prefix[:-2]}x}}:"
    server.redis.set(f"{other}data:gone", "x")
    server.redis.set(f"x{ns.prefix}data:gone", "x")
    assert ns.check(repair=True) == []
    assert server.redis.delete(f"{other}data:gone", f"x{ns.prefix}data:gone") == 2


def test_foreign_keys_are_left_alone(ns):
    ns.redis.set(ns.key("out:q"), "x")
    ns.redis.set(ns.key("queue:q:someday"), "x")
    ns.redis.set(ns.key("limited:a\nb\nc\nd"), "x")
    assert ns.check(repair=True) == []


def test_redis_keeps_a_check_without_repair_from_writing(ns):
    command = of_keys([b"data:gone"])
    assert command.script.reads_only
    assert command.script.text.partition("\n")[2] == scripts.CHECK.text.partition("\n")[2]


def test_repaired_job_wakes_a_waiting_worker(ns):
    ns.redis.zrem(ns.key("queue:q:waiting"), ns.member("ahead"))
    ns.redis.delete(ns.key("bell:q"))
    ns.check(repair=True)
    assert ns.redis.llen(ns.key("bell:q")) == 1


def test_repair_that_fails_a_job_tells_its_waiters_and_frees_its_slot(ns):
    assert ns.run(waits.wait_for("slot", now=START)) == "running"
    ns.redis.hdel(ns.key("job:slot"), "klass")
    ns.check(repair=True)
    assert ns.redis.lrange(ns.key("ended:slot"), 0, -1) == [b"1"]
    assert ns.redis.ttl(ns.key("ended:slot")) > 0
    assert ns.client.queue("l").put("k", jid="next", unique="one", lane="p") == "next"
    assert "back" in ns.lease("l")
    assert ns.check() == []


def test_full_redis_can_be_checked_and_repaired(ns, server):
    ns.redis.zrem(ns.key("queue:q:waiting"), ns.member("ahead"))
    server.redis.config_set("maxmemory", 1)
    try:
        assert [violation.kind for violation in ns.check()] == ["job-in-no-place"]
        assert [violation.repaired for violation in ns.check(repair=True)] == ["put it there"]
    finally:
        server.redis.config_set("maxmemory", 0)


def test_repair_is_a_bool(client):
    with pytest.raises(TypeError, match="repair must be a bool"):
        client.check(repair="yes")


async def _checked(url: str, namespace: str, repair: bool) -> list[Violation]:
    async with AsyncClient(url, namespace) as client:
        return await client.check(repair=repair)


def test_the_async_client_checks_in_the_same_way(ns, server, namespace):
    ns.redis.zadd(ns.key("complete"), {"ghost": 1})
    for repair in (False, True):
        (found,) = asyncio.run(_checked(server.url, namespace, repair))
        assert (found.kind, found.subject, found.detail) == (
            "id-without-record", "ghost", "is in complete, but there is no record of it",
        )  # fmt: skip
        assert found.repaired == ("took it out" if repair else None)
    assert asyncio.run(_checked(server.url, namespace, True)) == []


def test_every_kind_that_a_script_names_is_explained():
    found = set(re.findall(r"[\"]([a-z]+(?:-[a-z]+)+)[\"]", scripts.CHECK.text)) - {"parent-failed"}
    assert set(KINDS) - found == {"phantom", "orphan"}
    assert {kind for kind in found if kind in KINDS} == set(KINDS) - {"phantom", "orphan"}
