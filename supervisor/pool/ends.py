"""The last jobs that did not complete, for whoever asks how things are. Runs in master. Must not keep more than a few,
nor anything of those that completed: they are counted, and that is all.
"""

from collections import deque
from typing import Any, Final

from supervisor import clock
from supervisor.engine.outcomes import Answer, Died, Failed, Released, Retried
from supervisor.pool.ledger import Held

#: As many as fit on a screen.
_MOST: Final = 20
#: Of a message; the log has all of it.
_CHARS: Final = 200


class LatestEnds:
    def __init__(self) -> None:
        self._ends: deque[dict[str, Any]] = deque(maxlen=_MOST)

    def remember(self, held: Held, verdict: Answer) -> None:
        """How a lease has ended, by its outcome and what the engine said to that."""
        told = _told(held, verdict)
        if told is None:
            return
        lease, (what, why, message) = held.lease, told
        self._ends.append({
            "at_unix": round(clock.unix(), 3), "what": what, "why": why, "message": (message or "")[:_CHARS],
            "jid": lease.jid, "klass": lease.klass, "queue": lease.queue,
        })  # fmt: skip

    def status(self) -> list[dict[str, Any]]:
        """The latest first."""
        return list(reversed(self._ends))


def _told(held: Held, verdict: Answer) -> tuple[str, str | None, str | None] | None:
    """What has become of the job, why, and in which words; None: it completed, or was lost, or had not started."""
    outcome = held.outcome
    if verdict is None or verdict is False:
        return None
    match outcome:
        case Retried(group=group, message=message):
            tried_again = isinstance(verdict, int) and verdict >= 0
            return "retried" if tried_again else "failed", group, message
        case Failed(group=group, message=message):
            return "failed", group, message
        case Died(reason=reason, message=message):
            return "died", reason, message
        case Released(started=True, reason=reason):
            return "failed" if held.lease.at_most_once else "released", reason, None
        case _:
            return None
