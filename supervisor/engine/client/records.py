"""Fills the jobs and leases that clients hand out with what Redis answers. Runs in applications and commands.

An answer with many jobs leaves large attributes out. A property stands for each of them, and asks `_fetch` for it.
"""

from typing import Any

from supervisor.engine.client.answers import found
from supervisor.engine.commands import job_queries, recurrences
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.jobs import JobRecord, LeaseRecord
from supervisor.engine.model.recurring import Recurring


def fill_lease(handle: LeaseRecord, record: LeaseRecord) -> None:
    """Copy all attributes of a leased job."""
    for name in LeaseRecord.__slots__:
        object.__setattr__(handle, name, getattr(record, name))


def fill(handle: Any, record: Any, base: type) -> None:
    """Copy all attributes of a `base`, also those that a property covers."""
    for name in base.__slots__:  # type: ignore[attr-defined]
        getattr(base, name).__set__(handle, getattr(record, name))


def _fetched(base: type, name: str) -> Any:
    slot, left_out = getattr(base, name), base.left_out  # type: ignore[attr-defined]

    def get(handle: Any) -> Any:
        if name in left_out.__get__(handle):
            handle._fetch(name)
        return slot.__get__(handle)

    return property(get, doc=f"As {base.__name__}.{name}.")


class _PartialRecord(JobRecord):
    """A job without the attributes that were too large for a list."""

    __slots__ = ()

    raw: bytes = _fetched(JobRecord, "raw")
    failure: dict[str, Any] | None = _fetched(JobRecord, "failure")
    result: Any = _fetched(JobRecord, "result")
    history: list[dict[str, Any]] = _fetched(JobRecord, "history")
    dependencies: list[str] = _fetched(JobRecord, "dependencies")
    dependents: list[str] = _fetched(JobRecord, "dependents")
    saved: Any = _fetched(JobRecord, "saved")


class PartialJob(_PartialRecord):
    """A job that fetches what a list left out, as it is when it is first asked for."""

    __slots__ = ()
    _calls: Any

    def _fetch(self, name: str) -> None:
        row = found(self.jid, self._calls.call(job_queries.row, self.jid))
        # Only the first use of the data fetches it. Any other attribute brings all the others along.
        names = job_queries.LARGE if name == "raw" else job_queries.LARGE.keys() - {"raw"}
        fill(self, self._calls.follow(job_queries.whole(self.jid, row, names)), JobRecord)


class AsyncPartialJob(_PartialRecord):
    """A job that refuses to give what a list left out, because an attribute cannot be awaited."""

    __slots__ = ()

    def _fetch(self, name: str) -> None:
        raise _too_large(self, name, "job")


class PartialRecurring(Recurring):
    """A recurring job that fetches its data when it is first asked for, if a list left it out."""

    __slots__ = ()
    _calls: Any

    raw: bytes = _fetched(Recurring, "raw")

    def _fetch(self, _name: str) -> None:
        fill(self, found(self.jid, self._calls.follow(recurrences.read_whole(self.jid))), Recurring)


class AsyncPartialRecurring(Recurring):
    """A recurring job that refuses to give its data if a list left it out."""

    __slots__ = ()

    raw: bytes = _fetched(Recurring, "raw")

    def _fetch(self, name: str) -> None:
        raise _too_large(self, name, "recurring")


def _too_large(handle: JobRecord | Recurring, name: str, call: str) -> LeaseholdError:
    return LeaseholdError(
        f"{name} of job {handle.jid} was left out of a list, for its size ({handle.left_out[name]}):"
        f" `await client.{call}({handle.jid!r})` has it"
    )
