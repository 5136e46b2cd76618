"""`leasehold pause` and `leasehold unpause`: let nothing new start from a queue, for a while. They run in the command's
process. Must not touch jobs: what runs goes on.
"""

import argparse

from supervisor.cli.connection import add_connection, arguments, connect
from supervisor.cli.lookup import queues_of
from supervisor.cli.parser import Subparsers, near
from supervisor.cli.terminal import note, say

PAUSE_EXAMPLES = """\
examples:
  leasehold pause emails
  leasehold pause emails reports
  leasehold pause 'email-*' '!email-bulk'

A pattern stands for the queues that there are now, all of which are named. What runs goes on. `leasehold queues` shows
what is paused."""

UNPAUSE_EXAMPLES = """\
examples:
  leasehold unpause emails
  leasehold unpause 'email-*'"""


def add(subparsers: Subparsers) -> None:
    """Declare the arguments of both."""
    parser = subparsers.add_parser("pause", description="Let nothing new start from queues.", epilog=PAUSE_EXAMPLES)
    parser.add_argument("queues", metavar="QUEUE", nargs="+", help="its name, or a pattern")
    add_connection(parser)
    parser = subparsers.add_parser("unpause", description="Let paused queues go on.", epilog=UNPAUSE_EXAMPLES)
    parser.add_argument("queues", metavar="QUEUE", nargs="+", help="its name, or a pattern")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Do it, and say it; a queue that nobody has put to yet may be paused too."""
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
