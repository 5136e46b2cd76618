"""Carries out a request of `leasehold top`: at Redis, or by asking a supervisor. Runs in threads of the command's
process.

Must not do anything that no key was pressed for.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from supervisor.cli.commands.job import readable as job_lines
from supervisor.cli.commands.stacks import SILENT
from supervisor.cli.commands.why import readable as why_lines
from supervisor.cli.lib.actor import author
from supervisor.cli.lib.shown import age
from supervisor.cli.lib.supervisors import is_done, why_not
from supervisor.cli.top.controller import Action, TextPage
from supervisor.cli.top.model import Tone

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.model.jobs import JobRecord

#: Longest wait for an answer. New code may take long to load.
_TIMEOUT: Final = "5s"
_TIMEOUT_S: Final = 5.0
_RELOAD: Final = "90s"
_RELOAD_S: Final = 90.0
#: Groups that are shown, one round trip each.
_MOST_GROUPS: Final = 50


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a request: one line, and a page if it needs more."""

    text: str
    tone: Tone = Tone.PLAIN
    page: TextPage | None = None


def carry_out(client: "Client", request: Action) -> Result:
    """Carry out the request. Blocks until it is done, refused, or without an answer in time."""
    from supervisor.engine.model.errors import LeaseholdError

    try:
        return _carry_out(client, request)
    except LeaseholdError as error:
        return Result(str(error), Tone.ALARM)


def _carry_out(client: "Client", request: Action) -> Result:
    match request.what:
        case "pause queue":
            client.queue(request.whom).pause()
            return Result(f"paused queue {request.whom}: nothing new starts from it")
        case "unpause queue":
            client.queue(request.whom).unpause()
            return Result(f"unpaused queue {request.whom}")
        case "pause batch":
            client.batch(request.whom).pause()
            return Result(f"paused batch {request.whom}: none of its waiting jobs is leased")
        case "resume batch":
            client.batch(request.whom).resume()
            return Result(f"resumed batch {request.whom}")
        case "cancel":
            return _cancel(client, request.whom)
        case "stacks":
            return _stacks(client, request)
        case "open job":
            return _job(client, request.whom)
        case "open":
            return _failed_groups(client)
        case _:
            return _tell(client, request)


def _cancel(client: "Client", jid: str) -> Result:
    if client.cancel(jid):
        return Result(f"cancelled {jid}")
    job = client.job(jid)
    return Result(f"{jid} was not cancelled: it is {job.state}" if job else f"{jid} has ended meanwhile", Tone.NOTICE)


def _job(client: "Client", jid: str) -> Result:
    why, job = client.why(jid), client.job(jid)
    lines = list(why_lines(why)) if job is None else [why.sentence, "", *job_lines(job)]
    return Result("", page=TextPage(f"job {jid}", [line for text in lines for line in text.split("\n")]))


def _failed_groups(client: "Client") -> Result:
    """Show the largest groups, and the newest job of each."""
    groups = client.failed()
    largest_first = sorted(groups, key=lambda group: (-groups[group], group))
    lines = []
    for group in largest_first[:_MOST_GROUPS]:
        _, newest = client.failed(group, 0, 1)
        lines += [f"{groups[group]:>9,} {group}", *(f"{'':10}{_failed_words(job)}" for job in newest)]
    if len(groups) > _MOST_GROUPS:
        lines.append(f"{len(groups) - _MOST_GROUPS:,} smaller groups: `leasehold failed` lists them")
    return Result("", page=TextPage("failed groups", lines or ["nothing has failed"]))


def _failed_words(job: "JobRecord") -> str:
    failure = job.failure or {}
    return f"{job.jid} {job.klass}, {age(failure.get('when'))}: {failure.get('message')}"


def _tell(client: "Client", request: Action) -> Result:
    timeout, timeout_s = (_RELOAD, _RELOAD_S) if request.what == "reload" else (_TIMEOUT, _TIMEOUT_S)
    answer = client.ask([request.whom], request.what, timeout_s, {**request.argument, "by": author()})[request.whom]
    if is_done(answer):
        return Result(f"{request.whom} {answer['did']}")
    return Result(f"{request.whom} {why_not(answer, timeout)}", Tone.ALARM)


def _stacks(client: "Client", request: Action) -> Result:
    answer = client.ask([request.whom], "stacks", _TIMEOUT_S)[request.whom]
    children = answer.get("children") if isinstance(answer, Mapping) else None
    if not isinstance(children, list):
        return Result(f"{request.whom} {why_not(answer, _TIMEOUT)}", Tone.ALARM)
    number = request.argument["child"]
    found: Mapping[str, Any] | None = next(
        (each for each in children if isinstance(each, Mapping) and each.get("child") == number), None
    )
    if found is None:
        return Result(f"child {number} of {request.whom} has ended meanwhile", Tone.NOTICE)
    stack = textwrap.dedent(str(found.get("stack") or "")).strip("\n") or SILENT
    job = f"{found['klass']} {found['jid']}" if found.get("jid") else "idle"
    return Result(
        "", page=TextPage(f"child {number} of {request.whom}, pid {found.get('pid')}: {job}", stack.splitlines())
    )
