"""What the log and the tally say of a job's end, once Redis has accepted it or not. Runs in master. Decides nothing."""

from dataclasses import dataclass, field
from typing import Any

from supervisor.engine.jobs import Answer, Completed, Died, Failed, LeaseRecord, Outcome, Released, Retried
from supervisor.ops.events import Events
from supervisor.pool.children import Held


@dataclass(slots=True)
class Ended:
    """A job's end on its way to Redis, and what the log will say of it."""

    outcome: Outcome
    held: Held
    child: int = 0
    run_s: float = 0.0
    said: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """How many jobs ended which way."""

    completed: int = 0
    retried: int = 0
    failed: int = 0
    died: int = 0
    released: int = 0


def attempt_of(lease: LeaseRecord) -> int:
    """1 at a job's first start."""
    return 1 + lease.failures + lease.deaths + lease.interruptions


def say(events: Events, tally: Tally, ended: Ended, verdict: Answer) -> None:
    outcome, lease = ended.outcome, ended.held.lease
    what = {"jid": lease.jid, "klass": lease.klass, "queue": lease.queue}
    if verdict is None or verdict is False:
        events.emit("job.stale", jid=lease.jid, klass=lease.klass, verb=type(outcome).__name__.lower())
        return
    run = {"attempt": attempt_of(lease), "run_ms": round(ended.run_s * 1000, 3)}
    match outcome:
        case Completed():
            tally.completed += 1
            events.emit("job.completed", **what, **run, child=ended.child)
        case Retried() if isinstance(verdict, int) and verdict >= 0:
            tally.retried += 1
            events.emit(
                "job.retried", **what, **run, group=outcome.group, message=outcome.message, remaining=verdict,
                delay_s=outcome.delay,
            )  # fmt: skip
        case Retried() | Failed():
            tally.failed += 1
            events.emit("job.failed", **what, **run, group=outcome.group, message=outcome.message)
        case Died():
            tally.died += 1
            events.emit(
                "job.died", **what, **run, deaths=lease.deaths + 1, state=verdict, message=outcome.message,
                **{**ended.said, "reason": outcome.reason}, output=outcome.details.get("output"),
            )  # fmt: skip
        case Released(started=True):
            tally.released += 1
            events.emit("job.released", **what, reason=ended.said.get("reason"))
        case Released():
            events.emit("lease.returned", count=1)
        case _:
            events.emit("job.unknown", **what)
