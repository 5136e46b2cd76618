"""Applies the rules to the facts: the first reason that is true is the answer. Runs in applications and commands."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from supervisor.engine.commands.facts import ACTORS, Facts
from supervisor.engine.why import ended, held, queues, waiting, workers
from supervisor.engine.why.record import Why

Rule = Callable[[Facts], ended.Reason | None]

#: Ordered so that what a person must change comes before what passes by itself.
_OF_A_JOB: Final[tuple[Rule, ...]] = (
    ended.recurring, ended.dropped, ended.cancelled, ended.unknown, ended.complete, ended.failed,
    held.stalled, held.running, held.waits_for_parents, held.waits_for_signal, held.unknown_klass, held.retry,
    held.scheduled,
    waiting.paused_queue, waiting.paused_lane, waiting.paused_batch, waiting.no_worker, waiting.misfit,
    waiting.no_handler, waiting.left_to_others, waiting.limit, waiting.concurrency, waiting.next_lease,
    waiting.behind_others, waiting.lanes_turn, waiting.next_in_line,
)  # fmt: skip
_OF_A_QUEUE: Final[tuple[Rule, ...]] = (
    waiting.paused_queue, queues.late_recurrences, queues.redis_evicts, queues.redis_full,
    queues.nothing_there, waiting.no_worker, waiting.concurrency, queues.none_ready, queues.served,
)  # fmt: skip
#: Reasons that promise a next lease, which these would keep from coming.
_HELD_UP_TOO: Final = frozenset({"stalled", "retry", "scheduled", "recurring"})
_HOLDING_UP: Final = (waiting.paused_queue, waiting.paused_batch, waiting.no_worker)
_TIMES: Final = (
    "now", "popped", "completed", "cancelled", "dropped", "complete_since", "next", "limit_until",
)  # fmt: skip


def conclude(facts: Facts, answers: workers.Answers | None = None) -> Why:
    """Return the first true reason, with the facts. `answers`: what workers of `workers.to_ask()` have said."""
    rules = _OF_A_QUEUE if facts.jid is None else _OF_A_JOB
    reason, sentence = next(found for rule in rules if (found := rule(facts)) is not None)
    if reason in _HELD_UP_TOO:
        sentence += "".join(f"; but {why[1]}" for rule in _HOLDING_UP if (why := rule(facts)) is not None)
    if answers:
        is_leased = reason == "running"
        told = workers.with_its_worker(facts, answers) if is_leased else workers.none_is_free(facts, answers, reason)
        reason, sentence = workers.with_slow_redis(answers, *(told or (reason, sentence)))
    return Why(reason, sentence, dict(_shown(facts)))


def _shown(facts: Facts) -> list[tuple[str, Any]]:
    shown: list[tuple[str, Any]] = []
    if facts.job is not None:
        job = facts.job
        shown += [("jid", job.jid), ("klass", job.klass), ("state", job.state)]
        optional = {
            "worker": job.worker, "lane": job.lane, "limit": job.limit, "due_unix": job.due_unix,
            "expires_unix": job.expires_unix, "waiting_for": job.waiting_for, "failures": job.failures or None,
            "dependencies": job.dependencies or None, "failure": job.failure,
        }  # fmt: skip
        shown += [(name, value) for name, value in optional.items() if value is not None]
    for name, value in facts.told.items():
        if name in ACTORS:
            by, since_unix = facts.actor(name)
            shown += [(f"{name}_by" if name != "limit_by" else name, by), (f"{name}_unix", since_unix)]
        elif name == "deletions":
            shown.append((name, [asdict(act) for act in facts.deletions]))
        elif name in _TIMES:
            shown.append((f"{name}_unix", value / 1000))
        else:
            shown.append((name, value))
    return shown
