"""Reads lists of jobs, in steps with a bound on time. Runs in the web server's process.

What has an index leads the list. The rest is compared job by job, and the list says how far it has looked.
"""

from typing import TYPE_CHECKING, Any, Final

from supervisor import clock
from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.commands import choices, job_queries
from supervisor.web.choosing import CHOICE, CONDITIONS, choice_of
from supervisor.web.pages.cursor import Cursor, read_cursor
from supervisor.web.pages.page import Parameter, Parameters, Site, WebPage, number

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient
    from supervisor.engine.model.jobs import JobRecord

_PLAIN: Final = (
    "jid", "klass", "queue", "lane", "state", "priority", "tags", "put_unix", "due_unix", "worker", "failures",
    "deaths", "interruptions", "limit",
)  # fmt: skip
#: The fields of each row of a list.
COLUMNS: Final = (*_PLAIN, "progress", "message")
_SHOWN: Final = 50
MOST_SHOWN: Final = 200
#: No further step begins after this time, whether the list is full or not.
_LONGEST_S: Final = 0.05
#: The same where a visitor asks to look further.
_FURTHER_S: Final = 0.5


async def read(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return up to `count` chosen jobs behind `cursor`, where the next ones begin, and how many were looked at."""
    state, count = asked.get("state"), number(asked, "count", _SHOWN, MOST_SHOWN)
    choice, cursor = choice_of(asked), read_cursor(asked.get("cursor"))
    jids, following, size = await _found(site.client, choice, cursor, max(count, 1))
    jobs = await calls_of(site.client).call(job_queries.jobs, jids) if jids else []
    return {
        "jobs": [row(job) for job in jobs if job is not None],
        "next": following.text() if following.place is not None else None,
        "looked_at": following.looked_at,
        "of": size,
        "count": count,
        "state": state or None,
        **{name: asked.get(name) or None for name in CONDITIONS},
        "since": choice.first_put_unix,
        "until": choice.last_put_unix,
    }


async def _found(
    client: "AsyncClient", choice: choices.Choice, cursor: Cursor, count: int
) -> tuple[list[str], Cursor, int | None]:
    """Return jids, where the next ones begin, and how many jobs there are to look at, if that is known."""
    until_at = clock.monotonic() + (_FURTHER_S if cursor.place else _LONGEST_S)
    jids: list[str] = []
    while True:
        step = await calls_of(client).call(choices.find, choice, cursor.place, count - len(jids), as_shown=True)
        jids += step.states
        cursor = Cursor(step.cursor, cursor.looked_at + step.looked_at)
        if cursor.place is None or len(jids) == count or clock.monotonic() >= until_at:
            return jids, cursor, step.size


def row(job: "JobRecord") -> dict[str, Any]:
    """Return what a list shows of a job. Large values may have been left out of its record."""
    plain = {name: getattr(job, name) for name in _PLAIN}
    return {**plain, "progress": job.progress._asdict() if job.progress else None, "message": _message(job)}


def _message(job: "JobRecord") -> str | None:
    if job.state != "failed" or not job.failure:
        return None
    return f"{job.failure.get('group')}: {str(job.failure.get('message'))[:500]}"


PAGE = WebPage(
    "jobs",
    "Jobs",
    "/jobs",
    read,
    (
        *CHOICE,
        Parameter("cursor", "the `next` of the answer before"),
        Parameter("count", f"most jobs to return (default: {_SHOWN})", most=MOST_SHOWN),
    ),
    "jobs",
)
