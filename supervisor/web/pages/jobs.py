"""Reads lists of jobs, in steps with a bound on time. Runs in the web server's process.

What has an index answers at once. A choice by klass looks through a list, and says how far it has come.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from supervisor import clock
from supervisor.web.pages.page import BadParameter, Parameter, Parameters, Site, WebPage, number

if TYPE_CHECKING:
    from supervisor.engine.model.jobs import JobRecord

STATES: Final = ("waiting", "running", "stalled", "scheduled", "depends", "parked", "complete", "failed")
_SHOWN: Final = 50
MOST_SHOWN: Final = 200
#: Jobs that one call reads when it looks for a klass.
_STEP: Final = 1000
#: An answer comes after this time, whether its list is full or not.
_LONGEST_S: Final = 0.25
_FARTHEST: Final = 2**53

List = Callable[[int, int], Awaitable[Sequence["JobRecord"]]]


async def read(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return up to `count` jobs of a list from `offset` on, and where the next ones begin."""
    offset, count = number(asked, "offset", 0, _FARTHEST), number(asked, "count", _SHOWN, MOST_SHOWN)
    klass, what = asked.get("klass"), _list_of(site, asked)
    if what is None:
        return {"jobs": [], "offset": 0, "next": None, "looked_at": 0, "count": count, **_chosen(asked)}
    jobs, next_offset = await _found(what, offset, max(count, 1), klass)
    return {
        "jobs": [row(job) for job in jobs],
        "offset": offset,
        "next": next_offset,
        "looked_at": next_offset,
        "count": count,
        **_chosen(asked),
    }


def _chosen(asked: Parameters) -> dict[str, str | None]:
    return {name: asked.get(name) or None for name in ("state", "queue", "tag", "group", "klass")}


def _list_of(site: Site, asked: Parameters) -> List | None:
    """Return the list that the parameters choose; None if they choose none yet."""
    client, (state, queue, tag, group) = site.client, (asked.get(name) for name in ("state", "queue", "tag", "group"))
    if state and state not in STATES:
        raise BadParameter(f"state must be one of {', '.join(STATES)}")
    if sum(map(bool, (queue or state, tag, group))) > 1:
        raise BadParameter("tag, group, and state with queue exclude one another")
    if tag:

        async def tagged(offset: int, count: int) -> Sequence["JobRecord"]:
            return (await client.tagged(tag, offset, count))[1]

        return tagged
    if group:

        async def failed(offset: int, count: int) -> Sequence["JobRecord"]:
            return (await client.failed(group, offset, count))[1]

        return failed
    if queue:

        async def in_queue(offset: int, count: int) -> Sequence["JobRecord"]:
            return cast("Sequence[JobRecord]", await client.queue(queue).jobs(state or "waiting", offset, count))

        return in_queue
    if state == "complete":
        return client.completed
    if state:
        raise BadParameter(f"a list of {state} jobs needs a queue, or for failed ones a group")
    return None


async def _found(what: List, offset: int, count: int, klass: str | None) -> tuple[list["JobRecord"], int | None]:
    """Return jobs, and the offset of the next ones; None at the list's end."""
    if not klass:
        jobs = list(await what(offset, count + 1))
        return jobs[:count], offset + count if len(jobs) > count else None
    found: list[JobRecord] = []
    until_at = clock.monotonic() + _LONGEST_S
    while True:
        step = await what(offset, _STEP)
        for i, job in enumerate(step):
            if job.klass == klass:
                found.append(job)
                if len(found) == count:
                    return found, offset + i + 1
        offset += len(step)
        if len(step) < _STEP:
            return found, None
        if clock.monotonic() >= until_at:
            return found, offset


def row(job: "JobRecord") -> dict[str, Any]:
    """Return what a list shows of a job."""
    # A property of a partial job raises for what a list has left out, so that only small fields may be read here.
    return {
        "jid": job.jid,
        "klass": job.klass,
        "queue": job.queue,
        "lane": job.lane,
        "state": job.state,
        "priority": job.priority,
        "tags": job.tags,
        "put_unix": job.put_unix,
        "due_unix": job.due_unix,
        "worker": job.worker,
        "failures": job.failures,
        "deaths": job.deaths,
        "interruptions": job.interruptions,
        "limit": job.limit,
        "progress": job.progress._asdict() if job.progress else None,
        "message": _message(job),
    }


def _message(job: "JobRecord") -> str | None:
    if job.state != "failed" or "failure" in job.left_out or not job.failure:
        return None
    return f"{job.failure.get('group')}: {str(job.failure.get('message'))[:500]}"


PAGE = WebPage(
    "jobs",
    "Jobs",
    "/jobs",
    read,
    (
        Parameter("state", "the state; needs a queue, but for complete", allowed=STATES),
        Parameter("queue", "jobs of this queue; without a state those that wait"),
        Parameter("tag", "jobs with this tag, oldest tagged first"),
        Parameter("group", "failed jobs of this group, newest first"),
        Parameter("klass", "only jobs of this klass: looks through the list for up to 250 ms"),
        Parameter("offset", "how many jobs of the list to skip", most=_FARTHEST),
        Parameter("count", f"most jobs to return (default: {_SHOWN})", most=MOST_SHOWN),
    ),
    "jobs",
)
