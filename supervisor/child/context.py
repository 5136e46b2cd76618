"""The job as its handler sees it. Runs in children. Owns what the handler puts and reports until the job ends.

Must not import redis, nor send anything itself: `child/talk.py` does.
"""

import contextlib
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, Unpack, overload

import orjson

from supervisor import clock
from supervisor.child import parent_results
from supervisor.child.starts_before import StartsBefore
from supervisor.engine.model.chunks import to_chunk
from supervisor.engine.model.entries import Payload, opened
from supervisor.engine.model.job_to_put import JobToPut, as_jids
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.new_jobs import (
    MOST_FOLLOWERS,
    MOST_LINES,
    MOST_PARENTS,
    PutOptions,
    new_job,
    with_plain_values,
)
from supervisor.engine.model.shards import Tie, key_of, tied_jid
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
from supervisor.messages import (
    MAX_HEAD_BYTES,
    Blob,
    Completion,
    Follower,
    JobMessage,
    ProgressReport,
    ResultsPage,
    Stage,
)

#: Room for what follows one completion: the data of one job of the largest size, and 512 KiB for everything else.
ROOM_BYTES: Final = DATA_BYTES + 512 * 1024
#: Size of a job's head beside names and options: kind, size and punctuation.
_SIZES_BYTES: Final = 32
#: Pause between two reports of progress. The first report is sent at once, the last one when the job ends.
PROGRESS_S: Final = 0.5
#: Pause between two reads of notices: it makes `should_stop` cheap in the tightest loop.
NOTICES_S: Final = 0.01


T = TypeVar("T")


class CheckpointStore(Protocol):
    """Stores a checkpoint, or the result of a step with its name. Returns when it is stored."""

    def __call__(self, token: int, state: bytes, step: str = "", /) -> None: ...


class JobCalls(NamedTuple):
    """The calls by which a job reaches its master. By default nothing is kept, and nothing is there."""

    #: Takes the token and progress. It is called at most every PROGRESS_S.
    report: Callable[[int, ProgressReport], None] = lambda *_: None
    store: CheckpointStore = lambda *_: None
    #: It never waits, and is called at most every NOTICES_S.
    read_notices: Callable[[], None] = lambda: None
    #: Takes the token, the first parent and a number of them. Returns when it has the answer.
    ask_results: Callable[[int, int, int], ResultsPage] = lambda *_: ResultsPage(0, 0)
    #: Takes the token and a packed chunk. It may wait for room.
    stream: Callable[[int, bytes], None] = lambda *_: None


class _Once(Generic[T]):
    """A value made at its first use: functools.cached_property without the lock of Python 3.11."""

    def __init__(self, make: Callable[["JobContext"], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, job: None, owner: type) -> "_Once[T]": ...
    @overload
    def __get__(self, job: "JobContext", owner: type) -> T: ...
    def __get__(self, job: "JobContext | None", owner: type) -> "T | _Once[T]":
        if job is None:
            return self
        made = job.__dict__[self._make.__name__] = self._make(job)
        return made


class JobContext:
    """One start of one job.

    `jid klass queue lane priority tags`: as put. `token`: of this lease. `failures deaths interruptions`: ends of
    earlier starts. `attempt`: 1 at the first start. `raw`: the payload's bytes. `workdir`: the current directory,
    private and empty. `saved`: the last checkpoint of an earlier start. `trace`: the W3C traceparent of the cause.
    `waited_s`: seconds between when it could have been leased and its lease.
    """

    # Class attributes: most jobs never change them, and so pay nothing for them.
    _next: Stage | None = None
    _unreported: ProgressReport | None = None
    _report_at = 0.0
    _read_notices_at = 0.0
    _told_to_stop = False

    def __init__(self, message: JobMessage, workdir: str, calls: JobCalls) -> None:
        (
            self.token, self.jid, self.klass, self.queue, self.priority, self.failures, self.deaths, self.interruptions,
            self.tags, self.lane, self._persistent, self.waited_s, self._is_bytes, payload, self._saved, _, self.trace,
            self._at_most_once, self._replay, _, self._batch_id, self._is_call, self._is_divided,
        ) = message  # fmt: skip
        self.raw = payload or b""
        if self._is_bytes and self._is_call:
            self.raw, self._is_bytes, self._is_call = opened(Payload(self.raw, True, True))
        self._workdir = workdir
        self._then: list[Follower] = []
        self._lines = 0  # tags, and twice the parents, of all followers
        self._room_bytes = ROOM_BYTES
        self._head_room_bytes = MAX_HEAD_BYTES - _SIZES_BYTES
        self._calls = calls

    @property
    def attempt(self) -> int:
        return 1 + self.failures + self.deaths + self.interruptions

    @property
    def workdir(self) -> Path:
        return Path(self._workdir)

    @_Once
    def data(self) -> Any:
        """The decoded payload. Bytes where bytes were put."""
        return self.raw if self._is_bytes and not self._is_call else orjson.loads(self.raw)

    @property
    def call(self) -> tuple[list[Any], dict[str, Any]] | None:
        """The arguments by position and by name. None: the data have none by position."""
        if not self._is_call:
            return None
        data = json.loads(self.raw)  # of integers, orjson keeps no more than 64 bits
        return (data, {}) if isinstance(data, list) else (data["args"], data["kwargs"])

    @_Once
    def saved(self) -> Any:
        """The state that the last `checkpoint` of an earlier start has stored, on any machine. None: there is none.

        Checkpoints of this start do not change it.
        """
        return orjson.loads(self._saved) if self._saved else None

    @_Once
    def results(self) -> dict[str, Any]:
        """The results of the jobs of `depends`, by jid, in the order in which they were given.

        Read at the first use, which blocks for a round trip for each 160 KiB of them, and longer while Redis is away.
        A parent that has failed, under `on_parent_failure="run"`, is there as a JobFailed. None stands for a parent
        that returned nothing, or more than 64 KiB, or was unknown. Raises LeaseLost.
        """
        return parent_results.read_all(partial(self._calls.ask_results, self.token))

    @_Once
    def batch(self) -> "JobBatch | None":
        """The batch of which this job is a member. None: it is in none."""
        return JobBatch(self, self._batch_id) if self._batch_id else None

    @_Once
    def _before(self) -> StartsBefore:
        return StartsBefore(self._replay)

    @property
    def signals(self) -> Mapping[str, Any]:
        """The values of the signals that the job had got when it was leased, by name."""
        return self._before.signals

    def __repr__(self) -> str:
        return f"<JobContext {self.klass} {self.jid} attempt {self.attempt}>"

    # followers of the completion

    @overload
    def put(self, queue: JobToPut, /) -> str: ...
    @overload
    def put(self, queue: str, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> str: ...
    def put(self, queue: str | JobToPut, klass: str = "", data: Any = None, **options: Any) -> str:
        """Put a job in the same step in which this one completes. If this one does not complete, nothing is put.

        Either a job that is ready to be put, as `handler.job(…)` returns, or its queue, klass and data, with options as
        for `Queue.put`. `trace` defaults to the current OpenTelemetry span, else to this job's. Returns the jid, which
        in a namespace of several shards ends in the key of this job's. At most 1,000 jobs and 256 MB. Raises TypeError
        or ValueError.
        """
        if isinstance(queue, JobToPut):
            if klass or data is not None or options:
                raise TypeError("job.put: a job that is ready to be put has its klass, data and options already")
            return self._put(**self._beside(queue))
        return self._put(queue, klass, data, **options)

    def _beside(self, job: JobToPut) -> JobToPut:
        """Give a job whose jid was drawn one that lies in the shard of this job."""
        if self._is_divided and job.draws_jid:
            job["jid"] = tied_jid(job.jid.partition("{")[0], False, [self._tie])
        return job

    @property
    def _tie(self) -> Tie:
        return Tie("this job", key_of(self.jid))

    def _put(self, queue: str, klass: str, data: Any = None, **options: Any) -> str:
        self._check_completes("put")
        if len(self._then) >= MOST_FOLLOWERS:
            raise ValueError(f"job.put: at most {MOST_FOLLOWERS} jobs can be put with one completion")
        if options.get("batch", self._batch_id) != self._batch_id:
            raise ValueError("job.put: a job can only put more jobs into its own batch, by job.batch.put")
        given = with_plain_values({name: _listed(value) for name, value in options.items()})
        if "trace" not in given and (trace := current_trace() or self.trace) is not None:
            given["trace"] = trace
        kind, raw = to_data("data", data)
        job = new_job("put", queue, klass, raw if kind == "bytes" else orjson.Fragment(raw), given)
        if self._is_divided:
            job = job.tied(self._tie)
        if job.jid == self.jid:
            raise ValueError(f"job.put: jid {job.jid!r} is this job's own: use job.next")
        follower = Follower(queue, klass, {**given, "jid": job.jid}, Blob(kind, raw))
        self._take_room("put", (queue, klass, follower.options), len(raw), job.lines)
        self._then.append(follower)
        return job.jid

    def next(self, queue: str, data: Any = UNSET, delay: Duration = 0, depends: Iterable[str | JobToPut] = ()) -> None:
        """Have this job go on in that queue once the handler has returned, after `delay` and the jobs of `depends`.

        `data` replaces the payload if given. Call it once per run. Raises TypeError or ValueError.
        """
        self._check_completes("next")
        if self._next is not None:
            raise ValueError(f"job.next: this job goes on in {self._next.queue!r} already; call it once")
        parents = [jid for jid in checked_lines("depends", as_jids(depends), MOST_PARENTS).split("\n") if jid]
        if self._is_divided:
            tied_jid(self.jid, True, [Tie(f"its parent {parent}", key_of(parent)) for parent in parents])
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
        """Return the completion with its followers. None: it has none."""
        return Completion(result, self._next, self._then) if self._next or self._then else None

    # while it runs

    def progress(self, fraction: float, text: str = "") -> None:
        """Report progress: a fraction from 0 to 1, and a text of at most 1,000 characters. Never waits.

        Reports within half a second of the last one are sent with the next, or when the job ends. Raises TypeError or
        ValueError.
        """
        self._unreported = ProgressReport(*checked_progress(fraction, text))
        if clock.monotonic() >= self._report_at:
            self.report_progress()

    def report_progress(self) -> None:
        """Send the last progress, if it was not sent yet."""
        progress, self._unreported = self._unreported, None  # first: threads of the handler may report, too
        if progress is not None:
            self._report_at = clock.monotonic() + PROGRESS_S
            self._calls.report(self.token, progress)

    def checkpoint(self, state: Any) -> None:
        """Store the state of the work: JSON of at most 64 KiB, in place of the last checkpoint.

        It becomes `saved` of the next start, after an interruption, failure or death, on any machine. It is deleted
        when the job completes. Blocks until Redis has it: about a round trip, and longer while Redis is away. In a
        coroutine it blocks the loop. Any thread may call it.

        After the first checkpoint, a handler that has to stop for a drain, a reload or a scaling is interrupted in this
        call, when the state is stored, so that no step is done twice. If it makes no call within a second, or a third
        of `--term-grace`, it is interrupted anywhere.

        Raises LeaseLost if this supervisor has lost the job; TypeError or ValueError for a state that cannot be stored.
        """
        self._calls.store(self.token, to_state("state", state))

    async def acheckpoint(self, state: Any) -> None:
        """Store the state as `checkpoint` does. It does not block the loop of a handler with `concurrency=`.

        Elsewhere the loop has no other job, and is blocked. Raises what `checkpoint` raises.
        """
        self.checkpoint(state)

    def stream(self, chunk: Any) -> None:
        """Give a chunk to those who read this job's stream (`client.stream(jid)`): bytes, or JSON; at most 64 KiB.

        It is sent at once. The call waits only while 64 chunks or 128 KiB are on their way to Redis. So a handler is
        slowed down to 1 MiB/s, where each chunk counts 64 bytes more, and waits while Redis is away. A coroutine that
        has to wait blocks the loop. Any thread may call it.

        All that was streamed is stored before the job's end, unless Redis' memory is full then. The stream keeps its
        last 4 MiB. A new start of the job goes on behind what the last one has streamed: readers see it by `attempt`.

        Raises LeaseLost if this supervisor has lost the job; TypeError or ValueError for what is no chunk.
        """
        self._calls.stream(self.token, to_chunk(chunk))

    async def astream(self, chunk: Any) -> None:
        """Stream a chunk as `stream` does. It does not block the loop of a handler with `concurrency=`.

        Elsewhere the loop has no other job, and is blocked. Raises what `stream` raises.
        """
        self.stream(chunk)

    # across starts

    def wait(self, name: str, timeout: Duration | None = None) -> Any:
        """Wait for the signal `name`, and return its value. Meanwhile the job has no process.

        If the signal has not come yet, the handler ends here, by an exception that it must let go. It starts again from
        its top when `Client.signal` sends it, and this call returns. What `put` and `next` have said is dropped, a
        checkpoint and the results of steps are kept. After `timeout` the handler starts again, and this call raises
        TimeoutError. Both starts spend nothing. One name is one wait. Raises ValueError for a job that cannot start
        again: a persistent or an at-most-once one; and for the 1,001st wait of a job.
        """
        self._check_starts_again("wait")
        return self._before.wait(name, None if timeout is None else duration_ms("timeout", timeout, least=0) / 1000)

    def sleep(self, duration: Duration) -> None:
        """Go on after `duration`. Meanwhile the job has no process: see `wait`.

        The first sleep of a start waits for the signal sleep-1, the next one for sleep-2, and so on. So each start must
        come to its sleeps in the same order.
        """
        self._check_starts_again("sleep")
        duration_s = duration_ms("duration", duration, least=0) / 1000
        with contextlib.suppress(TimeoutError):
            self._before.wait(self._before.sleep_name(), duration_s)

    def _check_starts_again(self, call: str) -> None:
        if self._persistent or self._at_most_once:
            kind = "a persistent" if self._persistent else "an at-most-once"
            raise ValueError(f"job.{call}: {kind} job cannot wait, because it would have to start again for that")

    @overload
    def step(self, name: str, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any) -> Awaitable[T]: ...
    @overload
    def step(self, name: str, function: Callable[..., T], /, *args: Any) -> T: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any) -> Any:
        """Return `function(*args)`, and store it at once. Later starts of the job get the stored result without a call.

        The result is JSON of at most 64 KiB, 1 MiB in all steps of a job. This call returns it as JSON keeps it. A
        start that is killed before the result is stored repeats the step, and only that. Blocks until Redis has it.
        For an `async` function it is to be awaited: see `astep`.

        Raises what the function raises; ValueError for the second step of this name in one start, and for a result that
        is too large; TypeError for an `async` function where nothing can await it; LeaseLost.
        """
        if inspect.iscoroutinefunction(function):
            from supervisor.child import event_loop

            if not event_loop.is_there():
                raise TypeError(
                    f"job.step: the function of step {name!r:.100} is async, and no loop runs here to await it:"
                    " make the handler async and await job.step(…), give a plain function, or run job.astep(…)"
                )
            return self.astep(name, function, *args)
        before = self._before
        if before.begin_step(name):
            return before.result_of(name)
        raw = before.raw_result(name, function(*args))
        self._store_step(name, raw)
        return before.end_step(name, raw)

    def _store_step(self, name: str, raw: bytes) -> None:
        self._calls.store(self.token, raw, name)

    async def astep(self, name: str, function: Callable[..., Any], /, *args: Any) -> Any:
        """Do the same as `step`, with a function that may be `async`. It does not block the loop of a handler with
        `concurrency=`.
        """
        before = self._before
        if before.begin_step(name):
            return before.result_of(name)
        result = function(*args)
        raw = before.raw_result(name, await result if inspect.isawaitable(result) else result)
        await self._astore_step(name, raw)
        return before.end_step(name, raw)

    async def _astore_step(self, name: str, raw: bytes) -> None:
        self._store_step(name, raw)

    # whether it has to stop

    @property
    def should_stop(self) -> bool:
        """True once the handler has been asked to stop, and from then on, even after it has caught Interrupted.

        A call costs a fraction of a microsecond and never waits. Any thread may ask.
        """
        if not self._told_to_stop and (now_at := clock.monotonic()) >= self._read_notices_at:
            self._read_notices_at = now_at + NOTICES_S
            self._calls.read_notices()
        return self._told_to_stop

    def tell_to_stop(self) -> None:
        self._told_to_stop = True


class JobBatch:
    """The batch of a running job, to which it may add jobs until it completes."""

    def __init__(self, job: JobContext, batch_id: str) -> None:
        self._job = job
        self.id = batch_id

    @overload
    def put(self, queue: JobToPut, /) -> str: ...
    @overload
    def put(self, queue: str, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> str: ...
    def put(self, queue: str | JobToPut, klass: str = "", data: Any = None, **options: Any) -> str:
        """Put a job into the batch, in the same step in which this job completes. Otherwise as `job.put`."""
        if isinstance(queue, JobToPut):
            return self._job.put(JobToPut({**self._job._beside(queue), "batch": self.id}))
        return self._job.put(queue, klass, data, **{**options, "batch": self.id})

    def __repr__(self) -> str:
        return f"<JobBatch {self.id}>"


def _listed(value: Any) -> Any:
    """Return an iterable option as a list, which can be read twice: tags and jids may come from a generator."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return list(value)
    return value
