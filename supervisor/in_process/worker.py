"""The worker inside of an application: `async with Worker(client, queues, handlers)`. Runs in applications.

Composes the parts, and ends them in order. Jobs have no isolation here: they share the application's process.
"""

import asyncio
import logging
import tempfile
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Final, Literal, Self

from supervisor.child.handler import Handler
from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.model.validation import Duration, checked_int, checked_seconds
from supervisor.engine.transport.dialer import ALONE
from supervisor.engine.worker.acknowledging import Acknowledging
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.engine.worker.leaser import Leaser
from supervisor.engine.worker.mail_reader import MailReader
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.in_process.book import Book
from supervisor.in_process.demand import LeaseDemand
from supervisor.in_process.exchanges import Exchanges
from supervisor.in_process.given import checked_client, checked_queues, prepared
from supervisor.in_process.jobs import Jobs, RunRules
from supervisor.in_process.leases import JobLeases
from supervisor.in_process.lookups import Lookups
from supervisor.in_process.patience import AWAY
from supervisor.in_process.renewals import LeaseRenewals
from supervisor.in_process.resumption import Resumption
from supervisor.in_process.session import WorkerSession
from supervisor.in_process.settlements import Settlements
from supervisor.in_process.skills import Skills
from supervisor.in_process.status_answers import StatusAnswers
from supervisor.in_process.upkeep import Upkeep
from supervisor.in_process.waits import Waits
from supervisor.setting_values import LONGEST_LEASE_S, SHORTEST_LEASE_S

log = logging.getLogger("leasehold")

#: An interrupted handler may clean up for so long.
_GRACE_S: Final = 3.0
#: The same, after the drain was cancelled.
_HURRY_S: Final = 0.5
#: What has ended is told for at most so long when the worker leaves. Without an answer the leases run out.
_FAREWELL_S: Final = 5.0
_MOST_AT_ONCE: Final = 1000
_DRAIN: Final = "drain"


class Worker:
    """Runs jobs in this process: a worker for small deployments and for development.

    ``async with Worker(client, ["mail"], "handlers"):`` leases jobs of the queues while the block runs. An `async`
    handler is a task of the running event loop, another one runs in a thread. When the block ends, the worker leases
    nothing more, lets the jobs finish within `drain_timeout`, interrupts the others, and hands back what is left. What
    a worker holds when its process dies runs again at another one, once the leases have run out.

    Jobs are not isolated: there is no limit of memory and no kill. A time limit, a cancellation and the end of the
    drain cancel the task of an `async` handler. A thread cannot be stopped: it sees `job.should_stop`, and if it goes
    on, its result counts unless its job was cancelled or handed back.
    """

    def __init__(
        self,
        client: AsyncClient,
        queues: str | Iterable[str],
        handlers: str | Iterable[Handler[..., Any]],
        *,
        concurrency: int = 10,
        order: str = "strict",
        job_timeout: Duration = "30m",
        drain_timeout: Duration = "25s",
        lease_ttl: Duration | None = None,
        on_error: Literal["retry", "fail"] = "retry",
    ) -> None:
        """`queues`: names, globs and exclusions, in this `order`. `handlers`: a module or package, or functions with
        @handler.

        `concurrency`: most jobs at once, 1 to 1,000. `job_timeout`: for jobs and handlers without their own; 0: none.
        `lease_ttl`: 1 s to 24 h; None: the queue's heartbeat. `on_error`: for handlers that do not say it.

        Raises TypeError or ValueError naming the argument, HandlersError, and what the modules of handlers raise.
        """
        self._client = checked_client(client)
        self._queues = checked_queues(queues, order)
        self._handlers, self._schemas = prepared(handlers)
        self._concurrency = checked_int("concurrency", concurrency, 1, _MOST_AT_ONCE)
        if on_error not in ("retry", "fail"):
            raise ValueError(f"on_error must be 'retry' or 'fail', not {on_error!r:.100}")
        self._rules = RunRules(on_error, _not_negative("job_timeout", job_timeout))
        self._drain_s = _not_negative("drain_timeout", drain_timeout)
        self._ttl_s = None if lease_ttl is None else _lease_ttl(lease_ttl)
        self._is_used = False

    @property
    def name(self) -> str:
        """The name of the worker, by which `leasehold workers` shows it. There is none before the block begins."""
        return self._identity.name

    async def __aenter__(self) -> Self:
        """Begin to lease. Raises StoreUnavailable or OutcomeUnknown if Redis is away, CronMissing without the extra
        `cron` for handlers that need it, RuntimeError the second time.
        """
        if self._is_used:
            raise RuntimeError("a Worker serves once: make another one")
        self._is_used = True
        self._compose()
        try:
            declarations = self._skills.declarations()
            await calls_of(self._client).shards.check_is_one("a Worker inside of an application")
            await self._session.resume()
            for command in declarations:
                await calls_of(self._client).run(command)
        except BaseException:
            self._directory.cleanup()
            raise
        self._serving = _started("exchanges", self._exchanges.serve())
        self._serving.add_done_callback(self._on_served)
        self._others = [_started("mail", self._waits.read_mail()), _started("upkeep", self._upkeep.serve())]
        return self

    def _compose(self) -> None:
        calls = calls_of(self._client)
        news = asyncio.Event()
        self._directory = tempfile.TemporaryDirectory(prefix="leasehold-worker-", ignore_cleanup_errors=True)
        identity = self._identity = Identity()
        serving = ServedQueues(self._queues)
        times = LeaseTimes(self._ttl_s, serving, ALONE)
        leaser = Leaser(identity, serving, times, Acknowledging(0, times))
        skills = self._skills = Skills(self._handlers, self._schemas)
        book = Book(news.set)
        jobs = self._jobs = Jobs(
            self._handlers, self._rules, self._concurrency, self._directory.name, calls, book, news.set
        )  # fmt: skip
        demand = self._demand = LeaseDemand(jobs, serving, skills.once, news.set)
        renewals = LeaseRenewals(identity, times, book, jobs)
        mail = MailReader(serving, demand.lease_soon, renewals.on_hint_of_loss)
        waits = self._waits = Waits(calls, identity, mail, demand, news.set)
        upkeep = self._upkeep = Upkeep(calls, identity, serving, demand)
        answers = StatusAnswers(identity, serving, demand, jobs, book)
        lookups = Lookups(identity, serving, skills, demand, answers)
        leases = JobLeases(demand, leaser, renewals, jobs, waits, upkeep)
        resumption = Resumption(calls, identity, times, book, jobs, renewals, lookups)
        session = self._session = WorkerSession(calls, identity, leaser, resumption)
        # Renewals go before the outcomes: with a job its last progress is kept.
        sources = (renewals, Settlements(identity, book), lookups, leases, answers)
        self._exchanges = Exchanges(session, sources, book, news)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drain. Cancelled meanwhile, it hands back at once. Raises what has ended the worker before."""
        try:
            await self._drain()
        except asyncio.CancelledError:
            self._jobs.stop_all(_DRAIN)
            await self._jobs.until_none(_HURRY_S)
            raise
        finally:
            await self._leave()

    async def _drain(self) -> None:
        """Lease nothing more, and wait for the jobs."""
        self._demand.close()
        await self._waits.end()
        self._jobs.tell_to_stop(_DRAIN)
        if not await self._jobs.until_none(self._drain_s):
            self._jobs.stop_all(_DRAIN)
            await self._jobs.until_none(_GRACE_S)

    async def _leave(self) -> None:
        """Tell Redis what has ended, and hand back the rest."""
        self._jobs.abandon(_DRAIN)
        self._exchanges.leave()
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await asyncio.shield(self._serving)
        except (TimeoutError, *AWAY) as error:
            log.warning("jobs run again only when their leases have run out: Redis was away. %s", error)
        finally:
            for task in (self._serving, *self._others):
                task.cancel()
            await asyncio.wait([self._serving, *self._others])
            self._directory.cleanup()

    def _on_served(self, serving: asyncio.Task[None]) -> None:
        """Stop the jobs if the exchanges have ended by an error: nothing renews their leases any more."""
        if not serving.cancelled() and serving.exception() is not None:
            self._jobs.lose_all()


def _started(what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s has ended: %s", task.get_name(), error, exc_info=error)

    task = asyncio.create_task(work, name=f"leasehold {what}")
    task.add_done_callback(ended)
    return task


def _lease_ttl(value: Duration) -> float:
    seconds = checked_seconds("lease_ttl", value)
    if not SHORTEST_LEASE_S <= seconds <= LONGEST_LEASE_S:
        raise ValueError(f"lease_ttl must be between 1s and 24h: {value!r}")
    return seconds


def _not_negative(argument: str, value: Duration) -> float:
    seconds = checked_seconds(argument, value)
    if seconds < 0:
        raise ValueError(f"{argument} must be 0 or more seconds: {value!r}")
    return seconds
