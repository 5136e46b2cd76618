"""`leasehold batch`: shows batches; cancels, retries, pauses and resumes one. Runs in the command's process."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Subparsers, UsageError
from supervisor.cli.lib.shown import pause_words
from supervisor.cli.lib.terminal import counted, local_time, note, say, say_json, table

if TYPE_CHECKING:
    from supervisor.engine.client.sync_batches import Batch
    from supervisor.engine.commands.batches import BatchRecord

EXAMPLES = """\
examples:
  leasehold batch                              # the first 25: those that have not ended, then the others
  leasehold batch import-7                     # its numbers, and the first 25 failed jobs
  leasehold batch import-7 --cancel            # delete its jobs that have not ended
  leasehold batch import-7 --retry             # put its failed jobs back into their queues
  leasehold batch import-7 --pause             # have none of its waiting jobs leased
  leasehold batch import-7 --resume            # let it go on

These include the batches in it. --cancel and --retry work in steps of 1,000 jobs. If one is interrupted, repeat it."""

_SHOWN = 25


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    description = "Show batches; cancel, retry, pause or resume one."
    parser = subparsers.add_parser("batch", description=description, epilog=EXAMPLES)
    parser.add_argument("id", metavar="ID", nargs="?", help="only this batch")
    parser.add_argument("--cancel", action="store_true", help="close it, and delete its jobs that have not ended")
    parser.add_argument("--retry", action="store_true", help="put its failed jobs back")
    parser.add_argument("--pause", action="store_true", help="lease none of its waiting jobs; what runs goes on")
    parser.add_argument("--resume", action="store_true", help="end its pause")
    add_json(parser, "a list of batches; or one, with the jids of its first 25 failed jobs")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """List the batches, or show or change one."""
    acts = args.cancel + args.retry + args.pause + args.resume
    if acts and args.id is None:
        raise UsageError("ID is missing: which batch?")
    if acts > 1:
        raise UsageError("--cancel, --retry, --pause and --resume exclude each other")
    if acts and args.json:
        raise UsageError("--json shows a batch: give it without --cancel, --retry, --pause and --resume")
    if args.id is None:
        return _list(args)
    with connect(args) as client, arguments():
        batch = client.batch(args.id)
        record = batch.look()
        if acts:
            return _act(args, batch)
        failed = batch.failures(0, _SHOWN)
    if args.json:
        say_json({**asdict(record), "failed_jobs": [job.jid for job in failed]})
        return 0
    say(_words(record))
    if failed:
        rows = [(job.jid, job.klass, job.queue, (job.failure or {}).get("message")) for job in failed]
        table(("failed jid", "klass", "queue", "message"), rows)
    return 0


def _list(args: argparse.Namespace) -> int:
    with connect(args) as client:
        batches = client.batches(0, _SHOWN)
    if args.json:
        say_json([asdict(batch) for batch in batches])
    elif batches:
        rows = [
            (
                one.id, _state(one), local_time(one.opened_unix), one.total, one.pending, one.complete, one.failed,
                one.cancelled, one.description,
            )
            for one in batches
        ]  # fmt: skip
        table(("id", "state", "opened", "jobs", "pending", "complete", "failed", "cancelled", "description"), rows)
    else:
        note("there is no batch")
    return 0


def _act(args: argparse.Namespace, batch: "Batch") -> int:
    if args.cancel:
        say(f"{args.id}: cancelled {counted(batch.cancel(), 'job')}")
    elif args.pause:
        say(f"{args.id}: {'paused' if batch.pause() else 'was paused already'}")
    elif args.resume:
        say(f"{args.id}: {'resumed' if batch.resume() else 'was not paused'}")
    else:
        say(f"{args.id}: put {counted(batch.retry(), 'failed job')} back")
    return 0


def _state(record: "BatchRecord") -> str:
    return "paused" if record.paused and record.ended_unix is None else record.state


def _words(record: "BatchRecord") -> str:
    words = (
        f"{record.id} is {record.state}: {counted(record.total, 'job')}, {record.pending:,} pending, "
        f"{record.complete:,} complete, {record.failed:,} failed, {record.cancelled:,} cancelled; opened "
        f"{local_time(record.opened_unix)}"
    )
    ended = f", ended {local_time(record.ended_unix)}" if record.ended_unix else ""
    paused = f"; paused: {pause_words(record)}" if record.paused else ""
    inside = f"; in batch {record.parent}" if record.parent else ""
    return f"{words}{ended}{paused}{inside}" + (f"; {record.description}" if record.description else "")
