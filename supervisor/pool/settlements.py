"""What the log and the counts say of a job's end, once Redis has accepted it or not. Runs in master. No decision."""

from typing import Any

from supervisor.engine.jobs import LeaseRecord
from supervisor.engine.outcomes import Answer, Completed, Died, Failed, Released, Retried, Returned
from supervisor.ops.events import Events
from supervisor.pool import endings
from supervisor.pool.counts import Counts
from supervisor.pool.ledger import Held


def attempt_of(lease: LeaseRecord) -> int:
    """1 at a job's first start."""
    return 1 + lease.failures + lease.deaths + lease.interruptions


def account_of(held: Held) -> dict[str, Any]:
    """What is said of a job at its end, whichever that is. What nobody knows is left out."""
    lease = held.lease
    account = {
        "jid": lease.jid, "klass": lease.klass, "queue": lease.queue, "attempt": attempt_of(lease),
        "wait_ms": round(lease.waited_s * 1000, 3), "run_ms": round(held.run_s * 1000, 3),
    }  # fmt: skip
    if held.cpu_s is not None:
        account["cpu_ms"], account["max_rss_bytes"] = round(held.cpu_s * 1000, 3), held.max_rss_bytes
    if held.child:
        account["child"] = held.child
    if lease.trace:
        account["trace"] = lease.trace
    return account


def say(events: Events, counts: Counts, held: Held, verdict: Answer) -> None:
    outcome, lease = held.outcome, held.lease
    counted = counts.of(lease.queue, lease.klass)
    account = account_of(held)
    if verdict is None or verdict is False:
        counted.stale += 1
        events.emit("job.stale", **account, verb=type(outcome).__name__.lower())
        return
    match outcome:
        case Completed():
            counted.completed += 1
            events.emit("job.completed", **account)
        case Returned():
            counted.returned += 1
            events.emit("job.returned", **account)
        case Retried() if isinstance(verdict, int) and verdict >= 0:
            counted.retried += 1
            events.emit(
                "job.retried", **account, group=outcome.group, message=outcome.message, remaining=verdict,
                delay_s=outcome.delay,
            )  # fmt: skip
        case Retried() | Failed():
            counted.failed += 1
            events.emit("job.failed", **account, group=outcome.group, message=outcome.message)
        case Died():
            counts.died(counted, outcome.reason)
            events.emit(
                "job.died", **account, reason=outcome.reason, deaths=lease.deaths + 1, state=verdict,
                message=outcome.message, **held.end.findings,
            )  # fmt: skip
        case Released(started=True) if lease.at_most_once:
            counted.failed += 1
            message = f"{endings.stopped_sentence(lease, outcome.reason)}, and it must not be started twice"
            events.emit("job.failed", **account, group="interrupted", message=message)
        case Released(started=True):
            counts.released(counted, outcome.reason)
            message = endings.stopped_sentence(lease, outcome.reason)
            events.emit("job.released", **account, reason=outcome.reason, message=message, **held.end.findings)
        case Released():
            counts.returned += 1
            events.emit("lease.returned", count=1)
            return
        case _:
            counted.unknown += 1
            events.emit("job.unknown", jid=lease.jid, klass=lease.klass, queue=lease.queue)
            return
    counted.wait.add(lease.waited_s)
    counted.run.add(held.run_s)
