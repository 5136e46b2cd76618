"""Makes and closes redis-py's pools for both clients. Runs in applications and commands (never in zygote or child).

Its connections never send anything twice, and their replies are bytes. `library` is `redis` or `redis.asyncio`.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from copy import copy
from functools import partial
from typing import Any

import redis as redis_py
import redis.asyncio as redis_aio
from redis.backoff import NoBackoff

from supervisor import redis_url
from supervisor.engine.client.connection import REPLACEABLE_TIMEOUT_S, SOCKET_TIMEOUT_S
from supervisor.engine.client.following import OurProvider, following
from supervisor.engine.client.tls import FAREWELL_S, AsyncTls, NamedTls
from supervisor.engine.transport.account import Credentials, account_of
from supervisor.engine.transport.dial import connect
from supervisor.engine.transport.whereabouts import Whereabouts

#: Connections of a client that is given a url. redis-py's own default of 100 would limit threads unasked.
_MOST_CONNECTIONS = 2**31
#: Prefixes of the arguments that redis-py adds to a given connection's for the pool that it comes from.
_OF_THE_POOL = ("maint_notif", "oss_cluster", "orig_", "himport_registry", "event_dispatcher", "connection_pool")


def pool_of(
    library: Any, url: str, key: str, credentials: Credentials | None = None, timeout_s: float = SOCKET_TIMEOUT_S
) -> Any:
    """Return a pool for the server of an url. Each step of its connections takes at most `timeout_s`, and at most
    3 s if the url names several servers.

    `key`: any of the namespace, of which nodes of a Cluster say where it is. `credentials` returns the account in place
    of the url's. Raises ValueError.
    """
    more: dict[str, Any] = {}
    at: Callable[[str, int], str] = partial(_url_at, url)
    if nodes := redis_url.nodes(url):
        at, url = nodes.server, nodes.server(*nodes.places[0])
        timeout_s = min(timeout_s, REPLACEABLE_TIMEOUT_S)
    if redis_url.split(url).scheme == "rediss":
        more |= _by_tls(library, url, lambda host, port: connect(at(host, port), timeout_s))
    if nodes:
        base = more.get("connection_class", library.Connection)
        more |= {"connection_class": following(library, base), "whereabouts": Whereabouts(nodes, key, credentials)}
    if credentials or redis_url.has_files(url):
        more["credential_provider"] = OurProvider(credentials or partial(account_of, url))
    ours = {
        "protocol": 2,
        "decode_responses": False,
        "retry": library.retry.Retry(NoBackoff(), 0),
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "max_connections": _MOST_CONNECTIONS,
    }
    # Not `from_url`: that of redis.asyncio takes its own class of TLS connections in place of a given one.
    theirs = library.connection.parse_url(redis_url.for_redis_py(url, keeps_account=credentials is None))
    return library.ConnectionPool(**ours | theirs | more)


def _url_at(url: str, _host: str, _port: int) -> str:
    """Return the URL of the only server."""
    return url


def _by_tls(library: Any, url: str, dial: Callable[[str, int], socket.socket]) -> dict[str, Any]:
    """Return what a pool needs for connections by TLS. `dial` makes one for `redis`, to a server with a name."""
    name = redis_url.server_name(url)
    if library is not redis_py:
        return {"connection_class": AsyncTls, "ssl_server_name": name}
    return {"connection_class": NamedTls, "dial": dial} if name else {"connection_class": redis_py.SSLConnection}


def pool_like(library: Any, given: Any) -> Any:
    """Return a pool of our own with the address, the credentials and the limits of a given connection.

    Raises TypeError if it is not a connection of the library.
    """
    if not isinstance(given, library.Redis):
        raise TypeError(f"redis must be a {library.__name__}.Redis, not {type(given).__name__}: {given!r:.100}")
    return pool_beside(library, given.connection_pool)


def pool_beside(library: Any, theirs: Any) -> Any:
    """Return a pool of our own with the address, the credentials and the limits of another."""
    arguments = _borrowed(theirs) | {"retry": library.retry.Retry(NoBackoff(), 0)}
    if isinstance(theirs, library.sentinel.SentinelConnectionPool):
        return library.sentinel.SentinelConnectionPool(
            theirs.service_name,
            _sentinels_beside(library, theirs.sentinel_manager),
            is_master=theirs.is_master,
            check_connection=theirs.check_connection,
            **arguments,
        )
    if isinstance(theirs, library.BlockingConnectionPool):
        return library.BlockingConnectionPool(timeout=theirs.timeout, **arguments)
    return library.ConnectionPool(**arguments)


def _sentinels_beside(library: Any, theirs: Any) -> Any:
    """Return a Sentinel of redis-py with the addresses and the arguments of another, and connections of its own."""
    ours = copy(theirs)
    places = [each.connection_pool.connection_kwargs for each in theirs.sentinels]
    ours.sentinels = [library.Redis(host=at["host"], port=at["port"], **ours.sentinel_kwargs) for at in places]
    return ours


def _borrowed(pool: Any) -> dict[str, Any]:
    kept = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_OF_THE_POOL)}
    return kept | {
        "connection_class": AsyncTls if pool.connection_class is redis_aio.SSLConnection else pool.connection_class,
        "retry_on_error": [],
        "retry_on_timeout": False,
        "decode_responses": False,
        "protocol": 2,
        "max_connections": pool.max_connections,
    }


def uncounted_connection(pool: Any) -> Any:
    """Make a connection as the pool does, for a user that keeps it and closes it by itself.

    pool.make_connection() of redis-py 8 counts towards max_connections, and only what get_connection() has given can
    be given back.
    """
    return pool.connection_class(**pool.connection_kwargs)


def pools_behind(pool: Any) -> list[Any]:
    """Return a pool, and those of the sentinels that it asks."""
    sentinels = pool.sentinel_manager.sentinels if hasattr(pool, "sentinel_manager") else ()
    return [pool, *(each.connection_pool for each in sentinels)]


async def closed(closing: Awaitable[None]) -> None:
    """Wait until redis.asyncio has closed connections, for at most 1 s. `closing` comes from disconnect().

    It would raise its own TimeoutError if the server hangs, in place of the error that the caller is about to raise.
    """
    with contextlib.suppress(redis_py.TimeoutError, TimeoutError):
        async with asyncio.timeout(FAREWELL_S):
            await closing
