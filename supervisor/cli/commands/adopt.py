"""`leasehold adopt`: looks at the queues of another program, and takes them over. Runs in the command's process.

Adds doors to those of Celery, RQ and Sidekiq, and moves the jobs of qless and reqless; both only with --apply. Changes
nothing else of the other program.
"""

import argparse
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from supervisor.cli.lib.connection import add_connection, arguments, connect, engine_errors
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError, given
from supervisor.cli.lib.terminal import counted, note, say, say_json, table
from supervisor.config import CONNECTION, read
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands.foreign import PROGRAMS, ForeignQueue, survey
from supervisor.engine.model.doors import checked_door
from supervisor.engine.model.errors import LeaseholdError

if TYPE_CHECKING:
    from supervisor.engine.client.qless import OldSystem, Qless
    from supervisor.engine.client.qless_mover import Moved
    from supervisor.engine.client.sync_client import Client

EXAMPLES = """\
examples:
  leasehold adopt celery://localhost:6379/0            # what would work, and what not; changes nothing
  leasehold adopt celery://localhost:6379/0 --apply    # adds a door to each queue without trouble
  leasehold adopt sidekiq+rediss://jobs.example.com
  leasehold adopt rq+unix:///run/redis.sock --json

  leasehold adopt qless://old.example.com --redis-url redis://localhost --apply    # moves its jobs here

The address is that of its Redis. That of Celery, RQ or Sidekiq must be that of the supervisors, and their own workers
may go on: each entry is taken by exactly one. Those of qless and reqless must be stopped before their jobs are moved.
A look reads up to 100 entries of a queue, and loads no pickle."""

#: Programs whose state is their own scripts': no door can lead there, so their jobs are moved.
_MOVED = ("qless", "reqless")
_ALL = (*PROGRAMS, *_MOVED)
_FORMATS = {"celery": "celery", "sidekiq": "sidekiq", "rq": "rq-json"}


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("adopt", description="Take over the queues of another program.", epilog=EXAMPLES)
    parser.add_argument("url", metavar="URL", help=f"{', '.join(_ALL)}: its name in place of redis, or before +")
    parser.add_argument("--apply", action="store_true", help="add the doors, or move the jobs")
    add_json(parser, "a list of queues, or of qless an object")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Look, say what would work, and take over if that is wanted."""
    program, url = _split(args.url)
    if program in _MOVED:
        return _move(args, program, url)
    if getattr(args, "redis-url") is not None:
        raise UsageError("--redis-url is what URL says: give one of them")
    setattr(args, "redis-url", url)
    with connect(args) as client:
        found = calls_of(client).follow(survey(program))
        if not found.queues:
            raise Refusal(f"there is no queue of {program} in this database")
        rows = [_row(program, each) for each in found.queues]
        if args.apply:
            _add_doors(client, program, rows)
    if args.json:
        say_json(rows)
        return 0
    table(
        ("queue", "waiting", "names", "door", "what does not work"),
        [(row["queue"], row["waiting"], _listed(row["names"]), row["door"], _trouble(row)) for row in rows],
    )
    for each in found.notes:
        note(each)
    if not args.apply and any(row["door"] for row in rows):
        say("nothing is changed; --apply adds the doors")
    return 0


def _split(url: str) -> tuple[str, str]:
    """Return the program, and the address of its Redis."""
    scheme, _, rest = url.partition("://")
    program, _, own = scheme.partition("+")
    if program not in _ALL or not rest:
        raise UsageError(f"URL must begin with one of {', '.join(f'{name}://' for name in _ALL)}")
    return program, f"{own or 'redis'}://{rest}"


def _row(program: str, queue: ForeignQueue) -> dict[str, Any]:
    format, door = _FORMATS[program], f"{program}-{queue.queue}"
    why_not = _why_no_door(format, door, queue)
    return {
        "queue": queue.queue,
        "list": queue.list,
        "waiting": queue.waiting,
        "looked_at": queue.looked_at,
        "names": dict(queue.names),
        "problems": dict(queue.problems),
        "door": None if why_not else door,
        "why_not": why_not,
    }


def _why_no_door(format: str, door: str, queue: ForeignQueue) -> str | None:
    try:
        checked_door(door, format, queue.list, queue.queue, None, None)
    except ValueError as error:
        return str(error)
    return None


def _add_doors(client: "Client", program: str, rows: list[dict[str, Any]]) -> None:
    doors = {key: door for door in client.doors.list() for key in door.lists}
    for row in rows:
        if (before := doors.get(row["list"])) is not None:
            note(f"door {before.name} leads from {row['list']} to queue {before.queue} already")
        elif row["problems"]:
            note(f"no door to {row['queue']}: entries would be broken; `leasehold door add` adds one all the same")
        elif row["door"] is not None:
            with arguments():
                client.doors.add(row["door"], format=_FORMATS[program], source=row["list"], queue=row["queue"])
            note(f"door {row['door']} leads to queue {row['queue']}")


def _listed(names: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(names.items()))


def _trouble(row: dict[str, Any]) -> str:
    said = [f"{count} of {row['looked_at']}: {problem}" for problem, count in row["problems"].items()]
    return "; ".join([*([f"no door: {row['why_not']}"] if row["why_not"] else []), *said])


def _move(args: argparse.Namespace, program: str, url: str) -> int:
    """Look at a qless, and move its jobs if that is wanted."""
    if args.apply and read(CONNECTION, given(args), os.environ)["redis_url"] is None:
        raise UsageError("--apply needs --redis-url, or LEASEHOLD_REDIS_URL: say where the jobs are to go")
    from supervisor.engine.client.connection import find_server
    from supervisor.engine.client.qless import Qless

    with engine_errors():
        with arguments():
            source = Qless(find_server(url))
        with closing(source), source.spoken():
            found = source.look()
            if not found.queues and not found.failed:
                raise Refusal(f"there is no queue of {program} in this database")
            moved = _moved(args, source) if args.apply else None
    _say_system(args, found, moved)
    return 0


def _moved(args: argparse.Namespace, source: "Qless") -> "Moved":
    from supervisor.engine.client.qless_mover import Moved, Mover

    with connect(args) as client:
        mover = Mover(source, client)
        try:
            return mover.move()
        except LeaseholdError:
            if mover.moved != Moved():
                _note_left(mover.moved)
                note(f"{_result(mover.moved)} before this error")
            raise


def _say_system(args: argparse.Namespace, found: "OldSystem", moved: "Moved | None") -> None:
    if args.json:
        say_json({**asdict(found), "moved": None if moved is None else asdict(moved)})
        return
    kinds = ("waiting", "running", "stalled", "scheduled", "depends", "throttled", "recurring")
    table(
        ("queue", *kinds, "paused", "klasses", "what would stay there"),
        [
            (
                each.queue,
                *(each.counts[kind] for kind in kinds),
                "yes" if each.paused else "-",
                _listed(each.klasses),
                "; ".join(f"{count} of {each.looked_at}: {why}" for why, count in each.problems.items()),
            )
            for each in found.queues
        ],
    )
    for group, count in found.failed.items():
        note(f"failed in group {group}: {count}")
    for why, count in found.failed_problems.items():
        note(f"{count} of the first failed jobs would stay there: {why}")
    if found.number_of_queues > len(found.queues):
        note(f"only the first {len(found.queues)} of {found.number_of_queues} queues are shown")
    if found.complete:
        note(f"completed jobs stay there with their history: {found.complete}")
    if moved is None:
        for sentence in found.living:
            note(f"nothing could be moved now: {sentence}")
        say("nothing is changed; --apply moves the jobs")
        return
    _note_left(moved)
    say(_result(moved))


def _note_left(moved: "Moved") -> None:
    for left in moved.left:
        note(f"job {left.jid} of queue {left.queue} stays there: {left.why}")
    if moved.number_left > len(moved.left):
        note(f"and {moved.number_left - len(moved.left)} more")


def _result(moved: "Moved") -> str:
    return f"moved {counted(moved.jobs, 'job')}, and {counted(moved.recurring, 'recurring job')}"
