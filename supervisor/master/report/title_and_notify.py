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
from supervisor.ops.notify import ServiceNotifier, ServiceState

#: How soon it follows numbers that change. The word for how it is follows at once.
SHOW_S: Final = 0.2


class TitleAndNotify:
    def __init__(self, status: Status, serving: ServedQueues, forks: ZygoteManager, namespace: str) -> None:
        self._status = status
        # On a machine with supervisors of several namespaces `ps` tells whose each one is.
        self._where = "" if namespace == DEFAULT_NAMESPACE else f" in {namespace}"
        self._serving = serving
        self._forks = forks
        self._notify = ServiceNotifier.from_environment(os.environ, os.getpid())
        self._title = ""
        self._state = ""
        self._show_at = 0.0
        self._old = False  # something may have changed since it was looked at

    def begin(self, boot_s: float) -> None:
        """It is ready within `boot_s`, at the latest."""
        if self._notify is not None:
            self._notify.promise_ready(boot_s)

    def keep_time(self, now_at: float) -> None:
        state = self._status.state
        self._old = state == self._state and now_at < min(self._show_at, self._notify_at)
        if self._old:
            return
        self._state, self._show_at = state, now_at + SHOW_S
        words = self._status.words
        title = f"leasehold: master {','.join(self._serving.patterns)}  {words}{self._where}"
        if title != self._title:
            self._title = title
            setproctitle(title)
        if self._notify is not None:
            self._notify.update(
                now_at, ServiceState(self._status.able, self._forks.reloading, self._status.left_s, words)
            )

    def deadline_at(self) -> float:
        """When it is to be looked at, if nothing happens before."""
        return min(self._notify_at, self._show_at if self._old else math.inf)

    @property
    def _notify_at(self) -> float:
        return self._notify.deadline_at() if self._notify is not None else math.inf
