"""Gives a run of benchmarks its servers, its directory and its supervisors, and says how much to measure."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.outcomes import Completed
from tests.bench import pool, server
from tests.bench.marks import Marks
from tests.bench.pool import Pool
from tests.bench.server import Server

T = TypeVar("T")
#: Completed jobs that are kept, by default.
KEPT = 50_000
FILLER = "bench-12345-abcdef"


class Bench:
    """One run. Servers live until its end: the one that all use, and one with a backlog, made when first asked for."""

    def __init__(
        self, server: Server, directory: Path, stack: ExitStack, quick: bool, peers: Path | None,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.server = server
        self.directory = directory
        self.quick = quick
        self.peers = peers
        self.say = say
        self.marks = Marks()
        stack.callback(self.marks.close)
        self._stack = stack
        self._large: Server | None = None

    def amount(self, full: T, quick: T) -> T:
        """Return the number or time that this run measures, by its length."""
        return quick if self.quick else full

    @property
    def backlog(self) -> int:
        """Return how many jobs wait at the large server."""
        return self.amount(1_000_000, 20_000)

    @property
    def kept(self) -> int:
        """Return how many completed jobs lie at the large server. From then on each completion drops one."""
        return self.amount(KEPT, 1000)

    def hold_back(self) -> None:
        """Empty the server and pause the queue, so that no job starts before `let_go`."""
        self.server.clear()
        self.pause()

    def pause(self) -> None:
        with self.server.client() as client:
            client.queue("default").pause()

    def let_go(self) -> None:
        with self.server.client() as client:
            client.queue("default").unpause()

    @property
    def large(self) -> Server:
        """Return the server with a long queue and with as many completed jobs as it keeps.

        Each measurement puts as many jobs as it takes, so that the next one finds the same queue.
        """
        if self._large is None:
            self.say(f"filling a server with {self.backlog:,} jobs")
            self._large = self._stack.enter_context(server.started(self.directory / "large"))
            fill(self._large, self.backlog, self.kept)
        return self._large

    @contextmanager
    def pool(self, *flags: str, on: Server | None = None, **options: object) -> Iterator[Pool]:
        """A supervisor on one of the servers."""
        with pool.running(on or self.server, self.directory, *flags, **options) as started:  # type: ignore[arg-type]
            yield started


@contextmanager
def prepared(directory: Path, quick: bool, peers: Path | None, say: Callable[[str], None]) -> Iterator[Bench]:
    """A run with a server of its own. Nothing of it is left afterwards."""
    with ExitStack() as stack:
        started = stack.enter_context(server.started(directory / "server"))
        yield Bench(started, directory, stack, quick, peers, say)


def fill(into: Server, waiting: int, completed: int) -> None:
    """Put and complete jobs, then put those that wait."""
    with into.client() as client:
        into.put(completed)
        complete(client, completed)
        into.put(waiting)


def complete(client: Client, jobs: int) -> None:
    """Lease and complete jobs of the default queue."""
    queue = client.queue("default")
    while jobs > 0:
        leases = queue.lease(FILLER, min(jobs, 1000))
        client.settle([Completed(lease) for lease in leases])
        jobs -= len(leases)
