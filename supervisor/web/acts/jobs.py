"""Acts on jobs. Runs in the web server's process."""

import base64
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.concurrency import run_in_threadpool

from supervisor.cli.lib.options import PUT_OPTIONS
from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.commands import data_schemas
from supervisor.engine.model.errors import JobFailed
from supervisor.engine.model.new_jobs import PutOptions
from supervisor.engine.model.validation import UNSET
from supervisor.web.acts.act import JOB_READERS, LONGEST_WAIT_S, PRODUCERS, WAITERS, ActCall, ActOptions, Field, WebAct
from supervisor.web.data_check import WrongData, wrong_fields
from supervisor.web.hiding import HIDDEN
from supervisor.web.packing import TOO_DEEP
from supervisor.web.pages.page import BadParameter, Missing

if TYPE_CHECKING:
    from supervisor.engine.client.async_handles import AsyncJob

JID: Final = Field("jid", "the job", is_required=True)
_TAGS: Final = Field("tags", "the tags, at most 100", "names", is_required=True)
#: The group of jobs that a person has failed.
BY_HAND: Final = "by-hand"
_GROUP: Final = Field("group", f"the kind of failure (default: {BY_HAND})")
_MESSAGE: Final = Field("message", "why, in words")


async def _job(call: ActCall) -> "AsyncJob":
    job = await call.client.job(call.fields["jid"])
    if job is None:
        raise Missing(f"there is no job {call.fields['jid']}")
    return job


async def put(call: ActCall) -> dict[str, Any]:
    """Put a job. Takes the options of put."""
    fields = dict(call.fields)
    queue, klass, data = fields.pop("queue"), fields.pop("klass"), _data(fields)
    return {"jid": await call.client.queue(queue).put(klass, data, **fields)}


def _data(fields: dict[str, Any]) -> Any:
    """Take the data of a new job from its fields: JSON, or bytes in base64."""
    data, text = fields.pop("data", None), fields.pop("data_b64", None)
    if text is None:
        return data
    if data is not None:
        raise BadParameter("give data or data_b64, not both")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise BadParameter(f"data_b64 must be base64, not {text!r:.100}") from None


async def cancel(call: ActCall) -> dict[str, Any]:
    """Cancel a job in any state but complete."""
    job = await _job(call)
    if not await job.cancel():
        raise BadParameter(f"job {job.jid} is {job.state}: it cannot be cancelled")
    return {"cancelled": [job.jid]}


async def retry(call: ActCall) -> dict[str, Any]:
    """Put a failed job back, with new data or into another queue if given. New data must fit, unless it is forced."""
    job = await _job(call)
    queue, data = call.fields.get("queue"), call.fields.get("data", UNSET)
    if data is not UNSET:
        refuse_stand_ins(data)
    if job.state == "failed" and data is not UNSET and not call.fields.get("force"):
        await _check(call, queue or job.queue, job.klass, data)
    if not await job.unfail(queue, data=data):
        raise BadParameter(f"job {job.jid} is {job.state}: only what has failed and can be read is put back")
    return {"retried": [job.jid]}


def refuse_stand_ins(data: Any) -> None:
    """Refuse data as the API has shown it, with a mark in the place of a value. The mark would become the value."""
    with suppress(orjson.JSONEncodeError):  # it is nested too deep, and the client refuses it
        text = orjson.dumps(data).decode()
        if shown := next((mark for mark in (HIDDEN, TOO_DEEP) if mark in text), None):
            raise BadParameter(f"data has {shown} in the place of a value: write that value, or leave data out")


async def _check(call: ActCall, queue: str, klass: str, data: object) -> None:
    """Raise WrongData if none of the workers that may lease the job takes such data, as far as that is known."""
    schemas = await calls_of(call.client).call(data_schemas.read, queue, klass)
    if wrong := await run_in_threadpool(wrong_fields, data, schemas):
        raise WrongData(klass, wrong)


async def move(call: ActCall) -> dict[str, Any]:
    """Move a job into another queue, where it begins anew."""
    job = await _job(call)
    await job.move(call.fields["queue"])
    return {"moved": [job.jid]}


async def prioritise(call: ActCall) -> dict[str, Any]:
    """Change the priority of a job: lower runs sooner."""
    job = await _job(call)
    return {"priority": await job.set_priority(call.fields["priority"])}


async def release(call: ActCall) -> dict[str, Any]:
    """Take a running job from its worker, to the front of its queue."""
    job = await _job(call)
    if not await job.release():
        raise BadParameter(f"job {job.jid} is {job.state}: only a running one can be released")
    return {"released": [job.jid]}


async def fail(call: ActCall) -> dict[str, Any]:
    """Fail a job by hand, in any state. A running one is stopped."""
    job = await _job(call)
    await job.fail(call.fields.get("group", BY_HAND), call.fields.get("message", ""))
    return {"failed": [job.jid]}


async def tag(call: ActCall) -> dict[str, Any]:
    """Add tags to a job. Answers all that it then has."""
    return {"tags": await (await _job(call)).tag(*call.fields["tags"])}


async def untag(call: ActCall) -> dict[str, Any]:
    """Take tags from a job. Answers those that it keeps."""
    return {"tags": await (await _job(call)).untag(*call.fields["tags"])}


async def track(call: ActCall) -> dict[str, Any]:
    """Mark a job, so that what happens to it can be followed."""
    await call.client.track(call.fields["jid"])
    return {"tracked": True}


async def untrack(call: ActCall) -> dict[str, Any]:
    """Take the mark from a job, also from one that is gone."""
    if not await call.client.untrack(call.fields["jid"]):
        raise Missing(f"job {call.fields['jid']} is not tracked")
    return {"tracked": False}


async def log(call: ActCall) -> dict[str, Any]:
    """Write a line into the history of a job."""
    await call.client.log(call.fields["jid"], call.fields["message"], call.fields.get("data"))
    return {"logged": [call.fields["jid"]]}


async def depend(call: ActCall) -> dict[str, Any]:
    """Let a job that waits for others wait for these, too."""
    await (await _job(call)).depend(*call.fields["jids"])
    return {"dependencies": (await _job(call)).dependencies}


async def undepend(call: ActCall) -> dict[str, Any]:
    """Let a job not wait for these, or for any. Without any left it goes into its queue."""
    jids, all_of_them = call.fields.get("jids", []), call.fields.get("all", False)
    if bool(jids) == all_of_them:
        raise BadParameter("give jids, or all=true, one of the two")
    await (await _job(call)).undepend(*jids, all=all_of_them)
    return {"dependencies": (await _job(call)).dependencies}


async def signal(call: ActCall) -> dict[str, Any]:
    """Send a job the signal that its handler waits for."""
    jid, name = call.fields["jid"], call.fields["name"]
    if not await call.client.signal(jid, name, call.fields.get("value")):
        raise Missing(f"there is no job {jid} that could wait for a signal")
    return {"signalled": [jid]}


async def wait(call: ActCall) -> dict[str, Any]:
    """Wait until a job has ended, and return its result, or how it has failed."""
    timeout_s = call.wait_s("timeout", LONGEST_WAIT_S)
    try:
        return {"ended": True, "result": await call.client.wait(call.fields["jid"], timeout_s)}
    except JobFailed as failed:
        return {"ended": True, "failed": {"group": failed.group, "message": failed.message}}
    except TimeoutError:
        return {"ended": False}


_DATA: Final = Field("data", "new data", "json")
_FORCE: Final = Field("force", "take data that do not fit the handler's schema", "yes")
_OPTIONS: Final = ActOptions(PutOptions, {**PUT_OPTIONS, **JOB_READERS, "batch": str})
_ON_JOB: Final = ("job", "jid")
ACTS: Final = (
    WebAct(
        "put", "/jobs", put,
        (Field("queue", "its queue", is_required=True), Field("klass", "its handler", is_required=True),
         Field("data", "its data", "json"), Field("data_b64", "bytes in place of data, in base64")),
        PRODUCERS, page=_ON_JOB, options=_OPTIONS,
    ),
    WebAct("cancel", "/jobs/{jid}/cancel", cancel, (JID,), page=_ON_JOB),
    WebAct("delete", "/jobs/{jid}", cancel, (JID,), page=_ON_JOB, method="DELETE"),
    WebAct(
        "retry", "/jobs/{jid}/retry", retry, (JID, Field("queue", "another queue"), _DATA, _FORCE),
        page=_ON_JOB, checks_data=True,
    ),
    WebAct(
        "move", "/jobs/{jid}/move", move, (JID, Field("queue", "the new queue", is_required=True)), page=_ON_JOB
    ),
    WebAct(
        "priority", "/jobs/{jid}/priority", prioritise,
        (JID, Field("priority", "lower runs sooner", "number", is_required=True)), page=_ON_JOB,
    ),
    WebAct("release", "/jobs/{jid}/release", release, (JID,), page=_ON_JOB),
    WebAct(
        "signal", "/jobs/{jid}/signal", signal,
        (JID, Field("name", "what the handler waits for", is_required=True), Field("value", "any JSON", "json")),
        PRODUCERS, page=_ON_JOB,
    ),
    WebAct("wait", "/jobs/{jid}/wait", wait, (JID, Field("timeout", "seconds, at most 30", "number")), WAITERS),
    WebAct("fail", "/jobs/{jid}/fail", fail, (JID, _GROUP, _MESSAGE), page=_ON_JOB),
    WebAct("tag", "/jobs/{jid}/tag", tag, (JID, _TAGS), page=_ON_JOB),
    WebAct("untag", "/jobs/{jid}/untag", untag, (JID, _TAGS), page=_ON_JOB),
    WebAct("track", "/jobs/{jid}/track", track, (JID,), page=_ON_JOB),
    WebAct("untrack", "/jobs/{jid}/untrack", untrack, (JID,), page=_ON_JOB),
    WebAct(
        "log", "/jobs/{jid}/log", log,
        (JID, Field("message", "the line", is_required=True), Field("data", "data beside it", "json")), page=_ON_JOB,
    ),
    WebAct(
        "depend", "/jobs/{jid}/depend", depend,
        (JID, Field("jids", "the jobs to wait for", "names", is_required=True)), page=_ON_JOB,
    ),
    WebAct(
        "undepend", "/jobs/{jid}/undepend", undepend,
        (JID, Field("jids", "the jobs not to wait for", "names"), Field("all", "wait for none", "yes")), page=_ON_JOB,
    ),
)  # fmt: skip
