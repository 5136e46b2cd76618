"""Reasons of a queue as a whole. Runs in applications and commands."""

from supervisor.engine.commands.facts import Facts
from supervisor.engine.why.ended import Reason
from supervisor.engine.why.words import counted


def _ready(facts: Facts) -> int:
    return facts.count("front") + facts.count("waiting") + facts.count("entries") - facts.count("in_paused_lanes")


def late_recurrences(facts: Facts) -> Reason | None:
    """Tell of recurring jobs that are late at living workers. An unserved queue would have their jobs."""
    late = facts.count("late")
    if not late or _ready(facts) or not facts.count("living"):
        return None
    return "recurrence-late", (
        f"{counted(late, 'recurring job')} of queue {facts.queue} {'is' if late == 1 else 'are'} late by more than a"
        " minute: no living worker can compute the next time; a cron needs cronsim and the data of its time zone there"
    )


def nothing_there(facts: Facts) -> Reason | None:
    places = ("running", "scheduled", "depends", "parked", "apart", "in_paused_lanes")
    if _ready(facts) or any(facts.count(place) for place in (*places, "late")):
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
    return "served", (
        f"queue {facts.queue} has {counted(_ready(facts), 'waiting job')}, {facts.count('running'):,} running and"
        f" {counted(facts.count('serving'), 'living worker')} for it"
    )
