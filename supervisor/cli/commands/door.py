"""`leasehold door`: adds, lists and removes doors to lists of other programs. Runs in the command's process."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError, near
from supervisor.cli.lib.terminal import note, say, say_json, table
from supervisor.engine.model.doors import FORMATS

if TYPE_CHECKING:
    from supervisor.engine.model.doors import Door

EXAMPLES = """\
examples:
  leasehold door                               # all of them, and how many entries wait behind each
  leasehold door add orders --format rwq --source orders --queue orders --klass orders.ship
  leasehold door add mail --format sidekiq --source queue:mail --queue mail --klass-map klasses.json
  leasehold door add tasks --format celery --source celery --queue tasks
  leasehold door add low --format rq-json --source rq:queue:low --queue low
  leasehold door remove orders                 # jobs that came by it go on

Workers of QUEUE take what another program puts into its list, and leave its keys as its own worker would."""

_ACTS = ("list", "add", "remove")


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("door", description="Run the jobs of other programs.", epilog=EXAMPLES)
    parser.add_argument("act", metavar="ACT", nargs="?", choices=_ACTS, default="list", help="list, add or remove")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the door to add or remove")
    parser.add_argument("--format", metavar="FORMAT", help=f"what the other program is: {', '.join(FORMATS)}")
    parser.add_argument("--source", metavar="KEY-OR-PREFIX", help="its list, or the prefix of its keys")
    parser.add_argument("--queue", metavar="QUEUE", help="where the jobs go")
    parser.add_argument("--klass", metavar="KLASS", help="the klass of all its jobs")
    parser.add_argument(
        "--klass-map", metavar="FILE", help="a JSON object: the klass for each class that an entry may name"
    )
    add_json(parser, "a list of doors")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """List the doors, add one or remove one."""
    if args.act == "list":
        if args.name is not None:
            raise UsageError("list shows all doors: give it no NAME")
        _refuse_settings(args)
        return _list(args)
    if args.name is None:
        raise UsageError("NAME is missing: which door?")
    if args.json:
        raise UsageError("--json shows the doors: give it without add or remove")
    if args.act == "add":
        return _add(args)
    _refuse_settings(args)
    return _remove(args)


def _refuse_settings(args: argparse.Namespace) -> None:
    for flag in ("format", "source", "queue", "klass", "klass_map"):
        if getattr(args, flag) is not None:
            raise UsageError(f"--{flag.replace('_', '-')} is for `door add`")


def _list(args: argparse.Namespace) -> int:
    with connect(args) as client:
        doors = client.doors.list()
    if args.json:
        say_json([asdict(door) for door in doors])
    elif doors:
        rows = [(each.name, each.format, each.list, each.queue, _klass(each), each.waiting) for each in doors]
        table(("door", "format", "list", "queue", "klass", "waiting"), rows)
    else:
        note("there is no door")
    return 0


def _klass(door: "Door") -> str:
    if door.klass is not None:
        return door.klass
    return "as the entry says" if door.klasses is None else f"mapped: {len(door.klasses)}"


def _add(args: argparse.Namespace) -> int:
    for flag in ("format", "source", "queue"):
        if getattr(args, flag) is None:
            raise UsageError(f"--{flag} is missing")
    klasses = None if args.klass_map is None else _read(Path(args.klass_map))
    with connect(args) as client, arguments():
        changed = client.doors.add(
            args.name, format=args.format, source=args.source, queue=args.queue, klass=args.klass, klasses=klasses
        )
    say(f"door {args.name} leads to queue {args.queue}" if changed else f"door {args.name} is as it was")
    return 0


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"--klass-map: {path} cannot be read as JSON: {error}") from error


def _remove(args: argparse.Namespace) -> int:
    with connect(args) as client, arguments():
        if not client.doors.remove(args.name):
            raise Refusal(f"there is no door {args.name}{near(args.name, [each.name for each in client.doors.list()])}")
    say(f"door {args.name} is removed; its jobs go on")
    return 0
