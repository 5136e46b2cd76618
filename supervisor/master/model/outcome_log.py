"""What the log and the counts say of a job's end, once Redis has accepted it or not. Runs in master. No decision."""

from collections.abc import Mapping
from typing import Any, Final

from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import Answer, Completed, Died, Failed, Released, Retried, Returned
from supervisor.master.model import outcome_rules
from supervisor.master.model.counts import Counts
from supervisor.master.model.ledger import HeldLease
from supervisor.ops.events import Events

#: What has become of a lease whose job has not started.
HANDED_BACK: Final = "handed back"
_NOTHING: Final[Mapping[str, Any]] = {}


def attempt_of(lease: LeaseRecord) -> int:
    """1 at a job's first start."""
    return 1 + lease.failures + lease.deaths + lease.interruptions


def start_of(held: HeldLease) -> dict[str, Any]:
    """What is said of a job when it begins."""
    lease = held.lease
    return {
        "jid": lease.jid, "klass": lease.klass, "queue": lease.queue, "child": held.child, "attempt": attempt_of(lease),
    }  # fmt: skip


def account_of(held: HeldLease) -> dict[str, Any]:
    """What is said of a job at its end, whichever that is. What nobody knows is left out."""
    lease = held.lease
    account = {
        "jid": lease.jid, "klass": lease.klass, "queue": lease.queue, "attempt": attempt_of(lease),
        "wait_ms": _ms(lease.waited_s), "run_ms": _ms(held.run_s),
    }  # fmt: skip
    if held.cpu_s is not None:
        account["cpu_ms"], account["max_rss_bytes"] = _ms(held.cpu_s), held.max_rss_bytes
    if held.child:
        account["child"] = held.child
    if lease.trace:
        account["trace"] = lease.trace
    return account


def _ms(seconds: float) -> float:
    """To the microsecond. An int is rounded to in a fifth of the time that decimal places take."""
    return round(seconds * 1e6) / 1000


def say(events: Events, counts: Counts, held: HeldLease, verdict: Answer) -> str:
    """Answers what has become of the run: one of OUTCOMES, or HANDED_BACK."""
    if verdict is True and type(held.outcome) is Completed:
        return _say_completed(events, counts, held)
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
    """Whether its job, if its outcome is accepted, has come to its end by completing."""
    outcome = held.outcome
    return type(outcome) is Completed and outcome.next is None


def _say_completed(events: Events, counts: Counts, held: HeldLease) -> str:
    """As nearly all of them end."""
    lease = held.lease
    counted = counts.of(lease.queue, lease.klass)
    counted.completed += 1
    counted.wait.add(lease.waited_s)
    counted.run.add(held.run_s)
    events.emit_lazily("job.completed", account_of, held)
    return "completed"


def _why_released(held: HeldLease) -> Mapping[str, Any]:
    """Why a job was stopped that another worker has by now."""
    outcome = held.outcome
    if not isinstance(outcome, Released) or not outcome.started:
        return _NOTHING
    return {"reason": outcome.reason, "message": outcome_rules.stopped_sentence(held.lease, outcome.reason)}


def _end_of(held: HeldLease, verdict: Answer) -> tuple[str, Mapping[str, Any]]:
    """What has become of the run, and what there is to say of that."""
    outcome, lease = held.outcome, held.lease
    if verdict is None or verdict is False:
        return "stale", {"verb": type(outcome).__name__.lower(), **_why_released(held)}
    match outcome:
        case Returned():
            return "returned", _NOTHING
        case Retried(group=group, message=message) if isinstance(verdict, int) and verdict >= 0:
            return "retried", {"group": group, "message": message, "remaining": verdict, "delay_s": outcome.delay}
        case Retried(group=group, message=message) | Failed(group=group, message=message):
            return "failed", {"group": group, "message": message}
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
