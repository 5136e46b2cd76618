"""Connects to the server that has a namespace, wherever it is by then. Runs in threads of the master: it blocks."""

from typing import Final

import hiredis

from supervisor.engine.transport.account import Credentials
from supervisor.engine.transport.dial import BlockingConnection, Unreachable, dial
from supervisor.engine.transport.whereabouts import Whereabouts
from supervisor.redis_url import nodes, redacted

#: Between two attempts to follow a failover.
_FOLLOW_S: Final = 1.0
#: How long a wait for wake-ups may last where the server may be replaced: one that hangs says nothing.
_FOLLOW_WAIT_S: Final = 3.0


class Dialer:
    def __init__(self, url: str, key: str, credentials: Credentials | None = None) -> None:
        """`key`: any of the namespace. `credentials` returns the account in place of the URL's."""
        self._url = url
        self._credentials = credentials
        several = nodes(url)
        self._whereabouts = None if several is None else Whereabouts(several, key)
        self.shown = redacted(url)
        self.most_pause_s = float("inf") if several is None else _FOLLOW_S
        self.most_wait_s = float("inf") if several is None else _FOLLOW_WAIT_S

    def dial(self, timeout_s: float) -> BlockingConnection:
        """Connect and log in. Raises Unreachable."""
        if self._whereabouts is None:
            return dial(self._url, timeout_s, self._credentials)
        url = self._whereabouts.server()
        connection = dial(url, timeout_s, self._credentials)
        role = connection.call("ROLE")
        if not isinstance(role, hiredis.ReplyError) and role[0] != b"master":  # an ACL may forbid to ask
            connection.close()
            raise Unreachable(f"{redacted(url)} is to be the primary, and is a replica as yet")
        return connection
