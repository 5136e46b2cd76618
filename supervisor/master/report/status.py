"""The status of the supervisor: one plain object for `leasehold status`, `top` and HTTP. Runs in the master.

Reads what the master's parts know, and looks at no file and no process.
"""

from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import Any, Final

from supervisor import clock
from supervisor.master.jobs.admission import Admission
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.counts import MasterCounts
from supervisor.master.model.outcome_log import attempt_of
from supervisor.master.model.recent_failures import RecentFailures
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.master.processes.scaling import Scaling
from supervisor.master.processes.zygotes import Zygotes
from supervisor.master.redis.backlog import Backlog
from supervisor.master.redis.sides import Sides
from supervisor.master.report.state import State
from supervisor.master.requests.stack_dump import describe
from supervisor.ops.events import Events

#: Further children are only counted, because an answer has its limits.
_MOST_CHILDREN: Final = 1000
#: The state of a busy child whose handler was interrupted, and may clean up.
_STOPPING: Final = "stopping"


class JobStatus:
    """The master's counts and measurements, the last failures, and the number of jobs that wait."""

    def __init__(self, counts: MasterCounts, failures: RecentFailures, backlog: Backlog, events: Events) -> None:
        self._counts = counts
        self._failures = failures
        self._backlog = backlog
        self._events = events

    @property
    def redis(self) -> dict[str, Any]:
        """How long the recent exchanges with Redis have taken, how often the link was made anew, and its last loss."""
        recent_s, lost = self._counts.recent_exchange_s, self._counts.link_lost
        return {
            "exchange_ms": None if recent_s is None else round(recent_s * 1000, 3),
            "reconnects": self._events.counts["redis.connected"],
            "lost": lost and {"ago_s": _ago_s(lost[0]), "message": lost[1]},
        }

    def log(self, children: Iterable[ChildHandle]) -> dict[str, Any]:
        """How many lines of the log nobody has read, and how many printed ones were more than the log takes, and when
        that was last.
        """
        printed = self._counts.lines_dropped + sum(child.output.dropped for child in children)
        unread_at, last = self._events.dropped_at, self._counts.lines_dropped_last
        return {
            "dropped": self._events.dropped,
            "dropped_ago_s": None if unread_at is None else _ago_s(unread_at),
            "printed_dropped": printed,
            "printed_last": last and {"ago_s": _ago_s(last[0]), "jid": last[1], "klass": last[2]},
        }

    def status(self) -> dict[str, Any]:
        return {
            "longest_turn_s": round(self._counts.longest_turn_s, 3),
            "counts": self._counts.ended,
            "deaths": self._counts.deaths,
            "autoscaling": self._backlog.status(),
            "ends": self._failures.status(),
        }


class Status:
    def __init__(
        self,
        state: State,
        sides: Sides,
        slots: Slots,
        zygotes: Zygotes,
        scaling: Scaling,
        admission: Admission,
        jobs: JobStatus,
    ) -> None:
        self._state = state
        self._sides = sides
        self._slots = slots
        self._zygotes = zygotes
        self._scaling = scaling
        self._admission = admission
        self._jobs = jobs
        self._began_at = clock.monotonic()

    def status(self) -> dict[str, Any]:
        """Return plain JSON."""
        state, sides, session = self._state, self._sides, self._sides.first.session
        children = list(self._slots)
        return {
            "worker": session.worker,
            "version": version(),
            "state": state.word,
            "left_s": state.left_s,
            "uptime_s": round(clock.monotonic() - self._began_at, 3),
            "paused": state.is_paused,
            "reloading": state.is_reloading,
            "processes": self._scaling.status(),
            "busy": self._slots.busy,
            "idle": sum(1 for child in children if child.state is ChildState.IDLE),
            "children": [_child_status(child) for child in islice(children, _MOST_CHILDREN)],
            "children_left_out": max(0, len(children) - _MOST_CHILDREN),
            "admission": self._admission.status(),
            "zygotes": self._zygotes.status(),
            "reload": self._zygotes.last_reload,
            "queues": list(session.serving.patterns),
            "order": session.serving.order,
            "redis": {
                "connected": sides.connected,
                "shards": len(sides),
                "shards_away": sides.away,
                "url": session.url,
                "server": session.server,
                **self._jobs.redis,
            },
            "log": self._jobs.log(children),
            "sandbox": dict(self._zygotes.sandbox),
            "sandbox_levels": self._zygotes.sandbox_levels,
            **self._jobs.status(),
        }


def _ago_s(at: float) -> float:
    return round(clock.monotonic() - at, 3)


def _child_status(child: ChildHandle) -> dict[str, Any]:
    stop_reason = child.why_killed or child.stop_reason
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
        "jobs": len(child.runs),
        "ahead": len(child.sent) - len(child.runs),
        "ends": child.retire_reason,
    }


@cache
def version() -> str | None:
    from importlib import metadata  # here, because its import of a mail parser would slow the start of each supervisor

    try:
        return metadata.version("leasehold")
    except metadata.PackageNotFoundError:  # run from its source
        return None
