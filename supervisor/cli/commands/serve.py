"""`leasehold serve`: what a running supervisor serves from now on. Runs in the command's process.

Must not signal the supervisor: the wish lies in Redis.
"""

import argparse

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.parser import Refusal, Subparsers, near
from supervisor.cli.lib.terminal import say

EXAMPLES = """\
examples:
  leasehold serve web-1-4711-3f2a high default
  leasehold serve web-1-4711-3f2a 'email-*' '!email-bulk'
  leasehold serve web-1-4711-3f2a high:3 low --order weighted

WORKER is as `leasehold workers` shows it. What it runs goes on. A supervisor that is started anew serves what its flags
say."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("serve", description="Have a supervisor serve other queues.", epilog=EXAMPLES)
    parser.add_argument("worker", metavar="WORKER", help="the supervisor")
    parser.add_argument("queues", metavar="QUEUE", nargs="+", help="names, patterns, and !patterns that are left out")
    parser.add_argument(
        "--order", metavar="ORDER", help="strict, round-robin, random or weighted (default: as it does)"
    )
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Leave the wish, and say it."""
    with connect(args) as client, arguments():
        workers = [each.name for each in client.workers()]
        if args.worker not in workers and client.worker(args.worker).seen_unix is None:
            raise Refusal(f"there is no worker {args.worker}{near(args.worker, workers)}")
        client.serve(args.worker, args.queues, args.order)
    say(f"{args.worker} is told to serve {' '.join(args.queues)}" + (f" in {args.order} order" if args.order else ""))
    return 0
