"""Requests to supervisors. Runs in the web server's process."""

from collections.abc import Mapping
from typing import Any, Final

from supervisor.engine.model.bounds import MOST
from supervisor.setting_values import parse_processes
from supervisor.web.acts.act import ActCall, Do, Field, WebAct
from supervisor.web.pages.page import BadParameter

_WORKER: Final = Field("worker", "its name", is_required=True)
_CONFIRM: Final = Field("confirm", "its name again", is_required=True)
_TIMEOUT_S: Final = 5.0
#: New code may take long to load.
_RELOAD_S: Final = 30.0


async def _ask(call: ActCall, what: str, wish: Mapping[str, Any], timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
    worker = call.fields["worker"]
    answers = await call.client.ask(worker, what, timeout_s, {**wish, "by": f"{call.visitor}, by the web page"})
    answer = answers[worker]
    if answer is None:
        return {"did": None, "why": f"{_silence(worker, timeout_s)}; it may still do it"}
    if not isinstance(answer, Mapping) or "did" not in answer:
        raise BadParameter(f"{worker} refuses: {answer.get('error') if isinstance(answer, Mapping) else answer!r:.200}")
    return {"did": answer["did"]}


def _silence(worker: str, timeout_s: float) -> str:
    return f"{worker} has not answered within {timeout_s:g} s"


def _telling(what: str, sentence: str, timeout_s: float = _TIMEOUT_S) -> Do:
    async def tell(call: ActCall) -> dict[str, Any]:
        return await _ask(call, what, {}, timeout_s)

    tell.__doc__ = sentence
    return tell


async def scale(call: ActCall) -> dict[str, Any]:
    """Set how many jobs a supervisor runs at once: N, MIN:MAX or auto."""
    try:
        wanted = parse_processes(call.fields["processes"])
    except ValueError as error:
        raise BadParameter(f"processes {call.fields['processes']!r:.100} {error}") from None
    return await _ask(call, "scale", {"auto": True} if wanted is None else {"fewest": wanted[0], "most": wanted[1]})


async def serve(call: ActCall) -> dict[str, Any]:
    """Have a supervisor serve other queues from now on. Its running jobs go on."""
    worker, queues, order = call.fields["worker"], call.fields["queues"], call.fields.get("order")
    await call.client.serve(worker, queues, order)
    return {"queues": queues, "order": order}


async def deregister(call: ActCall) -> dict[str, Any]:
    """Forget a worker. Its jobs go to the front of their queues; a supervisor that lives stops them, and goes on.

    `confirm` repeats its name.
    """
    worker, confirm = call.fields["worker"], call.fields["confirm"]
    if confirm != worker:
        raise BadParameter(f"confirm must be the name of the worker, {worker}, not {confirm!r:.100}")
    return {"handed_back": await call.client.deregister(worker)}


async def sweep(call: ActCall) -> dict[str, Any]:
    """Take up to 1,000 jobs from lost workers now. Supervisors do so by themselves."""
    return {"taken": await call.client.sweep(MOST)}


async def stacks(call: ActCall) -> dict[str, Any]:
    """Return the Python stacks of a supervisor's children.

    Each child gets a signal, by which a sleep in C code ends early.
    """
    worker = call.fields["worker"]
    answer = (await call.client.ask(worker, "stacks", _TIMEOUT_S))[worker]
    if answer is None:
        return {"children": None, "why": _silence(worker, _TIMEOUT_S)}
    if not isinstance(answer, Mapping) or not isinstance(answer.get("children"), list):
        raise BadParameter(f"{worker} answers in another way: {answer!r:.200}")
    return {"children": answer["children"]}


_TOLD: Final = (
    ("pause", _telling("pause", "Let a supervisor lease nothing.")),
    ("resume", _telling("resume", "End the pause of a supervisor.")),
    ("drain", _telling("drain", "End a supervisor once its jobs have ended.")),
    ("reload", _telling("reload", "Have a supervisor load its handlers anew.", _RELOAD_S)),
)
ACTS: Final = (
    *(
        WebAct(f"{what}_supervisor", f"/supervisors/{{worker}}/{what}", do, (_WORKER,), page=("supervisor", "worker"))
        for what, do in _TOLD
    ),
    WebAct(
        "scale_supervisor", "/supervisors/{worker}/scale", scale,
        (_WORKER, Field("processes", "N, MIN:MAX or auto", is_required=True)), page=("supervisor", "worker"),
    ),
    WebAct(
        "serve", "/supervisors/{worker}/serve", serve,
        (_WORKER, Field("queues", "names, patterns, and !patterns that are left out", "names", is_required=True),
         Field("order", "strict, round-robin, random or weighted")),
        page=("supervisor", "worker"),
    ),
    WebAct("deregister", "/supervisors/{worker}/deregister", deregister, (_WORKER, _CONFIRM), page=("supervisors",)),
    WebAct("sweep", "/sweep", sweep, page=("supervisors",)),
    WebAct("stacks_supervisor", "/supervisors/{worker}/stacks", stacks, (_WORKER,), shows="stacks"),
)  # fmt: skip
