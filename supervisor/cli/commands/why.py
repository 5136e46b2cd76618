"""`leasehold why`: tells why a job or a queue stands where it does. Reads only, in the command's process."""

import argparse
from dataclasses import asdict
from typing import Any

import orjson

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Subparsers, UsageError
from supervisor.cli.lib.shown import shortened
from supervisor.cli.lib.terminal import local_time, say, say_json

EXAMPLES = """\
examples:
  leasehold why fJ3vO0TvQ2-FbM3kzqYx0w
  leasehold why --queue emails
  leasehold why invoice-2031-07 --json | jq -r .reason

The first line is the reason. The facts from which it was concluded follow. JID may be gone already."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("why", description="Why a job does not run, or a queue stands.", epilog=EXAMPLES)
    parser.add_argument("jid", metavar="JID", nargs="?", help="the id that put gave")
    parser.add_argument("--queue", metavar="QUEUE", help="ask about this queue instead")
    add_json(parser, "reason, sentence and facts")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Print the sentence, and the facts below it."""
    if (args.jid is None) == (args.queue is None):
        raise UsageError("give JID or --queue, one of the two")
    with connect(args) as client, arguments():
        why = client.why(args.jid) if args.queue is None else client.queue(args.queue).why()
    if args.json:
        say_json(asdict(why))
        return 0
    say(why.sentence)
    width = max(map(len, why.facts))
    for name, value in why.facts.items():
        say(f"  {name:<{width}}  {_words(name, value)}")
    return 0


def _words(name: str, value: Any) -> str:
    if name.endswith("_unix") and value is not None:
        return local_time(value)
    return shortened(value if isinstance(value, str) else orjson.dumps(value).decode())
