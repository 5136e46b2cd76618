"""Jobs move from one shard into several, and nothing is lost, doubled or out of its order. Runs in pytest."""

import os
import subprocess
import sys
import time
from collections import Counter

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import (
    job_changes,
    job_queries,
    leasing,
    limits,
    maintenance,
    putting,
    recurrences,
    resharding,
    settling,
    waits,
    workers,
)
from supervisor.engine.commands import settings as options
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.new_jobs import new_job
from supervisor.engine.model.outcomes import Completed, Died, Failed, Released, Retried, Suspended
from supervisor.engine.model.shards import shard_of
from tests.conftest import ROOT
from tests.engine.invariants import read_namespace
from tests.engine.lua.test_scripts import fill, fill_plain, fill_special
from tests.engine.shards import NOW, Shards, account, names_of
from tests.lengths import FULL, SOON_S

FILLS = {"ready": fill, "special": fill_special, "plain": fill_plain}
_COPY = """
for _, key in ipairs(redis.call("KEYS", KEYS[2] .. "*")) do redis.call("UNLINK", key) end
for _, key in ipairs(redis.call("KEYS", KEYS[1] .. "*")) do
  redis.call("COPY", key, KEYS[2] .. string.sub(key, #KEYS[1] + 1))
end
"""


def copy(server, source, target, shards):
    """Copy all shards of a namespace."""
    for source_name, name in zip(names_of(source, shards), names_of(target, shards), strict=True):
        server.redis.eval(_COPY, 2, f"{{{source_name}}}:", f"{{{name}}}:")


@pytest.fixture(scope="session")
def filled(server):
    """Namespaces in rich states, without the damage that they were made with."""
    found = {}
    for kind, fill_it in FILLS.items():
        found[kind] = server.seen(f"resharded-{kind}")
        fill_it(server, found[kind])
        with Client(server.url, found[kind], lambda: NOW) as client:
            client.check(repair=True)
    return found


@pytest.fixture
def rich(server, namespace, filled):
    """Return a function that makes the namespace one of the rich ones."""

    def make(kind, shards=4):
        copy(server, filled[kind], namespace, 1)
        return Shards(server.redis, namespace, shards)

    return make


@pytest.fixture
def some(server, namespace):
    return Shards(server.redis, namespace)


def put(shards, jid, queue="q", data=None, klass="k", **more):
    """Put a job as a caller does that knows of no shards."""
    [answer] = shards.run(
        shards.one(), putting.put([new_job("put", queue, klass, data, {"jid": jid, **more})], now=NOW)
    )
    return answer


def let_all_go(shards):
    """Have the workers hand back what runs in the first shard."""
    for key in [key for key in shards.read()[0] if key.startswith("held:")]:
        shards.run(shards.place(), workers.deregister(key[5:], now=NOW))


# moving and staying


@pytest.mark.parametrize("kind", FILLS)
def test_all_that_a_namespace_holds_is_there_afterwards(rich, kind):
    shards = rich(kind)
    before = account(shards.read()[:1])
    planned = shards.drive(resharding.survey(shards.one(), 4, shards.clock))
    assert account(shards.read()[:1]) == before, "a survey writes nothing"
    moved = shards.reshard()
    assert account(shards.read()) == before
    assert shards.violations() == []
    homes = Counter(shards.jobs().values())
    assert moved.jobs == planned.jobs == Counter({shard: n for shard, n in homes.items() if shard})
    assert sum(moved.jobs.values()) > 10
    assert (moved.stay, moved.recurrences) == (planned.stay, planned.recurrences)
    assert moved.at_home + sum(moved.stay.values()) == homes[0]
    options = b"+" if "options" in shards.read()[0] else b""
    assert shards.marks() == [b"3%b/4<" % options] * 4


@pytest.mark.parametrize("kind", FILLS)
def test_same_command_moves_what_has_ended_since(rich, kind):
    shards = rich(kind)
    shards.reshard()
    let_all_go(shards)
    before = account(shards.read())
    moved = shards.reshard()
    assert sum(moved.jobs.values()) > 3
    assert "runs" not in moved.stay
    assert account(shards.read()) == before
    assert shards.violations() == []
    shards.jobs()
    assert sum(shards.reshard().jobs.values()) == 0


def test_shards_without_guests_are_marked_so(some):
    for i in range(20):
        put(some, f"job-{i}")
    assert not some.reshard().has_guests
    assert some.marks() == [b"3/4"] * 4
    assert some.violations() == []


@pytest.mark.parametrize(
    ("why", "make"),
    [
        ("runs", lambda it: (put(it, "a"), it.run(it.one(), leasing.lease("w", ["q"], now=NOW)))),
        ("depends", lambda it: (put(it, "b"), put(it, "a", depends=["b"]))),
        ("limit", lambda it: put(it, "a", limit="few")),
        ("unique", lambda it: put(it, "a", unique="of-another-shard")),
        ("unique", lambda it: put(it, "a", unique=True)),
    ],
)
def test_job_that_is_bound_stays(some, why, make):
    make(some)
    assert some.reshard().stay[why] >= 1
    assert some.jobs()["a"] == 0
    assert some.marks()[0] == b"3/4<"


def test_job_goes_with_a_unique_key_of_its_own_key(some):
    put(some, "a{key-1}", unique="{key-1}")
    assert shard_of("key-1", 4) > 0
    some.reshard()
    place = some.place(shard_of("key-1", 4))
    again = putting.put([new_job("put", "q", "k", None, {"jid": "b{key-1}", "unique": "{key-1}"})], now=NOW)
    assert some.run(place, again) == ["a{key-1}"]


def test_limit_moves_once_no_job_has_it(some):
    limit = "few-1"
    assert shard_of(limit, 4) > 0
    some.run(some.one(), limits.limit(limit, running=2, rate=None, by=None, now=NOW))
    put(some, "a", limit=limit)
    assert (some.reshard().limits, some.reshard().limits_stay) == (0, 1)
    [lease] = some.run(some.place(), leasing.lease("w", ["q"], now=NOW)).leases
    some.run(some.place(), settling.settle("w", [Completed(lease)], now=NOW))
    assert (some.reshard().limits, some.marks()) == (1, [b"3/4"] * 4)
    found = some.read()
    assert f"limit:{limit}" not in found[0]
    assert found[shard_of(limit, 4)][f"limit:{limit}"]["running"] == "2"


def test_recurrence_goes_on_in_its_shard(some, server):
    jid = "every-1"
    assert shard_of(jid, 4) > 0
    for name, more in ((jid, {}), ("limited-1", {"limit": "few"})):
        recurring = recurrences.recur("q", "k", {"n": 1}, {"every": 10, "jid": name, "tags": ["t"], **more}, now=NOW)
        some.run(some.one(), recurring)
    moved = some.reshard()
    assert (moved.recurrences, moved.recurrences_stay) == (1, 1)
    leases = some.run(some.place(shard_of(jid, 4)), leasing.lease("w", ["q"], 5, now=NOW + 25)).leases
    assert [(lease.klass, lease.data, list(lease.tags)) for lease in leases] == [("k", {"n": 1}, ["t"])] * 3


def test_span_of_a_throttled_key_holds_in_its_shard(some):
    key = "key-1"
    assert shard_of(key, 4) > 0
    put(some, "a", unique=key, throttle=500)
    [lease] = some.run(some.one(), leasing.lease("w", ["q"], now=NOW)).leases
    some.run(some.one(), settling.settle("w", [Completed(lease)], now=NOW))
    some.reshard()
    again = new_job("put", "q", "k", None, {"jid": "b{key-1}", "unique": key, "throttle": 500})
    assert some.run(some.place(shard_of(key, 4)), putting.put([again], now=NOW)) == ["a"]


def test_what_is_remembered_of_jids_is_found_in_their_shard(some):
    for jid in ("gone-1", "gone-3"):
        put(some, jid)
    some.run(some.one(), job_changes.cancel(["gone-1"], by="ann", now=NOW))
    some.run(some.one(), job_changes.track("gone-3", now=NOW))
    some.run(some.one(), job_changes.cancel(["gone-3"], now=NOW))
    shards = [shard_of(jid, 4) for jid in ("gone-1", "gone-3")]
    assert 0 not in shards
    some.reshard()
    found = some.read()
    assert found[shards[0]]["cancelled-by"] == {"gone-1": "ann"}
    assert "gone-3" in found[shards[1]]["cancelled"]
    assert found[shards[1]]["tracked-jobs"].keys() == {"gone-3"}
    assert not {"cancelled", "cancelled-by", "tracked-jobs"} & found[0].keys()
    assert some.violations() == []


def test_settings_hold_in_every_shard(some, server):
    with Client(server.url, some.namespace, lambda: NOW) as client:
        client.config.set("heartbeat", 77)
        client.queue("q").pause()
        client.queue("q").lane("a").weight(3)
        client.queue("q").lane("b").pause()
        client.queue("q").put("k")
    some.reshard()
    for shard, found in enumerate(some.read()):
        assert found["options"]["heartbeat"] == "77", shard
        assert found["options"]["paused-q"] == "1", shard
        assert found["lanes:q"]["weight:a"] == "3", shard
        assert "paused:b" in found["lanes:q"], shard
        assert "q" in found["queues"], shard
        assert found["config"].startswith(b"3+/4")


def test_large_payload_goes_in_pieces(some):
    large = b"\xff" * (16 * 2**20 + 7)
    put(some, "large-2", data=large)
    shard = shard_of("large-2", 4)
    assert shard > 0
    longest = 0

    def between(_step):
        nonlocal longest
        longest = max(longest, some.redis.strlen(f"{{{some.namespace}#{shard}}}:arriving:data:large-2") % 2**20)

    some.reshard(between)
    assert longest == 7, "the last piece has come by itself"
    assert some.run(some.place(shard), leasing.lease("w", ["q"], now=NOW)).leases[0].jid == "large-2"
    assert some.read()[shard]["data:large-2"] == large
    assert some.violations() == []


def test_all_beside_a_record_goes_with_it(some, server):
    """A job moves with its chunks, its signals, steps, checkpoint, history, failure, waiters and time to live."""
    put(some, "rich-2", tags=["t"], expires=5000)
    shard = shard_of("rich-2", 4)
    assert shard > 0
    some.run(some.one(), waits.follow("rich-2", now=NOW))
    [lease] = some.run(some.one(), leasing.lease("w", ["q"], now=NOW)).leases
    chunks = [
        leasing.Streamed("rich-2", lease.token, 0, [b"xxxxx-a"]),
        leasing.Streamed("rich-2", lease.token, 1, [b"xxxxx-b"]),
    ]
    for chunk in chunks:
        some.run(some.one(), leasing.stream("w", [chunk], now=NOW))
    some.run(some.one(), leasing.renew("w", [leasing.Renewal("rich-2", lease.token, state=b"7", step="s")], now=NOW))
    some.run(some.one(), settling.settle("w", [Suspended(lease, "approval", 50)], now=NOW))
    key = "{%s}:stream:rich-2"
    before = server.redis.xrange(key % some.namespace)
    some.reshard()
    assert server.redis.xrange(key % f"{some.namespace}#{shard}") == before != []
    assert server.redis.pttl(key % f"{some.namespace}#{shard}") > 6 * 86_400_000
    assert some.run(some.place(shard), job_changes.signal("rich-2", "approval", 1, now=NOW))
    assert some.read()[shard]["queue:q:front"].keys() == {"rich-2"}
    replay = some.read()[shard]["replay:rich-2"]
    assert (replay["signal:approval"], replay["step:s"]) == ("1", "7")
    assert some.violations() == []


# Order.


def drained(shards, place, queue="q"):
    """Return the jids that leases give, one after the other."""
    jids = []
    while leases := shards.run(place, leasing.lease("w", [queue], 1, now=NOW)).leases:
        jids.append(leases[0].jid)
        shards.run(place, settling.settle("w", [Completed(leases[0])], now=NOW))
    return jids


@pytest.mark.parametrize("laned", [False, True])
def test_each_shard_gives_its_jobs_in_the_order_of_before(some, server, laned):
    with Client(server.url, some.namespace, lambda: NOW) as client:
        client.queue("q").put_many({"klass": "k", "jid": f"front-{i}"} for i in range(12))
        front = client._store.run(leasing.lease("w", ["q"], 12, now=NOW)).leases
        client.settle([Released(lease) for lease in front])
        client.queue("q").put_many(
            {"klass": "k", "jid": f"j-{i}", "priority": i % 3} | ({"lane": "abc"[i % 3]} if laned else {})
            for i in range(60)
        )
        client.queue("q").put_many({"klass": "k", "jid": f"due-{i}", "delay": 0.001} for i in range(8))
    copy(server, some.namespace, f"{some.namespace}-before", 1)
    before = drained(
        Shards(server.redis, f"{some.namespace}-before"), Shards(server.redis, f"{some.namespace}-before").one()
    )
    some.reshard()
    given = [drained(some, some.place(shard)) for shard in range(4)]
    assert sorted(jid for jids in given for jid in jids) == sorted(before)
    for shard, jids in enumerate(given):
        own = [jid for jid in before if shard_of(jid, 4) == shard]
        lanes = [lambda jid: True]
        if laned:  # the lanes take turns among fewer jobs
            lanes = [lambda jid, n=n: jid.startswith("j-") and int(jid[2:]) % 3 == n for n in range(3)]
        for lane in lanes:
            assert [jid for jid in jids if lane(jid)] == [jid for jid in own if lane(jid)]


# Killed, overtaken, refused.


def steps_of(shards):
    steps = []
    shards.reshard(steps.append)
    return len(steps)


@pytest.mark.parametrize("kind", FILLS)
@pytest.mark.parametrize("passes", [1, 2])
def test_killed_at_any_step_and_called_again_it_loses_and_doubles_nothing(rich, server, kind, passes):
    shards, start = rich(kind, 3), f"{rich.__name__}-{kind}-{passes}"
    start = f"{shards.namespace}-start"
    if passes == 2:
        shards.reshard()
        let_all_go(shards)
    copy(server, shards.namespace, start, 3)
    before = account(shards.read() if passes == 2 else shards.read()[:1])
    steps = steps_of(shards)
    homes = shards.jobs()
    for killed_before in range(1, steps + 1):
        copy(server, start, shards.namespace, 3)

        def kill(step, killed_before=killed_before):
            if step == killed_before:
                raise KeyboardInterrupt

        try:
            shards.reshard(kill)
        except KeyboardInterrupt:
            shards.reshard()
        assert account(shards.read()) == before, killed_before
        assert shards.jobs() == homes, killed_before
        if killed_before % 10 == 0:
            assert shards.violations() == []
    assert steps > 15


@pytest.mark.slow
def test_killed_process_goes_on_as_the_next_one(some, server):
    """SIGKILL comes whenever a part of the jobs has gone, at whatever it does then."""
    some.now = time.time()
    with Client(server.url, some.namespace) as client:
        client.queue("q").put_many({"klass": "k", "jid": f"j-{i}", "data": i} for i in range(2_000))
        client.queue("q").lease("w", 20)
    before = account(some.read())
    words = [sys.executable, "-m", "supervisor", "reshard", "4", "--yes"]
    there = {"LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": some.namespace}
    for left in (1_900, 1_300, 800):
        with subprocess.Popen(words, env=os.environ | there, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            until_at = time.monotonic() + SOON_S
            while server.redis.zcard(f"{{{some.namespace}}}:queue:q:waiting") >= left:
                assert time.monotonic() < until_at
            process.kill()
    ended = subprocess.run(
        words, env=os.environ | there, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout.startswith("done: ")
    assert account(some.read()) == before
    assert len(some.jobs()) == 2_000
    assert some.violations() == []


def test_overtaken_command_changes_nothing_more(rich, server):
    shards = rich("plain", 3)
    before = account(shards.read()[:1])
    copy(server, shards.namespace, f"{shards.namespace}-start", 3)
    steps, refused = steps_of(shards), 0
    for overtaken_at in range(3, steps):
        copy(server, f"{shards.namespace}-start", shards.namespace, 3)

        def overtake(step, overtaken_at=overtaken_at):
            if step == overtaken_at:
                shards.reshard()

        try:
            shards.reshard(overtake)
        except redis.ResponseError as error:
            assert "REFUSED" in str(error)
            refused += 1
        assert account(shards.read()) == before, overtaken_at
        assert shards.violations() == []
    assert refused > steps / 2


def refusal_of(shards, number=4):
    before = account(shards.read()[:1])
    with pytest.raises(LeaseholdError) as refused:
        shards.drive(resharding.move(shards.one(), number, shards.clock))
    assert account(shards.read()[:1]) == before
    assert shards.marks()[1:] == [None] * (shards.number - 1)
    return str(refused.value)


def test_namespace_with_what_several_shards_cannot_have_is_refused(some, server):
    put(some, "a")
    some.run(some.one(), options.configure("max-concurrency", "q", "3", now=NOW))
    assert "max-concurrency: unset it with `leasehold config`" in refusal_of(some)
    some.run(some.one(), options.configure("max-concurrency", "q", None, now=NOW))
    some.run(some.one(), options.configure("max-concurrency", None, "3", now=NOW))
    assert "max-concurrency: unset it with `leasehold config`" in refusal_of(some)
    some.run(some.one(), options.configure("max-concurrency", None, None, now=NOW))
    server.redis.hset(f"{{{some.namespace}}}:doors", "d", "rq")
    assert "no doors: remove them with `leasehold door` first" in refusal_of(some)
    server.redis.delete(f"{{{some.namespace}}}:doors")
    server.redis.mset({f"{{{some.namespace}#2}}:{name}": "2" for name in ("config", "tracked", "tags", "workers")})
    with pytest.raises(LeaseholdError, match=r"there is a namespace .*#2 already"):
        some.reshard()


def test_number_of_shards_stays(some):
    put(some, "a")
    some.reshard()
    with pytest.raises(LeaseholdError, match=r"has 4 shards, .* only once: `leasehold reshard 4` moves what was left"):
        some.drive(resharding.move(some.one(), 8, some.clock))
    with pytest.raises(LeaseholdError, match="1 shard unless it was given several"):
        some.drive(resharding.move(some.one(), 1, some.clock))


# Meanwhile.


def test_puts_and_leases_wait_while_what_runs_goes_on(some):
    put(some, "a")
    [lease] = some.run(some.one(), leasing.lease("w", ["q"], now=NOW)).leases
    put(some, "b")
    walk = some.walk()
    command = next(walk)
    while some.marks()[0] == b"2":
        command = walk.send(some.run(*command))
    for refused in (
        putting.put([new_job("put", "q", "k", None, {})]),
        leasing.lease("w", ["q"]),
        job_queries.jobs(["b"]),
    ):
        with pytest.raises(redis.ResponseError, match="SHARDED 1>4 "):
            some.run(some.one(), refused)
    assert some.run(some.one(), leasing.renew("w", [leasing.Renewal("a", lease.token)], now=NOW))[0] > 0
    assert some.run(some.one(), settling.settle("w", [Completed(lease)], now=NOW)) == [True]


def test_other_shards_go_on_while_the_first_one_gives_away_what_was_left(some):
    put(some, "a")
    some.reshard()
    again = [new_job("put", "q", "k", None, {"jid": f"n-{i}"}) for i in range(2)]
    some.run(some.place(), putting.put(again, now=NOW))
    [lease] = some.run(some.place(), leasing.lease("w", ["q"], now=NOW)).leases
    walk = some.walk()
    command = next(walk)
    while b">" not in some.marks()[0]:
        command = walk.send(some.run(*command))
    assert some.marks()[0] == b"3/4>4"
    for refused in (putting.put([new_job("put", "q", "k", None, {})]), leasing.lease("w", ["q"])):
        with pytest.raises(redis.ResponseError, match="SHARDED 4>4 "):
            some.run(some.place(), refused)
        some.run(some.place(2), refused)
    assert some.run(some.place(), leasing.renew("w", [leasing.Renewal(lease.jid, lease.token)], now=NOW))[0] > 0
    with pytest.raises(redis.ResponseError, match="SHARDED 4>4 "):
        some.run(some.one(), leasing.renew("w", [leasing.Renewal(lease.jid, lease.token)], now=NOW))
    assert some.run(some.place(), settling.settle("w", [Completed(lease)], now=NOW)) == [True]


def test_job_that_is_put_anew_meanwhile_stays_as_it_is_now(some):
    """A running job puts the other one again when that has been read, and has not left yet."""
    put(some, "a")
    [lease] = some.run(some.one(), leasing.lease("w", ["q"], now=NOW)).leases
    put(some, "b-1", data={"old": 1})
    assert shard_of("b-1", 4) > 0
    walk = some.walk()
    command = next(walk)
    while command[1].script.name != "leave":
        command = walk.send(some.run(*command))
    follow = [{"queue": "q", "klass": "k", "jid": "b-1", "data": {"new": 1}}]
    assert some.run(some.one(), settling.settle("w", [Completed(lease, then=follow)], now=NOW)) == [True]
    with pytest.raises(StopIteration) as end:
        while True:
            command = walk.send(some.run(*command))
    assert end.value.value.stay["changed"] == 1
    assert some.jobs()["b-1"] == 0
    assert some.read()[0].payload("b-1") == b'{"new":1}'
    assert some.violations() == []


def test_job_that_is_put_anew_after_it_has_moved_is_there_once(some):
    put(some, "a")
    [lease] = some.run(some.one(), leasing.lease("w", ["q"], now=NOW)).leases
    put(some, "b-1", data={"old": 1}, tags=["t"])
    follow = [{"queue": "q", "klass": "k", "jid": "b-1", "data": {"new": 1}}]

    def settle(_step):
        nonlocal lease
        if lease and "job:b-1" in some.read()[shard_of("b-1", 4)]:
            assert some.run(some.one(), settling.settle("w", [Completed(lease, then=follow)], now=NOW)) == [True]
            lease = None

    some.reshard(settle)
    assert lease is None
    assert some.jobs()["b-1"] == 0
    assert some.violations() == []
    assert not some.reshard().has_guests
    assert some.read()[shard_of("b-1", 4)].payload("b-1") == b'{"new":1}'


OUTCOMES = (
    lambda it: Completed(it),
    lambda it: Completed(it, {"r": 1}),
    lambda it: Completed(it, next="other", data={"step": 2}),
    lambda it: Completed(it, then=[{"queue": "q", "klass": "k", "jid": f"of-{it.jid}"}]),
    lambda it: Retried(it, delay=5),
    lambda it: Failed(it, "g", "m"),
    lambda it: Died(it, "oom"),
    lambda it: Released(it),
)


@pytest.mark.parametrize("passes", [1, 2])
def test_what_settles_meanwhile_is_neither_lost_nor_doubled(some, passes):
    if passes == 2:
        put(some, "a")
        some.reshard()
    place = some.one() if passes == 1 else some.place()
    jobs = [new_job("put", "q", "k", {"n": i}, {"jid": f"j-{i}", "priority": i % 3}) for i in range(80)]
    some.run(place, putting.put(jobs, now=NOW))
    leases = some.run(place, leasing.lease("w", ["q"], 48, now=NOW)).leases
    expected = {f"j-{i}" for i in range(80)} | ({"a"} if passes == 2 else set())
    settled = iter(leases)

    def settle(step):
        if step < 3 or (lease := next(settled, None)) is None:
            return
        place_now = some.one() if some.marks()[0] in (b"2", b"3/1>4") else some.place()
        outcome = OUTCOMES[step % len(OUTCOMES)](lease)
        [answer] = some.run(place_now, settling.settle("w", [outcome], now=NOW))
        assert answer, outcome
        expected.update(f"of-{lease.jid}" for _ in getattr(outcome, "then", ()))

    some.reshard(settle)
    assert set(some.jobs()) == expected
    assert some.violations() == []
    let_all_go(some)
    some.run(some.place(), maintenance.sweep(100, now=NOW))
    moved = some.reshard()
    assert set(some.jobs()) == expected
    assert not moved.has_guests, moved
    assert some.violations() == []


# Any namespace.

_JOBS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "priority": st.integers(-2, 2),
            "lane": st.sampled_from("ab"),
            "tags": st.lists(st.sampled_from(["t", "u"]), min_size=1, unique=True),
            "limit": st.sampled_from(["few", "slow"]),
            "unique": st.sampled_from(["x", "y", "z"]),
            "delay": st.sampled_from([0.001, 500]),
            "depends": st.lists(st.integers(0, 20).map("j-{}".format), min_size=1, max_size=2, unique=True),
            "expires": st.just(5000),
            "data": st.sampled_from([b"x", {"n": 1}, "x" * 600, "x" * 70_000]),
        },
    ),
    min_size=1,
    max_size=25,
)
_ACTS = st.lists(st.integers(0, len(OUTCOMES) + 1), max_size=20)


@settings(max_examples=300 if FULL else 25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs=_JOBS, acts=_ACTS, shards=st.integers(2, 5))
def test_any_namespace_is_the_same_afterwards(server, namespace, jobs, acts, shards):
    it = Shards(server.redis, namespace, shards)
    for name in names_of(namespace, 8):
        for key in server.redis.scan_iter(f"{{{name}}}:*", count=10_000):
            server.redis.unlink(key)
    with Client(server.url, namespace, lambda: NOW) as client:
        client.limit("few", running=1)
        for i, options in enumerate(jobs):
            depends = [jid for jid in options.pop("depends", ()) if int(jid[2:]) < i]
            client.queue("qr"[i % 2]).put("k", jid=f"j-{i}", **({"depends": depends} if depends else {}), **options)
        leases = client._store.run(leasing.lease("w", ["q", "r"], len(acts), now=NOW)).leases
        for act, lease in zip(acts, leases, strict=False):
            if act < len(OUTCOMES):
                client.settle([OUTCOMES[act](lease)])
    before = account(it.read()[:1])
    it.reshard()
    assert account(it.read()) == before
    assert it.violations() == []
    jobs_then = it.jobs()
    let_all_go(it)
    before = account(it.read())
    it.reshard()
    assert account(it.read()) == before
    assert it.violations() == []
    assert jobs_then.keys() == it.jobs().keys()


# Many.


@pytest.mark.timeout(1_800)
def test_a_hundred_thousand_waiting_jobs_move_while_two_hundred_run(some, server, measured):
    """The usual run takes fewer. A worker holds, renews and settles what runs meanwhile, as in life."""
    some.number = 16
    many = 100_000 if FULL else 2_000
    with Client(server.url, some.namespace, lambda: NOW) as client:
        client.limit("few", running=5)
        client.queue("long").put_many({"klass": "k", "jid": f"run-{i}"} for i in range(200))
        held = {lease.jid: lease for lease in client._store.run(leasing.lease("w", ["long"], 200, now=NOW)).leases}
        for first in range(0, many, 1_000):
            client.queue("q").put_many(
                {"klass": "k", "jid": f"j-{i}", "data": {"n": i}, "priority": i % 2, "lane": None if i % 4 else "a"}
                for i in range(first, first + 1_000)
            )
        client.queue("q").put_many({"klass": "k", "jid": f"few-{i}", "limit": "few"} for i in range(20))
        client.queue("q").put_many({"klass": "k", "jid": f"of-run-{i}", "depends": [f"run-{i}"]} for i in range(20))
        for i in range(20):
            client.queue("q").recur("k", every=3600, jid=f"recurs-{i}")
    before = read_namespace(server.redis, some.namespace)
    order = [*before["queue:q:waiting"], *before["lane:q\na"]]
    jids = {key[4:] for key in before if key.startswith("job:")}
    running = list(held)

    def work(step):
        if running and step % 3 == 0 and some.marks()[0] in (b"2", b"3/1>16"):
            renewed = [leasing.Renewal(jid, held[jid].token) for jid in running]
            assert all(answer > 0 for answer in some.run(some.one(), leasing.renew("w", renewed, now=NOW)))
            lease = held[running.pop()]
            assert some.run(some.one(), settling.settle("w", [Completed(lease)], now=NOW)) == [True]

    began = time.monotonic()
    moved = some.reshard(work)
    spent_s = time.monotonic() - began
    measured(
        f"{many:,} waiting jobs moved into 16 shards in {spent_s:.1f} s, with {200 - len(running)} settled meanwhile"
    )
    after = some.jobs()
    assert after.keys() == jids
    assert moved.recurrences == sum(shard_of(f"recurs-{i}", 16) > 0 for i in range(20))
    assert (moved.stay["limit"], moved.stay["depends"] > 0) == (
        sum(shard_of(f"few-{i}", 16) > 0 for i in range(20)),
        True,
    )
    found = some.read()
    for shard in range(1, 16):
        there = [*found[shard].get("queue:q:waiting", {}), *found[shard].get("lane:q\na", {})]
        assert there == [member for member in order if shard_of(member[13:], 16) == shard and after[member[13:]]]
    if not FULL:
        assert some.violations() == []
