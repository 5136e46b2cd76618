"""Reads failed groups, tags, recurrences, limits and supervisors. Runs in the web server's process."""

from dataclasses import asdict
from typing import Any, Final, cast

from supervisor.cli.lib.shown import recurring_dict, rhythm_words
from supervisor.cli.top.model import Pane
from supervisor.engine.model.recurring import Recurring, next_times
from supervisor.engine.why.supervisors import conclude_worker
from supervisor.web.pages.overview import row_dict
from supervisor.web.pages.page import Missing, Parameter, Parameters, Site, WebPage, next_offset, number, required

_SHOWN: Final = 100
_MOST: Final = 1000
#: Times of a recurring job that are shown, and of how many: those of a cron take a while.
_COMING: Final = 3
_MOST_COMING: Final = 100


async def read_failed(site: Site, _asked: Parameters) -> dict[str, Any]:
    """Return the groups of failed jobs, the largest first."""
    groups = await site.client.failed()
    largest = sorted(groups.items(), key=lambda each: (-each[1], each[0]))
    return {"groups": [{"group": group, "jobs": count} for group, count in largest]}


async def read_tags(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return the tags, the most used first."""
    offset = number(asked, "offset", 0, 2**53)
    tags = await site.client.tags(offset, _SHOWN)
    return {
        "tags": [{"tag": tag, "jobs": count} for tag, count in tags.items()],
        "offset": offset,
        "next": next_offset(site, offset, _SHOWN, has_more=len(tags) == _SHOWN),
    }


async def read_recurrences(site: Site, _asked: Parameters) -> dict[str, Any]:
    """Return the recurring jobs of all queues, the next one first. The first 100 have their next three times."""
    found: list[Recurring] = []
    for name, depths in (await site.client.queues()).items():
        if depths.recurring and len(found) < _MOST:
            count = min(depths.recurring, _MOST - len(found))
            found += cast("list[Recurring]", await site.client.queue(name).jobs("recurring", 0, count))
    found.sort(key=lambda each: each.next_unix)
    return {
        "recurrences": [
            {
                **recurring_dict(each),
                "rhythm": rhythm_words(each),
                "times": next_times(each, _COMING if i < _MOST_COMING else 1),
            }
            for i, each in enumerate(found)
        ]
    }


async def read_limits(site: Site, _asked: Parameters) -> dict[str, Any]:
    """Return all limits, and what they hold up."""
    return {"limits": [asdict(limit) for limit in (await site.client.limits()).values()]}


async def read_limit(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return a limit, the jobs that hold it and those that wait for it."""
    key = required(asked, "key")
    limit, jobs = await site.client.limit(key), await site.client.limit_jobs(key, 0, _SHOWN)
    return {"limit": asdict(limit), **asdict(jobs)}


async def read_supervisors(site: Site, _asked: Parameters) -> dict[str, Any]:
    """Return the supervisors, and the other workers."""
    model = await site.model.now()
    return {"supervisors": [row_dict(row) for row in model.rows(Pane.SUPERVISORS, None)]}


async def read_supervisor(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return a supervisor with its children, and the jobs that it holds."""
    name = required(asked, "worker")
    model, held = await site.model.now(), await site.client.worker(name)
    row = next((row for row in model.rows(Pane.SUPERVISORS, None) if row.key == name), None)
    if row is None and held.seen_unix is None:
        raise Missing(f"there is no supervisor {name}")
    status, seen = model.status(name) or {}, model.snapshot
    is_asked = seen is not None and (name in seen.status or name in seen.asked)
    why = conclude_worker(held, model.answer(name), is_asked=is_asked, may_answer=name in model.unheard())
    return {
        "worker": name,
        "why": why.sentence,
        "now": row_dict(row) if row else None,
        "children": [row_dict(child) for child in model.rows(Pane.CHILDREN, name)],
        "status": status,
        "running": held.running[:_MOST],
        "stalled": held.stalled[:_MOST],
        "seen_unix": held.seen_unix,
    }


FAILED = WebPage("failed", "Failed", "/failed", read_failed, rows="groups", is_live=True)
TAGS = WebPage("tags", "Tags", "/tags", read_tags, (Parameter("offset", "how many tags to skip", most=2**53),), "tags")
RECURRENCES = WebPage("recurrences", "Recurring", "/recurrences", read_recurrences, rows="recurrences", is_live=True)
LIMITS = WebPage("limits", "Limits", "/limits", read_limits, rows="limits", is_live=True)
LIMIT = WebPage(
    "limit", "Limit", "/limits/{key}", read_limit, (Parameter("key", "its key", True),), "holders", is_live=True
)
SUPERVISORS = WebPage("supervisors", "Supervisors", "/supervisors", read_supervisors, rows="supervisors", is_live=True)
SUPERVISOR = WebPage(
    "supervisor", "Supervisor", "/supervisors/{worker}", read_supervisor,
    (Parameter("worker", "its name", True),), "children", is_live=True,
)  # fmt: skip
