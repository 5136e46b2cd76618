"""Tells which deaths were the kernel's OOM killer's. Runs in the master.

The kernel counts the processes that it kills, and does not say which they were.
"""

import math
from typing import Final

from supervisor import clock
from supervisor.linux import cgroups
from supervisor.master.jobs.job_cgroups import JobCgroups

#: A kill by the kernel explains deaths that are reported within this time.
_EXPLAINED_S: Final = 3.0
#: Time between two readings of the kernel's count while jobs run.
_LOOK_S: Final = 1.0


class KernelKills:
    def __init__(self, kills: cgroups.OomKills, job_cgroups: JobCgroups | None) -> None:
        self._kills = kills
        self._job_cgroups = job_cgroups
        self._unexplained = 0
        self._at = -math.inf
        self._look_at = 0.0

    def look(self) -> None:
        """Read the count at times. A kill that explains no death soon hit a job's program, or a neighbour."""
        now_at = clock.monotonic()
        if now_at >= self._look_at:
            self._count(now_at)

    def _count(self, now_at: float) -> None:
        self._look_at = now_at + _LOOK_S
        if now_at > self._at + _EXPLAINED_S:
            self._unexplained = 0
        if new := self._kills.new():
            self._unexplained, self._at = self._unexplained + new, now_at

    def verdict(self, child: int) -> str | None:
        """Say why a child died that has just died by a SIGKILL which the master did not send.

        "memory": it hit the limit of its own cgroup. "oom": the supervisor was short of memory. None: another process
        killed it.
        """
        self._count(clock.monotonic())
        is_own_limit = self._job_cgroups is not None and self._job_cgroups.oom_kills(child) > 0
        if not self._unexplained:
            return "memory" if is_own_limit else None
        self._unexplained -= 1
        return "memory" if is_own_limit else "oom"
