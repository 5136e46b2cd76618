"""Reads why a job or a queue stands where it does. Runs in the web server's process."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.why.conclusion import conclude
from supervisor.engine.why.workers import to_ask
from supervisor.web.pages.page import Parameter, Parameters, Site, WebPage, required

if TYPE_CHECKING:
    from supervisor.engine.commands.command import Command
    from supervisor.engine.commands.facts import Facts
    from supervisor.engine.why.record import Why


async def shared(site: Site, build: "Callable[..., Command[Facts]]", subject: str) -> "Why":
    """Tell why a job or a queue stands where it does, by what supervisors have told all tabs. None is asked for it."""
    found = await calls_of(site.client).call(build, subject)
    why = conclude(found)
    whom = to_ask(found, why.reason)
    return conclude(found, (await site.model.now()).answers(whom)) if whom else why


async def read(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return one sentence that tells why a job does not run, or how it ended, with the facts behind it."""
    jid = required(asked, "jid")
    return {"jid": jid, **asdict(await site.client.why(jid))}


PAGE: Final = WebPage("why", "Why", "/why/{jid}", read, (Parameter("jid", "the job", True),))
