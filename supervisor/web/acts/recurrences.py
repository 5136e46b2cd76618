"""Acts on recurring jobs. Runs in the web server's process."""

from typing import Any, Final

from supervisor.cli.lib.options import RECUR_OPTIONS
from supervisor.engine.model.recurring import RecurOptions
from supervisor.web.acts.act import JOB_READERS, ActCall, ActOptions, Field, WebAct
from supervisor.web.acts.jobs import refuse_stand_ins
from supervisor.web.pages.page import Missing

_JID: Final = Field("jid", "its id", is_required=True)


async def recur(call: ActCall) -> dict[str, Any]:
    """Put a job again and again. Takes the options of recur, with `every` or `cron`."""
    fields = dict(call.fields)
    queue, klass, data = fields.pop("queue"), fields.pop("klass"), fields.pop("data", None)
    return {"jid": await call.client.queue(queue).recur(klass, data, **fields)}


async def update(call: ActCall) -> dict[str, Any]:
    """Change a recurring job. What is not given stays as it is."""
    changes = dict(call.fields)
    jid = changes.pop("jid")
    job = await call.client.recurring(jid)
    if job is None:
        raise Missing(f"there is no recurring job {jid}")
    if "data" in changes:
        refuse_stand_ins(changes["data"])
    await job.update(**changes)
    return {"updated": jid}


async def unrecur(call: ActCall) -> dict[str, Any]:
    """Remove a recurring job. The jobs that it has put stay."""
    if not await call.client.unrecur(call.fields["jid"]):
        raise Missing(f"there is no recurring job {call.fields['jid']}")
    return {"removed": call.fields["jid"]}


_OPTIONS: Final = ActOptions(RecurOptions, {**RECUR_OPTIONS, **JOB_READERS})
_DATA: Final = Field("data", "the data of its jobs", "json")
ACTS: Final = (
    WebAct(
        "recur", "/recurrences", recur,
        (Field("queue", "where its jobs are put", is_required=True), Field("klass", "their handler", is_required=True),
         _DATA),
        page=("job", "jid"), options=_OPTIONS,
    ),
    WebAct(
        "update_recurrence", "/recurrences/{jid}/update", update,
        (_JID, Field("queue", "where its jobs are put"), Field("klass", "their handler"), _DATA),
        page=("job", "jid"), options=_OPTIONS,
    ),
    WebAct("unrecur", "/recurrences/{jid}/remove", unrecur, (_JID,), page=("recurrences",)),
)  # fmt: skip
