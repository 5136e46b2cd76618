"""`leasehold failed`: the groups of failed jobs, or the jobs of one. Reads only; must not change anything."""

import argparse

from supervisor.cli.connection import add_connection, arguments, connect
from supervisor.cli.job import as_dict
from supervisor.cli.parser import Subparsers, UsageError
from supervisor.cli.terminal import local_time, note, say_json, table

EXAMPLES = """\
examples:
  leasehold failed
  leasehold failed ValueError --limit 100
  leasehold failed died:SIGKILL --json

A group is the kind of failure: an exception's class, died:<reason>, failed-retries-<queue>, or a handler's own word."""

MOST = 1000


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("failed", description="What has failed, by kind of failure.", epilog=EXAMPLES)
    parser.add_argument("group", metavar="GROUP", nargs="?", help="show the jobs of this group, newest first")
    parser.add_argument("--limit", metavar="N", default="25", help=f"at most so many, up to {MOST} (default: 25)")
    parser.add_argument("--json", action="store_true", help="one line of JSON: counts by group, or total and jobs")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Say the groups, or one group's jobs."""
    if not args.limit.isdecimal() or not 1 <= int(args.limit) <= MOST:
        raise UsageError(f"--limit {args.limit!r} must be a whole number from 1 to {MOST}")
    return _groups(args) if args.group is None else _jobs(args)


def _groups(args: argparse.Namespace) -> int:
    with connect(args) as client:
        groups = client.failed()
    if args.json:
        say_json(groups)
    elif groups:
        largest_first = sorted(groups, key=lambda group: (-groups[group], group))
        table(("group", "jobs"), [(group, groups[group]) for group in largest_first])
    else:
        note("nothing has failed")
    return 0


def _jobs(args: argparse.Namespace) -> int:
    with connect(args) as client, arguments():
        total, jobs = client.failed(args.group, limit=int(args.limit))
    if args.json:
        say_json({"group": args.group, "total": total, "jobs": [as_dict(job) for job in jobs]})
        return 0
    if jobs:
        failures = [(job, job.failure or {}) for job in jobs]
        rows = [
            (job.jid, job.klass, job.queue, local_time(why.get("when")), why.get("message", ""))
            for job, why in failures
        ]
        table(("jid", "klass", "queue", "when", "message"), rows)
    if total > len(jobs) or not jobs:
        note(f"{len(jobs):,} of {total:,} failed jobs in group {args.group}")
    return 0
