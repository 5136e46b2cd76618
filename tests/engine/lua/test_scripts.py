"""The Lua scripts as texts (headers) and as transactions (reads before writes)."""

import hashlib
import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import redis

from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import (
    audit,
    batches,
    bulk,
    check,
    choices,
    concerns,
    course,
    data_schemas,
    deleting,
    dividing,
    doors,
    facts,
    job_changes,
    job_queries,
    lanes,
    leasing,
    limits,
    mailbox,
    maintenance,
    putting,
    queue_counts,
    recent,
    recurrences,
    resharding,
    settings,
    settling,
    statistics,
    upgrade,
    waits,
    workers,
)
from supervisor.engine.commands.check import ScanPage
from supervisor.engine.commands.command import Command
from supervisor.engine.model import scripts
from supervisor.engine.model.chunks import to_chunk
from supervisor.engine.model.cron_times import DueCron
from supervisor.engine.model.doors import checked_door
from supervisor.engine.model.errors import StoreUnavailable
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.new_jobs import new_job
from supervisor.engine.model.outcomes import (
    Completed,
    Died,
    Failed,
    Misfit,
    Released,
    Retried,
    Returned,
    Suspended,
    Unknown,
)
from supervisor.engine.model.recurring import declared
from supervisor.engine.model.validation import UNSET
from tests.engine.invariants import misplaced, read_namespace
from tests.engine.lua import bytecode
from tests.layouts import set_options
from tests.lengths import LONG

LUA = Path(scripts.__file__).parents[1] / "lua"
NOW = 100_000_000.0
TRACE = f"00-{'ab' * 16}-{1:016x}-01"
CRON_MS = 99_999_960_000  # a full minute before that
DAY = 86_400
FILES = {str(path.relative_to(LUA)): path.read_text() for path in sorted(LUA.rglob("*.lua"))}
VERBS = [script.name for script in scripts.ALL]
REFERENCE = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")
RANGE = re.compile(r"\bARGV\[(\d+)\.\.\]")


def header_and_body(name: str) -> tuple[str, str]:
    lines = scripts.source(name).splitlines()
    end = next(i for i, line in enumerate(lines) if i and not re.match(r"--( |$)", line))
    return "\n".join(lines[:end]), "\n".join(lines[end:])


def whole_body(name: str) -> str:
    """Return the script as Redis gets it, with includes and without comments."""
    return re.sub(r"--.*", "", scripts.load(name).text)


def walks(code: str) -> set[int]:
    """Return the indexes from which the code walks the rest of its arguments."""
    starts = [
        int(n)
        for n in re.findall(r"= (\d+), #ARGV|unpack\(ARGV, (\d+)\)|= (\d+), \d+ \+ 2 \* ARGV", code)
        for n in n
        if n
    ]
    for names, values in re.findall(r"^local ([\w, ]+) = (.*)$", code, re.M):
        named = names.split(", ")
        if "at" in named:
            starts += [int(value) for value in values.split(", ")[named.index("at") :][:1] if value.isdigit()]
    return set(starts)


# Scripts as texts.


def test_every_file_is_a_script_that_is_loaded():
    assert sorted(VERBS) == sorted(path.stem for path in LUA.glob("*.lua"))


@pytest.mark.parametrize("name", VERBS)
def test_header_names_purpose_caller_and_reply(name):
    header, _ = header_and_body(name)
    assert re.match(r"#!lua( flags=[a-z-]+)?\n-- " + name + r"\.lua — \S", header)
    for heading in ("Called by: ", "Holds: ", "Returns ", "Errors "):
        assert f"\n-- {heading}" in header
    caller = re.search(r"Called by: (.+) \(supervisor/engine/commands/(\w+)\.py\)", header)
    assert caller
    module = importlib.import_module(f"supervisor.engine.commands.{caller[2]}")
    for function in caller[1].split(", "):
        assert function.startswith(f"{caller[2]}.")
        assert callable(getattr(module, function.partition(".")[2]))


@pytest.mark.parametrize("name", VERBS)
def test_header_names_every_key_and_argument_used(name):
    header, body = header_and_body(name)[0], whole_body(name)
    named, used = set(REFERENCE.findall(header)), set(REFERENCE.findall(body))
    assert named == used - {("KEYS", "2")}, "KEYS[2] is the business of layout.lua"
    rest = RANGE.search(header)
    assert walks(body) == ({int(rest[1])} if rest else set()), "a loop walks through the rest of the arguments"
    if rest:
        assert max((int(n) for kind, n in named if kind == "ARGV"), default=0) == int(rest[1]) - 1


def test_no_script_scans_the_keyspace_or_evaluates_its_input():
    forbidden = re.compile(r"call\(\s*[\"'](KEYS|SCAN|FLUSH|EVAL)|cmsgpack|loadstring", re.I)
    assert [name for name, text in FILES.items() if forbidden.search(text)] == []
    # Entries must be decoded; payloads never are.
    assert [name for name, text in FILES.items() if "cjson.decode" in text] == ["include/entries.lua"]


def test_lines_fit_the_page():
    assert [(name, line) for name, text in FILES.items() for line in text.splitlines() if len(line) > 120] == []


def test_flags_allow_oom_and_mark_read_only_scripts():
    flags = {script.name: script.text.split("\n")[0] for script in scripts.ALL}
    assert {name for name, line in flags.items() if line == "#!lua"} == {
        "put", "log", "recur", "declare", "await", "signal", "stream", "batchopen", "door",
        "doorlists", "describe", "divide", "prepare", "arrive",
    }  # fmt: skip
    assert {s.name for s in scripts.ALL if s.reads_only} == {
        "job", "failed", "counts", "concerns", "timing", "names", "list", "peek", "tagged", "tags", "tracked",
        "workers", "worker", "stats", "recent", "course", "recurring", "settings", "limits", "limited", "lanes",
        "served", "asks", "find", "data", "cancelled", "audit", "layouts", "why", "batch", "batches", "doors",
        "schemas", "guests", "depart",
    }  # fmt: skip


def test_an_include_is_put_in_once():
    text = scripts.SETTLE.text
    assert "@include" not in text
    assert text.count("local P = KEYS[1]") == 1


def test_scripts_keep_clear_of_the_limits_of_lua(server, measured):
    """Lua 5.1 compiles no function with more than 200 local variables, or with more than 60 of outer functions."""
    worst = {}
    for script in scripts.ALL:
        _, _, body = script.text.partition("\n")
        found = bytecode.functions(server.redis.eval("return string.dump(loadstring(ARGV[1]))", 0, body))
        worst[script.name] = max(each.most_locals for each in found), max(each.outer_names for each in found)
    most_locals, outer_names = (max(values) for values in zip(*worst.values(), strict=True))
    measured(f"at most {most_locals} local variables of 200, {outer_names} outer ones of 60")
    assert {name: numbers for name, numbers in worst.items() if numbers[0] > 190 or numbers[1] > 55} == {}


# Scripts as transactions: each runs in a rich state, with redis.call recorded.

# KEYS[2]: the call at which an error is injected, -1 = before the first write; KEYS[3]: a set for the names of the
# keys that are used, "" = not wanted.
WRAPPED = """
local redis = (function(real)
  local WRITES = { SET = 1, MSET = 1, HSET = 1, HDEL = 1, ZADD = 1, ZREM = 1, UNLINK = 1, DEL = 1, INCRBY = 1,
    RPUSH = 1, LREM = 1, LTRIM = 1, PEXPIRE = 1, ZREMRANGEBYSCORE = 1, ZREMRANGEBYRANK = 1, PUBLISH = 1, RENAME = 1,
    XADD = 1, SETRANGE = 1 }
  local fail_at, noting, notes = tonumber(KEYS[2]), KEYS[3] ~= "", KEYS[3]
  KEYS[2], KEYS[3] = nil, nil
  local calls, writing = 0, false
  local function call(command, ...)
    calls = calls + 1
    if WRITES[command] then
      if fail_at < 0 and not writing then error("INJECTED at " .. calls) end
      writing = true
    elseif writing then
      error("READ AFTER WRITE: " .. command)
    end
    if calls == fail_at and not writing then error({ err = "INJECTED before " .. command }) end
    if select("#", ...) > 1001 then error("MORE THAN 1000 VALUES: " .. command) end
    for _, argument in ipairs(noting and { ... } or {}) do
      if string.sub(argument, 1, #KEYS[1]) == KEYS[1] then real.call("SADD", notes, argument) end
    end
    return real.call(command, ...)
  end
  return setmetatable({ call = call }, { __index = real })
end)(redis)
"""


@dataclass
class World:
    """The configuration, and whether events have listeners, while a script runs."""

    options: dict[str, Any] = field(default_factory=dict)
    is_heard: bool = False


KEPT_SHORT = {
    "grace": 7,
    "jobs-history-count": 1,
    "failed-history-count": 1,
    "failed-history": 3600,
    "stats-history": 2,
}
WORLDS = {
    "heard": World(KEPT_SHORT, True),
    "unheard": World(KEPT_SHORT),
    "paused": World({**KEPT_SHORT, "paused-q": 1}),
    "limited": World(
        {"grace": 7, "max-concurrency": 14, "jobs-history": 0, "stats-history": 0, "unknown-for": 0, "max-deaths": 1},
        True,
    ),
}


@dataclass
class Stage:
    """A namespace in a rich state: jobs of every kind in every place, some with tags, tracking and dependents;
    phantoms, expired leases, due schedules, recurring jobs; old statistics, workers and ended jobs.
    """

    client: Client
    held: dict[str, LeaseRecord]


def fill(server: Any, namespace: str) -> dict[str, LeaseRecord]:
    time = [NOW - 3 * DAY]
    client = Client(server.url, namespace, lambda: time[0])
    run = client._store.run
    q = client.queue("q")
    for jid in ("old-done", "old-failed"):
        q.put("k", jid=jid, tags=["t", jid])
    done, failed = run(leasing.lease("old", ["q"], 2, number=1, now=time[0])).leases
    client.settle([Completed(done, 1), Failed(failed, "g", "m")])
    q.put_many({"klass": "k", "jid": f"kin-{policy}", "depends": ["old-failed"], "on_parent_failure": policy}
               for policy in ("wait",))  # fmt: skip
    time[0] = NOW - 100
    q.recur("k", every=7, jid="came-again", tags=["t"], backlog=2)
    q.recur("k", every=1000, offset=1000, jid="comes-again")
    q.recur("k", cron="* * * * *", jid="cron")
    q.put_many({"klass": "k", "data": i, "jid": f"lost-{i}"} for i in range(4))
    run(leasing.lease("gone", ["q"], 2, ttl_s=10, takeover=False, now=time[0]))
    run(leasing.lease("gone", ["q"], 1, ttl_s=98, takeover=False, now=time[0]))
    run(leasing.lease("gone", ["q"], 1, ttl_s=10, starting=0, takeover=False, now=time[0]))
    time[0] = NOW - 20
    client.queue("r").put_many(
        {"klass": "k", "data": i, "jid": f"held-{i}", "retries": 0 if i == 2 else 3, "tags": ["t", f"t{i}"]}
        for i in range(12)
    )
    grant = run(leasing.lease("w", ["r"], 12, number=1, now=time[0]))
    for i in range(0, 12, 2):
        client.track(f"held-{i}")
    for policy in ("wait", "fail", "run"):
        client.queue("p").put_many(
            {
                "klass": "k",
                "jid": f"{policy}-{i}",
                "depends": [f"held-{i}", "waiting-9"],
                "on_parent_failure": policy,
                "delay": i % 2,
            }
            for i in range(0, 12, 3)
        )
    q.put_many({"klass": "k", "jid": f"other-{i}"} for i in range(4))
    ended = run(leasing.lease("w2", ["q"], 30, ttl_s=1_000, takeover=False, now=time[0])).leases
    ways = [lambda it: Failed(it, "g", "m"), lambda it: Completed(it, 1), lambda it: Died(it, "oom"), Released]
    client.settle([ways[i % 4](lease) for i, lease in enumerate(ended)])
    q.put("k", "d", jid="due", delay=1, priority=2)
    q.put("k", "d", jid="not-due", delay=1000)
    q.put_many({"klass": "k", "jid": f"waiting-{i}", "priority": i} for i in range(10))
    client.queue("p").put("k", jid="elsewhere", tags=["t"])
    q.put("k", jid="child", depends=["waiting-8"], delay=500)
    q.put("k", jid="grandchild", depends=["child"], on_parent_failure="fail")
    client.track("waiting-1")
    client.log("waiting-1", "a line")
    prefix = f"{{{namespace}}}:"
    server.redis.zadd(f"{prefix}queues", {"empty": 1})
    server.redis.hset(f"{prefix}announced", "empty", 1)
    for place in ("waiting", "front", "running", "scheduled"):
        server.redis.zadd(f"{prefix}queue:q:{place}", {f"{0:013x}ghost-{place}": 0})
    server.redis.zadd(f"{prefix}failed:g", {"ghost-failed": 0})
    server.redis.zadd(f"{prefix}failed", {"ghost-failed": 0})
    run(mailbox.tell("w", "hint"))
    run(settling.settle("w", [], number=1, now=time[0]))
    client.close()
    return {lease.jid: lease for lease in grant.leases}


def fill_special(server: Any, namespace: str) -> dict[str, LeaseRecord]:
    """Add jobs with lanes, limits, claims and expiry, persistent and at-most-once ones, and entries."""
    time, prefix = [NOW - 60], f"{{{namespace}}}:"
    client = Client(server.url, namespace, lambda: time[0])
    run, s = client._store.run, client.queue("s")
    for key, starts in (("few", {"running": 5}), ("slow", {"rate": "3/m"}), ("shut", {"running": 0})):
        client.limit(key, **starts)
    kinds = {
        "persistent": {"persistent": True, "limit": "few"},
        "once": {"at_most_once": True, "limit": "slow", "unique": True},
        "claimed": {"unique": "claim-{i}", "expires": 30, "lane": "a"},
        "awaited": {"lane": "b"},
    }
    for kind, options in kinds.items():
        s.put_many(
            {"klass": "k", "data": i, "jid": f"{kind}-{i}"}
            | {name: value.format(i=i) if isinstance(value, str) else value for name, value in options.items()}
            for i in range(6 if kind == "persistent" else 5)
        )
    parents = ["once-0", "persistent-0", "claimed-0", "awaited-0"]
    s.put("k", jid="waits-for-special", depends=parents, on_parent_failure="wait")
    held = run(leasing.lease("w", ["s"], 14, ttl_s=1000, number=1, now=time[0])).leases
    lost = run(leasing.lease("gone", ["s"], 4, ttl_s=20, now=time[0])).leases
    run(leasing.lease("gone", ["s"], 1, ttl_s=20, starting=0, now=time[0]))
    for jid in (held[0].jid, "awaited-0", "awaited-4", "once-1", "persistent-5"):
        run(waits.wait_for(jid, now=time[0]))
        run(waits.follow(jid, now=time[0]))
    run(leasing.stream("w", [leasing.Streamed(one.jid, one.token, 0, [b"xxx"]) for one in held[::3]], now=time[0]))
    progress = [leasing.Renewal(one.jid, one.token, progress=(0.5, "half"), state=b"[1]") for one in held[::3]]
    run(leasing.renew("w", progress, now=time[0]))
    run(settling.settle("gone", [Returned(one) if one.persistent else Released(one) for one in lost[:2]], now=time[0]))
    s.put("k", jid="has-failed", lane="e", unique="failed", limit="few")
    run(waits.follow("has-failed", now=time[0]))
    run(job_changes.fail("has-failed", "g", "m", now=time[0]))
    # The jobs stand in front of a paused lane, are set aside in it, or are parked in turn.
    lane = s.lane("c")
    lane.put_many({"klass": "k", "jid": f"aside-{i}", "limit": "few" if i > 2 else None} for i in range(5))
    time[0] = NOW - 20
    back = run(leasing.lease("w2", ["s"], 100, ttl_s=1000, takeover=False, now=time[0])).leases
    run(settling.settle("w2", [Released(one) for one in back if one.lane == "c"], now=time[0]))
    lane.pause()
    run(leasing.lease("w2", ["s"], 1, ttl_s=1000, takeover=False, now=time[0]))
    s.lane("a").weight(3)
    s.put_many({"klass": "k", "jid": f"a-{i}", "lane": "a", "priority": -i} for i in range(4))
    s.put_many({"klass": "k", "jid": f"b-{i}", "lane": "b", "expires": i + 5} for i in range(20, 10, -5))
    s.put_many({"klass": "k", "jid": f"few-{i}", "lane": "ab"[i % 2], "limit": "few"} for i in range(6))
    s.put_many({"klass": "k", "jid": f"slow-{i}", "limit": "slow"} for i in range(3))
    client.queue("t").put_many({"klass": "k", "jid": f"shut-{i}", "limit": "shut"} for i in range(3))
    client.queue("t").put("k", jid="few-elsewhere", limit="few")
    run(leasing.lease("w3", ["t", "s"], 1, now=time[0]))
    run(leasing.lease("w3", ["s"], 2, takeover=False, now=time[0]))
    s.put("k", jid="late", delay=5, lane="a", limit="few", unique="late", expires=10)
    s.put("k", jid="debounces", unique="debounces", debounce=5)
    s.put("k", jid="throttles", unique="throttles", throttle=5)
    s.put("k", jid="collects", unique="collects", collect=5, most=4)
    s.put_many({"klass": "k", "jid": f"again-{i}", "lane": "d", "limit": "few"} for i in range(2))
    # A klass that a worker lacks and a peer has: apart, in its place, and held by that worker.
    for worker, klasses in (("peer", ["k", "odd"]), ("lacker", ["k"])):
        run(leasing.resume(worker, 1, [], now=time[0]))
        run(workers.report_skills(worker, klasses, ["z", "s"], {"k": "known"}, now=time[0]))
    run(data_schemas.describe([], {"known": "{}"}))
    z = client.queue("z")
    z.put_many({"klass": "odd", "jid": f"odd-{i}", "lane": "a" if i % 2 else None} for i in range(4))
    odd = run(leasing.lease("lacker", ["z"], 4, number=2, ttl_s=1000, now=time[0])).leases
    run(settling.settle("lacker", [Unknown(one, 5) for one in odd], number=3, now=time[0]))
    z.put_many({"klass": klass, "jid": f"{klass}-in-z"} for klass in ("odd", "k", "rare"))
    strange = run(leasing.lease("lacker", ["z"], 2, number=4, ttl_s=1000, now=time[0])).leases
    z.put("odd", jid="odd-last")
    client.queue("v").put_many({"klass": "k", "jid": f"suspended-{i}", "limit": "few"} for i in range(2))
    client.signal("suspended-1", "other", "kept")
    suspended = run(leasing.lease("w3", ["v"], 2, now=time[0])).leases
    run(leasing.renew("w3", [leasing.Renewal(suspended[0].jid, suspended[0].token, state=b"7", step="s")], now=time[0]))
    run(settling.settle("w3", [Suspended(one, "approval", 50) for one in suspended], now=time[0]))
    server.redis.hset(f"{prefix}job:suspended-1", "replay", 3)
    called = {
        name: {"queue": "t", "klass": name, "jid": name, "data": b"\xff", "tags": ["t"]}
        for name in ("on_success", "on_failure", "on_complete")
    }
    with client.batch("outer", **called) as outer:
        outer.put_many("y", [{"klass": "k", "jid": f"member-{i}"} for i in range(4)])
        with outer.batch("inner", **called) as inner:
            inner.put("y", "k", jid="inner-0")
    client.batch("open", **called).__enter__().put("y", "k", jid="open-0")
    client.batch("alone").__enter__().put("y", "k", jid="alone-0")
    members = run(leasing.lease("batcher", ["y"], 10, now=time[0])).leases
    run(settling.settle("batcher", [Completed(members[0]), Failed(members[1], "g", "m")], now=time[0]))
    with client.batch("held") as held_batch:
        held_batch.put_many("paused", [{"klass": "k", "jid": f"paused-{i}"} for i in range(2)])
    held_batch.pause()
    run(leasing.lease("batcher", ["paused"], 1, now=time[0]))
    server.redis.delete(f"{prefix}batch:alone")
    entries = (
        b"not JSON", b'{"klass": "k", "unknown": 1}', b'{"klass": "k", "jid": "pushed", "lane": "a", "limit": "few"}',
        b'{"klass": "k", "jid": "later", "depends": ["a-0"], "unique": true, "expires": 7, "tags": ["t"], "delay": 3}',
    )  # fmt: skip
    server.redis.lpush(f"{prefix}in:u", *entries)
    run(leasing.lease("w3", ["u"], 1, now=time[0]))
    server.redis.lpush(f"{prefix}in:s", *entries)
    set_options(server.redis, prefix, {"klass-t": "k"})
    server.redis.lpush(f"{prefix}in:t", *entries)
    server.redis.zadd(f"{prefix}lane:s\na", {f"{0:013x}ghost-lane": 0})
    server.redis.zadd(f"{prefix}limited:few\ns\na", {f"{0:013x}ghost-limited": 0})
    server.redis.zadd(f"{prefix}expiring", {"ghost-expiring": 0})
    run(settling.settle("w", [], number=1, now=time[0]))
    run(mailbox.serve("w", ["s"], now=time[0]))
    run(mailbox.ask("first", "w", "stacks", now=time[0]))
    client.close()
    held = [*held, *members[2:]]
    return {one.jid: one for one in held} | {f"held by lacker {one.jid}": one for one in strange}


#: A jid of each place that a job without rare options goes through.
PLAIN = ("waiting", "laned", "held", "lost", "done", "resulted")


def fill_plain(server: Any, namespace: str) -> dict[str, LeaseRecord]:
    """Make jobs with nothing but cheap options in each place that they go through, beside few others."""
    time, prefix = [NOW - 60], f"{{{namespace}}}:"
    client = Client(server.url, namespace, lambda: time[0])
    run, q = client._store.run, client.queue("q")
    data = (None, {"n": 1}, b"\0raw", "x" * 600, b"x" * 5000)
    cheap: tuple[dict[str, Any], ...] = (
        {},
        {"priority": 3, "retries": 2},
        {"timeout": 7.5, "max_deaths": 2},
        {"trace": TRACE},
    )

    def put(kind: str, queue: str, count: int) -> None:
        client.queue(queue).put_many(
            {"klass": "k", "jid": f"{kind}-{i}", "data": data[i % 5], **cheap[i % 4]} for i in range(count)
        )

    put("done", "done", 6)
    put("resulted", "done", 6)
    put("lost", "lost", 6)
    put("held", "held", 12)
    put("slow", "held", 2)
    client.queue("held").put("k", jid="damaged-1")
    run(leasing.resume("w", 1, [], now=time[0]))
    done = run(leasing.lease("w", ["done"], 12, number=2, now=time[0])).leases
    run(settling.settle("w", [Completed(one, {"r": 1} if "res" in one.jid else None) for one in done], now=time[0]))
    run(leasing.lease("gone", ["lost"], 4, ttl_s=20, now=time[0]))
    run(leasing.lease("gone", ["lost"], 2, ttl_s=20, starting=0, now=time[0]))
    held = run(leasing.lease("w", ["held"], 15, ttl_s=1000, starting=9, number=3, now=time[0])).leases
    time[0] = NOW - 20
    put("waiting", "q", 12)
    client.queue("q").put_many({"klass": "k", "jid": f"laned-{i}", "lane": "a"} for i in range(4))
    client.queue("p").put_many({"klass": "k", "jid": f"also-{i}"} for i in range(3))
    q.put("k", jid="damaged-0")
    # Others: what waits for plain jobs, will be named as they are, or lies between them.
    q.put("k", jid="child", depends=["waiting-9", "held-9"], on_parent_failure="fail")
    q.put("k", jid="named-1")
    q.recur("k", every=1000, offset=10, jid="named", tags=["t"], backlog=1)
    q.put("k", jid="tagged", tags=["t"])
    q.put("k", jid="failed")
    run(job_changes.fail("failed", "g", "m", now=time[0]))
    client.log("waiting-8", "a line")
    client.track("held-8")
    members = server.redis.zrange(f"{prefix}queue:q:waiting", 0, -1)
    server.redis.zrem(f"{prefix}queue:q:waiting", next(one for one in members if one.endswith(b"damaged-0")))
    server.redis.zrem(f"{prefix}held:w", "damaged-1")
    server.redis.zadd(f"{prefix}queue:held:running", {"ghost-held": 1})
    named = ("waiting-7", "held-7", "done-5")
    entries = [b'{"klass": "k", "jid": "%s", "depends": ["waiting-6"]}' % jid.encode() for jid in named]
    server.redis.lpush(f"{prefix}in:u", *entries)
    run(settling.settle("w", [], number=2, now=time[0]))
    client.close()
    return {lease.jid: lease for lease in held if lease.jid != "damaged-1"}


def copy_keys(server: Any, source: str, target: str) -> None:
    """Rename the keys of one prefix to another."""
    server.redis.eval(
        """for _, key in ipairs(redis.call("KEYS", KEYS[2] .. "*")) do redis.call("UNLINK", key) end
        for _, key in ipairs(redis.call("KEYS", KEYS[1] .. "*")) do
          local copy = KEYS[2] .. string.sub(key, #KEYS[1] + 1)
          if not string.find(key, ":bell:", 1, true) then redis.call("COPY", key, copy) end
          redis.call("PERSIST", copy)
        end""",
        2, source, target,
    )  # fmt: skip


STAGES = {"ready": fill, "special": fill_special, "plain": fill_plain}


def stage_of(scene: str) -> str:
    """Return the name of the stage on which a scene plays."""
    return "special" if scene in SPECIAL_SCENES else "plain" if scene in PLAIN_SCENES else "ready"


@pytest.fixture(scope="module")
def ready(server: Any) -> Iterator[dict[str, dict[str, LeaseRecord]]]:
    """Prepare the keys of each kind of stage for copies. None of them expires."""
    held = {name: fill_it(server, server.seen(name)) for name, fill_it in STAGES.items()}
    for name in held:
        for key in server.redis.scan_iter(f"{{{server.seen(name)}}}:*", count=10_000):
            server.redis.persist(key)
    yield held
    for name in held:
        for key in server.redis.scan_iter(f"{{{server.seen(name)}}}:*", count=10_000):
            server.redis.unlink(key)


@pytest.fixture
def set_up(
    server: Any, namespace: str, ready: dict[str, dict[str, LeaseRecord]]
) -> Iterator[Callable[..., Command[Any]]]:
    """Make the namespace the stage of a scene, in one of the worlds, and return the command to run there."""
    with Client(server.url, namespace, lambda: NOW - 20) as client:

        def make(scene: str, world: str = "heard") -> Command[Any]:
            kind, prefix = stage_of(scene), f"{{{namespace}}}:"
            copy_keys(server, f"{{{server.seen(kind)}}}:", prefix)
            set_options(server.redis, prefix, WORLDS[world].options)
            return SCENES[scene](Stage(client, ready[kind]))

        yield make


def puts(_: Stage) -> Command[Any]:
    known = ["lost-0", "held-0", "due", "waiting-0", "elsewhere", "child", *(f"other-{i}" for i in range(4))]
    moved = [new_job("put", "q", "k", {"n": 1}, {"jid": jid, "delay": n % 2 * 5}) for n, jid in enumerate(known)]
    waiting = [
        new_job(
            "put", "q", "k", None, {"depends": ["held-1", "gone", parent], "on_parent_failure": policy, "at": NOW + 9}
        )
        for parent in ("waiting-1", "other-1", "old-failed")
        for policy in ("wait", "fail", "run")
    ]
    added = new_job("add", "q", "k", None, {"jid": "lost-1"})
    tagged = new_job(
        "put", "fresh", "k", b"x" * 2000, {"tags": ["t", "new"], "priority": 3, "timeout": 1, "jid": "came-again-1"}
    )
    retagged = new_job("put", "fresh", "k", None, {"jid": "held-2", "tags": [], "max_deaths": 1, "retries": 1})
    return putting.put([*moved, *waiting, added, tagged, retagged], now=NOW)


#: What a pass of `leasehold reshard` may meet.
PARCELS = [
    *(f"job:{kind}-{n}".encode() for kind in PLAIN for n in (0, 1, 3, 4, 8)),
    *(f"job:{jid}".encode() for jid in ("tagged", "failed", "child", "odd-0", "odd-1", "late", "debounces")),
    *(f"job:{kind}-{n}".encode() for kind in ("once", "claimed", "awaited", "persistent", "a", "few") for n in (0, 3)),
    b"recur:named", b"home:waiting-2", b"home:gone", b"memory:gone", b"limit:few", b"limit:shut",
    b"throttled:s\nthrottles",
]  # fmt: skip


def a_pass(stage: Stage) -> resharding.ShardState:
    return stage.client._store.first.run(resharding.begin(4, now=NOW))


def a_divided_one(stage: Stage) -> resharding.ShardState:
    """End a pass, so that the namespace is one of four shards."""
    found = a_pass(stage)
    ended = stage.client._store.first.run(resharding.end(4, found.number, True, now=NOW))
    return ended._replace(number=str(int(ended.number) + 1))


def parcels(stage: Stage) -> list[resharding.Parcel]:
    return [one for one in stage.client._store.first.run(resharding.depart(PARCELS)) if one.why != "gone"]


def arriving(stage: Stage) -> tuple[str, list[resharding.Parcel]]:
    """Take out what can move. Return the number of the pass, and the parcels."""
    number, going = a_pass(stage).number, [one for one in parcels(stage) if not one.why]
    assert all(stage.client._store.first.run(resharding.leave(number, going, now=NOW)))
    return number, going


def landing(stage: Stage, act: Callable[..., Command[Any]]) -> Command[Any]:
    number, going = arriving(stage)
    stage.client._store.first.run(resharding.arrive(number, going, now=NOW))
    return act(number, [one.name for one in going], now=NOW)


def outcomes(stage: Stage) -> Command[Any]:
    held = stage.held
    then = [{"queue": "p", "klass": "k", "jid": "follower"}, {"queue": "fresh", "klass": "k", "depends": ["held-1"]}]
    ended = [
        Completed(held["held-0"], "r", then=then),
        Retried(held["held-1"]),
        Retried(held["held-2"]),
        Failed(held["held-3"], "g", "m", data=b"x" * 2000),
        Released(held["held-4"]),
        Died(held["held-5"], "SIGKILL"),
        Unknown(held["held-6"], 5),
        Retried(held["held-7"], delay=1),
        Completed(held["held-8"], next="p", data={"n": 2}, delay=1, depends=["waiting-1"], then=then),
        Completed(held["held-9"], data=1),
        Completed(held["held-10"], next="q", depends=["child", "held-10"]),
        Completed(held["held-11"]),
        Completed(held["held-0"], then=then),
    ]
    return settling.settle("w", ended, number=2, now=NOW)


SPECIAL = (
    *(f"{kind}-{i}" for kind in ("persistent", "once", "claimed", "awaited", "aside", "few", "a") for i in range(5)),
    "b-20", "slow-0", "shut-0", "late", "later", "again-0", "has-failed", "throttles",
)  # fmt: skip


def special_puts(_: Stage) -> Command[Any]:
    """Known jobs of every place gain, lose and keep what makes them special."""
    given = [
        {"lane": "e", "limit": "few", "unique": True, "expires": 1, "persistent": True},
        {"lane": None, "limit": None, "unique": None, "expires": None, "persistent": False, "at_most_once": True},
        {"unique": "claim-1", "limit": "shut", "lane": "c"},
        {"limit": "slow", "delay": 3},
        {},
    ]
    puts = [
        new_job("put", "st"[i % 2], "k", i % 5, {"jid": jid, **given[(i + i // 5) % 5]})
        for i, jid in enumerate(SPECIAL)
    ]
    adds = [new_job("add", "s", "k", i, {"unique": True, "lane": "d", "persistent": True}) for i in range(3)]
    modes = {"debounces": "debounce", "throttles": "throttle", "collects": "collect", "new": "collect"}
    moded = [new_job("put", "s", "k", i, {"unique": key, modes[key]: 5}) for i in range(3) for key in modes]
    return putting.put([*puts, *adds, *moded], now=NOW)


def special_outcomes(stage: Stage) -> Command[Any]:
    """Settle every outcome for every kind of job."""
    follow = [
        {"queue": "s", "klass": "k", "jid": "follower", "lane": "a", "limit": "few", "unique": "claim-9"},
        {"queue": "s", "klass": "k", "jid": "few-0", "unique": "claim-1"},
    ]
    ways: list[Callable[[LeaseRecord], Any]] = [
        Returned,
        lambda it: Retried(it),
        lambda it: Died(it, "oom"),
        lambda it: Completed(it, "r", then=follow),
        Released,
        lambda it: Completed(it, next="t", data=5, depends=["a-0"]),
        lambda it: Failed(it, "g", "m"),
        lambda it: Retried(it, delay=3),
        lambda it: Unknown(it, 3),
        lambda it: Released(it, started=False),
        lambda it: Suspended(it, "approval", 60),
    ]
    held = [lease for jid, lease in stage.held.items() if not jid.startswith("held")]
    return settling.settle("w", [ways[i % len(ways)](lease) for i, lease in enumerate(held)], number=2, now=NOW)


def known(stage: Stage) -> list[tuple[str, int]]:
    return [(lease.jid, lease.token) for lease in stage.held.values()][:3]


def renewals(stage: Stage) -> Command[Any]:
    entries = [
        leasing.Renewal(*one, True, data, progress=(0.25, "a quarter"), state=b'{"n":2}')
        for one, data in zip(known(stage), (b"x" * 2000, 1, UNSET), strict=True)
    ]
    return leasing.renew("w", [*entries, leasing.Renewal("nobody", 1), leasing.Renewal("lost-0", 1)], number=2, now=NOW)


def updates(stage: Stage) -> Command[Any]:
    known = stage.client.recurring("came-again")
    return recurrences.update(known, {"every": 9, "queue": "fresh", "tags": [], "data": b"x"}, now=NOW)


class Raw(Command[Any]):
    """A command of Redis on a key of the namespace."""

    def wire(self, prefix: str) -> tuple[Any, ...]:
        verb, key, *rest = self.args
        return (verb, f"{prefix}{key}", *rest)


def on_the_way_back(stage: Stage, command: Command[Any]) -> Command[Any]:
    """Begin the way back to layout 1, with a lease whose score is that of layout 1."""
    run = stage.client._store.run
    run(upgrade.begin_back(NOW + 9 * DAY, now=NOW + 9 * DAY))
    run(Raw(scripts.SCORES, ("ZADD", "held:w", "5", "held-0"), int))
    return command


def in_layout_1(stage: Stage, command: Command[Any], *, scored: bool = False) -> Command[Any]:
    """Take the namespace to layout 1, with the leases that it has."""
    run, page = stage.client._store.run, ScanPage(-1, [])
    run(upgrade.begin_back(NOW + 9 * DAY, now=NOW + 9 * DAY))
    while page.cursor:
        page = run(upgrade.next_jobs(max(page.cursor, 0)))
        run(upgrade.expand(page.found, now=NOW + 9 * DAY))
    run(upgrade.end_back(now=NOW + 9 * DAY))
    if scored:
        assert run(upgrade.score_leases(0, 0, now=NOW + 9 * DAY)) == (-1, 0)
    return command


def door(stage: Stage, format: str, *entries: str) -> str:
    """Leave a door to a list into which its producer has put these entries, and return its name.

    The list lies in the namespace, where its reads and writes are seen. doors.add refuses that.
    """
    run, source = stage.client._store.run, f"{stage.client._store.first.namespace.prefix}foreign"
    lists = "\t".join(checked_door("d", format, source, "fresh", "k", None).lists)
    run(Raw(scripts.DOORS, ("HSET", "doors", "d", "\n".join((format, lists, source, "fresh", "k"))), int))
    for entry in entries:
        run(Raw(scripts.DOORS, ("LPUSH", "foreign:queue" if format == "rwq" else "foreign", entry), int))
        run(Raw(scripts.DOORS, ("SET", f"foreign:item:{entry}", "data"), bytes))
    return "d"


CRON = DueCron("cron", "* * * * *", None, CRON_MS, None)
EVERYONE = [
    *(f"held-{i}" for i in range(12)),
    "lost-0",
    "due",
    "not-due",
    "waiting-0",
    "waiting-9",
    "old-done",
    "nobody",
]
WAITING = [f"wait-{i}" for i in range(0, 12, 3)]
PLACES = [
    b"queue:q:waiting",
    b"queue:q:front",
    b"queue:q:running",
    b"queue:q:scheduled",
    b"job:lost-0",
    b"data:none",
    b"tags",
]
GHOST = [b"0" * 13 + b"ghost-waiting"]

# Commands of each script. The names begin with the script's.
SCENES: dict[str, Callable[[Stage], Command[Any]]] = {
    "put": puts,
    "move": lambda _: job_changes.move("held-0", "fresh", 5, by="kim", now=NOW),
    "move: what waits": lambda _: job_changes.move("child", "p", now=NOW),
    "lease": lambda _: leasing.lease("w", ["q", "p"], 7, number=2, now=NOW),
    "lease: all": lambda _: leasing.lease("new", ["p", "empty", "q", "r"], 100, now=NOW),
    "lease: none": lambda _: leasing.lease("new", ["q", "p"], 0, now=NOW),
    "lease: in turns": lambda _: leasing.lease("w", ["q", "p"], 9, number=2, order="round-robin", now=NOW),
    "lease: drawn": lambda _: leasing.lease("w", ["q", "p"], 9, order="weighted", weights={"p": 3}, now=NOW),
    "lease: no takeover": lambda _: leasing.lease("w", ["q"], 50, takeover=False, now=NOW),
    "settle": outcomes,
    "settle: of others": lambda stage: settling.settle("w2", [Retried(stage.held["held-0"])], number=1, now=NOW),
    "renew": renewals,
    "resume": lambda stage: leasing.resume("w", 2, known(stage), now=NOW),
    "sweep": lambda _: maintenance.sweep(by="kim", now=NOW),
    "sweep: days later": lambda _: maintenance.sweep(20, now=NOW + 9 * DAY),
    "deregister": lambda _: workers.deregister("w", now=NOW),
    "deregister: itself": lambda _: workers.deregister("w", own=True, now=NOW),
    "tell": lambda _: mailbox.tell("w", "hint"),
    "cancel": lambda _: job_changes.cancel([*EVERYONE, *WAITING], by="kim", now=NOW),
    "fail": lambda _: job_changes.fail("held-0", "g", "m", now=NOW),
    "fail: what waits": lambda _: job_changes.fail("child", "fresh", "m", now=NOW),
    "unfail": lambda _: job_changes.unfail("g", "fresh", now=NOW),
    "release": lambda _: job_changes.release(EVERYONE, now=NOW),
    "priority": lambda _: job_changes.set_priority("waiting-1", 9, now=NOW),
    "tag": lambda _: job_changes.tag("held-3", ["t", "u"], now=NOW),
    "tag: off": lambda _: job_changes.untag("held-3", ["t", "t3", "u"], now=NOW),
    "track": lambda _: job_changes.track("held-3", now=NOW),
    "track: off": lambda _: job_changes.untrack("held-2", now=NOW),
    "log": lambda _: job_changes.log("held-3", "half done", {"n": 1}, by="kim", now=NOW),
    "depend": lambda _: job_changes.depend("child", ["held-1", "waiting-1"], now=NOW),
    "depend: on what failed": lambda _: job_changes.depend("grandchild", ["old-failed"], now=NOW),
    "depend: off": lambda _: job_changes.undepend("child", None, now=NOW),
    "drop: recurring": lambda _: deleting.drop("q", "recurring", 0, now=NOW),
    "forget": lambda _: deleting.forget_once("empty", now=NOW),
    "recur": lambda _: recurrences.recur("fresh", "k", {"n": 1}, {"every": 5, "jid": "came-again"}, now=NOW),
    "recur: update": updates,
    "unrecur": lambda _: recurrences.unrecur("came-again", now=NOW),
    "recurtag": lambda _: recurrences.tag("came-again", ["t", "u"], now=NOW),
    "recurtag: off": lambda _: recurrences.untag("came-again", ["t"], now=NOW),
    "spawn": lambda _: recurrences.spawn(CRON, [CRON_MS / 1000], NOW + 20, now=NOW),
    "spawn: for the last time": lambda _: recurrences.spawn(CRON, [NOW - 60, NOW], None, now=NOW),
    "configure": lambda _: settings.configure("max-concurrency", None, "7", now=NOW),
    "configure: pause": lambda _: settings.configure("paused", "p", "1", now=NOW),
    "configure: unset": lambda _: settings.configure("grace", None, None, now=NOW),
    "check": lambda _: check.of_keys(PLACES, repair=True, now=NOW),
    "check: members": lambda _: check.of_members(b"queue:q:waiting", GHOST, repair=True, now=NOW),
    "job": lambda _: job_queries.jobs(EVERYONE, now=NOW),
    "failed": lambda _: job_queries.failed_jobs("g", now=NOW),
    "failed: groups": lambda _: job_queries.failed_groups(now=NOW),
    "counts": lambda _: queue_counts.counts(now=NOW),
    "concerns": lambda _: concerns.read(now=NOW),
    "timing": lambda _: settings.timing(["q"]),
    "names": lambda _: queue_counts.names(),
    **{
        f"list: {state}": lambda _, state=state: job_queries.listed(state, "q", 1, 100, now=NOW)
        for state in job_queries.STATES
    },
    "list: of all queues": lambda _: job_queries.listed("failed", None, now=NOW),
    "peek": lambda _: job_queries.peek("q", 100, now=NOW),
    "tagged": lambda _: job_queries.tagged("t", now=NOW),
    "tags": lambda _: job_queries.tags(),
    "tracked": lambda _: job_queries.tracked(now=NOW),
    "workers": lambda _: workers.read(now=NOW),
    "worker": lambda _: workers.jobs_of("w", now=NOW),
    "stats": lambda _: statistics.read("q", now=NOW),
    "recent": lambda _: recent.read("q", now=NOW),
    "course": lambda _: course.read("hour", now=NOW),
    "data": lambda _: job_queries.piece("data", "old-done", 0),
    "recurring": lambda _: recurrences.in_queue("q"),
    "settings": lambda _: settings.read(),
    "door": lambda stage: doors.add(door(stage, "rwq"), "rwq", "other", "fresh", "k", now=NOW),
    "door: removed": lambda stage: doors.remove(door(stage, "rwq"), now=NOW),
    "doors": lambda stage: door(stage, "rwq", "1") and doors.read(),
    "doorlists": lambda stage: doors.remember(
        (door(stage, "client-lists"), stage.client.doors.list())[1][0], [b"one", b"another"], now=NOW
    ),
    "doortake": lambda stage: doors.take([door(stage, "rwq", "1", "held-0", "old-done", "2", "2")], 100, now=NOW),
    "doortake: broken": lambda stage: doors.take([door(stage, "celery", "{", "[]")], 100, now=NOW),
    "unheard": lambda stage: stage.client.job("waiting-0").cancel() and maintenance.unheard(now=NOW),
    "layouts": lambda _: upgrade.look(now=NOW),
    "divide": lambda _: dividing.divide(1),
    "guests": lambda _: dividing.guests(
        [("job", "held-0"), ("batch", "open"), ("recurrence", "cron"), ("limit", "l"), ("unique", "q\nkey")]
    ),
    "convert": lambda _: upgrade.begin_back(NOW + 9 * DAY, now=NOW + 9 * DAY),
    "convert: end of the way back": lambda stage: on_the_way_back(stage, upgrade.end_back(now=NOW + 9 * DAY)),
    "convert: broken off": lambda stage: on_the_way_back(stage, upgrade.up(NOW + 9 * DAY, now=NOW + 9 * DAY)),
    "convert: up": lambda stage: in_layout_1(stage, upgrade.up(NOW + 9 * DAY, now=NOW + 9 * DAY), scored=True),
    "scores: in layout 1": lambda stage: in_layout_1(stage, upgrade.score_leases(0, 0, now=NOW + 9 * DAY)),
    "scores": lambda stage: on_the_way_back(stage, upgrade.score_leases(0, 0, now=NOW)),
    "expand": lambda stage: on_the_way_back(
        stage, upgrade.expand([b"held-0", b"lost-0", b"due", b"waiting-0", b"old-done", b"gone"], now=NOW)
    ),
}  # fmt: skip
EVERYTHING = choices.Choice(tag="t")


def special_streams(stage: Stage) -> Command[Any]:
    entries = [leasing.Streamed(one.jid, one.token, n % 2, [to_chunk(n)]) for n, one in enumerate(stage.held.values())]
    return leasing.stream("w", entries, now=NOW)


# Scenes after fill_special().
SPECIAL_SCENES: dict[str, Callable[[Stage], Command[Any]]] = {
    "renew: what is special": renewals,
    "lease: lanes": lambda _: leasing.lease("w", ["s", "t"], 7, number=2, takeover=False, now=NOW),
    "lease: all lanes": lambda _: leasing.lease("new", ["s", "t", "u"], 100, now=NOW),
    "lease: lanes, none": lambda _: leasing.lease("new", ["s", "t", "u"], 0, now=NOW),
    "lease: never twice": lambda _: leasing.lease("w", ["s"], 20, number=2, once=["k"], now=NOW + 1),
    "lease: after all dates": lambda _: leasing.lease("w", ["t", "s", "u"], 60, order="random", now=NOW + 2_000),
    "put: what is special": special_puts,
    "settle: what is special": special_outcomes,
    "resume: what is special": lambda _: leasing.resume("w", 2, [], now=NOW),
    "sweep: dates": lambda _: maintenance.sweep(1_000, now=NOW + 2_000),
    "cancel: what is special": lambda _: job_changes.cancel([*SPECIAL, "waits-for-special"], now=NOW),
    "release: what is special": lambda _: job_changes.release(SPECIAL, now=NOW),
    "fail: what is parked": lambda _: job_changes.fail("few-0", "g", "m", now=NOW),
    "fail: what is aside": lambda _: job_changes.fail("aside-0", "g", "m", now=NOW),
    "fail: what has a slot": lambda _: job_changes.fail("persistent-0", "g", "m", now=NOW),
    "signal: what waits for it": lambda _: job_changes.signal("suspended-0", "approval", {"n": 1}, now=NOW),
    "signal: again, and another": lambda _: job_changes.signal("suspended-1", "other", 2, now=NOW),
    "signal: in a lane": lambda _: job_changes.signal("a-1", "approval", now=NOW),
    "cancel: suspended": lambda _: job_changes.cancel(["suspended-0", "suspended-1"], now=NOW),
    "put: suspended": lambda _: putting.put([new_job("put", "s", "k", 1, {"jid": "suspended-0"})], now=NOW),
    "lease: signals and steps": lambda _: leasing.lease("new", ["v"], 3, now=NOW + 60),
    "check: signals and steps": lambda _: check.of_keys(
        [f"{kind}:suspended-{i}".encode() for kind in ("job", "replay") for i in range(2)], repair=True, now=NOW
    ),
    "batchopen": lambda _: batches.opened(
        "new", "d", "open", batches.checked_callbacks({"on_failure": {"queue": "new", "klass": "k"}}), now=NOW
    ),
    "batchclose": lambda _: batches.closed("open", now=NOW),
    "batchclose: without callbacks": lambda _: batches.closed("open", True, now=NOW),
    "batchcancel": lambda _: batches.cancelled("outer", now=NOW),
    "batchcancel: the last one of both": lambda _: batches.cancelled("inner", now=NOW),
    "batchpause": lambda _: batches.paused("outer", "kim", now=NOW),
    "batchpause: go on": lambda _: batches.resumed("held", now=NOW),
    "lease: of a paused batch": lambda _: leasing.lease("new", ["paused"], 10, now=NOW),
    "cancel: of a paused batch": lambda _: job_changes.cancel(["paused-0", "paused-1"], now=NOW),
    "batch": lambda _: batches.look("outer", 0, 10),
    "batches": lambda _: batches.listed(0, 10, now=NOW),
    "settle: the end of batches": lambda stage: settling.settle(
        "batcher",
        [
            *(Completed(stage.held[jid]) for jid in ("member-3", "inner-0")),
            Completed(stage.held["member-2"], then=[{"queue": "y", "klass": "k", "batch": "outer"}]),
        ],
        now=NOW,
    ),
    "put: into a batch": lambda _: putting.put(
        [new_job("put", "y", "k", 1, {"jid": jid, "batch": "open"}) for jid in ("new", "member-1", "open-0")], now=NOW
    ),
    "unfail: of a batch": lambda _: job_changes.unfail_jobs(["member-1"], now=NOW),
    "fail: of a batch": lambda _: job_changes.fail("member-0", "g", "m", now=NOW),
    "cancel: of a batch": lambda _: job_changes.cancel(["member-1", "member-2", "member-3", "inner-0"], now=NOW),
    "sweep: batches": lambda _: maintenance.sweep(now=NOW + 61),
    "check: batches": lambda _: check.of_keys(
        [
            *(f"batch{kind}:{batch}".encode() for kind in ("", "jobs") for batch in ["outer", "inner", "open"]),
            *(b"batches", b"batches-open", b"batches-ended"),
        ],
        repair=True,
        now=NOW + 4000,
    ),
    "priority: in a lane": lambda _: job_changes.set_priority("a-1", 9, now=NOW),
    "priority: parked": lambda _: job_changes.set_priority("few-1", -9, now=NOW),
    "priority: aside": lambda _: job_changes.set_priority("aside-1", -9, now=NOW),
    "unfail: broken": lambda _: job_changes.unfail("broken", "t", now=NOW),
    "unfail: with data": lambda _: job_changes.unfail("broken", "s", klass="k", data={"n": 1}, now=NOW),
    "unfail: one": lambda _: job_changes.unfail_job("has-failed", "t", data=b"x", now=NOW),
    "limit": lambda _: limits.limit("few", 20, now=NOW),
    "limit: new": lambda _: limits.limit("other", 1, "5/s", now=NOW),
    "limit: rate": lambda _: limits.limit("slow", rate="1/s", now=NOW),
    "unlimit": lambda _: limits.unlimit("shut", now=NOW),
    "unlimit: rate": lambda _: limits.unlimit("slow", now=NOW),
    "limits": lambda _: limits.read(),
    "limits: one": lambda _: limits.read("few"),
    "limited": lambda _: limits.jobs("few", 1),
    "lane": lambda _: lanes.weigh("s", "b", 5, now=NOW),
    "lane: as others": lambda _: lanes.weigh("s", "a", 1, now=NOW),
    "lane: pause": lambda _: lanes.pause("s", "b", now=NOW),
    "lane: unpause": lambda _: lanes.unpause("s", "c", now=NOW),
    "lanes": lambda _: lanes.names("s", now=NOW),
    "lanes: one": lambda _: lanes.read_one("s", "c", now=NOW),
    **{
        f"drop: {place}": lambda _, place=place: deleting.drop("s", place, 0, now=NOW)
        for place in ("waiting", "front", "scheduled", "depends", "parked", "running", "in", "lane:a", "lane:c")
    },
    "drop: one lane": lambda _: deleting.drop("s", "running", 0, lane="a", now=NOW),
    "drop: by content": lambda _: deleting.drop("s", "lane:a", 1, content=deleting.Content("json", b"null"), now=NOW),
    "drop: entries by content": lambda _: deleting.drop("s", "in", 0, content=deleting.Content("json", b"1"), now=NOW),
    "await": lambda _: waits.wait_for("awaited-1", now=NOW),
    "await: once more": lambda _: waits.wait_for("awaited-0", now=NOW),
    "follow": lambda _: waits.follow("awaited-1", now=NOW),
    "stream: of special ones": special_streams,
    "serve": lambda _: mailbox.serve("w", ["q", "s"], "round-robin", now=NOW),
    "served": lambda _: mailbox.serve_request("w"),
    "cancelled": lambda _: job_queries.cancelled("x"),
    "audit": lambda _: audit.read("held-0"),
    "note": lambda _: audit.note("w", "SIGHUP from pid 9 (init, uid 0)", "reload", now=NOW),
    "why": lambda _: facts.of_job("x"),
    "ask": lambda _: mailbox.ask("second", ["w"], "stacks", {"n": 1}, now=NOW),
    "ask: all": lambda _: mailbox.ask("second", None, "stacks", now=NOW),
    "asks": lambda _: mailbox.requests("w", now=NOW),
    **{
        f"find: {name}": lambda _, choice=choice: choices.find(choice, as_shown=True, now=NOW)
        for name, choice in {
            "any": choices.Choice(), "of a queue": choices.Choice("s"), "in a lane": choices.Choice("s", lane="a"),
            "in lanes": choices.Choice(lane="a"), "with a tag": EVERYTHING, "failed": choices.Choice(group="g"),
            "of a batch": choices.Choice(batch="outer"), "parts": choices.Choice("s", klass="k", part="a"),
            "put then": choices.Choice("s", first_put_unix=NOW - 9, last_put_unix=NOW),
        }.items()
    },
    "each: cancel": lambda _: bulk.cancel(
        EVERYTHING, [*SPECIAL, "parent", "waits-for-special"], by="kim@web-1", now=NOW
    ),
    "each: fail": lambda _: bulk.fail(EVERYTHING, SPECIAL, "g", "m", now=NOW),
    "each: move": lambda _: bulk.move(EVERYTHING, [*SPECIAL, "not-due", "child"], "t", now=NOW),
    "each: priority": lambda _: bulk.set_priority(EVERYTHING, SPECIAL, -9, now=NOW),
    "answer": lambda _: mailbox.answer("w", "first", {"children": []}, now=NOW),
    "declare": lambda _: recurrences.declare(
        ["declared-old"],
        [declared(klass, {"every": 60, "tags": ["t"]}, NOW) for klass in ("declared-1", "declared-new")],
        now=NOW,
    ),
    "describe": lambda _: data_schemas.describe(["known", "lacking"], {"known": '{"type":"object"}', "new": "{}"}),
    "schemas": lambda _: data_schemas.read("z", "k", now=NOW),
    "sweep: by one with schemas": lambda _: maintenance.sweep(worker="peer", now=NOW),
    "check: a schema": lambda _: check.of_keys([b"schema:known"], repair=True, now=NOW),
    "skills": lambda _: workers.report_skills("w", ["odd", "k"], ["z", "s"], {"odd": "one", "k": "any"}, "v1", now=NOW),
    "settle: what a peer takes": lambda stage: settling.settle(
        "lacker", [Misfit(one, "one", "m") for jid, one in stage.held.items() if "lacker" in jid], number=5, now=NOW
    ),
    "skills: fewer": lambda _: workers.report_skills("peer", ["k"], ["z"], now=NOW),
    "lease: what it lacks": lambda _: leasing.lease("lacker", ["z"], 9, number=5, now=NOW),
    "lease: what lies apart": lambda _: leasing.lease("peer", ["z"], 9, number=5, now=NOW),
    "lease: what nobody has any more": lambda _: leasing.lease("lacker", ["z"], 9, number=5, now=NOW + 99),
    "settle: what a peer has": lambda stage: settling.settle(
        "lacker", [Unknown(one, 5) for jid, one in stage.held.items() if "lacker" in jid], number=5, now=NOW
    ),
    "sweep: what nobody has any more": lambda _: maintenance.sweep(now=NOW + 99),
    "deregister: a peer": lambda _: workers.deregister("peer", now=NOW),
    "drop: apart": lambda _: deleting.drop("z", "apart", 0, now=NOW),
    "find: apart": lambda _: choices.find(choices.Choice("z"), now=NOW),
    "cancel: apart": lambda _: job_changes.cancel(["odd-0", "odd-1"], now=NOW),
    "priority: apart": lambda _: job_changes.set_priority("odd-1", 7, now=NOW),
    "retire": lambda _: workers.retire("idle", ["nothing"], 60, now=NOW),
    "desire": lambda _: workers.desire("pool", 3, {"ready": 9}),
    "counts: in depth": lambda _: queue_counts.depths(["q", "s"], now=NOW),
}  # fmt: skip


def plain_puts(_: Stage) -> Command[Any]:
    """Known jobs of every place, with and without rare options; new ones that wait for them."""
    given: list[dict[str, Any]] = [{}, {"tags": ["t"]}, {"delay": 3}, {"depends": ["waiting-5"]}, {"lane": "b"}]
    puts = [
        new_job("put", "pq"[i % 2], "k", b"x" * (300 * i), {"jid": f"{place}-{i}", **given[i]})
        for place in ("waiting", "held", "lost", "done")
        for i in range(5)
    ]
    adds = [new_job("add", "q", "k", 1, {"jid": f"{place}-0"}) for place in PLAIN]
    waiting = [new_job("put", "q", "k", 1, {"depends": [f"{place}-1"], "tags": ["t"]}) for place in PLAIN]
    return putting.put([*puts, *adds, *waiting], now=NOW)


def plain_outcomes(stage: Stage) -> Command[Any]:
    """Settle every outcome, with follow-ups under the jids of plain jobs."""
    held = stage.held
    follow = [{"queue": "p", "klass": "k", "jid": jid} for jid in ("waiting-0", "held-11", "lost-0", "done-0")]
    ended = [
        Completed(held["held-0"]),
        Completed(held["held-1"], "r", then=follow),
        Completed(held["held-2"], next="p", depends=["waiting-1", "done-1"]),
        Completed(held["held-3"], data="x" * 600),
        Retried(held["held-4"]),
        Retried(held["held-5"], delay=1),
        Failed(held["held-6"], "g", "m", data=b"x" * 5000),
        Released(held["held-7"]),
        Died(held["held-8"], "SIGKILL"),
        Unknown(held["held-9"], 5),
        Suspended(held["held-11"], "approval"),
        Returned(held["held-10"]),
        Released(held["slow-0"], started=False, delay=3),
        Completed(held["held-0"]),
    ]
    return settling.settle("w", ended, number=3, now=NOW)


def plain_renewals(stage: Stage) -> Command[Any]:
    held = [(one.jid, one.token) for one in stage.held.values()]
    entries = [
        leasing.Renewal(*held[0]),
        leasing.Renewal(*held[1], True),
        leasing.Renewal(*held[2], True, b"x" * 700),
        leasing.Renewal(*held[3], progress=(0.5, "half")),
        leasing.Renewal(*held[4], state=b'{"n":2}'),
        leasing.Renewal(*held[5], state=b"7", step="charge"),
        leasing.Renewal(*held[13], True),
        leasing.Renewal("waiting-0", 1),
        leasing.Renewal("done-0", 1),
        leasing.Renewal("nobody", 1),
    ]
    return leasing.renew("w", entries, number=3, now=NOW)


def plain_streams(stage: Stage) -> Command[Any]:
    held = [(one.jid, one.token) for one in stage.held.values()]
    entries = [leasing.Streamed(*one, 0, [to_chunk(1), to_chunk(b"x" * 700)]) for one in held[:3]]
    return leasing.stream("w", [*entries, leasing.Streamed("waiting-0", 1, 0, [to_chunk(2)])], now=NOW)


EVERY_PLAIN = [f"{place}-{i}" for place in PLAIN for i in range(3)]
OF_Q, OF_HELD = choices.Choice("q"), choices.Choice("held")
#: Calls of an operator that act on one job.
ON_ONE: dict[str, Callable[[str], Command[Any]]] = {
    "move": lambda jid: job_changes.move(jid, "fresh", 5, now=NOW),
    "fail": lambda jid: job_changes.fail(jid, "g", "m", now=NOW),
    "priority": lambda jid: job_changes.set_priority(jid, -9, now=NOW),
    "tag": lambda jid: job_changes.tag(jid, ["t", "new"], now=NOW),
    "track": lambda jid: job_changes.track(jid, now=NOW),
    "log": lambda jid: job_changes.log(jid, "a line", now=NOW),
    "await": lambda jid: waits.wait_for(jid, now=NOW),
    "data": lambda jid: job_queries.piece("data", jid, 1),
}
# Scenes after fill_plain().
PLAIN_SCENES: dict[str, Callable[[Stage], Command[Any]]] = {
    "put: plain": plain_puts,
    "settle: plain": plain_outcomes,
    "settle: plain completions": lambda stage: settling.settle("w", [*map(Completed, stage.held.values())], now=NOW),
    "settle: plain of others": lambda stage: settling.settle(
        "w2", [*map(Completed, stage.held.values())], number=1, now=NOW
    ),
    "renew: plain": plain_renewals,
    "stream": plain_streams,
    "resume: plain": lambda stage: leasing.resume(
        "w", 3, [(one.jid, one.token) for one in stage.held.values()][:4], now=NOW
    ),
    "lease: plain": lambda _: leasing.lease("w", ["q", "p"], 7, number=3, now=NOW),
    "lease: plain in turns": lambda _: leasing.lease("w", ["q", "p"], 9, order="round-robin", number=3, now=NOW),
    "lease: plain ahead": lambda _: leasing.lease("w2", ["p"], 3, starting=1, now=NOW),
    "lease: plain, never twice": lambda _: leasing.lease("w2", ["p", "q"], 9, once=["k"], now=NOW),
    "lease: lost plain ones": lambda _: leasing.lease("w2", ["lost"], 9, now=NOW),
    "lease: entries for plain ones": lambda _: leasing.lease("w2", ["u"], 9, now=NOW),
    "lease: where a plain one has the name": lambda _: leasing.lease("w2", ["q"], 1, now=NOW + 60),
    "sweep: plain": lambda _: maintenance.sweep(now=NOW),
    "sweep: plain, much later": lambda _: maintenance.sweep(1_000, now=NOW + 9 * DAY),
    "deregister: plain": lambda _: workers.deregister("w", now=NOW),
    "cancel: plain": lambda _: job_changes.cancel([*EVERY_PLAIN, "child"], now=NOW),
    "release: plain": lambda _: job_changes.release(EVERY_PLAIN, now=NOW),
    "unfail: what is not failed": lambda _: job_changes.unfail_jobs([*EVERY_PLAIN, "failed"], "p", now=NOW),
    "depend: on plain ones": lambda _: job_changes.depend("child", [*EVERY_PLAIN, "tagged"], now=NOW),
    "depend: a plain one": lambda _: job_changes.depend("child", ["held-0"], now=NOW),
    "recur: plain": lambda _: recurrences.recur("q", "k", 1, {"every": 5, "jid": "waiting"}, now=NOW),
    **{
        f"{verb}: {place}": lambda _, act=act, place=place: act(f"{place}-2")
        for verb, act in ON_ONE.items()
        for place in ("waiting", "held", "done")
        if (verb, place) != ("await", "done")  # it writes nothing
    },
    **{
        f"drop: plain {queue} {place}": lambda _, queue=queue, place=place: deleting.drop(queue, place, 0, now=NOW)
        for queue, place in (("q", "waiting"), ("q", "lane:a"), ("held", "running"), ("lost", "running"), ("u", "in"))
    },
    "drop: plain by content": lambda _: deleting.drop(
        "q", "waiting", 0, content=deleting.Content("json", b"null"), now=NOW
    ),
    "drop: given": lambda _: deleting.drop_given("q", ["waiting-0", "waiting-1", "held-0", "done-0"], now=NOW),
    "each: cancel plain": lambda _: bulk.cancel(OF_Q, EVERY_PLAIN, now=NOW),
    "each: fail plain": lambda _: bulk.fail(OF_HELD, EVERY_PLAIN, "g", "m", now=NOW),
    "each: move plain": lambda _: bulk.move(OF_Q, EVERY_PLAIN, "p", now=NOW),
    "each: priority plain": lambda _: bulk.set_priority(OF_HELD, EVERY_PLAIN, -9, now=NOW),
    **{
        f"find: plain {choice.queue}": lambda _, choice=choice: choices.find(choice, now=NOW)
        for choice in (OF_Q, OF_HELD)
    },
    **{
        f"list: plain {state}": lambda _, state=state, queue=queue: job_queries.listed(state, queue, 0, 100, now=NOW)
        for state, queue in (("waiting", "q"), ("running", "held"), ("stalled", "lost"), ("complete", "done"))
    },
    "peek: plain": lambda _: job_queries.peek("q", 100, now=NOW),
    "job: plain": lambda _: job_queries.jobs([*EVERY_PLAIN, "child", "tagged"], now=NOW),
    "worker: plain": lambda _: workers.jobs_of("w", now=NOW),
    "counts: plain, in depth": lambda _: queue_counts.depths(["q", "held", "lost", "done"], now=NOW),
    "lanes: plain": lambda _: lanes.names("held", now=NOW),
    "check: plain": lambda _: check.of_keys(
        [f"job:{jid}".encode() for jid in (*EVERY_PLAIN, "damaged-0", "damaged-1")], repair=True, now=NOW
    ),
    "check: plain members": lambda _: check.of_members(
        b"queue:held:running", [jid.encode() for jid in (*EVERY_PLAIN, "ghost-held")], repair=True, now=NOW
    ),
}  # fmt: skip
PLAIN_SCENES |= {
    "reshard": lambda _: resharding.begin(4, now=NOW),
    "reshard: end": lambda stage: resharding.end(4, a_pass(stage).number, False, 0, now=NOW),
    "prepare": lambda stage: resharding.prepare(
        4, a_divided_one(stage), b"options", [b"grace", b"5", b"heartbeat", b"9"], now=NOW
    ),
    "prepare: queues": lambda stage: resharding.prepare(
        4, a_divided_one(stage), b"queues", [b"q", b"5", b"fresh", b"9"], now=NOW
    ),
    "depart": lambda _: resharding.depart(PARCELS),
    "arrive": lambda stage: resharding.arrive(*arriving(stage), now=NOW),
    "arrive: piece": lambda stage: resharding.arrive_piece(
        a_pass(stage).number, parcels(stage)[0]._replace(large=b"data:waiting-0"), 0, b"x" * 99, now=NOW
    ),
    "leave": lambda stage: resharding.leave(a_pass(stage).number, parcels(stage), now=NOW),
    "land": lambda stage: landing(stage, resharding.land),
    "land: forget": lambda stage: landing(stage, resharding.forget),
}
SPECIAL_SCENES |= {
    "depart: special": lambda _: resharding.depart(PARCELS),
    "arrive: special": lambda stage: resharding.arrive(*arriving(stage), now=NOW),
    "leave: special": lambda stage: resharding.leave(a_pass(stage).number, parcels(stage), now=NOW),
    "land: special": lambda stage: landing(stage, resharding.land),
}
SCENES |= SPECIAL_SCENES | PLAIN_SCENES
READING = {script.name for script in scripts.ALL if script.reads_only}
#: A namespace in use is not divided.
WRITING = [name for name in SCENES if name.partition(":")[0] not in READING | {"divide"}]
#: The worlds of the scenes of each stage.
PLAYED_IN = {"ready": ("heard", "paused", "limited"), "special": ("heard",), "plain": ("heard", "unheard")}
IN_WORLDS = [(scene, world) for scene in SCENES for world in PLAYED_IN[stage_of(scene)]]


def test_there_is_a_scene_of_every_script():
    assert {name.partition(":")[0] for name in SCENES} == set(VERBS)


FIRST_WRITE = -1


@cache
def wrapped(name: str) -> tuple[str, str]:
    """Return the text of a script with its redis.call recorded, and the text's SHA-1."""
    shebang, _, rest = scripts.load(name).text.partition("\n")
    text = f"{shebang}\n{WRAPPED}{rest}"
    return text, hashlib.sha1(text.encode()).hexdigest()


def evaluate(
    server: Any, namespace: str, command: Command[Any], fail_at: int = 0, note_in: str = "", through: Any = None
) -> Any:
    """Run a command with its redis.call recorded.

    `fail_at` is the call at which an error is injected, `note_in` a set for the names of the keys used, `through` a
    pipeline to send it by, where the server has the script.
    """
    keys = f"{{{namespace}}}:", fail_at, note_in
    text, sha = wrapped(command.script.name)
    words = "EVALSHA", sha, len(keys), *keys, *command.args
    if through is not None:
        return through.execute_command(*words)
    try:
        return server.redis.execute_command(*words)
    except redis.exceptions.NoScriptError:  # another test may have flushed the server's scripts
        server.redis.script_load(text)
        return server.redis.execute_command(*words)


@contextmanager
def listener(server: Any, namespace: str, world: str) -> Iterator[Any]:
    """Return the listener of a world's events, if there is one."""
    with server.redis.pubsub(ignore_subscribe_messages=True) as heard:
        if WORLDS[world].is_heard:
            heard.subscribe(f"{{{namespace}}}:events", f"{{{namespace}}}:tracked")
            for _ in range(2):
                heard.parse_response(timeout=10)
        yield heard


def snapshot(server: Any, namespace: str) -> dict[bytes, bytes]:
    """Return all of a namespace, byte for byte."""
    found = server.redis.eval(
        """local found = {}
        for _, key in ipairs(redis.call("KEYS", KEYS[1] .. "*")) do
          found[#found + 1] = key
          found[#found + 1] = redis.call("DUMP", key)
        end
        return found""",
        1, f"{{{namespace}}}:",
    )  # fmt: skip
    return dict(zip(found[::2], found[1::2], strict=True))


def digest(server: Any, namespace: str) -> bytes:
    """Return a digest that changes with any byte of a namespace."""
    return server.redis.eval(
        """local keys, found = redis.call("KEYS", KEYS[1] .. "*"), {}
        table.sort(keys)
        for i, key in ipairs(keys) do found[i] = key .. redis.call("DUMP", key) end
        return redis.sha1hex(table.concat(found))""",
        1, f"{{{namespace}}}:",
    )  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("scene", "world"), [cell for cell in IN_WORLDS if cell[0] in WRITING])
def test_error_before_the_first_write_changes_and_publishes_nothing(server, namespace, set_up, scene, world):
    command = set_up(scene, world)
    before = digest(server, namespace)
    with listener(server, namespace, world) as heard:
        with pytest.raises(redis.ResponseError, match="INJECTED at") as first_write:
            evaluate(server, namespace, command, FIRST_WRITE)
        calls = range(1, int(re.search(r"INJECTED at (\d+)", str(first_write.value))[1]))
        with server.redis.pipeline(transaction=False) as pipeline:
            for call in calls:
                evaluate(server, namespace, command, call, through=pipeline)
            answers = pipeline.execute(raise_on_error=False)
        assert [str(answer).partition("INJECTED")[1] for answer in answers] == ["INJECTED" for _ in calls]
        assert digest(server, namespace) == before
        assert heard.connection is None or not heard.connection.can_read(0)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("scene", "world"), IN_WORLDS)
def test_writes_follow_all_reads_in_bounded_calls(server, namespace, set_up, scene, world):
    command = set_up(scene, world)
    with listener(server, namespace, world):
        evaluate(server, namespace, command)


#: Keys by which a script knows the layout.
TELLING = {b"config", b"options", b"tracked-jobs", b"tag-counts", b"workers-seen"}


def is_refused(server, namespace, command, key):
    """Return whether a command fails when this key has a foreign type."""
    server.redis.delete(key)
    server.redis.xadd(key, {"of a type": "that we never use"}, id="1-1")
    try:
        evaluate(server, namespace, command)
    except redis.ResponseError as error:
        codes = ("WRONGTYPE", "LAYOUT" if key.partition(b"}:")[2] in TELLING else "REFUSED namespace")
        assert any(code in str(error) for code in codes), key
        return True
    return False


def ends_of_each(keys):
    """Return the first and the last of the keys that differ in numbers only: a script reads such keys in a loop."""
    of_shape = {re.sub(rb"\d+", b"#", key): key for key in reversed(keys)}
    return sorted({*of_shape.values(), *{re.sub(rb"\d+", b"#", key): key for key in keys}.values()})


@pytest.mark.sampled(6)
@pytest.mark.parametrize("scene", [scene for scene in WRITING if not scene.startswith("check")])
def test_wrong_type_fails_before_the_first_write_or_does_not_matter(server, namespace, set_up, scene):
    """A check reports such keys; test_check.py covers that. The full run tries every key."""
    command = set_up(scene)
    with listener(server, namespace, "heard"):
        evaluate(server, namespace, command, note_in=f"used-{namespace}")
        used = sorted(server.redis.smembers(f"used-{namespace}"))
        server.redis.delete(f"used-{namespace}")
        set_up(scene)
        before, raised = digest(server, namespace), 0
        for key in used if LONG else ends_of_each(used):
            was = server.redis.dump(key)
            if is_refused(server, namespace, command, key):
                assert server.redis.type(key) == b"stream", key
                server.redis.delete(key)
                if was:
                    server.redis.restore(key, 0, was)
                assert digest(server, namespace) == before, key
                raised += 1
            else:
                set_up(scene)
                before = digest(server, namespace)
    assert raised > 0


# Calls with as many jobs as they may have.

JIDS = [str(i) for i in range(1_000)]


def thousand(client: Client, **options: Any) -> list[LeaseRecord]:
    """Lease a thousand jobs with tags."""
    client.queue("q").put_many({"klass": "k", "jid": jid, "tags": ["t", "u"], **options} for jid in JIDS)
    return client._store.run(leasing.lease("w", ["q"], 1_000, now=NOW)).leases


def failed(client: Client) -> None:
    client.settle([Failed(lease, "g", "m") for lease in thousand(client)])


def put_thousand(client: Client) -> Command[Any]:
    client.queue("q").put("k", jid="parent")
    return putting.put(
        [new_job("put", "q", "k", None, {"jid": j, "depends": ["parent"], "tags": ["t"]}) for j in JIDS], now=NOW
    )


def fan_in(client: Client) -> Command[Any]:
    client.queue("q").put_many({"klass": "k", "jid": jid} for jid in JIDS)
    return putting.put([new_job("put", "q", "k", None, {"depends": JIDS})], now=NOW)


def fan_out(client: Client) -> Command[Any]:
    (lease,) = client.queue("q").lease("w") or thousand(client)[:1]
    client.queue("q").put_many({"klass": "k", "depends": ["parent"]} for _ in JIDS)
    return settling.settle("w", [Completed(lease)], now=NOW)


def completed_parent(client: Client) -> Command[Any]:
    client.queue("q").put("k", jid="parent")
    return fan_out(client)


def swept(client: Client) -> Command[Any]:
    thousand(client)
    return maintenance.sweep(1_000, now=NOW + 1_000)


def taken_over(client: Client) -> Command[Any]:
    thousand(client)
    return leasing.lease("w2", ["q"], 1_000, now=NOW + 1_000)


def unfailed(client: Client) -> Command[Any]:
    failed(client)
    return job_changes.unfail("g", "p", 1_000, now=NOW)


def pruned(client: Client) -> Command[Any]:
    failed(client)
    client.config.set("failed-history", 1)
    return maintenance.sweep(1_000, now=NOW + 1_000)


def cancelled(client: Client) -> Command[Any]:
    thousand(client)
    return job_changes.cancel(JIDS, now=NOW)


def spawned(client: Client) -> Command[Any]:
    client.queue("q").recur("k", every=0.001, offset=0, tags=["t", "u"], jid="r")
    return leasing.lease("w", ["q"], 1_000, now=NOW + 10)


def crons(client: Client) -> Command[Any]:
    client.queue("q").recur("k", cron="* * * * *", tags=["t"], jid="cron")
    next_unix = client.recurring("cron").next_unix
    due = DueCron("cron", "* * * * *", None, round(next_unix * 1000), None)
    return recurrences.spawn(due, [next_unix + 60 * i for i in range(1_000)], next_unix + 60_000, now=NOW + 60_000)


def ending(way: Callable[[LeaseRecord], Any]) -> Callable[[Client], Command[Any]]:
    return lambda client: settling.settle("w", [way(lease) for lease in thousand(client)], now=NOW)


THOUSANDS: dict[str, Callable[[Client], Command[Any]]] = {
    "put": put_thousand,
    "put for a thousand parents": fan_in,
    "lease": lambda client: (
        client.queue("q").put_many({"klass": "k"} for _ in JIDS),
        leasing.lease("w", ["q"], 1_000, now=NOW),
    )[1],
    "lease of lost ones": taken_over,
    "lease of what comes again": spawned,
    "complete": ending(Completed),
    "complete with a thousand children": completed_parent,
    "advance": ending(lambda lease: Completed(lease, next="p", data=1)),
    "retry": ending(lambda lease: Retried(lease, delay=1)),
    "fail": ending(lambda lease: Failed(lease, "g", "m")),
    "release": ending(Released),
    "died": ending(lambda lease: Died(lease, "oom")),
    "sweep of lost ones": swept,
    "sweep of failed ones": pruned,
    "unfail": unfailed,
    "cancel": cancelled,
    "cancel each": lambda client: (thousand(client), bulk.cancel(EVERYTHING, JIDS[:500], now=NOW))[1],
    "fail each": lambda client: (thousand(client), bulk.fail(EVERYTHING, JIDS[:500], "g", "m", now=NOW))[1],
    "move each": lambda client: (thousand(client), bulk.move(EVERYTHING, JIDS[:500], "p", now=NOW))[1],
    "change each priority": lambda client: (thousand(client), bulk.set_priority(EVERYTHING, JIDS[:500], 3, now=NOW))[1],
    "unfail each": lambda client: (failed(client), job_changes.unfail_jobs(JIDS, "p", now=NOW))[1],
    "release by hand": lambda client: (thousand(client), job_changes.release(JIDS, now=NOW))[1],
    "deregister": lambda client: (thousand(client), workers.deregister("w", now=NOW))[1],
    "renew": lambda client: leasing.renew(
        "w", [leasing.Renewal(it.jid, it.token, True, 1) for it in thousand(client)], now=NOW
    ),
    "resume": lambda client: (thousand(client), leasing.resume("w", 1, [], now=NOW))[1],
    "spawn": crons,
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", THOUSANDS)
def test_thousand_items_keep_within_a_thousand_values_a_call(server, namespace, name):
    with Client(server.url, namespace, lambda: NOW) as client, listener(server, namespace, "heard"):
        command = THOUSANDS[name](client)
        before = snapshot(server, namespace)
        evaluate(server, namespace, command)
    assert snapshot(server, namespace) != before
    assert misplaced(read_namespace(server.redis, namespace)) == []


def test_full_redis_lets_leases_end_and_refuses_new_jobs(live, server, namespace):
    live.queue("q").put_many({"klass": "k", "jid": jid} for jid in "abcd")
    done, failed, renewed = live.queue("q").lease("w", 3)
    server.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match=r"refused put: .*maxmemory'\. Nothing has changed"):
            live.queue("q").put("k", jid="e")
        assert [lease.jid for lease in live.queue("q").lease("w")] == ["d"]  # else the backlog could not go down
        assert (done.complete({"r": 1}), failed.fail("g", "m")) == (True, True)
        assert renewed.renew() > 0
        live._store.run(leasing.resume("w", 1, []))
        assert live.deregister("w") == 0
    finally:
        server.redis.config_set("maxmemory", 0)
    assert [job and job.state for job in live.jobs(*"abcde")] == ["complete", "failed", "waiting", "waiting", None]
