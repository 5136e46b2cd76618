"""The object that the fixture `leasehold` gives to a test. Used in the process of pytest.

Owns the test's queue and its clock. Must not decide what an outcome means: the rules of the master do.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, overload

from supervisor import clock
from supervisor.child.context import JobCalls
from supervisor.child.handler import Handler
from supervisor.child.handlers import registered
from supervisor.child.orders import Interrupted, SoftTimeout
from supervisor.engine.client.answers import renewed
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_handles import Job, Lease
from supervisor.engine.client.sync_queues import Queue
from supervisor.engine.commands import leasing, parent_results, recurrences
from supervisor.engine.commands.queue_counts import Depths
from supervisor.engine.model.outcomes import Released
from supervisor.engine.model.recurring import declared
from supervisor.engine.model.validation import Duration, in_seconds
from supervisor.in_process.outcomes import RunEnd, message_of, outcome_of
from supervisor.master.model import outcome_rules
from supervisor.messages import HandlerSettings, JobMessage, ProgressReport, ResultsPage
from supervisor.testing import puts
from supervisor.testing.faults import Crashed, Faults, Trial
from supervisor.testing.kit import NAMESPACE, Kit
from supervisor.testing.pool import RunningPool
from supervisor.testing.recording import RecordingContext, message_for, page_of
from supervisor.testing.run import Run

WORKER: Final = "leasehold-test"
_MOST_RUNS: Final = 10_000
_MOST_LEASED: Final = 1000


class Leasehold:
    """A queue of the test's own, in a real server, and handlers that run in the test's process.

    `client`: a Client of this queue. `Client()`, and typed puts without a client, lead to it as well. The queue's clock
    stands still until `advance`. Python's own clocks go on.
    """

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.client = kit.client
        self._faults = Faults()
        self._began_unix = self._now_unix = clock.unix()
        self._pool: RunningPool | None = None
        self._told: list[str] = []

    # the queue and its clock

    @property
    def url(self) -> str:
        """The server's URL, for a client that is given one."""
        return self._kit.server.url

    @property
    def namespace(self) -> str:
        """The namespace of the queue."""
        return NAMESPACE

    def queue(self, name: str = "default") -> Queue:
        """Return a queue, without a round trip."""
        return self.client.queue(name)

    @property
    def now(self) -> float:
        """The queue's time in unix seconds. While there is a pool it is the server's."""
        return clock.unix() if self._pool else self._now_unix

    def clock(self) -> float:
        """Return the time for clients. None stands for the server's."""
        return None if self._pool else self._now_unix  # type: ignore[return-value]  # as a Client takes its clock

    def advance(self, duration: Duration) -> float:
        """Move the clock forward, and return its time in unix seconds. Nothing runs before `run`.

        Raises ValueError for a negative duration, RuntimeError while there is a pool.
        """
        seconds = in_seconds("duration", duration)
        if not isinstance(seconds, int | float) or not seconds >= 0:
            raise ValueError(f"duration={duration!r}: give seconds, 0 or more, or a duration like '1h'")
        if self._pool:
            raise RuntimeError("a pool lives by the server's clock, which cannot be moved")
        self._now_unix += seconds
        return self._now_unix

    def declare(self, *wanted: Handler[..., Any]) -> list[str]:
        """Put the recurring jobs of handlers with `cron` or `every`, as a supervisor does that has loaded them.

        Without arguments: of all handlers that this process has imported. Returns the jids put or changed, which are
        the klasses. Raises CronMissing without the extra `cron`, ValueError for a handler that does not recur.
        """
        root, found = self._kit.in_process.root, {}
        for handler in wanted or registered():
            if recurrence := handler.recurrence:
                found[handler.klass_below(root)] = recurrence
            elif wanted:
                raise ValueError(f"{handler!r} has neither cron nor every")
        declarations = [declared(klass, recurrence, self._now_unix) for klass, recurrence in found.items()]
        calls = calls_of(self.client)
        answers = map(calls.run, recurrences.declarations([], declarations, now=calls.clock()))
        return [jid for put, _removed in answers for jid in put]

    @property
    def told(self) -> str:
        """The jobs that have run so far, as text for people."""
        return "\n".join(self._told)

    # runs

    @overload
    def run(self, jid: str) -> Run: ...
    @overload
    def run(self, jid: None = None, until: Literal["idle"] | None = None) -> list[Run]: ...
    def run(self, jid: str | None = None, until: Literal["idle"] | None = None) -> Run | list[Run]:
        """Run jobs in this process, one after another, and return how each run has ended. Raises nothing of handlers.

        Without arguments: all that are due, and those that become due by that at this time. `jid`: this job only.
        `until="idle"`: the clock moves to what is scheduled, until nothing is. Recurring jobs come as it passes them.

        Raises HandlersError for a klass without a handler; ValueError for a job that cannot run now; RuntimeError after
        10,000 runs, and in an event loop, where `await asyncio.to_thread(leasehold.run)` works.
        """
        if until not in (None, "idle") or (jid is not None and until is not None):
            raise ValueError(f"run(jid={jid!r}, until={until!r}): give a jid, or until='idle', or neither")
        if self._pool:
            raise RuntimeError("a pool runs the jobs; wait for them by leasehold.client.wait(jid, timeout)")
        if jid is not None:
            return self._run_one(jid)
        runs: list[Run] = []
        while True:
            while lease := self._lease():
                if len(runs) == _MOST_RUNS:
                    lease.release(started=False)
                    raise RuntimeError(f"{_MOST_RUNS} jobs have run, and {lease.klass} {lease.jid} is due still")
                runs.append(self._run(lease))
            due_unix = self._next_due_unix() if until else None
            if due_unix is None:
                return runs
            self._now_unix = max(self._now_unix, due_unix)

    def _lease(self) -> Lease | None:
        """Lease a job that is due. None: there is none."""
        if not any(_may_give(depths) for depths in self.client.queues().values()):
            return None  # one round trip, where leases would take four to find nothing
        for count in (1, _MOST_LEASED):  # a lease of one job looks at few more, which may not start now
            if leases := self.client.lease(WORKER, ["*"], count):
                return self._only(leases, leases[0].jid)
        return None

    def _next_due_unix(self) -> float | None:
        """Return when the next job is due that is scheduled, and not recurring."""
        first = [job for name in self.client.queues() for job in self.queue(name).jobs("scheduled", 0, 1)]
        return min((job.due_unix for job in first if isinstance(job, Job) and job.due_unix is not None), default=None)

    def _run_one(self, jid: str) -> Run:
        run = self._run(self._lease_of(jid))
        while run.outcome == "died" and self._faults.trial and (job := self.client.job(jid)) and job.state == "waiting":
            run = self._run(self._lease_of(jid))
        return run

    def _lease_of(self, jid: str) -> Lease:
        job = self.client.job(jid)
        if job is None:
            raise ValueError(f"there is no job {jid!r}")
        leases = self.client.lease(WORKER, [job.queue], _MOST_LEASED) if job.state == "waiting" else []
        lease = self._only(leases, jid)
        if lease is None:
            hint = "; leasehold.advance(…) moves the clock" if job.state == "scheduled" else ""
            hint = f"; it waits for the signal {job.waiting_for}" if job.waiting_for is not None else hint
            raise ValueError(f"job {jid} cannot run now: it is {job.state}{' (parked)' if job.parked else ''}{hint}")
        return lease

    def _only(self, leases: list[Lease], jid: str) -> Lease | None:
        """Hand all leases back but that of one job, in their order."""
        if others := [Released(lease, started=False) for lease in leases if lease.jid != jid]:
            self.client.settle(others)
        return next((lease for lease in leases if lease.jid == jid), None)

    def _run(self, lease: Lease) -> Run:
        try:
            handler = self._kit.in_process.handler_of(lease.klass)
        except BaseException:
            lease.release(started=False)
            raise
        if handler.settings.misses_mark(lease):
            lease = self._marked(lease)
        ended = self._kit.in_process.run(self._context_of(lease), handler)
        self._settle(lease, ended.end, handler.settings)
        self._told.append(str(ended.run))
        return ended.run

    def _marked(self, lease: Lease) -> Lease:
        """Return a new lease of the job, by which the engine knows that it must not start twice."""
        lease.release(started=False)
        grant = calls_of(self.client).call(leasing.lease, WORKER, [lease.queue], 1, once=[lease.klass])
        return Lease(grant.leases[0], calls_of(self.client))

    def _context_of(self, lease: Lease) -> RecordingContext:
        def report(token: int, progress: ProgressReport) -> None:
            renewal = leasing.Renewal(lease.jid, token, progress=(progress.fraction, progress.text))
            calls_of(self.client).call(leasing.renew, WORKER, [renewal])

        def store(token: int, state: bytes, step: str = "") -> None:
            renewal = leasing.Renewal(lease.jid, token, True, state=state, step=step)
            [expires_unix] = calls_of(self.client).call(leasing.renew, WORKER, [renewal])
            renewed(lease, expires_unix)

        def ask_results(_token: int, first: int, most: int) -> ResultsPage:
            return ResultsPage(0, *calls_of(self.client).run(parent_results.read(lease.jid, first, most)))

        def stream(token: int, chunk: bytes) -> None:
            calls_of(self.client).call(leasing.stream, WORKER, [leasing.Streamed(lease.jid, token, None, [chunk])])

        calls = JobCalls(report, store, ask_results=ask_results, stream=stream)
        return self._recording(message_of(lease), calls, lease.klass)

    def _recording(self, message: JobMessage, calls: JobCalls, klass: str) -> RecordingContext:
        workdir = self._kit.in_process.workdir
        return RecordingContext(message, workdir, calls, lambda point: self._faults.reach(point, klass))

    def _settle(self, lease: Lease, end: RunEnd, settings: HandlerSettings) -> None:
        [verdict] = self.client.settle([outcome_of(lease, end, settings)])
        if (instead := outcome_rules.of_verdict(lease, verdict)) is not None:
            self.client.settle([instead])

    # what was put

    def puts(self, wanted: str | Handler[..., Any] | None = None) -> list[Job]:
        """Return the jobs of a klass or handler (None: of all), whatever has become of them, in the order of the puts.

        Jobs that were cancelled, or ended and are not kept, are not among them.
        """
        klass = None if wanted is None else self._klass_of(wanted)
        return [job for job in puts.all_jobs(self.client) if klass in (None, job.klass)]

    def assert_put(
        self, wanted: str | Handler[..., Any], data: Mapping[str, Any] | None = None, /, *, times: int = 1, **keys: Any
    ) -> list[Job]:
        """Return the jobs that were put of a klass or handler with these keys in their data.

        `data` is for keys that cannot be written as arguments, such as `times`. Raises AssertionError, with the jobs
        that were put, if there are not exactly `times`.
        """
        expected = {**(data or {}), **keys}
        klass, like = self._klass_of(wanted), puts.as_json(expected)
        jobs = puts.all_jobs(self.client)
        found = [job for job in jobs if puts.matches(job, klass, like)]
        if len(found) != times:
            words = "".join(f", {name}={value!r}" for name, value in expected.items())
            raise AssertionError(
                f"{klass}{words} was put {len(found)} times, not {times}; put were\n{puts.listed(jobs)}"
            )
        return found

    def _klass_of(self, wanted: str | Handler[..., Any]) -> str:
        return puts.klass_of(wanted, self._kit.in_process.root)

    # one handler alone

    def context(
        self,
        wanted: str | Handler[..., Any],
        data: Any = None,
        *,
        results: Mapping[str, Any] | None = None,
        **record: Any,
    ) -> RecordingContext:
        """Return a JobContext for a call of a handler, of a job that lies in no queue.

        It records `puts`, `reported`, `checkpoints` and `streamed`. `results`: of its parents, by jid. `record`: jid,
        queue, priority, failures, deaths, interruptions, tags, lane, saved, signals and steps (by name), trace,
        waited_s, persistent, at_most_once, token. Raises TypeError or ValueError.
        """
        klass = self._klass_of(wanted)
        calls = JobCalls(ask_results=lambda *_: page_of(results or {}))
        return self._recording(message_for(klass, data, record), calls, klass)

    # faults

    def check_faults(self) -> None:
        """Raise AssertionError if a fault waits at a place that no handler has come to."""
        if pending := self._faults.pending:
            raise AssertionError(f"no handler has come to {', '.join(map(repr, pending))}, where a fault was to be")

    def crash(self, at: str = "return") -> None:
        """Have the process die, in the next run that comes to a place.

        `at`: "start", "checkpoint 2" (stored), "before checkpoint 2", "step 1", "before step 1", "put 1", "next",
        "progress 3" or "return" (the handler has ended, and nobody knows it yet). In this process the death is an
        exception that `except Exception` does not catch, and that no handler can survive: code of `finally` runs.
        Raises ValueError.
        """
        self._faults.arm(at, lambda: Crashed(at))

    def interrupt(self, at: str, reason: str = "drain") -> None:
        """Have Interrupted be raised in the next run that comes to a place. The job goes to the front, uncounted."""
        self._faults.arm(at, lambda: Interrupted(reason))

    def timeout(self, at: str = "start") -> None:
        """Have SoftTimeout be raised in the next run that comes to a place, as before the time limit."""
        self._faults.arm(at, SoftTimeout)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Have Redis be away: connections end, and new ones are refused. A put raises StoreUnavailable."""
        self._kit.server.cut()
        try:
            yield
        finally:
            self._kit.server.restore()

    @contextmanager
    def trial(self, kill_at: int | None = None) -> Iterator[Trial]:
        """Begin anew with an empty queue, for `every_crash_point`. Kills at the point of this index."""
        self._kit.server.empty()
        self._faults.clear()
        self._now_unix = self._began_unix
        self._faults.trial = trial = Trial(kill_at)
        try:
            yield trial
        finally:
            self._faults.trial = None

    # a real supervisor

    @contextmanager
    def pool(self, processes: int = 2, handlers: str | None = None, *arguments: str) -> Iterator[RunningPool]:
        """Run a real supervisor of all queues meanwhile, and drain it at the end.

        `handlers`: the package, from the current directory. `arguments`: further flags of `leasehold run`. Time is the
        server's then. Blocks until it serves. Raises AssertionError with its log if it does not boot or drain.
        """
        if self._now_unix != self._began_unix:
            raise RuntimeError("a pool lives by the server's clock: call pool() before advance()")
        with tempfile.TemporaryDirectory(prefix="leasehold-pool-") as directory:
            self._pool = RunningPool(
                self.client, Path(directory, "log"), processes, handlers or self._kit.root, arguments
            )
            try:
                yield self._pool
                self._pool.drain()
            finally:
                self._pool.kill()
                self._pool = None


def _may_give(depths: Depths) -> bool:
    """Return whether a lease may find a job in a queue: one may be due, have room in its limit by now, or recur."""
    return bool(depths.waiting or depths.stalled or depths.parked or depths.recurring)
