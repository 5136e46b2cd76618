"""Reasons of a queue as a whole. Runs in applications and commands."""

from typing import Final

from supervisor.engine.commands.facts import Facts
from supervisor.engine.why.ended import Reason
from supervisor.engine.why.memory import evicts_jobs, memory_words, refuses_puts
from supervisor.engine.why.words import counted

#: Jobs that a lease could take, of a lost worker once its grace is over.
_READY: Final = ("front", "waiting", "entries", "due", "freed", "stalled")
_NOT_READY: Final = ("running", "scheduled", "depends", "parked", "apart", "in_paused_lanes", "late")


def _ready(facts: Facts) -> int:
    return sum(map(facts.count, _READY)) - facts.count("in_paused_lanes")


def _is_empty(facts: Facts) -> bool:
    return not _ready(facts) and not any(map(facts.count, _NOT_READY))


def late_recurrences(facts: Facts) -> Reason | None:
    """Tell of recurring jobs that are late at living workers. An unserved queue would have their jobs."""
    late = facts.count("late")
    if not late or _ready(facts) or not facts.count("living"):
        return None
    return "recurrence-late", (
        f"{counted(late, 'recurring job')} of queue {facts.queue} {'is' if late == 1 else 'are'} late by more than a"
        " minute: no living worker can compute the next time; a cron needs cronsim and the data of its time zone there"
    )


def redis_evicts(facts: Facts) -> Reason | None:
    if not _is_empty(facts) or not evicts_jobs(facts):
        return None
    return "redis-evicts", f"queue {facts.queue} has no jobs; {memory_words(facts)}"


def redis_full(facts: Facts) -> Reason | None:
    if not _is_empty(facts) or not refuses_puts(facts):
        return None
    return "redis-full", f"queue {facts.queue} has no jobs; {memory_words(facts)}"


def nothing_there(facts: Facts) -> Reason | None:
    if not _is_empty(facts):
        return None
    return "empty", f"queue {facts.queue} has no jobs"


def none_ready(facts: Facts) -> Reason | None:
    """Tell of a queue whose jobs all run, or wait for something else than a worker."""
    if _ready(facts):
        return None
    words = {
        "running": "running", "scheduled": "scheduled", "depends": "waiting for other jobs",
        "parked": "parked under a limit or a paused batch", "apart": "left to a worker that knows their klass",
        "in_paused_lanes": "in paused lanes",
    }  # fmt: skip
    parts = [f"{facts.count(name):,} {said}" for name, said in words.items() if facts.count(name)]
    return "none-ready", f"no job of queue {facts.queue} could start: {', '.join(parts)}"


def served(facts: Facts) -> Reason | None:
    lost = facts.count("stalled")
    of_lost = f", {counted(lost, 'job')} of a lost worker" if lost else ""
    return "served", (
        f"queue {facts.queue} has {counted(_ready(facts) - lost, 'waiting job')}{of_lost},"
        f" {facts.count('running'):,} running and {counted(facts.count('serving'), 'living worker')} for it"
    )
