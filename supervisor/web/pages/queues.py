"""Reads queues, and one queue with its lanes. Runs in the web server's process."""

from dataclasses import asdict
from typing import Any

from supervisor.cli.lib.shown import pause_words
from supervisor.cli.top.model import Pane
from supervisor.web.pages.overview import row_dict
from supervisor.web.pages.page import Missing, Parameter, Parameters, Site, WebPage, required

#: Lanes that one answer has. Those with the most waiting jobs come first.
_MOST_LANES = 1000


async def read_all(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return all queues, those with trouble first. `containing` chooses by a part of the name."""
    model = await site.model.now()
    return {"queues": [row_dict(row) for row in model.rows(Pane.QUEUES, None, asked.get("containing", ""))]}


async def read_one(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return a queue's counts, today's statistics and its lanes."""
    name = required(asked, "queue")
    queue = site.client.queue(name)
    model = await site.model.now()
    known = model.snapshot is not None and name in model.snapshot.queues
    if not known and name not in await site.client.queues():
        raise Missing(f"there is no queue {name}")
    counts, stats, lanes = await queue.counts(), await queue.stats(), await queue.lanes()
    row = next((row for row in model.rows(Pane.QUEUES, None) if row.key == name), None)
    busiest = sorted(lanes.items(), key=lambda each: (-each[1].waiting, each[0]))[:_MOST_LANES]
    return {
        "queue": name,
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
        "lanes": [{"lane": lane, **asdict(each)} for lane, each in busiest],
        "lanes_in_all": len(lanes),
    }


QUEUES = WebPage(
    "queues", "Queues", "/queues", read_all, (Parameter("containing", "a part of the name"),), "queues", is_live=True
)
QUEUE = WebPage("queue", "Queue", "/queues/{queue}", read_one, (Parameter("queue", "its name", True),), "lanes", True)
