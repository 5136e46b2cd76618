"""Runs the commands of an AsyncClient, each sent once. Runs in asyncio applications (never in zygote or child).

Owns the connection that calls share, and a pool for calls that need their own. Must not: send anything twice, or block
the event loop.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, NamedTuple

import redis as redis_py
import redis.asyncio as redis_aio

from supervisor import clock
from supervisor.engine.client.cancels import Cancels
from supervisor.engine.client.connection import (
    NO_SCRIPT,
    T,
    as_answer,
    blocking_pop,
    check_acknowledged,
    has_failed,
    is_elsewhere,
    longest_wait_s,
    refused,
    unanswered,
    unreachable,
    unread,
)
from supervisor.engine.client.event_stream import AsyncEventStream, EventFilter
from supervisor.engine.client.job_stream import AsyncJobStream, StreamReading
from supervisor.engine.client.pools import closed, pool_beside, pools_behind, uncounted_connection
from supervisor.engine.client.shared_line import (
    LOST,
    MOST_BYTES,
    NotSent,
    OwnLine,
    SharedLine,
    can_share,
    dialled,
    packed,
    sent,
)
from supervisor.engine.commands.acknowledge import Acknowledgement
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.waits import Followed
from supervisor.engine.model.errors import LeaseholdError, StoreUnavailable
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.scripts import check_server


class _Call(NamedTuple):
    """A command that is under way on the shared connection."""

    command: Command[Any]
    words: bytes
    answer: asyncio.Future[Any]


class AsyncStore:
    """Runs commands. Calls that are under way together share a connection if the pool's kind allows it.

    A call that waits in Redis, or that is large, takes its own connection out of the pool.
    """

    def __init__(self, pool: Any, shown: str, namespace: Namespace, poll_s: float) -> None:
        """`shown` names the server in messages; `namespace`: the shard that it serves. `poll_s`: how often a call that
        waits looks; 0: it waits in Redis.
        """
        self.poll_s = poll_s
        self.longest_wait_s = longest_wait_s(pool.connection_kwargs)
        self._pool = pool
        self._pool_loop: asyncio.AbstractEventLoop | None = None  # None until the pool has connections
        self._shares = can_share(pool)
        self._line: SharedLine | None = None
        self._dialling: asyncio.Task[SharedLine] | None = None
        self._shown = shown
        self.namespace = namespace
        self._checked = False

    def __del__(self) -> None:
        if self._line is not None:
            self._line.leave()

    async def run(self, command: Command[T]) -> T:
        """Run a command in one round trip; a lease of large payloads takes two.

        Raises StoreUnavailable (nothing changed) or OutcomeUnknown.
        """
        return await self._run(command, packed(*command.wire(*self.namespace.keys)))

    async def _run(self, command: Command[T], words: bytes) -> T:
        try:
            if self._can_share(words):
                return command.parse(await self._completed(await self._shared_line(), command, words))
            return command.parse(await self._run_alone(command, words))
        except redis_py.ResponseError as error:
            if is_elsewhere(error):
                await self._leave()
            raise refused(self._shown, command, error) from error

    def _can_share(self, words: bytes) -> bool:
        return self._shares and len(words) <= MOST_BYTES

    async def _shared_line(self) -> SharedLine:
        line = self._line
        return line if line is not None and line.stands() else await self._dialled()

    async def run_durably(self, command: Command[T], wanted: Acknowledgement) -> T:
        """Run a command that writes, and wait until enough replicas have it, on a connection of its own.

        Raises StoreUnavailable (nothing changed) or OutcomeUnknown.
        """
        wanted = wanted.within(self.longest_wait_s)
        async with self._connection() as connection:
            try:
                line = OwnLine(connection)
                await self._check_server(line)
                words = packed(*command.wire(*self.namespace.keys))
                reply, acknowledged = await self._ask_durably(connection, command, words, wanted)
                if isinstance(reply, redis_py.exceptions.NoScriptError):
                    words = await self._loaded(line, command, words)
                    reply, acknowledged = await self._ask_durably(connection, command, words, wanted)
                # A primary without its replicas may have been replaced: the next call asks for the present one.
                if is_elsewhere(reply) or not wanted.is_met(acknowledged):
                    await self._leave()
                    await connection.disconnect(nowait=True)
            except BaseException as error:
                await connection.disconnect(nowait=True)
                if isinstance(error, (NotSent, *LOST)):
                    raise unreachable(self._shown, error) from error
                raise
        if isinstance(reply, Exception):
            raise refused(self._shown, command, reply) from reply
        check_acknowledged(self._shown, command, wanted, acknowledged)
        return command.parse(reply)

    async def _ask_durably(
        self, connection: Any, command: Command[Any], words: bytes, wanted: Acknowledgement
    ) -> tuple[Any, Any]:
        """Return the replies to a command, sent as `words`, and to WAIT. An error reply is a value."""
        await sent(connection, [words, *(packed(*each) for each in wanted.commands(self.namespace.prefix))])
        replies: list[Any] = []
        try:
            while len(replies) < 3:
                try:
                    replies.append(await connection.read_response())
                except redis_py.ResponseError as error:
                    replies.append(error)
        except LOST as error:
            await self._leave()
            raise unanswered(self._shown, command, error) from error
        reply, written, acknowledged = replies
        return reply, written if isinstance(written, Exception) else acknowledged

    async def run_ahead(self, commands: Iterable[Command[T]], most: int) -> list[T | LeaseholdError]:
        """Run commands that put jobs, in their order, with at most `most` under way. Return their answers.

        A command that fails has its error as its answer. No further one is sent then, so the last answers are of those
        that were under way with it. Only the shared connection has several under way.
        """
        answers: list[Any] = []
        under_way: deque[_Call] = deque()
        try:
            for command in commands:
                words = packed(*command.wire(*self.namespace.keys))
                # The first one goes alone: it loads the script, and finds a server that would refuse all of them. What
                # has another connection goes alone, too: it might overtake the others.
                is_alone = not answers or not self._can_share(words)
                while len(under_way) > (0 if is_alone else most - 1):
                    answers += await self._next(under_way, has_failed(answers))
                if has_failed(answers):
                    break
                if is_alone:
                    answers.append(await self._attempt(command, self._run(command, words)))
                    continue
                if not under_way:
                    line = await self._shared_line()
                under_way.append(_Call(command, words, line.ask(words)))
            while under_way:
                answers += await self._next(under_way, has_failed(answers))
        except StoreUnavailable as error:  # no line, so none is under way
            answers.append(error)
        finally:
            for call in under_way:
                call.answer.cancel()
        return answers

    async def _next(self, under_way: deque[_Call], failed: bool) -> list[Any]:
        """Return the answer to the oldest command. If the server has lost its scripts, return the answers to all.

        None answers a command that was not sent again, because one has failed: of these, or before (`failed`).
        """
        calls = [under_way[0]]
        answers = [await self._answer_to(calls[0])]
        if answers[0] is NO_SCRIPT:
            calls = list(under_way)
            answers += [await self._answer_to(call) for call in calls[1:]]
        for _ in calls:
            under_way.popleft()
        for i, call in enumerate(calls):
            if answers[i] is NO_SCRIPT:
                again = not (failed or has_failed(answers))
                answers[i] = await self._attempt(call.command, self._run(call.command, call.words)) if again else None
        return answers

    async def _answer_to(self, call: _Call) -> Any:
        return await self._attempt(call.command, self._parsed(call))

    async def _parsed(self, call: _Call) -> Any:
        return call.command.parse(await self._replied(call.command, call.answer))

    async def _attempt(self, command: Command[Any], answer: Awaitable[Any]) -> Any:
        """Return an error as a value."""
        try:
            return await answer
        except (redis_py.ResponseError, LeaseholdError) as error:
            if is_elsewhere(error):
                await self._leave()
            return as_answer(self._shown, command, error)

    async def _run_alone(self, command: Command[Any], words: bytes) -> Any:
        async with self._connection() as connection:
            line = OwnLine(connection)
            await self._check_server(line)
            return await self._completed(line, command, words)

    async def pop(self, keys: Sequence[str], seconds: float) -> bytes | None:
        """Wait until something comes into one of the lists, at most so long, and take it. Raises StoreUnavailable."""
        if not self.poll_s:
            [popped] = await self._popped([blocking_pop(keys, seconds)])
            return popped[1] if popped else None
        end_at = clock.monotonic() + seconds
        while True:
            popped = await self._popped([("LPOP", key) for key in keys])
            left_s = end_at - clock.monotonic()
            if any(popped) or left_s <= 0:
                return next(filter(None, popped), None)
            await asyncio.sleep(min(self.poll_s, left_s))

    async def _popped(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the replies to commands. Raises StoreUnavailable."""
        async with self._connection() as connection:
            try:
                await sent(connection, [packed(*command) for command in commands])
                return [await connection.read_response() for _ in commands]
            except (*LOST, redis_py.ResponseError) as error:
                await connection.disconnect(nowait=True)
                await self._leave()
                raise unreachable(self._shown, error) from error

    @property
    def pool(self) -> Any:
        """The pool for the running loop."""
        return self._pool_here()

    def at(self, namespace: Namespace) -> "AsyncStore":
        """Return a store for another name of the shard, which takes over the connections of this one."""
        dialling, self._dialling = self._dialling, None  # it makes a line of this store
        other = copy(self)
        self._dialling, self._line = dialling, None  # a call that is under way has its line
        other.namespace = namespace
        return other

    def beside(self, namespace: Namespace) -> "AsyncStore":
        """Return a store with connections of its own, for another event loop or another shard on the same server."""
        return AsyncStore(pool_beside(redis_aio, self._pool), self._shown, namespace, self.poll_s)

    def events(self, wanted: EventFilter, places: Callable[[], Awaitable[Sequence[Namespace]]]) -> AsyncEventStream:
        """Return a stream of the events of some shards, which makes its own connection."""
        return AsyncEventStream(self._pool_here, self._shown, wanted, places)

    def stream(
        self, reading: StreamReading, follow: Callable[[str], Awaitable[Followed | None]], pool: Callable[[], Any]
    ) -> AsyncJobStream:
        """Return a reader of a job's stream, which makes its own connection, of a pool."""
        return AsyncJobStream(pool, self._shown, reading, follow)

    async def close(self) -> None:
        """Close all connections. A later call connects again."""
        if dialling := self._under_way():
            await asyncio.wait([dialling])  # else the connection that it makes would stay
        if self._line is not None:
            await self._line.close()
        for pool in pools_behind(self._pool_here()):
            await closed(pool.disconnect())

    async def _leave(self) -> None:
        """Have later calls connect anew: what is connected now may lead to a server that serves us no more."""
        if self._line is not None:
            self._line.retire()
        await closed(self._pool_here().disconnect(inuse_connections=False))

    def _pool_here(self) -> Any:
        """Return the pool for the running loop. A new one replaces that of another loop.

        redis-py's pool would hand out a connection that belongs to a loop which has ended.
        """
        loop = asyncio.get_running_loop()
        if self._pool_loop not in (loop, None):
            self._pool = pool_beside(redis_aio, self._pool)
        self._pool_loop = loop
        return self._pool

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """Take a connection out of the pool for one call. Raises StoreUnavailable."""
        cancels, pool = Cancels(), self._pool_here()
        try:
            connection = await pool.get_connection()
        except (*LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error
        try:
            cancels.check()
            yield connection
        finally:
            await pool.release(connection)  # a call of another loop may have replaced the store's pool

    async def _dialled(self) -> SharedLine:
        """Return the shared connection, dialled once for all calls that need it, even if one of them is cancelled."""
        dialling = self._under_way()
        if dialling is None:
            dialling = self._dialling = asyncio.create_task(self._dial())
        return await asyncio.shield(dialling)

    def _under_way(self) -> asyncio.Task[SharedLine] | None:
        """Return the dialling on the running loop. A dialling that was left with an ended loop will never end."""
        dialling = self._dialling
        return dialling if dialling is not None and dialling.get_loop() is asyncio.get_running_loop() else None

    async def _dial(self) -> SharedLine:
        try:
            line = await dialled(uncounted_connection(self._pool))
            try:
                await self._check_server(line)
            except BaseException:
                await line.close()
                raise
        except (NotSent, *LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error
        finally:
            self._dialling = None
        self._line = line
        return line

    async def _check_server(self, line: SharedLine | OwnLine) -> None:
        if self._checked:
            return
        try:
            check_server(await line.ask(packed("INFO", "server")))
        except redis_py.ResponseError:
            pass  # an ACL or a proxy without INFO: the scripts' first lines refuse a server that is too old
        except (NotSent, *LOST) as error:
            raise unreachable(self._shown, error) from error
        self._checked = True

    async def _completed(self, line: SharedLine | OwnLine, command: Command[Any], words: bytes) -> Any:
        """Return the reply, with what it leaves out."""
        reply = await self._answered(line, command, words)
        left_out = command.left_out and command.left_out(self.namespace.prefix, reply)
        if left_out and left_out.commands:
            try:
                left_out.fill(await line.ask_all([packed(*wire) for wire in left_out.commands]))
            except (NotSent, *LOST, redis_py.ResponseError) as error:
                raise unread(self._shown, command, error) from error
        return reply

    async def _answered(self, line: SharedLine | OwnLine, command: Command[Any], words: bytes) -> Any:
        try:
            return await self._ask(line, command, words)
        except redis_py.exceptions.NoScriptError:
            return await self._ask(line, command, await self._loaded(line, command, words))

    async def _loaded(self, line: SharedLine | OwnLine, command: Command[Any], words: bytes) -> bytes:
        """Load a script that the server lacks, and return what to send in place of `words`.

        The server has not run the command, so to send it then is no second time.
        """
        try:
            await line.load(command.script.text)
        except redis_py.exceptions.NoPermissionError:
            raise
        except redis_py.ResponseError:
            return packed(*command.wire_with_script(*self.namespace.keys))  # by a proxy that passes no SCRIPT on
        except (NotSent, *LOST) as error:
            raise unreachable(self._shown, error) from error
        return words

    async def _ask(self, line: SharedLine | OwnLine, command: Command[Any], words: bytes) -> Any:
        return await self._replied(command, line.ask(words))

    async def _replied(self, command: Command[Any], reply: Awaitable[Any]) -> Any:
        try:
            return await reply
        except NotSent as error:
            raise unreachable(self._shown, error) from error
        except LOST as error:
            await self._leave()
            raise unanswered(self._shown, command, error) from error
