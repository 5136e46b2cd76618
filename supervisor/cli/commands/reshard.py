"""`leasehold reshard`: moves the jobs of a namespace from one shard into several. Runs in the command's process.

It may be killed at any point, and goes on when it is run again.
"""

import argparse
from typing import TYPE_CHECKING

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.consent import confirm
from supervisor.cli.lib.parser import Refusal, Subparsers
from supervisor.cli.lib.progress import ProgressLine
from supervisor.cli.lib.terminal import counted, say
from supervisor.engine.client.sync_calls import calls_of

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.commands.resharding import MovedJobs

EXAMPLES = """\
examples:
  leasehold reshard 16 --dry-run
  leasehold reshard 16
  leasehold reshard 16 --yes

A number stays for ever: no way leads back to one shard, or to another number. Supervisors and clients of this version
find the shards by themselves. While jobs move, those that run go on, and puts wait. What runs, or is bound to other
jobs, stays in the first shard and runs from there: the same command again moves it once that is over. Killed or cut
off in between, it is to be run again and goes on."""

_MEANWHILE = "Until it is done puts and leases wait, while what runs goes on."
_FOR_EVER = "The number of shards stays for ever."
_CURE = "A key has a foreign type: `leasehold check --repair` moves it aside."


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser(
        "reshard", description="Move the jobs of a namespace from one shard into several.", epilog=EXAMPLES
    )
    parser.add_argument("shards", type=int, metavar="N", help="number of shards, 2 to 64")
    parser.add_argument("--dry-run", action="store_true", help="only say what would move and what would stay")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Say what is to move, ask, and move it."""
    from supervisor.engine.commands import resharding
    from supervisor.engine.model.errors import LeaseholdError
    from supervisor.engine.model.shards import checked_shards

    with connect(args) as client:
        with arguments():
            checked_shards("shards", args.shards)
        calls = calls_of(client)
        given = calls.namespace, args.shards, calls.clock
        try:
            planned = calls.shards.walk(resharding.survey(*given))
        except LeaseholdError as error:
            if "WRONGTYPE" in str(error):
                raise Refusal(f"{error} {_CURE}") from error
            raise
        if args.dry_run:
            say(f"{_go(planned, 'would move')} {_stay(planned, 'would stay')}")
            return 0
        confirm(args, f"{_go(planned, 'will move')} {_MEANWHILE} {_FOR_EVER} Go on?", "nothing was moved")
        try:
            moved = _move(client, args.shards, sum(planned.jobs.values()))
        except (LeaseholdError, KeyboardInterrupt) as error:
            why = "Interrupted" if isinstance(error, KeyboardInterrupt) else str(error).rstrip(".")
            raise Refusal(
                f"{why}. Until the move is done puts and leases wait: `leasehold reshard {args.shards}` goes on with"
                " it, if it has begun"
            ) from error
        say(f"done: {_go(moved, 'moved')} {_stay(moved, 'stay')}")
    return 0


def _move(client: "Client", shards: int, total: int) -> "MovedJobs":
    from supervisor.engine.commands import resharding

    calls = calls_of(client)
    with ProgressLine(total) as line:

        def show(moved: int) -> None:
            line.show(min(moved, total), f"{moved:,} of {total:,} jobs")

        return calls.shards.walk(resharding.move(calls.namespace, shards, calls.clock, show))


def _go(moved: "MovedJobs", verb: str) -> str:
    """Say how much moves, and where."""
    beside = "".join(
        f", {counted(number, noun)}" for number, noun in ((moved.recurrences, "recurring job"), (moved.limits, "limit"))
        if number
    )  # fmt: skip
    others = len(moved.jobs)
    into = f" into {counted(others, 'other shard')} of {moved.shards}" if others else ""
    return f"{counted(sum(moved.jobs.values()), 'job')}{beside} {verb}{into}."


def _stay(moved: "MovedJobs", verb: str) -> str:
    """Say how much stays in the first shard, and why."""
    from supervisor.engine.commands.resharding import WHY

    others = " or ".join(f"{words} ({moved.stay[why]:,})" for why, words in WHY.items() if moved.stay[why])
    reasons = [f"{sum(moved.stay.values()):,} more that {others}"] if others else []
    reasons += [
        f"{number:,} {noun}" for number, noun in (
            (moved.recurrences_stay, "recurring jobs with a limit or a unique key"),
            (moved.limits_stay, "limits that jobs there have"), (moved.batches_stay, "batches"),
        ) if number
    ]  # fmt: skip
    home = f"In the first shard {verb} {counted(moved.at_home, 'job')} whose place it is"
    if not reasons:
        return f"{home}."
    return f"{home}; {'; '.join(reasons)}: `leasehold reshard {moved.shards}` again moves what is free of that by then."
