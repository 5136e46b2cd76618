"""`leasehold reload`: has running supervisors reload their handlers, as SIGHUP does. Runs in the command's process.

Must not signal any process. The supervisors find errors in the new code, and this command shows them.
"""

import argparse
import textwrap
from collections.abc import Mapping

from supervisor.cli.lib.connection import add_connection
from supervisor.cli.lib.parser import Subparsers
from supervisor.cli.lib.supervisors import add_timeout, add_workers, is_done, report_undone, request
from supervisor.cli.lib.terminal import say
from supervisor.exit_codes import Exit

EXAMPLES = """\
examples:
  leasehold reload
  leasehold reload web-1-4711-3f2a

WORKER is a name from `leasehold workers`. The new code is tried beside the old one, and gets jobs only when a child
with it is ready. Running jobs end on the old code (--reload-timeout of `leasehold run`). Code that does not boot
changes nothing: it is shown with its traceback, and the exit code is 71; 1 if one of them has not answered in time."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("reload", description="Have supervisors load their handlers anew.", epilog=EXAMPLES)
    add_workers(parser)
    add_timeout(parser, "90s")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Send the request, and show each outcome."""
    answers = request(args, args.workers, "reload")
    code, broken = report_undone(args, answers), False
    for worker, answer in answers.items():
        if isinstance(answer, Mapping) and not is_done(answer) and isinstance(answer.get("traceback"), str):
            broken = True
            if answer["traceback"]:
                say(f"{worker}\n{textwrap.indent(answer['traceback'].rstrip(), '  ')}")
    return Exit.HANDLERS if broken else code
