"""What people see of the master without asking: its title in `ps`, and what a service manager is told. Runs in master.

Owns when it is looked at anew. Must not be felt by a job: it runs after every turn.
"""

import math
import os
from typing import Final

from setproctitle import setproctitle

from supervisor.config import DEFAULT_NAMESPACE
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.master.processes.zygote_manager import ZygoteManager
from supervisor.master.report.status import Status
from supervisor.master.timers import Timers
from supervisor.ops.notify import ServiceNotifier, ServiceState

#: The key of the timer.
_SHOW: Final = "title-and-notify"
#: How soon it follows numbers that change. The word for how it is follows at once.
SHOW_S: Final = 0.2


class TitleAndNotify:
    def __init__(
        self, status: Status, serving: ServedQueues, zygotes: ZygoteManager, namespace: str, timers: Timers
    ) -> None:
        self._status = status
        # On a machine with supervisors of several namespaces `ps` tells whose each one is.
        self._where = "" if namespace == DEFAULT_NAMESPACE else f" in {namespace}"
        self._serving = serving
        self._zygotes = zygotes
        self._notify = ServiceNotifier.from_environment(os.environ, os.getpid())
        self._title = ""
        self._state = ""
        self._timers = timers
        self._shown_at = -math.inf

    def begin(self, boot_s: float) -> None:
        """It is ready within `boot_s`, at the latest."""
        if self._notify is not None:
            self._notify.promise_ready(boot_s)

    def follow(self, now_at: float) -> None:
        """Something has happened in this turn: show it, at once if the word for how it is has changed."""
        if self._status.state != self._state or now_at >= self._shown_at + SHOW_S:
            self._show(now_at)
        elif now_at > self._shown_at:
            self._plan(self._shown_at + SHOW_S)

    def _show(self, now_at: float) -> None:
        self._state, self._shown_at = self._status.state, now_at
        words = self._status.words
        title = f"leasehold: master {','.join(self._serving.patterns)}  {words}{self._where}"
        if title != self._title:
            self._title = title
            setproctitle(title)
        if self._notify is not None:
            self._notify.update(
                now_at, ServiceState(self._status.able, self._zygotes.reloading, self._status.left_s, words)
            )

        self._plan(math.inf)

    def _plan(self, at: float) -> None:
        """Show it at that time, or when the service manager is to hear of it, if that is sooner."""
        notify_at = self._notify.deadline_at() if self._notify is not None else math.inf
        self._timers.set(_SHOW, min(at, notify_at), self._show)
