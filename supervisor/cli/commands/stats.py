"""`leasehold stats`: shows how long a queue's jobs waited and ran, lately and on a day. Reads only, in the command's
process.
"""

import argparse
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.lookup import no_queue
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Subparsers
from supervisor.cli.lib.shown import span
from supervisor.cli.lib.terminal import local_time, note, say, say_json, table

if TYPE_CHECKING:
    from supervisor.engine.commands.recent import Period, Recent
    from supervisor.engine.commands.statistics import Spread, Stats

EXAMPLES = """\
examples:
  leasehold stats emails
  leasehold stats emails --date 2031-07-01 --json | jq .wait.mean
  leasehold stats emails --json | jq .recent.hour.wait.p95

Without a date also: the last hour and day, in steps of ten minutes, and 30 UTC days with today. Half of the jobs waited
or ran for at most p50, 95 of 100 for at most p95. since: where the oldest figures of the period begin.
Days are UTC days. wait: from the put, or the last return, to the start, with any delay that was asked for; it counts on
the day of the start. run: from there to the end. Both in seconds in --json; its histograms have a cell per second to a
minute, per minute to an hour, per quarter of an hour to a day, per hour to three days, and per day."""

#: Rows of the small histogram: the first cell of the engine's histogram, and its label.
ROWS = (
    (0, "< 1s"), (1, "1s"), (5, "5s"), (15, "15s"), (60, "1m"), (64, "5m"), (74, "15m"), (119, "1h"), (139, "6h"),
    (211, "1d"), (259, "3d"),
)  # fmt: skip
BAR_CHARS = 30


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("stats", description="How long jobs waited and ran on a day.", epilog=EXAMPLES)
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("--date", metavar="DATE", help="a day, as 2031-07-01 or unix seconds (default: today)")
    add_json(parser, "all figures, and both histograms cell by cell")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Print the figures of the day."""
    date = float(args.date) if args.date is not None and args.date.isdecimal() else args.date
    with connect(args) as client, arguments():
        queue = client.queue(args.queue)
        stats, recent = queue.stats(date), queue.recent()
        unknown = None if args.json else no_queue(client, args.queue)
    if args.json:
        say_json({**asdict(stats), "recent": asdict(recent)})
    elif unknown:
        note(unknown)
    else:
        _show(stats)
        if date is None:
            _show_recent(recent)
    return 0


def _show_recent(recent: "Recent") -> None:
    periods = {"hour": recent.hour, "day": recent.day, "30 days": recent.month}
    if recent.month.since_unix is not None:
        heads = ("last", "runs", "failures", "wait p50", "wait p95", "run p50", "run p95", "since")
        table(heads, [(name, *_figures(period)) for name, period in periods.items()])


def _figures(period: "Period") -> tuple[object, ...]:
    times = (period.wait.p50, period.wait.p95, period.run.p50, period.run.p95)
    spans = (None if time_s is None else span(time_s) for time_s in times)
    return period.run.count, period.failures, *spans, local_time(period.since_unix)


def _show(stats: "Stats") -> None:
    say(f"queue {stats.queue} on {stats.date} (UTC)")
    say(
        f"failures {stats.failures:,} ({stats.failed:,} of them still failed), retries {stats.retries:,},"
        f" deaths {stats.deaths:,}, interruptions {stats.interruptions:,}"
    )
    spreads = {"wait": stats.wait, "run": stats.run}
    rows = [(name, each.count, span(each.mean), span(each.std)) for name, each in spreads.items()]
    table(("time", "jobs", "mean", "deviation"), rows)
    shown = [row for row in zip(ROWS, _bars(stats.wait), _bars(stats.run), strict=True) if row[1] or row[2]]
    if shown:
        table(("from", "wait", "run"), [(label, wait, run) for (_, label), wait, run in shown])


def _bars(spread: "Spread") -> list[str]:
    """Return a bar with its count for each of ROWS, empty for 0."""
    ends = [*(first for first, _ in ROWS), len(spread.histogram)]
    sums = [sum(spread.histogram[first:end]) for first, end in pairwise(ends)]
    most = max(sums)
    return [f"{'#' * max(1, each * BAR_CHARS // most)} {each:,}" if each else "" for each in sums]
