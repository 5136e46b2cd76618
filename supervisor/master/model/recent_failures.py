"""The last jobs that did not complete, for `status` and its HTTP page. Runs in the master.

Completed jobs are only counted, not kept.
"""

from collections import deque
from typing import Any, Final

from supervisor import clock
from supervisor.engine.model.outcomes import Died, Failed, Outcome, Released, Retried
from supervisor.master.model.held_lease import HeldLease

#: This many fit on a screen.
_MOST: Final = 20
#: A message is cut to this length. The log has all of it.
_CHARS: Final = 200
#: All other results mean that the job completed, was lost, or had not started.
_REMEMBERED: Final = frozenset({"retried", "failed", "died", "released"})


class RecentFailures:
    def __init__(self) -> None:
        self._ends: deque[dict[str, Any]] = deque(maxlen=_MOST)

    def remember(self, held: HeldLease, what: str) -> None:
        """Keep the end of a run. `what`: a word of `counts.OUTCOMES`."""
        if what not in _REMEMBERED:
            return
        lease, (why, message) = held.lease, _why(held.outcome)
        self._ends.append({
            "at_unix": round(clock.unix(), 3), "what": what, "why": why, "message": (message or "")[:_CHARS],
            "jid": lease.jid, "klass": lease.klass, "queue": lease.queue,
        })  # fmt: skip

    def status(self) -> list[dict[str, Any]]:
        """Return all kept ends as JSON values, the latest first."""
        return list(reversed(self._ends))


def _why(outcome: Outcome | None) -> tuple[str | None, str | None]:
    """Return the group or reason of a failure, and its message."""
    match outcome:
        case Retried(group=why, message=message) | Failed(group=why, message=message):
            return why, message
        case Died(reason=why, message=message):
            return why, message
        case Released(reason=why):
            return why, None
        case _:
            return None, None
