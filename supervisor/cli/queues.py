"""`leasehold queues`: what lies in each queue. Reads only, in the command's process; must not change anything."""

import argparse
from dataclasses import asdict

from supervisor.cli.connection import add_connection, connect
from supervisor.cli.parser import Subparsers
from supervisor.cli.terminal import note, say_json, table

EXAMPLES = """\
examples:
  leasehold queues
  leasehold queues --json | jq '.[] | select(.waiting > 1000) | .queue'

waiting: could start now. stalled: the lease ran out and nobody has taken the job over yet.
scheduled: waits for its time."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("queues", description="What waits, runs and stalls in each queue.", epilog=EXAMPLES)
    parser.add_argument("--json", action="store_true", help="one line of JSON: a list of queues with their counts")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Say the counts of every queue that a job was ever put into."""
    with connect(args) as client:
        rows = [{"queue": name, **asdict(counts)} for name, counts in client.queues().items()]
    if args.json:
        say_json(rows)
    elif rows:
        table(("queue", "waiting", "running", "stalled", "scheduled"), [list(row.values()) for row in rows])
    else:
        note("no job was ever put here")
    return 0
