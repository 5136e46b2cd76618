"""Reads everything about one job. Runs in the web server's process."""

from typing import Any, Final

from supervisor.cli.lib.shown import as_dict, missed_words, recurring_dict, rhythm_words, state_words
from supervisor.engine.commands import facts
from supervisor.engine.model.recurring import next_times
from supervisor.web.pages import kin, why
from supervisor.web.pages.page import Missing, Parameter, Parameters, Site, WebPage, required

#: Data and results up to this size are shown.
_MOST_BYTES: Final = 262_144
#: Times of a recurring job that are shown.
_COMING: Final = 3


async def read(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return a job with its reason and the jobs around it, or a recurring job of that jid."""
    client, jid = site.client, required(asked, "jid")
    job = await client.job(jid)
    if job is not None:
        shown = as_dict(job)
        if len(job.raw) > _MOST_BYTES:
            shown |= {"data": None, "data_is": "large", "data_hex": None, "data_bytes": len(job.raw)}
        return {
            "job": shown,
            "words": state_words(job),
            "why": (await why.shared(site, facts.of_job, jid)).sentence,
            "kin": await kin.read(client, job),
            "history": job.history,
            "is_live": job.state not in ("complete", "failed"),
        }
    recurring = await client.recurring(jid)
    if recurring is not None:
        words = f"recurring, {rhythm_words(recurring)}; missed ones: {missed_words(recurring)}"
        times = next_times(recurring, _COMING)
        return {"job": recurring_dict(recurring), "words": words, "times": times, "history": [], "is_live": True}
    raise Missing((await client.why(jid, timeout=0)).sentence)


PAGE = WebPage("job", "Job", "/jobs/{jid}", read, (Parameter("jid", "its id", True),), "history")
