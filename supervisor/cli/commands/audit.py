"""`leasehold audit`: shows who did what, the newest act first. Runs in the command's process. Must not change it."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import add_json, add_paging, paging
from supervisor.cli.lib.parser import Subparsers
from supervisor.cli.lib.terminal import local_time, note, say_json, table

if TYPE_CHECKING:
    from supervisor.engine.commands.audit import Act

EXAMPLES = """\
examples:
  leasehold audit                              # the last 25 acts
  leasehold audit 5hXv2mQk                     # those on one job
  leasehold audit emails --count 100           # those on a queue, its lanes and the jobs moved into it

An actor is what the caller said of itself: user@host of a command, or its --as; the login of the web page; of a signal
its name and sender. Nothing proves it. The newest 10,000 acts are kept, for up to 90 days."""

_NAMES = 3  # shown of one act


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("audit", description="Who did what, the newest first.", epilog=EXAMPLES)
    parser.add_argument("subject", metavar="JID", nargs="?", help="only acts on this job, queue or another thing")
    add_paging(parser)
    add_json(parser, "a list of acts")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Print the acts."""
    with connect(args) as client, arguments():
        acts = client.audit(args.subject, *paging(args))
    if args.json:
        say_json([asdict(act) for act in acts])
    elif acts:
        rows = [(local_time(act.at_unix), act.actor or "unknown", act.act, _things(act), act.value) for act in acts]
        table(("when", "claimed actor", "act", "on", "value"), rows)
    else:
        note("no act is recorded" if args.subject is None else f"no act on {args.subject} is recorded")
    return 0


def _things(act: "Act") -> str:
    named = ", ".join(act.names[:_NAMES]) or "all"
    things = f"{act.kind} {named}"
    if act.number > max(1, len(act.names[:_NAMES])):
        more = f"{act.number:,} jobs" if act.kind in ("queue", "lane", "batch") else f"{act.number:,} in all"
        things = f"{things} ({more})"
    return f"{things}, queue {act.queue}" if act.queue else things
