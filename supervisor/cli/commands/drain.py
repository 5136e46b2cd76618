"""`leasehold drain`: have running supervisors end, as SIGTERM would. Runs in the command's process.

Must not signal any process, and must not wait for the end: what runs may go on for the drain timeout.
"""

import argparse

from supervisor.cli.lib.asking import add_some_or_all, add_timeout, some_or_all, tell, verdict
from supervisor.cli.lib.connection import add_connection
from supervisor.cli.lib.parser import Subparsers

EXAMPLES = """\
examples:
  leasehold drain web-1-4711-3f2a
  leasehold drain --all

WORKER is as `leasehold workers` shows it. It leases nothing more, hands back what has not started, lets the rest finish
within its --drain-timeout, and exits; the container platform or service manager that has started it may do so again.
Said twice it is the same request. Exit code 1 if one of them has not answered in time."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("drain", description="Have supervisors end.", epilog=EXAMPLES)
    add_some_or_all(parser)
    add_timeout(parser)
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Tell them, and say what each does."""
    return verdict(args, tell(args, some_or_all(args, args.workers), "drain"))
