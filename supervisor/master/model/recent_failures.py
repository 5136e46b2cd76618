"""The last jobs that did not complete, for whoever asks how things are. Runs in master. Must not keep more than a few,
nor anything of those that completed: they are counted, and that is all.
"""

from collections import deque
from typing import Any, Final

from supervisor import clock
from supervisor.engine.model.outcomes import Died, Failed, Outcome, Released, Retried
from supervisor.master.model.ledger import HeldLease

#: As many as fit on a screen.
_MOST: Final = 20
#: Of a message; the log has all of it.
_CHARS: Final = 200
#: What else comes of a lease has completed, was lost, or had not started.
_REMEMBERED: Final = frozenset({"retried", "failed", "died", "released"})


class RecentFailures:
    def __init__(self) -> None:
        self._ends: deque[dict[str, Any]] = deque(maxlen=_MOST)

    def remember(self, held: HeldLease, what: str) -> None:
        """How a run has ended, in a word of `counts.OUTCOMES`."""
        if what not in _REMEMBERED:
            return
        lease, (why, message) = held.lease, _why(held.outcome)
        self._ends.append({
            "at_unix": round(clock.unix(), 3), "what": what, "why": why, "message": (message or "")[:_CHARS],
            "jid": lease.jid, "klass": lease.klass, "queue": lease.queue,
        })  # fmt: skip

    def status(self) -> list[dict[str, Any]]:
        """The latest first."""
        return list(reversed(self._ends))


def _why(outcome: Outcome | None) -> tuple[str | None, str | None]:
    """In one word, and in others."""
    match outcome:
        case Retried(group=why, message=message) | Failed(group=why, message=message):
            return why, message
        case Died(reason=why, message=message):
            return why, message
        case Released(reason=why):
            return why, None
        case _:
            return None, None
