"""Measures the server's processor time for one call of a script with as many jobs as a call may have."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from supervisor.engine.client.sync_client import Client
from supervisor.engine.client.sync_handles import Lease
from supervisor.engine.model.outcomes import Completed, Died, Failed, Released, Retried
from tests.bench.bench import FILLER, Bench
from tests.bench.benchmark import Benchmark, Compared, Step
from tests.bench.calls import calls_of, job_changes, leasing
from tests.bench.figures import Figures
from tests.bench.server import NAMESPACE, PREFIX, Server

ANY, MS = "any of them", "ms"
BATCH = 1000
QUEUE = "default"
DATA = {"to": "ada@example.org"}
LONG_S = 10**6

T = TypeVar("T")
Act = Callable[[], object]
#: Puts into the server what a call needs, and returns the call.
Prepare = Callable[[Client, "Hands"], Act]
#: The options of the nth job of a batch, by the kind of job.
KINDS: Mapping[str, Callable[[int], Mapping[str, Any]]] = {
    "plain": lambda _n: {},
    "two tags": lambda n: {"tags": ["bench", f"tag-{n % 10}"]},
    "a lane each": lambda n: {"lane": f"client-{n}"},
    "a limit": lambda _n: {"limit": "bench"},
    "all three": lambda n: {"tags": ["bench", f"tag-{n % 10}"], "lane": f"client-{n}", "limit": "bench"},
    "all options": lambda n: {
        "tags": ["bench", f"tag-{n % 10}"],
        "lane": f"client-{n}",
        "limit": "bench",
        "unique": f"key-{n}",
        "expires": 3600,
        "priority": n % 5,
    },
    "10 KB": lambda _n: {"data": "x" * 10_000},
}


class Hands:
    """Prepares calls that are measured. The clock is set by hand."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.now = 1.0e9

    def many(self, kind: str = "plain", **options: Any) -> list[dict[str, Any]]:
        """A batch for put_many."""
        return [{"klass": "bench.noop", "data": DATA, **KINDS[kind](n), **options} for n in range(BATCH)]

    def put(self, client: Client, kind: str = "plain", **options: Any) -> list[str]:
        return client.queue(QUEUE).put_many(self.many(kind, **options))

    def leased(self, client: Client, kind: str = "plain", **options: Any) -> list[Lease]:
        self.put(client, kind, **options)
        return client.queue(QUEUE).lease(FILLER, BATCH, ttl=60)

    def failed(self, client: Client) -> None:
        client.settle([Failed(lease, "bench", "it does") for lease in self.leased(client)])


class Timed(Client):
    """A client that notes the server's processor time for each of its calls, with the payloads that a lease fetches.

    The server's slow log has times on the clock, in which the server may have waited for a processor.
    """

    def __init__(self, server: Server, hands: Hands) -> None:
        super().__init__(server.url, NAMESPACE, clock=lambda: hands.now)
        self.took_ms: list[float] = []
        self._measured = server
        calls = calls_of(self)
        sender = calls.shards.first if hasattr(calls, "shards") else calls  # that of before sends by itself
        sender.run = self._timed(sender.run)  # type: ignore[method-assign]
        if hasattr(calls, "put_batches"):  # that of before puts its batches by `run`
            calls.put_batches = self._timed(calls.put_batches)  # type: ignore[method-assign]

    def _timed(self, call: Callable[..., T]) -> Callable[..., T]:
        def timed(*given: Any) -> T:
            with self._noted():
                return call(*given)

        return timed

    @contextmanager
    def _noted(self) -> Iterator[None]:
        before_s = self._measured.spent_s()
        yield
        self.took_ms.append((self._measured.spent_s() - before_s) * 1000)


def put(kind: str, **options: Any) -> Prepare:
    return lambda client, hands: lambda: hands.put(client, kind, **options)


def lease(kind: str) -> Prepare:
    def prepare(client: Client, hands: Hands) -> Act:
        hands.put(client, kind)
        return lambda: client.queue(QUEUE).lease(FILLER, BATCH)

    return prepare


def lease_entries(client: Client, hands: Hands) -> Act:
    """Lease entries that other programs have pushed."""
    entry = json.dumps({"klass": "bench.noop", "data": DATA})
    hands.server.redis.lpush(f"{PREFIX}in:{QUEUE}", *[entry] * BATCH)
    return lambda: client.queue(QUEUE).lease(FILLER, BATCH)


def lease_due(client: Client, hands: Hands) -> Act:
    hands.put(client, delay=60)
    hands.now += 120
    return lambda: client.queue(QUEUE).lease(FILLER, BATCH)


def lease_expired(client: Client, hands: Hands) -> Act:
    hands.leased(client)
    hands.now += LONG_S
    return lambda: client.queue(QUEUE).lease("peer-1-abcdef", BATCH)


def settle(kind: str, way: Callable[[Lease], Any]) -> Prepare:
    def prepare(client: Client, hands: Hands) -> Act:
        leases = hands.leased(client, kind)
        return lambda: client.settle([way(each) for each in leases])

    return prepare


def settle_dropping(client: Client, hands: Hands) -> Act:
    """Prepare completions that each drop an older job, as the defaults do after 50,000 jobs."""
    client.config.set("jobs-history-count", BATCH)
    client.settle([Completed(each) for each in hands.leased(client)])
    leases = hands.leased(client)
    return lambda: client.settle([Completed(each) for each in leases])


def settle_parent(client: Client, hands: Hands) -> Act:
    """Prepare the completion of a job that a batch of others waits for."""
    parent = client.queue(QUEUE).put("bench.noop", DATA)
    hands.put(client, depends=[parent])
    (lease,) = client.queue(QUEUE).lease(FILLER, 1)
    return lease.complete


def renew(client: Client, hands: Hands) -> Act:
    entries = [leasing.Renewal(each.jid, each.token, started=True) for each in hands.leased(client)]
    return lambda: calls_of(client).call(leasing.renew, FILLER, entries)


def resume(client: Client, hands: Hands) -> Act:
    known = [(each.jid, each.token) for each in hands.leased(client)[::2]]
    return lambda: calls_of(client).call(leasing.resume, FILLER, 1, known)


def of_jids(call: Callable[[Client, list[str]], object], kind: str = "plain", running: bool = False) -> Prepare:
    def prepare(client: Client, hands: Hands) -> Act:
        jids = [each.jid for each in hands.leased(client, kind)] if running else hands.put(client, kind)
        return lambda: call(client, jids)

    return prepare


def after(first: Callable[[Client, Hands], object], call: Callable[[Client], object]) -> Prepare:
    def prepare(client: Client, hands: Hands) -> Act:
        first(client, hands)
        return lambda: call(client)

    return prepare


def sweep(client: Client, hands: Hands) -> Act:
    hands.leased(client)
    hands.now += LONG_S
    return lambda: client.sweep(BATCH)


_FOLLOWER = {"klass": "bench.noop", "data": DATA, "queue": "second"}
CALLS: Mapping[str, Prepare] = {
    **{f"put, {kind}": put(kind) for kind in KINDS},
    "put, delayed": put("plain", delay=60),
    **{f"lease, {kind}": lease(kind) for kind in KINDS},
    "lease, entries of other programs": lease_entries,
    "lease, due": lease_due,
    "lease, expired": lease_expired,
    "renew": renew,
    "resume, half of them known": resume,
    **{f"complete, {kind}": settle(kind, Completed) for kind in KINDS},
    "complete, dropping older ones": settle_dropping,
    "complete, with a result": settle("plain", lambda lease: Completed(lease, {"sent": True})),
    "complete, the next queue": settle("plain", lambda lease: Completed(lease, next="second")),
    "complete, a follower each": settle("plain", lambda lease: Completed(lease, then=[_FOLLOWER])),
    "complete, the parent of a batch": settle_parent,
    "retry": settle("plain", lambda lease: Retried(lease, 60)),
    "fail": settle("plain", lambda lease: Failed(lease, "bench", "it does")),
    "die": settle("plain", lambda lease: Died(lease, "SIGSEGV")),
    "release": settle("plain", Released),
    "cancel, waiting": of_jids(lambda client, jids: client.cancel(*jids)),
    "cancel, two tags": of_jids(lambda client, jids: client.cancel(*jids), "two tags"),
    "cancel, running": of_jids(lambda client, jids: client.cancel(*jids), running=True),
    "release by an operator": of_jids(
        lambda client, jids: calls_of(client).call(job_changes.release, jids), running=True
    ),
    "unfail": after(lambda client, hands: hands.failed(client), lambda client: client.unfail("bench", QUEUE, BATCH)),
    "sweep": sweep,
    "deregister": after(lambda client, hands: hands.leased(client), lambda client: client.deregister(FILLER)),
    "delete a queue": after(lambda client, hands: hands.put(client), lambda client: client.queue(QUEUE).delete()),
    "read": of_jids(lambda client, jids: client.jobs(*jids), "two tags"),
    "list what waits": after(
        lambda client, hands: hands.put(client), lambda client: client.queue(QUEUE).jobs("waiting", 0, BATCH)
    ),
    "list what failed": after(
        lambda client, hands: hands.failed(client), lambda client: client.failed("bench", 0, BATCH)
    ),
    "check": after(lambda client, hands: hands.leased(client, "two tags"), lambda client: client.check()),
}


def stalls(bench: Bench, times: int) -> Figures:
    """The least of some calls, each of which finds the server as the first did: what others take the machine adds."""
    server = bench.server
    found: dict[str, dict[str, float]] = {}
    for name, prepare in CALLS.items():
        took_ms = []
        for _ in range(times):
            server.clear()
            hands = Hands(server)
            with Timed(server, hands) as client:
                act = prepare(client, hands)
                client.took_ms.clear()
                act()
                took_ms.append(max(client.took_ms))
        found[name] = {MS: min(took_ms)}
    return {ANY: {MS: max(row[MS] for row in found.values())}, **found}


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    yield [Step((ANY, *CALLS), lambda: stalls(bench, bench.amount(5, 1)), runs_python=False)]


STALLS = Benchmark(
    "stalls",
    f"For how long one call of a script stops the server. Each with {BATCH:,} jobs, as many as a call may have: the"
    " server's processor time, the least of five calls.",
    (MS,),
    steps,
    (Compared(f"any script with {BATCH:,} jobs", ANY, MS, most=50),),
)
