"""Logs and counts the end of a job once Redis has answered. Runs in the master. Decides nothing."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import (
    Answer,
    Completed,
    Died,
    Failed,
    Misfit,
    Released,
    Retried,
    Returned,
    Suspended,
)
from supervisor.master.model import outcome_rules
from supervisor.master.model.counts import MasterCounts
from supervisor.master.model.held_lease import HeldLease
from supervisor.ops.events import Events

#: The end of a lease whose job has not started.
HANDED_BACK: Final = "handed back"
_NOTHING: Final[Mapping[str, Any]] = {}


def attempt_of(lease: LeaseRecord) -> int:
    """Return the number of the current attempt; 1 at a job's first start."""
    return 1 + lease.failures + lease.deaths + lease.interruptions


def start_of(held: HeldLease) -> dict[str, Any]:
    """Return the fields of `job.started`."""
    lease = held.lease
    return {
        "jid": lease.jid, "klass": lease.klass, "queue": lease.queue, "child": held.child_number,
        "attempt": attempt_of(lease),
    }  # fmt: skip


def account_of(held: HeldLease) -> dict[str, Any]:
    """Return the fields that every event about a job's end has. Unknown ones are left out."""
    lease = held.lease
    account = {
        "jid": lease.jid, "klass": lease.klass, "queue": lease.queue, "attempt": attempt_of(lease),
        "wait_ms": _ms(lease.waited_s), "run_ms": _ms(held.run_s),
    }  # fmt: skip
    if held.cpu_s is not None:
        account["cpu_ms"], account["max_rss_bytes"] = _ms(held.cpu_s), held.max_rss_bytes
    if held.child_number:
        account["child"] = held.child_number
    if lease.trace:
        account["trace"] = lease.trace
    return account


def _ms(seconds: float) -> float:
    """Milliseconds with three decimals. Rounding to an int takes a fifth of the time of rounding to decimals."""
    return round(seconds * 1e6) / 1000


def say(events: Events, counts: MasterCounts, held: HeldLease, verdict: Answer) -> str:
    """Log and count the end of a run. Return one of `counts.OUTCOMES`, or HANDED_BACK."""
    if verdict is True and type(held.outcome) is Completed:
        say_completed(events, counts, (held,))
        return "completed"
    what, more = _end_of(held, verdict)
    if what == HANDED_BACK:
        counts.handed_back += 1
        events.emit("lease.returned", count=1)
        return what
    lease = held.lease
    counted = (counts.of_unknown if what == "unknown" else counts.of)(lease.queue, lease.klass)
    counts.ended_as(counted, what, more.get("reason"))
    if what == "unknown":
        events.emit("job.unknown", jid=lease.jid, klass=lease.klass, queue=lease.queue)
        return what
    events.emit(f"job.{what}", **account_of(held), **more)
    if what != "stale":
        counted.wait.add(lease.waited_s)
        counted.run.add(held.run_s)
    return what


def is_over(held: HeldLease) -> bool:
    """Return whether the outcome, once accepted, completes the job for good."""
    outcome = held.outcome
    return type(outcome) is Completed and outcome.next is None


def say_completed(events: Events, counts: MasterCounts, completed: Sequence[HeldLease]) -> None:
    """Log and count the most frequent end, without what other ends need."""
    for held in completed:
        lease = held.lease
        counted = counts.of(lease.queue, lease.klass)
        counted.completed += 1
        counted.wait.add(lease.waited_s)
        counted.run.add(held.run_s)
    events.emit_each("job.completed", account_of, completed)


def _why_released(held: HeldLease) -> Mapping[str, Any]:
    """Return why a job was stopped, if it was."""
    outcome = held.outcome
    if not isinstance(outcome, Released) or not outcome.started:
        return _NOTHING
    return {"reason": outcome.reason, "message": outcome_rules.stopped_sentence(held.lease, outcome.reason)}


def _end_of(held: HeldLease, verdict: Answer) -> tuple[str, Mapping[str, Any]]:
    """Return the end of the run in one word, and further fields of its event."""
    outcome, lease = held.outcome, held.lease
    if verdict is None or verdict is False:
        return "stale", {"verb": type(outcome).__name__.lower(), **_why_released(held)}
    match outcome:
        case Returned():
            return "returned", _NOTHING
        case Suspended(name=name, timeout=timeout):
            return "suspended", {"signal": name, "timeout_s": timeout}
        case Retried(group=group, message=message) if isinstance(verdict, int) and verdict >= 0:
            return "retried", {"group": group, "message": message, "remaining": verdict, "delay_s": outcome.delay}
        case Retried(group=group, message=message) | Failed(group=group, message=message):
            return "failed", {"group": group, "message": message}
        case Misfit(message=message) if verdict == "failed":
            return "failed", {"group": "broken", "message": message}
        case Misfit(message=message):
            return "misfit", {"message": message}
        case Died(reason=reason, message=message):
            more = {"reason": reason, "deaths": lease.deaths + 1, "state": verdict, "message": message}
            return "died", {**more, **held.end.findings}
        case Released(started=False):
            return HANDED_BACK, _NOTHING
        case Released(reason=reason):
            message = outcome_rules.stopped_sentence(lease, reason)
            if lease.at_most_once:
                return "failed", {"group": "interrupted", "message": f"{message}, and it must not be started twice"}
            return "released", {"reason": reason, "message": message, **held.end.findings}
        case _:
            return "unknown", _NOTHING
