"""Ends a master that has had nothing to do for long enough. Runs in the master. Does no I/O of its own.

Owns since when there has been nothing to do. Redis has the last word, because it knows of jobs that are to come. It
says so for one shard, and no step asks several: so a master of several shards does not end by itself.
"""

import math
from typing import Final

from supervisor import clock
from supervisor.engine.worker.session import Session
from supervisor.engine.worker.wait import Wait
from supervisor.master.redis.demand import Demand
from supervisor.master.redis.leasing import Leasing

#: Mail and requests that are on their way are there after this.
_SOON_S: Final = 1.0


class IdleExit:
    def __init__(self, patience_s: float, session: Session, wakeups: Wait, demand: Demand, leasing: Leasing) -> None:
        """`patience_s`: leave after this time with nothing to do; 0: never."""
        self.is_on = patience_s > 0
        self._patience_s = patience_s
        self._session = session
        self._wakeups = wakeups
        self._demand = demand
        self._leasing = leasing
        self._idle_since_at = math.inf
        self._again_at = -math.inf

    def restart(self) -> None:
        """Something has come: count the idle time from now on anew."""
        self._idle_since_at = math.inf

    def note(self, now_at: float) -> None:
        """Look whether there is nothing to do now."""
        if not self._demand.is_at_rest:
            self._idle_since_at = math.inf
        elif self._idle_since_at == math.inf:
            self._idle_since_at = now_at

    @property
    def due_at(self) -> float:
        return max(self._idle_since_at + self._patience_s, self._again_at)

    def deadline_at(self) -> float:
        return math.inf if self._wakeups.is_ending else self.due_at

    def put_off(self, now_at: float) -> None:
        """Redis refuses something, and would refuse it again at once."""
        self._again_at = now_at + max(_SOON_S, self._patience_s)

    def retire(self) -> None:
        """Ask Redis to forget the worker, but not during a wait: a put would then wake a master that is gone."""
        if self._wakeups.waiting:
            self._wakeups.end_wait()
        else:
            self._session.retire(self._patience_s, self._on_kept)

    def _on_kept(self, why: str) -> None:
        """Redis has not forgotten the worker."""
        self._again_at = clock.monotonic() + (_SOON_S if why in ("mail", "asked") else self._patience_s)
        if why in ("work", "lost"):
            self._leasing.lease_soon()
