"""`leasehold signal`: send a job the signal that it waits for. Runs in the command's process."""

import argparse

import orjson

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.lookup import job_of
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError
from supervisor.cli.lib.terminal import say

EXAMPLES = """\
examples:
  leasehold signal order-7 approval '{"by": "ann"}'
  leasehold signal order-7 approval            # null
  leasehold signal order-7 sleep-1             # ends its first job.sleep early

A job that waits for it goes to the front of its queue. Else the signal is kept until its handler waits."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("signal", description="Send a job a signal.", epilog=EXAMPLES)
    parser.add_argument("jid", metavar="JID", help="the job")
    parser.add_argument("name", metavar="NAME", help="what its handler waits for: job.wait(NAME)")
    parser.add_argument("value", metavar="VALUE", nargs="?", default="null", help="JSON, at most 64 KiB; default: null")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Send the signal, and say what has become of the job."""
    try:
        value = orjson.loads(args.value)
    except ValueError as error:
        raise UsageError(f"VALUE must be JSON, such as '\"yes\"' or 7: {error}") from None
    with connect(args) as client, arguments():
        if not client.signal(args.jid, args.name, value):
            raise Refusal(f"job {job_of(client, args.jid).jid} is complete: it waits for nothing")
        job = job_of(client, args.jid)
    say(f"{args.jid} has the signal {args.name}: it is {job.state}")
    return 0
