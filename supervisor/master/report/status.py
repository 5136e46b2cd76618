"""What the master says of itself to whoever asks: one plain object. Runs in master. Reads what its parts know, and
nothing else: no file, no process is looked at.
"""

from functools import cache
from itertools import islice
from typing import Any, Final

from supervisor import clock
from supervisor.engine.worker.session import Session
from supervisor.master.drain import Drain
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.counts import Counts
from supervisor.master.model.outcome_log import attempt_of
from supervisor.master.model.recent_failures import RecentFailures
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState, Phase
from supervisor.master.processes.scaling import Scaling
from supervisor.master.processes.zygote_manager import ZygoteManager
from supervisor.master.redis.backlog import Backlog
from supervisor.master.redis.demand import Demand
from supervisor.master.requests.stack_dump import describe

#: More children than these are counted only: an answer has its limits.
_MOST_CHILDREN: Final = 1000
#: In which it can lease.
_LEASING: Final = ("serving", "reloading")
#: The words for how it is, while it serves and on its way down.
STATES: Final = (
    "booting", "redis-away", "paused", *_LEASING,
    *(phase.value for phase in Phase if phase not in (Phase.SERVING, Phase.STOPPED)),
)  # fmt: skip


class Status:
    def __init__(
        self,
        drain: Drain,
        session: Session,
        slots: Slots,
        zygotes: ZygoteManager,
        scaling: Scaling,
        demand: Demand,
        failures: RecentFailures,
        backlog: Backlog,
        counts: Counts,
    ) -> None:
        self._drain = drain
        self._session = session
        self._slots = slots
        self._zygotes = zygotes
        self._scaling = scaling
        self._demand = demand
        self._failures = failures
        self._backlog = backlog
        self._counts = counts
        self._began_at = clock.monotonic()

    @property
    def state(self) -> str:
        """The most telling word for how it is."""
        phase = self._drain.phase
        if phase is not Phase.SERVING:
            return str(phase.value)
        if not self._zygotes.ready:
            return "booting"
        if not self._session.connected:
            return "redis-away"
        if self.paused:
            return "paused"
        return "reloading" if self._zygotes.reloading else "serving"

    @property
    def words(self) -> str:
        """How it is, for people."""
        state, left_s = self.state, self.left_s
        words = f"{self._slots.busy}/{self._slots.processes} busy"
        if state != "serving":
            words += f", {state}"
        return words if left_s is None else f"{words}, {left_s:.0f} s left"

    @property
    def able(self) -> bool:
        """Whether it can lease jobs."""
        return self.state in _LEASING

    @property
    def paused(self) -> bool:
        return self._demand.paused

    @property
    def left_s(self) -> float | None:
        """How long its drain takes yet, at the most; None: it does not drain."""
        schedule = self._drain.schedule
        return schedule.left_s(clock.monotonic()) if schedule is not None else None

    def tell(self) -> dict[str, Any]:
        """All of it, as plain JSON."""
        session = self._session
        children = list(self._slots)
        return {
            "worker": session.worker,
            "version": version(),
            "state": self.state,
            "left_s": self.left_s,
            "uptime_s": round(clock.monotonic() - self._began_at, 3),
            "paused": self.paused,
            "reloading": self._zygotes.reloading,
            "processes": self._scaling.status(),
            "busy": self._slots.busy,
            "idle": sum(1 for child in children if child.state is ChildState.IDLE),
            "children": [_told(child) for child in islice(children, _MOST_CHILDREN)],
            "children_left_out": max(0, len(children) - _MOST_CHILDREN),
            "zygotes": self._zygotes.zygotes_status(),
            "reload": self._zygotes.last_reload,
            "queues": list(session.serving.patterns),
            "order": session.serving.order,
            "redis": {"connected": session.connected, "url": session.url, "server": session.server},
            "sandbox": dict(self._zygotes.sandbox),
            "counts": self._counts.ended,
            "deaths": self._counts.deaths,
            "autoscaling": self._backlog.status(),
            "ends": self._failures.status(),
        }


#: Of a busy child whose handler was interrupted, and may clean up.
_STOPPING: Final = "stopping"


def _told(child: ChildHandle) -> dict[str, Any]:
    stop_reason = child.why_killed or child.notices.reason
    kill_at = child.end_plan.kill_at
    kill_in_s = None if kill_at is None else round(max(0.0, kill_at - clock.monotonic()), 3)
    return {
        **describe(child),
        "state": _STOPPING if stop_reason and child.state is ChildState.BUSY else child.state.value,
        "stopping": stop_reason,
        "kill_in_s": kill_in_s,
        "attempt": attempt_of(child.running.lease) if child.running else None,
        "memory_bytes": child.meter.sampled_bytes,
        "zygote": child.zygote,
        "ahead": max(0, len(child.sent) - 1),
        "ends": child.retire_reason,
    }


@cache
def version() -> str | None:
    from importlib import metadata  # here, for it loads a parser of mail at the start of every supervisor

    try:
        return metadata.version("leasehold")
    except metadata.PackageNotFoundError:  # run from its source
        return None
