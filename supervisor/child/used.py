"""What a child has used, which it says with each outcome. Runs in children. Must cost a short job next to nothing."""

import resource
from typing import Final

from supervisor import clock

_SELF: Final = resource.RUSAGE_SELF
_CHILDREN: Final = resource.RUSAGE_CHILDREN
#: Nothing forks and waits in less.
_BRIEF_S: Final = 50e-6
#: For which a look is young.
_LOOK_S: Final = 0.01


class Used:
    """Processor time in seconds, and the most resident memory in bytes, of this process and those that it has waited
    for. The memory counts the pages that it has inherited.
    """

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._most_bytes = 0
        self._look_at = 0.0

    def look(self) -> tuple[float, int]:
        own, waited = resource.getrusage(_SELF), resource.getrusage(_CHILDREN)
        # By number: names take three times as long, and every job is asked.
        self._waited_s, most = waited[0] + waited[1], own[2] if own[2] >= waited[2] else waited[2]
        self._most_bytes, self._look_at = most * 1024, clock.monotonic() + _LOOK_S
        return own[0] + own[1] + self._waited_s, self._most_bytes

    def after(self, run_s: float) -> tuple[float, int]:
        """The same, once work is done that took so long. In no time it waits for no process, and touches few pages: a
        third of the look does, as long as the last one is young.
        """
        if run_s >= _BRIEF_S or clock.monotonic() >= self._look_at:
            return self.look()
        return clock.processor_time() + self._waited_s, self._most_bytes
