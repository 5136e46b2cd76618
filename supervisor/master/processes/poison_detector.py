"""Whether one of the jobs ends zygotes, and which: losses of zygotes in a row, and what ran at each. Runs in master."""

from collections.abc import Iterable
from typing import Final

from supervisor import clock
from supervisor.master.model.breaker import backoff_s
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.slots import Slots

#: How long jobs run one at a time after losses in a row, at the most; doubled with each.
_CAUTION_S: Final = 15.0
_LONGEST_CAUTION_S: Final = 600.0
#: From this loss of a zygote on in a row, each while one and the same job ran alone, the job counts a death.
_SUSPICIOUS_LOSSES: Final = 3


class PoisonDetector:
    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._losses = 0  # of zygotes in a row, with no job ended between, or with one that ran at each
        self._answered = 0  # how many jobs had ended at the last one
        self._suspects: set[str] = set()  # the jobs that ran at the last one
        self._alone = ("", 0)  # the job that ran alone at the last losses of a zygote, and how many those were

    def on_loss(self, children: Iterable[ChildHandle]) -> None:
        """A zygote is lost, and these children with it. If losses come in a row, or with the same job again, let jobs
        run one at a time.
        """
        heads = [child.running.lease.jid for child in children if child.running is not None]
        again = self._slots.answered == self._answered or not self._suspects.isdisjoint(heads)
        self._losses = self._losses + 1 if again else 1
        self._answered, self._suspects = self._slots.answered, set(heads)
        if self._losses > 1:
            self._slots.beware(clock.monotonic() + min(_LONGEST_CAUTION_S, _CAUTION_S * 2.0 ** min(self._losses, 10)))
        jid, losses = self._alone
        self._alone = ("", 0) if len(heads) != 1 else (heads[0], losses + 1 if jid == heads[0] else 1)

    @property
    def convicted(self) -> bool:
        """Whether the one job that ran at the last loss was alone at so many in a row that it must be the cause."""
        return self._alone[1] >= _SUSPICIOUS_LOSSES

    @property
    def wait_s(self) -> float:
        """How long to wait before the next zygote is started."""
        return backoff_s(self._losses) if self._losses > 1 else 0.0
