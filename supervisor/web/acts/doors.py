"""Acts on doors to lists of other programs. Runs in the web server's process."""

from typing import Any, Final

from supervisor.engine.model.doors import FORMATS
from supervisor.web.acts.act import ActCall, Field, WebAct
from supervisor.web.pages.page import Missing

_NAME: Final = Field("name", "the door", is_required=True)


async def add(call: ActCall) -> dict[str, Any]:
    """Add a door, or change the one of this name."""
    return {"changed": await call.client.doors.add(**call.fields)}


async def remove(call: ActCall) -> dict[str, Any]:
    """Remove a door. Jobs that came by it go on."""
    if not await call.client.doors.remove(call.fields["name"]):
        raise Missing(f"there is no door {call.fields['name']}")
    return {"removed": call.fields["name"]}


ACTS: Final = (
    WebAct("remove_door", "/doors/{name}", remove, (_NAME,), page=("doors",), method="DELETE"),
    WebAct(
        "add_door", "/doors/{name}", add,
        (_NAME, Field("format", f"what the other program is: {', '.join(FORMATS)}", is_required=True),
         Field("source", "its list, or the prefix of its keys", is_required=True),
         Field("queue", "where the jobs go", is_required=True), Field("klass", "the klass of all its jobs"),
         Field("klasses", "an object: the klass for each class that an entry may name", "json")),
        page=("doors",),
    ),
)  # fmt: skip
