"""Compares one producer's rate of puts with other queues. No worker runs. Each queue's own client puts over TCP."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.bench import peers
from tests.bench.bench import Bench
from tests.bench.benchmark import Benchmark, Compared, Step, step
from tests.bench.figures import Figures
from tests.bench.peers import Installed, Peer
from tests.bench.pool import SOURCE
from tests.bench.rivals import peer_at_hand

RATE = "puts/s"
SPENT = ("producer µs", "server µs", "sum µs")
ONE, MANY = "one by one", "many"
OURS = Peer("leasehold", (), 0, producer=(sys.executable, "produce.py", "leasehold_app"))


def row(peer: str, how: str) -> str:
    return f"{peer}, {how}"


def rate(bench: Bench, installed: Installed, how: str, count: int) -> dict[str, float]:
    """Measure a producer at an empty server. Only the server time of the producer's start counts."""
    bench.server.clear()
    before_s = bench.server.spent_s()
    took_s, producer_s = installed.rate("many" if how == MANY else "one", count)
    server_s = bench.server.spent_s() - before_s
    spent_us = (each / count * 1e6 for each in (producer_s, server_s, producer_s + server_s))
    return {RATE: count / took_s, **dict(zip(SPENT, spent_us, strict=True))}


def ours(bench: Bench, how: str, count: int) -> dict[str, float]:
    log = bench.directory / "leasehold.log"
    installed = Installed(OURS, None, bench.server.tcp_url, bench.marks.path, log, (str(SOURCE),))
    return rate(bench, installed, how, count)


def theirs(bench: Bench, peer: Peer, how: str, count: int) -> Step:
    def measure() -> Figures:
        with peer_at_hand(bench, peer) as installed:
            return {row(peer.name, how): rate(bench, installed, how, count)}

    has_no_call = how == MANY and not peer.puts_many
    missing = peers.missing(peer, bench.peers) or ("it has no call for that" if has_no_call else None)
    return Step((row(peer.name, how),), measure, missing, is_ours=False)


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    found = []
    for how, count in ((ONE, bench.amount(5_000, 200)), (MANY, bench.amount(50_000, 2_000))):
        found.append(step(row("leasehold", how), lambda how=how, count=count: ours(bench, how, count)))
        found += [theirs(bench, peer, how, count) for peer in peers.ALL]
    yield found


PEERS_PUT = Benchmark(
    "peers-put",
    "Puts per second by one producer, beside other queues, into an empty queue that nobody serves. One by one, and many"
    " by the queue's own call for that, 1,000 at a time; where there is none but the client is async, 100 in flight.",
    (RATE, *SPENT),
    steps,
    (
        Compared("single put / Huey's enqueue", row("leasehold", ONE), RATE, (row("huey", ONE),), least=1),
        Compared("put_many / Sidekiq's push_bulk", row("leasehold", MANY), RATE, (row("sidekiq", MANY),), least=1),
        *(
            Compared(f"processor time of a put, {how} / least of all peers", row("leasehold", how), "sum µs",
                     tuple(row(peer.name, how) for peer in peers.ALL), best="least")
            for how in (ONE, MANY)
        ),
    ),
)  # fmt: skip
