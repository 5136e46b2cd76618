"""Measures the server's own time for the put, lease and settle of a job, without Python and the network.

INFO commandstats tells the time of a call. Compared rows take turns call by call. A figure is a round's lower quartile,
because a call during which the machine did something else tells nothing of the engine.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from supervisor.engine.model import scripts
from supervisor.engine.model.outcomes import Completed
from supervisor.engine.model.scripts import Script
from tests.bench.bench import FILLER, KEPT, Bench, fill
from tests.bench.benchmark import BEFORE, Benchmark, Compared, Step
from tests.bench.calls import leasing, new_job, putting, settling
from tests.bench.figures import Figures, quantile
from tests.bench.server import PREFIX, Server

VERBS = ("put", "lease", "settle")
COLUMNS = tuple(f"{verb} µs" for verb in VERBS)
ALL = "put + lease + settle µs"
BATCHES = (1, 16, 64, 256)
FEW, MANY = "1,000 waiting", "1,000,000 waiting"
#: Options that set how many ended jobs are kept, by the name in the rows.
KEEPING: Mapping[str, dict[str, int]] = {"jobs-history 0": {"jobs_history": 0}, "defaults": {}}

#: Scripts with a part left out: what is to be found once, what stands there instead, and in which scripts.
WITHOUT: Mapping[str, Sequence[tuple[str, str, Sequence[str]]]] = {
    "events": [
        (r"local function has_listeners\(\)\n.*?\nend\n", "local function has_listeners() return false end\n", VERBS),
        (r'\(?redis\.pcall\("PUBSUB", "NUMSUB", P \.\. "events"\)\[2\] or 0\)?', "0", VERBS),
        (r"local function publish_job_event\(.*?\nend\n", "local function publish_job_event() end\n", VERBS),
    ],
    "statistics": [
        (r"local function add_time\(s, ms\)\n.*?\nend\n", "local function add_time() end\n", VERBS),
        (r"local function spread\(queue, kind, ms\)\n.*?\nend\n", "local function spread() end\n", VERBS),
        (r"local function tally\(queue, what, by, when\)\n.*?\nend\n", "local function tally() end\n", VERBS),
        (r"stats_days > 0", "false", VERBS[1:]),
    ],
}


def without(part: str, script: Script) -> Script:
    """A script that does all but one thing. Raises ValueError if the script is no longer written as this expects."""
    text = script.text
    for pattern, stand_in, verbs in WITHOUT[part]:
        text, found = re.subn(pattern, lambda _, new=stand_in: new, text, flags=re.DOTALL)
        if found != (script.name in verbs):
            raise ValueError(f"{script.name} has {found} of {pattern}")
    return Script(script.name, text)


def patched(part: str) -> dict[str, Script]:
    """Return the scripts with a part left out, by their names."""
    return {script.name: without(part, script) for script in (scripts.PUT, scripts.LEASE, scripts.SETTLE)}


class Line:
    """A server's queue, in which as many jobs wait after a cycle as before."""

    def __init__(self, server: Server) -> None:
        self._server = server
        for script in scripts.ALL:
            server.redis.script_load(script.text)

    def cycle(self, batch: int, instead: Mapping[str, Script]) -> dict[str, float]:
        """Puts, leases and settles one batch; µs per job of each call."""
        took: dict[str, float] = {}

        def timed(verb: str, command: Any) -> Any:
            wanted = replace(command, script=instead.get(command.script.name, command.script))
            before = self._spent_us()
            answer = command.parse(self._server.redis.execute_command(*wanted.wire(PREFIX)))
            took[f"{verb} µs"] = (self._spent_us() - before) / batch
            return answer

        timed("put", putting.put([new_job("put", "default", "bench.noop", {"n": n}, {}) for n in range(batch)]))
        grant = timed("lease", leasing.lease(FILLER, ["default"], batch))
        timed("settle", settling.settle(FILLER, [Completed(lease) for lease in grant.leases]))
        return took

    def followed_cycle(self, batch: int) -> dict[str, float]:
        """Measure likewise while a client follows the events."""
        with self._server.redis.pubsub() as events:
            events.subscribe(f"{PREFIX}events")
            events.get_message(timeout=5)  # the server says that it has begun
            return self.cycle(batch, {})

    def load(self, instead: Mapping[str, Script]) -> None:
        for script in instead.values():
            self._server.redis.script_load(script.text)

    def configure(self, options: dict[str, int]) -> None:
        self._server.configure(**options)

    def _spent_us(self) -> int:
        return int(self._server.redis.info("commandstats").get("cmdstat_evalsha", {"usec": 0})["usec"])


class Cycles:
    """The times of many cycles, by row."""

    def __init__(self) -> None:
        self._took: dict[str, list[dict[str, float]]] = {}

    def add(self, row: str, took: dict[str, float]) -> None:
        self._took.setdefault(row, []).append({**took, ALL: sum(took.values())})

    def figures(self) -> Figures:
        """The lower quartile of each column."""
        return {
            row: {column: quantile((one[column] for one in cycles), 0.25) for column in cycles[0]}
            for row, cycles in self._took.items()
        }


def row(keeping: str, waiting: str, batch: int) -> str:
    return f"{keeping}, {waiting}, batch {batch}"


def alone(keeping: str) -> str:
    return f"{keeping}, call after call, batch 64"


def left_out(keeping: str, part: str) -> str:
    return f"{alone(keeping)}, without {part}"


def followed(keeping: str) -> str:
    return f"{alone(keeping)}, while one follows events"


def by_backlog(lines: Mapping[str, Line], calls: int) -> Figures:
    """Measure all compared rows in turn, call by call."""
    cycles = Cycles()
    for _ in range(calls):
        for keeping, options in KEEPING.items():
            for waiting, line in lines.items():
                line.configure(options)
                for batch in BATCHES:
                    cycles.add(row(keeping, waiting, batch), line.cycle(batch, {}))
                line.configure({})
    return cycles.figures()


def call_after_call(line: Line, calls: int, parts: Mapping[str, Mapping[str, Script]]) -> Figures:
    """Batch after batch, as a busy worker does it, with and without a part in turn, each as often first as last."""
    cycles = Cycles()
    for keeping, options in KEEPING.items():
        line.configure(options)
        turns = [
            (alone(keeping), functools.partial(line.cycle, 64, {})),
            (followed(keeping), functools.partial(line.followed_cycle, 64)),
            *((left_out(keeping, part), functools.partial(line.cycle, 64, parts[part])) for part in parts),
        ]
        for call in range(calls):
            first = call % len(turns)
            for name, cycle in turns[first:] + turns[:first]:
                cycles.add(name, cycle())
        line.configure({})
    return cycles.figures()


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    calls = bench.amount(32, 3)
    fill(bench.server, 1000, bench.kept)
    line = Line(bench.server)

    @functools.cache
    def lines() -> Mapping[str, Line]:
        return {FEW: line, MANY: Line(bench.large)}

    parts, missing = {}, []
    for part in WITHOUT:
        try:
            parts[part] = patched(part)
            line.load(parts[part])
        except ValueError as why:
            missing.append(Step(tuple(left_out(each, part) for each in KEEPING), dict, str(why)))
    rows = tuple(row(each, waiting, batch) for each in KEEPING for waiting in (FEW, MANY) for batch in BATCHES)
    names = tuple(
        name for each in KEEPING for name in (alone(each), followed(each), *(left_out(each, part) for part in parts))
    )
    yield [
        Step(rows, lambda: by_backlog(lines(), calls), runs_python=False),
        Step(names, lambda: call_after_call(line, calls, parts), runs_python=False),
        *missing,
    ]


ENGINE = Benchmark(
    "engine",
    "What the server spends on put, lease and settle, by batch and backlog. In µs of a job, by its INFO commandstats; a"
    f" round's lower quartile of the calls, which take turns. {KEPT:,} completed jobs are kept besides.",
    (*COLUMNS, ALL),
    steps,
    (
        *(
            Compared(f"{verb}, {each}, batch {batch}: {MANY} / {FEW}", row(each, MANY, batch), f"{verb} µs",
                     (row(each, FEW, batch),))
            for each in KEEPING for verb in VERBS for batch in (1, 64)
        ),
        *(
            Compared(f"what {part} cost, {each}: with / without", alone(each), ALL, (left_out(each, part),))
            for each in KEEPING for part in WITHOUT
        ),
        *(
            Compared(f"what one who follows events costs, {each}: with / without", followed(each), ALL, (alone(each),))
            for each in KEEPING
        ),
        Compared("put + lease + settle at batch 64 / before", alone("defaults"), ALL, (alone("defaults") + BEFORE,),
                 most=0.5),
        Compared("put + lease + settle at batch 64 / before, while one follows events", followed("defaults"), ALL,
                 (followed("defaults") + BEFORE,)),
        *(
            Compared(f"put + lease + settle at batch {batch} / before, {each}", row(each, FEW, batch), ALL,
                     (row(each, FEW, batch) + BEFORE,))
            for each in KEEPING for batch in (1, 64)
        ),
    ),
)  # fmt: skip
