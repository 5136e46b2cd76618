"""Converts a namespace between the layouts of its keys: `leasehold upgrade`. Runs in applications and commands.

Must not do I/O. The way up is one script, after the scores of leases were made this layout's page by page. The way back
goes through all jobs in slices. A conversion that was killed in between goes on when it is done again. lua/README.md
describes the layouts.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

from supervisor.engine.commands import maintenance
from supervisor.engine.commands.check import SCAN, ScanPage
from supervisor.engine.commands.command import Argument, Command, now_ms
from supervisor.engine.commands.steps import Steps
from supervisor.engine.commands.workers import LIVES_S
from supervisor.engine.model import scripts
from supervisor.engine.model.errors import LayoutError, LeaseholdError

#: The layout of this version, and that of Leasehold 0.1.
THIS: Final = "2"
FIRST: Final = "1"
SLICE: Final = 250  # jobs in one call: Redis does nothing else for some milliseconds
_SCANNED: Final = 1000  # keys in one step of a SCAN
_SWEPT: Final = 1000  # jobs of one queue that a sweep brings back


class LivingWorker(NamedTuple):
    """A worker that lives, or holds leases that run: the namespace cannot be converted."""

    name: str
    seen_unix: float
    leases: int
    ends_unix: float  # when the last of its leases ends; 0 = none runs

    def words(self, now_unix: float) -> str:
        """Say what keeps it alive, and until when."""
        seen_s, ends_s = now_unix - self.seen_unix, self.ends_unix - now_unix
        if ends_s > LIVES_S - seen_s:
            noun = "a lease that runs" if self.leases == 1 else f"{self.leases} leases, the last of which runs"
            return f"{self.name} holds {noun} for {ends_s:.0f} s more"
        return f"{self.name} was seen {max(seen_s, 0):.0f} s ago and counts as alive for {LIVES_S - seen_s:.0f} s more"


class NamespaceLayout(NamedTuple):
    """The layout of a namespace, and how much a conversion would find in its indexes."""

    # "1", "2", "new", "back" (on the way to 1), "newer", "lost" (2 without its mark), "sharded", "moving" (to shards)
    layout: str
    mark: str
    now_unix: float
    living: list[LivingWorker]
    options: int
    tracked: int
    tags: int
    workers: int
    queues: int
    next_worker: int  # how many the next look skips; -1 = there is no more to look at
    next_queue: int
    # What layout 1 does not know: jobs left to other workers, jobs that wait for a signal without a time limit, and
    # batches that have not ended.
    apart: int
    waits: int
    batches: int


# The commands.


def look(skipped: int = 0, skipped_queues: int = 0, *, now: float | None = None) -> Command[NamespaceLayout]:
    """Read the layout, the workers that live, and the sizes of the indexes: a page of what look_at_all reads."""
    return Command(scripts.LAYOUTS, (now_ms(now), skipped, skipped_queues), _parse_found)


def score_leases(skipped: int, first: int, *, now: float | None = None) -> Command[tuple[int, int]]:
    """Give the leases of up to 100 workers the scores of this layout. Answers where to go on; -1: nowhere."""
    return Command(scripts.SCORES, (now_ms(now), skipped, first), lambda reply: (reply[0], reply[1]))


def up(looked_unix: float, *, now: float | None = None) -> Command[list[LivingWorker]]:
    """Take the namespace from layout 1, or from the way to it, to this one. Answers the workers seen since the look."""
    return _convert("up", looked_unix, now)


def begin_back(looked_unix: float, *, now: float | None = None) -> Command[list[LivingWorker]]:
    """Begin the way back to layout 1: nothing is written from now on. Answers the workers seen since the look."""
    return _convert("back", looked_unix, now)


def end_back(*, now: float | None = None) -> Command[list[LivingWorker]]:
    """End the way back. All jobs must have been expanded since it began."""
    return _convert("end", 0, now)


def expand(jids: Sequence[bytes], *, now: float | None = None) -> Command[int]:
    """Store up to 250 jobs as layout 1 does. Answers how many are there."""
    return Command(scripts.EXPAND, (now_ms(now), *jids), int)


def next_jobs(cursor: int, *, dense_only: bool = False) -> Command[ScanPage]:
    """Read the next jids. A job that is there throughout comes at least once before the cursor is 0."""
    return _JobScan(SCAN, (cursor, dense_only), _parse_page)


class _JobScan(Command[ScanPage]):
    """A SCAN of the jobs' records. Scripts cannot call it."""

    def wire(self, prefix: str, *_known: str) -> tuple[Argument, ...]:
        cursor, dense_only = self.args
        kind = ("TYPE", "string") if dense_only else ()
        return ("SCAN", cursor, "MATCH", f"{prefix}job:*", "COUNT", _SCANNED, *kind)


def _parse_page(reply: list[Any]) -> ScanPage:
    return ScanPage(int(reply[0]), [key.partition(b"}:job:")[2] for key in reply[1]])


def _convert(verb: str, looked_unix: float, now: float | None) -> Command[list[LivingWorker]]:
    return Command(scripts.CONVERT, (now_ms(now), verb, now_ms(looked_unix)), _parse_living)


def _parse_living(reply: list[Any]) -> list[LivingWorker]:
    return [
        LivingWorker(name.decode(), float(seen_ms) / 1000, leases, float(ends_ms) / 1000)
        for name, seen_ms, leases, ends_ms in reply
    ]


def _parse_found(reply: list[Any]) -> NamespaceLayout:
    layout, mark, now, living, *numbers = reply
    mark = mark.decode(errors="replace")
    return NamespaceLayout(layout.decode(), mark, now / 1000, _parse_living(living), *numbers)


# The conversions.


def refuse_while_alive(living: Sequence[LivingWorker], now_unix: float) -> None:
    """Raise LayoutError naming the workers that live, if there are any."""
    if not living:
        return
    words = "; ".join(worker.words(now_unix) for worker in living[:3])
    more = f"; and {len(living) - 3} more" if len(living) > 3 else ""
    raise LayoutError(f"nothing was converted, because workers live: {words}{more}")


def look_at_all(clock: Callable[[], float | None]) -> Steps[NamespaceLayout]:
    """Read the layout, and look at all workers and queues. `now_unix` is when that began."""
    found: NamespaceLayout = yield look(now=clock())
    living, page, apart, waits = list(found.living), found, found.apart, found.waits
    while page.next_worker >= 0 or page.next_queue >= 0:
        page = yield look(page.next_worker, page.next_queue, now=clock())
        living += page.living
        apart += page.apart
        waits += page.waits
    return found._replace(living=living, apart=apart, waits=waits)


def refuse_unknown_to_first(found: NamespaceLayout) -> None:
    """Raise LeaseholdError if there are jobs or batches that would never end in layout 1."""
    if found.layout == THIS and found.waits:
        raise LeaseholdError(
            f"{found.waits} jobs wait for a signal, which layout 1 does not know: send it (`leasehold signal`), or"
            " cancel them, and do this again"
        )
    if found.layout == THIS and found.batches:
        raise LeaseholdError(
            f"{found.batches} batches have not ended, and layout 1 knows none: let them end, or cancel them"
            " (`leasehold batch`), and do this again"
        )


def to_this(clock: Callable[[], float | None]) -> Steps[None]:
    """Convert the namespace to this layout. Raises LayoutError while workers live."""
    found = yield from look_at_all(clock)
    refuse_while_alive(found.living, found.now_unix)
    if found.layout in (FIRST, "back"):
        skipped, first = 0, 0
        while skipped >= 0:
            skipped, first = yield score_leases(skipped, first, now=clock())
    refuse_while_alive((yield up(found.now_unix, now=clock())), found.now_unix)


def to_first(clock: Callable[[], float | None], on_expanded: Callable[[int], None]) -> Steps[int]:
    """Convert the namespace to layout 1, and return the number of its jobs. Raises LayoutError while workers live.

    `on_expanded` is called with the number of jobs that were expanded so far. Called again after it was broken off, it
    goes on.
    """
    found = yield from look_at_all(clock)
    if found.layout in (FIRST, "new"):
        return 0
    refuse_while_alive(found.living, found.now_unix)
    refuse_unknown_to_first(found)
    if found.layout == THIS:
        yield from _settle_down(clock)
    expanded = yield from _expand_all(clock, on_expanded)
    yield end_back(now=clock())
    return expanded


def _settle_down(clock: Callable[[], float | None]) -> Generator[Command[Any], Any, None]:
    """Begin the way back, after sweeps until nothing is left that layout 1 does not know.

    These are jobs apart, and dependents that are still to be told of an end. Raises LayoutError while workers live.
    """
    left = -1
    while left:
        yield from _sweep_all(clock)
        found = yield from look_at_all(clock)
        refuse_while_alive(found.living, found.now_unix)
        refuse_unknown_to_first(found)
        if 0 <= left <= found.apart:
            raise LeaseholdError(
                f"{found.apart} jobs stay apart, left to other workers, which layout 1 does not know: see"
                " `leasehold check`, and do this again"
            )
        left = found.apart
    living: list[LivingWorker] = yield begin_back(found.now_unix, now=clock())
    refuse_while_alive(living, found.now_unix)


def _sweep_all(clock: Callable[[], float | None]) -> Generator[Command[Any], Any, None]:
    offset, has_more = 0, True
    while has_more:
        swept: maintenance.Swept = yield maintenance.sweep(_SWEPT, offset=offset, now=clock())
        offset = swept.next_offset
        has_more = bool(offset) or swept.taken > 0


def _expand_all(
    clock: Callable[[], float | None], on_expanded: Callable[[int], None]
) -> Generator[Command[Any], Any, int]:
    cursor, expanded, left = 0, 0, True
    while left:
        page: ScanPage = yield next_jobs(cursor)
        cursor, left = page.cursor, page.cursor != 0
        for first in range(0, len(page.found), SLICE):
            expanded += yield expand(page.found[first : first + SLICE], now=clock())
            on_expanded(expanded)
    return expanded


def count_dense() -> Steps[int]:
    """Return how many jobs the way back would expand, counted by a SCAN."""
    cursor, dense, left = 0, 0, True
    while left:
        page: ScanPage = yield next_jobs(cursor, dense_only=True)
        cursor, left = page.cursor, page.cursor != 0
        dense += len(page.found)
    return dense
