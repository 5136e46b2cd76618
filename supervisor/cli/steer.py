"""`leasehold cancel`, `leasehold fail`, `leasehold release`, `leasehold move`, `leasehold priority`: an operator's hand
on jobs. They run in the command's process. Each says in one line what it did; must not touch a job that was not named.
"""

import argparse
from typing import TYPE_CHECKING

from supervisor.cli.connection import add_connection, arguments, connect
from supervisor.cli.lookup import job_of, jobs_of, no_queue
from supervisor.cli.options import read_options, whole
from supervisor.cli.parser import Refusal, Subparsers, UsageError
from supervisor.cli.payload import add_data_flag, is_given, read_payload
from supervisor.cli.terminal import note, say
from supervisor.config import parse_duration

if TYPE_CHECKING:
    from supervisor.engine.client import Client

CANCEL_EXAMPLES = """\
examples:
  leasehold cancel fJ3vO0TvQ2-FbM3kzqYx0w
  leasehold failed ValueError --limit 1000 --json | jq -r '.jobs[].jid' | xargs leasehold cancel
  leasehold cancel --queue emails --data '{"to": "ada@example.org"}'
  leasehold cancel --queue lines --raw --data 'as it was pushed'

The jobs are gone then, and who runs one stops. Complete ones are left alone. A job that another one waits for is
cancelled only together with it, or if that one said --on-parent-failure fail or run. Exit code 1 if any was left.
--data: every job of the queue that has this data and has not ended. JSON may have its keys in any order."""

FAIL_EXAMPLES = """\
examples:
  leasehold fail invoice-2031-07 --group by-hand --message 'the customer has left'

From any state; who runs it stops. It lies with the failed jobs of that group until it is unfailed or cancelled."""

RELEASE_EXAMPLES = """\
examples:
  leasehold release invoice-2031-07

Who runs it stops, and it goes to the front of its queue: an interruption, no failure. One that does not run is left
alone, and the exit code is 1."""

MOVE_EXAMPLES = """\
examples:
  leasehold move invoice-2031-07 slow
  leasehold move invoice-2031-07 slow --delay 1h

From any state, also complete or failed ones: the job begins anew there, with all its retries. Who runs it stops."""

PRIORITY_EXAMPLES = """\
examples:
  leasehold priority invoice-2031-07 -10

Lower runs sooner; the default is 0."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags of each."""
    parser = subparsers.add_parser("cancel", description="Take jobs away.", epilog=CANCEL_EXAMPLES)
    parser.add_argument("jids", metavar="JID", nargs="*", help="the jobs; or by their data:")
    parser.add_argument("--queue", metavar="NAME", help="of this queue; needs --data or --file")
    add_data_flag(parser, "take away what has this payload")
    add_connection(parser)
    parser = subparsers.add_parser("fail", description="Fail a job by hand.", epilog=FAIL_EXAMPLES)
    parser.add_argument("jid", metavar="JID")
    parser.add_argument("--group", metavar="NAME", default="by-hand", help="the kind of failure (default: by-hand)")
    parser.add_argument("--message", metavar="TEXT", default="", help="why, in words")
    add_connection(parser)
    parser = subparsers.add_parser("release", description="Take jobs from their workers.", epilog=RELEASE_EXAMPLES)
    parser.add_argument("jids", metavar="JID", nargs="+")
    add_connection(parser)
    parser = subparsers.add_parser("move", description="Put a job into another queue.", epilog=MOVE_EXAMPLES)
    parser.add_argument("jid", metavar="JID")
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("--delay", metavar="DURATION", help="run it so much later")
    add_connection(parser)
    parser = subparsers.add_parser("priority", description="Let a job run sooner or later.", epilog=PRIORITY_EXAMPLES)
    parser.add_argument("jid", metavar="JID")
    parser.add_argument("priority", metavar="N", help="the new priority, a whole number")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Do what the command's name says, and say it."""
    {"cancel": _cancel, "fail": _fail, "release": _release, "move": _move, "priority": _priority}[args.command](args)
    return 0


def _cancel(args: argparse.Namespace) -> None:
    if bool(args.jids) == is_given(args):
        raise UsageError("give JID, or --queue with --data or --file, one of the two")
    if is_given(args) != (args.queue is not None):
        raise UsageError("--queue goes with --data or --file, and they with it")
    if args.queue is not None:
        _cancel_equal(args)
    else:
        _cancel_named(args)


def _cancel_named(args: argparse.Namespace) -> None:
    with connect(args) as client, arguments():
        cancelled = client.cancel(*args.jids)
        if cancelled:
            say(f"cancelled {' '.join(cancelled)}")
        left = [jid for jid in args.jids if jid not in set(cancelled)]
        if left:
            raise Refusal(f"not cancelled: {_why_left(client, left)}")


def _cancel_equal(args: argparse.Namespace) -> None:
    data = read_payload(args, "--data")
    with connect(args) as client, arguments():
        cancelled = client.queue(args.queue).cancel(data)
        unknown = None if cancelled else no_queue(client, args.queue)
    if cancelled:
        say(f"cancelled {' '.join(cancelled)}")
    else:
        note(unknown or f"no job of queue {args.queue} that has not ended has this data")


def _why_left(client: "Client", jids: list[str]) -> str:
    """Each with its state; the first ten of them."""
    jobs = zip(jids, client.jobs(*jids[:10]), strict=False)
    shown = [f"{jid} ({job.state if job else 'there is no such job'})" for jid, job in jobs]
    return " ".join(shown) + (f" and {len(jids) - 10:,} more" if len(jids) > 10 else "")


def _fail(args: argparse.Namespace) -> None:
    with connect(args) as client, arguments():
        job_of(client, args.jid).fail(args.group, args.message)
    say(f"failed {args.jid} in group {args.group}")


def _release(args: argparse.Namespace) -> None:
    with connect(args) as client, arguments():
        answers = [(job, job.release()) for job in jobs_of(client, args.jids)]
    released = [job.jid for job, done in answers if done]
    if released:
        say(f"released {' '.join(released)}")
    if len(released) < len(answers):
        idle = " ".join(f"{job.jid} ({job.state})" for job, done in answers if not done)
        raise Refusal(f"not released, as it does not run: {idle}")


def _move(args: argparse.Namespace) -> None:
    options = read_options(args, {"delay": parse_duration})
    with connect(args) as client, arguments():
        job = job_of(client, args.jid)
        unknown = no_queue(client, args.queue)
        job.move(args.queue, **options)
    say(f"moved {args.jid} from queue {job.queue} into queue {args.queue}")
    if unknown and "did you mean" in unknown:
        note(unknown)


def _priority(args: argparse.Namespace) -> None:
    try:
        number = whole(args.priority)
    except ValueError as error:
        raise UsageError(f"N {args.priority!r} {error}") from error
    with connect(args) as client, arguments():
        now = job_of(client, args.jid).set_priority(number)
    say(f"the priority of {args.jid} is {now}")
