"""Applies an operation to all jobs that match a choice, in steps, after confirmation. Runs in the command's process.

Must not touch a job that no longer matches the choice.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from supervisor.cli.lib.bulk_words import (
    Operation,
    changed_words,
    choice_words,
    chosen_words,
    needed_words,
    past_words,
    perhaps_words,
)
from supervisor.cli.lib.consent import confirm
from supervisor.cli.lib.lookup import no_queue
from supervisor.cli.lib.parser import Refusal, UsageError, near
from supervisor.cli.lib.progress import ProgressLine
from supervisor.cli.lib.terminal import counted, note, say
from supervisor.engine.client.sync_calls import calls_of

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.commands.bulk import BulkResult
    from supervisor.engine.commands.choices import Choice
    from supervisor.engine.commands.command import Command

#: States that can be chosen. No operation touches complete jobs.
STATES = ("waiting", "scheduled", "depends", "parked", "running", "stalled", "failed")
NOT_ENDED = STATES[:-1]
NOT_BEGUN = STATES[:4]

HELP = """\
Jobs that match all given flags are counted first. On a terminal the command asks; --yes skips the question, --dry-run
only counts. It works in steps while other jobs run; jobs that no longer match are left. Ctrl-C reports the progress."""

#: Makes the command that changes some jids: `by` and `now` come by name.
Build = Callable[..., "Command[BulkResult]"]
#: Returns those of some jids that pass a filter.
Filter = Callable[[Sequence[str]], Sequence[str]]


def add_choice(parser: argparse.ArgumentParser, *kinds: str, queue: str, state: bool = True) -> None:
    """Declare --queue, --tag and --group (if in `kinds`), --state, --dry-run and --yes."""
    parser.add_argument("--queue", metavar="NAME", help=queue)
    if "tag" in kinds:
        parser.add_argument("--tag", metavar="TAG", help="all jobs that have this tag")
    if "group" in kinds:
        parser.add_argument("--group", metavar="GROUP", help="all failed jobs of this group")
    if state:
        parser.add_argument(
            "--state",
            metavar="STATE",
            action="append",
            help="only those in this state (running has the stalled ones); repeat it for several",
        )
    parser.add_argument("--dry-run", action="store_true", help="only count the jobs")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def is_choice(args: argparse.Namespace) -> bool:
    """Return True if jobs are chosen by their properties. Refuse flags that need such a choice without one."""
    if any(getattr(args, name, None) is not None for name in ("queue", "tag", "group")):
        return True
    for name in ("state", "dry_run", "yes"):
        if getattr(args, name, None):
            raise UsageError(f"--{name.replace('_', '-')} goes with --queue, --tag or --group, and not with JID")
    return False


def choice(args: argparse.Namespace, states: Sequence[str]) -> "Choice":
    """Return the choice that the flags describe, in `states` if --state is missing.

    Jobs of a group have failed. Running ones may be stalled.
    """
    from supervisor.engine.commands.choices import Choice

    group = getattr(args, "group", None)
    wanted = getattr(args, "state", None)
    for state in wanted or ():
        if state not in STATES:
            raise UsageError(f"--state {state!r} must be one of {', '.join(STATES)}{near(state, STATES)}")
    if wanted and group is not None:
        raise UsageError("--group is of failed jobs: no --state goes with it")
    if group is not None:
        states = ("failed",)
    klass = getattr(args, "klass", None)
    chosen = dict.fromkeys(wanted or states)
    if "running" in chosen:
        chosen["stalled"] = None
    return Choice(args.queue, getattr(args, "tag", None), group, tuple(chosen), klass)


def run_bulk(
    args: argparse.Namespace,
    client: "Client",
    chosen: "Choice",
    operation: Operation,
    build: Build,
    passing: Filter | None = None,
) -> None:
    """Count the jobs, ask, and apply the operation in steps. Refuse at the end if jobs were left because others need
    them.

    `passing` leaves out some of the chosen jobs.
    """
    from supervisor.engine.commands.choices import found

    jobs = calls_of(client).follow(found(chosen, calls_of(client).clock))
    if passing is not None:
        jobs = {jid: jobs[jid] for jid in passing(list(jobs))}
    entries = _entries(client, chosen)
    if not jobs and not (entries and operation.verb == "cancel"):
        note(_none(client, chosen))
        return
    what = chosen_words(jobs, chosen)
    if entries and operation.verb == "cancel":
        what += f" and {_pushed(entries)}"
    if args.dry_run:
        say(f"would {operation.verb} {what}{operation.how}")
        return
    confirm(args, f"{operation.verb.capitalize()} {what}{operation.how}?", "nothing was changed")
    _do(client, jobs, operation, build)
    if entries and operation.verb == "cancel":
        say(f"dropped {_pushed(_drop_entries(client, str(chosen.queue), entries))}")
    elif entries:
        note(f"{_pushed(entries)} are not jobs yet, and are left")


def _do(client: "Client", jobs: dict[str, str], operation: Operation, build: Build) -> None:
    from supervisor.engine.commands.bulk import BulkChange

    calls = calls_of(client)
    change = BulkChange(operation.verb, jobs, lambda jids: build(jids, by=calls.actor, now=calls.clock()))
    of_all = f"of {counted(len(jobs), 'job')}"
    try:
        with ProgressLine(len(jobs)) as progress:
            calls.follow(change.steps(lambda done: progress.show(done, f"{operation.past} {done:,} {of_all}")))
    except BaseException as error:  # Ctrl-C and a lost Redis too: the progress is reported before the error goes on
        so_far = f"{operation.past} {change.done:,} {of_all}{operation.how}"
        note(f"{_ended(error)}: {so_far}{perhaps_words(error, change.under_way)}; the rest is as it was")
        raise
    say(past_words(change.done, len(jobs), operation))
    changed = len(jobs) - change.done - len(change.left)
    if changed:
        note(changed_words(changed, operation))
    if change.left:
        raise Refusal(needed_words(change.left, operation))


def _ended(error: BaseException) -> str:
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "it did not come to its end"


def _entries(client: "Client", chosen: "Choice") -> int:
    """Return how many raw entries of other programs, which are no jobs yet, the choice covers."""
    from supervisor.engine.commands import queue_counts

    if chosen.queue is None or chosen.tag is not None or chosen.group is not None or "waiting" not in chosen.states:
        return 0
    return calls_of(client).call(queue_counts.depths, [chosen.queue])[chosen.queue].entries


def _drop_entries(client: "Client", queue: str, count: int) -> int:
    from supervisor.engine.commands import deleting
    from supervisor.engine.commands.bulk import STEP

    dropped = 0
    while dropped < count:
        step = calls_of(client).act(deleting.drop, queue, "in", 0, count=min(STEP, count - dropped))
        dropped += step.dropped
        if step.next_offset < 0:
            break
    return dropped


def _pushed(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'} of other programs"


def _none(client: "Client", chosen: "Choice") -> str:
    """Say why there is nothing to do."""
    if chosen.group is not None:
        return f"there is no failed job{choice_words(chosen)}{near(chosen.group, client.failed())}"
    if chosen.tag is not None:
        return f"no job{choice_words(chosen)} is {' or '.join(chosen.states)}{near(chosen.tag, client.tags(0, 1000))}"
    unknown = no_queue(client, str(chosen.queue))
    return unknown or f"no job{choice_words(chosen)} is {' or '.join(chosen.states)}"
