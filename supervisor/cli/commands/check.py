"""`leasehold check` and `leasehold sweep`: maintenance of the data in Redis. They run in the command's process.

Without --repair `check` reads only. Must not decide what is wrong or how to repair it: the engine does.
"""

import argparse
from dataclasses import asdict

from supervisor.cli.lib.connection import add_connection, connect
from supervisor.cli.lib.options import MOST, add_json
from supervisor.cli.lib.parser import Subparsers
from supervisor.cli.lib.terminal import counted, note, say, say_json, table
from supervisor.exit_codes import Exit

CHECK_EXAMPLES = """\
examples:
  leasehold check
  leasehold check --repair
  leasehold check --json | jq -r '.[].kind'

Looks at the whole namespace in slices, while jobs run. Exit code 1: something is wrong, and was not mended."""

SWEEP_EXAMPLES = """\
examples:
  leasehold sweep

Takes the jobs whose lease has been over for longer than the grace, and forgets what was kept long enough. Supervisors
do so by themselves: this is for a namespace without any."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags of both."""
    parser = subparsers.add_parser("check", description="Look for inconsistencies.", epilog=CHECK_EXAMPLES)
    parser.add_argument("--repair", action="store_true", help="mend what is found, and say how")
    add_json(parser, "a list of what is wrong, and how it was mended")
    add_connection(parser)
    parser = subparsers.add_parser("sweep", description="Take jobs from lost workers, now.", epilog=SWEEP_EXAMPLES)
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Run the check or the sweep."""
    return _sweep(args) if args.command == "sweep" else _check(args)


def _check(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = client.check(repair=args.repair)
    left = sum(violation.repaired is None for violation in found)
    if args.json:
        say_json([asdict(violation) for violation in found])
    elif found:
        table(
            ("kind", "subject", "what is wrong", "mended"), [(v.kind, v.subject, v.detail, v.repaired) for v in found]
        )
    else:
        say("nothing is wrong")
    if left:
        note(f"{counted(left, 'violation')} left" + ("" if args.repair else "; --repair mends them"))
    return Exit.REFUSED if left else Exit.OK


def _sweep(args: argparse.Namespace) -> int:
    with connect(args) as client:
        taken = batch = client.sweep(MOST)
        while batch == MOST:
            batch = client.sweep(MOST)
            taken += batch
    say(f"took {counted(taken, 'job')} from lost workers")
    return 0
