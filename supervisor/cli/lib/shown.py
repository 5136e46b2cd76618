"""Formats jobs: dicts for --json, words and tables for people. Runs in the command's process.

Must not call the engine.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from supervisor import clock
from supervisor.cli.lib.terminal import counted, local_time, note, say_json, table

if TYPE_CHECKING:
    from supervisor.engine.commands.batches import BatchRecord
    from supervisor.engine.commands.lanes import LaneCounts
    from supervisor.engine.commands.queue_counts import Counts
    from supervisor.engine.model.jobs import JobRecord
    from supervisor.engine.model.recurring import Recurring

#: Longest part of a payload or result that is shown. --json has all of it.
SHOWN_CHARS = 2000
#: Lists leave larger payloads out, as the engine does.
SHOWN_BYTES = 65536


def as_dict(job: "JobRecord") -> dict[str, Any]:
    """Return the job for --json.

    `data` is the decoded payload, null if `data_is` is bytes or broken; then `data_hex` has it. Lists leave large data
    out: `data_is` is large, `data_bytes` the size, and `leasehold job` shows the data.
    """
    return {
        "jid": job.jid,
        "state": job.state,
        "queue": job.queue,
        "klass": job.klass,
        **_payload_dict(job),
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
        "token": job.token,
        "started": job.started,
        "failure": job.failure,
        "result": job.result,
        "tags": job.tags,
        "tracked": job.tracked,
        "dependencies": job.dependencies,
        "dependents": job.dependents,
        "on_parent_failure": job.on_parent_failure,
        "lane": job.lane,
        "limit": job.limit,
        "unique": job.unique,
        "start_by_unix": job.start_by_unix,
        "persistent": job.persistent,
        "at_most_once": job.at_most_once,
        "batch": job.batch,
        "trace": job.trace,
        "unknown_unix": job.unknown_unix,
        "parked": job.parked,
        "progress": job.progress._asdict() if job.progress else None,
        "saved": job.saved,
        "waiting_for": job.waiting_for,
        "signal_count": job.signal_count,
        "spawned_from": job.spawned_from,
        "history": job.history,
    }


def recurring_dict(job: "Recurring") -> dict[str, Any]:
    """Return the recurring job for --json, with the payload fields of a job."""
    return {
        "jid": job.jid,
        "state": "recurring",
        "queue": job.queue,
        "klass": job.klass,
        **_payload_dict(job),
        "every_s": job.every_s,
        "cron": job.cron,
        "tz": job.tz,
        "next_unix": job.next_unix,
        "count": job.count,
        "missed": job.missed,
        "backlog": job.backlog,
        "priority": job.priority,
        "retries": job.retries,
        "timeout_s": job.timeout_s,
        "max_deaths": job.max_deaths,
        "tags": job.tags,
        "lane": job.lane,
        "limit": job.limit,
        "unique": job.unique,
        "expires_s": job.expires_s,
        "at_most_once": job.at_most_once,
        "trace": job.trace,
    }


def _payload_dict(job: "JobRecord | Recurring") -> dict[str, Any]:
    size_bytes = job.left_out.get("raw", 0)
    if size_bytes > SHOWN_BYTES:
        return {"data": None, "data_is": "large", "data_hex": None, "data_bytes": size_bytes}
    data_is, data = _data(job)
    return {
        "data": None if data_is == "bytes" else data,
        "data_is": data_is,
        "data_hex": None if data_is == "json" else job.raw.hex(),
    }


def _data(job: "JobRecord | Recurring") -> tuple[str, Any]:
    """Return whether the payload is json, bytes or broken, and its value.

    A broken payload comes from another program. It is not JSON, or nested too deep to be written again.
    """
    if job.is_bytes:
        return "bytes", job.raw
    try:
        data = job.data
        orjson.dumps(data)
    except (ValueError, TypeError):
        return "broken", None
    return "json", data


def option_words(value: object) -> str:
    """Return the value of an option as the command line takes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def payload_words(job: "JobRecord | Recurring") -> str:
    """Return the payload on one line: JSON as it is, bytes escaped, or the size of a large one in a list."""
    if (size_bytes := job.left_out.get("raw", 0)) > SHOWN_BYTES:
        return f"{size_bytes / 1e6:,.1f} MB, see `leasehold job {job.jid}`"
    data_is, _ = _data(job)
    if data_is == "json":
        return shortened(job.raw.decode())
    words = f"{len(job.raw):,} bytes" + ("" if data_is == "bytes" else " that are not JSON")
    return f"{words}: {shortened(repr(job.raw[:SHOWN_CHARS])[2:-1])}"


def shortened(text: str) -> str:
    """Return the text up to SHOWN_CHARS, and its length if it is cut."""
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text):,} characters, --json has all)"


def by_words(by: str | None, when_unix: float | None) -> str | None:
    """Return, for example, `kim@web-1, 2031-07-01 10:00:00 UTC`, as far as it is known."""
    return ", ".join(filter(None, (by, local_time(when_unix) if when_unix else None))) or None


def pause_words(counts: "Counts | LaneCounts | BatchRecord") -> str:
    """Return by whom and when a queue, lane or batch was paused, or `yes` if that is unknown."""
    return by_words(counts.paused_by, counts.paused_unix) or "yes"


def span(seconds: float) -> str:
    """Format a duration in the units of flags: 350ms, 12.3s, 5m10s, 2h5m, 3d4h."""
    if seconds < 1:
        return f"{seconds * 1000:.3g}ms" if seconds > 0 else "0s"
    if seconds < 59.95:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    for unit_s, unit, part_s, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit_s:
            rest = whole % unit_s // part_s
            return f"{whole // unit_s}{unit}" + (f"{rest}{part}" if rest else "")
    return f"{whole}s"


def age(unix: float | None) -> str | None:
    """Format the time since `unix` by this machine's clock: `5m10s ago`."""
    return f"{span(max(clock.unix() - unix, 0))} ago" if unix else None


def limit_words(limit: str | Sequence[str] | None) -> str:
    """Return the limits of a job in one text."""
    return limit if isinstance(limit, str) else ", ".join(limit or ())


def state_words(job: "JobRecord") -> str:
    """Return the state with its details."""
    match job.state:
        case "running" | "stalled":
            return f"{job.state} at {job.worker}, its lease ends {local_time(job.expires_unix)}"
        case "waiting" | "scheduled" if job.unknown_unix is not None:
            return f"{job.state}, no worker has known klass {job.klass} since {local_time(job.unknown_unix)}"
        case "waiting" if job.left_to_others:
            return f"waiting, for a worker that has klass {job.klass}"
        case "waiting" if job.parked:
            return f"waiting, parked until limit {limit_words(job.limit)} lets it start"
        case "scheduled" if job.waiting_for is not None:
            until = "" if job.due_unix is None else f", at most until {local_time(job.due_unix)}"
            return f"scheduled, waiting for the signal {job.waiting_for}{until}"
        case "scheduled":
            return f"scheduled for {local_time(job.due_unix)}"
        case "depends":
            return f"depends on {counted(len(job.dependencies), 'job')}"
        case "failed" if job.failure:
            return f"failed: {job.failure.get('group')}: {job.failure.get('message')}"
        case state:
            return state


def rhythm_words(job: "Recurring") -> str:
    """Return the schedule: an interval or cron."""
    if job.every_s is not None:
        return f"every {span(job.every_s)}"
    return f"cron {job.cron}" + (f" ({job.tz})" if job.tz else "")


def missed_words(job: "Recurring") -> str:
    """Return the rule for missed times."""
    return f"at most {job.backlog + 1}" if job.missed == "all" and job.backlog is not None else job.missed


def say_jobs(args: argparse.Namespace, jobs: Sequence["JobRecord"], head: dict[str, Any], none: str) -> None:
    """Print jobs as a table, or for --json in a dict with `head`. Without jobs print the sentence `none`."""
    if args.json:
        say_json({**head, "jobs": [as_dict(job) for job in jobs]})
    elif jobs:
        rows = [(job.jid, job.klass, job.queue, job.priority, age(job.put_unix), state_words(job)) for job in jobs]
        table(("jid", "klass", "queue", "priority", "put", "state"), rows)
    else:
        note(none)


def say_recurring(args: argparse.Namespace, jobs: Sequence["Recurring"], head: dict[str, Any], none: str) -> None:
    """Print recurring jobs as `say_jobs` prints jobs."""
    if args.json:
        say_json({**head, "jobs": [recurring_dict(job) for job in jobs]})
    elif jobs:
        rows = [
            (job.jid, job.klass, job.queue, rhythm_words(job), local_time(job.next_unix), job.count) for job in jobs
        ]
        table(("jid", "klass", "queue", "when", "next", "spawned"), rows)
    else:
        note(none)


def work_of(child: Mapping[str, Any]) -> str | None:
    """Return the klass that a child of a status runs, and how many jobs at once. None: it is idle."""
    klass, jobs = child.get("klass"), child.get("jobs")
    return f"{klass} x{jobs}" if klass is not None and isinstance(jobs, int) and jobs > 1 else klass
