"""Says how batches of put_many may be sent, and what became of them. Runs in applications and commands.

Must not: send anything.
"""

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Final

from supervisor.engine.client.answers import jid_of
from supervisor.engine.client.connection import has_failed
from supervisor.engine.model.errors import LeaseholdError, OutcomeUnknown, PutJobs
from supervisor.engine.model.new_jobs import NewJob

#: With two, the server always has one to work on while the client makes the next.
_MOST_UNDER_WAY: Final = 2
#: A batch with more data goes alone. Redis does not read the one behind it meanwhile, whose sending would time out.
_ALONE_BYTES: Final = 2**24
#: The words of an error for each field of PutJobs.
_FATES: Final = {"put": "were put", "unknown": "may have been put", "not_put": "were not put"}

#: The answer for each job of a batch, or the error of the call.
BatchAnswer = Sequence[bool | str] | LeaseholdError


def most_under_way(batches: Sequence[Sequence[NewJob]]) -> int:
    """Return how many batches may be under way. A parent that was never put counts as complete, so children wait."""
    if any(job.has_parents for job in chain.from_iterable(batches)):
        return 1
    return 1 if any(sum(job.size_bytes for job in batch) > _ALONE_BYTES for batch in batches) else _MOST_UNDER_WAY


def answers_of(batches: Sequence[Sequence[NewJob]], answers: Sequence[BatchAnswer | None]) -> list[bool | str]:
    """Return the answer for each job. Raises the error of a batch, as `jids_of` does."""
    if has_failed(answers):
        raise _failure(batches, answers)
    return [answer for part in answers if part is not None and not isinstance(part, LeaseholdError) for answer in part]


def jids_of(batches: Sequence[Sequence[NewJob]], answers: Sequence[BatchAnswer | None]) -> list[str]:
    """Return what put_many returns. A batch without an answer was not sent.

    Raises the first OutcomeUnknown among the answers, else the first error, with what became of all jobs.
    """
    if has_failed(answers):
        raise _failure(batches, answers)
    return [jid for batch, answer in zip(batches, answers, strict=True) for jid in _jids_of(batch, answer)]


def _failure(batches: Sequence[Sequence[NewJob]], answers: Sequence[BatchAnswer | None]) -> LeaseholdError:
    jids: dict[str, list[str]] = {fate: [] for fate in _FATES}
    ranges: list[tuple[str, int, int]] = []
    last = 0
    for batch, answer in zip_longest(batches, answers):
        fate, first, last = _fate_of(answer), last + 1, last + len(batch)
        jids[fate] += _jids_of(batch, answer)
        if ranges and ranges[-1][0] == fate:
            first = ranges.pop()[1]
        ranges.append((fate, first, last))
    errors = [answer for answer in answers if isinstance(answer, LeaseholdError)]
    unknown = [error for error in errors if isinstance(error, OutcomeUnknown)]
    error = (unknown or errors)[0]
    if len(batches) > 1:
        reasons = [str(error)] if error is errors[0] else [str(error), str(errors[0])]
        said = "; ".join(f"{first:,} to {last:,} {_FATES[fate]}" for fate, first, last in ranges)
        reasons = [reason if reason.endswith(".") else f"{reason}." for reason in reasons]
        error.args = (f"{' '.join(reasons)} Of the {last:,} jobs {said}.",)
    error.jobs = PutJobs(**jids)
    return error


def _fate_of(answer: BatchAnswer | None) -> str:
    if isinstance(answer, OutcomeUnknown):
        return "unknown"
    return "not_put" if answer is None or isinstance(answer, LeaseholdError) else "put"


def _jids_of(batch: Sequence[NewJob], answer: BatchAnswer | None) -> list[str]:
    if answer is None or isinstance(answer, LeaseholdError):
        return [job.jid for job in batch]
    return [jid_of(job, one) for job, one in zip(batch, answer, strict=True)]
