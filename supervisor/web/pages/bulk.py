"""Reads how far acts on many jobs are. Runs in the web server's process."""

from typing import Any, Final

from supervisor.web.pages.jobs import row
from supervisor.web.pages.page import Parameter, Parameters, Site, WebPage


async def read(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return the acts on many jobs, the latest first; or one, with the first of its jobs if they are counted."""
    if not asked.get("act"):
        return {"acts": [act.shown() for act in site.bulk.all()]}
    act = site.bulk.get(asked["act"])
    jobs = await site.client.jobs(*act.preview) if act.preview and act.state == "counted" else []
    return {"acts": [act.shown()], "is_live": act.is_under_way, "jobs": [row(job) for job in jobs if job is not None]}


PAGE: Final = WebPage("bulk", "Acts on many jobs", "/bulk", read, (Parameter("act", "only this act"),), "acts")
