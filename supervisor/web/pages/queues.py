"""Reads queues, one queue, and its lanes. Runs in the web server's process."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from supervisor.cli.lib.shown import pause_words
from supervisor.cli.top.model import Pane
from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.commands import facts, lanes
from supervisor.web.pages import why
from supervisor.web.pages.overview import row_dict
from supervisor.web.pages.page import Missing, Parameter, Parameters, Site, WebPage, required

if TYPE_CHECKING:
    from supervisor.engine.client.async_queues import AsyncQueue

#: Lanes that one answer has. Those with the most waiting jobs come first.
_MOST_LANES = 200


async def read_all(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return all queues, those with trouble first. `containing` chooses by a part of the name."""
    model = await site.model.now()
    return {"queues": [row_dict(row) for row in model.rows(Pane.QUEUES, None, asked.get("containing", ""))]}


async def read_one(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return a queue's counts, today's statistics, and percentiles of the last hour, day and 30 days."""
    queue, model = await _existing(site, asked), await site.model.now()
    counts, stats, recent = await queue.counts(), await queue.stats(), await queue.recent()
    row = next((row for row in model.rows(Pane.QUEUES, None) if row.key == queue.name), None)
    return {
        "queue": queue.name,
        "why": (await why.shared(site, facts.of_queue, queue.name)).sentence,
        "counts": asdict(counts),
        "paused": pause_words(counts) if counts.paused else None,
        "now": row_dict(row) if row else None,
        "today": {
            "completed": stats.run.count,
            "failures": stats.failures,
            "failed": stats.failed,
            "deaths": stats.deaths,
            "interruptions": stats.interruptions,
            "wait_mean_s": stats.wait.mean,
            "run_mean_s": stats.run.mean,
        },
        "recent": asdict(recent),
    }


async def read_lanes(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return the fullest 200 lanes of a queue, and the number of all. `containing` chooses by a part of the name."""
    queue = await _existing(site, asked)
    calls = calls_of(site.client)
    fullest, number = await calls.follow(
        lanes.fullest(queue.name, _MOST_LANES, asked.get("containing", ""), calls.clock)
    )
    return {
        "queue": queue.name,
        "lanes": [{"lane": lane, **asdict(each)} for lane, each in fullest.items()],
        "lanes_in_all": number,
    }


async def _existing(site: Site, asked: Parameters) -> "AsyncQueue":
    queue, model = site.client.queue(required(asked, "queue")), await site.model.now()
    known = model.snapshot is not None and queue.name in model.snapshot.queues
    if not known and queue.name not in await site.client.queues():
        raise Missing(f"there is no queue {queue.name}")
    return queue


QUEUES = WebPage(
    "queues", "Queues", "/queues", read_all, (Parameter("containing", "a part of the name"),), "queues", is_live=True
)
QUEUE = WebPage("queue", "Queue", "/queues/{queue}", read_one, (Parameter("queue", "its name", True),), is_live=True)
LANES = WebPage(
    "lanes", "Lanes", "/lanes/{queue}", read_lanes,
    (Parameter("queue", "its name", True), Parameter("containing", "a part of the name of the lane")), "lanes",
)  # fmt: skip
