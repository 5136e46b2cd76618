"""What a running job may take: time, and memory. Runs in master. Owns when each child is looked at next.

Nothing here waits for a child's consent: it may sit in C code, or be hostile. Decides when; the dispatcher kills.
"""

import math
from typing import Final

from supervisor import clock
from supervisor.config import Config
from supervisor.pool.children import Child
from supervisor.pool.dispatcher import Dispatcher
from supervisor.pool.ledger import Held
from supervisor.pool.messages import TIMEOUT
from supervisor.pool.slots import Slots
from supervisor.pool.states import ChildState

#: Between the signal that writes a child's Python stacks and its kill.
_STACKS_S: Final = 0.1
#: A handler is told that its time limit is near by this share of the limit before it, at most by the term grace.
_NEAR: Final = 0.1


class Limits:
    def __init__(self, config: Config, slots: Slots, dispatcher: Dispatcher) -> None:
        self._config = config
        self._slots = slots
        self._dispatcher = dispatcher

    def deadline_at(self) -> float:
        return min(map(self._child_deadline_at, self._slots), default=math.inf)

    def _child_deadline_at(self, child: Child) -> float:
        if child.kill_at is not None:
            return child.kill_at
        head = child.head
        if head is None or child.state is not ChildState.BUSY:
            return math.inf
        due_at = self._limit_at(child, head)
        return due_at if child.overran else min(due_at, head.started_at + self._config.dispatch_ahead_s)

    def _limit_at(self, child: Child, head: Held) -> float:
        """When its time is over, or nearly."""
        if not head.limit_s:
            return math.inf
        if child.warned:
            return head.started_at + head.limit_s
        return head.started_at + head.limit_s - min(_NEAR * head.limit_s, self._config.term_grace_s)

    def keep_time(self, now_at: float) -> None:
        for child in self._slots:
            if now_at < self._child_deadline_at(child):
                continue
            head = child.head
            if child.kill_at is not None:
                self._dispatcher.kill(child, child.why_killed or "it was due", child.in_words)
            elif head is not None:
                if now_at >= self._limit_at(child, head):
                    self._on_time_up(child, head)
                else:
                    self._dispatcher.on_overrun(child, head)

    def _on_time_up(self, child: Child, head: Held) -> None:
        child.write_stacks()
        if child.warned:
            child.kill_at, child.why_killed = clock.monotonic() + _STACKS_S, "timeout"
            child.in_words = f"the job passed its time limit of {head.limit_s:g} s"
        else:
            child.warned = True
            child.notify(head.lease.token, TIMEOUT, f"the time limit of {head.limit_s:g} s is near")
