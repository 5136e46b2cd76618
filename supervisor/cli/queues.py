"""`leasehold queues`: what lies in each queue. Runs in the command's process; must not change anything but the list."""

import argparse
from dataclasses import asdict

from supervisor.cli.connection import add_connection, arguments, connect
from supervisor.cli.options import add_json
from supervisor.cli.parser import Refusal, Subparsers, near
from supervisor.cli.terminal import note, say, say_json, table

EXAMPLES = """\
examples:
  leasehold queues
  leasehold queues --json | jq '.[] | select(.waiting > 1000) | .queue'
  leasehold queues --forget old-reports

waiting: could start now. stalled: the lease ran out and nobody has taken the job over yet. scheduled: waits for its
time. depends: waits for other jobs. recurring: puts jobs here again and again. paused: nothing new starts."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("queues", description="What waits, runs and stalls in each queue.", epilog=EXAMPLES)
    parser.add_argument("--forget", metavar="NAME", help="take an empty queue off the list")
    add_json(parser, "a list of queues with their counts")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Say the counts of every queue that a job was ever put into; or forget one."""
    if args.forget is not None:
        return _forget(args)
    with connect(args) as client:
        rows = [{"queue": name, **asdict(counts)} for name, counts in client.queues().items()]
    if args.json:
        say_json(rows)
    elif rows:
        table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows])
    else:
        note("no job was ever put here")
    return 0


def _cell(value: object) -> object:
    return ("yes" if value else None) if isinstance(value, bool) else value


def _forget(args: argparse.Namespace) -> int:
    with connect(args) as client, arguments():
        if not client.queue(args.forget).forget():
            raise Refusal(f"there is no queue {args.forget}{near(args.forget, client.queues())}")
    say(f"queue {args.forget} is forgotten")
    return 0
