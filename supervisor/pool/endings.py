"""What the end of a job or of a child means, as an outcome for the engine and a sentence for people. Runs in master.

Pure: no I/O and no clock; the back-off is drawn by chance.
"""

import os
import random
import signal
from dataclasses import replace
from typing import Any, Final, TypeVar

import orjson

from supervisor.engine.checks import DATA_BYTES, UNSET
from supervisor.engine.jobs import LeaseRecord, new_job
from supervisor.engine.keys import NAME_BYTES, checked_name
from supervisor.engine.outcomes import Completed, Died, Failed, Outcome, Released, Retried, Returned
from supervisor.pool.messages import (
    MAX_RESULT_BYTES,
    Blob,
    Completion,
    HandlerSettings,
    Reaped,
    Trouble,
    Verb,
    unpack_completion,
    unpack_trouble,
)

_LONGEST_BACKOFF_S: Final = 600.0
#: Our own kills that are reasons of a death; every other one shows as its signal.
_REASONS: Final = frozenset({"timeout"})

_Outcome = TypeVar("_Outcome", bound=Outcome)

#: Why the master kills, where that ends the job as an interruption: it goes to the front and nothing is spent.
INTERRUPTIONS: Final = frozenset({"drain", "reload", "scaled", "zygote-lost"})


def of_outcome(lease: LeaseRecord, verb: int, body: bytes, settings: HandlerSettings, output: str) -> Outcome:
    """What a child has said of its job. Raises ValueError or TypeError where it has said nonsense."""
    if verb == Verb.COMPLETED:
        result = _result(body)
        return Returned(lease) if lease.persistent else Completed(lease, result)
    if verb == Verb.FOLLOWED:
        if lease.persistent:
            raise ValueError("a persistent job does not complete")
        return _followed(lease, unpack_completion(body))
    trouble = unpack_trouble(body)
    if verb == Verb.INTERRUPTED:
        return Released(lease, started=True)
    details = _details(traceback=trouble.traceback, output=output)
    if verb == Verb.FAILED:
        return _checked(Failed(lease, _group(trouble) or "failed", trouble.message, details))
    if verb != Verb.RETRIED:
        raise ValueError(f"no outcome has the number {verb}")
    return _checked(
        Retried(
            lease,
            delay=_delay_s(trouble, lease),
            group=_group(trouble),
            message=trouble.message,
            default_retries=settings.retries,
            details=details,
        )
    )


def _checked(outcome: _Outcome) -> _Outcome:
    """What the engine would refuse in the midst of an exchange, it refuses here, where that is one child's trouble."""
    outcome.arguments(outcome.lease.worker, 0.0)
    return outcome


def _followed(lease: LeaseRecord, said: Completion) -> Completed:
    """All is checked as if it came from a stranger, and once: the jobs are made here. Their data is read only where it
    is claimed: else data that is no JSON is nobody's harm but its own job's, which fails as broken; to read 256 MB of
    it here would be everybody's.
    """
    then = [new_job("put", queue, klass, _data(data), options) for queue, klass, options, data in said.then]
    if said.next is None:
        return _checked(Completed(lease, _result(said.result), then=then))
    queue, delay_s, depends, data = said.next
    checked_name("next", queue)
    completed = _checked(Completed(lease, _result(said.result), next=queue, delay=delay_s, depends=depends, then=then))
    return replace(completed, data=_data(data))  # so that it is copied only to be sent


def _data(blob: Blob) -> Any:
    if len(blob.raw) > DATA_BYTES:
        raise ValueError(f"data of {len(blob.raw)} bytes")
    return UNSET if not blob.kind else blob.raw if blob.kind == "bytes" else orjson.Fragment(blob.raw)


def of_refusal(lease: LeaseRecord) -> Failed:
    """The job is done, but it cannot complete: the engine refuses what is to follow, and has done nothing of it."""
    return Failed(
        lease, "DependencyError",
        "what is to follow its completion was refused: a job would wait for itself, or for one that too many wait for;"
        " nothing of it was put",
    )  # fmt: skip


def _result(body: bytes) -> orjson.Fragment | None:
    if not body:
        return None
    if len(body) > MAX_RESULT_BYTES:
        raise ValueError(f"a result of {len(body)} bytes")
    orjson.loads(body)
    return orjson.Fragment(body)


def _group(trouble: Trouble) -> str | None:
    """The failure group, cut to what can name one: an exception's class may be called anything."""
    if trouble.group is None:
        return None
    printable = "".join(char if char.isprintable() else "?" for char in trouble.group)
    return printable.encode()[:NAME_BYTES].decode(errors="ignore") or None


def _delay_s(trouble: Trouble, lease: LeaseRecord) -> float:
    """As the handler asked; else exponential with full jitter, so that what failed together does not come together. A
    persistent job comes back at once: the engine puts it off if it was held for a short time only.
    """
    if trouble.delay_s is not None:
        return trouble.delay_s
    if lease.persistent:
        return 0.0
    return random.uniform(0, min(_LONGEST_BACKOFF_S, 2.0 ** min(lease.failures, 30)))


def of_death(
    lease: LeaseRecord, reaped: Reaped | None, why_killed: str | None, settings: HandlerSettings, output: str,
    max_deaths: int | None,
) -> Outcome:  # fmt: skip
    """What the end of a child means for the job in its hands. `reaped` None: its zygote is gone and cannot tell."""
    if why_killed in INTERRUPTIONS:
        return Released(lease, started=True)
    reason = why_killed if why_killed in _REASONS else death_reason(reaped.status) if reaped else "lost"
    allowed = max_deaths if settings.max_deaths is None else settings.max_deaths
    if settings.on_death == "fail":
        allowed = 1
    died = Died(lease, reason, message=death_sentence(reason, lease, why_killed))
    try:
        # Not wait4's max RSS: it counts the pages that the child has inherited.
        details = _details(output=output, klass=lease.klass, cpu_s=reaped and round(reaped.cpu_s, 3))
        return _checked(replace(died, default_max_deaths=allowed, details=details))
    except (ValueError, TypeError):  # foreign code has had a hand in them: what is ours alone is said
        return died


def death_reason(status: int) -> str:
    """A wait status in the words of the closed list: SIGxxx or exit-N."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return signal.Signals(number).name
        except ValueError:
            # Below SIGRTMIN are two that the C library keeps to itself.
            return f"SIGRT+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"SIG{number}"
    return f"exit-{os.waitstatus_to_exitcode(status)}"


def death_sentence(reason: str, lease: LeaseRecord, why_killed: str | None) -> str:
    who = f"the child running {lease.klass}"
    if reason == "timeout":
        return f"{who} was killed by us: the job passed its time limit"
    if why_killed == "lost":
        return f"{who} ended with its zygote, which was lost for the third time while this job ran alone"
    if reason == "lost":
        return f"{who} is gone, and its zygote has not said how it ended"
    if reason.startswith("exit-"):
        return f"{who} exited with status {reason.removeprefix('exit-')} in the middle of the job"
    if why_killed:
        return f"{who} was killed by us: {why_killed}"
    return f"{who} was killed by {reason}, which we did not send"


def _details(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value}
