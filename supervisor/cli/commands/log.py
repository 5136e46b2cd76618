"""`leasehold log`: writes a line into a job's history. Runs in the command's process.

Must not change the job's state.
"""

import argparse
import os

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.parser import Subparsers
from supervisor.cli.lib.payload import read_json
from supervisor.cli.lib.terminal import say

EXAMPLES = """\
examples:
  leasehold log invoice-2031-07 'the customer called'
  leasehold log invoice-2031-07 'called again' --data '{"by": "ada"}'

`leasehold job` shows it with the history, of which the first entry and the last 99 are kept."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("log", description="Write a line into a job's history.", epilog=EXAMPLES)
    parser.add_argument("jid", metavar="JID")
    parser.add_argument("message", metavar="MESSAGE", help="the line")
    parser.add_argument("--data", metavar="JSON", help="data to store with the line")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Write the line."""
    data = None if args.data is None else read_json(os.fsencode(args.data), "--data")
    with connect(args) as client, arguments():
        client.log(args.jid, args.message, data)
    say(f"written into the history of {args.jid}")
    return 0
