"""Acts on the options in Redis. Runs in the web server's process."""

from typing import Any, Final

from supervisor.engine.model.options import checked_option, value_of_text
from supervisor.web.acts.act import ActCall, Field, WebAct

_OPTION: Final = Field("option", "its name, or <name>-<queue>", is_required=True)


async def set_option(call: ActCall) -> dict[str, Any]:
    """Set an option of the namespace, or of one queue."""
    name = call.fields["option"]
    option, _queue = checked_option(name)
    await call.client.config.set(name, value_of_text(option, call.fields["value"]))
    return {"option": name, "value": await call.client.config.get(name)}


async def unset_option(call: ActCall) -> dict[str, Any]:
    """Return an option to its default, or a queue's option to that of all queues."""
    name = call.fields["option"]
    await call.client.config.unset(name)
    return {"option": name, "value": await call.client.config.get(name)}


ACTS: Final = (
    WebAct("unset_option", "/config/{option}", unset_option, (_OPTION,), page=("config",), method="DELETE"),
    WebAct(
        "set_option", "/config/{option}", set_option,
        (_OPTION, Field("value", "as on the command line: 60, 5m, yes, a name", is_required=True)), page=("config",),
    ),
)  # fmt: skip
