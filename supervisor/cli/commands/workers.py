"""`leasehold workers`: lists the workers and their jobs. Runs in the command's process. Must not signal any worker."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError, near
from supervisor.cli.lib.served import is_present
from supervisor.cli.lib.shown import span
from supervisor.cli.lib.terminal import counted, local_time, note, say, say_json, table

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.commands.workers import WorkerJobs


EXAMPLES = """\
examples:
  leasehold workers
  leasehold workers --all
  leasehold workers web-1-4711-3f2a --json
  leasehold workers --deregister web-1-4711-3f2a

A worker is one running `leasehold run`. A worker that was not seen for a minute and holds no job counts as gone; --all
shows the last day's, too. `leasehold status` shows what a worker does. --deregister moves its jobs to the front
of their queues at once. A worker that is still alive stops those jobs and goes on under a new name."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("workers", description="Who works, and on what.", epilog=EXAMPLES)
    parser.add_argument("name", metavar="NAME", nargs="?", help="the jobs of this worker")
    parser.add_argument("--deregister", metavar="NAME", help="forget this worker, and take its jobs from it")
    parser.add_argument("--all", action="store_true", help="list those that are gone, too")
    add_json(parser, "a list of workers, most recently seen first; or one with its jobs")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """List the workers, or show or forget one."""
    if args.deregister is not None:
        if args.name is not None or args.json or args.all:
            raise UsageError("--deregister stands alone")
        return _deregister(args)
    if args.all and args.name is not None:
        raise UsageError("give NAME or --all, not both")
    return _list(args) if args.name is None else _one(args)


def _list(args: argparse.Namespace) -> int:
    with connect(args) as client:
        known = client.workers()
    workers = [each for each in known if args.all or is_present(each)]
    if args.json:
        say_json([asdict(worker) for worker in workers])
    elif workers:
        rows = [
            (each.name, each.running, each.stalled, f"{span(each.unseen_s)} ago", local_time(each.seen_unix))
            for each in workers
        ]
        table(("worker", "running", "stalled", "seen", "at"), rows)
    elif known:
        note(f"no worker is here; the last one was seen {span(known[0].unseen_s)} ago, and --all shows it")
    else:
        note("no worker has been here")
    return 0


def _one(args: argparse.Namespace) -> int:
    with connect(args) as client, arguments():
        found = _found(client, args.name)
    if args.json:
        say_json(asdict(found))
        return 0
    say(f"worker     {found.name}")
    say(f"last seen  {local_time(found.seen_unix)}")
    say(f"running    {' '.join(found.running) or '-'}")
    if found.stalled:
        say(f"stalled    {' '.join(found.stalled)}")
    return 0


def _deregister(args: argparse.Namespace) -> int:
    with connect(args) as client, arguments():
        _found(client, args.deregister)
        handed_back = client.deregister(args.deregister)
    say(f"deregistered {args.deregister}; {counted(handed_back, 'job')} handed back")
    return 0


def _found(client: "Client", name: str) -> "WorkerJobs":
    found = client.worker(name)
    if found.seen_unix is None and not found.running and not found.stalled:
        raise Refusal(f"there is no worker {name}{near(name, [each.name for each in client.workers()])}")
    return found
