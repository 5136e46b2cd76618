"""Reads everything about one job. Runs in the web server's process."""

from typing import Any

from supervisor.cli.lib.shown import as_dict, by_words, missed_words, recurring_dict, rhythm_words, state_words
from supervisor.web.pages.page import Missing, Parameter, Parameters, Site, WebPage, required

#: Data and results up to this size are shown.
_MOST_BYTES = 262_144


async def read(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return a job, or a recurring job of that jid."""
    client, jid = site.client, required(asked, "jid")
    job = await client.job(jid)
    if job is not None:
        shown = as_dict(job)
        if len(job.raw) > _MOST_BYTES:
            shown |= {"data": None, "data_is": "large", "data_hex": None, "data_bytes": len(job.raw)}
        return {"job": shown, "words": state_words(job), "history": job.history}
    recurring = await client.recurring(jid)
    if recurring is not None:
        words = f"recurring, {rhythm_words(recurring)}; missed ones: {missed_words(recurring)}"
        return {"job": recurring_dict(recurring), "words": words, "history": []}
    cancelled = await client.cancelled(jid)
    if cancelled is not None:
        by = by_words(cancelled.by, cancelled.when_unix)
        raise Missing(f"there is no job {jid}: it was cancelled {'by ' if cancelled.by else ''}{by}")
    raise Missing(f"there is no job {jid}")


PAGE = WebPage("job", "Job", "/jobs/{jid}", read, (Parameter("jid", "its id", True),), "history")
