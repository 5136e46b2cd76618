"""Takes the commands of an AsyncClient to the shards of its namespace. Runs in applications and commands.

Owns a store for each shard, and what is known of their number. Must not: send anything twice, except what a shard has
refused because the client knew another number: that has changed nothing.
"""

import asyncio  # async only
import threading
from collections.abc import Awaitable, Callable, Sequence  # async only

# sync only: from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from supervisor import clock
from supervisor.engine.client.async_steps import followed
from supervisor.engine.client.async_store import AsyncStore
from supervisor.engine.client.connection import T
from supervisor.engine.client.event_stream import AsyncEventStream, EventFilter
from supervisor.engine.client.job_stream import AsyncJobStream, StreamReading
from supervisor.engine.client.known_shards import KnownShards
from supervisor.engine.client.put_batches import BatchAnswer, most_under_way
from supervisor.engine.client.sharded_puts import Sent, ShardedPuts
from supervisor.engine.commands import dividing, putting, waits
from supervisor.engine.commands.acknowledge import Acknowledgement
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.steps import Walk
from supervisor.engine.commands.waits import Followed
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.errors import LayoutError, LeaseholdError, StoreUnavailable
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.new_jobs import NewJob
from supervisor.engine.model.shards import MOST_SHARDS, OtherShards, ShardCount, shard_of

#: A call waits for so long while the jobs of the namespace are being moved.
_MOVING_S: Final = 10.0
_PAUSE_S: Final = 0.1
#: One wait for several shards lasts at most so long in each.
_TURN_S: Final = 0.25


class AsyncShards:
    """There is one shard until it says otherwise: then a namespace without shards costs no question."""

    def __init__(self, store_of: Callable[[Namespace], AsyncStore], namespace: Namespace) -> None:
        """`store_of` returns a store for a shard, without connecting."""
        self._store_of = store_of
        self._name = namespace.name
        self._known = KnownShards(ShardCount(), [store_of(namespace)], False)
        self._learning = threading.Lock()  # threads may share a client; nothing is awaited meanwhile

    @property
    def only(self) -> AsyncStore | None:
        """The store of the only shard. None: a shard has told that there are several."""
        known = self._known
        return known.stores[0] if known.number == 1 else None

    @property
    def first(self) -> AsyncStore:
        """The store of the first shard, which is the only one of most namespaces."""
        return self._known.stores[0]

    @property
    def poll_s(self) -> float:
        return self.first.poll_s

    @property
    def longest_wait_s(self) -> float:
        return self.first.longest_wait_s

    # how many there are

    async def places(self, again: bool = False) -> Sequence[Namespace]:
        """Return all shards, after asking how many they are if that is not known, or is asked `again`."""
        return [store.namespace for store in (await self._surely(again)).stores]

    async def _surely(self, again: bool = False) -> KnownShards[AsyncStore]:
        until_at, is_asked = clock.monotonic() + _MOVING_S, False
        while not self._known.is_sure or (again and not is_asked):
            known = self._known
            try:
                await self._ask(known.stores[0])
                is_asked = True
                with self._learning:
                    if self._known is known:
                        self._known = replace(known, is_sure=True)
            except OtherShards as other:
                is_asked = other.count is not None
                await self._learn(other, until_at)
        return self._known

    async def _ask(self, first: AsyncStore) -> None:
        """Ask the first shard for anything, because it refuses another number. Raises OtherShards, also for the next.

        That one knows if the mark of the first is lost. If neither does, there is one shard.
        """
        try:
            await first.run(dividing.guests(()))
        except LayoutError:
            second = self._store_of(Namespace(self._name, 1, MOST_SHARDS + 1))  # no namespace has so many
            try:
                await second.run(dividing.guests(()))
            except StoreUnavailable:
                pass  # an account for one shard
            finally:
                await second.close()

    async def _learn(self, other: OtherShards, until_at: float) -> None:
        """Take the number of shards from a refusal. Raises it if that is not told until then: jobs are being moved."""
        if clock.monotonic() >= until_at:
            raise other
        if other.count is None:
            await asyncio.sleep(_PAUSE_S)  # async only
            # sync only: threading.Event().wait(_PAUSE_S)
            return
        with self._learning:
            known = self._known
            if known.is_sure and known.count == other.count:
                return  # another call has learned it
            places = [Namespace(self._name, shard, other.count.number) for shard in range(other.count.number)]
            kept = [store.at(place) for store, place in zip(known.stores, places, strict=False)]
            stores = [*kept, *(self._store_of(place) for place in places[len(kept) :])]
            self._known = KnownShards(other.count, stores, True)

    # sync only: def again(self, work: Callable[[], T]) -> T:
    async def again(self, work: Callable[[], Awaitable[T]]) -> T:  # async only
        """Do what goes to shards by itself, anew if one has refused the number that was known."""
        until_at = 0.0
        while True:
            try:
                return await work()
            except OtherShards as other:
                until_at = until_at or clock.monotonic() + _MOVING_S
                await self._learn(other, until_at)

    # commands

    async def run(self, command: Command[T]) -> T:
        """Run a command where its route says. Raises StoreUnavailable (nothing changed) or OutcomeUnknown."""
        until_at = 0.0
        while True:
            known = self._known
            try:
                if known.number == 1:
                    return await known.stores[0].run(command)
                return await self._routed(known, command)
            except OtherShards as other:
                until_at = until_at or clock.monotonic() + _MOVING_S
                await self._learn(other, until_at)

    async def _routed(self, known: KnownShards[AsyncStore], command: Command[T]) -> T:
        if command.route is None:
            raise LeaseholdError(
                f"{command.script.name} is not possible in a namespace of several shards, of which this one has"
                f" {known.number}"
            )
        answer: T = await followed(command.route(command, known.number), partial(self._each, known))
        return answer

    async def _each(self, known: KnownShards[AsyncStore], asked: Sequence[tuple[int, Command[Any]]]) -> list[Any]:
        if len(asked) == 1:  # the route knows what is done so far: a lease has jobs in its hands
            [(shard, command)] = asked
            return [await known.stores[shard].run(command)]
        runs = (self._patiently(known.stores[shard], command) for shard, command in asked)
        return list(await asyncio.gather(*runs))  # async only
        # sync only: return list(runs)

    async def _patiently(self, store: AsyncStore, command: Command[T]) -> T:
        """Run a part of a call, and wait while jobs of this shard are being moved: the other parts may be done."""
        until_at = clock.monotonic() + _MOVING_S
        while True:
            try:
                return await store.run(command)
            except OtherShards as other:
                if other.count is not None:
                    raise
                await self._learn(other, until_at)

    async def check_is_one(self, what: str) -> None:
        """Raise LeaseholdError if the namespace has several shards. `what`: the thing that needs one, as a subject."""
        number = len(await self.places())
        if number > 1:
            raise LeaseholdError(f"{what} needs a namespace of one shard, and this one has {number}: give it another")

    async def at(self, shard: int) -> AsyncStore:
        """Return the store of one shard, whose commands take no route."""
        return (await self._surely()).stores[shard]

    async def walk(self, call: Walk[T]) -> T:
        """Run a call that names the shard of each command, whatever their number is now."""
        stores: dict[Namespace, AsyncStore] = {}

        async def answer_to(step: tuple[Namespace, Command[Any]]) -> Any:
            place, command = step
            if place not in stores:
                stores[place] = self._store_of(place)
            return await stores[place].run(command)

        try:
            return await followed(call, answer_to)
        finally:
            for store in stores.values():
                await store.close()

    # puts

    async def put(
        self, batches: Sequence[Sequence[NewJob]], now: Callable[[], float | None], wanted: Acknowledgement | None
    ) -> Sent:
        """Put batches of jobs, each into its shard. `wanted`: which replicas must have each; None: none must."""
        puts = ShardedPuts(batches)
        only = self.only
        if only is not None:
            answers = await self._put_at(only, batches, now, wanted)
            if not any(isinstance(answer, OtherShards) for answer in answers):
                return Sent(batches, answers)
            puts.take_all(answers)
        try:
            await self._put_apart(puts, now, wanted)
        except (LeaseholdError, ValueError) as error:
            if not puts.has_answers:
                raise
            puts.fail(error)  # some are put: the error is to say which
        return puts.sent()

    async def _put_apart(
        self, puts: ShardedPuts, now: Callable[[], float | None], wanted: Acknowledgement | None
    ) -> None:
        """Put jobs into their shards, one after the other. What one refuses for the number of shards is placed anew."""
        until_at = clock.monotonic() + _MOVING_S
        while puts.left and not puts.has_failed:
            if puts.refusal is not None:
                await self._learn(puts.refusal, until_at)
            known = await self._surely()
            guests = await self._guests_among(known, puts.left)
            for part in puts.divide(guests, known.number):
                stops = puts.has_failed
                part.take([] if stops else await self._put_at(known.stores[part.shard], part.batches, now, wanted))

    async def _guests_among(self, known: KnownShards[AsyncStore], jobs: Sequence[NewJob]) -> frozenset[str]:
        """Return the jids of those jobs that must go to the first shard, where something of theirs is a guest."""
        things = {job.jid: things for job in jobs if (things := job.things)} if known.count.has_guests else {}
        asked = sorted({thing for each in things.values() for thing in each})
        found: set[tuple[str, str]] = set()
        for first in range(0, len(asked), MOST // 2):
            part = asked[first : first + MOST // 2]
            answers = await self._patiently(known.stores[0], dividing.guests(part))
            found.update(thing for thing, guests in zip(part, answers, strict=True) if guests)
        return frozenset(jid for jid, each in things.items() if found.intersection(each))

    async def _put_at(
        self,
        store: AsyncStore,
        batches: Sequence[Sequence[NewJob]],
        now: Callable[[], float | None],
        wanted: Acknowledgement | None,
    ) -> Sequence[BatchAnswer]:
        """Return the answers to batches up to the first that fails, whose error is its answer."""
        if wanted is None:
            commands = (putting.put(batch, now=now()) for batch in batches)
            return await store.run_ahead(commands, most_under_way(batches))
        answers: list[BatchAnswer] = []
        for batch in batches:
            try:
                answers.append(await store.run_durably(putting.put(batch, now=now()), wanted))
            except LeaseholdError as error:
                return [*answers, error]
        return answers

    # waits and streams

    async def pop_first(self, keys_of: Callable[[Namespace], Sequence[str]], seconds: float) -> bytes | None:
        """Wait until something comes into one of the lists of the first shard, and take it. Raises StoreUnavailable."""
        store = self.first
        return await store.pop(keys_of(store.namespace), min(seconds, self.longest_wait_s))

    async def pop_of(self, jid: str, keys_of: Callable[[Namespace], Sequence[str]], seconds: float) -> bytes | None:
        """Wait as `pop_first` does, in the shard of a job."""
        known = self._known
        store = known.stores[shard_of(jid, known.number)]
        most_s = seconds if known.number == 1 else min(seconds, 1.0)  # a guest is told in the first shard
        return await store.pop(keys_of(store.namespace), most_s)

    async def pop_any(self, keys_of: Callable[[Namespace], Sequence[str]], seconds: float) -> int | None:
        """Wait until something comes into one of the lists of any shard, at most so long, and take it.

        Return that shard. One shard after the other is looked at.
        """
        stores, end_at = self._known.stores, clock.monotonic() + seconds
        while True:
            for shard, store in enumerate(stores):
                left_s = max(end_at - clock.monotonic(), 0.0)
                turn_s = left_s if len(stores) == 1 else min(left_s, _TURN_S)
                if await store.pop(keys_of(store.namespace), turn_s) is not None:
                    return shard
                if left_s <= 0 or len(stores) == 1:
                    return None

    def beside(self) -> "AsyncShards":  # async only
        """Return shards with connections of their own, for another event loop."""  # async only
        own, known = AsyncShards(self._store_of, self.first.namespace), self._known  # async only
        stores = [store.beside(store.namespace) for store in known.stores]  # async only
        own._known = replace(known, stores=stores)  # async only
        return own  # async only

    def events(self, wanted: EventFilter) -> AsyncEventStream:
        """Return a stream of events, which makes its own connection."""

        async def places() -> Sequence[Namespace]:
            try:
                return await self.places(again=True)
            except (StoreUnavailable, OtherShards):  # an account may be allowed to listen alone; jobs may be moved
                return [store.namespace for store in self._known.stores]

        return self.first.events(wanted, places)

    def stream(self, reading: StreamReading) -> AsyncJobStream:
        """Return a reader of a job's stream, which makes its own connection."""
        found = [self.first]

        async def look(jid: str) -> Followed | None:
            known = self._known
            for shard in dict.fromkeys((shard_of(jid, known.number), 0)):
                found[0] = known.stores[shard]
                reading.place = found[0].namespace
                seen: Followed | None = await found[0].run(waits.follow(jid))
                if seen is not None:
                    return seen
            return None

        async def follow(jid: str) -> Followed | None:
            return await self.again(lambda: look(jid))

        return found[0].stream(reading, follow, lambda: found[0].pool)

    async def close(self) -> None:
        """Close all connections. A later call connects again."""
        for store in self._known.stores:
            await store.close()
