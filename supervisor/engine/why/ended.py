"""Reasons of jobs that have ended or are gone. Runs in applications and commands."""

from supervisor.engine.commands.facts import Facts
from supervisor.engine.why.words import counted, moment

Reason = tuple[str, str]


def cancelled(facts: Facts) -> Reason | None:
    when_unix = facts.unix("cancelled")
    if facts.job is not None or facts.jid is None or when_unix is None:
        return None
    by = f" by {facts.told['cancelled_by']}" if "cancelled_by" in facts.told else ""
    return "cancelled", f"job {facts.jid} was cancelled{by}, {moment(when_unix)}"


def unknown(facts: Facts) -> Reason | None:
    if facts.job is not None or facts.jid is None:
        return None
    return "unknown", f"there is no job {facts.jid}: it was never put, or its retention is over"


def complete(facts: Facts) -> Reason | None:
    if facts.job is None or facts.job.state != "complete":
        return None
    ended_unix, leased_unix = facts.unix("completed"), facts.unix("popped")
    when = f" at {moment(ended_unix)}" if ended_unix is not None else ""
    took = f", {ended_unix - leased_unix:.3g} s after its lease" if ended_unix and leased_unix else ""
    return "complete", f"the job completed{when}{took}"


def failed(facts: Facts) -> Reason | None:
    """Tell the cause by the last line of the traceback or output, if the message has none."""
    job = facts.job
    if job is None or job.state != "failed":
        return None
    failure = job.failure or {}
    message = str(failure.get("message") or "").strip() or _last_line(failure)
    cause = f"{failure.get('group', 'unknown')}: {message}" if message else str(failure.get("group", "unknown"))
    peers = facts.count("peers")
    beside = f"; {counted(peers, 'other job')} failed so within the last hour" if peers > 0 else ""
    return "failed", f"the job failed with {cause}{beside}"


def _last_line(failure: dict[str, object]) -> str:
    lines = str(failure.get("traceback") or failure.get("output") or "").strip().splitlines()
    return lines[-1] if lines else ""
