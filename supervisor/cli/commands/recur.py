"""`leasehold recur`: starts, changes and ends recurring jobs. Runs in the command's process.

Must not put jobs itself.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.lookup import no_queue
from supervisor.cli.lib.options import RECUR_OPTIONS, add_job_options, add_json, read_options
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError
from supervisor.cli.lib.payload import add_payload, is_given, read_payload
from supervisor.cli.lib.shown import rhythm_words, say_recurring
from supervisor.cli.lib.terminal import local_time, say

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.client.sync_handles import RecurringJob
    from supervisor.engine.model.recurring import Recurring

EXAMPLES = """\
examples:
  leasehold recur report.build --every 5m --queue slow
  leasehold recur report.build '{"all": true}' --cron '0 3 * * mon' --tz Europe/Berlin --jid weekly
  leasehold recur                              # list all; --queue slow: of one queue
  leasehold recur --update weekly --cron '0 4 * * mon'     # the rest stays as it is
  leasehold recur --cancel weekly

The jid of the recurring job goes to stdout; its jobs have jids of their own. `leasehold job JID` shows either. --missed
says how many jobs are put for times at which no supervisor ran: all, one, or none. --cron needs the extra
`cron`."""

PAGE = 1000


def add(subparsers: Subparsers) -> None:
    """Declare the flags of the schedule, and those of `put`."""
    parser = subparsers.add_parser("recur", description="Put a job again and again.", epilog=EXAMPLES)
    parser.add_argument("klass", metavar="KLASS", nargs="?", help="the handler: module and function, like email.send")
    add_payload(parser)
    parser.add_argument("--queue", metavar="NAME", help="where its jobs are put (default: default)")
    parser.add_argument("--every", metavar="DURATION", help="put a job this often")
    parser.add_argument("--offset", metavar="DURATION", help="delay of the first job (default: 0)")
    parser.add_argument("--cron", metavar="TIMES", help="put a job at these times: minute hour day month weekday")
    parser.add_argument("--tz", metavar="ZONE", help="the time zone of --cron (default: UTC)")
    parser.add_argument("--missed", metavar="WHAT", help="all, once or skip (default: all)")
    parser.add_argument("--backlog", metavar="N", help="most missed jobs to put beside the last (default: all)")
    add_job_options(parser)
    parser.add_argument("--update", metavar="JID", help="change a recurring job")
    parser.add_argument("--cancel", metavar="JID", help="end a recurring job; what it has put stays")
    add_json(parser, "queue and jobs, of the list")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Start, change or end a recurring job, or list all."""
    if args.update is not None and args.cancel is not None:
        raise UsageError("give --update or --cancel, not both")
    options = read_options(args, RECUR_OPTIONS)
    about_one = bool(options) or args.klass is not None or is_given(args)
    if args.json and (about_one or args.update is not None or args.cancel is not None):
        raise UsageError("--json is for the list")
    if args.cancel is not None:
        if about_one or args.queue is not None:
            raise UsageError("--cancel stands alone")
        return _cancel(args)
    if args.update is not None:
        return _update(args, options)
    return _begin(args, options) if about_one else _list(args)


def _begin(args: argparse.Namespace, options: dict[str, Any]) -> int:
    if args.klass is None:
        raise UsageError("KLASS is missing: what is to run?")
    if (args.every is None) == (args.cron is None):
        raise UsageError("give --every or --cron, one of them")
    data = read_payload(args)
    with connect(args) as client, arguments():
        say(client.queue(args.queue or "default").recur(args.klass, data, **options))
    return 0


def _update(args: argparse.Namespace, options: dict[str, Any]) -> int:
    if "jid" in options:
        raise UsageError("a recurring job keeps its jid: --jid cannot be changed")
    if args.klass is not None:
        options["klass"] = args.klass
    if args.queue is not None:
        options["queue"] = args.queue
    if is_given(args):
        options["data"] = read_payload(args)
    if not options:
        raise UsageError("--update needs something to change")
    with connect(args) as client, arguments():
        _found(client, args.update).update(**options)
        job = _found(client, args.update)
    say(f"updated {job.jid}: {rhythm_words(job)}, next {local_time(job.next_unix)}")
    return 0


def _found(client: "Client", jid: str) -> "RecurringJob":
    job = client.recurring(jid)
    if job is None:
        raise Refusal(f"there is no recurring job {jid}")
    return job


def _cancel(args: argparse.Namespace) -> int:
    with connect(args) as client, arguments():
        if not client.unrecur(args.cancel):
            raise Refusal(f"there is no recurring job {args.cancel}")
    say(f"cancelled {args.cancel}; the jobs that it has put stay")
    return 0


def _list(args: argparse.Namespace) -> int:
    with connect(args) as client, arguments():
        queues = [name for name, counts in client.queues().items() if counts.recurring]
        if args.queue is not None:
            queues = [args.queue]
        jobs = [job for name in queues for job in _of_queue(client, name)]
        none = "nothing recurs" + (f" in queue {args.queue}" if args.queue else "")
        unknown = no_queue(client, args.queue) if args.queue and not jobs else None
    say_recurring(args, jobs, {"queue": args.queue}, unknown or none)
    return 0


def _of_queue(client: "Client", name: str) -> list["Recurring"]:
    """Return the queue's recurring jobs, page by page."""
    queue = client.queue(name)
    jobs: list[Recurring] = []
    while True:
        page = cast("Sequence[Recurring]", queue.jobs("recurring", len(jobs), PAGE))
        jobs += page
        if len(page) < PAGE:
            return jobs
