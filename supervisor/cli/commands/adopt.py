"""`leasehold adopt`: looks at a running Celery, RQ or Sidekiq, and adds doors to its queues. Runs in the command's
process.

Changes nothing of the other program. Adds doors only with --apply.
"""

import argparse
from typing import TYPE_CHECKING, Any

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError
from supervisor.cli.lib.terminal import note, say, say_json, table
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands.foreign import PROGRAMS, ForeignQueue, survey
from supervisor.engine.model.doors import FORMATS, NOT_YET

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client

EXAMPLES = """\
examples:
  leasehold adopt celery://localhost:6379/0            # what would work, and what not; changes nothing
  leasehold adopt celery://localhost:6379/0 --apply    # adds a door to each queue without trouble
  leasehold adopt sidekiq+rediss://jobs.example.com
  leasehold adopt rq+unix:///run/redis.sock --json

The address is that of its Redis, which must be that of the supervisors. Its own workers may go on: each entry is taken
by exactly one. A look reads up to 100 entries of a queue, and loads no pickle."""

_FORMATS = {"celery": "celery", "sidekiq": "sidekiq", "rq": "rq-json"}


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("adopt", description="Take over the queues of another program.", epilog=EXAMPLES)
    parser.add_argument("url", metavar="URL", help=f"{', '.join(PROGRAMS)}: its name in place of redis, or before +")
    parser.add_argument("--apply", action="store_true", help="add the doors")
    add_json(parser, "a list of queues")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Look, say what would work, and add the doors if that is wanted."""
    if getattr(args, "redis-url") is not None:
        raise UsageError("--redis-url is what URL says: give one of them")
    program, url = _split(args.url)
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
    if program not in PROGRAMS or not rest:
        raise UsageError(f"URL must begin with one of {', '.join(f'{name}://' for name in PROGRAMS)}")
    return program, f"{own or 'redis'}://{rest}"


def _row(program: str, queue: ForeignQueue) -> dict[str, Any]:
    format = _FORMATS[program]
    return {
        "queue": queue.queue,
        "list": queue.list,
        "waiting": queue.waiting,
        "looked_at": queue.looked_at,
        "names": dict(queue.names),
        "problems": dict(queue.problems),
        "door": f"{program}-{queue.queue}" if format in FORMATS else None,
        "why_not": NOT_YET.get(format),
    }


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


def _listed(names: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(names.items()))


def _trouble(row: dict[str, Any]) -> str:
    said = [f"{count} of {row['looked_at']}: {problem}" for problem, count in row["problems"].items()]
    return "; ".join([*([f"no door yet: {row['why_not']}"] if row["why_not"] else []), *said])
