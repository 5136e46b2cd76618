"""Reasons of a supervisor as a whole: why it starts no jobs, and what else is wrong with it. Runs in applications and
commands.

All that is true is told, so that the cause of each alert on a supervisor is among it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from supervisor.engine.commands.workers import WorkerJobs
from supervisor.engine.why.ended import Reason
from supervisor.engine.why.record import Why
from supervisor.engine.why.words import counted, moment
from supervisor.engine.why.workers import SLOW_MS

Status = Mapping[str, Any]

#: As for the alert LeaseholdLoopSlow.
_SLOW_TURN_S: Final = 1.0
#: A lost connection and dropped lines are told for so long.
_LATELY_S: Final = 3600.0
#: Shards that are named.
_NAMED: Final = 5
_ENDING: Final = frozenset({"draining", "interrupting", "killing", "leaving"})
#: Fields of a status that are shown as facts.
_FACTS: Final = (
    "state", "left_s", "uptime_s", "busy", "processes", "queues", "reload", "redis", "longest_turn_s", "log", "version",
)  # fmt: skip


def conclude_worker(held: WorkerJobs, answer: Any, *, is_asked: bool = True, may_answer: bool = False) -> Why:
    """Return all that is wrong with a worker, the gravest first, or that it serves.

    `answer`: its status, None if it has not answered. `is_asked`: it takes questions, as supervisors do. `may_answer`:
    it still has time to answer.
    """
    facts: dict[str, Any] = {"worker": held.name, "running": len(held.running), "stalled": len(held.stalled)}
    if held.seen_unix is not None:
        facts["seen_unix"] = held.seen_unix
    if not isinstance(answer, Mapping) or "processes" not in answer:
        return Why(*_silent(held, is_asked, may_answer), facts)
    facts |= {name: answer[name] for name in _FACTS if answer.get(name) is not None}
    found = [reason for rule in _RULES if (reason := rule(answer)) is not None]
    found = found or [_serves(answer)]
    return Why(found[0][0], f"worker {held.name} {'; it '.join(words for _, words in found)}", facts)


def _silent(held: WorkerJobs, is_asked: bool, may_answer: bool) -> Reason:
    if held.seen_unix is None:
        return "no-worker", f"there is no worker {held.name}: it has left, or was never there"
    holds = f"it was last seen at {moment(held.seen_unix)}, and holds {counted(len(held.running), 'job')}"
    lost = f", beside {len(held.stalled):,} whose leases have ended" if held.stalled else ""
    if not is_asked:
        return "unasked", f"worker {held.name} takes no questions, as supervisors do; {holds}{lost}"
    if may_answer:
        return "worker-asked", f"worker {held.name} is being asked; {holds}{lost}"
    return "worker-silent", f"worker {held.name} has not answered in time; {holds}{lost}"


def _ends(status: Status) -> Reason | None:
    if status.get("state") not in _ENDING:
        return None
    left_s = status.get("left_s")
    within = f", and ends within {left_s:.0f} s" if isinstance(left_s, int | float) else ""
    return "draining", f"is {status['state']}{within}, with {counted(status.get('busy', 0), 'job')} running"


def _starts_none(status: Status) -> Reason | None:
    if status.get("state") in _ENDING:
        return None
    if stop := status.get("admission", {}).get("stop"):
        return "worker-stopped", f"starts no job: {stop}"
    if status.get("state") == "booting":
        return "worker-stopped", "starts no job: it is importing its handlers"
    return None


def _refused_code(status: Status) -> Reason | None:
    reload = status.get("reload")
    if not isinstance(reload, Mapping) or reload.get("outcome") != "failed":
        return None
    return "reload-failed", (
        f"has refused the new code at {moment(reload['at_unix'])}, and works with the old one: {reload.get('message')}"
    )


def _without_shards(status: Status) -> Reason | None:
    redis = status.get("redis", {})
    away = redis.get("shards_away")
    if not away:
        return None
    of_all = f"; it goes on with the other {redis['shards'] - len(away)}" if redis["shards"] > len(away) else ""
    numbers = ", ".join(map(str, away[:_NAMED]))
    more = f" and {len(away) - _NAMED} more" if len(away) > _NAMED else ""
    return "redis-away", f"does not reach {'shard' if len(away) == 1 else 'shards'} {numbers}{more} of Redis{of_all}"


def _was_lately(ago_s: float | None) -> bool:
    return ago_s is not None and ago_s <= _LATELY_S


def _lost_redis(status: Status) -> Reason | None:
    redis = status.get("redis", {})
    lost = redis.get("lost")
    if not lost or not _was_lately(lost["ago_s"]):
        return None
    reconnects = redis.get("reconnects")  # one that is away has not come back, and counts no time
    often = f" {counted(reconnects, 'time')} since it began, the last time" if reconnects else ""
    return "redis-cut", (
        f"has lost its connection to Redis{often} {lost['ago_s']:.0f} s ago: {lost['message']}; leasehold doctor looks"
        " for what cuts connections"
    )


def _slow_redis(status: Status) -> Reason | None:
    exchange_ms = status.get("redis", {}).get("exchange_ms") or 0.0
    if exchange_ms < SLOW_MS:
        return None
    return "redis-slow", f"gets the answers of Redis only after {exchange_ms:,.0f} ms"


def _slow_loop(status: Status) -> Reason | None:
    turn_s = status.get("longest_turn_s") or 0.0
    if turn_s < _SLOW_TURN_S:
        return None
    return "loop-slow", (
        f"took {turn_s:.1f} s for a turn of its loop in the last minute: its master gets too little processor time, by"
        " a CPU limit, a full machine or one that swaps, or was stopped"
    )


def _lines_dropped(status: Status) -> Reason | None:
    log = status.get("log", {})
    words = []
    if _was_lately(log.get("dropped_ago_s")):
        words.append(f"has dropped {counted(log['dropped'], 'line')} of its log, whose reader is too slow")
    last = log.get("printed_last") or {}
    if _was_lately(last.get("ago_s")):
        by = f", most lately of job {last['jid']} ({last['klass']})" if last.get("jid") else ""
        words.append(f"has left out {counted(log['printed_dropped'], 'line')} that jobs have printed{by}")
    return ("log-dropped", "; it ".join(words)) if words else None


_RULES: Final[tuple[Callable[[Status], Reason | None], ...]] = (
    _ends, _starts_none, _refused_code, _without_shards, _lost_redis, _slow_redis, _slow_loop, _lines_dropped,
)  # fmt: skip


def _serves(status: Status) -> Reason:
    busy, most = status.get("busy", 0), status["processes"].get("now", 0)
    queues = ", ".join(status.get("queues", ())[:5]) or "no queue"
    code = "children-busy" if busy and busy >= most else "serving"
    return code, f"serves {queues}; {busy:,} of {most:,} processes are busy"
