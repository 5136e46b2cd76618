"""`leasehold stacks`: what the children of running supervisors run, and where in it they are. In the command's process.

Must not signal any process: the supervisors are asked by way of Redis, and dump the stacks themselves.
"""

import argparse
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from supervisor import clock
from supervisor.cli.connection import add_connection, arguments, connect
from supervisor.cli.options import add_json, read_options
from supervisor.cli.parser import Refusal, Subparsers, near
from supervisor.cli.terminal import local_time, note, say, say_json
from supervisor.config import Exit, parse_duration

if TYPE_CHECKING:
    from supervisor.engine.client import Client

EXAMPLES = """\
examples:
  leasehold stacks
  leasehold stacks web-1-4711-3f2a
  leasehold stacks --timeout 10s --json

WORKER is as `leasehold workers` shows it. Of each child: its number, process, job, and Python frames, the innermost
first. The jobs go on. The signal USR1 to a supervisor writes the same into its log. Exit code 1 if one of them has not
answered in time."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("stacks", description="Where the jobs of running supervisors are.", epilog=EXAMPLES)
    parser.add_argument("workers", metavar="WORKER", nargs="*", help="only these supervisors (default: all)")
    parser.add_argument("--timeout", metavar="DURATION", default="5s", help="how long to wait (default: 5s)")
    add_json(parser, "an object: of each supervisor the list of its children, or null if it has not answered")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Ask them, and show what they answer."""
    timeout = read_options(args, {"timeout": parse_duration})["timeout"]
    with connect(args) as client, arguments():
        _check_names(client, args.workers)
        answers = client.ask(args.workers or None, "stacks", timeout)
    if not answers:
        raise Refusal("no supervisor is running here; `leasehold workers` shows when one was last seen")
    children = {worker: _children(answer) for worker, answer in answers.items()}
    if args.json:
        say_json(children)
    else:
        _show(children)
    for worker, answer in answers.items():
        if children[worker] is None:
            note(f"{worker} {_why(answer, args.timeout)}")
    return Exit.REFUSED if None in children.values() else Exit.OK


def _check_names(client: "Client", names: Sequence[str]) -> None:
    known = [each.name for each in client.workers()] if names else []
    for name in names:
        if name not in known and client.worker(name).seen_unix is None:
            raise Refusal(f"there is no worker {name}{near(name, known)}")


def _children(answer: Any) -> list[Mapping[str, Any]] | None:
    """Of an answer; None if it is none, or not what we know."""
    found = answer.get("children") if isinstance(answer, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(child, Mapping) for child in found):
        return None
    return found


def _why(answer: Any, timeout: str) -> str:
    if answer is None:
        return f"has not answered within {timeout}; is it stopped, or without Redis? Its log says"
    if isinstance(answer, Mapping) and "error" in answer:
        return f"cannot say it: {answer['error']}"
    return f"answers what this version does not know, {answer!r:.100}; are both of one version?"


def _show(children: Mapping[str, list[Mapping[str, Any]] | None]) -> None:
    for worker, some in children.items():
        if some is not None:
            say(f"{worker}  {'1 child' if len(some) == 1 else f'{len(some)} children'}")
            for child in some:
                for line in _lines(child):
                    say(line)


#: In place of frames.
_SILENT = "(it has not answered in time: stopped, another program, or deaf to the signal)"


def _lines(child: Mapping[str, Any]) -> Iterator[str]:
    yield f"  child {child.get('child')}  pid {child.get('pid')}  {_job_of(child)}"
    stack = textwrap.dedent(str(child.get("stack") or "")).strip("\n")
    yield from (f"    {line}" for line in (stack or _SILENT).splitlines())


def _job_of(child: Mapping[str, Any]) -> str:
    if not child.get("jid"):
        return "idle"
    running_s = child.get("running_s")
    if not isinstance(running_s, int | float):
        return f"{child.get('klass')} {child['jid']}"
    since = local_time(clock.unix() - running_s)
    return f"{child.get('klass')} {child['jid']}  since {since} ({running_s:.1f} s)"
