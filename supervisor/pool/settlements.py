"""What the log and the tally say of a job's end, once Redis has accepted it or not. Runs in master. Decides nothing."""

from dataclasses import dataclass

from supervisor.engine.jobs import LeaseRecord
from supervisor.engine.outcomes import Answer, Completed, Died, Failed, Released, Retried, Returned
from supervisor.ops.events import Events
from supervisor.pool import endings
from supervisor.pool.ledger import Held


@dataclass(slots=True)
class Tally:
    """How many jobs ended which way."""

    completed: int = 0
    retried: int = 0
    failed: int = 0
    died: int = 0
    released: int = 0
    returned: int = 0


def attempt_of(lease: LeaseRecord) -> int:
    """1 at a job's first start."""
    return 1 + lease.failures + lease.deaths + lease.interruptions


def say(events: Events, tally: Tally, held: Held, verdict: Answer) -> None:
    outcome, lease = held.outcome, held.lease
    what = {"jid": lease.jid, "klass": lease.klass, "queue": lease.queue}
    if verdict is None or verdict is False:
        events.emit("job.stale", jid=lease.jid, klass=lease.klass, verb=type(outcome).__name__.lower())
        return
    run = {"attempt": attempt_of(lease), "run_ms": round(held.run_s * 1000, 3)}
    match outcome:
        case Completed():
            tally.completed += 1
            events.emit("job.completed", **what, **run, child=held.child)
        case Returned():
            tally.returned += 1
            events.emit("job.returned", **what, **run, child=held.child)
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
                "job.died", **what, **run, reason=outcome.reason, deaths=lease.deaths + 1, state=verdict,
                message=outcome.message, **held.end.account,
            )  # fmt: skip
        case Released(started=True) if lease.at_most_once:
            tally.failed += 1
            message = f"{endings.stopped_sentence(lease, outcome.reason)}, and it must not be started twice"
            events.emit("job.failed", **what, **run, group="interrupted", message=message)
        case Released(started=True):
            tally.released += 1
            message = endings.stopped_sentence(lease, outcome.reason)
            events.emit("job.released", **what, **run, reason=outcome.reason, message=message, **held.end.account)
        case Released():
            events.emit("lease.returned", count=1)
        case _:
            events.emit("job.unknown", **what)
