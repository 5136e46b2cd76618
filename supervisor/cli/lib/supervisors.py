"""Sends requests and queries to running supervisors for several commands. Runs in the command's process.

Must not signal any process: a request travels through Redis, and each supervisor answers what it has done.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from supervisor.cli.lib.actor import author
from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import add_json, read_options
from supervisor.cli.lib.parser import Refusal, UsageError, near
from supervisor.cli.lib.shown import span
from supervisor.cli.lib.terminal import note, say
from supervisor.engine.model.bounds import ASK_S
from supervisor.exit_codes import Exit
from supervisor.units import parse_duration

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client

Answer = Mapping[str, Any]


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Declare WORKER, where none means all."""
    parser.add_argument("workers", metavar="WORKER", nargs="*", help="only these supervisors (default: all)")


def add_query_flags(parser: argparse.ArgumentParser, answer: str, *, acts: bool = False) -> None:
    """Declare the flags of a command that queries supervisors. `answer`: what --json prints. `acts`: it is recorded."""
    add_workers(parser)
    add_timeout(parser)
    add_json(parser, answer)
    add_connection(parser, acts=acts)


def add_timeout(parser: argparse.ArgumentParser, default: str = "5s") -> None:
    """Declare --timeout."""
    parser.add_argument("--timeout", metavar="DURATION", default=default, help=f"how long to wait (default: {default})")


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Declare WORKER and --all for `targets`, where "all" must be said explicitly."""
    parser.add_argument("workers", metavar="WORKER", nargs="*", help="the supervisors")
    parser.add_argument("--all", action="store_true", help="all supervisors that run")


def targets(args: argparse.Namespace, workers: Sequence[str]) -> list[str]:
    """Return the named workers, or an empty list for all. Refuse both at once, and neither."""
    if bool(workers) == args.all:
        raise UsageError("give WORKER, or --all for all of them, one of the two")
    return list(workers)


def ask(args: argparse.Namespace, workers: Sequence[str], what: str, argument: Any = None) -> dict[str, Any]:
    """Return each supervisor's answer, or None if it did not answer within --timeout. No workers: all living ones.

    Refuse if no supervisor runs, or a named one does not exist.
    """
    timeout_s = read_options(args, {"timeout": parse_duration})["timeout"]
    with connect(args) as client, arguments():
        _check_names(client, workers)
        answers = client.ask(list(workers) or None, what, timeout_s, argument)
    if not answers:
        raise Refusal("no supervisor is running here; `leasehold workers` shows when one was last seen")
    return answers


def request(args: argparse.Namespace, workers: Sequence[str], what: str, wish: Answer | None = None) -> dict[str, Any]:
    """Send a request to each supervisor, print what each has done, and return the answers."""
    answers = ask(args, workers, what, {**(wish or {}), "by": author(args)})
    for worker, answer in answers.items():
        if is_done(answer):
            say(f"{worker}  {answer['did']}")
    return answers


def is_done(answer: Any) -> bool:
    """Return True if the answer reports something done."""
    return isinstance(answer, Mapping) and isinstance(answer.get("did"), str)


def report_undone(args: argparse.Namespace, answers: Mapping[str, Any]) -> Exit:
    """Report the supervisors that have not carried out the request, and return the exit code."""
    undone = {worker: answer for worker, answer in answers.items() if not is_done(answer)}
    for worker, answer in undone.items():
        note(f"{worker} {why_not(answer, args.timeout)}{_still_possible(args, worker) if answer is None else ''}")
    return Exit.REFUSED if undone else Exit.OK


def report_silent(args: argparse.Namespace, answers: Mapping[str, Any], known: Mapping[str, Any]) -> Exit:
    """Report the supervisors of which nothing is `known`, and why, for a command that only queries. Return the exit
    code.
    """
    for worker, answer in answers.items():
        if known[worker] is None:
            note(f"{worker} {why_not(answer, args.timeout)}{_PERHAPS if answer is None else ''}")
    return Exit.REFUSED if None in known.values() else Exit.OK


_PERHAPS: Final = "; is it stopped, or without Redis? Its log says"


def why_not(answer: Any, timeout: str) -> str:
    """Describe an answer that is not the expected one."""
    if answer is None:
        return f"has not answered within {timeout}"
    if isinstance(answer, Mapping) and "error" in answer:
        refuses = "does not run the new code" if "traceback" in answer else "refuses"
        return f"{refuses}: {answer['error']}"
    return f"answers what this version does not know, {answer!r:.100}; are both of one version?"


def _still_possible(args: argparse.Namespace, worker: str) -> str:
    left_s = ASK_S - read_options(args, {"timeout": parse_duration})["timeout"]
    if left_s <= 0:
        return _PERHAPS
    return (
        f"; what it was told stands for {span(left_s)} more, so it may still do it: its log says, and"
        f" `leasehold status {worker}`"
    )


def _check_names(client: "Client", names: Sequence[str]) -> None:
    known = [each.name for each in client.workers()] if names else []
    for name in names:
        if not name:
            raise UsageError("WORKER is empty; `leasehold workers` lists those that there are")
        if name not in known and client.worker(name).seen_unix is None:
            advice = near(name, known) or "; `leasehold workers` lists those that there are"
            raise Refusal(f"there is no worker {name}{advice}")
