"""`leasehold job`: shows one job in full. Reads only, in the command's process. Must not change anything."""

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import add_json, read_options
from supervisor.cli.lib.parser import Refusal, Subparsers
from supervisor.cli.lib.shown import (
    as_dict,
    by_words,
    limit_words,
    missed_words,
    payload_words,
    recurring_dict,
    rhythm_words,
    shortened,
    span,
    state_words,
)
from supervisor.cli.lib.terminal import counted, local_time, say, say_json
from supervisor.units import megabytes, parse_duration

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.commands.job_queries import Cancelled
    from supervisor.engine.model.jobs import JobRecord
    from supervisor.engine.model.recurring import Recurring

EXAMPLES = """\
examples:
  leasehold job fJ3vO0TvQ2-FbM3kzqYx0w
  leasehold job invoice-2031-07 --json | jq .failure.traceback
  leasehold job invoice-2031-07 --wait 30s --json | jq .result

--wait shows the job once it has ended. Exit code 1: it has failed, or did not end in time.
JID may name a recurring job too. Write a jid that begins with - after --."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("job", description="Everything about one job.", epilog=EXAMPLES)
    parser.add_argument("jid", metavar="JID", help="the id that put gave")
    parser.add_argument("--wait", metavar="DURATION", help="wait at most this long for the job's end, then show it")
    add_json(parser, "the whole job, its payload and its history")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Print the job. Refuse if it does not exist."""
    wait_s = read_options(args, {"wait": parse_duration}).get("wait")
    with connect(args) as client, arguments():
        ended = None if wait_s is None else _waited(client, args.jid, wait_s)
        job = client.job(args.jid)
        recurring = client.recurring(args.jid) if job is None else None
        cancelled = client.cancelled(args.jid) if job is None and recurring is None else None
    if job is not None:
        shown, lines = as_dict(job), readable(job)
    elif recurring is not None:
        shown, lines = recurring_dict(recurring), _readable_recurring(recurring)
    else:
        raise Refusal(f"there is no job {args.jid}{_cancelled_words(cancelled)}")
    if args.json:
        say_json(shown)
    else:
        for line in lines:
            say(line)
    if ended:
        raise Refusal(ended)
    return 0


def _cancelled_words(cancelled: "Cancelled | None") -> str:
    if cancelled is None:
        return ""
    return f": it was cancelled {'by ' if cancelled.by else ''}{by_words(cancelled.by, cancelled.when_unix)}"


def _waited(client: "Client", jid: str, seconds: float) -> str | None:
    """Wait for the job's end. Return None if it is complete, else the reason."""
    from supervisor.engine.model.errors import JobFailed

    try:
        client.wait(jid, seconds)
    except (JobFailed, TimeoutError) as error:
        return str(error)
    return None


def readable(job: "JobRecord") -> Iterator[str]:
    """Yield all that is known of a job, as lines for people."""
    yield f"job        {job.jid}"
    yield f"klass      {job.klass}"
    yield f"state      {job.state if job.state == 'failed' else state_words(job)}"
    yield f"queue      {job.queue}, {_place(job)}priority {job.priority}"
    yield f"put        {local_time(job.put_unix)}"
    yield (
        f"counts     {counted(job.failures, 'failure')}{_allowed(job)},"
        f" {counted(job.deaths, 'death')}, {counted(job.interruptions, 'interruption')}"
    )
    if job.progress:
        yield f"progress   {job.progress.fraction:.0%} {job.progress.text}".rstrip()
    if job.saved is not None:
        yield f"checkpoint {shortened(orjson.dumps(job.saved).decode())}"
    yield from _limits(job)
    if job.start_by_unix is not None:
        yield f"start by   {local_time(job.start_by_unix)}, else it fails"
    if job.persistent:
        yield "persistent yes: it has no end"
    yield from _relations(job)
    yield f"data       {payload_words(job)}"
    if job.state == "complete":
        yield f"result     {shortened(orjson.dumps(job.result).decode())}"
    if job.failure:
        yield ""
        yield from _failure(job.failure, "failure" if job.state == "failed" else "last time")
    if job.history:
        yield ""
        yield from (_entry(entry, "history" if i == 0 else "") for i, entry in enumerate(job.history))


def _readable_recurring(job: "Recurring") -> Iterator[str]:
    yield f"job        {job.jid}"
    yield f"klass      {job.klass}"
    yield f"state      recurring, {rhythm_words(job)}"
    yield f"queue      {job.queue}, {_place(job)}priority {job.priority}"
    yield f"next       {local_time(job.next_unix)}"
    yield f"spawned    {counted(job.count, 'job')}; missed ones: {missed_words(job)}"
    yield from _limits(job)
    if job.expires_s is not None:
        yield f"start by   {span(job.expires_s)} after each put, else it fails"
    if job.tags:
        yield f"tags       {', '.join(job.tags)}"
    yield f"data       {payload_words(job)}"


def _allowed(job: "JobRecord") -> str:
    """Return the job's own retries. Without them the handler's hold, which only the supervisor knows."""
    return f" ({job.retries} retries allowed)" if job.has_own_retries else ""


def _place(job: "JobRecord | Recurring") -> str:
    return "" if job.lane is None else f"lane {job.lane}, "


def _limits(job: "JobRecord | Recurring") -> Iterator[str]:
    if job.timeout_s is not None:
        yield f"timeout    {span(job.timeout_s) if job.timeout_s else 'none'}"
    if job.max_deaths is not None:
        yield f"max deaths {job.max_deaths or 'none'}"
    if job.limit is not None:
        yield f"limit      {limit_words(job.limit)}"
    if job.unique is not None:
        yield f"unique     {'by klass and data' if job.unique is True else job.unique}"
    if job.at_most_once:
        yield "once       at most: it never starts twice"
    if job.trace is not None:
        yield f"trace      {job.trace}"


def _relations(job: "JobRecord") -> Iterator[str]:
    if job.spawned_from:
        yield f"from       {job.spawned_from}, a recurring job"
    if job.tags:
        yield f"tags       {', '.join(job.tags)}"
    if job.tracked:
        yield "tracked    yes"
    if job.dependencies:
        yield f"depends on {', '.join(job.dependencies)}; if one of them fails: {job.on_parent_failure}"
    if job.dependents:
        yield f"needed by  {', '.join(job.dependents)}"


#: Fields of a failure that are sizes, and their labels.
_SIZES = {"memory_bytes": "memory", "max_rss_bytes": "max RSS"}


def _failure(failure: dict[str, Any], label: str) -> Iterator[str]:
    """Yield the failure's summary, then its traceback and output unchanged."""
    message = str(failure.get("message")).replace("\n", "\n" + " " * 11)
    yield f"{label:<10} {failure.get('group')}: {message}"
    yield f"           {local_time(failure.get('when'))} at {failure.get('worker') or 'nobody'}"
    for name, value in failure.items():
        if name in {"group", "message", "when", "worker"} or value in (None, ""):
            continue
        if isinstance(value, str) and ("\n" in value or name in {"traceback", "output"}):
            yield f"{name}:"
            yield from (f"  {line}" for line in value.rstrip().splitlines())
        elif name == "cpu_s":
            yield f"{'cpu':<10} {value:g} s"
        elif name in _SIZES:
            yield f"{_SIZES[name]:<10} {megabytes(value)}"
        else:
            yield f"{name:<10} {value}"


def _entry(entry: Mapping[str, Any], label: str) -> str:
    """Return one line of history: time, event, and its other fields."""
    rest = [f"{name}={_value(value)}" for name, value in entry.items() if name not in {"what", "when"}]
    return " ".join([f"{label:<10} {local_time(entry.get('when'))}", str(entry.get("what")), *rest])


def _value(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
