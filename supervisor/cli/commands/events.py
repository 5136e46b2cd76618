"""`leasehold events`: prints events until Ctrl-C. Reads only, in the command's process.

Must not keep events: the jobs' histories have the earlier ones.
"""

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.parser import Subparsers
from supervisor.cli.lib.terminal import local_time, note, say, say_json

if TYPE_CHECKING:
    from supervisor.engine.client.event_stream import Event

EXAMPLES = """\
examples:
  leasehold events
  leasehold events --queue emails --json | jq 'select(.name == "job.failed")'
  leasehold events --tracked

Ctrl-C ends it. Several flags select events that match all of them."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("events", description="Follow what happens.", epilog=EXAMPLES)
    parser.add_argument("--queue", metavar="NAME", help="only events of this queue")
    parser.add_argument("--jid", metavar="JID", help="only events of this job")
    parser.add_argument("--worker", metavar="NAME", help="only events of this worker")
    parser.add_argument("--tracked", action="store_true", help="only events of tracked jobs")
    parser.add_argument("--json", action="store_true", help="each event as one line of JSON")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Print each event until Ctrl-C, which is success."""
    try:
        with connect(args) as client, arguments():
            stream = client.events(queue=args.queue, jid=args.jid, worker=args.worker, tracked=args.tracked)
            with stream:
                note("listening; Ctrl-C ends it")
                for event in stream:
                    _say(event, args.json)
    except KeyboardInterrupt:
        pass  # the regular end
    return 0


def _say(event: "Event", as_json: bool) -> None:
    if as_json:
        say_json(asdict(event))
    else:
        known = (("jid", event.jid), ("klass", event.klass), ("queue", event.queue), ("worker", event.worker))
        parts = [f"{name}={value}" for name, value in (*known, *event.fields.items()) if value not in (None, "")]
        say(" ".join([local_time(event.when_unix), event.name, *parts]))
    sys.stdout.flush()
