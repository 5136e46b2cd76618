"""Reads what is wrong now, the course of a period, and the figures of all queues and supervisors. Runs in the web
server's process.
"""

import asyncio
from dataclasses import asdict
from typing import Any

from supervisor.cli.top.model import Pane, Row, Tone
from supervisor.cli.top.troubles import MOST_OF_A_KIND, troubles
from supervisor.engine.commands.course import PERIODS
from supervisor.engine.commands.recent import latencies
from supervisor.web.marks import marks
from supervisor.web.pages.page import BadParameter, Parameter, Parameters, Site, WebPage
from supervisor.web.poller import MOST_STATS


async def read(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return the troubles, the worst first, the figures, and the course of the last hour, day or month (`over`)."""
    over = asked.get("over") or "hour"
    if over not in PERIODS:
        raise BadParameter(f"over must be one of {', '.join(PERIODS)}")
    model = await site.model.now()
    head, rows = model.head(), model.rows(Pane.QUEUES, None)
    measured = [row.key for row in rows[:MOST_STATS]]
    slices, steps, acts = await asyncio.gather(site.model.slices(measured), site.model.course(over), site.model.acts())
    recent = [each.recent for each in slices[:MOST_OF_A_KIND]]
    return {
        "troubles": [{**each._asdict(), "tone": each.tone.value} for each in troubles(model)],
        "supervisors": head.supervisors,
        "silent": head.silent,
        "busy": head.busy,
        "processes": head.processes,
        "waiting": head.waiting,
        "stalled": head.stalled,
        "failed": sum(count for _, count in head.groups),
        "oldest_s": head.oldest_s,
        "completed_per_s": head.completed_per_s,
        "failed_per_s": head.failed_per_s,
        "died_per_s": head.died_per_s,
        "rates": list(head.rates),
        "server": head.server,
        "over": over,
        "course": [asdict(each) for each in steps],
        "latencies": [asdict(each) for each in latencies(slices, over)],
        "measured_queues": len(measured),
        "known_queues": len(rows),
        "marks": [asdict(each) for each in marks(steps, acts, model)],
        "bulk": [act.shown() for act in site.bulk.under_way()],
        "queues": [row_dict(row) for row in rows[:MOST_OF_A_KIND]],
        "recent": [asdict(each) for each in recent if each.month.since_unix is not None],
        "workers": [row_dict(row) for row in model.rows(Pane.SUPERVISORS, None)[:MOST_OF_A_KIND]],
        "ends": [row_dict(row) for row in model.rows(Pane.ENDS, None)[:MOST_OF_A_KIND]],
    }


def row_dict(row: Row) -> dict[str, Any]:
    """Return the values of a row of `leasehold top`, and the tones of those that need attention."""
    loud = {name: tone.value for name, tone in row.tones.items() if tone in (Tone.NOTICE, Tone.ALARM)}
    return {**row.values, "tones": loud}


_OVER = Parameter("over", "the period of course, latencies and marks; hour if not given", allowed=tuple(PERIODS))
PAGE = WebPage("overview", "Overview", "/overview", read, (_OVER,), "troubles", is_live=True)
