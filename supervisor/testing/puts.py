"""Finds the jobs that a test expects to have been put. Runs in the process of pytest."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from supervisor.child.handler import Handler
from supervisor.engine.client.sync_client import Client
from supervisor.engine.client.sync_handles import Job

_STATES: Final = ("waiting", "running", "stalled", "scheduled", "depends", "parked")
_PAGE: Final = 1000
_MOST_SHOWN: Final = 20


def all_jobs(client: Client) -> list[Job]:
    """Return the jobs of all queues and states, those that have ended included, in the order of their puts."""
    found = {job.jid: job for job in _pages(client)}
    return sorted(found.values(), key=lambda job: job.put_unix)


def _pages(client: Client) -> Iterator[Job]:
    for name in client.queues():
        queue = client.queue(name)
        for state in _STATES:
            offset = 0
            while page := queue.jobs(state, offset, _PAGE):
                yield from page  # type: ignore[misc]  # only the state "recurring" gives others
                offset += len(page)
    offset = 0
    while ended := client.completed(offset, _PAGE):
        yield from ended
        offset += len(ended)
    for group in client.failed():
        offset = 0
        while failed := client.failed(group, offset, _PAGE)[1]:
            yield from failed
            offset += len(failed)


def klass_of(wanted: str | Handler[..., Any], root: str) -> str:
    """Return a klass, or that by which a supervisor of this root knows a handler. Raises TypeError."""
    if isinstance(wanted, Handler):
        return wanted.klass_below(root)
    if not isinstance(wanted, str):
        raise TypeError(f"give a handler or the name of a klass, not {type(wanted).__name__}: {wanted!r:.100}")
    return wanted


def matches(job: Job, klass: str, data: Mapping[str, Any]) -> bool:
    """Return whether a job is of a klass and has these keys in its data, with these values as JSON."""
    if job.klass != klass:
        return False
    if not data:
        return True
    had = None if job.is_bytes else job.data
    return isinstance(had, dict) and all(name in had and had[name] == value for name, value in data.items())


def as_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON keeps them: dates and models as their adapter would write them, if there is pydantic."""
    try:
        from pydantic_core import to_jsonable_python
    except ModuleNotFoundError:
        return {name: orjson.loads(orjson.dumps(value)) for name, value in data.items()}
    return {name: to_jsonable_python(value) for name, value in data.items()}


def listed(jobs: Sequence[Job]) -> str:
    """Return a line for each job, for people."""
    lines = [f"  {job.klass} {_data(job)} in {job.queue}, {job.state}" for job in jobs[:_MOST_SHOWN]]
    if len(jobs) > _MOST_SHOWN:
        lines.append(f"  and {len(jobs) - _MOST_SHOWN} more")
    return "\n".join(lines) or "  (none)"


def _data(job: Job) -> str:
    return f"{job.raw!r:.100}" if job.is_bytes else job.raw.decode(errors="replace")[:100]
