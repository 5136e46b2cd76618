"""Connects to the server that has a namespace, wherever it is by then. Runs in threads of the master: it blocks."""

import math
from typing import Final, NamedTuple

from supervisor.engine.transport.account import Credentials
from supervisor.engine.transport.dial import BlockingConnection, dial
from supervisor.engine.transport.whereabouts import Whereabouts, check_is_primary
from supervisor.redis_url import nodes, redacted


class ServerPatience(NamedTuple):
    """How long a master waits for a server, in seconds. One that hangs says nothing."""

    silence_s: float  # for a reply
    wait_s: float  # for wake-ups, before it asks again
    pause_s: float  # before it connects anew


#: No other server takes the place of this one.
ALONE: Final = ServerPatience(5.0, 30.0, math.inf)
#: Another server may take its place: jobs are to run there within 5 s.
REPLACEABLE: Final = ServerPatience(2.0, 2.0, 1.0)


class Dialer:
    def __init__(self, url: str, key: str, credentials: Credentials | None = None) -> None:
        """`key`: any of the namespace. `credentials` returns the account in place of the URL's."""
        self._url = url
        self._credentials = credentials
        several = nodes(url)
        self._whereabouts = None if several is None else Whereabouts(several, key, credentials)
        self.shown = redacted(url)
        self.patience = ALONE if several is None else REPLACEABLE

    @property
    def follows(self) -> bool:
        """True if each call of `dial` looks for the server, which may be another one by then."""
        return self._whereabouts is not None

    def dial(self, count: int, timeout_s: float) -> list[BlockingConnection]:
        """Connect and log in, so many times: all of it to one server. Raises Unreachable."""
        url = self._url if self._whereabouts is None else self._whereabouts.server()
        timeout_s = min(timeout_s, self.patience.silence_s)
        connections: list[BlockingConnection] = []
        try:
            for _ in range(count):
                connections.append(dial(url, timeout_s, self._credentials))
                if self._whereabouts is not None:
                    check_is_primary(redacted(url), connections[-1].call("ROLE"))
        except BaseException:
            for connection in connections:
                connection.close()
            raise
        return connections
