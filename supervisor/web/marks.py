"""Finds what belongs on the time axis beside the figures: deploys, scale steps and deaths. Runs in the web server's
process. Must not do I/O.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import orjson

from supervisor.cli.lib.terminal import counted
from supervisor.cli.top.model import Model, Pane, is_number
from supervisor.engine.commands.audit import Act
from supervisor.engine.commands.course import CourseStep

#: Acts on supervisors that are marks, and their kinds.
_EDIT = "watch"
_ACTS = {"reload": "deploy", "scale": "scale"}


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a time, or in the step that begins then. `kind`: deploy, scale or death."""

    at_unix: float
    kind: str
    words: str


def marks(steps: Sequence[CourseStep], acts: Iterable[Act], model: Model) -> list[Mark]:
    """Return the marks of the steps' period, the newest first."""
    if not steps:
        return []
    begins_unix = steps[0].since_unix
    found = [*_of_steps(steps), *_of_acts(acts), *_of_edits(model)]
    return sorted((each for each in found if each.at_unix >= begins_unix), key=lambda each: -each.at_unix)


def _of_steps(steps: Sequence[CourseStep]) -> Iterator[Mark]:
    for step in steps:
        if step.supervisors:
            yield Mark(step.since_unix, "deploy", f"{counted(step.supervisors, 'supervisor')} started")
        if step.deaths:
            yield Mark(step.since_unix, "death", counted(step.deaths, "death"))


def _of_acts(acts: Iterable[Act]) -> Iterator[Mark]:
    for act in acts:
        if act.kind == "worker" and act.act in _ACTS:
            whom = act.names[0] if act.number == 1 and act.names else counted(act.number, "supervisor")
            words = f"{act.act} {whom}{_wanted(act)}" + (f" by {act.actor}" if act.actor else "")
            yield Mark(act.at_unix, _ACTS[act.act], words)


def _wanted(act: Act) -> str:
    """Return the number of processes that was asked for."""
    try:
        wish = orjson.loads(act.value or "")
        return " to auto" if wish.get("auto") else f" to {wish['fewest']}:{wish['most']}"
    except (ValueError, KeyError, AttributeError):  # a reload, or cut, or of another program
        return ""


def _of_edits(model: Model) -> Iterator[Mark]:
    """Return the last reload of each supervisor by an edit of `run --watch`, which stands in no record."""
    for row in model.rows(Pane.SUPERVISORS, None):
        reload = (model.status(row.key) or {}).get("reload")
        if isinstance(reload, dict) and reload.get("by") == _EDIT and is_number(reload.get("at_unix")):
            yield Mark(reload["at_unix"], "deploy", f"reload {row.values['reload']} at {row.key}")
