"""Runs commands for an AsyncClient and for what it hands out. Runs in applications and commands."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from supervisor.clock import monotonic
from supervisor.engine.client.answers import Answers, checked_wait_s
from supervisor.engine.client.around_put import AroundPut, registered
from supervisor.engine.client.async_shards import AsyncShards
from supervisor.engine.client.async_steps import followed
from supervisor.engine.client.async_store import AsyncStore
from supervisor.engine.client.connection import Clock, check_may_wait
from supervisor.engine.client.put_batches import answers_of, jids_of
from supervisor.engine.client.sharded_puts import Sent
from supervisor.engine.commands import mailbox, putting, recurrences, settings, workers
from supervisor.engine.commands.acknowledge import Acknowledgement
from supervisor.engine.commands.command import Command, checked_claim
from supervisor.engine.commands.facts import Facts
from supervisor.engine.commands.settings import Timing
from supervisor.engine.commands.steps import Steps
from supervisor.engine.model.bounds import ASK_S
from supervisor.engine.model.cron_times import CronMissing, DueCron, following
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.new_jobs import NewJob, new_jid
from supervisor.engine.model.shards import OtherShards
from supervisor.engine.model.validation import Duration, checked_flag
from supervisor.engine.why.conclusion import conclude
from supervisor.engine.why.record import Why
from supervisor.engine.why.supervisors import conclude_worker
from supervisor.engine.why.workers import to_ask

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient

T = TypeVar("T")

#: The configuration in Redis is read again after this time.
_CONFIGURED_S: Final = 30.0


class AsyncCalls:
    """`clock`: unix seconds of an injected clock. None: the server's clock is used.

    `acknowledge`: how many replicas must have each put; 0: only those that are durable need any, as many as Redis has
    configured, at least one.
    `own_around_puts`: the functions around each put of this client, by registration.
    `actor`: who acts, unless a call says so itself. None: nobody is named.
    """

    def __init__(
        self,
        store: AsyncShards | AsyncStore,
        namespace: Namespace,
        clock: Clock,
        acknowledge: int,
        actor: str | None = None,
    ) -> None:
        self._store = store
        self.namespace = namespace
        self.clock = clock
        self.actor = checked_claim(actor, "actor")
        self._acknowledge = acknowledge
        self._configured: Timing | None = None
        self._stale_at = 0.0
        self.own_around_puts: list[AroundPut] = []

    @property
    def around_puts(self) -> list[AroundPut]:
        """Return the functions around each put, those of all clients first."""
        return [*registered, *self.own_around_puts]

    async def call(self, build: Callable[..., Command[T]], *args: Any, **kwargs: Any) -> T:
        """Run the command that `build` (of engine/commands/) makes of the arguments at this time."""
        return await self.run(build(*args, now=self.clock(), **kwargs))

    async def act(self, build: Callable[..., Command[T]], *args: Any, by: str | None = None, **kwargs: Any) -> T:
        """Run a command that is recorded as the act of `by`, or of the client's actor."""
        return await self.call(build, *args, by=self.named(by), **kwargs)

    def named(self, by: str | None) -> str | None:
        """Return who acts. Raises ValueError if `by` begins as the name of a login."""
        return self.actor if by is None else checked_claim(by)

    def acting_as(self, actor: str) -> "AsyncCalls":
        """Return calls of another actor on the same connections."""
        calls = AsyncCalls(self._store, self.namespace, self.clock, self._acknowledge, actor)
        calls.own_around_puts = self.own_around_puts
        return calls

    async def run(self, command: Command[T]) -> T:
        """Run a command of engine/commands/."""
        return await self._store.run(command)

    async def follow(self, call: Steps[T]) -> T:
        """Run a call of several commands, of engine/commands/steps.py."""
        return await followed(call, self.run)

    async def pop(self, keys: Sequence[str], longest_s: float) -> bytes | None:
        """Wait until something comes into one of the lists of the first shard, and take it. Raises StoreUnavailable."""
        return await self.shards.pop_first(lambda _place: keys, longest_s)

    async def follow_each(self, build: Callable[[], Steps[T]], join: Callable[[list[T]], T]) -> T:
        """Run a call of several commands in each shard by itself. `join` makes one result of theirs."""

        async def work() -> T:
            results = [await calls.follow(build()) for calls in await self.of_each_shard()]
            return results[0] if len(results) == 1 else join(results)

        return await self.shards.again(work)

    async def of_each_shard(self) -> "list[AsyncCalls]":
        """Return calls that go to one shard, whatever their routes: for each shard."""
        return [await self.at(place.shard) for place in await self.shards.places()]

    async def at(self, shard: int) -> "AsyncCalls":
        """Return calls that go to this shard, whatever their routes."""
        store = await self.shards.at(shard)
        return AsyncCalls(store, store.namespace, self.clock, self._acknowledge, self.actor)

    @property
    def shards(self) -> AsyncShards:
        """The shards of the namespace. Calls of one shard have none."""
        assert isinstance(self._store, AsyncShards)
        return self._store

    async def ask(
        self,
        workers: str | Sequence[str] | None,
        what: str,
        longest_s: float,
        argument: Any = None,
        told: Callable[[dict[str, Any]], object] | None = None,
    ) -> dict[str, Any]:
        """Ask workers for something, and return their answers, None of those that have not answered in time.

        `told` is given the dict into which the answers come, as soon as the workers are asked.
        """
        deadline_at = monotonic() + longest_s
        question, stands_s = new_jid(), max(longest_s, ASK_S)
        answers = Answers(await self.act(mailbox.ask, question, workers, what, argument, stands_s=stands_s))
        if told is not None:
            told(answers.by_worker)
        while answers.missing and (left_s := deadline_at - monotonic()) > 0:
            answers.take(await self.pop([self.namespace.answer(question)], left_s))
        return answers.by_worker

    async def why(self, build: Callable[..., Command[Facts]], subject: str, timeout: Duration) -> Why:
        """Tell why a job or a queue stands where it does. Workers that know more are asked, for at most `timeout`."""
        longest_s = checked_wait_s("timeout", timeout)
        found = await self.call(build, subject)
        why = conclude(found)
        whom = to_ask(found, why.reason) if longest_s else ()
        try:
            return conclude(found, await self.ask(whom, "status", longest_s)) if whom else why
        except LeaseholdError:
            return why  # a worker has gone meanwhile, or this account may only read

    async def why_worker(self, worker: str, timeout: Duration) -> Why:
        """Tell what is wrong with a worker. A supervisor is asked, for at most `timeout`."""
        longest_s = checked_wait_s("timeout", timeout)
        held = await self.call(workers.jobs_of, worker)
        try:
            answers = await self.ask([worker], "status", longest_s)
        except LeaseholdError:
            return conclude_worker(held, None, is_asked=False)  # it is none, has gone, or this account only reads
        return conclude_worker(held, answers[worker])

    def beside(self) -> "AsyncCalls":  # async only
        """Return calls with connections of their own, for another event loop. They are to be closed."""  # async only
        calls = AsyncCalls(self.shards.beside(), self.namespace, self.clock, self._acknowledge)  # async only
        calls.actor = self.actor  # async only
        return calls  # async only

    async def close(self) -> None:  # async only
        await self._store.close()  # async only

    async def spawn(self, due: Sequence[DueCron], now_unix: float) -> bool:
        """Put the jobs of the cron recurrences that are due, and return whether there were any."""
        spawned = False
        for one in due:
            try:
                run_at, next_unix = following(one, now_unix)
            except CronMissing:
                continue  # a worker that has the library does it; its absence here is no reason not to lease
            taken = await self.call(recurrences.spawn, one, run_at, next_unix)
            spawned = spawned or (taken and bool(run_at))
        return spawned

    async def put_jobs(self, jobs: Sequence[NewJob], durable: bool = False) -> list[bool | str]:
        """Put checked jobs in one batch, or in one of each shard.

        Each answer says whether anything was done, or is a jid: of another job that holds the unique key, or that under
        which the job was put, to lie in one shard with what it is tied to.
        """
        if (only := self.shards.only) is not None and (await self._wanted(durable)) is None:
            try:
                return await only.run(putting.put(jobs, now=self.clock()))
            except OtherShards:
                pass  # nothing was put
        sent = await self._put([jobs], durable)
        answers = sent.in_order(answers_of(sent.batches, sent.answers))
        if not sent.order:
            return answers
        known_by = zip(answers, jobs, sent.jobs, strict=True)
        return [one.jid if answer is True and one.jid != job.jid else answer for answer, job, one in known_by]

    async def put_batches(self, batches: Sequence[Sequence[NewJob]], durable: bool = False) -> list[str]:
        """Put batches of checked jobs, and return what put answers for each."""
        sent = await self._put(batches, durable)
        return [str(jid) for jid in sent.in_order(jids_of(sent.batches, sent.answers))]

    async def _put(self, batches: Sequence[Sequence[NewJob]], durable: bool) -> Sent:
        wanted = await self._wanted(durable)
        return await self.shards.put(batches, self.clock, wanted) if batches else Sent((), ())

    async def _wanted(self, durable: bool) -> Acknowledgement | None:
        """Return which replicas must have a put. None: none must."""
        if not (checked_flag("durable", durable) or self._acknowledge):
            return None
        check_may_wait(self._store.poll_s)
        if self._configured is None or monotonic() >= self._stale_at:
            self._configured, self._stale_at = await self.run(settings.timing(("*",))), monotonic() + _CONFIGURED_S
        return Acknowledgement(
            self._acknowledge or self._configured.acknowledge or 1, self._configured.acknowledge_timeout_s
        )


def calls_of(client: "AsyncClient") -> AsyncCalls:
    """Return what runs a client's commands, for our own programs: applications need none of it."""
    return client._calls
