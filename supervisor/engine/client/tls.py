"""Makes connections of redis-py by TLS to servers whose certificate has another name than their address.

Runs in applications and commands (never in zygote or child). Overrides what redis-py's connections call to connect:
they know no such name, and asyncio waits for 30 s for a peer that does not end TLS.
"""

import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

import redis as redis_py
import redis.asyncio as redis_aio

#: The longest wait until the peer has ended TLS. A server that hangs never does: its socket is closed then.
FAREWELL_S: Final = 1.0


class NamedTls(redis_py.SSLConnection):
    """A connection that `dial(host, port)` makes, which knows the server's name."""

    def __init__(self, *, dial: Callable[[str, int], socket.socket], **given: Any) -> None:
        self._dial = dial
        super().__init__(**given)

    def _connect(self) -> socket.socket:
        return self._dial(self.host, self.port)


class AsyncTls(redis_aio.SSLConnection):
    """A connection that ends within a second, also if the server hangs."""

    def __init__(self, *, ssl_server_name: str | None = None, **given: Any) -> None:
        """`ssl_server_name`: in the server's certificate; None: that of its address."""
        self._server_name = ssl_server_name
        super().__init__(**given)

    def connect_arguments(self) -> Mapping[str, Any]:
        """Return the arguments of asyncio's create_connection."""
        return {
            "host": self.host,
            "port": self.port,
            "ssl": self.ssl_context.get(),
            "server_hostname": self._server_name,
            "ssl_shutdown_timeout": FAREWELL_S,
        }

    _connection_arguments = connect_arguments  # as redis.asyncio calls it
