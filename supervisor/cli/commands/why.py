"""`leasehold why`: tells why a job, queue, batch or worker stands as it does. Reads only, in the command's process."""

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
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.why.record import Why

EXAMPLES = """\
examples:
  leasehold why fJ3vO0TvQ2-FbM3kzqYx0w
  leasehold why --queue emails
  leasehold why invoice-2031-07 --json | jq -r .reason
  leasehold why --queue emails --timeout 2s
  leasehold why --worker web-1-4711-3f2a      # refused code, a link that is cut, too little processor time, lost lines
  leasehold why --batch import                # open, paused, waiting for its jobs, or how it ended

The first line is the reason. The facts from which it was concluded follow. JID may be gone already."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("why", description="Why a job, queue, worker or batch stands so.", epilog=EXAMPLES)
    parser.add_argument("jid", metavar="JID", nargs="?", help="the id that put gave")
    parser.add_argument("--queue", metavar="QUEUE", help="ask about this queue instead")
    parser.add_argument("--worker", metavar="WORKER", help="ask about this supervisor instead")
    parser.add_argument("--batch", metavar="ID", help="ask about this batch instead")
    parser.add_argument(
        "--timeout", metavar="DURATION", default=f"{WHY_S * 1000:g}ms",
        help="how long to wait for the answers of supervisors (default: %(default)s)",
    )  # fmt: skip
    add_json(parser, "reason, sentence and facts")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Print the sentence, and the facts below it."""
    if sum(subject is not None for subject in (args.jid, args.queue, args.worker, args.batch)) != 1:
        raise UsageError("give JID, --queue, --worker or --batch, one of them")
    timeout_s = read_options(args, {"timeout": parse_duration})["timeout"]
    with connect(args) as client, arguments():
        why = _asked(client, args, timeout_s)
    if args.json:
        say_json(asdict(why))
        return 0
    for line in readable(why):
        say(line)
    return 0


def _asked(client: "Client", args: argparse.Namespace, timeout_s: float) -> "Why":
    if args.queue is not None:
        return client.queue(args.queue).why(timeout=timeout_s)
    if args.worker is not None:
        return client.why_worker(args.worker, timeout=timeout_s)
    if args.batch is not None:
        return client.batch(args.batch).why()
    return client.why(args.jid, timeout=timeout_s)


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
