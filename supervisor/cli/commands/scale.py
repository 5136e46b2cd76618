"""`leasehold scale`: sets how many jobs running supervisors run at once. Runs in the command's process.

Must not signal any process.
"""

import argparse
from typing import Any

from supervisor.cli.lib.connection import add_connection
from supervisor.cli.lib.parser import Subparsers, UsageError
from supervisor.cli.lib.supervisors import add_targets, add_timeout, report_undone, request, targets
from supervisor.setting_values import parse_processes

EXAMPLES = """\
examples:
  leasehold scale web-1-4711-3f2a 8
  leasehold scale web-1-4711-3f2a 2:8
  leasehold scale --all auto

WORKER is a name from `leasehold workers`. 8: eight processes; 2:8: as many as there is work for; auto: as many as its
machine has room for. A surplus process ends after its job. After the --drain-timeout of `leasehold run` the job gets
Interrupted and runs again. A restarted supervisor has as many as its flags say. Exit code 1 if one of them has
not answered in time, or refuses."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("scale", description="Have supervisors run more or fewer jobs.", epilog=EXAMPLES)
    add_targets(parser)
    parser.add_argument("processes", metavar="PROCESSES", help="N, MIN:MAX or auto")
    add_timeout(parser)
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Send the request, and print the new process counts."""
    wish = _wish(args.processes)
    return report_undone(args, request(args, targets(args, args.workers), "scale", wish))


def _wish(text: str) -> dict[str, Any]:
    try:
        wanted = parse_processes(text)
    except ValueError as error:
        raise UsageError(f"PROCESSES {text!r} {error}") from error
    return {"auto": True} if wanted is None else {"fewest": wanted[0], "most": wanted[1]}
