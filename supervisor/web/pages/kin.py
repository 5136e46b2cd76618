"""Reads the jobs around one: those that it waits for, and those that wait for it. Runs in the web server's process."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.commands import job_queries

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient
    from supervisor.engine.model.jobs import JobRecord

    Records = Mapping[str, JobRecord | None]

_WAYS: Final = ("dependencies", "dependents")
#: Jobs that are drawn one step from the job, and behind each of these.
_NEAR: Final = 12
_FAR: Final = 4


async def read(client: "AsyncClient", job: "JobRecord") -> dict[str, Any]:
    """Return the jobs up to two steps around, each way at most 12 and 4 behind each, and how many more there are."""
    near = await _records(client, (jid for way in _WAYS for jid in getattr(job, way)[:_NEAR]))
    far = await _records(
        client,
        (
            far_jid
            for way in _WAYS
            for jid in getattr(job, way)[:_NEAR]
            if (one := near[jid]) is not None
            for far_jid in getattr(one, way)[:_FAR]
        ),
    )
    return {way: _drawn(job, way, {**far, **near}, (_NEAR, _FAR)) for way in _WAYS}


async def _records(client: "AsyncClient", jids: Iterable[str]) -> "Records":
    unique = list(dict.fromkeys(jids))
    return dict(zip(unique, await calls_of(client).call(job_queries.jobs, unique), strict=True)) if unique else {}


def _drawn(job: "JobRecord", way: str, records: "Records", most: tuple[int, ...]) -> dict[str, Any]:
    """Return some jobs in one way. `most`: how many, then how many behind each of them, and so on."""
    jids: list[str] = getattr(job, way)[: most[0]]
    jobs = []
    for jid in jids:
        one = records[jid]
        beyond = _drawn(one, way, records, most[1:]) if one is not None and most[1:] else None
        jobs.append({"jid": jid, "klass": one and one.klass, "state": one and one.state, "beyond": beyond})
    return {"jobs": jobs, "more": job.left_out.get(way, len(getattr(job, way))) - len(jids)}
