"""Makes connections of redis-py that look for their server each time they connect, and logins that read their files.

Runs in applications and commands (never in zygote or child). Uses what redis-py has made public to be overridden.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import redis as redis_py

from supervisor.engine.transport.account import Credentials, NoAccount
from supervisor.engine.transport.dial import Unreachable
from supervisor.engine.transport.whereabouts import Whereabouts, check_is_primary

T = TypeVar("T")


def following(library: Any, base: type) -> type:
    """Return a class of connections like `base`, of `redis` or `redis.asyncio`, whose constructor takes `whereabouts=`
    in addition.
    """
    return type("FollowingConnection", (_SyncFollowing if library is redis_py else _AsyncFollowing, base), {})


def follows(kind: type) -> bool:
    """Return whether connections of this class look for their server."""
    return issubclass(kind, _Following)


class _Following:
    host: str
    port: int

    def __init__(self, *, whereabouts: Whereabouts, **given: Any) -> None:
        self._whereabouts = whereabouts
        self._has_place = False
        super().__init__(**given)

    def _look(self) -> None:
        """Take the place where the server is now. Blocks. Raises redis.ConnectionError."""
        try:
            self.host, self.port = self._whereabouts.find()
        except Unreachable as error:
            raise redis_py.ConnectionError(str(error)) from error
        self._has_place = True

    def check(self, role: Any) -> None:
        """Take the reply to ROLE. Raises redis.ConnectionError if this is not the primary: reads would be stale."""
        try:
            check_is_primary(f"{self.host}:{self.port}", role)
        except Unreachable as error:
            raise redis_py.ConnectionError(str(error)) from error


class _SyncFollowing(_Following):
    def connect_check_health(self, *given: Any, **named: Any) -> None:
        """Each way to connect comes here, and returns at once if the connection stands."""
        is_new = not self._has_place
        if is_new:
            self._look()
        try:
            super().connect_check_health(*given, **named)  # type: ignore[misc]  # redis-py's class comes next
            if is_new:
                self.check(self._role())
        except BaseException:
            self.disconnect()
            raise

    def _role(self) -> Any:
        try:
            self.send_command("ROLE", check_health=False)  # type: ignore[attr-defined]
            return self.read_response()  # type: ignore[attr-defined]
        except redis_py.ResponseError as error:
            return error

    def disconnect(self, *given: Any, **named: Any) -> None:
        self._has_place = False
        super().disconnect(*given, **named)  # type: ignore[misc]


class _AsyncFollowing(_Following):
    async def find(self) -> None:
        """Take the place where the server is now. Raises redis.ConnectionError."""
        await _in_thread(self._look)

    async def connect_check_health(self, *given: Any, **named: Any) -> None:
        """Each way to connect comes here, and returns at once if the connection stands."""
        is_new = not self._has_place
        if is_new:
            await self.find()
        try:
            await super().connect_check_health(*given, **named)  # type: ignore[misc]  # redis-py's class comes next
            if is_new:
                self.check(await self._role())
        except BaseException:
            await self.disconnect(nowait=True)
            raise

    async def _role(self) -> Any:
        try:
            await self.send_command("ROLE", check_health=False)  # type: ignore[attr-defined]
            return await self.read_response()  # type: ignore[attr-defined]
        except redis_py.ResponseError as error:
            return error

    async def disconnect(self, *given: Any, **named: Any) -> None:
        self._has_place = False
        await super().disconnect(*given, **named)  # type: ignore[misc]


class CannotLogIn(redis_py.ConnectionError):
    """The account for a connection cannot be had."""


class OurProvider(redis_py.CredentialProvider):
    """Reads the account's files, or asks a function, again for each connection."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Raises CannotLogIn, or another redis.ConnectionError if no thread can be started."""
        return await _in_thread(self.get_credentials)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Blocks. Raises CannotLogIn."""
        try:
            user, password = self._credentials()
        except NoAccount as error:
            raise CannotLogIn(str(error)) from error
        return (user, password) if user else (password,)


async def _in_thread(function: Callable[[], T]) -> T:
    """Run a function that blocks. Raises redis.ConnectionError if no thread can be started for it."""
    try:
        return await asyncio.to_thread(function)
    except RuntimeError as error:
        raise redis_py.ConnectionError(str(error)) from error
