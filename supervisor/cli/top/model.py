"""What `leasehold top` shows, made of looks: rows, their order, rates, what is wrong. Runs in the command's process.

Must not do I/O, nor know of colours and columns: that is view.py.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from supervisor.cli.lib.served import is_here, servers
from supervisor.cli.lib.shown import by_words

if TYPE_CHECKING:
    from supervisor.engine.commands.queries import Depths, Stats, Worker

Told = Mapping[str, Any]

#: Rates are those of so long: shorter, and the numbers jump; longer, and a standstill is seen late.
_OVER_S: Final = 5.0
#: What has waited for so long is marked.
LATE_S: Final = 60.0
#: A death, or a failure, is marked for so long.
_RECENT_S: Final = 60.0
#: Rates that are remembered for the small diagram.
_MOST_RATES: Final = 120
#: No count, size or time is as large.
_TOO_MUCH: Final = 1e15


class Pane(Enum):
    """The parts of the screen that can be chosen, from top to bottom."""

    QUEUES = "queues"
    SUPERVISORS = "supervisors"
    CHILDREN = "children"
    ENDS = "ends"


class Tone(Enum):
    """How a value is to be taken."""

    PLAIN = "plain"
    QUIET = "quiet"  # nothing to see here
    NOTICE = "notice"  # not as it should be
    ALARM = "alarm"  # wrong


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one time. `figures`: of those queues that were shown. `told`: None of a supervisor that has not
    answered in time.
    """

    at: float
    unix: float
    queues: "Mapping[str, Depths]"
    figures: "Mapping[str, Stats]"
    failed: Mapping[str, int]
    workers: "Sequence[Worker]"
    told: Mapping[str, Told | None]


@dataclass(frozen=True, slots=True)
class Lost:
    """Why there is no look: Redis is away, or it refuses."""

    why: str
    is_away: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a pane: what it is about, its values by the names of columns, and how those are to be taken."""

    key: str
    values: Mapping[str, Any]
    tones: Mapping[str, Tone] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Head:
    """The figures of all together. Rates are None until two looks tell them."""

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


class Flow:
    """How fast a counter grows. One that falls has begun anew: with a day, or a process."""

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


class _Queue:
    """What the figures of a queue tell together with those before them."""

    def __init__(self) -> None:
        self.completed, self.failures, self.total = Flow(), Flow(), Flow()
        self._waits, self._waited_s = Flow(), Flow()
        self._ran_s = Flow()
        self.failed = 0

    def take(self, at: float, counts: "Depths", stats: "Stats | None") -> None:
        if stats is None:  # it was not shown; what is known of it tells nothing of now
            return
        self.completed.add(at, stats.run.count)
        self.failures.add(at, stats.failures)
        # All that was ever put, but for what was cancelled: it is still there, or has come to an end.
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
    """What a supervisor has told last, and when."""

    def __init__(self, first_at: float) -> None:
        self.told: Told | None = None
        self.told_at = first_at
        self.silent = False
        self.completed, self.failed, self.died = Flow(), Flow(), Flow()

    def take(self, at: float, told: Told | None) -> None:
        self.silent = told is None
        if told is None:
            return
        self.told, self.told_at = told, at
        counts = told["counts"]
        for name in ("completed", "failed", "died"):
            getattr(self, name).add(at, number(counts.get(name)))

    def silent_s(self, now_at: float) -> float | None:
        return now_at - self.told_at if self.silent else None


class Model:
    """All that is shown, by the looks so far."""

    def __init__(self) -> None:
        self.look: Look | None = None
        self.lost_since_at: float | None = None
        self.why_lost = Lost("", is_away=True)
        self._queues: dict[str, _Queue] = {}
        self._supervisors: dict[str, _Supervisor] = {}
        self._groups: dict[str, Flow] = {}
        self._rates: deque[float] = deque(maxlen=_MOST_RATES)
        self._rows: dict[tuple[Pane, str | None, str], list[Row]] = {}  # of this look, as far as they were asked for

    def take(self, look: Look) -> None:
        """Looks come in their order."""
        self._rows = {}
        self.look, self.lost_since_at = look, None
        self._queues = {name: self._queues.get(name) or _Queue() for name in look.queues}
        for name, counts in look.queues.items():
            self._queues[name].take(look.at, counts, look.figures.get(name))
        self._supervisors = {name: self._supervisors.get(name) or _Supervisor(look.at) for name in look.told}
        for name, told in look.told.items():
            self._supervisors[name].take(look.at, told)
        self._groups = {name: self._groups.get(name) or Flow() for name in look.failed}
        for name, count in look.failed.items():
            self._groups[name].add(look.at, count)
        rate = self._sum_of("completed")
        if rate is not None:
            self._rates.append(rate)

    def lost(self, at: float, lost: Lost) -> None:
        """A look has failed."""
        if self.lost_since_at is None:
            self.lost_since_at = at
        self.why_lost = lost

    def told(self, worker: str) -> Told | None:
        """What a supervisor has said last."""
        known = self._supervisors.get(worker)
        return known.told if known else None

    def head(self) -> Head:
        look = self.look
        queues = list(look.queues.values()) if look else []
        known = [each.told for each in self._supervisors.values() if each.told is not None]
        ages = [counts.oldest_s for counts in queues if counts.oldest_s is not None]
        failed, deaths = dict(look.failed) if look else {}, Counter[str]()
        for told in known:
            deaths.update({str(why): int(number(count)) for why, count in _object(told.get("deaths")).items()})
        return Head(
            supervisors=len(self._supervisors),
            silent=sum(each.silent for each in self._supervisors.values()),
            busy=sum(int(number(told.get("busy"))) for told in known),
            processes=sum(int(number(told["processes"].get("now"))) for told in known),
            completed_per_s=self._sum_of("completed"),
            failed_per_s=self._sum_of("failed"),
            died_per_s=self._sum_of("died"),
            waiting=sum(each.waiting for each in queues),
            stalled=sum(each.stalled for each in queues),
            groups=_largest_first(failed),
            deaths=_largest_first(deaths),
            oldest_s=max(ages, default=None),
            rates=list(self._rates),
            server=next((str(told["redis"]["server"]) for told in known if told["redis"].get("server")), None),
        )

    def _sum_of(self, counter: str) -> float | None:
        rates = [getattr(each, counter).per_s for each in self._supervisors.values() if not each.silent]
        told = [rate for rate in rates if rate is not None]
        return sum(told) if told else None

    # rows

    def rows(self, pane: Pane, worker: str | None, containing: str = "") -> list[Row]:
        """The rows of a pane that contain a text; children are those of a worker."""
        wanted = pane, worker if pane is Pane.CHILDREN else None, containing.casefold()
        if wanted not in self._rows:
            self._rows[wanted] = [row for row in self._all_rows(pane, worker) if wanted[2] in _words(row)]
        return self._rows[wanted]

    def _all_rows(self, pane: Pane, worker: str | None) -> list[Row]:
        match pane:
            case Pane.QUEUES:
                return self._queue_rows()
            case Pane.SUPERVISORS:
                return self._supervisor_rows()
            case Pane.CHILDREN:
                return self._child_rows(worker)
            case Pane.ENDS:
                return self._end_rows()

    def _queue_rows(self) -> list[Row]:
        """Those that are stalled or late, those in which something lies or happens, and the others, each by name: rows
        are not to jump, but what is wrong must not be out of sight.
        """
        look = self.look
        if look is None:
            return []
        served = self._served(look)
        rows = [self._queue_row(name, counts, served) for name, counts in look.queues.items()]
        return sorted(rows, key=lambda row: (not row.values["wrong"], not row.values["active"], row.key))

    def _served(self, look: Look) -> Collection[str]:
        """The queues that somebody serves; all of them where that is not known."""
        found = servers(look.queues, {name: each.told for name, each in self._supervisors.items()}, look.workers)
        return look.queues if found is None else [name for name, by in found.items() if by]

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

    def _supervisor_rows(self) -> list[Row]:
        """By name; then those that cannot be steered from here."""
        rows = [self._supervisor_row(name, known) for name, known in sorted(self._supervisors.items())]
        others = [worker for worker in (self.look.workers if self.look else ()) if self._is_other(worker)]
        return rows + [_other_row(worker) for worker in sorted(others, key=lambda worker: worker.name)]

    def _is_other(self, worker: "Worker") -> bool:
        """A program that leases by the client; or what a lost supervisor still holds."""
        return worker.name not in self._supervisors and is_here(worker)

    def _supervisor_row(self, name: str, known: _Supervisor) -> Row:
        now_at = self._now_at
        silent_s, told = known.silent_s(now_at), known.told or {}
        state = "no answer" if silent_s is not None else str(told.get("state"))
        reload = told.get("reload")
        outcome = str(reload.get("outcome")) if isinstance(reload, Mapping) else ""
        processes, counts = _object(told.get("processes")), _object(told.get("counts"))
        values = {
            "supervisor": name, "state": state, "left": silent_s if silent_s is not None else told.get("left_s"),
            "busy": told.get("busy"), "most": number(processes.get("now")), "processes": _processes(processes),
            "jobs/s": None if known.silent else known.completed.per_s, "died": counts.get("died"),
            "memory": _memory_of(told) if told else None, "up": told.get("uptime_s"), "reload": outcome,
            "version": told.get("version"),
        }  # fmt: skip
        wrong = silent_s is not None or state == "redis-away"
        tones = {
            "state": Tone.ALARM if wrong else Tone.PLAIN if state == "serving" else Tone.NOTICE,
            "died": Tone.ALARM if known.died.grew_within(_RECENT_S, now_at) else Tone.PLAIN,
            "reload": Tone.ALARM if outcome == "failed" else Tone.PLAIN,
        }
        return Row(name, values, tones)

    def _child_rows(self, worker: str | None) -> list[Row]:
        """The busy ones first: where not all fit, an idle one says least."""
        told = self.told(worker) if worker else None
        rows = [_child_row(child) for child in _objects((told or {}).get("children"))]
        return sorted(rows, key=lambda row: row.values["jid"] is None)

    def _end_rows(self) -> list[Row]:
        """The latest first, of all supervisors."""
        found = [
            (name, end) for name, known in self._supervisors.items() for end in _objects((known.told or {}).get("ends"))
        ]
        found.sort(key=lambda each: -number(each[1].get("at_unix")))
        return [_end_row(name, end) for name, end in found]

    @property
    def _now_at(self) -> float:
        return self.look.at if self.look else 0.0


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is one that can be shown."""
    return isinstance(value, int | float) and abs(value) < _TOO_MUCH


def number(value: Any) -> float:
    """A number of an answer; 0 if it is none: another version may answer otherwise."""
    return value if is_number(value) else 0


def _objects(value: Any) -> list[Told]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _largest_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))


def _mean(total: Flow, count: Flow) -> float | None:
    per_s = count.per_s
    return (total.per_s or 0.0) / per_s if per_s else None


def _object(value: Any) -> Told:
    return value if isinstance(value, Mapping) else {}


def _memory_of(told: Told) -> float:
    """Of its children together, as far as it has grown since they were forked."""
    return sum(number(child.get("memory_bytes")) for child in _objects(told.get("children")))


def _processes(told: Told) -> str | None:
    if not told:
        return None
    now, fewest, most = (told.get(name) for name in ("now", "fewest", "most"))
    return f"{now}" if fewest == most else f"{now} of {fewest}:{most}"


def _other_row(worker: "Worker") -> Row:
    lost = worker.stalled > 0
    values = {
        "supervisor": worker.name, "state": "lost" if lost else "client", "left": None, "busy": worker.running,
        "processes": None, "up": None, "memory": None, "jobs/s": None, "died": None, "reload": "", "version": None,
        "most": 0,
    }  # fmt: skip
    return Row(worker.name, values, {"state": Tone.ALARM if lost else Tone.QUIET, "supervisor": Tone.QUIET})


def _child_row(child: Told) -> Row:
    attempt = number(child.get("attempt"))
    values = {
        "child": child.get("child"), "pid": child.get("pid"), "state": child.get("state"), "klass": child.get("klass"),
        "jid": child.get("jid"), "runs": child.get("running_s"), "memory": child.get("memory_bytes"),
        "attempt": child.get("attempt"), "ends": child.get("stopping") or child.get("ends"),
    }  # fmt: skip
    tones = {
        "state": Tone.QUIET if child.get("jid") is None else Tone.NOTICE if child.get("stopping") else Tone.PLAIN,
        "try": Tone.NOTICE if attempt > 1 else Tone.PLAIN,
        "ends": Tone.NOTICE,
    }
    return Row(str(child.get("child")), values, tones)


_TONES: Final = {"died": Tone.ALARM, "failed": Tone.ALARM, "retried": Tone.NOTICE}


def _end_row(worker: str, end: Told) -> Row:
    values = {
        "at": end.get("at_unix"), "what": end.get("what"), "why": end.get("why"), "klass": end.get("klass"),
        "jid": end.get("jid"), "queue": end.get("queue"), "message": end.get("message"), "worker": worker,
    }  # fmt: skip
    return Row(f"{end.get('jid')} {end.get('at_unix')}", values, {"what": _TONES.get(str(end.get("what")), Tone.QUIET)})


def _words(row: Row) -> str:
    """What a filter looks at."""
    texts: Iterable[str] = (value for value in row.values.values() if isinstance(value, str))
    return "\n".join(texts).casefold()
