"""`leasehold depend`: the dependencies of a job. Runs in the command's process. Must not create jobs."""

import argparse

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.lookup import job_of
from supervisor.cli.lib.parser import Subparsers, UsageError
from supervisor.cli.lib.terminal import say

EXAMPLES = """\
examples:
  leasehold depend report --on rows-1 rows-2
  leasehold depend report --off rows-2
  leasehold depend report --off all

Only of a job that waits for others already: `leasehold put --depends` begins it. Jobs that are complete, or that there
are none of, are not waited for. One that waits for nothing any more goes into its queue."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("depend", description="Let a job wait for others, or not.", epilog=EXAMPLES)
    parser.add_argument("jid", metavar="JID", help="the job that waits")
    parser.add_argument("--on", metavar="JID", nargs="+", default=[], help="wait for these too")
    parser.add_argument("--off", metavar="JID", nargs="+", default=[], help="do not wait for these; all: for none")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Change the dependencies, and print those that remain."""
    if bool(args.on) == bool(args.off):
        raise UsageError("give --on or --off, one of them")
    if "all" in args.off and len(args.off) > 1:
        raise UsageError("--off all stands alone")
    with connect(args) as client, arguments():
        job = job_of(client, args.jid)
        if args.on:
            job.depend(*args.on)
        elif args.off == ["all"]:
            job.undepend(all=True)
        else:
            job.undepend(*args.off)
        job = job_of(client, args.jid)
    if job.dependencies:
        say(f"{args.jid} waits for {' '.join(job.dependencies)}")
    else:
        say(f"{args.jid} waits for no other job: it is {job.state}")
    return 0
