"""`leasehold bench`: measures Leasehold beside the machine's limits and beside peers. Runs in the command's process.

Owns the flags and the place of the report. The benchmarks are in tests/bench of the source tree, beside the package or
in the working directory; the wheel has none. Must not measure anything itself.
"""

import argparse
import json
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import supervisor
from supervisor.cli.lib.options import within
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError, near
from supervisor.cli.lib.terminal import note, say, table
from supervisor.exit_codes import Exit

EXAMPLES = """\
examples:
  leasehold bench --list
  leasehold bench throughput latency --rounds 3
  leasehold bench --quick                       # whether all of them work here; the figures are of no use
  leasehold bench --check --peers ~/peers --python ~/optimised/bin/python
  leasehold bench throughput --before ~/earlier --rows reused --rounds 9
  leasehold bench --peers ~/peers --out report  # report/report.md and report/report.json

Runs in a clone of the source. Needs no Redis: it starts redis-server, or the embedded one, and ends it. In each round
everything is measured once, ratios are formed within a round; the report shows medians, from least to most. A row
during which other programs or a hypervisor took processor time is marked, and measured again up to --repeats times.
DIR/NAME of --peers is the virtual environment of a peer: arq, celery, dramatiq, huey, rq, rwq, saq, taskiq, tasktiger;
DIR/bullmq has BullMQ's node_modules; sidekiq is looked for on PATH. What is not there is left out, and it is said.
Exit codes: 0 measured, or with --check every bar held that could be measured; 1 one of them did not hold."""

ROUNDS = 5
REPEATS = 2


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser(
        "bench", description="Measure, beside what limits it and beside peers.", epilog=EXAMPLES
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="which benchmarks (default: all)")
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument("--rounds", metavar="N", default=str(ROUNDS), help=f"how often each (default: {ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="small amounts, to see that it works")
    parser.add_argument("--check", action="store_true", help="measure what the bars need, and say which of them hold")
    parser.add_argument(
        "--rows", metavar="TEXT", action="append", default=[], help="only rows with this in their name; repeatable"
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        type=_absolute,
        help="interpreter for Leasehold, of an environment with what it needs (default: the one that runs this)",
    )
    parser.add_argument(
        "--before",
        metavar="DIR",
        type=_absolute,
        help="also measure, in turn, an earlier clone or a virtual environment with another version",
    )
    parser.add_argument(
        "--repeats", metavar="N", default=str(REPEATS), help=f"of a disturbed row, at the most (default: {REPEATS})"
    )
    parser.add_argument("--peers", metavar="DIR", type=_absolute, help="folder of the peers' virtual environments")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="folder for report.md, report.json and peers.svg, written after each benchmark (default: stdout)",
    )


def _absolute(text: str) -> Path:
    """The measured programs have other working directories. A link stays a link: it makes a virtual environment."""
    return Path(text).absolute()


def run(args: argparse.Namespace) -> int:
    """Measure and report. Return 1 where --check has found a missed bar."""
    _find_source()
    benchmarks: dict[str, Any] = import_module("tests.bench.table").BENCHMARKS
    if args.list:
        table(("benchmark", "what it measures"), [(name, each.summary) for name, each in benchmarks.items()])
        return Exit.OK
    return _measure(args, _chosen(args, benchmarks))


def _find_source() -> None:
    """Make tests.bench importable: beside the package, else from the working directory."""
    beside = Path(next(iter(supervisor.__path__))).parent
    for folder in (beside, Path.cwd()):
        if (folder / "tests/bench/table.py").is_file():
            sys.path.insert(0, str(folder))
            return
    raise Refusal(
        f"there are no benchmarks beside {beside / 'supervisor'}, nor in {Path.cwd()}: an installed package has none;"
        " run this in a clone of the source"
    )


def _chosen(args: argparse.Namespace, benchmarks: dict[str, Any]) -> list[Any]:
    for name in args.names:
        if name not in benchmarks:
            raise UsageError(f"there is no benchmark {name!r}{near(name, benchmarks)}")
    chosen = [each for name, each in benchmarks.items() if not args.names or name in args.names]
    if not args.check:
        return chosen
    with_bars = [each for each in chosen if each.bars]
    if not with_bars:
        raise UsageError(f"--check: there is no bar for {' '.join(args.names)}")
    return with_bars


def _measure(args: argparse.Namespace, benchmarks: list[Any]) -> int:
    runner, report = import_module("tests.bench.runner"), import_module("tests.bench.report")
    draw = import_module("tests.bench.picture").draw
    unmeasured = import_module("tests.bench.benchmark").Unmeasured
    rounds = within("--rounds", args.rounds, 1, 1000)
    repeats = within("--repeats", args.repeats, 0, 100)
    for flag, folder in (("--peers", args.peers), ("--before", args.before)):
        if folder is not None and not folder.is_dir():
            raise UsageError(f"{flag} {str(folder)!r} is no folder")
    if args.python is not None and not args.python.is_file():
        raise UsageError(f"--python {str(args.python)!r} is no file")
    plan = runner.Plan(
        benchmarks, rounds, args.quick, bars_only=args.check, repeats=0 if args.quick else repeats, rows=args.rows,
        peers=args.peers, python=args.python, before=args.before,
    )  # fmt: skip
    shown = report.check if args.check else report.markdown

    def keep(header: Any, results: Any) -> None:
        if args.out is not None:
            (args.out / "report.md").write_text(shown(header, results) + "\n")
            (args.out / "report.json").write_text(json.dumps(report.as_json(header, results), indent=1) + "\n")
            for result in results:
                if result.benchmark.name == "peers":
                    (args.out / "peers.svg").write_text(draw(header, result))

    _make(args.out)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, it ends what was started
    try:
        header, results = runner.run(plan, note, keep)
    except unmeasured as error:
        raise Refusal(str(error), Exit.UNREACHABLE) from error
    if args.out is None:
        say(shown(header, results))
    else:
        note(f"written: {args.out / 'report.md'} and report.json")
    missed = args.check and any(verdict.held is False for verdict in report.verdicts(results))
    return Exit.REFUSED if missed else Exit.OK


def _make(folder: Path | None) -> None:
    """Create the folder before an hour is spent on a report that cannot be written."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--out {str(folder)!r} cannot be made: {error.strerror}") from error
