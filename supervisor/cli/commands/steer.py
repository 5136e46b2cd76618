"""`leasehold cancel`, `leasehold fail`, `leasehold release`, `leasehold move`, `leasehold priority`: change jobs by
hand.

They run in the command's process, and print in one line what they did. Must not touch a job that was neither named nor
chosen.
"""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from supervisor.cli.lib.bulk import HELP, NOT_BEGUN, NOT_ENDED, add_choice, choice, is_choice, run_bulk
from supervisor.cli.lib.bulk_words import Operation
from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.lookup import job_of, jobs_of, no_queue
from supervisor.cli.lib.options import read_options, whole
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError
from supervisor.cli.lib.payload import add_data_flag, is_given, read_payload
from supervisor.cli.lib.terminal import note, say
from supervisor.units import parse_duration

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client

CANCEL_EXAMPLES = f"""\
examples:
  leasehold cancel fJ3vO0TvQ2-FbM3kzqYx0w
  leasehold cancel --tag nightly --dry-run
  leasehold cancel --group ValueError --yes
  leasehold cancel --queue emails --state waiting --state scheduled
  leasehold cancel --queue emails --data '{{"to": "ada@example.org"}}'
  leasehold cancel --queue lines --raw --data 'as it was pushed'

Cancelled jobs are deleted; a running one is stopped. Complete jobs are left alone. A job that another one waits for is
cancelled only together with it, or if the other has --on-parent-failure fail or run. Exit code 1 if any was left.
--data: every job of the queue that has this data and has not ended. JSON may have its keys in any order.
Chosen jobs: all that have not ended, unless --group or --state says otherwise. Recurring jobs stay: `leasehold recur`.
{HELP}"""

FAIL_EXAMPLES = f"""\
examples:
  leasehold fail invoice-2031-07 --group by-hand --message 'the customer has left'
  leasehold fail --tag customer-7 --message 'the customer has left' --yes

A job in any state; a running one is stopped. It stays in that group of failed jobs until it is unfailed or cancelled.
Chosen jobs: all that have not ended, unless --state says otherwise. --group names the group that they go into.
{HELP}"""

RELEASE_EXAMPLES = """\
examples:
  leasehold release invoice-2031-07

The run is stopped, and the job goes to the front of its queue: an interruption, no failure. A job that does not run is
left alone, and the exit code is 1."""

MOVE_EXAMPLES = f"""\
examples:
  leasehold move invoice-2031-07 slow
  leasehold move invoice-2031-07 slow --delay 1h
  leasehold move --queue emails slow
  leasehold move --queue emails --tag customer-7 --state waiting slow --yes

A job in any state, also complete or failed, starts over in the new queue with all its retries. A run is stopped.
Chosen jobs: all that have not begun, unless --group or --state says otherwise. Scheduled jobs keep their time.
{HELP}"""

PRIORITY_EXAMPLES = f"""\
examples:
  leasehold priority invoice-2031-07 -10
  leasehold priority --tag customer-7 -10

Lower values run sooner; the default is 0. Chosen jobs: all that have not begun, unless --state says otherwise.
{HELP}"""


def add(subparsers: Subparsers) -> None:
    """Declare the flags of each command."""
    parser = subparsers.add_parser("cancel", description="Take jobs away.", epilog=CANCEL_EXAMPLES)
    parser.add_argument("jids", metavar="JID", nargs="*", help="the jobs; or choose jobs by:")
    add_choice(parser, "tag", "group", queue="all jobs of this queue")
    add_data_flag(parser, "with --queue: only what has this payload")
    add_connection(parser, acts=True)
    parser = subparsers.add_parser("fail", description="Fail a job by hand.", epilog=FAIL_EXAMPLES)
    parser.add_argument("jid", metavar="JID", nargs="?", help="the job; or choose jobs by:")
    add_choice(parser, "tag", queue="all jobs of this queue")
    parser.add_argument(
        "--group", metavar="NAME", dest="into", default="by-hand", help="the kind of failure (default: by-hand)"
    )
    parser.add_argument("--message", metavar="TEXT", default="", help="why, in words")
    add_connection(parser, acts=True)
    parser = subparsers.add_parser("release", description="Take jobs from their workers.", epilog=RELEASE_EXAMPLES)
    parser.add_argument("jids", metavar="JID", nargs="+")
    add_connection(parser, acts=True)
    parser = subparsers.add_parser("move", description="Put a job into another queue.", epilog=MOVE_EXAMPLES)
    parser.add_argument("jid", metavar="JID", nargs="?", help="the job; or choose jobs by:")
    add_choice(parser, "tag", "group", queue="all jobs of this queue")
    parser.add_argument("into", metavar="QUEUE", help="the new queue")
    parser.add_argument("--delay", metavar="DURATION", help="start it no earlier than this from now; only with JID")
    add_connection(parser, acts=True)
    parser = subparsers.add_parser("priority", description="Let a job run sooner or later.", epilog=PRIORITY_EXAMPLES)
    parser.add_argument("jid", metavar="JID", nargs="?", help="the job; or choose jobs by:")
    add_choice(parser, "tag", queue="all jobs of this queue")
    parser.add_argument("priority", metavar="N", help="the new priority, a whole number")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Run the command of the given name."""
    {"cancel": _cancel, "fail": _fail, "release": _release, "move": _move, "priority": _priority}[args.command](args)
    return 0


def _cancel(args: argparse.Namespace) -> None:
    if bool(args.jids) == (is_choice(args) or is_given(args)):
        raise UsageError("give JID, or --queue, --tag or --group, one of the two")
    if args.jids:
        _cancel_named(args)
    elif not is_given(args):
        _cancel_chosen(args)
    elif args.queue is None or args.tag or args.group or args.state or args.dry_run:
        raise UsageError("--data and --file go with --queue, and with no other way to choose")
    else:
        _cancel_equal(args)


def _cancel_chosen(args: argparse.Namespace) -> None:
    from supervisor.engine.commands import bulk

    with connect(args) as client, arguments():
        chosen = choice(args, NOT_ENDED)
        run_bulk(args, client, chosen, Operation("cancel", "cancelled"), partial(bulk.cancel, chosen))


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
    """Return the first ten jids, each with its job's state."""
    jobs = zip(jids, client.jobs(*jids[:10]), strict=False)
    shown = [f"{jid} ({job.state if job else 'there is no such job'})" for jid, job in jobs]
    return " ".join(shown) + (f" and {len(jids) - 10:,} more" if len(jids) > 10 else "")


def _is_chosen(args: argparse.Namespace) -> bool:
    """Return True if jobs are chosen by their properties. Refuse both a choice and JID, and neither."""
    if (args.jid is not None) == is_choice(args):
        raise UsageError("give JID, or --queue or --tag, one of the two")
    return args.jid is None


def _fail(args: argparse.Namespace) -> None:
    if _is_chosen(args):
        _fail_chosen(args)
        return
    with connect(args) as client, arguments():
        job_of(client, args.jid).fail(args.into, args.message)
    say(f"failed {args.jid} in group {args.into}")


def _fail_chosen(args: argparse.Namespace) -> None:
    from supervisor.engine.commands import bulk

    with connect(args) as client, arguments():
        chosen = choice(args, NOT_ENDED)
        run_bulk(
            args, client, chosen, Operation("fail", "failed", f" in group {args.into}"),
            partial(bulk.fail, chosen, group=args.into, message=args.message),
        )  # fmt: skip


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
    chosen = _is_chosen(args)
    options = {} if chosen else read_options(args, {"delay": parse_duration})
    if chosen and args.delay is not None:
        raise UsageError("--delay goes with JID: chosen jobs keep their times")
    with connect(args) as client, arguments():
        unknown = no_queue(client, args.into)
        misspelt = unknown if unknown and "did you mean" in unknown else None
        if chosen:
            if misspelt:
                note(misspelt)  # many jobs follow: the user must see it first
            _move_chosen(args, client)
        else:
            job = job_of(client, args.jid)
            job.move(args.into, **options)
            say(f"moved {args.jid} from queue {job.queue} into queue {args.into}")
    if misspelt and not chosen:
        note(misspelt)


def _move_chosen(args: argparse.Namespace, client: "Client") -> None:
    from supervisor.engine.commands import bulk

    if args.queue == args.into:
        raise UsageError(f"--queue and QUEUE are both {args.into}: the jobs are there already")
    chosen = choice(args, NOT_BEGUN)
    run_bulk(
        args, client, chosen, Operation("move", "moved", f" into queue {args.into}"),
        partial(bulk.move, chosen, queue=args.into),
    )  # fmt: skip


def _priority(args: argparse.Namespace) -> None:
    try:
        number = whole(args.priority)
    except ValueError as error:
        raise UsageError(f"N {args.priority!r} {error}") from error
    chosen = _is_chosen(args)
    with connect(args) as client, arguments():
        if chosen:
            _prefer_chosen(args, client, number)
        else:
            say(f"the priority of {args.jid} is {job_of(client, args.jid).set_priority(number)}")


def _prefer_chosen(args: argparse.Namespace, client: "Client", number: int) -> None:
    from supervisor.engine.commands import bulk

    chosen = choice(args, NOT_BEGUN)
    operation = Operation("give", "gave", f" priority {number}")
    run_bulk(args, client, chosen, operation, partial(bulk.set_priority, chosen, priority=number))
