"""`leasehold drain`: ends running supervisors, as SIGTERM does. Runs in the command's process.

Must not signal any process, and must not wait for the end: running jobs may go on for the drain timeout.
"""

import argparse

from supervisor.cli.lib.connection import add_connection
from supervisor.cli.lib.parser import Subparsers
from supervisor.cli.lib.supervisors import add_targets, add_timeout, report_undone, request, targets

EXAMPLES = """\
examples:
  leasehold drain web-1-4711-3f2a
  leasehold drain --all

WORKER is a name from `leasehold workers`. It leases no more jobs, hands back those that have not started, lets the rest
finish within its --drain-timeout, and exits. A container platform or service manager may start it again. A repeated
drain changes nothing. Exit code 1 if one of them has not answered in time."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("drain", description="Have supervisors end.", epilog=EXAMPLES)
    add_targets(parser)
    add_timeout(parser)
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Send the request, and print what each supervisor does."""
    return report_undone(args, request(args, targets(args, args.workers), "drain"))
