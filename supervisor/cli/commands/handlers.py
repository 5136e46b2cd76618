"""`leasehold handlers`: lists the handlers of a package. Runs in the command's process, and talks to no server."""

import argparse
from typing import Any

from supervisor.cli.lib.described import add_handlers, describe
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Subparsers
from supervisor.cli.lib.terminal import say_json, table

EXAMPLES = """\
examples:
  leasehold handlers
  leasehold handlers --handlers app.jobs --json | jq '.[].data'

A process of its own imports the handlers, as `leasehold run` does. "?" marks a parameter with a default, "…" says that
there may be other keys. --json has JSON schemas of data and result, with types where the extra `typed` is installed."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("handlers", description="The handlers of a package.", epilog=EXAMPLES)
    add_handlers(parser)
    add_json(parser, "a list of handlers, with JSON schemas of their data and results")


def run(args: argparse.Namespace) -> int:
    """Print the handlers."""
    handlers = describe(args)
    if args.json:
        say_json([handler._asdict() for handler in handlers])
        return 0
    rows = [
        (each.klass, _parameters(each.data), _words({**each.options, **each.rhythm, **each.settings}), each.doc)
        for each in handlers
    ]
    table(("klass", "parameters", "declared", "about"), rows)
    return 0


def _parameters(schema: dict[str, Any] | None) -> str:
    if schema is None:
        return "any data"
    names = [name if name in schema.get("required", ()) else f"{name}?" for name in schema["properties"]]
    return ", ".join([*names, *([] if schema["additionalProperties"] is False else ["…"])])


def _words(declared: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in declared.items())
