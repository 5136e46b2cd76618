"""`leasehold job`: everything about one job. Reads only, in the command's process; must not change anything."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from supervisor.cli.connection import add_connection, arguments, connect
from supervisor.cli.parser import Refusal, Subparsers
from supervisor.cli.terminal import local_time, say, say_json

if TYPE_CHECKING:
    from supervisor.engine.jobs import Job

EXAMPLES = """\
examples:
  leasehold job fJ3vO0TvQ2-FbM3kzqYx0w
  leasehold job invoice-2031-07 --json | jq .failure.traceback"""

#: Of a long payload or result this much is shown; --json has all of it.
SHOWN_CHARS = 2000


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("job", description="Everything about one job.", epilog=EXAMPLES)
    parser.add_argument("jid", metavar="JID", help="the id that put gave")
    parser.add_argument("--json", action="store_true", help="one line of JSON, with the whole payload")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Say it, or refuse when there is no such job."""
    with connect(args) as client, arguments():
        job = client.job(args.jid)
    if job is None:
        raise Refusal(f"there is no job {args.jid}")
    if args.json:
        say_json(as_dict(job))
    else:
        for line in _readable(job):
            say(line)
    return 0


def as_dict(job: "Job") -> dict[str, Any]:
    """The job for --json. `data` is decoded, but null where `data_is` is bytes or broken: then see `data_hex`."""
    data_is, data = _data(job)
    return {
        "jid": job.jid,
        "state": job.state,
        "queue": job.queue,
        "klass": job.klass,
        "data": None if data_is == "bytes" else data,
        "data_is": data_is,
        "data_hex": None if data_is == "json" else job.raw.hex(),
        "priority": job.priority,
        "retries": job.retries,
        "timeout_s": job.timeout_s,
        "max_deaths": job.max_deaths,
        "failures": job.failures,
        "deaths": job.deaths,
        "interruptions": job.interruptions,
        "put_unix": job.put_unix,
        "due_unix": job.due_unix,
        "expires_unix": job.expires_unix,
        "worker": job.worker,
        "started": job.started,
        "failure": job.failure,
        "result": job.result,
    }


def _data(job: "Job") -> tuple[str, Any]:
    """What the payload is: json, bytes, or broken (put by another program as JSON, which it is not)."""
    if job.is_bytes:
        return "bytes", job.raw
    try:
        return "json", job.data
    except ValueError:
        return "broken", None


def _readable(job: "Job") -> Iterator[str]:
    yield f"job        {job.jid}"
    yield f"klass      {job.klass}"
    yield f"state      {_state(job)}"
    yield f"queue      {job.queue}, priority {job.priority}"
    yield f"put        {local_time(job.put_unix)}"
    yield (
        f"counts     {job.failures} failures ({job.retries} retries allowed), {job.deaths} deaths,"
        f" {job.interruptions} interruptions"
    )
    if job.timeout_s is not None:
        yield f"timeout    {f'{job.timeout_s:g} s' if job.timeout_s else 'none'}"
    yield f"data       {_payload(job)}"
    if job.state == "complete":
        yield f"result     {_short(orjson.dumps(job.result).decode())}"
    if job.failure:
        yield ""
        yield from _failure(job.failure, "failure" if job.state == "failed" else "last time")


def _state(job: "Job") -> str:
    match job.state:
        case "running" | "stalled":
            return f"{job.state} at {job.worker}, its lease ends {local_time(job.expires_unix)}"
        case "scheduled":
            return f"scheduled for {local_time(job.due_unix)}"
        case state:
            return state


def _payload(job: "Job") -> str:
    data_is, _ = _data(job)
    if data_is == "json":
        return _short(job.raw.decode())
    words = f"{len(job.raw):,} bytes" + ("" if data_is == "bytes" else " that are not JSON")
    return f"{words}: {_short(repr(job.raw[:SHOWN_CHARS])[2:-1])}"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text):,} characters, --json has all)"


def _failure(failure: dict[str, Any], label: str) -> Iterator[str]:
    """One line about it, then what there is of traceback and output, as they were."""
    yield f"{label:<10} {failure.get('group')}: {failure.get('message')}"
    yield f"           {local_time(failure.get('when'))} at {failure.get('worker')}"
    for name, value in failure.items():
        if name in {"group", "message", "when", "worker"} or value in (None, ""):
            continue
        if isinstance(value, str) and ("\n" in value or name in {"traceback", "output"}):
            yield f"{name}:"
            yield from (f"  {line}" for line in value.rstrip().splitlines())
        else:
            yield f"{name:<10} {value}"
