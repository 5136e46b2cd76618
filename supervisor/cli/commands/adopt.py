"""`leasehold adopt`: looks at the queues of another program, and takes them over. Runs in the command's process.

Adds doors to those of Celery, RQ and Sidekiq, and moves the jobs of qless and reqless; both only with --apply. Changes
nothing else of the other program.
"""

import argparse
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from supervisor.cli.lib.connection import add_connection, arguments, connect, engine_errors
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError, given
from supervisor.cli.lib.terminal import counted, note, say, say_json, table
from supervisor.config import CONNECTION, read
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands.foreign import PROGRAMS, ForeignQueue, ForeignSystem, survey
from supervisor.engine.model.doors import checked_door
from supervisor.engine.model.errors import LeaseholdError

if TYPE_CHECKING:
    from supervisor.engine.client.qless import OldSystem, Qless
    from supervisor.engine.client.qless_mover import Moved
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.model.doors import Door

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
_HANDLERS = {"celery": "; supervisor.contrib.celery.adopt(app) makes handlers of the tasks of an application"}


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
            raise Refusal("; ".join([f"there is no queue of {program} in this database", *found.notes]))
        doors = client.doors.list()
        rows = [_row(program, each, doors) for each in found.queues]
        known = {key: door for door in doors for key in door.lists}
        wanted = [row for row in rows if row["list"] not in known and _why_left_out(program, row) is None]
        if args.apply:
            _add_doors(client, program, wanted)
    if args.json:
        say_json(rows)
        return 0
    _say_queues(program, found, rows, known)
    if not args.apply:
        say(f"nothing is changed; --apply adds {counted(len(wanted), 'door')}")
    elif wanted:
        served = shlex.join(word for row in wanted for word in ("--queue", row["queue"]))
        say(f"supervisors of these queues take what waits there: leasehold run {served}")
    return 0


def _split(url: str) -> tuple[str, str]:
    """Return the program, and the address of its Redis."""
    scheme, _, rest = url.partition("://")
    program, _, own = scheme.partition("+")
    if program not in _ALL or not rest:
        raise UsageError(f"URL must begin with one of {', '.join(f'{name}://' for name in _ALL)}")
    return program, f"{own or 'redis'}://{rest}"


def _row(program: str, queue: ForeignQueue, doors: Sequence["Door"]) -> dict[str, Any]:
    format, door = _FORMATS[program], f"{program}-{queue.queue}"
    why_not = _why_no_door(format, door, queue, doors)
    return {
        "queue": queue.queue,
        "list": queue.list,
        "waiting": queue.waiting,
        "looked_at": queue.looked_at,
        "names": dict(queue.names),
        "would_run": dict(queue.would_run),
        "problems": dict(queue.problems),
        "door": None if why_not else door,
        "why_not": why_not,
    }


def _why_no_door(format: str, door: str, queue: ForeignQueue, doors: Sequence["Door"]) -> str | None:
    try:
        checked_door(door, format, queue.list, queue.queue, None, None)
    except ValueError as error:
        return str(error)
    others = (each.list for each in doors if each.name == door and each.list != queue.list)
    return next((f"door {door} leads from {other} already" for other in others), None)


def _why_left_out(program: str, row: dict[str, Any]) -> str | None:
    """Return why --apply adds no door to a queue, and what to do."""
    if row["why_not"]:
        return f"it can have no door of this name: {row['why_not']}"
    if row["problems"]:
        options = "--format", _FORMATS[program], "--source", row["list"], "--queue", row["queue"]
        command = shlex.join(["leasehold", "door", "add", row["door"], *options])
        return f"it gets no door, because what would not run would be `broken`; to add one all the same: {command}"
    return None


def _add_doors(client: "Client", program: str, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        with arguments():
            client.doors.add(row["door"], format=_FORMATS[program], source=row["list"], queue=row["queue"])
        note(f"door {row['door']} leads from {row['list']} to queue {row['queue']}")


def _say_queues(program: str, found: ForeignSystem, rows: list[dict[str, Any]], known: Mapping[str, "Door"]) -> None:
    table(
        ("queue", "waiting", "looked at", "would run", "would not"),
        [
            (row["queue"], row["waiting"], row["looked_at"], _total(row["would_run"]), _total(row["problems"]))
            for row in rows
        ],
    )
    for row in rows:
        for sentence in _sentences(program, row, known.get(row["list"])):
            _say_line(f"queue {row['queue']}: {sentence}")
    for each in found.notes:
        say(f"elsewhere: {each}")
    if name := min((name for row in rows for name in row["would_run"]), default=None):
        hint = _HANDLERS.get(program, "")
        _say_line(f'each name needs a handler of this name, such as @handler(name="{name}"){hint}')


def _sentences(program: str, row: dict[str, Any], door: "Door | None") -> Iterator[str]:
    """Yield which entries of a queue would run, which not and why, and whether it has a door or could get one."""
    if row["would_run"]:
        yield f"would run: {_listed(row['would_run'])}"
    for problem, count in row["problems"].items():
        yield f"would not run, {count} of {row['looked_at']}: {problem}"
    if door is not None:
        yield f"door {door.name} leads from {row['list']} to queue {door.queue} already"
    elif why := _why_left_out(program, row):
        yield why
    else:
        yield f"nothing is against door {row['door']}, which --apply adds"


def _say_line(text: str) -> None:
    """Print a sentence on one line, whatever the names of the other program contain."""
    say(text.replace("\n", " "))


def _total(counts: Mapping[str, int]) -> int:
    return sum(counts.values())


def _listed(names: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(names.items()))


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
