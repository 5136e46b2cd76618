"""`leasehold top`: shows queues, supervisors, children and their jobs live. Runs in the command's process.

Must not import rich before it is known to be installed: it is an extra.
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
from supervisor.config import CONNECTION, read
from supervisor.redis_url import redacted
from supervisor.units import parse_duration

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client

EXAMPLES = """\
examples:
  leasehold top
  leasehold top --every 500ms
  leasehold top | less

? shows the keys, w all that is wrong, q quits. A pipe, or a terminal that cannot be redrawn, gets one listing of
everything. Rates cover the last seconds; failed counts today. in/s: computed from queue sizes and ended jobs. wait,
run: the mean of jobs that started or completed in the last seconds. wait counts from the put or the last return, and
includes a requested delay; oldest does not. Yellow: needs attention, like a wait of a minute; red: dead, stalled,
failed, or no answer. NO_COLOR=1 turns colours off. For programs: `leasehold status --json`."""

#: An eye cannot follow a faster screen, and a slower one is not live.
_FASTEST_S: Final = 0.2
_SLOWEST_S: Final = 60.0
_SHEET_COLUMNS: Final = 160


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("top", description="What is going on, live.", epilog=EXAMPLES)
    parser.add_argument("--every", metavar="DURATION", default="1s", help="how often to poll (default: 1s)")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Draw until the user quits. Where nothing can be redrawn, write everything once."""
    every_s = _every_s(args)
    try:
        from supervisor.cli.top import terminal
    except ImportError:
        raise Refusal(
            "top needs the package rich: pip install 'leasehold[cli]'; `leasehold queues`, `leasehold status` and"
            " `leasehold failed` tell the same without it"
        ) from None
    values = read(CONNECTION, given(args), os.environ)
    context = {"namespace": values["namespace"], "url": redacted(values["redis_url"] or "embedded:")}
    with connect(args) as client, arguments():
        return (_live if terminal.is_live() else _once)(client, context, every_s)


def _every_s(args: argparse.Namespace) -> float:
    every_s: float = read_options(args, {"every": parse_duration})["every"]
    if not _FASTEST_S <= every_s <= _SLOWEST_S:
        raise UsageError(f"--every {args.every!r} must be from {_FASTEST_S:g}s to {_SLOWEST_S:g}s")
    return every_s


def _live(client: "Client", context: dict[str, str], every_s: float) -> int:
    from supervisor.cli.top.controller import Controller
    from supervisor.cli.top.loop import Loop
    from supervisor.cli.top.model import Model
    from supervisor.cli.top.polling import Poller
    from supervisor.cli.top.terminal import is_unicode
    from supervisor.cli.top.view import ASCII, UNICODE, View

    model, poller = Model(), Poller(client, every_s)
    model.take(poller.poll())  # an unreachable Redis is reported before the screen is taken
    controller = Controller(model)
    loop = Loop(client, model, poller, context, every_s)
    ended_by = loop.run(controller, View(model, controller, UNICODE if is_unicode() else ASCII))
    loop.close()
    if ended_by is not None:  # ends as if the signal had not been caught, with the terminal restored
        signal.signal(ended_by, signal.SIG_DFL)
        signal.raise_signal(ended_by)
    return 0


def _once(client: "Client", context: dict[str, str], every_s: float) -> int:
    """Poll twice: rates need two snapshots."""
    from supervisor.cli.top.controller import Controller
    from supervisor.cli.top.model import Model
    from supervisor.cli.top.polling import Poller
    from supervisor.cli.top.terminal import is_unicode
    from supervisor.cli.top.view import ASCII, UNICODE, Context, View

    model, poller = Model(), Poller(client, every_s)
    model.take(poller.poll())
    threading.Event().wait(every_s)
    model.take(poller.poll())
    controller = Controller(model)
    view = View(model, controller, UNICODE if is_unicode() else ASCII)
    now = Context(context["namespace"], context["url"], clock.time_of_day(), clock.monotonic(), every_s)
    for line in view.sheet(now, _SHEET_COLUMNS):
        say(line.plain.rstrip())
    return 0
