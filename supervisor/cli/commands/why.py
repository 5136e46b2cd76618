"""`leasehold why`: tells why a job or a queue stands where it does. Reads only, in the command's process."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import add_json, read_options
from supervisor.cli.lib.parser import Subparsers, UsageError
from supervisor.cli.lib.shown import shortened
from supervisor.cli.lib.terminal import local_time, say, say_json
from supervisor.engine.model.bounds import WHY_S
from supervisor.units import parse_duration

if TYPE_CHECKING:
    from supervisor.engine.why.record import Why

EXAMPLES = """\
examples:
  leasehold why fJ3vO0TvQ2-FbM3kzqYx0w
  leasehold why --queue emails
  leasehold why invoice-2031-07 --json | jq -r .reason
  leasehold why --queue emails --timeout 2s

The first line is the reason. The facts from which it was concluded follow. JID may be gone already."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("why", description="Why a job does not run, or a queue stands.", epilog=EXAMPLES)
    parser.add_argument("jid", metavar="JID", nargs="?", help="the id that put gave")
    parser.add_argument("--queue", metavar="QUEUE", help="ask about this queue instead")
    parser.add_argument(
        "--timeout", metavar="DURATION", default=f"{WHY_S * 1000:g}ms",
        help="how long to wait for the answers of supervisors (default: %(default)s)",
    )  # fmt: skip
    add_json(parser, "reason, sentence and facts")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Print the sentence, and the facts below it."""
    if (args.jid is None) == (args.queue is None):
        raise UsageError("give JID or --queue, one of the two")
    timeout_s = read_options(args, {"timeout": parse_duration})["timeout"]
    with connect(args) as client, arguments():
        if args.queue is None:
            why = client.why(args.jid, timeout=timeout_s)
        else:
            why = client.queue(args.queue).why(timeout=timeout_s)
    if args.json:
        say_json(asdict(why))
        return 0
    for line in readable(why):
        say(line)
    return 0


def readable(why: "Why") -> Iterator[str]:
    """Yield the sentence, and the facts below it."""
    yield why.sentence
    width = max(map(len, why.facts))
    for name, value in why.facts.items():
        yield f"  {name:<{width}}  {_words(name, value)}"


def _words(name: str, value: Any) -> str:
    if name.endswith("_unix") and value is not None:
        return local_time(value)
    return shortened(value if isinstance(value, str) else orjson.dumps(value).decode())
