"""Some services refuse commands with 4,000 arguments: what clients and workers send for many jobs stays below that."""

from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.engine.client.answers import checked_many, in_steps
from supervisor.engine.commands import putting, settling
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.outcomes import Completed, Failed, Retried
from supervisor.in_process.book import Book, PendingStore
from supervisor.in_process.renewals import LeaseRenewals
from supervisor.master.model.ledger import Ledger
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.redis.renewing import Renewing
from supervisor.master.redis.settling import Settling
from tests.parts import held_of, lease_of

#: Of a whole command, by ElastiCache Serverless.
MOST_OF_A_SERVICE = 3999
OPTIONS: list[dict[str, Any]] = [
    {},
    {"priority": 1, "retries": 2, "timeout": 3},
    {"delay": 1, "lane": "l", "unique": True, "limit": "m", "tags": ["a", "b"], "expires": "1h", "persistent": True},
    {"tags": [str(n) for n in range(20)]},
]
ENDS = [
    lambda lease: Completed(lease),
    lambda lease: Completed(lease, result=1),
    lambda lease: Failed(lease, "g", "m", data=1),
    lambda lease: Retried(lease, 1.0, "g", "m"),
    lambda lease: Completed(lease, then=[{"queue": "q", "klass": "k"}] * 3),
    lambda lease: Completed(lease, next="q", then=[{"queue": "q", "klass": "k", "delay": 1, "lane": "l"}]),
]


def lengths(commands):
    return [len(command.wire("{p}:")) for command in commands]


def leases():
    """Return leases that were granted one by one: no two share what a completion in short says once."""
    made = [lease_of(n) for n in range(1, MOST + 1)]
    for lease in made:
        lease.granted_ms = lease.token
    return made


@pytest.mark.parametrize("options", OPTIONS)
def test_batches_of_puts_are_short(options):
    batches = checked_many("q", [{"klass": "k", **options} for _ in range(MOST)])
    assert max(lengths(map(putting.put, batches))) <= MOST_OF_A_SERVICE
    assert sum(map(len, batches)) == MOST and (len(batches) == 1) is (options in OPTIONS[:2])


@pytest.mark.parametrize("end", ENDS)
def test_ends_of_leases_that_a_client_settles_are_short(end):
    parts = in_steps([end(lease) for lease in leases()])
    assert max(lengths(settling.settle("w", part) for part in parts)) <= MOST_OF_A_SERVICE


@pytest.mark.parametrize("end", ENDS)
def test_ends_of_leases_of_a_supervisor_are_short(end):
    ledgers = Ledgers()
    [ledger] = ledgers.by_shard
    for lease in leases():
        held = held_of(lease.token)
        outcome = end(lease)
        if isinstance(outcome, Completed):
            held.weight = outcome.with_checked_puts().weight
        ledger.add(held)
        ledger.end(held, outcome)
    identity = SimpleNamespace(name="w", next_number=1)
    settles = Settling(identity, ledgers, *[None] * 5)
    ended = 0
    while parts := settles.parts(0.0):
        assert max(lengths(part.command for part in parts)) <= MOST_OF_A_SERVICE
        ended += len(ledger.settled())
    assert ended == MOST


def test_renewals_of_a_supervisor_are_short():
    ledger = Ledger()
    for lease in leases():
        ledger.add(held_of(lease.token))
    times = SimpleNamespace(own_ttl_s=None, ttl_s=30.0, read_if_stale=lambda _now_at: None)
    renewing = Renewing(SimpleNamespace(name="w", next_number=1), ledger, times, *[None] * 4)
    renewing.on_hint_of_loss()
    parts = renewing.parts(1.0)
    assert max(lengths(part.command for part in parts)) <= MOST_OF_A_SERVICE and len(parts) > 1


def test_news_of_a_worker_in_an_application_is_short():
    book = Book(lambda: None)
    for lease in leases():
        book.add(lease)
        book.end(Completed(lease, result=1))
        book._stores.append(PendingStore(lease, b"1", "s", None))
    identity = SimpleNamespace(name="w", next_number=1)
    renewals = LeaseRenewals(identity, SimpleNamespace(own_ttl_s=None, ttl_s=30.0), book, None)
    renewals.on_hint_of_loss(None)
    commands = [part.command for part in renewals.parts(1.0)]
    while outcomes := book.take_outcomes():
        commands.append(settling.settle("w", outcomes))
    assert max(lengths(commands)) <= MOST_OF_A_SERVICE and len(commands) > 3
