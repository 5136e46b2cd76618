"""Turns the end of a job or of a child into an outcome and a sentence for people. Runs in the master.

No I/O and no clock. Only the back-off is random.
"""

import os
import random
import signal
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import orjson

from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.keys import NAME_BYTES, checked_name
from supervisor.engine.model.new_jobs import new_job
from supervisor.engine.model.outcomes import (
    ENDLESS,
    MOST_QUEUES,
    REFUSED,
    TOO_MANY_QUEUES,
    Answer,
    Completed,
    Died,
    Failed,
    Misfit,
    Outcome,
    Released,
    Retried,
    Returned,
    Suspended,
)
from supervisor.engine.model.validation import DATA_BYTES, UNSET
from supervisor.messages import (
    MAX_RESULT_BYTES,
    Blob,
    Completion,
    HandlerSettings,
    Trouble,
    Verb,
    unpack_completion,
    unpack_suspension,
    unpack_trouble,
)
from supervisor.units import megabytes

#: The shape of handlers that have reported none.
NO_SHAPE: Final = "any"
_LONGEST_BACKOFF_S: Final = 600.0
_REASON_BYTES: Final = 64
#: Reasons of our own kills that are also reasons of a death. A kill for any other reason shows as its signal.
_REASONS: Final = frozenset({"timeout", "memory", "disk"})

#: How native code usually ends after a failed malloc.
_NATIVE_CRASHES: Final = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS"})

_Outcome = TypeVar("_Outcome", bound=Outcome)

CUT_OFF: Final = "cut-off"
#: Why an at-most-once job failed that ran beside another one.
CHILD_DIED: Final = "child-died"

#: Reasons for which a job is stopped while its lease is ours, with the words for people. The job goes to the front, and
#: nothing is spent.
INTERRUPTIONS: Final = {
    "drain": "this supervisor drains",
    "reload": "the code is reloaded",
    "scaled": "there are to be fewer processes",
    "zygote-lost": "the zygote is lost that its child came from",
    CUT_OFF: "this supervisor was cut off from Redis for so long that another one may have the job",
}
#: Reasons for which a job is stopped whose lease is lost.
_LOSSES: Final = {
    "cancelled": "it is cancelled",
    "lease-lost": "its lease is lost: it was moved, released or failed from outside, or another worker has it",
}


_BESIDE: Final = {CHILD_DIED: "its child has died, which ran other jobs beside it"}


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended, as far as known. `status` None: the zygote has not reported the child's end."""

    status: int | None = None
    why_killed: str | None = None  # by the master: one of its reasons, or a sentence
    kill_sentence: str | None = None  # for people, where there is more to say than `why_killed`
    overflow: str | None = None  # traceback of a MemoryError that left the handler, under a memory limit
    oom: bool = False  # the kernel's OOM killer killed in our cgroup
    cpu_s: float | None = None
    max_rss_bytes: int | None = None  # of the child, with inherited pages
    memory_limit_bytes: int = 0
    memory_bytes: int | None = None  # largest sample of the process tree's private memory
    output: str = ""
    stack: str = ""

    @property
    def reason(self) -> str:
        """The reason of the death, from the closed list."""
        if self.why_killed in _REASONS:
            return self.why_killed
        if self.overflow is not None:
            return "memory"
        if self.status is None:
            return "lost"
        return "oom" if self.oom else death_reason(self.status)

    @property
    def account(self) -> dict[str, Any]:
        """The details that Redis keeps with the job."""
        cpu_s = None if self.cpu_s is None else round(self.cpu_s, 3)
        return _details(cpu_s=cpu_s, max_rss_bytes=self.max_rss_bytes) | self.findings

    @property
    def findings(self) -> dict[str, Any]:
        """The details that only some runs have."""
        return _details(memory_bytes=self.memory_bytes, output=self.output, stack=self.stack)


#: The end of a job that completed.
NO_END: Final = End()


def of_outcome(lease: LeaseRecord, verb: int, body: bytes, settings: HandlerSettings, end: End) -> Outcome:
    """Turn what a child said about its job into an outcome. `end`: what else is known about the run.

    Raises ValueError or TypeError if the message is not valid.
    """
    if verb == Verb.COMPLETED:
        result = _result(body)
        return Returned(lease) if lease.persistent else Completed(lease, result)
    if verb == Verb.FOLLOWED:
        if lease.persistent:
            raise ValueError("a persistent job does not complete")
        return _followed(lease, unpack_completion(body))
    if verb == Verb.SUSPENDED:
        if lease.persistent or lease.at_most_once:
            raise ValueError("a job that cannot start again cannot wait")
        return _checked(Suspended(lease, *unpack_suspension(body)))
    trouble = unpack_trouble(body)
    if verb == Verb.INTERRUPTED:
        return _checked(Released(lease, started=True, reason=_cut(trouble.message, _REASON_BYTES)))
    details = {"traceback": trouble.traceback, **end.account} if trouble.traceback else end.account
    if verb == Verb.MISFIT:
        return _checked(Misfit(lease, settings.shape or NO_SHAPE, trouble.message, details))
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
    """Build the arguments of the settle now, so that a bad outcome fails one child and not a whole exchange."""
    outcome.arguments(outcome.lease.worker, 0.0)
    return outcome


def _followed(lease: LeaseRecord, said: Completion) -> Completed:
    """Check a completion with its puts, as untrusted input, and make the jobs.

    The data of the jobs is not parsed. Invalid JSON fails the job that has it, while parsing 256 MB here would stop the
    loop.
    """
    then = [new_job("put", queue, klass, _data(data), options) for queue, klass, options, data in said.then]
    if said.next is None:
        return _checked(Completed(lease, _result(said.result), then=then))
    queue, delay_s, depends, data = said.next
    checked_name("next", queue)
    completed = _checked(Completed(lease, _result(said.result), next=queue, delay=delay_s, depends=depends, then=then))
    return replace(completed, data=_data(data))  # added after the check, so that it is copied only to be sent


def _data(blob: Blob) -> Any:
    if len(blob.raw) > DATA_BYTES:
        raise ValueError(f"data of {len(blob.raw)} bytes")
    return UNSET if not blob.kind else blob.raw if blob.kind == "bytes" else orjson.Fragment(blob.raw)


def of_verdict(lease: LeaseRecord, verdict: Answer) -> Failed | Returned | None:
    """Return the outcome in place of one that the engine has refused. None: it was not refused."""
    if verdict == REFUSED:
        return _of_refusal(lease)
    if verdict == TOO_MANY_QUEUES:
        return _of_too_many_queues(lease)
    return Returned(lease) if verdict == ENDLESS else None


def _of_refusal(lease: LeaseRecord) -> Failed:
    """The end of a job that is done, but whose puts the engine refuses because of their dependencies."""
    return Failed(
        lease, "DependencyError",
        "what is to follow its completion was refused: a job would wait for itself, or for one that too many wait for,"
        " or what it would wait for is too deep to look through, or known jobs to put anew wait for too many others or"
        " lose too many tags; nothing of it was put",
    )  # fmt: skip


def of_put_off(lease: LeaseRecord) -> Failed | Released:
    """The end of a job that is done, but whose puts Redis refused until this supervisor left: its memory is full."""
    if not lease.at_most_once:
        return Released(lease, started=True, reason="drain")
    return Failed(
        lease, "interrupted",
        "the job is done, but the memory of Redis was full until this supervisor left, so that what was to follow its"
        " completion was refused; nothing of it was put, and the job must not be started twice",
    )  # fmt: skip


def _of_too_many_queues(lease: LeaseRecord) -> Failed:
    """The end of a job that is done, but whose puts would make one queue too many."""
    return Failed(
        lease, "too-many-queues",
        f"what is to follow its completion would make a new queue, and there are {MOST_QUEUES} already; nothing of it"
        " was put. Put to one of those, or delete some (leasehold queues NAME --delete)",
    )  # fmt: skip


def _result(body: bytes) -> orjson.Fragment | None:
    if not body:
        return None
    if len(body) > MAX_RESULT_BYTES:
        raise ValueError(f"a result of {len(body)} bytes")
    orjson.loads(body)
    return orjson.Fragment(body)


def _group(trouble: Trouble) -> str | None:
    """Return the failure group, cut to a valid name. The class of an exception may have any name."""
    if trouble.group is None:
        return None
    return _cut(trouble.group, NAME_BYTES)


def _cut(text: str, most_bytes: int) -> str | None:
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return printable.encode()[:most_bytes].decode(errors="ignore") or None


def _delay_s(trouble: Trouble, lease: LeaseRecord) -> float:
    """Return the delay that the handler asked for, else an exponential back-off with full jitter.

    The jitter spreads jobs that failed together. A persistent job comes back at once; the engine delays it if its run
    was short.
    """
    if trouble.delay_s is not None:
        return trouble.delay_s
    if lease.persistent:
        return 0.0
    return random.uniform(0, min(_LONGEST_BACKOFF_S, 2.0 ** min(lease.failures, 30)))


def of_death(lease: LeaseRecord, end: End, settings: HandlerSettings, max_deaths: int | None) -> Outcome:
    """Turn the end of a child into the outcome of the job in its hands."""
    if end.why_killed in INTERRUPTIONS:
        return Released(lease, started=True, reason=end.why_killed)
    allowed = max_deaths if settings.max_deaths is None else settings.max_deaths
    if settings.on_death == "fail":
        allowed = 1
    died = Died(lease, end.reason, message=death_sentence(lease, end))
    details = _details(klass=lease.klass, traceback=end.overflow, **end.account)
    try:
        return _checked(replace(died, default_max_deaths=allowed, details=details))
    except (ValueError, TypeError):  # the details contain foreign text: leave them out
        return died


def death_reason(status: int) -> str:
    """Return SIGxxx or exit-N for a wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return signal.Signals(number).name
        except ValueError:
            # The C library reserves the two signals below SIGRTMIN.
            return f"SIGRT+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"SIG{number}"
    return f"exit-{os.waitstatus_to_exitcode(status)}"


def stopped_sentence(lease: LeaseRecord, reason: str | None) -> str:
    """Say why a job was stopped, by us or by its handler."""
    why = (INTERRUPTIONS | _LOSSES | _BESIDE).get(reason or "", reason or "its handler has raised Interrupted")
    return f"{lease.klass} was stopped: {why}"


def death_sentence(lease: LeaseRecord, end: End) -> str:
    """Say why a job's child has died."""
    why, reason, who = end.why_killed, end.reason, f"the child running {lease.klass}"
    if why == "lost":
        return f"{who} ended with its zygote, which was lost for the third time while this job ran alone"
    if end.overflow is not None:
        return f"{lease.klass} ended with a MemoryError: its address space is bounded to twice its memory limit by us"
    if why is not None:
        return f"{who} was killed by us: {end.kill_sentence or why}"
    if reason == "lost":
        return f"{who} is gone, and its zygote has not said how it ended"
    if reason == "oom":
        return f"{who} was killed by the kernel's OOM killer: the memory of the container or machine was used up"
    if reason.startswith("exit-"):
        return f"{who} exited with status {reason.removeprefix('exit-')} in the middle of the job"
    if end.memory_limit_bytes and reason in _NATIVE_CRASHES:
        bound = megabytes(2 * end.memory_limit_bytes)
        return f"{who} crashed ({reason}); native code does so where memory is refused: {bound} is its bound"
    return f"{who} was killed by {reason}, which we did not send"


def _details(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value}
