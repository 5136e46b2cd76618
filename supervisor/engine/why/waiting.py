"""Reasons of jobs that could be leased but for a pause, a limit, or the jobs before them.

Runs in applications and commands.
"""

from supervisor.engine.commands.facts import Facts
from supervisor.engine.model.replay import NEVER_MS
from supervisor.engine.why.ended import Reason
from supervisor.engine.why.words import actor, counted, moment, some


def paused_queue(facts: Facts) -> Reason | None:
    if "paused" not in facts.told:
        return None
    return "paused-queue", f"queue {facts.queue} is paused{actor(facts.actor('paused'))}"


def paused_lane(facts: Facts) -> Reason | None:
    if facts.job is None or "lane_pause" not in facts.told:
        return None
    return "paused-lane", f"lane {facts.job.lane} of queue {facts.queue} is paused{actor(facts.actor('lane_pause'))}"


def paused_batch(facts: Facts) -> Reason | None:
    if "paused_batch" not in facts.told:
        return None
    return "paused-batch", f"batch {facts.told['paused_batch']} is paused{actor(facts.actor('batch_pause'))}"


def no_worker(facts: Facts) -> Reason | None:
    if facts.count("serving"):
        return None
    others = f"; {counted(facts.count('living'), 'living worker')} only for others" if facts.count("living") else ""
    return "no-worker", f"no living worker serves queue {facts.queue}{others}"


def misfit(facts: Facts) -> Reason | None:
    if facts.job is None or "is_apart" not in facts.told or "shapes" not in facts.told:
        return None
    return "misfit", f"the data does not fit the handler {facts.job.klass} of the release that leased the job"


def no_handler(facts: Facts) -> Reason | None:
    if facts.job is None or facts.count("knowing"):
        return None
    return "no-handler", (
        f"no handler for {facts.job.klass} at any living worker for queue {facts.queue}, of which there"
        f" {'is' if facts.count('serving') == 1 else 'are'} {facts.count('serving'):,}"
    )


def left_to_others(facts: Facts) -> Reason | None:
    if facts.job is None or "is_apart" not in facts.told:
        return None
    return "left-to-others", (
        f"the job is left to one of the {counted(facts.count('knowing'), 'living worker')} with a handler for"
        f" {facts.job.klass}, because another worker has none"
    )


def limit(facts: Facts) -> Reason | None:
    """Tell of a limit without room: it is 0, its slots are taken, or its rate is used up until a time."""
    key, until_ms = facts.told.get("full_limit"), facts.told.get("limit_until")
    if key is None or until_ms is None:
        return None
    if until_ms < NEVER_MS:
        return "limit-rate", f"the rate of limit {key} is used up until {moment(until_ms / 1000)}"
    most, in_use = facts.count("limit_running"), facts.count("limit_in_use")
    if most == 0:
        return "limit-zero", f"limit {key} is set to 0{actor(facts.actor('limit_by'))}"
    return "limit-full", (
        f"limit {key} is full: {in_use:,} of {most:,}, held by {some(facts.told['limit_holders'], in_use)}, the"
        " oldest first"
    )


def concurrency(facts: Facts) -> Reason | None:
    most, n = facts.count("max_concurrency"), facts.count("running") + facts.count("stalled")
    if not most or n < most:
        return None
    jids = some(facts.told["running_jids"], n)
    return "concurrency-full", f"queue {facts.queue} has its max-concurrency of {most:,} running: {jids}"


def next_lease(facts: Facts) -> Reason | None:
    """Tell of a job whose delay is over, or whose limit has room again: a lease brings it into its line."""
    if facts.job is None or "ahead" in facts.told:
        return None
    return "next-lease", f"the next lease of queue {facts.queue} brings the job back into its line"


def behind_others(facts: Facts) -> Reason | None:
    front = 0 if "is_in_front" in facts.told else facts.count("front")
    job, ahead = facts.job, facts.count("ahead") + front
    if job is None or not ahead:
        return None
    where = f"lane {job.lane}" if job.lane and not front else f"queue {facts.queue}"
    turns = f"; {counted(facts.count('lanes'), 'lane')} take turns" if facts.count("lanes") > 1 else ""
    return "behind-others", f"{counted(ahead, 'job')} of {where} {'goes' if ahead == 1 else 'go'} before it{turns}"


def lanes_turn(facts: Facts) -> Reason | None:
    job, lanes = facts.job, facts.count("lanes")
    if job is None or lanes < 2:
        return None
    where = f"lane {job.lane}" if job.lane else "the jobs without a lane"
    return "lanes-turn", f"the job is the first of {where}, which waits for its turn among {counted(lanes, 'lane')}"


def next_in_line(facts: Facts) -> Reason | None:
    if facts.job is None:
        return None
    hold = counted(facts.count("serving_hold"), "job")
    return "next-in-line", (
        f"the job is next in queue {facts.queue}; {counted(facts.count('serving'), 'worker')} that may serve it hold"
        f" {hold}"
    )
