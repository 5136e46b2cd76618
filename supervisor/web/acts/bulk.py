"""Acts on all jobs that match, counted first, or on the marked ones. Both are done in steps. Runs in the web server's
process.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from supervisor.cli.lib.bulk import NOT_BEGUN, NOT_ENDED, STATES
from supervisor.cli.lib.bulk_words import Operation
from supervisor.engine.commands import bulk
from supervisor.engine.commands.choices import NOT_COMPLETE, Choice
from supervisor.engine.commands.command import checked_jids
from supervisor.web.acts.act import ActCall, Field, Fields, WebAct
from supervisor.web.acts.jobs import BY_HAND
from supervisor.web.bulk_acts import Build
from supervisor.web.choosing import CONDITIONS, choice_of
from supervisor.web.pages.page import BadParameter

#: Returns the words, and what makes the commands.
_Prepared = tuple[Operation, Build]


def _cancel(chosen: Choice, _fields: Fields) -> _Prepared:
    return Operation("cancel", "cancelled"), partial(bulk.cancel, chosen)


def _retry(chosen: Choice, _fields: Fields) -> _Prepared:
    return Operation("retry", "put back"), partial(bulk.retry, chosen)


def _move(chosen: Choice, fields: Fields) -> _Prepared:
    into = _needed(fields, "into")
    return Operation("move", "moved", f" into queue {into}"), partial(bulk.move, chosen, queue=into)


def _give(chosen: Choice, fields: Fields) -> _Prepared:
    number = _needed(fields, "priority")
    return Operation("give", "gave", f" priority {number}"), partial(bulk.set_priority, chosen, priority=number)


def _fail(chosen: Choice, fields: Fields) -> _Prepared:
    group, message = fields.get("into_group", BY_HAND), fields.get("message", "")
    how = Operation("fail", "failed", f" in group {group}")
    return how, partial(bulk.fail, chosen, group=group, message=message)


def _needed(fields: Fields, name: str) -> Any:
    if name not in fields:
        raise BadParameter(f"{name} is missing")
    return fields[name]


#: What can be done, with the states in which jobs are chosen for it, unless one is asked for.
_OPERATIONS: Final[Mapping[str, tuple[Callable[[Choice, Fields], _Prepared], tuple[str, ...]]]] = {
    "cancel": (_cancel, NOT_ENDED),
    "retry": (_retry, ("failed",)),
    "move": (_move, NOT_BEGUN),
    "priority": (_give, NOT_BEGUN),
    "fail": (_fail, NOT_ENDED),
}


def _operation(fields: Fields) -> tuple[Callable[[Choice, Fields], _Prepared], tuple[str, ...]]:
    if fields["do"] not in _OPERATIONS:
        raise BadParameter(f"do must be one of {', '.join(_OPERATIONS)}, not {fields['do']!r:.100}")
    return _OPERATIONS[fields["do"]]


async def choose(call: ActCall) -> dict[str, Any]:
    """Count the jobs that match, in order to act on all of them. `start` goes on."""
    fields = call.fields
    prepare, states = _operation(fields)
    if fields.get("state") and fields["state"] not in STATES:
        raise BadParameter(f"state must be one of {', '.join(STATES)}, not {fields['state']!r:.100}")
    conditions = ("state", *CONDITIONS)
    for name in conditions:
        if fields.get(name) == "":
            raise BadParameter(f"{name} is empty: leave it out if it does not matter, or more jobs would be chosen")
    if not any(fields.get(name) for name in conditions):
        raise BadParameter(f"one of {', '.join(conditions)} must be given: this would be all jobs")
    chosen = choice_of(fields, ("failed",) if fields.get("group") else states)
    return (await call.bulk.choose(call.client, call.visitor, chosen, *prepare(chosen, fields))).shown()


async def change(call: ActCall) -> dict[str, Any]:
    """Act on the marked jobs at once, in whichever state each is."""
    prepare, _states = _operation(call.fields)
    jids = checked_jids("jids", call.fields["jids"])
    return (await call.bulk.change(call.client, call.visitor, jids, *prepare(NOT_COMPLETE, call.fields))).shown()


async def start(call: ActCall) -> dict[str, Any]:
    """Begin an act on the jobs that were counted."""
    return (await call.bulk.start(call.fields["act"], call.client, call.visitor)).shown()


async def stop(call: ActCall) -> dict[str, Any]:
    """Stop an act on many jobs. What is done stays done."""
    return (await call.bulk.stop(call.fields["act"])).shown()


_ACT: Final = Field("act", "its id", is_required=True)
_DO: Final = Field("do", "cancel, retry, move, priority or fail", is_required=True)
_HOW: Final = (
    Field("into", "for move: the new queue"), Field("priority", "for priority: lower runs sooner", "number"),
    Field("into_group", f"for fail: the kind of failure (default: {BY_HAND})"), Field("message", "for fail: why"),
)  # fmt: skip
ACTS: Final = (
    WebAct("start_bulk", "/bulk/{act}/start", start, (_ACT,), page=("bulk", "act")),
    WebAct("stop_bulk", "/bulk/{act}/stop", stop, (_ACT,), page=("bulk", "act")),
    WebAct(
        "bulk", "/bulk", choose,
        (_DO, Field("state", "jobs in this state"), *(Field(name, meaning) for name, meaning in CONDITIONS.items()),
         *_HOW),
        page=("bulk", "act"),
    ),
    WebAct(
        "marked", "/marked", change,
        (_DO, Field("jids", "the jobs, at most 1,000", "names", is_required=True), *_HOW), page=("bulk", "act"),
    ),
)  # fmt: skip
