"""Runs the commands of a Client, each sent once. Runs in applications and commands (never in zygote or child).

Owns a pool of connections, of which each thread takes one for a call. Must not: send anything twice.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, Final

import hiredis
import redis as redis_py

from supervisor import clock
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
from supervisor.engine.client.event_stream import EventFilter, EventStream
from supervisor.engine.client.following import OurProvider
from supervisor.engine.client.job_stream import JobStream, StreamReading
from supervisor.engine.commands.acknowledge import Acknowledgement
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.waits import Followed
from supervisor.engine.model.errors import LeaseholdError, OutcomeUnknown, StoreUnavailable
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.scripts import check_server

_LOST: Final = (redis_py.ConnectionError, redis_py.TimeoutError, OSError)


class Store:
    """Runs commands, each on a connection that no other call uses meanwhile."""

    def __init__(self, pool: Any, shown: str, namespace: Namespace, poll_s: float) -> None:
        """`shown` names the server in messages; `namespace`: the shard that it serves. `poll_s`: how often a call that
        waits looks; 0: it waits in Redis.
        """
        self.poll_s = poll_s
        self.longest_wait_s = longest_wait_s(pool.connection_kwargs)
        self._pool = pool
        # To give a connection back and take it again costs more than the call in between. A pool that may renew a
        # connection between two calls gets it back nevertheless.
        provider = pool.connection_kwargs.get("credential_provider")
        self._keeps = type(pool) is redis_py.ConnectionPool and isinstance(provider, OurProvider | None)
        self._kept: deque[Any] = deque()
        self._pid = os.getpid()
        self._shown = shown
        self.namespace = namespace
        self._checked = False

    def run(self, command: Command[T]) -> T:
        """Run a command in one round trip; a lease of large payloads takes two.

        Raises StoreUnavailable (nothing changed) or OutcomeUnknown.
        """
        connection = self._connect()
        try:
            self._check_server(connection)
            answer = command.parse(self._completed(connection, command))
        except redis_py.ResponseError as error:
            (self._leave if is_elsewhere(error) else self._give_back)(connection)
            raise refused(self._shown, command, error) from error
        except BaseException:
            self._leave(connection)
            raise
        self._give_back(connection)
        return answer

    def run_durably(self, command: Command[T], wanted: Acknowledgement) -> T:
        """Run a command that writes, and wait until enough replicas have it.

        Raises StoreUnavailable (nothing changed) or OutcomeUnknown.
        """
        connection, wanted = self._connect(), wanted.within(self.longest_wait_s)
        try:
            self._check_server(connection)
            wire = command.wire(*self.namespace.keys)
            reply, acknowledged = self._ask_durably(connection, command, wire, wanted)
            if isinstance(reply, redis_py.exceptions.NoScriptError):
                wire = self._loaded(connection, command)
                reply, acknowledged = self._ask_durably(connection, command, wire, wanted)
        except _LOST as error:
            self._leave(connection)
            raise unreachable(self._shown, error) from error
        except BaseException:
            self._leave(connection)
            raise
        # A primary without its replicas may have been replaced: the next call asks for the present one.
        stays = not is_elsewhere(reply) and wanted.is_met(acknowledged)
        (self._give_back if stays else self._leave)(connection)
        if isinstance(reply, Exception):
            raise refused(self._shown, command, reply) from reply
        check_acknowledged(self._shown, command, wanted, acknowledged)
        return command.parse(reply)

    def _ask_durably(
        self, connection: Any, command: Command[Any], wire: Any, wanted: Acknowledgement
    ) -> tuple[Any, Any]:
        """Return the replies to a command, sent as `wire`, and to WAIT. An error reply is a value."""
        behind: Any = wanted.commands(self.namespace.prefix)
        connection.send_packed_command([hiredis.pack_command(each) for each in (wire, *behind)])
        replies: list[Any] = []
        try:
            while len(replies) < 3:
                try:
                    replies.append(connection.read_response())
                except redis_py.ResponseError as error:
                    replies.append(error)
        except _LOST as error:
            raise unanswered(self._shown, command, error) from error
        reply, written, acknowledged = replies
        return reply, written if isinstance(written, Exception) else acknowledged

    def run_ahead(self, commands: Iterable[Command[T]], most: int) -> list[T | LeaseholdError]:
        """Run commands that put jobs, in their order, with at most `most` under way. Return their answers.

        A command that fails has its error as its answer. No further one is sent then, so the last answers are of those
        that were under way with it.
        """
        try:
            connection = self._connect()
        except StoreUnavailable as error:
            return [error]
        answers: list[Any] = []
        is_clean = False
        try:
            answers = self._run_ahead(connection, commands, most)
            is_clean = not has_failed(answers)
        finally:
            if is_clean:
                self._give_back(connection)
            elif any(isinstance(answer, StoreUnavailable | OutcomeUnknown) for answer in answers):
                self._leave(connection)
            else:
                self._discard(connection)
        return answers

    def pop(self, keys: Sequence[str], seconds: float) -> bytes | None:
        """Wait until something comes into one of the lists, at most so long, and take it. Raises StoreUnavailable."""
        if not self.poll_s:
            [popped] = self._popped([blocking_pop(keys, seconds)])
            return popped[1] if popped else None
        end_at = clock.monotonic() + seconds
        while True:
            popped = self._popped([("LPOP", key) for key in keys])
            left_s = end_at - clock.monotonic()
            if any(popped) or left_s <= 0:
                return next(filter(None, popped), None)
            threading.Event().wait(min(self.poll_s, left_s))

    def _popped(self, commands: Sequence[Any]) -> list[Any]:
        """Return the replies to commands. Raises StoreUnavailable."""
        connection = self._connect()
        try:
            connection.send_packed_command([hiredis.pack_command(command) for command in commands])
            replies = [connection.read_response() for _ in commands]
        except BaseException as error:
            self._leave(connection)
            if isinstance(error, (*_LOST, redis_py.ResponseError)):
                raise unreachable(self._shown, error) from error
            raise
        self._give_back(connection)
        return replies

    @property
    def pool(self) -> Any:
        return self._pool

    def at(self, namespace: Namespace) -> "Store":
        """Return a store for another name of the shard, which shares the connections of this one."""
        other = copy(self)
        other.namespace = namespace
        return other

    def events(self, wanted: EventFilter, places: Callable[[], Sequence[Namespace]]) -> EventStream:
        """Return a stream of the events of some shards, which makes its own connection."""
        return EventStream(self._pool, self._shown, wanted, places)

    def stream(
        self, reading: StreamReading, follow: Callable[[str], Followed | None], pool: Callable[[], Any]
    ) -> JobStream:
        """Return a reader of a job's stream, which makes its own connection, of a pool."""
        return JobStream(pool, self._shown, reading, follow)

    def close(self) -> None:
        """Close all connections. A later call connects again."""
        with contextlib.suppress(IndexError):
            while True:
                self._pool.release(self._kept.pop())
        self._pool.disconnect()

    def _connect(self) -> Any:
        try:
            return self._take_kept() or self._pool.get_connection()
        except (*_LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error

    def _take_kept(self) -> Any:
        """Return the connection that was used last, if it is as good as new; None: there is none."""
        if self._pid != os.getpid():  # a fork must not speak on its parent's
            self._kept, self._pid = deque(), os.getpid()
        try:
            while True:
                connection = self._kept.pop()
                if _is_ready(connection):
                    return connection
                self._pool.release(connection)
        except IndexError:
            return None

    def _give_back(self, connection: Any) -> None:
        if self._keeps:
            self._kept.append(connection)
        else:
            self._pool.release(connection)

    def _discard(self, connection: Any) -> None:
        """Close a connection. An answer may be under way on it, which the next command would take for its own."""
        connection.disconnect()
        self._pool.release(connection)

    def _leave(self, connection: Any) -> None:
        """Close it, and all that no call uses: they may lead to a server that serves us no more."""
        self._discard(connection)
        with contextlib.suppress(IndexError):
            while True:
                self._discard(self._kept.pop())

    def _check_server(self, connection: Any) -> None:
        if self._checked:
            return
        try:
            connection.send_command("INFO", "server")
            check_server(connection.read_response())
        except redis_py.ResponseError:
            pass  # an ACL or a proxy without INFO: the scripts' first lines refuse a server that is too old
        except _LOST as error:
            raise unreachable(self._shown, error) from error
        self._checked = True

    def _completed(self, connection: Any, command: Command[Any]) -> Any:
        """Return the reply, with what it leaves out."""
        reply = self._answered(connection, command)
        left_out = command.left_out and command.left_out(self.namespace.prefix, reply)
        if left_out and left_out.commands:
            commands: list[Any] = list(left_out.commands)
            try:
                connection.send_packed_command([hiredis.pack_command(wire) for wire in commands])
                left_out.fill([connection.read_response() for _ in commands])
            except (*_LOST, redis_py.ResponseError) as error:
                raise unread(self._shown, command, error) from error
        return reply

    def _run_ahead(self, connection: Any, commands: Iterable[Command[Any]], most: int) -> list[Any]:
        answers: list[Any] = []
        under_way: deque[Command[Any]] = deque()
        unsent: list[Any] = []
        for command in commands:
            # The first one goes alone: it loads the script, and finds a server that would refuse all of them.
            while len(under_way) >= (most if answers else 1):
                answers += self._next(connection, under_way, has_failed(answers))
            if has_failed(answers):
                break
            if (error := self._attempt(self._send_ahead, connection, command, not under_way)) is not None:
                unsent = [error]
                break
            under_way.append(command)
        while under_way:
            answers += self._next(connection, under_way, bool(unsent) or has_failed(answers))
        return answers + unsent

    def _send_ahead(self, connection: Any, command: Command[Any], is_alone: bool) -> None:
        self._check_server(connection)
        # A health check of redis-py would take the answer to the command before for that to its PING.
        self._send(connection, command, check_health=is_alone)

    def _next(self, connection: Any, under_way: deque[Command[Any]], failed: bool) -> list[Any]:
        """Return the answer to the oldest command. If the server has lost its scripts, return the answers to all.

        None answers a command that was not sent again, because one has failed: of these, or before (`failed`).
        """
        commands = [under_way.popleft()]
        answers = [self._attempt(self._parsed, connection, commands[0], self._read)]
        if answers[0] is NO_SCRIPT:
            answers += [self._attempt(self._parsed, connection, each, self._read) for each in under_way]
            commands += under_way
            under_way.clear()
        for i, command in enumerate(commands):
            if answers[i] is NO_SCRIPT:
                again = not (failed or has_failed(answers))
                answers[i] = self._attempt(self._parsed, connection, command, self._sent_again) if again else None
        return answers

    def _parsed(self, connection: Any, command: Command[T], ask: Callable[[Any, Command[T]], Any]) -> T:
        return command.parse(ask(connection, command))

    def _attempt(self, act: Callable[..., Any], connection: Any, command: Command[Any], *more: Any) -> Any:
        """Return an error as a value."""
        try:
            return act(connection, command, *more)
        except (redis_py.ResponseError, LeaseholdError) as error:
            return as_answer(self._shown, command, error)

    def _answered(self, connection: Any, command: Command[Any]) -> Any:
        try:
            return self._ask(connection, command)
        except redis_py.exceptions.NoScriptError:
            return self._ask(connection, command, self._loaded(connection, command))

    def _loaded(self, connection: Any, command: Command[Any]) -> tuple[Any, ...]:
        """Load a script that the server lacks, and return what to send.

        The server has not run the command, so to send it then is no second time.
        """
        try:
            connection.send_command("SCRIPT", "LOAD", command.script.text)
            connection.read_response()
        except redis_py.exceptions.NoPermissionError:
            raise
        except redis_py.ResponseError:
            return command.wire_with_script(*self.namespace.keys)  # by a proxy that passes no SCRIPT on
        except _LOST as error:
            raise unreachable(self._shown, error) from error
        return command.wire(*self.namespace.keys)

    def _sent_again(self, connection: Any, command: Command[Any]) -> Any:
        try:
            return self._answered(connection, command)
        except redis_py.exceptions.NoScriptError as error:  # lost once more, just after it was loaded
            raise refused(self._shown, command, error) from error

    def _ask(self, connection: Any, command: Command[Any], wire: tuple[Any, ...] = ()) -> Any:
        self._send(connection, command, wire=wire)
        return self._read(connection, command)

    def _send(
        self, connection: Any, command: Command[Any], check_health: bool = True, wire: tuple[Any, ...] = ()
    ) -> None:
        words: Any = wire or command.wire(*self.namespace.keys)  # of any number: hiredis says that it takes one
        try:
            connection.send_packed_command([hiredis.pack_command(words)], check_health)
        except _LOST as error:
            raise unreachable(self._shown, error) from error  # Redis runs no command that has not come to its end

    def _read(self, connection: Any, command: Command[Any]) -> Any:
        try:
            return connection.read_response()
        except _LOST as error:
            raise unanswered(self._shown, command, error) from error


def _is_ready(connection: Any) -> bool:
    """Return whether nothing has come that the next command would take for its answer, nor the connection's end."""
    try:
        return not connection.can_read()
    except _LOST:
        connection.disconnect()
        return False
