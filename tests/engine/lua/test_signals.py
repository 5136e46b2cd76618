"""Waiting without a process: a suspended job lies among the scheduled ones, and a signal brings it to the front."""

import pytest

from supervisor import LeaseholdError
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing, settling
from supervisor.engine.commands.leasing import Renewal
from supervisor.engine.model.outcomes import Suspended
from supervisor.engine.model.replay import NEVER_MS, Replay
from tests.lengths import LONG


def leased(client, jid="j", **options):
    client.queue("q").put("k", 1, jid=jid, **options)
    return again(client)


def again(client, worker="w"):
    (lease,) = client.queue("q").lease(worker)
    return lease


def prefix_of(namespace):
    return f"{{{namespace}}}:"


def keys_of(server, namespace):
    return server.redis.keys(f"{prefix_of(namespace)}replay:*")


def store_step(client, lease, name, result):
    [expires] = calls_of(client).call(
        leasing.renew, lease.worker, [Renewal(lease.jid, lease.token, state=result, step=name)]
    )
    return expires


def replay_of(lease):
    return Replay(lease.raw_replay)


def test_suspended_job_is_scheduled_and_spends_nothing(client, clock):
    lease = leased(client)
    assert lease.suspend("approval", "7d")
    job = client.job("j")
    assert (job.state, job.waiting_for, job.due_unix) == ("scheduled", "approval", clock.now + 7 * 86400)
    assert (job.failures, job.deaths, job.interruptions) == (0, 0, 0)
    assert client.queue("q").lease("w") == []
    assert not lease.complete()


def test_signal_of_bytes_is_told_to_be_json(client):
    with pytest.raises(TypeError, match="value must be JSON: value is a bytes; give text"):
        client.signal("j", "approval", b"1")


def test_signal_brings_the_job_to_the_front_with_its_value(client):
    lease = leased(client)
    client.queue("q").put("k", 2, jid="later", priority=-5)
    lease.suspend("approval", "7d")
    assert client.signal("j", "other", 1)
    assert client.job("j").state == "scheduled"
    assert client.signal("j", "approval", {"by": "ann", "n": [2**60, None]})
    assert (client.job("j").state, client.job("j").waiting_for) == ("waiting", None)
    lease = again(client)
    assert (lease.jid, lease.signals) == ("j", {"other": 1, "approval": {"by": "ann", "n": [2**60, None]}})


def test_signal_before_the_wait_is_kept_and_ends_it_at_once(client):
    lease = leased(client)
    client.signal("j", "approval", "yes")
    assert lease.signals == {}
    assert lease.suspend("approval", "7d")
    assert client.job("j").state == "waiting"
    assert again(client).signals == {"approval": "yes"}


def test_signal_of_a_waiting_job_comes_with_its_first_lease(client):
    client.queue("q").put("k", 1, jid="j")
    client.signal("j", "approval")
    assert again(client).signals == {"approval": None}


def test_later_signal_of_a_name_replaces_the_earlier(client):
    client.queue("q").put("k", 1, jid="j")
    client.signal("j", "approval", "a long answer")
    client.signal("j", "approval", "no")
    assert client.job("j").signal_count == 1
    assert again(client).signals == {"approval": "no"}
    assert client.check() == []


def test_wait_is_over_at_its_time(client, clock):
    leased(client).suspend("approval", 60)
    clock.now += 59
    assert client.queue("q").lease("w") == []
    clock.now += 1
    lease = again(client)
    assert replay_of(lease).waits == {"approval": True}
    assert lease.signals == {}


def test_wait_that_begins_again_keeps_its_time(client, clock):
    leased(client).suspend("approval", 60)
    clock.now += 20
    client.job("j").move("q")
    lease = again(client)
    assert replay_of(lease).waits == {"approval": False}
    lease.suspend("approval", 60)
    assert client.job("j").due_unix == clock.now + 40


def test_wait_without_a_time_out_ends_by_its_signal_alone(client, clock):
    leased(client).suspend("approval")
    assert client.job("j").due_unix is None
    clock.now += 10 * 365 * 86400
    assert client.queue("q").lease("w") == []
    client.signal("j", "approval")
    assert again(client).jid == "j"


def test_suspended_job_frees_its_limit_and_keeps_its_claim(client):
    client.limit("l", running=1)
    lease = leased(client, limit="l", unique="u")
    client.queue("q").put("k", 2, jid="second", limit="l")
    assert client.queue("q").lease("v") == []
    lease.suspend("approval", "7d")
    assert again(client, "v").jid == "second"
    assert client.queue("q").put("k", 3, unique="u") == "j"


def test_start_deadline_does_not_count_while_a_job_waits(client, clock):
    leased(client, expires=30).suspend("approval", "7d")
    clock.now += 60
    client.sweep()
    client.signal("j", "approval")
    assert again(client).jid == "j"


@pytest.mark.parametrize("option", ["persistent", "at_most_once"])
def test_job_that_cannot_start_again_cannot_wait(client, option):
    lease = leased(client, **{option: True})
    with pytest.raises(LeaseholdError, match="cannot wait"):
        lease.suspend("approval", 1)
    assert client.job("j").state == "running"


def test_job_keeps_a_hundred_signals(client):
    client.queue("q").put("k", 1, jid="j")
    for number in range(100):
        assert client.signal("j", f"s{number}", number)
    with pytest.raises(LeaseholdError, match="100 signals"):
        client.signal("j", "one more")
    assert client.signal("j", "s7", "again")
    assert len(again(client).signals) == 100


def test_job_that_has_waited_a_thousand_times_fails(client, server, namespace):
    lease = leased(client)
    lease.suspend("first")
    fields = {f"wait:{number}": NEVER_MS for number in range(2100)}
    server.redis.hset(f"{prefix_of(namespace)}replay:j", mapping=fields)
    client.check(repair=True)
    client.signal("j", "first")
    again(client).suspend("one more")
    assert client.job("j").failure["group"] == "too-many-waits"


@pytest.mark.parametrize(("name", "value"), [("", 1), ("a\nb", 1), ("a", object()), ("a", "x" * 65536)])
def test_bad_signal_is_refused(client, name, value):
    client.queue("q").put("k", 1, jid="j")
    with pytest.raises((TypeError, ValueError), match=r"name|value"):
        client.signal("j", name, value)
    assert client.job("j").signal_count == 0


def test_signal_for_no_job_is_false(client):
    leased(client).complete()
    assert not client.signal("j", "approval")
    assert not client.signal("none", "approval")


def test_signal_of_a_failed_job_is_kept_for_its_next_start(client):
    leased(client).fail("g", "m")
    assert client.signal("j", "approval", "yes")
    client.unfail("g")
    assert again(client).signals == {"approval": "yes"}


def test_signal_sent_again_after_the_wait_brings_nothing_forward(client):
    leased(client).suspend("approval")
    for value in range(3):
        client.signal("j", "approval", value)
    assert again(client).signals == {"approval": 2}
    assert client.queue("q").lease("w") == []


def test_sent_again_suspend_changes_nothing(client, clock):
    """The master sends a settle again under its number if it got no answer."""
    lease = leased(client)
    settles = settling.settle("w", [Suspended(lease, "approval", 60)], number=1, now=clock.now)
    assert [calls_of(client).run(settles) for _ in range(2)] == [[True], [True]]
    assert (client.job("j").state, client.job("j").waiting_for) == ("scheduled", "approval")


def test_waiting_job_takes_little_memory(client, server, measured):
    """`.ci/run --full`: a hundred thousand jobs."""
    count = 100_000 if LONG else 5_000
    before_bytes = server.redis.info("memory")["used_memory"]
    queue = client.queue("many")
    for _ in range(count // 1000):
        queue.put_many({"klass": "orders.approve", "data": {"order": 12345678, "user": 7}} for _ in range(1000))
        leases = queue.lease("w", 1000)
        client.settle([Suspended(lease, "approval", "7d") for lease in leases])
    each_bytes = (server.redis.info("memory")["used_memory"] - before_bytes) / count
    assert queue.counts().scheduled == count
    measured(f"memory of a job that waits for a signal: {each_bytes:.0f} bytes")
    assert each_bytes <= 1536


def test_steps_come_back_with_the_next_lease(client):
    lease = leased(client)
    store_step(client, lease, "charge", b'{"id":7}')
    store_step(client, lease, "mail", b"null")
    lease.release()
    assert replay_of(again(client)).steps == {"charge": {"id": 7}, "mail": None}
    assert client.check() == []


def test_steps_beyond_a_megabyte_are_not_kept(client, server, namespace):
    """A child refuses them. This one does not."""
    lease = leased(client)
    for number in range(20):
        store_step(client, lease, f"s{number}", b'"' + b"x" * 65_000 + b'"')
        store_step(client, lease, "again", b'"' + b"x" * 65_000 + b'"')
    assert server.redis.hlen(f"{prefix_of(namespace)}replay:j") == 16
    assert client.check() == []


def test_job_keeps_no_more_than_its_thousands_of_steps(client, server, namespace):
    lease = leased(client)
    for _ in range(4):
        steps = [Renewal("j", lease.token, state=b"1", step=f"s{_}-{n}") for n in range(1000)]
        calls_of(client).call(leasing.renew, lease.worker, steps)
    assert server.redis.hlen(f"{prefix_of(namespace)}replay:j") == 3000
    assert client.check() == []


def test_lost_lease_stores_no_step(client, server, namespace, clock):
    lease = leased(client)
    clock.now += 100
    again(client, "v")
    assert store_step(client, lease, "charge", b"1") == leasing.LOST
    assert keys_of(server, namespace) == []


def test_replay_is_read_beside_large_payloads(client):
    for number in range(3):
        client.queue("q").put("k", "x" * 40_000, jid=f"large{number}")
        client.signal(f"large{number}", "s", number)
    client.queue("q").put("k", 1, jid="small")
    client.signal("small", "s", "y" * 60_000)
    client.queue("q").put("k", "z" * 50_000, jid="none")
    leases = {lease.jid: lease for lease in client.queue("q").lease("w", 10)}
    assert {jid: lease.signals.get("s") for jid, lease in leases.items()} == {
        "large0": 0, "large1": 1, "large2": 2, "small": "y" * 60_000, "none": None,
    }  # fmt: skip
    assert len(leases["large1"].data) == 40_000


WAYS_TO_BEGIN_ANEW = {
    "complete": lambda client, lease: lease.complete(1),
    "next": lambda client, lease: lease.complete(next="q"),
    "put": lambda client, lease: client.queue("q").put("k", 2, jid="j"),
    "cancel": lambda client, lease: client.cancel("j"),
    "cancel while it waits": lambda client, lease: (lease.suspend("other", "1d"), client.cancel("j")),
    "put while it waits": lambda client, lease: (lease.suspend("other", "1d"), client.queue("q").put("k", 2, jid="j")),
    "delete its queue while it waits": lambda client, lease: (lease.suspend("other"), client.queue("q").delete()),
}


@pytest.mark.parametrize("history", [0, 3600])
@pytest.mark.parametrize("way", WAYS_TO_BEGIN_ANEW)
def test_signals_and_steps_end_with_their_stage(client, server, namespace, way, history):
    client.config.set("jobs-history", history)
    leased(client).suspend("approval", "7d")
    client.signal("j", "approval", "yes")
    lease = again(client)
    store_step(client, lease, "charge", b"1")
    WAYS_TO_BEGIN_ANEW[way](client, lease)
    assert keys_of(server, namespace) == []
    if way in ("next", "put", "put while it waits"):
        assert again(client, "v").raw_replay is None


WAYS_TO_COME_AGAIN = {
    "release": lambda client, lease: lease.release(),
    "retry": lambda client, lease: lease.retry(),
    "death": lambda client, lease: lease.died("SIGKILL"),
    "fail and unfail": lambda client, lease: (lease.fail("g", "m"), client.unfail("g")),
    "move": lambda client, lease: (client.job("j").move("other"), client.job("j").move("q")),
    "move while it waits": lambda client, lease: (lease.suspend("other", "1d"), client.job("j").move("q")),
    "fail while it waits": lambda client, lease: (
        lease.suspend("other", "1d"),
        client.job("j").fail("g", "m"),
        client.unfail("g"),
    ),
    "forgotten worker": lambda client, lease: client.deregister("w"),
}


@pytest.mark.parametrize("way", WAYS_TO_COME_AGAIN)
def test_signals_and_steps_survive_whatever_brings_the_job_back(client, way):
    client.queue("q").put("k", 1, jid="j")
    client.signal("j", "approval", "yes")
    lease = again(client)
    store_step(client, lease, "charge", b"1")
    WAYS_TO_COME_AGAIN[way](client, lease)
    replay = replay_of(again(client, "v"))
    assert (replay.signals, replay.steps) == ({"approval": "yes"}, {"charge": 1})


def test_dropped_failed_job_leaves_no_signals(client, server, namespace, clock):
    client.config.set("failed-history", 60)
    lease = leased(client)
    client.signal("j", "approval")
    lease.fail("g", "m")
    clock.now += 100
    client.sweep()
    assert client.job("j") is None
    assert keys_of(server, namespace) == []


def test_check_finds_signals_without_their_job_and_wrong_sizes(client, server, namespace):
    prefix = prefix_of(namespace)
    client.queue("q").put("k", 1, jid="j")
    client.signal("j", "approval", "yes")
    server.redis.hset(f"{prefix}replay:gone", "signal:a", "1")
    server.redis.hset(f"{prefix}job:j", "replay", 3)
    assert {one.subject for one in client.check(repair=True)} == {"replay:gone", "j"}
    assert client.check() == []
    assert again(client).signals == {"approval": "yes"}


def test_events_tell_of_the_wait_and_the_signal(client):
    client.queue("q").put("k", 1, jid="j")
    with client.events(jid="j") as events:
        again(client).suspend("approval", 5)
        client.signal("j", "approval")
        names = [next(events).name for _ in range(3)]
    assert names == ["lease.granted", "job.suspended", "job.signalled"]


def test_wait_and_signal_are_in_the_history(client):
    leased(client).suspend("approval", 5)
    client.signal("j", "approval")
    said = [(entry["what"], entry.get("signal")) for entry in client.job("j").history]
    assert said == [("put", None), ("popped", None), ("suspended", "approval"), ("signalled", "approval")]


def test_time_of_a_wait_is_no_time_in_the_queue(client, clock):
    leased(client).suspend("approval", timeout=9_000)
    clock.tick(5_000)
    client.signal("j", "approval", 1)
    clock.tick(2)
    assert again(client).waited_s == 2


def test_new_job_of_a_jid_has_no_steps_of_an_earlier_release(client, server, namespace):
    server.redis.hset(f"{prefix_of(namespace)}replay:j", "step:charge", b"1")
    lease = leased(client)
    store_step(client, lease, "other", b"2")
    lease.release()
    assert replay_of(again(client)).steps == {"other": 2}


def test_signal_for_a_wait_that_is_over_leaves_the_delay_of_a_retry(client):
    lease = leased(client)
    lease.suspend("approval", timeout=0)
    lease = again(client)
    lease.retry(delay=600)
    client.signal("j", "approval", 1)
    assert client.job("j").state == "scheduled"
