"""Looks whether another server has taken the place of one whose replicas are short. Runs in the master.

A primary that is cut off from its replicas and the sentinels may still answer this worker: it does not know of its
successor, and what it carries out is lost. Must not block. Owns the connection that looks, which carries no command of
the worker's.
"""

from typing import Any, Final

from supervisor import clock
from supervisor.engine.transport.dialer import Dialer
from supervisor.engine.transport.link import CONNECT_S, Connector, Link, LinkLost, ServedElsewhere
from supervisor.engine.worker.pipeline import DeadlineTimers, Watcher

_LOOK_S: Final = 1.0


class SuccessorWatch:
    """This object is the key of its timer."""

    def __init__(self, dialer: Dialer, watcher: Watcher, timers: DeadlineTimers) -> None:
        self._dialer = dialer
        self._watcher = watcher
        self._timers = timers
        self._served_by: Any = None  # the address of the server that is used
        self._is_watching = False
        self._connector: Connector | None = None

    def open(self, link: Link) -> None:
        """`link` leads to the server that is used from now on."""
        self._served_by = link.peer

    def watch(self, is_short: bool) -> None:
        """Look from now on if replicas are short, and if the server may have a successor. Idempotent."""
        if is_short == self._is_watching or not self._dialer.follows:
            return
        self._is_watching = is_short
        if is_short:
            self._look_later()
        else:
            self._timers.cancel(self)

    def close(self) -> None:
        """Look no more. What a look under way finds does not count."""
        self.watch(False)

    def _look_later(self) -> None:
        self._timers.set(self, clock.monotonic() + _LOOK_S, self._look)

    def _look(self, _now_at: float) -> None:
        self._look_later()
        if self._connector is not None:
            return
        try:
            self._connector = Connector(self._dialer, 1, (), CONNECT_S)
        except LinkLost:  # no descriptor is free
            return
        self._watcher.watch(self._connector, self._finish_looking)

    def _finish_looking(self) -> None:
        """Raises ServedElsewhere."""
        connector, self._connector = self._connector, None
        assert connector is not None
        self._watcher.forget(connector)
        try:
            [link], _replies = connector.finish()
        except LinkLost:  # nobody knows a primary that is up: the election may be under way
            return
        found = link.peer
        link.close()
        if self._is_watching and found != self._served_by:
            raise ServedElsewhere("another server has taken the place of this one, whose replicas are short")
