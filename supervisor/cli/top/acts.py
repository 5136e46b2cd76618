"""Does what was wished at `leasehold top`: at Redis, or by asking a supervisor. In threads of the command's process.

Must not do anything that no key was pressed for.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from supervisor.cli.commands.stacks import SILENT
from supervisor.cli.lib.asking import is_done, user_at_host, who, why_not
from supervisor.cli.top.desk import Page, Wish
from supervisor.cli.top.model import Tone

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client

#: How long an answer is waited for; new code may take long to load.
_TIMEOUT: Final = "5s"
_TIMEOUT_S: Final = 5.0
_RELOAD: Final = "90s"
_RELOAD_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class Said:
    """What has come of a wish, in a line, and if it takes more than that as a page."""

    text: str
    tone: Tone = Tone.PLAIN
    page: Page | None = None


def act(client: "Client", wish: Wish) -> Said:
    """Blocks until it is done, or was refused, or no answer came in time."""
    from supervisor.engine.model.errors import LeaseholdError

    try:
        return _act(client, wish)
    except LeaseholdError as error:
        return Said(str(error), Tone.ALARM)


def _act(client: "Client", wish: Wish) -> Said:
    match wish.what:
        case "pause queue":
            client.queue(wish.whom).pause(by=user_at_host())
            return Said(f"paused queue {wish.whom}: nothing new starts from it")
        case "unpause queue":
            client.queue(wish.whom).unpause()
            return Said(f"unpaused queue {wish.whom}")
        case "cancel":
            return _cancel(client, wish.whom)
        case "stacks":
            return _stacks(client, wish)
        case _:
            return _tell(client, wish)


def _cancel(client: "Client", jid: str) -> Said:
    if client.cancel(jid, by=user_at_host()):
        return Said(f"cancelled {jid}")
    job = client.job(jid)
    return Said(f"{jid} was not cancelled: it is {job.state}" if job else f"{jid} has ended meanwhile", Tone.NOTICE)


def _tell(client: "Client", wish: Wish) -> Said:
    timeout, timeout_s = (_RELOAD, _RELOAD_S) if wish.what == "reload" else (_TIMEOUT, _TIMEOUT_S)
    answer = client.ask([wish.whom], wish.what, timeout_s, {**wish.argument, "by": who()})[wish.whom]
    if is_done(answer):
        return Said(f"{wish.whom} {answer['did']}")
    return Said(f"{wish.whom} {why_not(answer, timeout)}", Tone.ALARM)


def _stacks(client: "Client", wish: Wish) -> Said:
    answer = client.ask([wish.whom], "stacks", _TIMEOUT_S)[wish.whom]
    children = answer.get("children") if isinstance(answer, Mapping) else None
    if not isinstance(children, list):
        return Said(f"{wish.whom} {why_not(answer, _TIMEOUT)}", Tone.ALARM)
    number = wish.argument["child"]
    found: Mapping[str, Any] | None = next(
        (each for each in children if isinstance(each, Mapping) and each.get("child") == number), None
    )
    if found is None:
        return Said(f"child {number} of {wish.whom} has ended meanwhile", Tone.NOTICE)
    stack = textwrap.dedent(str(found.get("stack") or "")).strip("\n") or SILENT
    job = f"{found['klass']} {found['jid']}" if found.get("jid") else "idle"
    return Said("", page=Page(f"child {number} of {wish.whom}, pid {found.get('pid')}: {job}", stack.splitlines()))
