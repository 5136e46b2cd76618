"""A snapshot of all that is counted and measured, for metrics. Runs in master. Reads what its parts know, and of /proc
its own memory; must not ask Redis.
"""

import math
import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from supervisor import clock
from supervisor.engine.commands.queries import Depths
from supervisor.engine.worker.session import Session
from supervisor.master.model.counts import MOST_QUEUES, OTHER, OUTCOMES, Counts, Histogram
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.master.processes.scaling import Scaling
from supervisor.master.processes.zygote_manager import ZygoteManager
from supervisor.master.redis.backlog import Backlog
from supervisor.master.report.status import STATES, Status, version
from supervisor.ops.events import Events
from supervisor.ops.metrics import Distribution, Snapshot

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

#: Metrics that count how often an event of the log has happened.
_EVENTS: Final = {
    "leasehold_children_spawned_total": "child.spawned",
    "leasehold_children_reaped_total": "child.reaped",
    "leasehold_children_killed_total": "child.killed",
    "leasehold_children_recycled_total": "child.recycled",
    "leasehold_zygotes_lost_total": "zygote.lost",
    "leasehold_printed_lines_total": "job.printed",
    "leasehold_redis_errors_total": "redis.failed",
    "leasehold_redis_lost_total": "redis.lost",
    "leasehold_redis_reconnects_total": "redis.connected",
    "leasehold_warnings_total": "master.warned",
}

#: Metrics of which nothing is known unless somebody has looked of late. Of several supervisors the most is taken: what
#: one has seen long ago would hold for all.
_OF_QUEUES: Final = (
    "leasehold_queue_jobs", "leasehold_queue_oldest_seconds", "leasehold_queue_paused", "leasehold_desired_replicas",
)  # fmt: skip
QUEUE_STATES: Final = ("waiting", "ready", "running", "stalled", "scheduled", "depends", "parked")

_Samples = list[tuple[tuple[str, ...], float | Distribution]]


class MetricsSnapshot:
    def __init__(
        self,
        status: Status,
        session: Session,
        backlog: Backlog,
        slots: Slots,
        zygotes: ZygoteManager,
        scaling: Scaling,
        events: Events,
        counts: Counts,
    ) -> None:
        self._status = status
        self._session = session
        self._backlog = backlog
        self._slots = slots
        self._zygotes = zygotes
        self._scaling = scaling
        self._events = events
        self._counts = counts
        self._began_unix = clock.unix()

    def snapshot(self) -> Snapshot:
        """Plain data, for another thread to make text of; the states as `Status.tell` has them."""
        return {
            **self._jobs(),
            **{name: _one(number) for name, number in self._numbers()},
            **{name: _one(self._events.counts[event]) for name, event in _EVENTS.items()},
            **self._states(),
            **self._queues(),
            "leasehold_reloads_total": [
                ((outcome,), self._events.counts[f"reload.{outcome}"]) for outcome in ("completed", "failed")
            ],
            "leasehold_fork_seconds": [((), _spread(self._counts.fork))],
            "leasehold_job_restart_seconds": [((), _spread(self._counts.restart))],
            "leasehold_redis_exchange_seconds": [((), _spread(self._counts.exchange))],
        }

    def _jobs(self) -> dict[str, _Samples]:
        counted = list(self._counts.jobs())
        return {
            "leasehold_jobs_started_total": [((queue, klass), each.started) for queue, klass, each in counted],
            "leasehold_jobs_ended_total": [
                ((queue, klass, outcome), getattr(each, outcome))
                for queue, klass, each in counted
                for outcome in OUTCOMES
            ],
            "leasehold_jobs_died_total": list(
                _by_reason((queue, klass, each.deaths.items()) for queue, klass, each in counted)
            ),
            "leasehold_jobs_interrupted_total": list(
                _by_reason((queue, klass, each.interruptions.items()) for queue, klass, each in counted)
            ),
            "leasehold_job_wait_seconds": [((queue, klass), _spread(each.wait)) for queue, klass, each in counted],
            "leasehold_job_run_seconds": [((queue, klass), _spread(each.run)) for queue, klass, each in counted],
        }

    def _numbers(self) -> Iterator[tuple[str, float]]:
        counts, slots = self._counts, self._slots
        yield "leasehold_leases_granted_total", counts.granted
        yield "leasehold_leases_renewed_total", counts.renewed
        yield "leasehold_leases_lost_total", counts.lost
        yield "leasehold_leases_returned_total", counts.handed_back
        yield "leasehold_leases_swept_total", counts.swept
        yield "leasehold_processes", slots.processes
        yield "leasehold_processes_most", self._scaling.most
        yield "leasehold_processes_busy", slots.busy
        now_at = clock.monotonic()
        running_s = [now_at - child.sent[0].started_at for child in slots if child.sent]
        yield "leasehold_job_running_longest_seconds", max(running_s, default=0.0)
        yield "leasehold_busy_ratio", slots.busy / slots.processes
        memory = [child.meter.sampled_bytes for child in slots]
        yield "leasehold_children_memory_bytes", sum(memory)
        yield "leasehold_child_memory_largest_bytes", max(memory, default=0)
        yield "leasehold_printed_lines_dropped_total", self._zygotes.children.lines_dropped
        yield "leasehold_log_lines_dropped_total", self._events.dropped
        last_reload = self._zygotes.last_reload
        yield "leasehold_reload_refused", last_reload is not None and last_reload["outcome"] == "failed"
        yield "leasehold_redis_connected", self._session.connected
        yield "leasehold_start_time_seconds", self._began_unix
        yield "leasehold_ready", self._status.able
        yield "leasehold_paused", self._status.paused
        yield "leasehold_drain_left_seconds", self._status.left_s or 0.0
        yield "leasehold_loop_longest_turn_seconds", counts.longest_turn_s
        yield "leasehold_master_memory_bytes", _resident_bytes()
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield "leasehold_master_cpu_seconds_total", used.ru_utime + used.ru_stime

    def _queues(self) -> dict[str, _Samples]:
        backlog = self._backlog
        age_s = clock.monotonic() - backlog.looked_at
        age = {"leasehold_depths_age_seconds": _one(age_s) if age_s < math.inf else []}
        if not backlog.is_fresh:
            return {**age, **{name: [] for name in _OF_QUEUES}}
        by_queue = _bounded(backlog.depths)
        return {
            "leasehold_queue_jobs": [
                ((queue, state), getattr(depths, state)) for queue, depths in by_queue.items() for state in QUEUE_STATES
            ],
            "leasehold_queue_oldest_seconds": [((queue,), each.oldest_s or 0.0) for queue, each in by_queue.items()],
            "leasehold_queue_paused": [((queue,), each.paused) for queue, each in by_queue.items()],
            **age,
            "leasehold_desired_replicas": _one(backlog.desired),
        }

    def _states(self) -> dict[str, _Samples]:
        now = self._status.state
        states = [child.state for child in self._slots]
        return {
            "leasehold_state": [((state,), state == now) for state in STATES],
            "leasehold_children": [
                ((state.value,), states.count(state)) for state in ChildState if state is not ChildState.GONE
            ],
            "leasehold_info": [
                ((self._session.worker, self._session.namespace, version() or "", self._session.server), 1)
            ],
        }


def _one(number: float) -> _Samples:
    return [((), number)]


def _bounded(depths: Mapping[str, Depths]) -> Mapping[str, Depths]:
    """As many queues as are told apart; the others in one, with the oldest of them."""
    if len(depths) <= MOST_QUEUES:
        return depths
    first, rest = dict(list(depths.items())[:MOST_QUEUES]), list(depths.values())[MOST_QUEUES:]
    numbers = {name: sum(getattr(each, name) for each in rest) for name in (*QUEUE_STATES, "front", "entries")}
    oldest_s = max((each.oldest_s for each in rest if each.oldest_s is not None), default=None)
    paused = all(each.paused for each in rest)
    first[OTHER] = Depths(**numbers, recurring=0, paused=paused, oldest_s=oldest_s)
    return first


def _by_reason(counted: Iterable[tuple[str, str, Iterable[tuple[str, int]]]]) -> Iterator[tuple[tuple[str, ...], int]]:
    return (((queue, klass, reason), count) for queue, klass, reasons in counted for reason, count in reasons)


def _spread(histogram: Histogram) -> Distribution:
    """A copy: it goes to another thread."""
    return Distribution(histogram.bounds_s, tuple(histogram.cells), histogram.sum_s)


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
