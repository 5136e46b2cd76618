"""Acts on queues, lanes, limits and batches. Runs in the web server's process."""

from dataclasses import asdict
from typing import Any, Final

from supervisor.cli.lib.terminal import counted
from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.commands import batches, deleting
from supervisor.engine.commands.deleting import Deleted
from supervisor.web.acts.act import ActCall, Field, WebAct
from supervisor.web.pages.page import BadParameter, Missing

_QUEUE: Final = Field("queue", "its name", is_required=True)
_LANE: Final = Field("lane", "the lane", is_required=True)
_CONFIRM: Final = Field("confirm", "its name again", is_required=True)
_STOP: Final = Field("stop", "running jobs, too", "yes")
_KEY: Final = Field("key", "its key", is_required=True)
_BATCH: Final = Field("batch", "its id", is_required=True)


async def pause_queue(call: ActCall) -> dict[str, Any]:
    """Let nothing new start from a queue."""
    await call.client.queue(call.fields["queue"]).pause()
    return {"paused": True}


async def unpause_queue(call: ActCall) -> dict[str, Any]:
    """End the pause of a queue."""
    await call.client.queue(call.fields["queue"]).unpause()
    return {"paused": False}


async def delete_queue(call: ActCall) -> dict[str, Any]:
    """Delete the jobs of a queue that do not run, in steps. `confirm` repeats its name."""
    return await _delete(call, "queue", None)


async def delete_lane(call: ActCall) -> dict[str, Any]:
    """Delete the jobs of a lane that do not run, in steps. `confirm` repeats its name. Its weight and pause stay."""
    return await _delete(call, "lane", call.fields["lane"])


async def _delete(call: ActCall, kind: str, lane: str | None) -> dict[str, Any]:
    queue, name = call.fields["queue"], call.fields[kind]
    if call.fields["confirm"] != name:
        raise BadParameter(f"confirm must be the name of the {kind}, {name}, not {call.fields['confirm']!r:.100}")
    calls, stop = calls_of(call.client), call.fields.get("stop", False)

    def ended(result: Deleted) -> str:
        ran = f"{result.running:,} {'stopped' if stop else 'still running'}"
        return f"{counted(result.dropped, 'job')} dropped, {ran}"

    act = await call.bulk.follow(
        call.client,
        call.visitor,
        f"delete the jobs of {kind} {name}" if lane is None else f"delete the jobs of lane {lane} of queue {queue}",
        lambda told: deleting.delete(queue, lane, "stop" if stop else "finish", calls.clock, calls.actor, told),
        ended,
        Deleted.of_all,
    )
    return act.shown()


async def forget_queue(call: ActCall) -> dict[str, Any]:
    """Take an empty queue off the list of queues."""
    if not await call.client.queue(call.fields["queue"]).forget():
        raise Missing(f"there is no queue {call.fields['queue']}")
    return {"forgotten": call.fields["queue"]}


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


async def cancel_batch(call: ActCall) -> dict[str, Any]:
    """Close a batch, and delete its jobs that have not ended, in steps."""
    calls, batch_id = calls_of(call.client), batches.checked_id(call.fields["batch"])
    act = await call.bulk.follow(
        call.client,
        call.visitor,
        f"cancel batch {batch_id}",
        lambda told: batches.cancel(batch_id, calls.actor, calls.clock, told),
        lambda number: f"cancelled {counted(number, 'job')}",
    )
    return act.shown()


async def retry_batch(call: ActCall) -> dict[str, Any]:
    """Put the failed jobs of a batch back, in steps."""
    calls, batch_id = calls_of(call.client), batches.checked_id(call.fields["batch"])
    act = await call.bulk.follow(
        call.client,
        call.visitor,
        f"retry batch {batch_id}",
        lambda told: batches.retry(batch_id, calls.clock, calls.actor, told),
        lambda number: f"put back {counted(number, 'failed job')}",
    )
    return act.shown()


async def pause_batch(call: ActCall) -> dict[str, Any]:
    """Let none of a batch's waiting jobs start."""
    await call.client.batch(call.fields["batch"]).pause()
    return {"paused": True}


async def resume_batch(call: ActCall) -> dict[str, Any]:
    """End the pause of a batch."""
    await call.client.batch(call.fields["batch"]).resume()
    return {"paused": False}


ACTS: Final = (
    WebAct("pause_queue", "/queues/{queue}/pause", pause_queue, (_QUEUE,), page=("queue", "queue")),
    WebAct("unpause_queue", "/queues/{queue}/unpause", unpause_queue, (_QUEUE,), page=("queue", "queue")),
    WebAct(
        "delete_queue", "/queues/{queue}/delete", delete_queue, (_QUEUE, _CONFIRM, _STOP), page=("bulk", "act")
    ),
    WebAct("forget_queue", "/queues/{queue}/forget", forget_queue, (_QUEUE,), page=("queues",)),
    WebAct(
        "delete_lane", "/lanes/{queue}/delete", delete_lane, (_QUEUE, _LANE, _CONFIRM, _STOP), page=("bulk", "act")
    ),
    WebAct("pause_lane", "/lanes/{queue}/pause", pause_lane, (_QUEUE, _LANE), page=("lanes", "queue")),
    WebAct("unpause_lane", "/lanes/{queue}/unpause", unpause_lane, (_QUEUE, _LANE), page=("lanes", "queue")),
    WebAct(
        "weigh_lane", "/lanes/{queue}/weight", weigh_lane,
        (_QUEUE, _LANE, Field("weight", "1 to 1,000", "number", is_required=True)), page=("lanes", "queue"),
    ),
    WebAct("unlimit", "/limits/{key}", unlimit, (_KEY,), page=("limits",), method="DELETE"),
    WebAct(
        "limit", "/limits/{key}", limit,
        (_KEY, Field("running", "the most at once", "number"), Field("rate", "starts in a time, like 10/s")),
        page=("limit", "key"),
    ),
    WebAct("cancel_batch", "/batches/{batch}/cancel", cancel_batch, (_BATCH,), page=("bulk", "act")),
    WebAct("retry_batch", "/batches/{batch}/retry", retry_batch, (_BATCH,), page=("bulk", "act")),
    WebAct("pause_batch", "/batches/{batch}/pause", pause_batch, (_BATCH,), page=("batch", "batch")),
    WebAct("resume_batch", "/batches/{batch}/resume", resume_batch, (_BATCH,), page=("batch", "batch")),
)  # fmt: skip
