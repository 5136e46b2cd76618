"""Asks before data is deleted or changed in bulk. Runs in the command's process. Must not delete anything itself."""

import argparse
import sys

from supervisor.cli.lib.parser import Refusal, UsageError
from supervisor.ops.visible import visible

YES = ("y", "yes")


def add_delete(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare --delete, --stop and --yes."""
    parser.add_argument(
        "--delete", action="store_true", help=f"drop all that does not run in {what}; says how much first"
    )
    parser.add_argument("--stop", action="store_true", help="with --delete: cancel what runs, too")
    parser.add_argument("--yes", action="store_true", help="with --delete: do not ask")


def check_delete(args: argparse.Namespace) -> None:
    """Refuse --stop and --yes without --delete."""
    for name in ("stop", "yes"):
        if getattr(args, name) and not args.delete:
            raise UsageError(f"--{name} goes with --delete")


def running_words(args: argparse.Namespace, running: int) -> str:
    """Say, within a question, what happens to running jobs."""
    if not running:
        return ""
    return f", stop {running:,} that run" if args.stop else f", let {running:,} that run end"


def confirm(args: argparse.Namespace, question: str, otherwise: str = "nothing was deleted") -> None:
    """Return if the user agrees: by --yes, or by an answer at the terminal. Refuse otherwise."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} stdin is not a terminal; pass --yes")
    sys.stderr.write(f"leasehold: {visible(question)} [y/N] ")
    sys.stderr.flush()
    said = ""
    try:
        said = sys.stdin.readline()
    finally:
        if not said:  # Ctrl-C or Ctrl-D: the next output needs a line of its own
            sys.stderr.write("\n")
    if said.strip().lower() not in YES:
        raise Refusal(otherwise)
