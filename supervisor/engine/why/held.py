"""Reasons of jobs that run, or that wait for a time, a signal or other jobs. Runs in applications and commands."""

from supervisor.engine.commands.facts import Facts
from supervisor.engine.why.ended import Reason
from supervisor.engine.why.words import counted, moment, some


def stalled(facts: Facts) -> Reason | None:
    job = facts.job
    if job is None or job.state != "stalled" or job.expires_unix is None:
        return None
    return "stalled", (
        f"worker {job.worker} was lost with the job: its lease ended at {moment(job.expires_unix)}, and the next lease"
        " of the queue takes it over after the grace"
    )


def running(facts: Facts) -> Reason | None:
    job = facts.job
    if job is None or job.state != "running":
        return None
    leased_unix = facts.unix("popped")
    since = f" since {moment(leased_unix)}" if leased_unix is not None else ""
    limited = f", with a time limit of {job.timeout_s:g} s" if job.timeout_s else ""
    return "running", f"the job is with worker {job.worker}{since}{limited}"


def waits_for_parents(facts: Facts) -> Reason | None:
    job = facts.job
    if job is None or job.state != "depends":
        return None
    parents = some(job.dependencies[:3], len(job.dependencies))
    return "waits-for-parents", f"the job waits for {parents}{_root_words(facts)}"


def _root_words(facts: Facts) -> str:
    root = facts.told.get("root")
    if root is None:
        return ""
    which = root if facts.count("root_generations") == 1 else f"{root}, which holds them up,"
    group = f" in group {facts.told['root_group']}" if "root_group" in facts.told else ""
    return f"; {which} is {facts.told['root_state']}{group}"


def waits_for_signal(facts: Facts) -> Reason | None:
    job = facts.job
    if job is None or job.state != "scheduled" or not job.waiting_for:
        return None
    until = f", until {moment(job.due_unix)} at the most" if job.due_unix is not None else ""
    return "waits-for-signal", f"the job waits for the signal {job.waiting_for}{until}"


def unknown_klass(facts: Facts) -> Reason | None:
    """Tell of a job that came back because the workers that leased it lack its klass."""
    job = facts.job
    if job is None or job.state != "scheduled" or job.unknown_unix is None or job.due_unix is None:
        return None
    return "unknown-klass", (
        f"no worker that leased the job since {moment(job.unknown_unix)} has a handler for {job.klass}; it is tried"
        f" again at {moment(job.due_unix)}"
    )


def retry(facts: Facts) -> Reason | None:
    job = facts.job
    if job is None or job.state != "scheduled" or not job.failures or job.due_unix is None:
        return None
    return "retry", f"the job runs again at {moment(job.due_unix)}, after {counted(job.failures, 'failure')}"


def scheduled(facts: Facts) -> Reason | None:
    job = facts.job
    if job is None or job.state != "scheduled" or job.due_unix is None:
        return None
    return "scheduled", f"the job is scheduled for {moment(job.due_unix)}"
