"""What the commands share that ask running supervisors for something, or tell them to do it. In the command's process.

Must not signal any process: supervisors are asked by way of Redis, and say themselves what they have done.
"""

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import add_json, read_options
from supervisor.cli.lib.parser import Refusal, UsageError, near
from supervisor.cli.lib.shown import span
from supervisor.cli.lib.terminal import note, say
from supervisor.config import Exit, parse_duration

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client

Answer = Mapping[str, Any]

#: How long a question stands at the least (supervisor.engine.commands.writes.ASK_S, which is not loaded for this).
STANDS_S: Final = 60.0


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Declare WORKER where none means all."""
    parser.add_argument("workers", metavar="WORKER", nargs="*", help="only these supervisors (default: all)")


def add_look(parser: argparse.ArgumentParser, answer: str) -> None:
    """Declare all that commands take that only look. `answer`: what --json prints."""
    add_workers(parser)
    add_timeout(parser)
    add_json(parser, answer)
    add_connection(parser)


def add_timeout(parser: argparse.ArgumentParser, default: str = "5s") -> None:
    """Declare --timeout."""
    parser.add_argument("--timeout", metavar="DURATION", default=default, help=f"how long to wait (default: {default})")


def add_some_or_all(parser: argparse.ArgumentParser) -> None:
    """Declare WORKER and --all, where all must be said: `some_or_all`."""
    parser.add_argument("workers", metavar="WORKER", nargs="*", help="the supervisors")
    parser.add_argument("--all", action="store_true", help="all supervisors that run")


def some_or_all(args: argparse.Namespace, workers: Sequence[str]) -> list[str]:
    """Those that are named, or none for all; refuses both, and neither."""
    if bool(workers) == args.all:
        raise UsageError("give WORKER, or --all for all of them, one of the two")
    return list(workers)


def ask(args: argparse.Namespace, workers: Sequence[str], what: str, argument: Any = None) -> dict[str, Any]:
    """What each of them answers within --timeout, None where it has not. No workers: all that live. Refuses if nobody
    is there, or one that is named is not.
    """
    timeout_s = read_options(args, {"timeout": parse_duration})["timeout"]
    with connect(args) as client, arguments():
        _check_names(client, workers)
        answers = client.ask(list(workers) or None, what, timeout_s, argument)
    if not answers:
        raise Refusal("no supervisor is running here; `leasehold workers` shows when one was last seen")
    return answers


def tell(args: argparse.Namespace, workers: Sequence[str], what: str, wish: Answer | None = None) -> dict[str, Any]:
    """Have each of them do something, and say of each what it has done. Answers what they have answered."""
    answers = ask(args, workers, what, {**(wish or {}), "by": who()})
    for worker, answer in answers.items():
        if is_done(answer):
            say(f"{worker}  {answer['did']}")
    return answers


def is_done(answer: Any) -> bool:
    """Whether it says that something was done."""
    return isinstance(answer, Mapping) and isinstance(answer.get("did"), str)


def verdict(args: argparse.Namespace, answers: Mapping[str, Any]) -> Exit:
    """Says who has not done it, and answers the exit code."""
    undone = {worker: answer for worker, answer in answers.items() if not is_done(answer)}
    for worker, answer in undone.items():
        note(f"{worker} {why_not(answer, args.timeout)}{_still_possible(args, worker) if answer is None else ''}")
    return Exit.REFUSED if undone else Exit.OK


def missing(args: argparse.Namespace, answers: Mapping[str, Any], known: Mapping[str, Any]) -> Exit:
    """Of commands that only look: says of whom nothing is `known`, and why, and answers the exit code."""
    for worker, answer in answers.items():
        if known[worker] is None:
            note(f"{worker} {why_not(answer, args.timeout)}{_PERHAPS if answer is None else ''}")
    return Exit.REFUSED if None in known.values() else Exit.OK


_PERHAPS: Final = "; is it stopped, or without Redis? Its log says"


def why_not(answer: Any, timeout: str) -> str:
    """What an answer is that is not the one that was asked for."""
    if answer is None:
        return f"has not answered within {timeout}"
    if isinstance(answer, Mapping) and "error" in answer:
        refuses = "does not run the new code" if "traceback" in answer else "refuses"
        return f"{refuses}: {answer['error']}"
    return f"answers what this version does not know, {answer!r:.100}; are both of one version?"


def _still_possible(args: argparse.Namespace, worker: str) -> str:
    left_s = STANDS_S - read_options(args, {"timeout": parse_duration})["timeout"]
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


#: As many as are kept of it: commands.BY_BYTES, without its import.
_BY_BYTES: Final = 128


def who() -> str:
    """For the log of who does it."""
    return f"{_user()} at {socket.gethostname()}, pid {os.getpid()}"


def user_at_host() -> str:
    """Name this user and host, in a few words that are kept with what was done."""
    return f"{_user()}@{socket.gethostname()}".encode()[:_BY_BYTES].decode(errors="ignore")


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a number that has no name
        return f"uid {os.getuid()}"
