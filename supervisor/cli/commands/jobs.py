"""`leasehold jobs` and `leasehold peek`: list jobs. They read only, in the command's process."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.lookup import no_queue
from supervisor.cli.lib.options import MOST, add_json, add_paging, paging, within
from supervisor.cli.lib.parser import Subparsers, UsageError, near
from supervisor.cli.lib.shown import say_jobs, say_recurring
from supervisor.cli.lib.terminal import counted, note

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.model.jobs import JobRecord
    from supervisor.engine.model.recurring import Recurring

STATES = ("waiting", "running", "stalled", "scheduled", "depends", "parked", "recurring", "complete", "failed")

JOBS_EXAMPLES = f"""\
examples:
  leasehold jobs running
  leasehold jobs scheduled --queue emails
  leasehold jobs waiting --queue emails --offset 100 --count 100
  leasehold jobs complete --json | jq -r '.jobs[].jid'

STATE is {", ".join(STATES)}.
Parked jobs wait for their limit.
Without --queue the jobs of all queues are listed, queue by queue; complete jobs newest first. `leasehold failed` lists
failures by kind."""

PEEK_EXAMPLES = """\
examples:
  leasehold peek emails
  leasehold peek emails 10 --json

Lists the jobs in the order in which they would be leased now. Takes none."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags of both."""
    parser = subparsers.add_parser("jobs", description="The jobs in one state.", epilog=JOBS_EXAMPLES)
    parser.add_argument("state", metavar="STATE", help="waiting, running, …: see below")
    parser.add_argument("--queue", metavar="NAME", help="only jobs of this queue")
    add_paging(parser)
    add_json(parser, "state, queue, offset and jobs")
    add_connection(parser)
    parser = subparsers.add_parser("peek", description="What a queue would give next.", epilog=PEEK_EXAMPLES)
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("count", metavar="N", nargs="?", default="1", help=f"number of jobs, up to {MOST} (default: 1)")
    add_json(parser, "queue and jobs")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """List the jobs."""
    if args.command == "peek":
        return _peek(args)
    if args.state not in STATES:
        raise UsageError(f"there is no state {args.state!r}{near(args.state, STATES)}")
    offset, count = paging(args)
    if offset and args.queue is None and args.state != "complete":
        raise UsageError("--offset needs --queue, but for complete")
    head = {"state": args.state, "queue": args.queue, "offset": offset}
    with connect(args) as client, arguments():
        jobs: Sequence[JobRecord | Recurring]
        if args.queue is None and args.state == "complete":
            jobs = client.completed(offset, count)
        elif args.queue is None:
            jobs = _of_all(client, args.state, count)
        else:
            jobs = client.queue(args.queue).jobs(args.state, offset, count)
        none = "" if jobs or args.json else _none(client, args.queue, args.state, offset)
    if args.state == "recurring":
        say_recurring(args, cast("Sequence[Recurring]", jobs), head, none)
    else:
        say_jobs(args, cast("Sequence[JobRecord]", jobs), head, none)
    if len(jobs) == count and not args.json:
        note(f"there may be more than these {counted(count, 'job')}: --count and --offset show them")
    return 0


def _of_all(client: "Client", state: str, count: int) -> "Sequence[JobRecord | Recurring]":
    """Return up to `count` jobs in that state, queue by queue."""
    jobs: list[JobRecord | Recurring] = []
    for name, counts in sorted(client.queues().items()):
        if len(jobs) < count and getattr(counts, state, True):
            jobs += client.queue(name).jobs(state, 0, count - len(jobs))
    return jobs


def _peek(args: argparse.Namespace) -> int:
    count = within("N", args.count, 1, MOST)
    with connect(args) as client, arguments():
        jobs = client.queue(args.queue).peek(count)
        none = "" if jobs or args.json else _none(client, args.queue, "waiting", 0)
    say_jobs(args, jobs, {"queue": args.queue}, none)
    return 0


def _none(client: "Client", queue: str | None, state: str, offset: int) -> str:
    """Say why the list is empty."""
    if queue is None:
        return f"no job is {state}" if not offset else f"no job is {state} beyond the first {offset:,}"
    words = f"no job of queue {queue} is {state}" if state != "depends" else f"no job of queue {queue} waits for others"
    return no_queue(client, queue) or (f"{words}, beyond the first {offset:,}" if offset else words)
