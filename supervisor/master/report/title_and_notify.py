"""Shows the state in the title that `ps` prints, and tells it to the service manager. Runs in the master.

Owns when it is shown anew. It runs after every turn, so it must not cost a job any time.
"""

import math
import os
from typing import Final

from setproctitle import setproctitle

from supervisor.config import DEFAULT_NAMESPACE
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.master.report.state import State
from supervisor.master.timers import Timers
from supervisor.ops.notify import ServiceNotifier, ServiceState

#: The key of the timer.
_SHOW: Final = "title-and-notify"
#: Changed numbers are shown within this time, a changed state at once.
SHOW_S: Final = 0.2


class TitleAndNotify:
    def __init__(self, state: State, serving: ServedQueues, namespace: str, timers: Timers) -> None:
        self._state = state
        # On a machine with supervisors of several namespaces the title says which one each serves.
        self._where = "" if namespace == DEFAULT_NAMESPACE else f" in {namespace}"
        self._serving = serving
        self._notify = ServiceNotifier.from_environment(os.environ, os.getpid())
        self._title = ""
        self._shown_word = ""
        self._timers = timers
        self._shown_at = -math.inf

    def begin(self, boot_s: float) -> None:
        """Tell the service manager that the master will be ready within `boot_s`."""
        if self._notify is not None:
            self._notify.promise_ready(boot_s)

    def follow(self, now_at: float) -> None:
        """Show what this turn has changed: a changed state at once, numbers soon."""
        if self._state.word != self._shown_word or now_at >= self._shown_at + SHOW_S:
            self._show(now_at)
        elif now_at > self._shown_at:
            self._plan(self._shown_at + SHOW_S)

    def _show(self, now_at: float) -> None:
        state = self._state
        self._shown_word, self._shown_at = state.word, now_at
        summary = state.summary
        title = f"leasehold: master {','.join(self._serving.patterns)}  {summary}{self._where}"
        if title != self._title:
            self._title = title
            setproctitle(title)
        if self._notify is not None:
            service = ServiceState(state.can_lease, state.is_reloading, state.left_s, summary)
            self._notify.update(now_at, service)
        self._plan(math.inf)

    def _plan(self, at: float) -> None:
        """Show the state then, or when the service manager must hear of it, if that is sooner (monotonic s)."""
        notify_at = self._notify.deadline_at() if self._notify is not None else math.inf
        self._timers.set(_SHOW, min(at, notify_at), self._show)
