"""Runs the commands of an AsyncClient, each sent once. Runs in asyncio applications (never in zygote or child).

Owns the connection that calls share, and a pool for calls that need their own. Must not: send anything twice, or block
the event loop.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import redis as redis_py

from supervisor.engine.client.connection import T, refused, unanswered, unreachable, unread
from supervisor.engine.client.event_stream import AsyncEventStream, EventFilter
from supervisor.engine.client.pools import uncounted_connection
from supervisor.engine.client.shared_line import (
    LOST,
    MOST_BYTES,
    NotSent,
    OwnLine,
    SharedLine,
    can_share,
    dialled,
    packed,
)
from supervisor.engine.commands.writes import Command
from supervisor.engine.model.scripts import check_server


class AsyncStore:
    """Runs commands. Calls that are under way together share a connection if the pool's kind allows it.

    A call that waits in Redis, or that is large, takes its own connection out of the pool.
    """

    def __init__(self, pool: Any, shown: str, prefix: str) -> None:
        """`shown` names the server in messages; `prefix` begins each key of the namespace."""
        self._pool = pool
        self._shares = can_share(pool)
        self._line: SharedLine | None = None
        self._dialling: asyncio.Task[SharedLine] | None = None
        self._shown = shown
        self._prefix = prefix
        self._checked = False

    def __del__(self) -> None:
        if self._line is not None:
            self._line.leave()

    async def run(self, command: Command[T]) -> T:
        """Run a command in one round trip; a lease of large payloads takes two.

        Raises StoreUnavailable (nothing changed) or OutcomeUnknown.
        """
        words = packed(*command.wire(self._prefix))
        try:
            if self._shares and len(words) <= MOST_BYTES:
                line = self._line
                if line is None or not line.stands():
                    line = await self._dialled()
                return command.parse(await self._completed(line, command, words))
            return command.parse(await self._run_alone(command, words))
        except redis_py.ResponseError as error:
            raise refused(self._shown, command, error) from error

    async def _run_alone(self, command: Command[Any], words: bytes) -> Any:
        connection = await self._connect()
        try:
            line = OwnLine(connection)
            await self._check_server(line)
            return await self._completed(line, command, words)
        finally:
            await self._pool.release(connection)

    async def pop(self, keys: Sequence[str], seconds: float) -> bytes | None:
        """Wait until something comes into one of the lists, at most so long, and take it. Raises StoreUnavailable."""
        connection = await self._connect()
        try:
            await connection.send_command("BLPOP", *keys, f"{max(seconds, 0.001):.3f}")  # 0 would wait for ever
            popped = await connection.read_response()
            return popped[1] if popped else None
        except (*LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error
        finally:
            await self._pool.release(connection)

    def events(self, wanted: EventFilter) -> AsyncEventStream:
        """Return a stream of events, which makes its own connection."""
        return AsyncEventStream(self._pool, self._shown, wanted)

    async def close(self) -> None:
        """Close all connections. A later call connects again."""
        if dialling := self._under_way():
            await asyncio.wait([dialling])  # else the connection that it makes would stay
        if self._line is not None:
            await self._line.close()
        await self._pool.disconnect()

    async def _connect(self) -> Any:
        try:
            return await self._pool.get_connection()
        except (*LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error

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
        except redis_py.exceptions.NoPermissionError:
            pass  # an ACL without INFO: the scripts' first lines refuse a server that is too old
        except (NotSent, *LOST) as error:
            raise unreachable(self._shown, error) from error
        self._checked = True

    async def _completed(self, line: SharedLine | OwnLine, command: Command[Any], words: bytes) -> Any:
        """Return the reply, with what it leaves out."""
        reply = await self._answered(line, command, words)
        left_out = command.left_out and command.left_out(self._prefix, reply)
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
            # The server has not run the command, so to send it now is no second time.
            try:
                await line.load(command.script.text)
            except (NotSent, *LOST) as error:
                raise unreachable(self._shown, error) from error
            return await self._ask(line, command, words)

    async def _ask(self, line: SharedLine | OwnLine, command: Command[Any], words: bytes) -> Any:
        try:
            return await line.ask(words)
        except NotSent as error:
            raise unreachable(self._shown, error) from error
        except LOST as error:
            raise unanswered(self._shown, command, error) from error
