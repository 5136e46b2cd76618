"""When a worker inside of an application renews its leases, and what follows from lost ones. Without a server."""

import asyncio

import pytest

from supervisor import LeaseLost, clock
from supervisor.engine.commands.leasing import GONE, LOST
from tests.in_process.played import TTL_S, PlayedParts
from tests.parts import lease_of


@pytest.fixture
def played():
    played = PlayedParts()
    for token in (1, 2, 3):
        played.jobs.begin(lease_of(token))
    played.renewals.plan(100.0)
    return played


def renewed(parts):
    """Return the jids that the parts renew."""
    return [argument for part in parts for argument in part.command.args if argument in ("j1", "j2", "j3")]


def test_all_leases_are_renewed_every_third_of_their_ttl(played):
    due_at = played.renewals.due_at()
    assert due_at == 100.0 + TTL_S / 3
    assert played.renewals.parts(due_at - 0.1) == []
    assert renewed(played.renewals.parts(due_at)) == ["j1", "j2", "j3"]
    assert played.renewals.due_at() == due_at + TTL_S / 3


@pytest.mark.parametrize(("hint", "jids"), [(2, ["j2"]), (99, []), (None, ["j1", "j2", "j3"])])
def test_hint_of_loss_renews_at_once(played, hint, jids):
    played.renewals.on_hint_of_loss(hint)
    assert played.renewals.due_at() < 0
    assert renewed(played.renewals.parts(101.0)) == jids
    assert played.renewals.due_at() >= 100.0 + TTL_S / 3


def test_shorter_heartbeat_brings_the_renewal_forward(played):
    played.renewals.plan(clock.monotonic() + 100.0)
    played.renewals.shorten_ttl(3.0)
    assert played.renewals.due_at() <= clock.monotonic() + 1.0
    played.renewals.shorten_ttl(6.0)
    assert played.times.ttl_s == 3.0


def test_lost_leases_stop_their_jobs(played):
    played.renewals.on_hint_of_loss(None)
    [part] = played.renewals.parts(101.0)
    part.then([LOST, 200.0, GONE])
    assert played.jobs.lost == {1: "lease-lost", 3: "cancelled"}


def test_refused_checkpoint_raises_and_has_its_lease_renewed(played):
    async def main():
        storing = [asyncio.create_task(played.book.store(token, b"1", "")) for token in (1, 2)]
        await asyncio.sleep(0)
        assert played.renewals.due_at() < 0
        [part] = played.renewals.parts(101.0)
        part.then([200.0, LOST])
        await storing[0]
        with pytest.raises(LeaseLost):
            await storing[1]
        assert renewed(played.renewals.parts(101.0)) == ["j2"]

    asyncio.run(main())


def test_checkpoint_of_a_lost_exchange_is_sent_again(played):
    async def main():
        storing = asyncio.create_task(played.book.store(1, b"1", ""))
        await asyncio.sleep(0)
        [part] = played.renewals.parts(101.0)
        part.lost()
        [again] = played.renewals.parts(101.0)
        assert again.command.args[-2:] == part.command.args[-2:]
        again.then([200.0])
        await storing

    asyncio.run(main())
