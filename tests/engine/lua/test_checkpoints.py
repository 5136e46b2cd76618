"""Checkpoints: stored at once, read by the next lease, deleted with their stage."""

import asyncio
import math

import pytest

from supervisor import AsyncClient, LeaseLost
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import job_changes, leasing
from supervisor.engine.commands.leasing import Renewal
from supervisor.engine.model.errors import LeaseholdError

STATES = [{"n": 1, "ä": [None, 2.5]}, 0, "", [], False]


def leased(client, **options):
    client.queue("q").put("k", 1, jid="j", **options)
    return again(client)


def again(client, worker="w"):
    (lease,) = client.queue("q").lease(worker)
    return lease


def keys_of(server, namespace):
    return server.redis.keys(f"{{{namespace}}}:saved:*")


@pytest.mark.parametrize("state", STATES)
def test_a_checkpoint_comes_back_with_the_next_lease(client, state):
    lease = leased(client)
    assert (lease.saved, client.job("j").saved) == (None, None)
    lease.checkpoint({"an": "earlier one"})
    lease.checkpoint(state)
    assert lease.saved is None
    assert client.job("j").saved == state
    lease.release()
    assert again(client).saved == state


def test_a_checkpoint_lengthens_the_lease(client, clock):
    lease = leased(client)
    clock.now += 10
    assert lease.checkpoint(1) == lease.expires_unix == client.job("j").expires_unix == clock.now + 30
    assert client.job("j").started


WAYS_TO_COME_AGAIN = {
    "release": lambda client, lease: lease.release(),
    "not started": lambda client, lease: lease.release(started=False),
    "retry": lambda client, lease: lease.retry(),
    "death": lambda client, lease: lease.died("SIGKILL"),
    "fail and unfail": lambda client, lease: (lease.fail("g", "m"), client.unfail("g")),
    "fail by hand, and unfail": lambda client, lease: (client.job("j").fail("g", "m"), client.job("j").unfail()),
    "release by hand": lambda client, lease: client.job("j").release(),
    "move": lambda client, lease: (client.job("j").move("other"), client.job("j").move("q")),
    "forgotten worker": lambda client, lease: client.deregister("w"),
    "resume without it": lambda client, lease: calls_of(client).call(leasing.resume, "w", 1, []),
    "new priority": lambda client, lease: (client.job("j").set_priority(3), lease.release()),
}


@pytest.mark.parametrize("way", WAYS_TO_COME_AGAIN)
def test_a_checkpoint_survives_whatever_brings_the_job_back(client, way):
    lease = leased(client)
    lease.checkpoint({"n": 5})
    WAYS_TO_COME_AGAIN[way](client, lease)
    assert client.job("j").saved == {"n": 5}
    assert again(client, "v").saved == {"n": 5}


def test_a_checkpoint_survives_the_loss_of_its_worker(client, clock):
    leased(client).checkpoint([1])
    clock.now += 100
    assert again(client, "v").saved == [1]


def test_a_persistent_job_that_comes_back_has_its_checkpoint(client, clock):
    leased(client, persistent=True).checkpoint([1])
    clock.now += 20
    lease = client.job("j")
    calls_of(client).call(job_changes.release, [lease.jid])
    clock.now += 20
    assert again(client, "v").saved == [1]


WAYS_TO_BEGIN_ANEW = {
    "complete": lambda client, lease: lease.complete(1),
    "complete with data": lambda client, lease: lease.complete(data=2),
    "next": lambda client, lease: lease.complete(next="q"),
    "put": lambda client, lease: client.queue("q").put("k", 2, jid="j"),
    "cancel": lambda client, lease: client.cancel("j"),
}


@pytest.mark.parametrize("history", [0, 3600])
@pytest.mark.parametrize("way", WAYS_TO_BEGIN_ANEW)
def test_checkpoint_ends_with_its_stage(client, server, namespace, way, history):
    client.config.set("jobs-history", history)
    lease = leased(client)
    lease.checkpoint({"n": 5})
    WAYS_TO_BEGIN_ANEW[way](client, lease)
    assert keys_of(server, namespace) == []
    job = client.job("j")
    assert job is None or job.saved is None
    if way in ("next", "put"):
        assert again(client, "v").saved is None
    else:
        client.queue("q").put("k", 3, jid="j")
        assert again(client, "v").saved is None


def test_dropped_failed_job_leaves_nothing(client, server, namespace, clock):
    client.config.set("failed-history", 60)
    lease = leased(client)
    lease.checkpoint(1)
    lease.fail("g", "m")
    assert len(keys_of(server, namespace)) == 1
    clock.now += 100
    client.sweep()
    assert client.job("j") is None
    assert keys_of(server, namespace) == []


def test_lost_lease_stores_no_checkpoint(client, clock):
    lost = leased(client)
    lost.checkpoint("mine")
    clock.now += 100
    taken = again(client, "v")
    for refused in (lost, again_with(taken, lost.token), again_with(lost, taken.token)):
        with pytest.raises(LeaseLost):
            refused.checkpoint("not mine")
    assert client.job("j").saved == "mine"
    taken.complete()
    with pytest.raises(LeaseLost):
        taken.checkpoint("too late")
    assert client.job("j").saved is None


def again_with(lease, token):
    """Return the lease with another token."""
    other = object.__new__(type(lease))
    for kind in type(lease).__mro__:
        for name in getattr(kind, "__slots__", ()):
            setattr(other, name, getattr(lease, name))
    other.token = token
    return other


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ({1, 2}, TypeError),
        (object(), TypeError),
        (b"bytes", TypeError),
        ({1: 2}, TypeError),
        ("x" * 65_535, ValueError),
    ],
)
def test_invalid_checkpoint_raises_and_changes_nothing(client, state, error):
    lease = leased(client)
    lease.checkpoint("before")
    with pytest.raises(error, match="state must"):
        lease.checkpoint(state)
    assert client.job("j").saved == "before"


def test_checkpoint_of_64_kib_counts_for_the_size_of_a_lease_reply(client):
    queue = client.queue("q")
    queue.put_many({"klass": "k", "jid": f"j{n:02}"} for n in range(20))
    for lease in queue.lease("w", 20):
        lease.checkpoint("x" * (64 * 1024 - 2))
        lease.release()
    leases = queue.lease("w", 20)
    assert len(leases) == math.floor(1024 / 65)
    assert all(len(lease.saved) == 64 * 1024 - 2 for lease in leases)


def test_late_checkpoint_does_not_replace_a_newer_one(client):
    lease = leased(client)
    entry = Renewal("j", lease.token, state=b'"old"')
    for number in (1, 5):
        calls_of(client).call(leasing.resume, "w", number, [("j", lease.token)])
    calls_of(client).call(leasing.renew, "w", [entry._replace(state=b'"new"')], number=6)
    calls_of(client).call(leasing.renew, "w", [entry], number=4)
    assert client.job("j").saved == "new"
    calls_of(client).call(leasing.renew, "w", [entry._replace(state=b'"same exchange"')], number=5)
    assert client.job("j").saved == "same exchange"


def test_a_damaged_checkpoint_hides_nothing_else(client, server, namespace):
    lease = leased(client)
    lease.checkpoint(1)
    server.redis.set(f"{{{namespace}}}:saved:j", b"\xff{")
    assert client.job("j").klass == "k"
    lease.release()
    lease = again(client)
    with pytest.raises(ValueError):
        lease.saved  # noqa: B018  the look raises
    assert lease.complete()


def test_checkpoint_without_its_job_is_refused(client):
    with pytest.raises(LeaseholdError):
        lease = leased(client)
        client.cancel("j")
        lease.checkpoint(1)


def test_the_async_client_stores_and_reads_checkpoints_likewise(server, namespace):
    async def stored_and_read():
        async with AsyncClient(server.url, namespace) as client:
            queue = client.queue("q")
            await queue.put("k", jid="j")
            (lease,) = await queue.lease("w")
            assert await lease.checkpoint({"n": 1}) == lease.expires_unix
            await lease.release()
            (lease,) = await queue.lease("w")
            saved = lease.saved, (await client.job("j")).saved
            await lease.complete()
            with pytest.raises(LeaseLost):
                await lease.checkpoint(2)
            return saved

    assert asyncio.run(stored_and_read()) == ({"n": 1}, {"n": 1})
