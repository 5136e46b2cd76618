"""`leasehold top`: queues, supervisors, children and what each is doing, live. Runs in the command's process.

Must not load what draws unless it is there: rich is an extra.
"""

import argparse
import os
import signal
import threading
from typing import TYPE_CHECKING, Final

from supervisor import clock
from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import read_options
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError, given
from supervisor.cli.lib.terminal import say
from supervisor.config import CONNECTION, parse_duration, read
from supervisor.redis_url import redacted

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client

EXAMPLES = """\
examples:
  leasehold top
  leasehold top --every 500ms
  leasehold top | less

? shows the keys, q ends it. Into a pipe, and on a terminal that cannot be drawn upon, all is written once. Rates
are those of the last seconds, failed is today's. in/s: by what lies there and what has ended. wait, run: the mean of
what has started, and completed, in the last seconds. wait counts from the put, or from the last return, and so has a
delay that was asked for; oldest has none. Yellow: not as it should be, like what waits for a minute; red: dead,
stalled, failed, or no answer. NO_COLOR=1 does without. For programs: `leasehold status --json`."""

#: Faster than that is no help to an eye, and slower no screen.
_FASTEST_S: Final = 0.2
_SLOWEST_S: Final = 60.0
_SHEET_COLUMNS: Final = 160


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("top", description="What is going on, live.", epilog=EXAMPLES)
    parser.add_argument("--every", metavar="DURATION", default="1s", help="how often to look (default: 1s)")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Draw until somebody quits; or write everything once where nothing can be drawn."""
    every_s = _every_s(args)
    try:
        from supervisor.cli.top import terminal
    except ImportError:
        raise Refusal(
            "top needs the package rich: pip install 'leasehold[cli]'; `leasehold queues`, `leasehold status` and"
            " `leasehold failed` tell the same without it"
        ) from None
    values = read(CONNECTION, given(args), os.environ)
    place = {"namespace": values["namespace"], "url": redacted(values["redis_url"] or "embedded:")}
    with connect(args) as client, arguments():
        return (_live if terminal.is_live() else _once)(client, place, every_s)


def _every_s(args: argparse.Namespace) -> float:
    every_s: float = read_options(args, {"every": parse_duration})["every"]
    if not _FASTEST_S <= every_s <= _SLOWEST_S:
        raise UsageError(f"--every {args.every!r} must be from {_FASTEST_S:g}s to {_SLOWEST_S:g}s")
    return every_s


def _live(client: "Client", place: dict[str, str], every_s: float) -> int:
    from supervisor.cli.top.desk import Desk
    from supervisor.cli.top.looking import Looker
    from supervisor.cli.top.loop import Loop
    from supervisor.cli.top.model import Model
    from supervisor.cli.top.terminal import is_unicode
    from supervisor.cli.top.view import ASCII, UNICODE, View

    model, looker = Model(), Looker(client, every_s)
    model.take(looker.look())  # who cannot reach Redis learns it before the screen is gone
    desk = Desk(model)
    loop = Loop(client, model, looker, place, every_s)
    ended_by = loop.run(desk, View(model, desk, UNICODE if is_unicode() else ASCII))
    loop.close()
    if ended_by is not None:  # as if we had not been in its way, but for the terminal
        signal.signal(ended_by, signal.SIG_DFL)
        signal.raise_signal(ended_by)
    return 0


def _once(client: "Client", place: dict[str, str], every_s: float) -> int:
    """Two looks, as rates are between them."""
    from supervisor.cli.top.desk import Desk
    from supervisor.cli.top.looking import Looker
    from supervisor.cli.top.model import Model
    from supervisor.cli.top.terminal import is_unicode
    from supervisor.cli.top.view import ASCII, UNICODE, Place, View

    model, looker = Model(), Looker(client, every_s)
    model.take(looker.look())
    threading.Event().wait(every_s)
    model.take(looker.look())
    desk = Desk(model)
    view = View(model, desk, UNICODE if is_unicode() else ASCII)
    now = Place(place["namespace"], place["url"], clock.time_of_day(), clock.monotonic(), every_s)
    for line in view.sheet(now, _SHEET_COLUMNS):
        say(line.plain.rstrip())
    return 0
