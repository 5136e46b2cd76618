"""Tells whether the memory of Redis is why jobs are missing. Runs in applications and commands."""

from typing import Final

from supervisor.engine.commands.facts import Facts
from supervisor.engine.why.words import counted, megabytes

#: As for the alert LeaseholdRedisFull.
_NEARLY_FULL: Final = 0.9


def evicts_jobs(facts: Facts) -> bool:
    """Return whether Redis has evicted keys that may have been those of jobs: they do not expire."""
    return facts.count("redis_evicted") > 0 and str(facts.told.get("redis_policy")).startswith("allkeys")


def refuses_puts(facts: Facts) -> bool:
    """Return whether Redis refuses puts, or soon does."""
    used, most = facts.count("redis_used_bytes"), facts.count("redis_most_bytes")
    return 0 < most * _NEARLY_FULL < used and not str(facts.told.get("redis_policy")).startswith("allkeys")


def memory_words(facts: Facts) -> str:
    """Return why a job may be missing, or "" if not for the memory of Redis."""
    uses = f"{megabytes(facts.count('redis_used_bytes'))} of {megabytes(facts.count('redis_most_bytes'))} MB"
    evicted = counted(facts.count("redis_evicted"), "key")
    if evicts_jobs(facts):
        return f"Redis, which uses {uses}, has evicted {evicted}, and by its maxmemory-policy jobs may be among them"
    if not refuses_puts(facts):
        return ""
    beside = f"; of those that expire it has evicted {evicted}" if facts.count("redis_evicted") else ""
    return f"Redis uses {uses}, and refuses puts when it is full{beside}"
