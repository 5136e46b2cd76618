"""Counts the processes that the machine has room for, by processors and by memory. Runs in the master."""

from collections.abc import Callable
from typing import Final

from supervisor.config import RunConfig, usable_cpus
from supervisor.master.model.budget import Budget
from supervisor.master.processes.zygotes import Zygotes
from supervisor.units import megabytes

#: What a child costs beside its own memory: page tables, and pages of the zygote that it overwrites.
_CHILD_BYTES: Final = 4 * 2**20


class MachineRoom:
    def __init__(
        self, config: RunConfig, budget: Budget, zygotes: Zygotes, cpus: Callable[[], tuple[int, str]] = usable_cpus
    ) -> None:
        """`cpus()`: how many processors this process may use, and a sentence that says why so many."""
        self._memory_limit_bytes = config.memory_limit_bytes
        self._budget = budget
        self._zygotes = zygotes
        self._cpus = cpus

    @property
    def measured(self) -> int:
        """The zygote whose first child was measured last; 0: none."""
        return self._zygotes.measured

    def processes(self) -> tuple[int, str]:
        """Return the count, and a sentence that says why so many."""
        cpus, reason = self._cpus()
        if not self._budget.limit_bytes or not self._zygotes.measured:
            return cpus, reason
        each_bytes = max(self._zygotes.child_bytes, _CHILD_BYTES) + self._memory_limit_bytes
        left_bytes = max(0, self._budget.limit_bytes - self._budget.base_bytes)
        fitting = max(1, left_bytes // each_bytes)
        if fitting >= cpus:
            return cpus, reason
        return fitting, (
            f"auto: {megabytes(left_bytes)} of the memory budget are left for children, each of which may take"
            f" {megabytes(each_bytes)}; there are CPUs for {cpus}"
        )
