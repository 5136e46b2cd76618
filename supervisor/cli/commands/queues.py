"""`leasehold queues`: shows the counts of each queue. Runs in the command's process.

Must not delete anything but the named queues, after confirmation.
"""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.consent import add_delete, check_delete, confirm, running_words
from supervisor.cli.lib.lookup import no_queue, queues_of
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError, near
from supervisor.cli.lib.served import ask_servers
from supervisor.cli.lib.shown import pause_words, span
from supervisor.cli.lib.terminal import counted, note, say, say_json, table
from supervisor.engine.client.sync_calls import calls_of

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.commands.queue_counts import Counts, Depths

EXAMPLES = """\
examples:
  leasehold queues
  leasehold queues emails 'report-*'
  leasehold queues --json | jq '.[] | select(.waiting > 1000) | .queue'
  leasehold queues emails --delete             # says how many, and asks
  leasehold queues emails --delete --stop --yes
  leasehold queues --forget old-reports

waiting: can start now, entries pushed by other programs included. stalled: the lease has expired and no supervisor has
taken over yet. scheduled: waits for its time. depends: waits for other jobs. parked: its limit is used up. recurring:
recurring jobs that put here. oldest: wait of the oldest job that can start. paused: no job starts,
with author and time. served: number of supervisors; nobody: no job here will start; -: a supervisor has not
said what it serves, or a program of your own leases jobs. --delete keeps complete and failed jobs; without --stop,
running jobs finish."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("queues", description="What waits, runs and stalls in each queue.", epilog=EXAMPLES)
    parser.add_argument("queues", metavar="QUEUE", nargs="*", help="names or patterns; none: all")
    add_delete(parser, "these queues")
    parser.add_argument("--forget", metavar="NAME", help="take an empty queue off the list")
    add_json(parser, "a list of queues with their counts, and the supervisors that serve each, null if not known")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Print the counts of the queues, delete some, or forget one."""
    check_delete(args)
    if args.forget is not None:
        if args.queues or args.delete or args.json:
            raise UsageError("--forget stands alone")
        return _forget(args)
    if args.delete:
        if not args.queues or args.json:
            raise UsageError("--delete needs QUEUE, and no --json")
        return _delete(args)
    return _list(args)


def _list(args: argparse.Namespace) -> int:
    with connect(args) as client, arguments():
        found = _counts(client, args.queues) if args.queues else client.queues()
        unknown = [no_queue(client, name) for name in found] if args.queues else []
        served = ask_servers(client, found, _PATIENCE_S) if found else None
    by = served or {}
    rows = [{"queue": name, **asdict(counts), "served_by": by.get(name)} for name, counts in found.items()]
    if args.json:
        say_json(rows)
        return 0
    if rows:
        table(_HEADS, [_cells(row, found[row["queue"]]) for row in rows])
    else:
        note("no job was ever put here")
    for sentence in filter(None, unknown):
        note(sentence)
    return 0


def _counts(client: "Client", patterns: list[str]) -> "dict[str, Depths]":
    from supervisor.engine.commands import queue_counts
    from supervisor.engine.model.bounds import MOST

    names = queues_of(client, patterns)
    found: dict[str, Depths] = {}
    for first in range(0, len(names), MOST):
        found |= calls_of(client).call(queue_counts.depths, names[first : first + MOST])
    return found


_COLUMNS = (
    "queue", "waiting", "running", "stalled", "scheduled", "depends", "parked", "recurring", "oldest_s", "paused",
    "served_by",
)  # fmt: skip
_HEADS = [column.removesuffix("_s").removesuffix("_by") for column in _COLUMNS]
#: A supervisor answers within one turn of its loop.
_PATIENCE_S: Final = 1.0


def _cells(row: dict[str, Any], counts: "Counts") -> list[Any]:
    row = {**row, "paused": pause_words(counts) if counts.paused else None}
    return [_cell(row[column]) for column in _COLUMNS]


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return len(value) or "nobody"
    return span(value) if isinstance(value, float) else value


def _delete(args: argparse.Namespace) -> int:
    with connect(args) as client, arguments():
        found = _counts(client, args.queues)
        known = client.queues()
        for name, counts in found.items():
            if name not in known and not counts.total:
                raise Refusal(f"there is no queue {name}{near(name, known)}")
        total, running = (sum(each.total for each in found.values()), sum(map(_running, found.values())))
        confirm(
            args, f"Delete {' '.join(found)}: drop {counted(total - running, 'job')}{running_words(args, running)}?"
        )
        for name in found:
            deleted = client.queue(name).delete("stop" if args.stop else "finish")
            say(f"deleted {name}: {counted(deleted.dropped, 'job')} dropped, {_done(args, deleted.running)}")
    return 0


def _running(counts: "Counts") -> int:
    return counts.running + counts.stalled


def _done(args: argparse.Namespace, running: int) -> str:
    return f"{running:,} stopped" if args.stop else f"{running:,} still running"


def _forget(args: argparse.Namespace) -> int:
    with connect(args) as client, arguments():
        if not client.queue(args.forget).forget():
            raise Refusal(f"there is no queue {args.forget}{near(args.forget, client.queues())}")
    say(f"queue {args.forget} is forgotten")
    return 0
