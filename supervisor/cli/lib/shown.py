"""How jobs are shown, in the command's process: to programs as dicts for --json, to people as words and tables.

Must not ask the engine: what it shows has been read.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from supervisor import clock
from supervisor.cli.lib.terminal import counted, local_time, note, say_json, table

if TYPE_CHECKING:
    from supervisor.engine.commands.lanes import LaneCounts
    from supervisor.engine.commands.queries import Counts
    from supervisor.engine.model.jobs import JobRecord
    from supervisor.engine.model.recurring import Recurring

#: Of a long payload or result this much is shown; --json has all of it.
SHOWN_CHARS = 2000
#: Lists leave larger payloads out, as the engine does.
SHOWN_BYTES = 65536


def as_dict(job: "JobRecord") -> dict[str, Any]:
    """The job for --json. `data` is decoded, but null where `data_is` is bytes or broken: then see `data_hex`. Large
    data is left out of lists: `data_is` is large, `data_bytes` its size, and `leasehold job` has it.
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
        "trace": job.trace,
        "unknown_unix": job.unknown_unix,
        "parked": job.parked,
        "progress": job.progress._asdict() if job.progress else None,
        "saved": job.saved,
        "spawned_from": job.spawned_from,
        "history": job.history,
    }


def recurring_dict(job: "Recurring") -> dict[str, Any]:
    """The recurring job for --json; its payload as a job's."""
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
    """Tell what the payload is: json, bytes, or broken. Another program has put the last one: it is not JSON, or nested
    so deep that nothing can write it again.
    """
    if job.is_bytes:
        return "bytes", job.raw
    try:
        data = job.data
        orjson.dumps(data)
    except (ValueError, TypeError):
        return "broken", None
    return "json", data


def payload_words(job: "JobRecord | Recurring") -> str:
    """The payload on a line: JSON as it is, bytes with what cannot be shown escaped; a large one in a list its size."""
    if (size_bytes := job.left_out.get("raw", 0)) > SHOWN_BYTES:
        return f"{size_bytes / 1e6:,.1f} MB, see `leasehold job {job.jid}`"
    data_is, _ = _data(job)
    if data_is == "json":
        return shortened(job.raw.decode())
    words = f"{len(job.raw):,} bytes" + ("" if data_is == "bytes" else " that are not JSON")
    return f"{words}: {shortened(repr(job.raw[:SHOWN_CHARS])[2:-1])}"


def shortened(text: str) -> str:
    """The text up to a length, and how long it is."""
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text):,} characters, --json has all)"


def by_words(by: str | None, when_unix: float | None) -> str | None:
    """`kim@web-1, 2031-07-01 10:00:00 UTC`: as much of it as is known."""
    return ", ".join(filter(None, (by, local_time(when_unix) if when_unix else None))) or None


def pause_words(counts: "Counts | LaneCounts") -> str:
    """Tell who has paused a queue or lane, and when; `yes` where that is not known."""
    return by_words(counts.paused_by, counts.paused_unix) or "yes"


def span(seconds: float) -> str:
    """A span of time, in the units that flags take: 350ms, 12.3s, 5m10s, 2h5m, 3d4h."""
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
    """How long ago, by this machine's clock: `5m10s ago`."""
    return f"{span(max(clock.unix() - unix, 0))} ago" if unix else None


def state_words(job: "JobRecord") -> str:
    """The state, and what is to know about it."""
    match job.state:
        case "running" | "stalled":
            return f"{job.state} at {job.worker}, its lease ends {local_time(job.expires_unix)}"
        case "waiting" | "scheduled" if job.unknown_unix is not None:
            return f"{job.state}, no worker has known klass {job.klass} since {local_time(job.unknown_unix)}"
        case "waiting" if job.left_to_others:
            return f"waiting, for a worker that has klass {job.klass}"
        case "waiting" if job.parked:
            return f"waiting, parked until limit {job.limit} lets it start"
        case "scheduled":
            return f"scheduled for {local_time(job.due_unix)}"
        case "depends":
            return f"depends on {counted(len(job.dependencies), 'job')}"
        case "failed" if job.failure:
            return f"failed: {job.failure.get('group')}: {job.failure.get('message')}"
        case state:
            return state


def rhythm_words(job: "Recurring") -> str:
    """When it comes: every so often, or by cron."""
    if job.every_s is not None:
        return f"every {span(job.every_s)}"
    return f"cron {job.cron}" + (f" ({job.tz})" if job.tz else "")


def missed_words(job: "Recurring") -> str:
    """What is put for times at which nobody was there."""
    return f"at most {job.backlog + 1}" if job.missed == "all" and job.backlog is not None else job.missed


def say_jobs(args: argparse.Namespace, jobs: Sequence["JobRecord"], head: dict[str, Any], none: str) -> None:
    """Jobs as a table, or for --json in a dict with `head`; where there are none, a sentence."""
    if args.json:
        say_json({**head, "jobs": [as_dict(job) for job in jobs]})
    elif jobs:
        rows = [(job.jid, job.klass, job.queue, job.priority, age(job.put_unix), state_words(job)) for job in jobs]
        table(("jid", "klass", "queue", "priority", "put", "state"), rows)
    else:
        note(none)


def say_recurring(args: argparse.Namespace, jobs: Sequence["Recurring"], head: dict[str, Any], none: str) -> None:
    """The same of recurring jobs."""
    if args.json:
        say_json({**head, "jobs": [recurring_dict(job) for job in jobs]})
    elif jobs:
        rows = [
            (job.jid, job.klass, job.queue, rhythm_words(job), local_time(job.next_unix), job.count) for job in jobs
        ]
        table(("jid", "klass", "queue", "when", "next", "spawned"), rows)
    else:
        note(none)
