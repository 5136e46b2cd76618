"""Takes a snapshot of all numbers of the supervisor, for metrics. Runs in the master.

Each class here knows the numbers of one part. None asks Redis, and of /proc only the master's own memory is read.
"""

import math
import os
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Final, Protocol

from supervisor import clock
from supervisor.engine.commands.concerns import ServerMemory
from supervisor.engine.commands.queue_counts import Depths
from supervisor.master.model.counts import MOST_QUEUES, OTHER, OUTCOMES, Histogram, MasterCounts
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.master.processes.scaling import Scaling
from supervisor.master.processes.zygotes import Zygotes
from supervisor.master.redis.backlog import Backlog
from supervisor.master.redis.concerns_watch import together
from supervisor.master.redis.sides import Sides
from supervisor.master.report.state import STATES, State
from supervisor.master.report.status import version
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

#: Metrics of queues. They have no sample without fresh figures: of several supervisors a reader takes the largest
#: number, so one that has looked long ago would speak for all.
_OF_QUEUES: Final = (
    "leasehold_queue_jobs", "leasehold_queue_oldest_seconds", "leasehold_queue_old_depends", "leasehold_queue_paused",
    "leasehold_desired_replicas",
)  # fmt: skip
QUEUE_STATES: Final = ("waiting", "ready", "running", "stalled", "scheduled", "depends", "parked")

#: Metrics of the namespace as a whole. They have no sample without fresh findings, for the same reason.
_OF_CONCERNS: Final = (
    "leasehold_queue_unserved", "leasehold_queue_parked_oldest_seconds", "leasehold_queue_recurrences_late",
    "leasehold_queue_recurrences_failed", "leasehold_failed_jobs", "leasehold_limit_closed",
    "leasehold_batches_running", "leasehold_batches_open_long",
)  # fmt: skip
_OF_SERVER: Final = (
    "leasehold_redis_memory_bytes", "leasehold_redis_memory_most_bytes", "leasehold_redis_evicted_keys_total",
)  # fmt: skip

_Samples = list[tuple[tuple[str, ...], float | Distribution]]


class Source(Protocol):
    def samples(self) -> Mapping[str, _Samples]:
        """Return the samples of some metrics, by name. Nothing in them changes later."""


class MetricsSnapshot:
    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def take(self) -> Snapshot:
        """Return plain data, for another thread to write as text."""
        return {name: samples for source in self._sources for name, samples in source.samples().items()}


class CountMetrics:
    """How jobs have ended, how many leases there were, and how long things took."""

    def __init__(self, counts: MasterCounts) -> None:
        self._counts = counts

    def samples(self) -> Mapping[str, _Samples]:
        counts = self._counts
        return {
            **self._jobs(),
            "leasehold_leases_granted_total": _one(counts.granted),
            "leasehold_leases_renewed_total": _one(counts.renewed),
            "leasehold_leases_lost_total": _one(counts.lost),
            "leasehold_leases_returned_total": _one(counts.handed_back),
            "leasehold_leases_swept_total": _one(counts.swept),
            "leasehold_loop_longest_turn_seconds": _one(counts.longest_turn_s),
            "leasehold_fork_seconds": [((), _spread(counts.fork))],
            "leasehold_job_restart_seconds": [((), _spread(counts.restart))],
            "leasehold_redis_exchange_seconds": [((), _spread(counts.exchange))],
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


class EventMetrics:
    """How often events have happened."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def samples(self) -> Mapping[str, _Samples]:
        counts = self._events.counts
        return {
            **{name: _one(counts[event]) for name, event in _EVENTS.items()},
            "leasehold_reloads_total": [
                ((outcome,), counts[f"reload.{outcome}"]) for outcome in ("completed", "failed")
            ],
            "leasehold_log_lines_dropped_total": _one(self._events.dropped),
        }


class ProcessMetrics:
    """The children, what runs in them, and the last reload."""

    def __init__(self, slots: Slots, zygotes: Zygotes, scaling: Scaling, counts: MasterCounts) -> None:
        self._slots = slots
        self._zygotes = zygotes
        self._scaling = scaling
        self._counts = counts

    def samples(self) -> Mapping[str, _Samples]:
        slots, now_at = self._slots, clock.monotonic()
        states = [child.state for child in slots]
        running_s = [now_at - child.sent[0].started_at for child in slots if child.sent]
        memory = [child.meter.sampled_bytes for child in slots]
        lines_dropped = self._counts.lines_dropped + sum(child.output.dropped for child in slots)
        last_reload = self._zygotes.last_reload
        return {
            "leasehold_processes": _one(slots.processes),
            "leasehold_processes_most": _one(self._scaling.most),
            "leasehold_processes_busy": _one(slots.busy),
            "leasehold_busy_ratio": _one(slots.busy / slots.processes),
            "leasehold_children": [
                ((state.value,), states.count(state)) for state in ChildState if state is not ChildState.GONE
            ],
            "leasehold_job_running_longest_seconds": _one(max(running_s, default=0.0)),
            "leasehold_children_memory_bytes": _one(sum(memory)),
            "leasehold_child_memory_largest_bytes": _one(max(memory, default=0)),
            "leasehold_printed_lines_dropped_total": _one(lines_dropped),
            "leasehold_reload_refused": _one(last_reload is not None and last_reload["outcome"] == "failed"),
        }


class MasterMetrics:
    """The master's state and its own use of the machine."""

    def __init__(self, state: State, sides: Sides) -> None:
        self._state = state
        self._sides = sides
        self._began_unix = clock.unix()

    def samples(self) -> Mapping[str, _Samples]:
        state, session, word = self._state, self._sides.first.session, self._state.word
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "leasehold_state": [((name,), name == word) for name in STATES],
            "leasehold_ready": _one(state.can_lease),
            "leasehold_paused": _one(state.is_paused),
            "leasehold_drain_left_seconds": _one(state.left_s or 0.0),
            "leasehold_redis_connected": _one(self._sides.connected),
            "leasehold_start_time_seconds": _one(self._began_unix),
            "leasehold_master_memory_bytes": _one(_resident_bytes()),
            "leasehold_master_cpu_seconds_total": _one(used.ru_utime + used.ru_stime),
            "leasehold_info": [((session.worker, session.namespace, version() or "", session.server), 1)],
        }


class QueueMetrics:
    """How many jobs each queue has, and for how long the oldest one has waited."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog

    def samples(self) -> Mapping[str, _Samples]:
        backlog = self._backlog
        age_s = clock.monotonic() - backlog.looked_at
        age = {"leasehold_depths_age_seconds": _one(age_s) if age_s < math.inf else []}
        if not backlog.is_fresh:
            return {**age, **{name: [] for name in _OF_QUEUES}}
        by_queue = _bounded(backlog.depths)
        return {
            **age,
            "leasehold_queue_jobs": [
                ((queue, state), getattr(depths, state)) for queue, depths in by_queue.items() for state in QUEUE_STATES
            ],
            "leasehold_queue_oldest_seconds": [((queue,), each.oldest_s or 0.0) for queue, each in by_queue.items()],
            "leasehold_queue_old_depends": [((queue,), each.old_depends) for queue, each in by_queue.items()],
            "leasehold_queue_paused": [((queue,), each.paused) for queue, each in by_queue.items()],
            "leasehold_desired_replicas": [] if backlog.desired is None else _one(backlog.desired),
        }


class ConcernMetrics:
    """The concerns of the namespace, of all its shards together. Queues without concern have no sample."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides

    def samples(self) -> Mapping[str, _Samples]:
        found = together([side.concerns.current for side in self._sides])
        if found is None:
            return {name: [] for name in (*_OF_CONCERNS, *_OF_SERVER)}
        queues = list(found.queues.items())[:MOST_QUEUES]
        other = found.failed - sum(found.groups.values())
        groups = {**found.groups, **({OTHER: found.groups.get(OTHER, 0) + other} if other > 0 else {})}
        return {
            "leasehold_queue_unserved": [((queue,), 1) for queue, each in queues if each.unserved],
            "leasehold_queue_parked_oldest_seconds": [
                ((queue,), each.parked_s) for queue, each in queues if each.parked_s is not None
            ],
            "leasehold_queue_recurrences_late": [((queue,), each.late) for queue, each in queues if each.late],
            "leasehold_queue_recurrences_failed": [
                ((queue,), each.failed_recurrences) for queue, each in queues if each.failed_recurrences
            ],
            "leasehold_failed_jobs": [((group,), count) for group, count in groups.items()],
            "leasehold_limit_closed": [((limit,), 1) for limit in found.closed_limits],
            "leasehold_batches_running": _one(found.running_batches),
            "leasehold_batches_open_long": _one(found.open_batches),
            **_of_server(found.memory),
        }


def _of_server(memory: ServerMemory | None) -> Mapping[str, _Samples]:
    if memory is None:
        return {name: [] for name in _OF_SERVER}
    return {name: _one(number) for name, number in zip(_OF_SERVER, astuple(memory), strict=True)}


def _one(number: float) -> _Samples:
    return [((), number)]


def _bounded(depths: Mapping[str, Depths]) -> Mapping[str, Depths]:
    """Return the first MOST_QUEUES queues; the others are summed up as one, with the age of their oldest job."""
    if len(depths) <= MOST_QUEUES:
        return depths
    first, rest = dict(list(depths.items())[:MOST_QUEUES]), list(depths.values())[MOST_QUEUES:]
    numbers = {
        name: sum(getattr(each, name) for each in rest) for name in (*QUEUE_STATES, "front", "entries", "old_depends")
    }
    oldest_s = max((each.oldest_s for each in rest if each.oldest_s is not None), default=None)
    paused = all(each.paused for each in rest)
    first[OTHER] = Depths(**numbers, recurring=0, paused=paused, oldest_s=oldest_s)
    return first


def _by_reason(counted: Iterable[tuple[str, str, Iterable[tuple[str, int]]]]) -> Iterator[tuple[tuple[str, ...], int]]:
    return (((queue, klass, reason), count) for queue, klass, reasons in counted for reason, count in reasons)


def _spread(histogram: Histogram) -> Distribution:
    """Return a copy, because it goes to another thread."""
    return Distribution(histogram.bounds_s, tuple(histogram.cells), histogram.sum_s)


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
