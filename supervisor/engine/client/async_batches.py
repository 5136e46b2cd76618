"""A batch of an AsyncClient: jobs whose common end is told. Runs in applications and commands (never in a child).

Must not: send anything twice.
"""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.client.async_handles import AsyncJob
from supervisor.engine.commands import batches
from supervisor.engine.commands.batches import BatchRecord, Callback, Looked
from supervisor.engine.model.job_to_put import JobToPut
from supervisor.engine.model.new_jobs import PutOptions, new_jid
from supervisor.engine.model.shards import Tie, key_of, tied_jid
from supervisor.engine.model.validation import checked_each
from supervisor.engine.why.batches import conclude_batch
from supervisor.engine.why.record import Why

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient


class AsyncBatch:
    """Jobs of any queues that are put together, and whose common end is told.

    A `with` block opens it. Its callbacks wait until the block is left. An exception in the block cancels what was put,
    and no callback is put.
    """

    __slots__ = ("_callbacks", "_calls", "_client", "_description", "_is_own_id", "_parent", "id")

    def __init__(
        self,
        client: "AsyncClient",
        calls: AsyncCalls,
        id: str | None,
        description: str,
        callbacks: Mapping[str, Callback | None],
        parent: str | None = None,
    ) -> None:
        self._client = client
        self._calls = calls
        self.id = new_jid() if id is None else batches.checked_id(id)
        self._is_own_id = id is not None
        self._description = batches.checked_description(description)
        self._callbacks = batches.checked_callbacks(callbacks)
        self._parent = parent

    async def __aenter__(self) -> Self:
        if self._parent is not None and len(await self._calls.shards.places()) > 1:
            self.id = tied_jid(self.id, self._is_own_id, [Tie("the batch that it is in", key_of(self._parent))])
        await self._calls.call(batches.opened, self.id, self._description, self._parent, self._callbacks)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_known = await self._calls.call(batches.closed, self.id, kind is not None)
        if is_known and kind is not None:
            await self.cancel()

    @overload
    async def put(self, queue: JobToPut, /, *, durable: bool = False) -> str: ...
    @overload
    async def put(
        self, queue: str, klass: str, data: Any = None, *, durable: bool = False, **options: Unpack[PutOptions]
    ) -> str: ...
    async def put(
        self, queue: str | JobToPut, klass: str = "", data: Any = None, *, durable: bool = False, **options: Any
    ) -> str:
        """Put a job into the batch, as `Queue.put` does, and return its jid.

        A job that another one with its `unique` key keeps from being put is no member. Raises LeaseholdError outside of
        the batch's block.
        """
        if isinstance(queue, JobToPut):
            [jid] = await self.put_many(queue.queue, [queue], durable=durable)
            return jid
        arguments = {**options, "batch": self.id}
        return await self._client.queue(queue).put(klass, data, durable=durable, **arguments)

    async def put_many(self, queue: str, jobs: Iterable[Mapping[str, Any]], *, durable: bool = False) -> list[str]:
        """Put jobs into the batch, as `Queue.put_many` does, and return put's answer for each."""
        members = ({**one, "batch": self.id} for one in checked_each("jobs", jobs, "dicts of put's arguments"))
        return await self._client.queue(queue).put_many(members, durable=durable)

    def batch(
        self,
        id: str | None = None,
        *,
        on_success: Callback | None = None,
        on_failure: Callback | None = None,
        on_complete: Callback | None = None,
        description: str = "",
    ) -> "AsyncBatch":
        """Return a new batch for a `with` block, which is a member of this one: it ends with its own jobs."""
        callbacks = {"on_success": on_success, "on_failure": on_failure, "on_complete": on_complete}
        return AsyncBatch(self._client, self._calls, id, description, callbacks, self.id)

    async def look(self) -> BatchRecord:
        """Return the batch as it is now. Raises LeaseholdError if there is none, or Redis has forgotten it."""
        return (await self._look()).record

    async def why(self) -> Why:
        """Tell why the batch has not ended and calls nothing back, or how it ended, also if there is none."""
        looked = await self._calls.call(batches.look, self.id)
        return conclude_batch(self.id, None if looked is None else looked.record)

    async def _look(self, offset: int = 0, count: int = 0) -> Looked:
        looked = await self._calls.call(batches.look, self.id, offset, count)
        if looked is None:
            raise batches.unknown(self.id)
        return looked

    # sync only: @property
    # sync only: def total(self) -> int:
    # sync only:     return self.look().total
    # sync only: @property
    # sync only: def pending(self) -> int:
    # sync only:     return self.look().pending
    # sync only: @property
    # sync only: def complete(self) -> int:
    # sync only:     return self.look().complete
    # sync only: @property
    # sync only: def failed(self) -> int:
    # sync only:     return self.look().failed

    async def failures(self, offset: int = 0, count: int = 25) -> list[AsyncJob]:
        """Return up to 1,000 failed jobs of the batch, in the order in which they failed, each with its `failure`.

        Those that Redis has forgotten, and those of nested batches, are left out. Raises LeaseholdError if there is no
        such batch.
        """
        looked = await self._look(offset, count)
        jobs = await self._client.jobs(*looked.failed) if looked.failed else []
        return [job for job in jobs if job is not None]

    async def cancel(self, *, by: str | None = None) -> int:
        """Close the batch, delete its jobs that have not ended, also in batches in it, and return how many.

        A job outside that waits for one of them fails or runs, by its policy. It works in steps of 1,000 jobs; a call
        that was interrupted can be repeated. on_complete is put when all have ended. Raises LeaseholdError if there is
        no such batch.
        """
        return await self._calls.follow(batches.cancel(self.id, self._calls.named(by), self._calls.clock))

    async def pause(self, *, by: str | None = None) -> bool:
        """Have no waiting job of the batch, and of the batches in it, leased until `resume`.

        What runs goes on, and what is put meanwhile waits as well. `by` names who asks. Return False if the batch was
        paused. Raises LeaseholdError if there is none.
        """
        return await self._calls.act(batches.paused, self.id, by=by)

    async def resume(self, *, by: str | None = None) -> bool:
        """End the batch's own pause, and return False if there was none. A call that was interrupted can be repeated.

        `by` names who asks. Raises LeaseholdError if there is no such batch.
        """
        return await self._calls.follow(batches.resume(self.id, self._calls.named(by), self._calls.clock))

    async def retry(self, *, by: str | None = None) -> int:
        """Put the failed jobs back into their queues, also those of batches in it, and return how many.

        They are pending again. It works in steps of 1,000 jobs; a call that was interrupted can be repeated. `by` names
        who asks. Raises LeaseholdError if there is no such batch.
        """
        return await self._calls.follow(batches.retry(self.id, self._calls.clock, self._calls.named(by)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"
