"""`leasehold pause` and `leasehold unpause`: stop and resume new starts of a queue or at a supervisor.

They run in the command's process. Must not touch jobs: running jobs go on.
"""

import argparse

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.lookup import queues_of
from supervisor.cli.lib.parser import Subparsers, UsageError, near
from supervisor.cli.lib.supervisors import add_timeout, report_undone, request
from supervisor.cli.lib.terminal import note, say

PAUSE_EXAMPLES = """\
examples:
  leasehold pause emails
  leasehold pause emails reports
  leasehold pause 'email-*' '!email-bulk'
  leasehold pause --worker web-1-4711-3f2a
  leasehold pause --all-workers

A pattern selects the queues that exist now, and the output names them. Running jobs go on. `leasehold queues` shows
paused queues. --worker: this supervisor starts no job of any queue until it is unpaused or restarted. It hands back
what it had not started. `leasehold status` shows it. Exit code 1 if one has not answered in time."""

UNPAUSE_EXAMPLES = """\
examples:
  leasehold unpause emails
  leasehold unpause 'email-*'
  leasehold unpause --worker web-1-4711-3f2a
  leasehold unpause --all-workers"""


def add(subparsers: Subparsers) -> None:
    """Declare the arguments of both."""
    _add_target(subparsers.add_parser("pause", description="Let nothing new start.", epilog=PAUSE_EXAMPLES))
    _add_target(subparsers.add_parser("unpause", description="Let what is paused go on.", epilog=UNPAUSE_EXAMPLES))


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queues", metavar="QUEUE", nargs="*", help="a name or a pattern; or, instead of queues:")
    parser.add_argument(
        "--worker", metavar="WORKER", action="append", default=[], help="a supervisor; repeat it for several"
    )
    parser.add_argument("--all-workers", action="store_true", help="all supervisors that run")
    add_timeout(parser)
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Pause or unpause, and print what was done."""
    if bool(args.queues) + bool(args.worker) + args.all_workers != 1:
        raise UsageError("give QUEUE, --worker or --all-workers, one of the three")
    if args.queues:
        return _queues(args)
    return report_undone(args, request(args, args.worker, "pause" if args.command == "pause" else "resume"))


def _queues(args: argparse.Namespace) -> int:
    """Pause or unpause queues. A queue without a first job may be paused too."""
    with connect(args) as client, arguments():
        names = queues_of(client, args.queues)
        known = client.queues()
        for queue in map(client.queue, names):
            if args.command == "pause":
                queue.pause()
            else:
                queue.unpause()
    say(f"{args.command}d {' '.join(names)}")
    for name in names:
        if name not in known:
            note(f"no job was ever put into queue {name}{near(name, known)}")
    return 0
