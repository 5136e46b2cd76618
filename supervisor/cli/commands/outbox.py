"""`leasehold outbox`: puts the jobs of committed SQL transactions until a signal. Runs in the command's process.

Owns the signals that end it, and what it says of outages.
"""

import argparse
import signal
from typing import TYPE_CHECKING, Final

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import read_options, whole
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError
from supervisor.cli.lib.terminal import note, say
from supervisor.exit_codes import Exit
from supervisor.units import parse_duration

if TYPE_CHECKING:
    from supervisor.contrib.outbox.databases import Database
    from supervisor.contrib.outbox.relay import Relay, Turn

EXAMPLES = """\
examples:
  leasehold outbox sqlite:///app.db --create       # creates the tables, once
  leasehold outbox postgresql://app@db/shop        # relays until SIGTERM or Ctrl-C
  leasehold outbox sqlite:////srv/app/app.db --once

An entry that cannot be put stays in the table, with the reason in its column `refused`. Several relays of one outbox
take turns. The password of PostgreSQL comes from PGPASSWORD or PGPASSFILE."""

_ENDINGS: Final = {signal.SIGTERM, signal.SIGINT}
_POLL_S: Final = 0.5
_LONGEST_POLL_S: Final = 60.0


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("outbox", description="Put the jobs of a transactional outbox.", epilog=EXAMPLES)
    parser.add_argument("database", metavar="DATABASE", help="sqlite:///PATH or postgresql://…")
    parser.add_argument("--create", action="store_true", help="create the tables that are missing, and exit")
    parser.add_argument("--once", action="store_true", help="exit when the outbox is empty")
    parser.add_argument("--poll", metavar="DURATION", help="look this often (default: 500ms)")
    parser.add_argument("--batch", metavar="N", help="put at most so many entries at once (default: 500)")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Create the tables, or relay until a signal."""
    from supervisor.contrib.outbox.databases import DatabaseUnavailable, opened
    from supervisor.contrib.outbox.relay import BATCH, Relay

    options = read_options(args, {"poll": parse_duration, "batch": whole})
    poll_s = options.get("poll", _POLL_S)
    if not 0 < poll_s <= _LONGEST_POLL_S:
        raise UsageError(f"--poll {args.poll!r}: write 1ms to {_LONGEST_POLL_S:g}s")
    with arguments():
        database = opened(args.database)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)  # a turn is never cut off
    try:
        if args.create:
            database.create()
            say("the tables leasehold_outbox and leasehold_outbox_name are there")
            return Exit.OK
        with connect(args) as client:
            client.config.all()  # is Redis there?
            with database.turn() as is_ours:  # and the table?
                if is_ours:
                    database.name()
            with arguments():
                relay = Relay(database, client, options.get("batch", BATCH))
            _relay(relay, database, poll_s, args.once)
    except DatabaseUnavailable as error:
        remedy = "" if args.create else "; if its tables are missing, --create makes them"
        raise Refusal(f"{error}{remedy}", Exit.UNREACHABLE) from error
    finally:
        database.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Exit.OK


def _relay(relay: "Relay", database: "Database", poll_s: float, once: bool) -> None:
    """Take turns until a signal, or until nothing is left. An outage of either side ends nothing."""
    from supervisor.contrib.outbox.databases import DatabaseUnavailable
    from supervisor.contrib.outbox.relay import NOTHING
    from supervisor.engine.model.errors import OutcomeUnknown, StoreUnavailable

    note("relaying; SIGTERM or Ctrl-C ends it")
    turn, outage, is_ending = NOTHING, "", False
    while True:
        is_busy = turn.was_busy and not outage
        is_ending |= signal.sigtimedwait(_ENDINGS, 0 if is_busy or is_ending else poll_s) is not None
        if is_ending and not turn.put:  # entries that were put are deleted before the end
            return
        try:
            turn, outage = relay.turn(), ""
            _say_refused(turn)
        except (DatabaseUnavailable, StoreUnavailable, OutcomeUnknown) as error:
            if once or is_ending:
                raise
            if not outage:
                note(f"{error} Trying again.")
            turn, outage = NOTHING, str(error)
            database.close()
        if once and not turn.was_busy:
            return


def _say_refused(turn: "Turn") -> None:
    for id, reason in turn.refused:
        note(f"entry {id} was set aside: {reason}")
