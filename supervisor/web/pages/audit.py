"""Reads the record of who did what. Runs in the web server's process."""

from dataclasses import asdict
from typing import Any, Final

from supervisor.web.pages.page import Parameter, Parameters, Site, WebPage, next_offset, number

_SHOWN: Final = 100


async def read(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return 100 acts from `offset` on, the newest first: all, or those on a thing of the name `subject`."""
    offset, subject = number(asked, "offset", 0, 2**53), asked.get("subject") or None
    acts = await site.client.audit(subject, offset, _SHOWN)
    following = next_offset(site, offset, _SHOWN, has_more=len(acts) == _SHOWN)
    return {"acts": [asdict(act) for act in acts], "subject": subject, "offset": offset, "next": following}


PAGE: Final = WebPage(
    "audit", "Audit", "/audit", read,
    (Parameter("subject", "acts on this job, queue or another thing"),
     Parameter("offset", "how many acts to skip", most=2**53)),
    "acts",
)  # fmt: skip
