"""A handler's context that records what the handler does, and has faults. Used in the process of pytest."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import orjson

from supervisor.child.context import JobCalls, JobContext
from supervisor.engine.model.chunks import to_chunk, unpack
from supervisor.engine.model.errors import JobFailed
from supervisor.engine.model.job_to_put import JobToPut
from supervisor.engine.model.jobs import ParentResult
from supervisor.engine.model.new_jobs import new_jid
from supervisor.engine.model.validation import UNSET, Duration, to_data
from supervisor.messages import JobMessage, ResultsPage
from supervisor.testing.faults import Crashed

_FIELDS: Final = frozenset(
    {
        *("jid", "queue", "priority", "failures", "deaths", "interruptions", "tags", "lane", "persistent", "waited_s"),
        *("saved", "trace", "token", "at_most_once", "signals", "steps"),
    }
)


def message_for(klass: str, data: object, record: dict[str, Any]) -> JobMessage:
    """Return a job that lies in no queue, as its child would receive it. Raises TypeError or ValueError."""
    unknown = sorted(record.keys() - _FIELDS)
    if unknown:
        raise TypeError(f"a context has no {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}")
    kind, raw = to_data("data", data)
    saved = record.pop("saved", None)
    replay = orjson.dumps((record.pop("signals", {}), {}, record.pop("steps", {})))
    given = {
        "token": 1,
        "jid": new_jid(),
        "klass": klass,
        "queue": "default",
        "is_bytes": kind == "bytes",
        "payload": raw,
    }
    counts = dict.fromkeys(("priority", "failures", "deaths", "interruptions"), 0)
    rest: dict[str, Any] = {"tags": [], "lane": None, "persistent": False, "waited_s": 0.0}
    texts = {"saved": None if saved is None else orjson.dumps(saved), "replay": replay}
    return JobMessage(**{**given, **counts, **rest, **record, **texts})


def page_of(results: Mapping[str, Any]) -> ResultsPage:
    """Return results of parents as a job reads them. A JobFailed stands for a parent that has failed."""
    rows = [
        ParentResult(jid, failure=(result.group, result.message))
        if isinstance(result, JobFailed)
        else ParentResult(jid, orjson.dumps(result))
        for jid, result in results.items()
    ]
    return ResultsPage(0, len(rows), rows)


class RecordingContext(JobContext):
    """A JobContext that keeps what its handler does: `puts`, `reported`, `checkpoints` and `streamed`, in order."""

    def __init__(
        self,
        message: JobMessage,
        workdir: str,
        calls: JobCalls,
        reach: Callable[[str], None],
    ) -> None:
        """`reach(point)` is told where the handler is, and raises what is to happen there."""
        super().__init__(message, workdir, calls)
        self.puts: list[JobToPut] = []
        self.reported: list[tuple[float, str]] = []
        self.checkpoints: list[Any] = []
        self.streamed: list[Any] = []
        self.has_crashed = False
        self._reach = reach
        self._reached: dict[str, int] = {}

    def reach(self, point: str) -> None:
        """Say where the handler is. Raises what is to happen there; after a crash, in any call of the job."""
        self.check_alive()
        try:
            self._reach(point)
        except Crashed:
            self.has_crashed = True
            raise

    def check_alive(self) -> None:
        """Raise Crashed if the process has died."""
        if self.has_crashed:
            raise Crashed

    def _number(self, call: str) -> int:
        number = self._reached[call] = self._reached.get(call, 0) + 1
        return number

    def _put(self, queue: str, klass: str, data: Any = None, **options: Any) -> str:
        self.reach(f"put {self._number('put')}")
        jid = super()._put(queue, klass, data, **options)
        self.puts.append(JobToPut({**options, "queue": queue, "klass": klass, "data": data, "jid": jid}))
        return jid

    def next(self, queue: str, data: Any = UNSET, delay: Duration = 0, depends: Iterable[str | JobToPut] = ()) -> None:
        self.reach("next")
        super().next(queue, data, delay, depends)

    def progress(self, fraction: float, text: str = "") -> None:
        super().progress(fraction, text)
        self.reported.append((float(fraction), text))
        self.reach(f"progress {self._number('progress')}")

    def checkpoint(self, state: Any) -> None:
        number = self._number("checkpoint")
        self.reach(f"before checkpoint {number}")
        super().checkpoint(state)
        self.checkpoints.append(orjson.loads(orjson.dumps(state)))
        self.reach(f"checkpoint {number}")

    def stream(self, chunk: Any) -> None:
        self.check_alive()
        super().stream(chunk)
        self.streamed += [value for _cost, value in unpack(to_chunk(chunk))]

    def _store_step(self, name: str, raw: bytes) -> None:
        number = self._number("step")
        self.reach(f"before step {number}")
        super()._store_step(name, raw)
        self.reach(f"step {number}")
