"""Reads why a job stands where it does. Runs in the web server's process."""

from dataclasses import asdict
from typing import Any, Final

from supervisor.web.pages.page import Parameter, Parameters, Site, WebPage, required


async def read(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return one sentence that tells why a job does not run, or how it ended, with the facts behind it."""
    jid = required(asked, "jid")
    return {"jid": jid, **asdict(await site.client.why(jid))}


PAGE: Final = WebPage("why", "Why", "/why/{jid}", read, (Parameter("jid", "the job", True),))
