"""The inbox and the timers as the parts for one shard see them. Runs in the master. Must not decide anything.

A lost connection concerns its own shard. The loop goes on, and so do the other shards.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from supervisor.engine.transport.link import LinkLost
from supervisor.engine.worker.pipeline import DeadlineTimers, Watcher


class SideLoop:
    def __init__(self, inbox: Watcher, timers: DeadlineTimers, shard: int) -> None:
        self._inbox = inbox
        self._timers = timers
        self._shard = shard
        self.on_lost: Callable[[LinkLost], None]  # set before anything is watched

    def run(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call what may find the connection lost."""
        try:
            callback(*args)
        except LinkLost as lost:
            self.on_lost(lost)

    # the inbox

    def watch(self, source: Any, callback: Callable[[], None]) -> None:
        self._inbox.watch(source, partial(self.run, callback))

    def forget(self, source: Any) -> None:
        self._inbox.forget(source)

    def want_write(self, source: Any, wanted: bool) -> None:
        self._inbox.want_write(source, wanted)

    # the timers

    def set(self, key: Hashable, at: float, callback: Callable[[float], None]) -> None:
        self._timers.set((self._shard, key), at, partial(self.run, callback))

    def cancel(self, key: Hashable) -> None:
        self._timers.cancel((self._shard, key))
