"""Reasons that only workers know: their children are busy, their memory is used, they start nothing, or are silent.

Runs in applications and commands. The answers are those of `leasehold status`, by worker; None from one that has not
answered.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from supervisor.engine.commands.facts import Facts
from supervisor.engine.why.ended import Reason
from supervisor.engine.why.words import counted, megabytes, moment, some

Answers = Mapping[str, Any]

#: Reasons of jobs and queues that only wait for a worker.
_WAITS_FOR_A_WORKER: Final = frozenset({"next-lease", "behind-others", "lanes-turn", "next-in-line", "served"})
#: Supervisors that drain say that they have no handlers any more.
_UNKNOWN_TO_ALL: Final = "no-handler"
#: Ordered so that what a person must change comes before what passes by itself.
_ORDER: Final = ("worker-silent", "worker-stopped", "memory-budget", "children-busy")
_NAMED: Final = 3
#: Redis is slow if exchanges with it take so long on the mean.
SLOW_MS: Final = 100


class _Obstacle(NamedTuple):
    """Why a worker starts no further job."""

    code: str
    words: str


def to_ask(facts: Facts, reason: str) -> Sequence[str]:
    """Return the workers that may know more than Redis does."""
    if reason == "running" and facts.job is not None and "holder_answers" in facts.told:
        return [str(facts.job.worker)]
    may_know = reason in _WAITS_FOR_A_WORKER or reason == _UNKNOWN_TO_ALL
    return list(facts.told["answering_names"]) if may_know else []


def with_its_worker(facts: Facts, answers: Answers) -> Reason | None:
    """Tell of a leased job what its worker does with it."""
    job = facts.job
    if job is None or job.worker is None or job.worker not in answers:
        return None
    worker, status = job.worker, answers[job.worker]
    if status is None:
        ends = f"; its lease ends at {moment(job.expires_unix)}" if job.expires_unix is not None else ""
        return "worker-silent", f"the job is with worker {worker}, which has not answered in time{ends}"
    child = next((child for child in status.get("children", ()) if child.get("jid") == job.jid), None)
    if child is not None:
        stopping = f", and is being stopped: {child['stopping']}" if child.get("stopping") else ""
        return "running", (
            f"the job runs at worker {worker} in the child with pid {child['pid']} for {child['running_s']:.1f}"
            f" s{stopping}"
        )
    obstacle = _obstacle(worker, status, facts)
    is_ahead = not status.get("children_left_out") and any(child.get("ahead") for child in status.get("children", ()))
    if obstacle is None or not (is_ahead or job.jid in status.get("admission", {}).get("waiting", ())):
        return None
    return "waits-at-worker", f"worker {worker} has leased the job, which waits there: {obstacle.words}"


def none_is_free(facts: Facts, answers: Answers, reason: str) -> Reason | None:
    """Tell that each worker that could lease the next job of the queue starts none now."""
    if len(answers) < facts.count("serving"):
        return None  # one that was not asked may be free
    obstacles = [_obstacle(worker, status, facts) for worker, status in answers.items()]
    told = [obstacle for obstacle in obstacles if obstacle is not None]
    if not told or len(told) < len(obstacles):
        return None
    ahead = f"; {counted(facts.count('ahead'), 'job')} of its line before it" if facts.count("ahead") else ""
    code = max((obstacle.code for obstacle in told), key=_ORDER.index)
    if reason == _UNKNOWN_TO_ALL and code != "worker-stopped":
        return None
    return code, some([obstacle.words for obstacle in told[:_NAMED]], len(told)) + ahead


def with_slow_redis(answers: Answers, reason: str, sentence: str) -> Reason:
    """Add that Redis answers all these workers slowly. It is the reason where jobs only wait for a worker."""
    took_ms = {name: _exchange_ms(status) for name, status in answers.items() if status is not None}
    if not took_ms or min(took_ms.values()) < SLOW_MS:
        return reason, sentence
    slow = [f"{name} only after {ms:,.0f} ms" for name, ms in took_ms.items()]
    code = "redis-slow" if reason in _WAITS_FOR_A_WORKER else reason
    return code, f"{sentence}; Redis answers worker {some(slow[:_NAMED], len(slow))}"


def _exchange_ms(status: Mapping[str, Any]) -> float:
    return status.get("redis", {}).get("exchange_ms") or 0.0


def _obstacle(worker: str, status: Any, facts: Facts) -> _Obstacle | None:
    if status is None:
        return _Obstacle("worker-silent", f"worker {worker} has not answered in time")
    admission = status.get("admission", {})
    if "busy" not in status:
        return None  # a refusal
    if admission.get("stop"):
        return _Obstacle("worker-stopped", f"worker {worker} starts no job: {admission['stop']}")
    if status.get("state") == "booting":
        return _Obstacle("worker-stopped", f"worker {worker} starts no job: it is importing its handlers")
    if status["busy"] and status["busy"] >= status["processes"]["now"]:
        return _Obstacle("children-busy", _busy(worker, status, facts))
    memory = admission.get("memory")
    if memory and (admission["waits_for_room"] or admission["waiting"]):
        return _Obstacle(
            "memory-budget",
            f"worker {worker} waits for memory: {megabytes(memory['used_bytes'])} of"
            f" {megabytes(memory['limit_bytes'])} MB are in use or reserved",
        )
    return None


def _busy(worker: str, status: Mapping[str, Any], facts: Facts) -> str:
    running = [child for child in status["children"] if child.get("jid")]
    busy = f"all {status['busy']:,} children of worker {worker} are busy"
    if not running:
        return f"worker {worker} runs as many jobs as it may, {status['busy']:,}"
    if status.get("children_left_out"):
        return busy
    oldest = max(running, key=lambda child: child["running_s"])
    return f"{busy}; their oldest job is {oldest['jid']}, since {moment(facts.now_unix - oldest['running_s'])}"
