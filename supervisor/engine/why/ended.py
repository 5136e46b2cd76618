"""Reasons of jobs that have ended or are gone. Runs in applications and commands."""

from typing import Final

from supervisor.engine.commands.audit import Act
from supervisor.engine.commands.facts import Facts
from supervisor.engine.why.memory import memory_words
from supervisor.engine.why.words import counted, moment

Reason = tuple[str, str]

#: The sentence about an unknown job names so many deletions among which it may have been.
_NAMED: Final = 3


def recurring(facts: Facts) -> Reason | None:
    next_unix = facts.unix("next")
    if next_unix is None:
        return None
    last = f"; its last one is {facts.told['last_jid']}" if "last_jid" in facts.told else ""
    return "recurring", (
        f"{facts.jid} is a recurring job of queue {facts.queue}, whose next job is due at {moment(next_unix)}{last}"
    )


def dropped(facts: Facts) -> Reason | None:
    when_unix = facts.unix("dropped")
    if when_unix is None or when_unix < (facts.unix("cancelled") or 0):
        return None
    return "dropped", (
        f"job {facts.jid} had failed, and was dropped at {moment(when_unix)}: failed-history and failed-history-count"
        " bound what is kept"
    )


def cancelled(facts: Facts) -> Reason | None:
    when_unix = facts.unix("cancelled")
    if when_unix is None:
        return None
    by = f" by {facts.told['cancelled_by']}" if "cancelled_by" in facts.told else ""
    return "cancelled", f"job {facts.jid} was cancelled{by}, {moment(when_unix)}"


def unknown(facts: Facts) -> Reason | None:
    if facts.job is not None or facts.jid is None:
        return None
    kept_unix = facts.unix("complete_since")
    kept = f" (the oldest completion that is kept is of {moment(kept_unix)})" if kept_unix is not None else ""
    perhaps = [f"; or it was {_deletion(act)}" for act in facts.deletions[:_NAMED]]
    memory = memory_words(facts)
    return "unknown", (
        f"there is no job {facts.jid}: it was never put, or its retention is over{kept}{''.join(perhaps)}"
        f"{f'; {memory}' if memory else ''}"
    )


def _deletion(act: Act) -> str:
    where = f" of queue {act.queue}" if act.queue else ""
    of = "" if act.kind == "job" else f" of {act.kind} {act.names[0]}{where}"
    by = f" by {act.actor}" if act.actor else ""
    did = "deleted" if act.act == "delete" else "cancelled"
    return f"one of {counted(act.number, 'job')}{of} that were {did}{by}, {moment(act.at_unix)}"


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
