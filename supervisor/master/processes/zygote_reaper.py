"""How zygotes have ended, and why one was of no use. Runs in master.

Owns the reaping: of zygotes, and of whatever orphans are left to us as PID 1 or subreaper.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from supervisor import clock
from supervisor.linux import strays
from supervisor.master.model import outcome_rules
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.messages import BootFailed

#: One that has closed its control socket is most likely about to exit.
GOING_S: Final = 0.2


class ZygoteReaper:
    def __init__(self, zygotes: Mapping[int, ZygoteHandle]) -> None:
        """`zygotes`: those that live, by number."""
        self._zygotes = zygotes
        self._statuses: dict[int, int] = {}  # wait statuses of zygotes, by pid

    def reap(self) -> None:
        """On SIGCHLD."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for zygote in self._zygotes.values():
                zygote.strangers.discard(pid)  # the pid may come again, as anybody's
                if zygote.pid == pid:
                    self._statuses[pid] = status

    @property
    def unseen(self) -> list[ZygoteHandle]:
        """Those whose end nobody has looked at yet."""
        return [zygote for zygote in self._zygotes.values() if zygote.pid in self._statuses] if self._statuses else []

    def kill(self, zygote: ZygoteHandle) -> None:
        if zygote.pid not in self._statuses:  # else the pid may be anybody's
            zygote.kill()

    def take_status(self, zygote: ZygoteHandle) -> int:
        """Its wait status; it may have closed its socket and live on, which ends now."""
        if zygote.pid not in self._statuses:
            zygote.await_end(GOING_S)  # its own cause is to be told, not ours
            self._statuses[zygote.pid] = os.waitpid(zygote.pid, 0)[1]
        return self._statuses.pop(zygote.pid)

    def end_strangers(self, zygote: ZygoteHandle) -> None:
        """What the lost zygote's children had started has come to us: it must not meet the next run of their jobs."""
        own = zygote.strangers | {other.pid for other in self._zygotes.values()}
        strays.end_strays(own, clock.monotonic() + strays.TRY_S)


def why_no_use(zygote: ZygoteHandle, status: int, handlers: str) -> BootFailed:
    """Why no child of it got ready, if none did. `handlers`: what it was to import."""
    failure = zygote.failure
    reason = outcome_rules.death_reason(status)
    if failure is None and zygote.said is not None:
        what = f"the process that forks the children ended ({reason}) before any of them was ready"
        failure = BootFailed(what, "")
    elif failure is None:
        failure = BootFailed(
            f"the process that imports {handlers!r} ended meanwhile ({reason});"
            " look for the module that exits or crashes when it is imported",
            "",
        )
    return replace(failure, traceback=failure.traceback or zygote.stacks.read())
