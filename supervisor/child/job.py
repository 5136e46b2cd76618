"""The job as its handler sees it. Runs in children. Holds what the handler says until the job ends; must not import
redis, nor send anything itself: `child/talk.py` does.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from supervisor import clock
from supervisor.engine.model.jobs import MOST_FOLLOWERS, MOST_LINES, MOST_PARENTS, new_job, with_plain_times
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.trace_context import current_trace
from supervisor.engine.model.validation import (
    DATA_BYTES,
    UNSET,
    Duration,
    checked_lines,
    checked_progress,
    duration_ms,
    to_data,
    to_new_data,
    to_state,
)
from supervisor.messages import MAX_HEAD_BYTES, Blob, Completion, Follower, JobMessage, Progress, Stage

#: For what follows one completion: the data of one job of the largest size, and a little for all that is said of it.
ROOM_BYTES: Final = DATA_BYTES + 512 * 1024
#: What is said of one of them beside names and options: kind, size and punctuation; and of all of them together.
_SIZES_BYTES: Final = 32
#: Between two reports of progress. The first is sent at once, and the last one when the job ends.
PROGRESS_S: Final = 0.5
#: The least time between two looks for a notice: it makes `should_stop` cheap enough for the tightest loop.
LOOK_S: Final = 0.01


class _Once:
    """What is made of the job when it is first asked for: functools.cached_property without the lock of 3.11."""

    def __init__(self, make: Callable[["Job"], Any]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __get__(self, job: "Job | None", owner: type) -> Any:
        if job is None:
            return self
        made = job.__dict__[self._make.__name__] = self._make(job)
        return made


class Job:
    """One start of one job.

    `jid klass queue lane priority tags` as put; `token` of this lease; `failures deaths interruptions`: how earlier
    starts ended; `attempt`: 1 at the first start; `raw`: the payload's bytes; `workdir`: the current directory, its own
    and empty; `saved`: the last checkpoint of an earlier start; `trace`: the W3C traceparent of what has caused it;
    `waited_s`: how long it could have been leased before it was.
    """

    # What most jobs never change costs nothing at their start.
    _next: Stage | None = None
    _unreported: Progress | None = None
    _report_at = 0.0
    _look_at = 0.0
    _told_to_stop = False

    def __init__(
        self,
        message: JobMessage,
        workdir: str,
        report: Callable[[int, Progress], None],
        store: Callable[[int, bytes], None],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """`report` takes the token and progress, at most every PROGRESS_S; `store` the token and a checkpoint, and
        answers when it is stored. `look` takes in notices that have come, at most every LOOK_S; it never waits.
        """
        (
            self.token, self.jid, self.klass, self.queue, self.priority, self.failures, self.deaths, self.interruptions,
            self.tags, self.lane, self._persistent, self.waited_s, self._is_bytes, payload, self._saved, _, self.trace,
        ) = message  # fmt: skip
        self.raw = payload or b""
        self._workdir = workdir
        self._then: list[Follower] = []
        self._lines = 0  # tags, and twice the parents, of all that follows
        self._room_bytes = ROOM_BYTES
        self._head_room_bytes = MAX_HEAD_BYTES - _SIZES_BYTES
        self._report = report
        self._store = store
        self._look = look

    @property
    def attempt(self) -> int:
        return 1 + self.failures + self.deaths + self.interruptions

    @property
    def workdir(self) -> Path:
        return Path(self._workdir)

    @_Once
    def data(self) -> Any:
        """The decoded payload, or the bytes where bytes were put."""
        return self.raw if self._is_bytes else orjson.loads(self.raw)

    @_Once
    def saved(self) -> Any:
        """The state that the last `checkpoint` of an earlier start has stored, wherever that ran; None if there is
        none. What this start stores does not change it.
        """
        return orjson.loads(self._saved) if self._saved else None

    def __repr__(self) -> str:
        return f"<Job {self.klass} {self.jid} attempt {self.attempt}>"

    # what follows

    def put(self, queue: str, klass: str, data: Any = None, **options: Any) -> str:
        """Put a job in the same step in which this one completes: if it does not complete, nothing is put. The options
        are those of `Queue.put`; without `trace` it has that of the current OpenTelemetry span, else this job's.
        Answers the jid. At most 1,000 jobs and 256 MB. Raises TypeError or ValueError.
        """
        self._check_completes("put")
        if len(self._then) >= MOST_FOLLOWERS:
            raise ValueError(f"job.put: at most {MOST_FOLLOWERS} jobs can be put with one completion")
        given = with_plain_times({name: _listed(value) for name, value in options.items()})
        if "trace" not in given and (trace := current_trace() or self.trace) is not None:
            given["trace"] = trace
        kind, raw = to_data("data", data)
        job = new_job("put", queue, klass, raw if kind == "bytes" else orjson.Fragment(raw), given)
        if job.jid == self.jid:
            raise ValueError(f"job.put: jid {job.jid!r} is this job's own: use job.next")
        follower = Follower(queue, klass, {**given, "jid": job.jid}, Blob(kind, raw))
        self._take_room("put", (queue, klass, follower.options), len(raw), job.lines)
        self._then.append(follower)
        return job.jid

    def next(self, queue: str, data: Any = UNSET, delay: Duration = 0, depends: Iterable[str] = ()) -> None:
        """Have this job go on in that queue once the handler has returned, with new data if given, after `delay`
        and the jobs of `depends`. Once per run. Raises TypeError or ValueError.
        """
        self._check_completes("next")
        if self._next is not None:
            raise ValueError(f"job.next: this job goes on in {self._next.queue!r} already; call it once")
        parents = [jid for jid in checked_lines("depends", depends, MOST_PARENTS).split("\n") if jid]
        delay_s = duration_ms("delay", delay, least=0) / 1000
        kind, raw = to_new_data("data", data)
        stage = Stage(checked_name("queue", queue), delay_s, parents, Blob(kind, raw))
        self._take_room("next", (queue, delay_s, parents), len(raw), 2 * len(parents))
        self._next = stage

    def _check_completes(self, call: str) -> None:
        if self._persistent:
            raise ValueError(f"job.{call}: a persistent job never completes, so nothing can follow its completion")

    def _take_room(self, call: str, said: tuple[Any, ...], data_bytes: int, lines: int) -> None:
        if self._lines + lines > MOST_LINES:
            raise ValueError(
                f"job.{call}: at most {MOST_LINES} tags can follow one completion, and a parent counts for two"
            )
        head_bytes = len(orjson.dumps(said)) + _SIZES_BYTES
        if head_bytes > self._head_room_bytes:
            raise ValueError(f"job.{call}: at most {MAX_HEAD_BYTES >> 20} MB of options can follow one completion")
        if head_bytes + data_bytes > self._room_bytes:
            raise ValueError(f"job.{call}: at most {DATA_BYTES >> 20} MB of all together can follow one completion")
        self._head_room_bytes -= head_bytes
        self._room_bytes -= head_bytes + data_bytes
        self._lines += lines

    def completion(self, result: bytes) -> Completion | None:
        """The completion with what follows; None if nothing does."""
        return Completion(result, self._next, self._then) if self._next or self._then else None

    # meanwhile

    def progress(self, fraction: float, text: str = "") -> None:
        """Tell how far it is: a fraction from 0 to 1, and a word about it of at most 1,000 characters. Never waits.
        What comes within half a second of the last report is told with the next one, or when the job ends. Raises
        TypeError or ValueError.
        """
        self._unreported = Progress(*checked_progress(fraction, text))
        if clock.monotonic() >= self._report_at:
            self.report_progress()

    def report_progress(self) -> None:
        """What has been told last, if it was not reported yet."""
        progress, self._unreported = self._unreported, None  # taken first: threads of the handler may tell of it, too
        if progress is not None:
            self._report_at = clock.monotonic() + PROGRESS_S
            self._report(self.token, progress)

    def checkpoint(self, state: Any) -> None:
        """Store how far the work is: JSON of at most 64 KiB, in place of the last one. It is the next start's `saved`,
        after an interruption, failure or death, on any machine; it goes when the job completes. Blocks until Redis has
        it, about a round trip, and while Redis is away; in a coroutine it blocks the loop. Any thread may call it.

        From the first one on, a handler that is to stop for a drain, a reload or a scaling is interrupted in here, when
        the state is stored, so that no step is done twice; if it does not come by within a second, or a third of
        `--term-grace`, anywhere.

        Raises LeaseLost where the job is not this supervisor's any more, TypeError or ValueError for what cannot be
        stored.
        """
        self._store(self.token, to_state("state", state))

    @property
    def should_stop(self) -> bool:
        """True once the handler has been asked to stop, and from then on, even after it has caught Interrupted. A look
        costs a fraction of a microsecond and never waits. Any thread may ask.
        """
        if not self._told_to_stop and (now_at := clock.monotonic()) >= self._look_at:
            self._look_at = now_at + LOOK_S
            self._look()
        return self._told_to_stop

    def tell_to_stop(self) -> None:
        self._told_to_stop = True


def _listed(value: Any) -> Any:
    """An option that can be read twice, and sent: tags and jids may come from a generator."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return list(value)
    return value
