"""The data of `leasehold top`: rows, their order, rates, and what is wrong, from snapshots. Runs in the command's
process.

Must not do I/O, nor know colours and columns: view.py does.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from supervisor.cli.lib.served import is_present, servers
from supervisor.cli.lib.shown import by_words, work_of

if TYPE_CHECKING:
    from supervisor.engine.commands.batches import BatchRecord
    from supervisor.engine.commands.concerns import Concerns
    from supervisor.engine.commands.queue_counts import Depths
    from supervisor.engine.commands.statistics import Stats
    from supervisor.engine.commands.workers import WorkerInfo

Status = Mapping[str, Any]

#: Window of all rates. A shorter one jumps; a longer one shows a standstill late.
_OVER_S: Final = 5.0
#: Jobs that have waited for this long are marked.
LATE_S: Final = 60.0
#: Deaths and failures are marked for this long.
_RECENT_S: Final = 60.0
#: Evictions of keys are told for this long.
_EVICTED_S: Final = 900.0
#: Rates that the small diagram remembers.
_MOST_RATES: Final = 120
#: No valid count, size or time is as large.
_TOO_MUCH: Final = 1e15


class Pane(Enum):
    """The parts of the screen that can be chosen, from top to bottom."""

    QUEUES = "queues"
    BATCHES = "batches"  # only while there are some
    SUPERVISORS = "supervisors"
    CHILDREN = "children"
    ENDS = "ends"


class Tone(Enum):
    """The meaning of a value for its reader."""

    PLAIN = "plain"
    QUIET = "quiet"
    NOTICE = "notice"  # needs attention
    ALARM = "alarm"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Redis and all supervisors at one time. `stats` has the shown queues; `status` is None without an answer.

    `batches`: the first ones. `concerns`: of the last seconds. `asked`: supervisors whose answers may still come.
    """

    at: float
    unix: float
    queues: "Mapping[str, Depths]"
    stats: "Mapping[str, Stats]"
    failed: Mapping[str, int]
    workers: "Sequence[WorkerInfo]"
    status: Mapping[str, Status | None]
    batches: "Sequence[BatchRecord]" = ()
    concerns: "Concerns | None" = None
    asked: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class NoSnapshot:
    """Why there is no snapshot: Redis is away or refuses."""

    why: str
    is_away: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a pane: its key, its values by column, and their tones."""

    key: str
    values: Mapping[str, Any]
    tones: Mapping[str, Tone] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Totals:
    """The figures of all supervisors together. Rates are None until there are two snapshots."""

    supervisors: int
    silent: int
    busy: int
    processes: int
    completed_per_s: float | None
    failed_per_s: float | None
    died_per_s: float | None
    waiting: int
    stalled: int
    groups: Sequence[tuple[str, int]]
    deaths: Sequence[tuple[str, int]]
    oldest_s: float | None
    rates: Sequence[float]
    server: str | None
    exchange_ms: float | None  # of the supervisor for which Redis is slowest


class Rate:
    """The growth rate of a counter. A counter that falls has restarted, with a day or a process."""

    __slots__ = ("_seen", "grew_at")

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()
        self.grew_at: float | None = None

    def add(self, at: float, value: float) -> None:
        seen = self._seen
        if seen and value < seen[-1][1]:
            seen.clear()
        if seen and value > seen[-1][1]:
            self.grew_at = at
        seen.append((at, value))
        while len(seen) > 2 and seen[1][0] <= at - _OVER_S:
            seen.popleft()

    @property
    def per_s(self) -> float | None:
        if len(self._seen) < 2:
            return None
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else None

    def grew_within(self, seconds: float, now_at: float) -> bool:
        return self.grew_at is not None and now_at - self.grew_at < seconds


class _QueueRates:
    """Rates of one queue, from its last snapshots."""

    def __init__(self) -> None:
        self.completed, self.failures, self.total = Rate(), Rate(), Rate()
        self._waits, self._waited_s = Rate(), Rate()
        self._ran_s = Rate()
        self.failed = 0

    def take(self, at: float, counts: "Depths", stats: "Stats | None") -> None:
        if stats is None:  # the queue was not shown, and its old values say nothing about now
            return
        self.completed.add(at, stats.run.count)
        self.failures.add(at, stats.failures)
        # All jobs ever put, except cancelled ones: each is still there or has ended.
        self.total.add(at, counts.total + stats.run.count + stats.failures)
        self._waits.add(at, stats.wait.count)
        self._waited_s.add(at, stats.wait.count * stats.wait.mean)
        self._ran_s.add(at, stats.run.count * stats.run.mean)
        self.failed = stats.failed

    @property
    def put_per_s(self) -> float | None:
        return self.total.per_s

    @property
    def wait_s(self) -> float | None:
        return _mean(self._waited_s, self._waits)

    @property
    def run_s(self) -> float | None:
        return _mean(self._ran_s, self.completed)


class _Supervisor:
    """The last status of a supervisor, and its time."""

    def __init__(self, first_at: float) -> None:
        self.status: Status | None = None
        self.status_at = first_at
        self.silent = False
        self.state_since_at = first_at
        self.completed, self.failed, self.died = Rate(), Rate(), Rate()

    def take(self, at: float, status: Status | None) -> None:
        self.silent = status is None
        if status is None:
            return
        if self.status is None or self.status["state"] != status["state"]:
            self.state_since_at = at
        self.status, self.status_at = status, at
        counts = status["counts"]
        for name in ("completed", "failed", "died"):
            getattr(self, name).add(at, number(counts.get(name)))

    def silent_s(self, now_at: float) -> float | None:
        return max(0.0, now_at - self.status_at) if self.silent else None


class Model:
    """All that is shown, from the snapshots so far."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.lost_since_at: float | None = None
        self.why_lost = NoSnapshot("", is_away=True)
        self._queues: dict[str, _QueueRates] = {}
        self._supervisors: dict[str, _Supervisor] = {}
        self._groups: dict[str, Rate] = {}
        self._evicted = Rate()  # keys, by the server
        self._rates: deque[float] = deque(maxlen=_MOST_RATES)
        self._rows: dict[tuple[Pane, str | None, str], list[Row]] = {}  # of this snapshot, made on demand

    def take(self, snapshot: Snapshot) -> None:
        """Add a snapshot. Snapshots come in order."""
        self._rows = {}
        self.snapshot, self.lost_since_at = snapshot, None
        self._queues = {name: self._queues.get(name) or _QueueRates() for name in snapshot.queues}
        for name, counts in snapshot.queues.items():
            self._queues[name].take(snapshot.at, counts, snapshot.stats.get(name))
        named = {*snapshot.status, *snapshot.asked}
        self._supervisors = {name: known for name, known in self._supervisors.items() if name in named}
        self.hear(snapshot.at, snapshot.status)
        if snapshot.concerns and snapshot.concerns.memory:
            self._evicted.add(snapshot.at, snapshot.concerns.memory.evicted)
        self._groups = {name: self._groups.get(name) or Rate() for name in snapshot.failed}
        for name, count in snapshot.failed.items():
            self._groups[name].add(snapshot.at, count)
        rate = self._sum_of("completed")
        if rate is not None:
            self._rates.append(rate)

    def hear(self, at: float, status: Mapping[str, Status | None]) -> None:
        """Add what supervisors have answered, None for those that have not in time. It may be behind a snapshot."""
        self._rows = {}
        for name, answer in status.items():
            self._supervisors.setdefault(name, _Supervisor(at)).take(at, answer)

    def poll_failed(self, at: float, lost: NoSnapshot) -> None:
        """Record a failed poll."""
        if self.lost_since_at is None:
            self.lost_since_at = at
        self.why_lost = lost

    def status(self, worker: str) -> Status | None:
        """Return the supervisor's last status."""
        known = self._supervisors.get(worker)
        return known.status if known else None

    def answer(self, worker: str) -> Status | None:
        """Return the supervisor's last status, None if it has not answered since."""
        known = self._supervisors.get(worker)
        return known.status if known and not known.silent else None

    def answers(self, workers: Iterable[str]) -> dict[str, Status | None]:
        """Return the answers of those that have answered, and None for those that have not in time."""
        return {name: self.answer(name) for name in workers if name in self._supervisors}

    def head(self) -> Totals:
        snapshot = self.snapshot
        queues = list(snapshot.queues.values()) if snapshot else []
        known = [each.status for each in self._supervisors.values() if each.status is not None]
        ages = [counts.oldest_s for counts in queues if counts.oldest_s is not None]
        failed, deaths = dict(snapshot.failed) if snapshot else {}, Counter[str]()
        for status in known:
            deaths.update({str(why): int(number(count)) for why, count in _object(status.get("deaths")).items()})
        return Totals(
            supervisors=len(self._supervisors) + len(self.unheard()),
            silent=sum(each.silent for each in self._supervisors.values()),
            busy=sum(int(number(status.get("busy"))) for status in known),
            processes=sum(int(number(status["processes"].get("now"))) for status in known),
            completed_per_s=self._sum_of("completed"),
            failed_per_s=self._sum_of("failed"),
            died_per_s=self._sum_of("died"),
            waiting=sum(each.waiting for each in queues),
            stalled=sum(each.stalled for each in queues),
            groups=_largest_first(failed),
            deaths=_largest_first(deaths),
            oldest_s=max(ages, default=None),
            rates=list(self._rates),
            server=next((str(status["redis"]["server"]) for status in known if status["redis"].get("server")), None),
            exchange_ms=max(
                filter(None, (number(status["redis"].get("exchange_ms")) for status in known)), default=None
            ),
        )

    def unheard(self) -> list[str]:
        """Return the supervisors that were asked for the first time, and may still answer."""
        return [name for name in (self.snapshot.asked if self.snapshot else ()) if name not in self._supervisors]

    @property
    def evicts(self) -> bool:
        """True if the server has deleted keys for lack of memory within a quarter of an hour."""
        return self._evicted.grew_within(_EVICTED_S, self._now_at)

    def _sum_of(self, counter: str) -> float | None:
        rates = [getattr(each, counter).per_s for each in self._supervisors.values() if not each.silent]
        status = [rate for rate in rates if rate is not None]
        return sum(status) if status else None

    # rows

    def rows(self, pane: Pane, worker: str | None, containing: str = "") -> list[Row]:
        """Return the rows of a pane that contain a text. Children are those of `worker`."""
        wanted = pane, worker if pane is Pane.CHILDREN else None, containing.casefold()
        if wanted not in self._rows:
            self._rows[wanted] = [row for row in self._all_rows(pane, worker) if wanted[2] in _words(row)]
        return self._rows[wanted]

    def _all_rows(self, pane: Pane, worker: str | None) -> list[Row]:
        match pane:
            case Pane.QUEUES:
                return self._queue_rows()
            case Pane.BATCHES:
                return self._batch_rows()
            case Pane.SUPERVISORS:
                return self._supervisor_rows()
            case Pane.CHILDREN:
                return self._child_rows(worker)
            case Pane.ENDS:
                return self._end_rows()

    def _queue_rows(self) -> list[Row]:
        """Return stalled and late queues, then active ones, then the others, each sorted by name.

        Rows must not jump, but trouble must not be out of sight.
        """
        snapshot = self.snapshot
        if snapshot is None:
            return []
        served = self._served(snapshot)
        rows = [self._queue_row(name, counts, served) for name, counts in snapshot.queues.items()]
        return sorted(rows, key=lambda row: (not row.values["wrong"], not row.values["active"], row.key))

    def _served(self, snapshot: Snapshot) -> Collection[str]:
        """Return the queues that a supervisor serves, or all queues if that is unknown."""
        found = servers(
            snapshot.queues, {name: each.status for name, each in self._supervisors.items()}, snapshot.workers
        )
        return snapshot.queues if found is None else [name for name, by in found.items() if by]

    def _queue_row(self, name: str, counts: "Depths", served: Collection[str]) -> Row:
        known, now_at = self._queues[name], self._now_at
        oldest_s = counts.oldest_s
        is_late = oldest_s is not None and oldest_s >= LATE_S
        unserved = "nobody" if counts.ready and name not in served else ""
        values = {
            "queue": name, "waiting": counts.waiting, "oldest": oldest_s, "running": counts.running,
            "stalled": counts.stalled, "scheduled": counts.scheduled, "depends": counts.depends,
            "parked": counts.parked, "failed": known.failed, "in/s": known.put_per_s,
            "out/s": known.completed.per_s, "wait": known.wait_s, "run": known.run_s,
            "state": "paused" if counts.paused else unserved,
            "paused by": by_words(counts.paused_by, counts.paused_unix) if counts.paused else None,
            "wrong": is_late or counts.stalled > 0,
            "active": counts.total > counts.recurring or known.total.grew_within(_RECENT_S, now_at),
        }  # fmt: skip
        tones = {
            "oldest": Tone.NOTICE if is_late else Tone.PLAIN,
            "wait": Tone.NOTICE if (known.wait_s or 0) >= LATE_S else Tone.PLAIN,
            "stalled": Tone.ALARM if counts.stalled else Tone.PLAIN,
            "failed": Tone.NOTICE if known.failures.grew_within(_RECENT_S, now_at) else Tone.PLAIN,
            "state": Tone.NOTICE,
            "queue": Tone.PLAIN if values["active"] else Tone.QUIET,
        }
        return Row(name, values, tones)

    def _batch_rows(self) -> list[Row]:
        batches = self.snapshot.batches if self.snapshot else ()
        return [_batch_row(batch) for batch in batches if batch.ended_unix is None]

    def _supervisor_rows(self) -> list[Row]:
        """Return the supervisors by name, then the workers that cannot be steered from here."""
        rows = [self._supervisor_row(name, known) for name, known in sorted(self._supervisors.items())]
        others = [worker for worker in (self.snapshot.workers if self.snapshot else ()) if self._is_other(worker)]
        unheard = self.unheard()
        return rows + [
            _other_row(worker, "asked" if worker.name in unheard else "client")
            for worker in sorted(others, key=lambda worker: worker.name)
        ]

    def _is_other(self, worker: "WorkerInfo") -> bool:
        """Return True for a client program that leases jobs, or a lost supervisor that still holds some."""
        return worker.name not in self._supervisors and is_present(worker)

    def _supervisor_row(self, name: str, known: _Supervisor) -> Row:
        now_at = self._now_at
        silent_s, status = known.silent_s(now_at), known.status or {}
        state = "no answer" if silent_s is not None else str(status.get("state"))
        reload = status.get("reload")
        outcome = str(reload.get("outcome")) if isinstance(reload, Mapping) else ""
        processes, counts = _object(status.get("processes")), _object(status.get("counts"))
        values = {
            "supervisor": name, "state": state, "left": silent_s if silent_s is not None else status.get("left_s"),
            "busy": status.get("busy"), "most": number(processes.get("now")), "processes": _processes(processes),
            "jobs/s": None if known.silent else known.completed.per_s, "died": counts.get("died"),
            "memory": _memory_of(status) if status else None, "up": status.get("uptime_s"), "reload": outcome,
            "version": status.get("version"), "sandbox": _levels(status), "in_state_s": now_at - known.state_since_at,
        }  # fmt: skip
        wrong = silent_s is not None or state == "redis-away"
        tones = {
            "state": Tone.ALARM if wrong else Tone.PLAIN if state == "serving" else Tone.NOTICE,
            "died": Tone.ALARM if known.died.grew_within(_RECENT_S, now_at) else Tone.PLAIN,
            "reload": Tone.ALARM if outcome == "failed" else Tone.PLAIN,
        }
        return Row(name, values, tones)

    def _child_rows(self, worker: str | None) -> list[Row]:
        """Return busy children first: where not all fit, an idle one says least."""
        status = self.status(worker) if worker else None
        rows = [_child_row(child) for child in _objects((status or {}).get("children"))]
        return sorted(rows, key=lambda row: row.values["jid"] is None)

    def _end_rows(self) -> list[Row]:
        """Return the recent failures of all supervisors, latest first."""
        found = [
            (name, end)
            for name, known in self._supervisors.items()
            for end in _objects((known.status or {}).get("ends"))
        ]
        found.sort(key=lambda each: -number(each[1].get("at_unix")))
        return [_end_row(name, end) for name, end in found]

    @property
    def _now_at(self) -> float:
        return self.snapshot.at if self.snapshot else 0.0


def is_number(value: Any) -> TypeGuard[float]:
    """Return True for a number that can be shown."""
    return isinstance(value, int | float) and abs(value) < _TOO_MUCH


def number(value: Any) -> float:
    """Return a number of an answer, or 0 if it is none. Another version may answer differently."""
    return value if is_number(value) else 0


def _objects(value: Any) -> list[Status]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _largest_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))


def _mean(total: Rate, count: Rate) -> float | None:
    per_s = count.per_s
    return (total.per_s or 0.0) / per_s if per_s else None


def _object(value: Any) -> Status:
    return value if isinstance(value, Mapping) else {}


def _memory_of(status: Status) -> float:
    """Return the memory of a supervisor's children together, as far as it has grown since their forks."""
    return sum(number(child.get("memory_bytes")) for child in _objects(status.get("children")))


def _levels(status: Status) -> str | None:
    """Return the levels of the sandbox that the handlers have. A release before does not tell them."""
    levels = status.get("sandbox_levels")
    return ", ".join(map(str, levels)) if isinstance(levels, list) else None


def _processes(status: Status) -> str | None:
    if not status:
        return None
    now, fewest, most = (status.get(name) for name in ("now", "fewest", "most"))
    return f"{now}" if fewest == most else f"{now} of {fewest}:{most}"


def _other_row(worker: "WorkerInfo", state: str) -> Row:
    lost = worker.stalled > 0
    values = {
        "supervisor": worker.name, "state": "lost" if lost else state, "left": None, "busy": worker.running,
        "processes": None, "up": None, "memory": None, "jobs/s": None, "died": None, "reload": "", "version": None,
        "most": 0, "sandbox": None, "in_state_s": 0.0,
    }  # fmt: skip
    return Row(worker.name, values, {"state": Tone.ALARM if lost else Tone.QUIET, "supervisor": Tone.QUIET})


def _child_row(child: Status) -> Row:
    attempt = number(child.get("attempt"))
    values = {
        "child": child.get("child"), "pid": child.get("pid"), "state": child.get("state"), "klass": work_of(child),
        "jid": child.get("jid"), "runs": child.get("running_s"), "memory": child.get("memory_bytes"),
        "attempt": child.get("attempt"), "ends": child.get("stopping") or child.get("ends"),
    }  # fmt: skip
    tones = {
        "state": Tone.QUIET if child.get("jid") is None else Tone.NOTICE if child.get("stopping") else Tone.PLAIN,
        "try": Tone.NOTICE if attempt > 1 else Tone.PLAIN,
        "ends": Tone.NOTICE,
    }
    return Row(str(child.get("child")), values, tones)


def _batch_row(batch: "BatchRecord") -> Row:
    values = {
        "batch": batch.id, "state": "paused" if batch.paused else batch.state, "jobs": batch.total,
        "pending": batch.pending, "complete": batch.complete, "failed": batch.failed, "cancelled": batch.cancelled,
        "description": batch.description, "paused by": by_words(batch.paused_by, batch.paused_unix),
        "inside": batch.parent,
    }  # fmt: skip
    tones = {
        "state": Tone.NOTICE if batch.paused else Tone.PLAIN, "failed": Tone.NOTICE if batch.failed else Tone.PLAIN,
    }  # fmt: skip
    return Row(batch.id, values, tones)


_TONES: Final = {"died": Tone.ALARM, "failed": Tone.ALARM, "retried": Tone.NOTICE}


def _end_row(worker: str, end: Status) -> Row:
    values = {
        "at": end.get("at_unix"), "what": end.get("what"), "why": end.get("why"), "klass": end.get("klass"),
        "jid": end.get("jid"), "queue": end.get("queue"), "message": end.get("message"), "worker": worker,
    }  # fmt: skip
    return Row(f"{end.get('jid')} {end.get('at_unix')}", values, {"what": _TONES.get(str(end.get("what")), Tone.QUIET)})


def _words(row: Row) -> str:
    """Return the text that a filter searches."""
    texts: Iterable[str] = (value for value in row.values.values() if isinstance(value, str))
    return "\n".join(texts).casefold()
