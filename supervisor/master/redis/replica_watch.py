"""Says when replicas are too few for what they must acknowledge, and when to ask again. Runs in the master. No I/O."""

from supervisor.engine.worker.acknowledging import Acknowledging
from supervisor.ops.events import Events


class ReplicaWatch:
    def __init__(self, acknowledging: Acknowledging, events: Events) -> None:
        self._acknowledging = acknowledging
        self._events = events
        self._was_short = False

    def look_at(self) -> float:
        """Return when to ask again, if there is no other reason to speak to Redis (monotonic s)."""
        return self._acknowledging.look_at

    def tell(self) -> None:
        """An exchange was answered: say whether replicas have become short, or are back.

        Replicas that mostly need longer than they may are short again and again: that is logged less and less often.
        """
        is_short, counts = self._acknowledging.is_short, self._acknowledging
        if is_short == self._was_short:
            return
        self._was_short = is_short
        if is_short:
            self._events.emit_throttled(
                "redis.unacknowledged",
                f"{counts.said}: ends of jobs and checkpoints wait, running jobs and their leases go on",
            )
        else:
            self._events.emit_throttled("redis.acknowledged", "what has ended counts now", replicas=counts.count)
