"""The table of Prometheus metrics, and their text. Runs in the master, in the HTTP thread.

Owns the names. The loop makes the snapshot as plain data (`master/report/metrics_snapshot.py`). Must not import
prometheus-client (extra `metrics`) before the first scrape: a supervisor without one need not pay for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family


class Distribution(NamedTuple):
    """A histogram of durations. `cells` has one more than `bounds_s`, for all above the last bound."""

    bounds_s: Sequence[float]
    cells: Sequence[int]
    sum_s: float


class Metric(NamedTuple):
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


#: name -> label values and number. A name without samples is shown without samples.
Snapshot = Mapping[str, Sequence[tuple[tuple[str, ...], float | Distribution]]]

_JOB: Final = ("queue", "klass")

#: All metrics, since the supervisor's start. Names, types and labels are public.
METRICS: Final[dict[str, Metric]] = {
    # jobs
    "leasehold_jobs_started_total": Metric("counter", _JOB, "Runs of jobs that have begun here."),
    "leasehold_jobs_ended_total": Metric(
        "counter", (*_JOB, "outcome"),
        "Runs that have ended here: completed, retried, failed, died, released (interrupted), returned (a persistent"
        " job), suspended (it waits for a signal or a time), unknown (no handler), misfit (its data are for another"
        " release), stale (the lease was lost meanwhile).",
    ),
    "leasehold_jobs_died_total": Metric(
        "counter", (*_JOB, "reason"), "Runs whose child died, by reason: a signal, exit-N, timeout, memory, oom, …",
    ),
    "leasehold_jobs_interrupted_total": Metric(
        "counter", (*_JOB, "reason"), "Runs that were released, by reason: drain, reload, scaled, handler, …",
    ),
    "leasehold_job_wait_seconds": Metric("histogram", _JOB, "From when a job could start to its lease."),
    "leasehold_job_run_seconds": Metric("histogram", _JOB, "How long the runs have taken that have ended."),
    "leasehold_job_running_longest_seconds": Metric(
        "gauge", (), "For how long the job has been running here that runs longest; 0: none does.",
    ),
    "leasehold_job_restart_seconds": Metric(
        "histogram", (), "From the kernel's report of a child's death to the start of its job here anew.",
    ),
    # leases
    "leasehold_leases_granted_total": Metric("counter", (), "Leases that were granted to this supervisor."),
    "leasehold_leases_renewed_total": Metric("counter", (), "Renewals that were accepted."),
    "leasehold_leases_lost_total": Metric("counter", (), "Leases that were lost: cancelled, moved, taken over."),
    "leasehold_leases_returned_total": Metric("counter", (), "Leases that were handed back, never started."),
    "leasehold_leases_swept_total": Metric("counter", (), "Jobs that sweeps of ours took from lost supervisors."),
    # children
    "leasehold_processes": Metric("gauge", (), "How many jobs may run at once now."),
    "leasehold_processes_most": Metric("gauge", (), "And at most, where that follows the load."),
    "leasehold_processes_busy": Metric("gauge", (), "How many run a job."),
    "leasehold_busy_ratio": Metric("gauge", (), "Busy processes, of those that may be."),
    "leasehold_children": Metric("gauge", ("state",), "Children: spawning, idle, busy, leaving, doomed."),
    "leasehold_children_spawned_total": Metric("counter", (), "Children that were forked."),
    "leasehold_children_reaped_total": Metric("counter", (), "Children that have ended, however."),
    "leasehold_children_killed_total": Metric("counter", (), "Children that this supervisor has killed."),
    "leasehold_children_recycled_total": Metric("counter", (), "Children that were replaced as they were worn out."),
    "leasehold_fork_seconds": Metric("histogram", (), "From asking for a child until it is ready."),
    "leasehold_children_memory_bytes": Metric("gauge", (), "Private memory of all jobs' processes, by the last looks."),
    "leasehold_child_memory_largest_bytes": Metric("gauge", (), "And of the largest child's."),
    "leasehold_zygotes_lost_total": Metric("counter", (), "Zygotes that have ended by themselves."),
    "leasehold_reloads_total": Metric("counter", ("outcome",), "Reloads of the handlers: completed, failed."),
    "leasehold_reload_refused": Metric("gauge", (), "1 while the last reload is one that failed."),
    "leasehold_printed_lines_total": Metric("counter", (), "Lines that children have printed and the log has."),
    "leasehold_printed_lines_dropped_total": Metric("counter", (), "Lines that were more than the log takes a second."),
    # Redis
    "leasehold_redis_connected": Metric("gauge", (), "1 while Redis is there, by its last word."),
    "leasehold_redis_exchange_seconds": Metric("histogram", (), "How long exchanges with Redis have taken."),
    "leasehold_redis_errors_total": Metric("counter", (), "What Redis has refused."),
    "leasehold_redis_lost_total": Metric("counter", (), "Connections that were lost, or could not be made."),
    "leasehold_redis_reconnects_total": Metric("counter", (), "Connections that were made anew."),
    # queues: of the namespace, so each supervisor shows the same
    "leasehold_queue_jobs": Metric(
        "gauge", ("queue", "state"),
        "Jobs of the queues that are served, at all supervisors: waiting, ready (of those waiting, what nothing holds"
        " back), running, stalled, scheduled, depends, parked. Said alike by all: max, not sum.",
    ),
    "leasehold_queue_oldest_seconds": Metric(
        "gauge", ("queue",), "For how long the oldest job waits that could start; 0: none does. max, not sum.",
    ),
    "leasehold_queue_old_depends": Metric(
        "gauge", ("queue",), "Jobs that have waited for other jobs for more than a day. max, not sum.",
    ),
    "leasehold_queue_paused": Metric("gauge", ("queue",), "1 while nothing new is leased from it. max, not sum."),
    "leasehold_queue_unserved": Metric(
        "gauge", ("queue",), "1 for a queue that has jobs to lease, and that no live supervisor serves. max, not sum.",
    ),
    "leasehold_queue_parked_oldest_seconds": Metric(
        "gauge", ("queue",), "For how long its first parked job has waited for room in a limit. max, not sum.",
    ),
    "leasehold_queue_recurrences_late": Metric(
        "gauge", ("queue",), "Its recurrences whose time is more than a minute ago. max, not sum.",
    ),
    "leasehold_queue_recurrences_failed": Metric(
        "gauge", ("queue",), "Its recurrences, of the next 50, whose last job has failed for good. max, not sum.",
    ),
    "leasehold_failed_jobs": Metric(
        "gauge", ("group",),
        "Jobs that have failed for good and still lie there, of the 50 groups that changed last, and of others. max.",
    ),
    "leasehold_limit_closed": Metric("gauge", ("limit",), "1 for a limit of 0 that holds jobs up. max, not sum."),
    "leasehold_batches_running": Metric("gauge", (), "Batches that have not ended. max, not sum."),
    "leasehold_batches_open_long": Metric(
        "gauge", (), "Batches whose block was not left for an hour, so that nothing calls back. max, not sum.",
    ),
    "leasehold_redis_memory_bytes": Metric("gauge", (), "What the server of the namespace uses. max, not sum."),
    "leasehold_redis_memory_most_bytes": Metric("gauge", (), "Its maxmemory; 0: it has none. max, not sum."),
    "leasehold_redis_evicted_keys_total": Metric(
        "counter", (), "Keys that it has evicted since it began, ours or not. max, not sum.",
    ),
    "leasehold_depths_age_seconds": Metric(
        "gauge", (), "How old the figures of the queues are; beyond 30 s they are not shown.",
    ),
    "leasehold_desired_replicas": Metric(
        "gauge", (), "How many supervisors like this one the work is for: running and ready jobs by its room.",
    ),
    # the supervisor
    "leasehold_info": Metric("gauge", ("worker", "namespace", "version", "server"), "Which one it is: always 1."),
    "leasehold_start_time_seconds": Metric("gauge", (), "When it has begun, in unix seconds."),
    "leasehold_state": Metric("gauge", ("state",), "1 for the state in which it is, 0 for all others."),
    "leasehold_ready": Metric("gauge", (), "1 while it is able to lease, as /readyz."),
    "leasehold_paused": Metric("gauge", (), "1 while it is paused."),
    "leasehold_drain_left_seconds": Metric("gauge", (), "How long its drain takes yet, at the most; else 0."),
    "leasehold_loop_longest_turn_seconds": Metric("gauge", (), "The longest turn of its loop in the last minute."),
    "leasehold_master_memory_bytes": Metric("gauge", (), "Resident memory of the master."),
    "leasehold_master_cpu_seconds_total": Metric("counter", (), "Processor time of the master."),
    "leasehold_warnings_total": Metric("counter", (), "Warnings in the log: master.warned."),
    "leasehold_log_lines_dropped_total": Metric("counter", (), "Lines of the log that nobody has read."),
}  # fmt: skip


def render(snapshot: Snapshot, accept: str = "") -> tuple[str, bytes]:
    """Return the content type and the text, in OpenMetrics format if `accept` asks for it.

    ImportError without the extra `metrics`.
    """
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return content_type, encode(_Collected(snapshot))


class _Collected:
    """A snapshot in the form of prometheus-client's registry."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> "Iterator[Family]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for name, metric in METRICS.items():
            samples = self._snapshot.get(name, ())
            if metric.kind == "histogram":
                spread = HistogramMetricFamily(name, metric.help, labels=metric.labels)
                for labels, value in samples:
                    assert isinstance(value, Distribution)
                    spread.add_metric(labels, _buckets(value), value.sum_s)
                yield spread
                continue
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            numbers = family(name, metric.help, labels=metric.labels)
            for labels, value in samples:
                assert not isinstance(value, Distribution)
                numbers.add_metric(labels, value)
            yield numbers


def _buckets(spread: Distribution) -> list[tuple[str, float]]:
    """Return Prometheus' cumulative buckets."""
    return [
        (str(bound), count)
        for bound, count in zip((*map(float, spread.bounds_s), "+Inf"), accumulate(spread.cells), strict=True)
    ]
