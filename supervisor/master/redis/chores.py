"""Speaks for a whole shard: sweeps, puts jobs of cron recurrences, looks at the backlog, and logs the cancels of jobs
that no worker had.

Runs in the master. Does no I/O.
"""

import math
from collections.abc import Sequence

from supervisor.engine.commands import maintenance, queue_counts, recurrences, workers
from supervisor.engine.commands.maintenance import SWEEP_COUNT, CancelledUnheld, Swept
from supervisor.engine.commands.queue_counts import Depths
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.master.jobs.admission import Admission
from supervisor.master.model.counts import MasterCounts
from supervisor.master.redis.backlog import Backlog
from supervisor.master.redis.concerns_watch import ConcernsWatch
from supervisor.master.redis.maintenance import Duties, Maintenance
from supervisor.master.redis.speaker import TimedSpeaker
from supervisor.ops.events import Events


class Chores(TimedSpeaker):
    def __init__(
        self,
        identity: Identity,
        serving: ServedQueues,
        times: LeaseTimes,
        admission: Admission,
        maintenance: Maintenance,
        backlog: Backlog,
        concerns: ConcernsWatch,
        counts: MasterCounts,
        events: Events,
        shard: int = 0,
    ) -> None:
        self._identity = identity
        self._serving = serving
        self._times = times
        self._admission = admission
        self._maintenance = maintenance
        self._backlog = backlog
        self._concerns = concerns
        self._counts = counts
        self._events = events
        self._shard = shard
        self._has_connected = False  # since the last look

    def connected(self, now_at: float) -> None:
        self._maintenance.begin(now_at)
        self._backlog.forget_said(self._shard)
        self._has_connected = True

    def deadline_at(self) -> float:
        if not self._admission.is_open:
            return math.inf
        return min(self._maintenance.due_at, self._backlog.deadline_at(self._shard))

    def parts(self, now_at: float) -> Sequence[Part]:
        if not self._admission.is_open:
            return ()
        due = self._maintenance.due(now_at)
        parts = self._maintain(due) if due is not None else []
        if self._has_connected or (due is not None and due.sweep):
            self._has_connected = False
            parts.append(Part(maintenance.unheard(), self._on_unheard))
        if self._backlog.take_look(now_at, due is not None and due.sweep, self._shard):
            parts += self._look(now_at)
        desired = self._backlog.take_to_say() if not self._shard else None
        if desired is not None:
            parts.append(Part(workers.desire(*desired)))
        return parts

    def _maintain(self, due: Duties) -> list[Part]:
        parts = []
        if due.sweep:
            self._times.read_again()
            sweep = maintenance.sweep(
                SWEEP_COUNT, takeover=self._times.may_take_over, offset=due.offset, worker=self._identity.name,
                queues=self._serving.literals,
            )  # fmt: skip
            parts.append(Part(sweep, self._on_swept))
        return parts + [Part(recurrences.spawn(*spawn)) for spawn in due.spawns]

    def _on_swept(self, swept: Swept) -> None:
        self._counts.swept += swept.taken
        self._maintenance.on_swept(swept)

    def _on_unheard(self, cancelled: Sequence[CancelledUnheld]) -> None:
        for job in cancelled:
            self._events.emit("job.cancelled", jid=job.jid, klass=job.klass, queue=job.queue, by=job.by)

    def _look(self, now_at: float) -> list[Part]:
        # The answer about the queues is the last, because others wait for it.
        parts = list(self._concerns.parts(now_at))
        if self._serving.names:
            parts.append(Part(queue_counts.depths(self._serving.names), self._on_depths))
        else:
            self._on_depths({})  # the globs match nothing yet
        return parts

    def _on_depths(self, depths: dict[str, Depths]) -> None:
        self._backlog.on_looked(depths, self._identity.name, self._shard)
