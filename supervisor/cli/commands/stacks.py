"""`leasehold stacks`: shows the Python stacks of running supervisors' children. Runs in the command's process.

Must not signal any process: a query goes through Redis, and each supervisor dumps its stacks itself.
"""

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from supervisor import clock
from supervisor.cli.lib.parser import Subparsers
from supervisor.cli.lib.shown import span
from supervisor.cli.lib.supervisors import add_query_flags, ask, report_silent
from supervisor.cli.lib.terminal import local_time, say, say_json

EXAMPLES = """\
examples:
  leasehold stacks
  leasehold stacks web-1-4711-3f2a
  leasehold stacks --timeout 10s --json

WORKER is a name from `leasehold workers`. Shows each child's number, process, job, and Python frames, the innermost
first. The jobs go on, and Python code notices nothing. But each child gets a signal: a sleep or another system call in
C code ends early by it, unless that code handles EINTR. The signal USR1 to a supervisor writes the same into its log.
Exit code 1 if one of them has not answered in time."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("stacks", description="Where the jobs of running supervisors are.", epilog=EXAMPLES)
    add_query_flags(
        parser, "an object: of each supervisor the list of its children, or null if it has not answered", acts=True
    )


def run(args: argparse.Namespace) -> int:
    """Query the supervisors, and show their answers."""
    answers = ask(args, args.workers, "stacks")
    children = {worker: _children(answer) for worker, answer in answers.items()}
    if args.json:
        say_json(children)
    else:
        _show(children)
    return report_silent(args, answers, children)


def _children(answer: Any) -> list[Mapping[str, Any]] | None:
    """Return the children of an answer, or None if the answer is missing or of an unknown form."""
    found = answer.get("children") if isinstance(answer, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(child, Mapping) for child in found):
        return None
    return found


def _show(children: Mapping[str, list[Mapping[str, Any]] | None]) -> None:
    for worker, some in children.items():
        if some is not None:
            say(f"{worker}  {'1 child' if len(some) == 1 else f'{len(some)} children'}")
            for child in some:
                for line in _lines(child):
                    say(line)


#: Shown in place of frames.
SILENT = "(it has not answered in time: stopped, another program, or deaf to the signal)"


def _lines(child: Mapping[str, Any]) -> Iterator[str]:
    yield f"  child {child.get('child')}  pid {child.get('pid')}  {_job_of(child)}"
    stack = textwrap.dedent(str(child.get("stack") or "")).strip("\n")
    yield from (f"    {line}" for line in (stack or SILENT).splitlines())


def _job_of(child: Mapping[str, Any]) -> str:
    if not child.get("jid"):
        return "idle"
    running_s = child.get("running_s")
    if not isinstance(running_s, int | float):
        return f"{child.get('klass')} {child['jid']}"
    since = local_time(clock.unix() - running_s)
    return f"{child.get('klass')} {child['jid']}  since {since} ({span(running_s)})"
