"""`leasehold serve`: changes the queues of a running supervisor. Runs in the command's process.

Must not signal the supervisor: the request stands in Redis.
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

WORKER is a name from `leasehold workers`. Running jobs go on. A restarted supervisor serves what its flags
say."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("serve", description="Have a supervisor serve other queues.", epilog=EXAMPLES)
    parser.add_argument("worker", metavar="WORKER", help="the supervisor")
    parser.add_argument("queues", metavar="QUEUE", nargs="+", help="names, patterns, and !patterns that are left out")
    parser.add_argument("--order", metavar="ORDER", help="strict, round-robin, random or weighted (default: unchanged)")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Leave the request in Redis, and print it."""
    with connect(args) as client, arguments():
        workers = [each.name for each in client.workers()]
        if args.worker not in workers and client.worker(args.worker).seen_unix is None:
            raise Refusal(f"there is no worker {args.worker}{near(args.worker, workers)}")
        client.serve(args.worker, args.queues, args.order)
    say(f"{args.worker} is told to serve {' '.join(args.queues)}" + (f" in {args.order} order" if args.order else ""))
    return 0
