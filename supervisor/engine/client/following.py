"""Makes connections of redis-py that look for their server each time they connect, and logins that read their files.

Runs in applications and commands (never in zygote or child). Uses what redis-py has made public to be overridden.
"""

import asyncio
from typing import Any

import redis as redis_py

from supervisor.engine.transport.account import NoAccount, account_of
from supervisor.engine.transport.dial import Unreachable
from supervisor.engine.transport.whereabouts import Whereabouts


def connection_class(library: Any, is_tls: bool) -> type:
    """Return the class for `redis` or `redis.asyncio`, whose constructor takes `whereabouts=` in addition."""
    base = library.SSLConnection if is_tls else library.Connection
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


class _SyncFollowing(_Following):
    def connect_check_health(self, *given: Any, **named: Any) -> None:
        """Each way to connect comes here, and returns at once if the connection stands."""
        if not self._has_place:
            self._look()
        try:
            super().connect_check_health(*given, **named)  # type: ignore[misc]  # redis-py's class comes next
        except BaseException:
            self._has_place = False
            raise

    def disconnect(self, *given: Any, **named: Any) -> None:
        self._has_place = False
        super().disconnect(*given, **named)  # type: ignore[misc]


class _AsyncFollowing(_Following):
    async def find(self) -> None:
        """Take the place where the server is now. Raises redis.ConnectionError."""
        await asyncio.to_thread(self._look)

    async def connect_check_health(self, *given: Any, **named: Any) -> None:
        """Each way to connect comes here, and returns at once if the connection stands."""
        if not self._has_place:
            await self.find()
        try:
            await super().connect_check_health(*given, **named)  # type: ignore[misc]  # redis-py's class comes next
        except BaseException:
            self._has_place = False
            raise

    async def disconnect(self, *given: Any, **named: Any) -> None:
        self._has_place = False
        await super().disconnect(*given, **named)  # type: ignore[misc]


class FileAccount(redis_py.CredentialProvider):
    """Reads the account's files again for each connection."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Raises redis.ConnectionError."""
        try:
            user, password = account_of(self._url)
        except NoAccount as error:
            raise redis_py.ConnectionError(f"cannot log in: {error}") from error
        return (user, password) if user else (password,)
