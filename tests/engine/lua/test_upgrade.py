"""An upgrade from layout 1 and back works with the real scripts of Leasehold 0.1, and killed at every step."""

import itertools

import pytest
import redis

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import leasing, recurrences, settling, upgrade, workers
from supervisor.engine.model.errors import LayoutError, LeaseholdError
from supervisor.engine.model.outcomes import Misfit, Suspended, Unknown
from supervisor.engine.model.recurring import declared
from tests.engine.invariants import read_namespace
from tests.engine.layout_1 import NOW, Leasehold01, recorded
from tests.engine.lua.test_scripts import digest, fill, fill_special, snapshot
from tests.lengths import LONG

#: A time at which no worker of the recorded calls lives and none of their leases runs.
LATER = NOW + 3_000
NOW_MS = round(NOW * 1000)
READING = {name for name, text in recorded()["scripts"].items() if text.startswith("#!lua flags=no-writes")}
#: Keys that scripts of 0.1 can still write. A waiter and a line of history in a full record mean the same in layout 2.
#: Hints and numbers expire. `check --repair` mends the others.
STILL_WRITE = {
    "await": {"job:awaited-1"}, "await: once more": {"job:awaited-0"}, "log": {"job:held-3", "history:held-3"},
    "tell": {"mail:w"}, "desire": {"desired:pool"},
    "check": {"tags", "aside:100000000000:tags"}, "check: members": {"queue:q:waiting"},
}  # fmt: skip
#: Calls about plain jobs, as supervisors make them by the ten thousand. Worker w leased the jobs a and b, c waits.
PLAIN = {
    "put": ("put", "put", "q", "new", "k", "json", "null", "", "", "0"),
    "put of a known job": ("put", "put", "q", "c", "k", "json", "null", "", "", "0"),
    "lease": ("lease", "v", "1", "1", "1", "", "1", "strict", "1", "", "", "q", "1"),
    "lease of nothing": ("lease", "v", "1", "1", "1", "", "1", "strict", "1", "", "", "empty", "1"),
    "complete": ("settle", "w", "", "complete", "a", "1", "", "complete", "b", "2", ""),
    "fail": ("settle", "w", "", "fail", "a", "1", "g", "{}", "", ""),
    "release": ("settle", "w", "", "release", "a", "1", "1", "", ""),
    "renew": ("renew", "w", "", "5000", "a", "1", "1", "", "", "", "", ""),
    "resume": ("resume", "v", "1", ""),
    "sweep": ("sweep", "100", "1", "0", "v"),
}


@pytest.fixture
def old(server, namespace):
    """Return a client of 0.1."""
    return Leasehold01(server.redis, namespace)


@pytest.fixture
def new(server, namespace):
    """Return a client of this version."""
    with Client(server.url, namespace, lambda: LATER) as client:
        yield client


def to_this(client):
    calls_of(client).follow(upgrade.to_this(calls_of(client).clock))


def to_first(client, on_expanded=lambda _: None):
    return calls_of(client).follow(upgrade.to_first(calls_of(client).clock, on_expanded))


def changed(before, after, prefix):
    return {key.decode()[len(prefix) :] for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def check_by_0_1(old, repair=False):
    """Return what a check of 0.1 finds: kinds and subjects."""
    now_ms, found = round(LATER * 1000), set()

    def judge(name, subjects):
        for first in range(0, len(subjects), 50):
            again = 1
            while again:
                again, sets, hashes, texts = old.run(
                    "check", now_ms, "1" if repair else "", name, *subjects[first : first + 50]
                )
                found.update((texts[i].decode(), texts[i + 1].decode()) for i in range(0, len(texts), 4))
            for large in sets:
                judge(large, [member for member, _ in old.redis.zscan_iter(old.prefix.encode() + large)])
            for large in hashes:
                judge(large, [field for field, _ in old.redis.hscan_iter(old.prefix.encode() + large)])

    judge("", [key[len(old.prefix) :] for key in old.redis.scan_iter(f"{old.prefix}*", count=1000)])
    return found


def fill_by_0_1(old, kind):
    """Fill a namespace, and repair what the recorded calls have damaged on purpose."""
    old.fill(kind)
    while check_by_0_1(old, repair=True):
        pass
    for key in old.redis.scan_iter(f"{old.prefix}laned:*"):
        queue = key.decode().partition("}:laned:")[2]
        lanes = [name.decode().partition("\n")[2] for name in old.redis.scan_iter(f"{old.prefix}lane:{queue}\n*")]
        old.run("check", round(LATER * 1000), "1", f"laned:{queue}", *lanes)
    for key in old.redis.scan_iter(f"{old.prefix}aside:*"):
        old.redis.delete(key)


# Clients of 0.1 that are still connected.


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scene", recorded()["scenes"])
def test_no_script_of_0_1_writes_after_the_upgrade(server, namespace, old, new, scene):
    kind, script, *_ = recorded()["scenes"][scene]
    old.fill(kind)
    to_this(new)
    before, error = snapshot(server, namespace), None
    try:
        old.play(scene)
    except redis.ResponseError as raised:
        error = str(raised)
    assert changed(before, snapshot(server, namespace), old.prefix) == STILL_WRITE.get(scene, set())
    refuses_by_answer = script in READING or script in ("serve", "answer")  # there is no such worker, or no request
    assert error or refuses_by_answer or scene in STILL_WRITE
    assert not error or any(word in error for word in ("WRONGTYPE", "DEREGISTERED", "there is no worker"))


@pytest.mark.parametrize("call", PLAIN)
@pytest.mark.parametrize("made_by", ["0.1", "this version"])
def test_no_plain_call_of_0_1_writes(server, namespace, old, new, made_by, call):
    if made_by == "0.1":
        for jid in "abc":
            old.run("put", NOW_MS, "put", "q", jid, "k", "json", "null", "", "", "0")
        old.run("lease", NOW_MS, "w", "1", "2", "2", "5000", "1", "strict", "1", "", "", "q", "1")
        to_this(new)
    else:
        new.queue("q").put_many({"klass": "k", "jid": jid} for jid in "abc")
        new.queue("q").lease("w", 2)
    before = digest(server, namespace)
    script, *args = PLAIN[call]
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        old.run(script, NOW_MS, *args)
    assert digest(server, namespace) == before


# The way up.


def rows(client, jids):
    """Return what both versions say of some jobs: state, queue, klass, payload, tags and counts."""
    return {
        job.jid: (job.state, job.queue, job.klass, job.raw, tuple(job.tags), job.priority, job.failures, job.deaths)
        for job in client.jobs(*jids)
        if job is not None
    }


def jids_in(server, namespace):
    return sorted(key.decode().partition("}:job:")[2] for key in server.redis.scan_iter(f"{{{namespace}}}:job:*"))


def states_of_old(old, jids):
    """Return the states of jobs as 0.1 says them."""
    now_ms = round(LATER * 1000)
    return {row[0].decode(): row[1].decode() for row in (old.run("job", now_ms, jid)[0] for jid in jids) if row}


@pytest.mark.parametrize("kind", ["ready", "special"])
def test_the_upgrade_keeps_every_job_in_its_place(server, namespace, old, new, kind):
    fill_by_0_1(old, kind)
    jids = jids_in(server, namespace)
    before = states_of_old(old, jids)
    to_this(new)
    assert {jid: row[0] for jid, row in rows(new, jids).items()} == before
    assert new.check() == []


def test_the_upgrade_keeps_options_tags_and_tracked_jobs(server, namespace, old, new):
    old.fill("ready")
    old.run("configure", NOW_MS, "grace", "", "7")
    before = read_namespace(server.redis, namespace)
    to_this(new)
    after = read_namespace(server.redis, namespace)
    moved = {"config": "options", "tracked": "tracked-jobs", "tags": "tag-counts", "workers": "workers-seen"}
    assert {name: after[name] for name in moved.values()} == {new: before[was] for was, new in moved.items()}
    assert {after[name] for name in moved} == {b"2", b"2+"}
    assert new.config.get("grace") == 7
    of_workers = ("worker:", "mail:", "asks:", "skills:", "held:")
    kept = {key for key in before if not key.startswith(of_workers) and key not in moved}
    assert {key: after.get(key) for key in kept} == {key: before[key] for key in kept}
    held = {key: scores for key, scores in before.items() if key.startswith("held:")}
    assert {key: after[key] for key in held} == {
        key: {jid: token + 0.5 for jid, token in scores.items()} for key, scores in held.items()
    }


def test_the_upgrade_is_done_once(server, namespace, old, new):
    old.fill("special")
    to_this(new)
    before = digest(server, namespace)
    to_this(new)
    assert digest(server, namespace) == before


def test_an_empty_namespace_needs_no_upgrade(server, namespace, new):
    to_this(new)
    assert (to_first(new), list(server.redis.scan_iter(f"{{{namespace}}}:*"))) == (0, [])


@pytest.mark.parametrize("way", [to_this, to_first])
def test_a_conversion_waits_until_no_worker_lives(server, namespace, old, way):
    time = [NOW + 59]
    old.run("put", NOW_MS, "put", "q", "a", "k", "json", "null", "", "", "0")
    old.run("lease", NOW_MS, "w", "", "1", "1", "100000", "1", "strict", "1", "", "", "q", "1")
    old.run("lease", NOW_MS + 9000, "idle", "", "1", "1", "", "1", "strict", "1", "", "", "q", "1")
    with Client(server.url, namespace, lambda: time[0]) as client:
        if way is to_first:
            time[0] += 1_000
            to_this(client)
            time[0] = NOW + 59
        before = digest(server, namespace)
        for passed, why in (
            (59, "idle was seen 50 s ago and counts as alive for 10 s more; w holds a lease that runs for 41 s more"),
            (70, "w holds a lease that runs for 30 s more$"),
        ):
            time[0] = NOW + passed
            with pytest.raises(LayoutError, match=f"^nothing was converted, because workers live: {why}"):
                way(client)
            assert digest(server, namespace) == before
        time[0] = NOW + 101
        way(client)
        assert digest(server, namespace) != before
        assert calls_of(client).run(upgrade.look(now=time[0])).layout == ("1" if way is to_first else "2")


def test_leases_made_during_the_upgrade_stop_the_upgrade(server, namespace, old, new):
    """The upgrade was stopped for so long that their worker does not count as alive any more."""
    for jid in "ab":
        old.run("put", NOW_MS, "put", "q", jid, "k", "json", "null", "", "", "0")
    lease = ("", "1", "1", "5000", "1", "strict", "1", "", "", "q", "1")
    old.run("lease", NOW_MS, "w", *lease)
    assert calls_of(new).run(upgrade.score_leases(0, 0, now=LATER)) == (-1, 0)
    old.run("lease", NOW_MS + 2000, "w", *lease)
    before = digest(server, namespace)
    assert [each.name for each in calls_of(new).run(upgrade.up(NOW + 2, now=LATER))] == ["w"]
    assert digest(server, namespace) == before
    to_this(new)
    assert new.check() == []


def test_a_lease_that_runs_is_found_behind_many_dead_workers(server, namespace, old):
    old.run("put", NOW_MS, "put", "q", "a", "k", "json", "null", "", "", "0")
    old.run("lease", NOW_MS, "first", "", "1", "1", "900000", "1", "strict", "1", "", "", "q", "1")
    server.redis.zadd(f"{old.prefix}workers", {f"dead-{i}": NOW_MS + 1 for i in range(1_001)})
    with (
        Client(server.url, namespace, lambda: NOW + 300) as client,
        pytest.raises(LayoutError, match=r"first holds a lease that runs for 600 s more$"),
    ):
        to_this(client)


# The way back.

BOTH = {"ready": fill, "special": fill_special}


def test_jobs_apart_are_found_in_the_last_of_many_queues(server, namespace, new):
    new.queue("q").put("k", jid="a")
    server.redis.zadd(f"{{{namespace}}}:queues", {f"q{i:05}": NOW_MS + i for i in range(10_001)})
    assert calls_of(new).follow(upgrade.look_at_all(calls_of(new).clock)).apart == 0
    server.redis.zadd(f"{{{namespace}}}:queue:q10000:apart", {"a": NOW_MS})
    assert calls_of(new).follow(upgrade.look_at_all(calls_of(new).clock)).apart == 1
    server.redis.delete(f"{{{namespace}}}:queue:q10000:apart")


@pytest.fixture
def apart(server, namespace):
    """Have 2,500 jobs, some of them in a lane, lie apart for a worker that is long gone. Return their jids."""
    jids = [f"j{i:04}" for i in range(2_500)]
    with Client(server.url, namespace, lambda: NOW) as client:
        client.queue("q").put_many({"klass": "k", "jid": jid, "lane": f"l{i % 2}"} for i, jid in enumerate(jids))
        for worker, klasses in (("lacks", ["other"]), ("has", ["k"])):
            calls_of(client).call(leasing.resume, worker, 1, [])
            calls_of(client).call(workers.report_skills, worker, klasses, ["q"])
        number = 1
        while calls_of(client).follow(upgrade.look_at_all(calls_of(client).clock)).apart < len(jids):
            leases = calls_of(client).call(leasing.lease, "lacks", ["q"], 500, number=(number := number + 1)).leases
            unknown = [Unknown(lease, 10) for lease in leases]
            calls_of(client).call(settling.settle, "lacks", unknown, number=(number := number + 1))
    return jids


@pytest.mark.parametrize("paused", ["nothing", "the queue", "a lane"])
def test_the_way_back_takes_jobs_apart_back(server, namespace, old, new, apart, paused):
    server.redis.zadd(f"{{{namespace}}}:workers-seen", {f"dead-{i}": NOW_MS for i in range(1_001)})
    if paused == "the queue":
        new.queue("q").pause()
    elif paused == "a lane":
        new.queue("q").lane("l1").pause()
    assert to_first(new) == len(apart)
    assert set(states_of_old(old, apart).values()) == {"waiting"}
    assert check_by_0_1(old) == set()


def test_the_way_back_takes_misfits_and_declared_jobs_along(server, namespace, old, new):
    jids = list("abc")
    with Client(server.url, namespace, lambda: NOW) as client:
        calls = calls_of(client)
        client.queue("q").put_many({"klass": "k", "jid": jid} for jid in jids)
        for worker in ("one", "two"):
            calls.call(leasing.resume, worker, 1, [])
            calls.call(workers.report_skills, worker, ["k"], ["q"], {"k": f"shape of {worker}"})
        leases = calls.call(leasing.lease, "one", ["q"], 2, number=2).leases
        calls.call(settling.settle, "one", [Misfit(lease, "shape of one", "m") for lease in leases], number=3)
        calls.call(recurrences.declare, [], [declared("each", {"every": 86_400, "offset": 86_400}, NOW)])
        assert calls.follow(upgrade.look_at_all(calls.clock)).apart == 2
    assert to_first(new) == 3
    assert check_by_0_1(old) == set()
    assert set(states_of_old(old, jids).values()) == {"waiting"}
    assert list(lease_by_0_1(old, 1)) == jids
    assert server.redis.exists(f"{{{namespace}}}:recur:each")


def test_jobs_that_stay_apart_end_the_way_back_and_are_counted(server, namespace, new):
    new.queue("q").put("k", jid="a")
    server.redis.zadd(f"{{{namespace}}}:queue:q:apart", {"a": NOW_MS})
    with pytest.raises(LeaseholdError, match="1 jobs stay apart"):
        to_first(new)
    new.check(repair=True)
    assert to_first(new) == 1


def wait_for_a_signal(client):
    client.queue("q").put("k", jid="a")
    [lease] = calls_of(client).call(leasing.lease, "w", ["q"], 1).leases
    calls_of(client).call(settling.settle, "w", [Suspended(lease, "approval", None)])
    calls_of(client).call(workers.deregister, "w", own=True)


def test_wait_that_begins_after_the_look_stops_the_way_back(new):
    new.queue("q").put("k", jid="a")
    calls = calls_of(new)
    [lease] = calls.run(leasing.lease("w", ["q"], now=NOW)).leases
    look = calls.run(upgrade.look(now=LATER))
    assert (look.living, look.waits) == ([], 0)
    assert calls.run(settling.settle("w", [Suspended(lease, "approval", None)], now=LATER + 1)) == [True]
    assert [each.name for each in calls.run(upgrade.begin_back(look.now_unix, now=LATER + 2))] == ["w"]
    assert layout_of(new) == upgrade.THIS


def open_a_batch(client):
    with client.batch("import") as batch:
        batch.put("q", "k", jid="a")


def signal_and_cancel(client):
    client.signal("a", "approval", True)


def cancel_the_batch(client):
    [batch] = client.batches()
    client.batch(batch.id).cancel()


UNKNOWN_TO_FIRST = pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        (wait_for_a_signal, signal_and_cancel, "1 jobs wait for a signal"),
        (open_a_batch, cancel_the_batch, "1 batches have not ended"),
    ],
)


def layout_of(client):
    return calls_of(client).follow(upgrade.look_at_all(calls_of(client).clock)).layout


@UNKNOWN_TO_FIRST
def test_the_way_back_refuses_what_would_never_end_there(new, begin, end, words):
    begin(new)
    with pytest.raises(LeaseholdError, match=words):
        to_first(new)
    assert layout_of(new) == upgrade.THIS
    end(new)
    to_first(new)


@UNKNOWN_TO_FIRST
def test_the_way_back_refuses_what_has_begun_during_its_sweeps(new, monkeypatch, begin, end, words):
    new.queue("other").put("k")
    sweep_all = upgrade._sweep_all

    def sweep_while_it_begins(clock):
        begin(new)
        yield from sweep_all(clock)

    with monkeypatch.context() as patched:
        patched.setattr(upgrade, "_sweep_all", sweep_while_it_begins)
        with pytest.raises(LeaseholdError, match=words):
            to_first(new)
    assert layout_of(new) == upgrade.THIS
    end(new)
    to_first(new)


def test_the_way_back_does_not_begin_while_a_batch_has_not_ended(new):
    open_a_batch(new)
    with pytest.raises(LeaseholdError, match="has batches that have not ended"):
        calls_of(new).run(upgrade.begin_back(LATER, now=LATER))
    assert layout_of(new) == upgrade.THIS


def fill_by_this_version(server, namespace, kind):
    """Fill the namespace, and end the batches, which have no way back."""
    BOTH[kind](server, namespace)
    with Client(server.url, namespace, lambda: LATER) as client:
        client.check(repair=True)
        client.sweep()
        for batch in client.batches(0, 1000):
            if batch.state in ("open", "running"):
                client.batch(batch.id).cancel()


@pytest.mark.parametrize("kind", BOTH)
def test_namespace_on_the_way_back_is_closed_until_0_1(server, namespace, old, new, kind):
    fill_by_this_version(server, namespace, kind)
    jids = jids_in(server, namespace)
    seen = []

    def look(_expanded):
        for call in (lambda: new.queue("q").put("k"), new.queues):
            with pytest.raises(LayoutError, match="on its way back"):
                call()
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            old.run("put", NOW_MS, "put", "q", "new", "k", "json", "null", "", "", "0")
        seen.append(_expanded)

    before = {jid: row[0] for jid, row in rows(new, jids).items()}
    assert to_first(new, look) == len(jids) == seen[-1]
    assert states_of_old(old, jids) == before
    assert check_by_0_1(old) == set()
    with pytest.raises(LayoutError, match=r"layout of Leasehold 0\.1"):
        new.queues()


def lease_by_0_1(old, number, count=100):
    """Lease from all queues, as a supervisor of 0.1 does. Return tokens by jid."""
    queues = [word for name in old.run("names") for word in (name, "1")]
    reply = old.run("lease", round(LATER * 1000), "w01", number, count, count, "", "1", "strict", "1", "", "", *queues)
    return {reply[6][i].decode(): reply[2] + i // 6 for i in range(0, len(reply[6]), 6)}


def test_a_pool_of_0_1_runs_all_jobs_after_the_way_back(server, namespace, old):
    time = [NOW]
    with Client(server.url, namespace, lambda: time[0]) as new:
        q = new.queue("q")
        q.put_many({"klass": "k", "data": {"n": i}, "jid": f"j{i}", "priority": i % 3} for i in range(30))
        q.put_many({"klass": "k", "data": "x" * 5_000, "jid": f"large{i}", "tags": ["t"]} for i in range(3))
        leases = q.lease("w", 9, ttl=5)
        for lease in leases[:3]:
            lease.complete({"done": lease.jid})
        leases[3].retry(), leases[4].fail("g", "m"), leases[5].release()
        time[0] = LATER
        to_first(new)
    run, number = [], 0
    while granted := lease_by_0_1(old, number := number + 1, 7):
        assert min(granted.values()) > max(lease.token for lease in leases)
        outcomes = [word for jid, token in granted.items() for word in ("complete", jid, token, "")]
        assert old.run("settle", round(LATER * 1000), "w01", number, *outcomes) == b",".join([b"1"] * len(granted))
        run += granted
    expected = {f"j{i}" for i in range(30)} | {f"large{i}" for i in range(3)}
    assert sorted(run) == sorted(expected - {lease.jid for lease in [*leases[:3], leases[4]]})
    states = states_of_old(old, sorted(expected))
    assert {jid for jid, state in states.items() if state != "complete"} == {leases[4].jid}
    assert check_by_0_1(old) == set()


def test_a_way_back_that_was_undone_meanwhile_does_not_end(server, namespace, old, new):
    new.queue("q").put("k", jid="a")

    def undo(_expanded):
        to_this(new)

    with pytest.raises(LeaseholdError, match="the namespace is not on its way back any more"):
        to_first(new, undo)
    assert new.queue("q").counts().waiting == 1 and new.check() == []


# Killed.


def jobs_of(server, namespace):
    """Return what lies in the namespace without what counts sweeps, of which a way back that goes on makes more."""
    found = read_namespace(server.redis, namespace)
    return {key: value for key, value in found.items() if not key.startswith("course:")}


def killed_at(client, steps, number, is_carried_out):
    """Follow the steps up to one, which is carried out, or not, before the process ends. Return whether they ended."""
    answer = None
    for i in itertools.count():
        try:
            command = steps.send(answer)
        except StopIteration:
            return True
        if i == number and not is_carried_out:
            return False
        answer = calls_of(client).run(command)
        if i == number:
            return False
    raise AssertionError("the steps end or are killed")


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_killed_at_any_step_the_upgrade_goes_on(server, namespace, old, new, is_carried_out):
    for number in itertools.count():
        server.redis.delete(*(key for key in server.redis.scan_iter(f"{old.prefix}*")), old.prefix)
        fill_by_0_1(old, "special")
        if killed_at(new, upgrade.to_this(calls_of(new).clock), number, is_carried_out):
            break
        to_this(new)
        assert new.check() == []
    assert number >= 3


@pytest.mark.parametrize("is_carried_out", [True, False])
@pytest.mark.parametrize("kind", BOTH)
def test_killed_at_any_step_the_way_back_goes_on(server, namespace, old, new, monkeypatch, kind, is_carried_out):
    monkeypatch.setattr(upgrade, "SLICE", 7 if LONG else 90)
    monkeypatch.setattr(upgrade, "_SCANNED", 10 if LONG else 120)
    fill_by_this_version(server, namespace, kind)
    before = [(key, value, max(server.redis.pttl(key), 0)) for key, value in snapshot(server, namespace).items()]
    to_first(new)
    wanted = jobs_of(server, namespace)
    for number in itertools.count():
        server.redis.delete(*(key for key in server.redis.scan_iter(f"{old.prefix}*")))
        for key, value, ttl_ms in before:
            server.redis.restore(key, ttl_ms, value)
        steps = upgrade.to_first(calls_of(new).clock, lambda _: None)
        if killed_at(new, steps, number, is_carried_out):
            break
        if number % 2:  # whoever wants to stay with this version can
            try:
                to_this(new)
            except LeaseholdError as error:
                assert "layout" in str(error)
            else:
                assert new.check() == []
        to_first(new)
        assert jobs_of(server, namespace) == wanted
    assert number > 8
    assert check_by_0_1(old) == set()
