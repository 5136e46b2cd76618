# Generated from async_shards.py by `python -m tests.engine.client.sync_from_async`; do not edit.
"""Takes the commands of a Client to the shards of its namespace. Runs in applications and commands.

Owns a store for each shard, and what is known of their number. Must not: send anything twice, except what a shard has
refused because the client knew another number: that has changed nothing.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from supervisor import clock
from supervisor.engine.client.connection import T
from supervisor.engine.client.event_stream import EventFilter, EventStream
from supervisor.engine.client.job_stream import JobStream, StreamReading
from supervisor.engine.client.put_batches import BatchAnswer, most_under_way
from supervisor.engine.client.sharded_puts import Sent, ShardedPuts
from supervisor.engine.client.sync_store import Store
from supervisor.engine.commands import dividing, putting, waits
from supervisor.engine.commands.acknowledge import Acknowledgement
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.steps import Walk
from supervisor.engine.commands.waits import Followed
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.errors import LeaseholdError, StoreUnavailable
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.new_jobs import NewJob
from supervisor.engine.model.shards import OtherShards, ShardCount, shard_of

#: A call waits for so long while the jobs of the namespace are being moved.
_MOVING_S: Final = 10.0
_PAUSE_S: Final = 0.1
#: One wait for several shards lasts at most so long in each.
_TURN_S: Final = 0.25


class Shards:
    """`number` of shards is 1 until a shard says otherwise: then a namespace without shards costs no question."""

    def __init__(self, store_of: Callable[[Namespace], Store], namespace: Namespace) -> None:
        """`store_of` returns a store for a shard, without connecting."""
        self._store_of = store_of
        self._name = namespace.name
        self._count = ShardCount()
        self._is_known = False  # a shard has said how many there are
        self._stores = [store_of(namespace)]

    @property
    def is_one(self) -> bool:
        """True unless a shard has told that there are several."""
        return self._count.number == 1

    @property
    def first(self) -> Store:
        """The store of the first shard, which is the only one of most namespaces."""
        return self._stores[0]

    @property
    def poll_s(self) -> float:
        return self.first.poll_s

    @property
    def longest_wait_s(self) -> float:
        return self.first.longest_wait_s

    # how many there are

    def places(self) -> Sequence[Namespace]:
        """Return all shards, after asking how many they are if that is not known."""
        until_at = clock.monotonic() + _MOVING_S
        while not self._is_known:
            try:
                self.first.run(dividing.guests(()))  # whatever is asked, another number is refused
                self._is_known = True
            except OtherShards as other:
                self._learn(other, until_at)
        return [store.namespace for store in self._stores[: self._count.number]]

    def _learn(self, other: OtherShards, until_at: float) -> None:
        """Take the number of shards from a refusal. Raises it if that is not told until then: jobs are being moved."""
        if clock.monotonic() >= until_at:
            raise other
        if other.count is None:
            threading.Event().wait(_PAUSE_S)
            return
        self._count, self._is_known = other.count, True
        for shard in range(other.count.number):
            place = Namespace(self._name, shard, other.count.number)
            if shard < len(self._stores):
                self._stores[shard].namespace = place
            else:
                self._stores.append(self._store_of(place))

    # commands

    def run(self, command: Command[T]) -> T:
        """Run a command where its route says. Raises StoreUnavailable (nothing changed) or OutcomeUnknown."""
        until_at = 0.0
        while True:
            try:
                if self._count.number == 1:
                    return self.first.run(command)
                return self._routed(command)
            except OtherShards as other:
                until_at = until_at or clock.monotonic() + _MOVING_S
                self._learn(other, until_at)

    def _routed(self, command: Command[T]) -> T:
        if command.route is None:
            raise LeaseholdError(
                f"{command.script.name} is not possible in a namespace of several shards, of which this one has"
                f" {self._count.number}"
            )
        asking = command.route(command, self._count.number)
        answers: Any = None
        refusal: LeaseholdError | None = None
        try:
            while True:
                asked = asking.throw(refusal) if refusal else asking.send(answers)
                try:
                    answers, refusal = self._each(asked), None
                except LeaseholdError as error:
                    refusal = error
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what a generator returns is Any to typeshed

    def _each(self, asked: Sequence[tuple[int, Command[Any]]]) -> list[Any]:
        runs = (self._stores[shard].run(command) for shard, command in asked)
        return list(runs)

    def check_is_one(self, what: str) -> None:
        """Raise LeaseholdError if the namespace has several shards. `what`: the thing that needs one, as a subject."""
        number = len(self.places())
        if number > 1:
            raise LeaseholdError(f"{what} needs a namespace of one shard, and this one has {number}: give it another")

    def at(self, shard: int) -> Store:
        """Return the store of one shard, whose commands take no route."""
        self.places()
        return self._stores[shard]

    def walk(self, call: Walk[T]) -> T:
        """Run a call that names the shard of each command, whatever their number is now."""
        stores: dict[Namespace, Store] = {}
        answer: Any = None
        try:
            while True:
                place, command = call.send(answer)
                if place not in stores:
                    stores[place] = self._store_of(place)
                answer = stores[place].run(command)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what a generator returns is Any to typeshed
        finally:
            for store in stores.values():
                store.close()

    # puts

    def put(
        self, batches: Sequence[Sequence[NewJob]], now: Callable[[], float | None], wanted: Acknowledgement | None
    ) -> Sent:
        """Put batches of jobs, each into its shard. `wanted`: which replicas must have each; None: none must."""
        if self._count.number == 1:
            answers = self._put_at(self.first, batches, now, wanted)
            if not isinstance(answers[0], OtherShards):
                return Sent(batches, answers)
            # The first batch goes alone: if it is refused, no other was sent.
            self._learn(answers[0], clock.monotonic() + _MOVING_S)
        return self._put_apart(ShardedPuts(batches), now, wanted)

    def _put_apart(self, puts: ShardedPuts, now: Callable[[], float | None], wanted: Acknowledgement | None) -> Sent:
        """Put jobs into their shards, one after the other. What one refuses for the number of shards is placed anew."""
        until_at = clock.monotonic() + _MOVING_S
        while puts.left and not puts.has_failed:
            self.places()
            guests = self._guests_among(puts.left)
            for part in puts.divide(guests, self._count.number):
                has_failed = puts.has_failed
                part.take([] if has_failed else self._put_at(self._stores[part.shard], part.batches, now, wanted))
            if puts.refusal is not None:
                self._learn(puts.refusal, until_at)
        return puts.sent()

    def _guests_among(self, jobs: Sequence[NewJob]) -> frozenset[str]:
        """Return the jids of those jobs that must go to the first shard, where something of theirs is a guest."""
        things = {job.jid: things for job in jobs if (things := job.things)} if self._count.has_guests else {}
        asked = sorted({thing for each in things.values() for thing in each})
        found: set[tuple[str, str]] = set()
        for first in range(0, len(asked), MOST):
            part = asked[first : first + MOST]
            answers = self.first.run(dividing.guests(part))
            found.update(thing for thing, guests in zip(part, answers, strict=True) if guests)
        return frozenset(jid for jid, each in things.items() if found.intersection(each))

    def _put_at(
        self,
        store: Store,
        batches: Sequence[Sequence[NewJob]],
        now: Callable[[], float | None],
        wanted: Acknowledgement | None,
    ) -> Sequence[BatchAnswer]:
        """Return the answers to batches up to the first that fails, whose error is its answer."""
        if wanted is None:
            commands = (putting.put(batch, now=now()) for batch in batches)
            return store.run_ahead(commands, most_under_way(batches))
        answers: list[BatchAnswer] = []
        for batch in batches:
            try:
                answers.append(store.run_durably(putting.put(batch, now=now()), wanted))
            except LeaseholdError as error:
                return [*answers, error]
        return answers

    # waits and streams

    def pop_first(self, keys_of: Callable[[Namespace], Sequence[str]], seconds: float) -> bytes | None:
        """Wait as `pop` does, in the first shard."""
        store = self.first
        return store.pop(keys_of(store.namespace), min(seconds, self.longest_wait_s))

    def pop(self, keys_of: Callable[[Namespace], Sequence[str]], seconds: float, of: str = "") -> bytes | None:
        """Wait until something comes into one of the lists, at most so long, and take it. Raises StoreUnavailable.

        `keys_of` returns the lists in a shard. `of`: only in the shard of this jid; else in all, one after the other.
        """
        stores = self._stores
        if of:
            stores = [self._stores[shard_of(of, self._count.number)]]
        if len(stores) == 1:
            most_s = seconds if self._count.number == 1 else min(seconds, 1.0)  # a guest is told in the first shard
            return stores[0].pop(keys_of(stores[0].namespace), most_s)
        end_at = clock.monotonic() + seconds
        while True:
            for store in stores:
                left_s = max(end_at - clock.monotonic(), 0.0)
                popped = store.pop(keys_of(store.namespace), min(left_s, _TURN_S))
                if popped is not None or left_s <= 0:
                    return popped

    def events(self, wanted: EventFilter) -> EventStream:
        """Return a stream of events, which makes its own connection."""

        def places() -> Sequence[Namespace]:
            try:
                return self.places()
            except StoreUnavailable:  # an account may be allowed to listen alone; a lost server shows at once
                return [store.namespace for store in self._stores]

        return self.first.events(wanted, places)

    def stream(self, reading: StreamReading) -> JobStream:
        """Return a reader of a job's stream, which makes its own connection."""
        found = self._stores[:1]

        def follow(jid: str) -> Followed | None:
            until_at = clock.monotonic() + _MOVING_S
            while True:
                try:
                    for shard in dict.fromkeys((shard_of(jid, self._count.number), 0)):
                        found[0] = self._stores[shard]
                        reading.place = found[0].namespace
                        followed: Followed | None = found[0].run(waits.follow(jid))
                        if followed is not None:
                            return followed
                    return None
                except OtherShards as other:
                    self._learn(other, until_at)

        return found[0].stream(reading, follow, lambda: found[0].pool)

    def close(self) -> None:
        """Close all connections. A later call connects again."""
        for store in self._stores:
            store.close()
