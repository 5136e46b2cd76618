"""`leasehold limit`: shows and sets concurrency and rate limits. Runs in the command's process.

Must not touch the jobs themselves.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import add_json, within
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError, near
from supervisor.cli.lib.shown import by_words
from supervisor.cli.lib.terminal import note, say, say_json, table

if TYPE_CHECKING:
    from supervisor.engine.commands.limits import Limit, LimitHolder, LimitJobs, ParkedJob

EXAMPLES = """\
examples:
  leasehold limit                              # all of them
  leasehold limit api:stripe                   # and the first 25 jobs that run under it, and that it holds up
  leasehold limit api:stripe --running 5 --rate 10/s
  leasehold limit api:stripe --running 0       # nothing new starts
  leasehold limit api:stripe --remove          # or one half of it: --remove rate

A limit holds for all jobs that were put with this --limit, in all queues and supervisors. --rate: starts per time, like
10/s, 100/m, 5/h, 1000/d, 3/10s, never more in any such time. A job whose limit is used up is parked; others go on."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("limit", description="How many may run, or start in a time.", epilog=EXAMPLES)
    parser.add_argument("key", metavar="KEY", nargs="?", help="only this limit")
    parser.add_argument("--running", metavar="N", help="most jobs that run at once")
    parser.add_argument("--rate", metavar="RATE", help="most jobs that start in a time")
    parser.add_argument(
        "--remove",
        metavar="HALF",
        nargs="?",
        const="",
        choices=("", "running", "rate"),
        help="take the limit off, or one half of it: running, rate",
    )
    add_json(parser, "a list of limits; or one, with the first 25 jobs that hold it and that are parked")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """List the limits, or show, set or remove one."""
    changes = args.running is not None or args.rate is not None
    removes = args.remove is not None
    if removes and (changes or args.json):
        raise UsageError("--remove stands alone with KEY")
    if (removes or changes) and args.key is None:
        raise UsageError("KEY is missing: which limit?")
    running = None if args.running is None else within("--running", args.running, 0, 2**53)
    if args.key is None:
        return _list(args)
    if removes:
        return _remove(args)
    with connect(args) as client, arguments():
        limit = client.limit(args.key, running=running, rate=args.rate)
        jobs = client.limit_jobs(args.key)
    if args.json:
        say_json({**asdict(limit), "holders": _dicts(jobs.holders), "parked_jobs": _dicts(jobs.parked)})
        return 0
    say(_words(limit))
    if not changes:
        _say_jobs(jobs)
    return 0


def _dicts(rows: "Sequence[LimitHolder | ParkedJob]") -> list[dict[str, str | None]]:
    return [asdict(row) for row in rows]


def _say_jobs(jobs: "LimitJobs") -> None:
    running = [("running", job.jid, job.queue, None, job.worker) for job in jobs.holders]
    parked = [("parked", job.jid, job.queue, job.lane, None) for job in jobs.parked]
    if running or parked:
        table(("state", "jid", "queue", "lane", "worker"), [*running, *parked])


def _list(args: argparse.Namespace) -> int:
    with connect(args) as client:
        limits = client.limits()
    if args.json:
        say_json([asdict(limit) for limit in limits.values()])
    elif limits:
        rows = [(e.key, e.running, e.rate, e.in_use, e.parked, by_words(e.set_by, e.set_unix)) for e in limits.values()]
        table(("key", "running", "rate", "in use", "parked", "set"), rows)
    else:
        note("no limit is set")
    return 0


def _remove(args: argparse.Namespace) -> int:
    with connect(args) as client, arguments():
        if not client.unlimit(args.key, args.remove or None):
            raise Refusal(f"there is no limit {args.key}{near(args.key, client.limits())}")
        limit = client.limit(args.key)
    say(_words(limit) if args.remove else f"{args.key} is not limited any more")
    return 0


def _words(limit: "Limit") -> str:
    set_to = [
        *([] if limit.running is None else [f"{limit.running:,} at once"]),
        *([] if limit.rate is None else [f"{limit.rate} starts"]),
    ]
    words = f"{limit.key}: {' and '.join(set_to) or 'no limit'}; {limit.in_use:,} running, {limit.parked:,} parked"
    by = by_words(limit.set_by, limit.set_unix)
    return f"{words}; set {'by ' if limit.set_by else ''}{by}" if by else words
