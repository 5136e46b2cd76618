"""`leasehold lane`: shows and changes the lanes of a queue. Runs in the command's process.

Must not delete anything but the named lane, after confirmation.
"""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.consent import add_delete, check_delete, confirm, running_words
from supervisor.cli.lib.lookup import no_queue
from supervisor.cli.lib.options import add_json, within
from supervisor.cli.lib.parser import Subparsers, UsageError
from supervisor.cli.lib.shown import pause_words
from supervisor.cli.lib.terminal import counted, note, say, say_json, table

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.client.sync_queues import Lane
    from supervisor.engine.commands.lanes import LaneCounts

EXAMPLES = """\
examples:
  leasehold lane emails                        # all lanes of the queue
  leasehold lane emails customer-7 --json
  leasehold lane emails customer-7 --weight 3  # three starts for each one of a lane of weight 1
  leasehold lane emails customer-7 --pause
  leasehold lane emails customer-7 --delete    # says how many, and asks

A lane is a client's or tenant's share of a queue: `leasehold put --lane`. Lanes take turns, however many jobs each
has. The jobs without a lane form a lane without a name."""

MOST_WEIGHT = 1000


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("lane", description="The lanes of a queue.", epilog=EXAMPLES)
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("lane", metavar="LANE", nargs="?", help="only this lane")
    parser.add_argument(
        "--weight", metavar="N", help=f"its starts for each one of a lane of weight 1, to {MOST_WEIGHT}"
    )
    parser.add_argument("--pause", action="store_true", help="start no more jobs of it")
    parser.add_argument("--unpause", action="store_true", help="start its jobs again")
    add_delete(parser, "this lane")
    add_json(parser, "a list of lanes with their counts; or of one")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """List the lanes, or show or change one."""
    check_delete(args)
    changes = [name for name in ("weight", "pause", "unpause", "delete") if getattr(args, name) not in (None, False)]
    if len(changes) > 1:
        raise UsageError(f"give one of {' '.join(f'--{name}' for name in changes)}")
    if changes and (args.lane is None or args.json):
        raise UsageError(f"--{changes[0]} needs LANE, and no --json")
    weight = None if args.weight is None else within("--weight", args.weight, 1, MOST_WEIGHT)
    with connect(args) as client, arguments():
        if args.lane is None:
            _list(args, client)
        elif not changes:
            _show(args, client.queue(args.queue).lane(args.lane).counts())
        else:
            _change(args, client.queue(args.queue).lane(args.lane), weight)
    return 0


def _list(args: argparse.Namespace, client: "Client") -> None:
    lanes = client.queue(args.queue).lanes()
    if args.json:
        say_json([{"lane": name, **asdict(counts)} for name, counts in lanes.items()])
        return
    unknown = None if len(lanes) > 1 else no_queue(client, args.queue)
    if unknown:
        note(unknown)
    else:
        _table(lanes)


def _show(args: argparse.Namespace, counts: "LaneCounts") -> None:
    if args.json:
        say_json({"lane": args.lane, **asdict(counts)})
    else:
        _table({args.lane: counts})


def _table(lanes: "dict[str, LaneCounts]") -> None:
    columns = ("lane", "waiting", "running", "stalled", "parked", "weight", "paused")
    table(columns, [(name or None, *_cells(counts)) for name, counts in lanes.items()])


def _cells(counts: "LaneCounts") -> tuple[object, ...]:
    paused = pause_words(counts) if counts.paused else None
    return counts.waiting, counts.running, counts.stalled, counts.parked, counts.weight, paused


def _change(args: argparse.Namespace, lane: "Lane", weight: int | None) -> None:
    where = f"lane {args.lane} of queue {args.queue}"
    if args.delete:
        _delete(args, lane, where)
    elif weight is not None:
        lane.weight(weight)
        say(f"the weight of {where} is {weight}")
    elif args.pause:
        lane.pause()
        say(f"paused {where}")
    else:
        lane.unpause()
        say(f"unpaused {where}")


def _delete(args: argparse.Namespace, lane: "Lane", where: str) -> None:
    counts = lane.counts()
    ends = running_words(args, counts.running + counts.stalled)
    confirm(args, f"Delete {where}: drop {counted(counts.waiting + counts.parked, 'job')} and what is to come{ends}?")
    deleted = lane.delete("stop" if args.stop else "finish")
    rest = "stopped" if args.stop else "still running"
    say(f"deleted {where}: {counted(deleted.dropped, 'job')} dropped, {deleted.running:,} {rest}")
