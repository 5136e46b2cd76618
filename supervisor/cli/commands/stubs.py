"""`leasehold stubs`: writes a module that puts typed jobs. Runs in the command's process, and talks to no server."""

import argparse
import sys
from pathlib import Path

from supervisor.cli.lib.described import add_handlers, describe, root_of
from supervisor.cli.lib.parser import Refusal, Subparsers
from supervisor.cli.lib.stub_source import source_of

EXAMPLES = """\
examples:
  leasehold stubs --handlers handlers --out shop/jobs.py
  leasehold stubs --handlers app.jobs

For producers that cannot import the handlers. The module has a handler of the same klass, parameters and declared
options for each, without its code: `jobs.mail_welcome.put(user=7)`. Types that JSON lacks are those of its schema."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("stubs", description="Write typed puts for other programs.", epilog=EXAMPLES)
    add_handlers(parser)
    parser.add_argument("--out", metavar="FILE", help="write into this file, in one step (default: stdout)")


def run(args: argparse.Namespace) -> int:
    """Write the module."""
    source = source_of(root_of(args), describe(args))
    if args.out is None:
        sys.stdout.write(source)
        return 0
    path = Path(args.out)
    written = path.with_name(f"{path.name}.new")
    try:
        written.write_text(source)
        written.replace(path)
    except OSError as error:
        raise Refusal(f"--out {args.out!r} cannot be written ({error.strerror})") from error
    return 0
