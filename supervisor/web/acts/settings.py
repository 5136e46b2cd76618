"""Acts on queues, lanes, limits, recurring jobs and batches. Runs in the web server's process."""

from dataclasses import asdict
from typing import Any, Final

from supervisor.web.acts.act import ActCall, Field, WebAct
from supervisor.web.pages.page import BadParameter, Missing

_QUEUE: Final = Field("queue", "its name", is_required=True)
_LANE: Final = Field("lane", "the lane", is_required=True)
_KEY: Final = Field("key", "its key", is_required=True)
_ID: Final = Field("id", "the batch", is_required=True)


async def pause_queue(call: ActCall) -> dict[str, Any]:
    """Let nothing new start from a queue."""
    await call.client.queue(call.fields["queue"]).pause()
    return {"paused": True}


async def unpause_queue(call: ActCall) -> dict[str, Any]:
    """End the pause of a queue."""
    await call.client.queue(call.fields["queue"]).unpause()
    return {"paused": False}


async def delete_queue(call: ActCall) -> dict[str, Any]:
    """Delete the jobs of a queue that do not run. `confirm` repeats its name."""
    queue = call.fields["queue"]
    if call.fields["confirm"] != queue:
        raise BadParameter(f"confirm must be the name of the queue, {queue}, not {call.fields['confirm']!r:.100}")
    return asdict(await call.client.queue(queue).delete("stop" if call.fields.get("stop") else "finish"))


async def pause_lane(call: ActCall) -> dict[str, Any]:
    """Let nothing new start from a lane."""
    await call.client.queue(call.fields["queue"]).lane(call.fields["lane"]).pause()
    return {"paused": True}


async def unpause_lane(call: ActCall) -> dict[str, Any]:
    """End the pause of a lane."""
    await call.client.queue(call.fields["queue"]).lane(call.fields["lane"]).unpause()
    return {"paused": False}


async def weigh_lane(call: ActCall) -> dict[str, Any]:
    """Give a lane so many starts for each of a lane of weight 1."""
    await call.client.queue(call.fields["queue"]).lane(call.fields["lane"]).weight(call.fields["weight"])
    return {"weight": call.fields["weight"]}


async def limit(call: ActCall) -> dict[str, Any]:
    """Limit how many jobs of a key run, or start in a time."""
    running, rate = call.fields.get("running"), call.fields.get("rate")
    if running is None and rate is None:
        raise BadParameter("give running, rate or both")
    return asdict(await call.client.limit(call.fields["key"], running, rate))


async def unlimit(call: ActCall) -> dict[str, Any]:
    """Remove a limit."""
    if not await call.client.unlimit(call.fields["key"]):
        raise Missing(f"there is no limit {call.fields['key']}")
    return {"removed": call.fields["key"]}


async def unrecur(call: ActCall) -> dict[str, Any]:
    """Remove a recurring job. The jobs that it has put stay."""
    if not await call.client.unrecur(call.fields["jid"]):
        raise Missing(f"there is no recurring job {call.fields['jid']}")
    return {"removed": call.fields["jid"]}


async def cancel_batch(call: ActCall) -> dict[str, Any]:
    """Close a batch, and delete its jobs that have not ended."""
    return {"cancelled": await call.client.batch(call.fields["id"]).cancel()}


async def retry_batch(call: ActCall) -> dict[str, Any]:
    """Put the failed jobs of a batch back."""
    return {"retried": await call.client.batch(call.fields["id"]).retry()}


ACTS: Final = (
    WebAct("pause_queue", "/queues/{queue}/pause", pause_queue, (_QUEUE,), page=("queue", "queue")),
    WebAct("unpause_queue", "/queues/{queue}/unpause", unpause_queue, (_QUEUE,), page=("queue", "queue")),
    WebAct(
        "delete_queue", "/queues/{queue}/delete", delete_queue,
        (_QUEUE, Field("confirm", "its name again", is_required=True), Field("stop", "running jobs, too", "yes")),
        page=("queues",),
    ),
    WebAct("pause_lane", "/lanes/{queue}/pause", pause_lane, (_QUEUE, _LANE), page=("lanes", "queue")),
    WebAct("unpause_lane", "/lanes/{queue}/unpause", unpause_lane, (_QUEUE, _LANE), page=("lanes", "queue")),
    WebAct(
        "weigh_lane", "/lanes/{queue}/weight", weigh_lane,
        (_QUEUE, _LANE, Field("weight", "1 to 1,000", "number", is_required=True)), page=("lanes", "queue"),
    ),
    WebAct("unlimit", "/limits/{key}/unlimit", unlimit, (_KEY,), page=("limits",)),
    WebAct(
        "limit", "/limits/{key}", limit,
        (_KEY, Field("running", "the most at once", "number"), Field("rate", "starts in a time, like 10/s")),
        page=("limit", "key"),
    ),
    WebAct(
        "unrecur", "/recurrences/{jid}/remove", unrecur, (Field("jid", "its id", is_required=True),),
        page=("recurrences",),
    ),
    WebAct("cancel_batch", "/batches/{id}/cancel", cancel_batch, (_ID,)),
    WebAct("retry_batch", "/batches/{id}/retry", retry_batch, (_ID,)),
)  # fmt: skip
