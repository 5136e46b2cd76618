"""Acts of workers in any language: lease jobs, renew the leases, settle them. Runs in the web server's process.

A worker must have the data of its jobs, so nothing is hidden in them. What it does is work, and is not recorded.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from supervisor import clock
from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.commands import doors, leasing
from supervisor.engine.commands.leasing import Renewal
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.outcomes import Completed, Died, Failed, Leased, Outcome, Released, Retried
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.model.validation import checked_int
from supervisor.setting_values import LONGEST_LEASE_S, SHORTEST_LEASE_S
from supervisor.web.acts.act import WORKERS, ActCall, Field, WebAct
from supervisor.web.pages.page import BadParameter

if TYPE_CHECKING:
    from supervisor.engine.client.async_handles import AsyncLease

#: So often a lease that waits looks behind doors: no push there wakes it.
_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Held:
    """A lease as its worker names it."""

    worker: str
    jid: str
    token: int
    queue: str = ""
    trace: str | None = None


async def lease(call: ActCall) -> dict[str, Any]:
    """Lease up to `count` jobs of the queues; `block` waits so many seconds for the first.

    What lies behind doors to them becomes jobs first. What a worker that has hung up meanwhile would get goes back to
    the front, uncounted.
    """
    leases = await _leased(call)
    if leases and await call.has_hung_up():
        await call.client.settle([Released(one, started=False) for one in leases])
        leases = []
    return {"leases": [_shown(one) for one in leases]}


async def _leased(call: ActCall) -> "list[AsyncLease]":
    asked, deadline_at = call.fields, clock.monotonic() + call.wait_s("block", 0)
    queues, count, order = asked["queues"], asked.get("count", 1), asked.get("order", "strict")
    leading = await _doors_to(call, Queues(queues, order))
    while True:
        if leading and count:
            await calls_of(call.client).call(doors.take, leading, checked_int("count", count, 1, MOST))
        left_s = max(deadline_at - clock.monotonic(), 0.0)
        wait_s = min(left_s, _LOOK_S) if leading else left_s
        leases = await call.client.lease(asked["worker"], queues, count, _ttl_s(call), order, wait_s)
        if leases or wait_s == left_s:
            return leases


async def _doors_to(call: ActCall, queues: Queues) -> list[str]:
    known = await call.client.doors.list()
    served = set(queues.resolve([door.queue for door in known]))
    return [door.name for door in known if door.queue in served]


def _ttl_s(call: ActCall) -> int | None:
    return call.within("ttl", int(SHORTEST_LEASE_S), int(LONGEST_LEASE_S), None)


def _shown(one: "AsyncLease") -> dict[str, Any]:
    try:
        data: dict[str, Any] = {} if one.is_bytes else {"data": one.data}
        orjson.dumps([[[data]]])  # as deep as it lies in the answer
    except (ValueError, TypeError):
        data = {}
    return {
        "jid": one.jid,
        "token": one.token,
        "klass": one.klass,
        **(data or {"data_b64": base64.b64encode(one.raw).decode()}),
        "queue": one.queue,
        "lane": one.lane,
        "priority": one.priority,
        "tags": one.tags,
        "failures": one.failures,
        "deaths": one.deaths,
        "interruptions": one.interruptions,
        "expires_unix": one.expires_unix,
    }


async def renew(call: ActCall) -> dict[str, Any]:
    """Renew leases. Answers the new end of each, null for one that is lost."""
    entries, ttl_s = [Renewal(held.jid, held.token) for held, _ in _each(call, "leases")], _ttl_s(call)
    expires = await calls_of(call.client).call(leasing.renew, call.fields["worker"], entries, ttl_s=ttl_s)
    return {"expires_unix": [at if at > 0 else None for at in expires]}


async def settle(call: ActCall) -> dict[str, Any]:
    """End leases: `outcome` is complete, retry, fail, release or died. Answers each as the client does."""
    outcomes = [_outcome(held, rest) for held, rest in _each(call, "outcomes")]
    return {"answers": await call.client.settle(outcomes)}


_OUTCOMES: Final[Mapping[str, Callable[..., Outcome]]] = {
    "complete": Completed, "retry": Retried, "fail": Failed, "release": Released, "died": Died,
}  # fmt: skip
_ALLOWED: Final = {
    "complete": {"result", "data", "next", "delay", "depends", "then"},
    "retry": {"delay", "group", "message"},
    "fail": {"group", "message", "data"},
    "release": {"started"},
    "died": {"reason", "message"},
}
_NEEDED: Final = {"fail": ("group", "message"), "died": ("reason",)}


def _outcome(held: Leased, rest: dict[str, Any]) -> Outcome:
    kind = rest.pop("outcome", None)
    if not isinstance(kind, str) or kind not in _OUTCOMES:
        raise BadParameter(f"outcome must be one of {', '.join(_OUTCOMES)}, not {kind!r:.100}")
    if unknown := set(rest) - _ALLOWED[kind]:
        raise BadParameter(f"{kind} takes no {min(unknown)}, only {', '.join(sorted(_ALLOWED[kind]))}")
    if missing := [name for name in _NEEDED.get(kind, ()) if name not in rest]:
        raise BadParameter(f"{kind} of job {held.jid} needs {' and '.join(missing)}")
    return _OUTCOMES[kind](held, **rest)


def _each(call: ActCall, name: str) -> list[tuple[_Held, dict[str, Any]]]:
    if len(call.fields[name]) > MOST:
        raise BadParameter(f"{name} must be at most {MOST}, not {len(call.fields[name])}")
    found = []
    for one in call.fields[name]:
        rest = dict(one)
        jid, token, queue = rest.pop("jid", None), rest.pop("token", None), rest.pop("queue", "")
        if not isinstance(jid, str) or type(token) is not int or not isinstance(queue, str):
            raise BadParameter(f"each of {name} needs a jid and a token, as its lease has them: {one!r:.200}")
        found.append((_Held(call.fields["worker"], jid, token, queue), rest))
    return found


_WORKER: Final = Field("worker", "the name of the worker, unique for each start", is_required=True)
_TTL: Final = Field("ttl", "seconds, 1 to 86400", "number")
ACTS: Final = (
    WebAct(
        "lease", "/lease", lease,
        (_WORKER, Field("queues", "names, globs, exclusions", "names", is_required=True),
         Field("count", "at most 1,000", "number"), _TTL,
         Field("order", "strict, …"), Field("block", "seconds to wait, at most 30", "number")),
        WORKERS, hides=False,
    ),
    WebAct(
        "renew", "/renew", renew, (_WORKER, Field("leases", "jid and token", "objects", is_required=True), _TTL),
        WORKERS,
    ),
    WebAct(
        "settle", "/settle", settle,
        (_WORKER, Field("outcomes", "jid, token, outcome, and what it takes", "objects", is_required=True)), WORKERS,
    ),
)  # fmt: skip
