"""Since when there has been nothing to do, and whether that is long enough to end. Runs in master. No I/O."""

import math
from typing import Final

#: What is on its way to us is there by then.
_SOON_S: Final = 1.0


class IdleExit:
    def __init__(self, patience_s: float) -> None:
        """`patience_s`: after so long a time it is enough; 0: it never is."""
        self.patience_s = patience_s
        self.since_at = math.inf  # there has been nothing to do; inf: there is
        self._again_at = -math.inf

    def note(self, at_rest: bool, now_at: float) -> None:
        """Whether there is nothing to do now."""
        if not at_rest or not self.patience_s:
            self.since_at = math.inf
        elif self.since_at == math.inf:
            self.since_at = now_at

    @property
    def due_at(self) -> float:
        """When it is long enough."""
        return max(self.since_at + self.patience_s, self._again_at)

    def put_off(self, now_at: float) -> None:
        """Redis refuses: to ask it again at once would be answered alike."""
        self._again_at = now_at + max(_SOON_S, self.patience_s)

    def stay(self, why: str, now_at: float) -> None:
        """The engine has said that there is something to stay for."""
        self._again_at = now_at + (_SOON_S if why in ("mail", "asked") else self.patience_s)
