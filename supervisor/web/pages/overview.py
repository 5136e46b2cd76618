"""Reads what is wrong now, then the figures of all queues and supervisors. Runs in the web server's process."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from supervisor.cli.lib.shown import span
from supervisor.cli.lib.terminal import counted
from supervisor.cli.top.model import LATE_S, Model, Pane, Row, Tone
from supervisor.web.pages.page import Parameters, Site, WebPage

#: Troubles of one kind that are listed. The pages of queues and supervisors have all.
_MOST_OF_A_KIND = 20


async def read(site: Site, _asked: Parameters) -> dict[str, Any]:
    """Return the troubles, the worst first, and the figures."""
    model = await site.model.now()
    head = model.head()
    queues = model.rows(Pane.QUEUES, None)[:_MOST_OF_A_KIND]
    recent = await site.model.recent([row.key for row in queues])
    troubles = [*_of_supervisors(model), *_of_queues(model), *_of_groups(model)]
    return {
        "troubles": sorted(troubles, key=lambda each: each["tone"] != Tone.ALARM.value),
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
        "bulk": [act.shown() for act in site.bulk.under_way()],
        "queues": [row_dict(row) for row in queues],
        "recent": [asdict(each) for each in recent if each.month.since_unix is not None],
        "workers": [row_dict(row) for row in model.rows(Pane.SUPERVISORS, None)[:_MOST_OF_A_KIND]],
        "ends": [row_dict(row) for row in model.rows(Pane.ENDS, None)[:_MOST_OF_A_KIND]],
    }


def row_dict(row: Row) -> dict[str, Any]:
    """Return the values of a row of `leasehold top`, and the tones of those that need attention."""
    loud = {name: tone.value for name, tone in row.tones.items() if tone in (Tone.NOTICE, Tone.ALARM)}
    return {**row.values, "tones": loud}


def _trouble(tone: Tone, kind: str, name: str, sentence: str) -> dict[str, str]:
    return {"tone": tone.value, "kind": kind, "name": name, "sentence": sentence}


def _of_supervisors(model: Model) -> Iterator[dict[str, str]]:
    wrong = [row for row in model.rows(Pane.SUPERVISORS, None) if row.tones.get("state") is Tone.ALARM]
    for row in wrong[:_MOST_OF_A_KIND]:
        match row.values["state"]:
            case "no answer":
                sentence = f"has not answered for {span(row.values['left'] or 0)}"
            case "lost":
                sentence = "is lost: the leases of its jobs have run out"
            case state:
                sentence = f"is {state}"
        yield _trouble(Tone.ALARM, "supervisor", row.key, sentence)


def _of_queues(model: Model) -> Iterator[dict[str, str]]:
    found = 0
    for row in model.rows(Pane.QUEUES, None):
        for tone, sentence in _of_queue(row):
            found += 1
            if found <= _MOST_OF_A_KIND:
                yield _trouble(tone, "queue", row.key, sentence)


def _of_queue(row: Row) -> Iterator[tuple[Tone, str]]:
    values = row.values
    if values["stalled"]:
        yield Tone.ALARM, f"{counted(values['stalled'], 'job')} stalled, their leases run out"
    if values["state"] == "nobody":
        yield Tone.ALARM, f"{counted(values['waiting'], 'job')} waiting, and no supervisor serves it"
    elif values["state"] == "paused" and values["waiting"]:
        by = values["paused by"]
        yield Tone.NOTICE, f"paused{f' by {by}' if by else ''}, with {counted(values['waiting'], 'job')} waiting"
    elif values["oldest"] is not None and values["oldest"] >= LATE_S:
        yield Tone.NOTICE, f"its oldest job has waited for {span(values['oldest'])}"
    if values["parked"]:
        yield Tone.NOTICE, f"{counted(values['parked'], 'job')} waiting for room in a limit, or for a paused batch"


def _of_groups(model: Model) -> Iterator[dict[str, str]]:
    groups = model.head().groups
    for group, count in groups[:_MOST_OF_A_KIND]:
        yield _trouble(Tone.NOTICE, "group", group, f"{counted(count, 'job')} failed")


PAGE = WebPage("overview", "Overview", "/overview", read, rows="troubles", is_live=True)
