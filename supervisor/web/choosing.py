"""Reads which jobs a list, an export or an act is for. Runs in the web server's process.

All of them take the same parameters, so that an act changes what its list shows.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from supervisor.engine.commands.choices import STATES, Choice
from supervisor.web.pages.page import BadParameter, Parameter

#: The parameters, with what they choose. All that are given must hold, and the state.
CONDITIONS: Final = {
    "queue": "jobs of this queue",
    "lane": "jobs of this lane",
    "klass": "jobs of this klass",
    "tag": "jobs with this tag",
    "group": "failed jobs of this group",
    "batch": "jobs of this batch",
    "since": "jobs that were put at this time or later: 2031-07-01T12:00, in UTC unless it says otherwise, or unix"
    " seconds",
    "until": "jobs that were put at this time or earlier, likewise",
    "text": "jobs with this text in their jid",
}

#: All of them as the parameters of an address.
CHOICE: Final = (
    Parameter("state", "jobs in this state; parked is not waiting, stalled not running", allowed=STATES),
    *(Parameter(name, meaning) for name, meaning in CONDITIONS.items()),
)

#: Later times cannot be written in all time zones.
_LATEST_UNIX: Final = 10**11


def choice_of(asked: Mapping[str, Any], states: Sequence[str] = STATES) -> Choice:
    """Return the choice: of jobs in the state asked for, else of those in `states`. Raises BadParameter, ValueError."""
    state = asked.get("state")
    if state and state not in STATES:
        raise BadParameter(f"state must be one of {', '.join(STATES)}, not {state!r:.100}")
    if state:
        states = (state,)
    return Choice(
        queue=asked.get("queue") or None,
        tag=asked.get("tag") or None,
        group=asked.get("group") or None,
        states=states,
        klass=asked.get("klass") or None,
        lane=asked.get("lane") or None,
        batch=asked.get("batch") or None,
        first_put_unix=_moment("since", asked.get("since")),
        last_put_unix=_moment("until", asked.get("until")),
        part=asked.get("text") or None,
    )


def _moment(name: str, text: str | None) -> float | None:
    if not text:
        return None
    try:
        moment = datetime.fromtimestamp(float(text), UTC) if _is_number(text) else datetime.fromisoformat(text)
        unix = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        if not 0 <= unix <= _LATEST_UNIX:
            raise ValueError(text)
        return unix
    except (ValueError, OverflowError, OSError):
        raise BadParameter(f"{name} must be a time like 2031-07-01T12:00, or unix seconds, not {text!r:.100}") from None


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
