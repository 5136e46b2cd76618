"""Tells the handler of a child's job to stop. Runs in the master. Never blocks.

A notice goes by the socket `talk`, and a real-time signal makes Python look at it. The signal is repeated four times
within a second, until the job is answered. Once is not enough if it comes just before a system call of the handler, or
while the child writes its stacks: the kernel then continues the call, and Python does not look.
"""

import math
from collections.abc import Callable
from typing import Final

from supervisor import clock, messages
from supervisor.linux import kernel
from supervisor.master.model.child_talk import ChildTalk
from supervisor.messages import Notice

#: The pause before the signal's first repetition. Each further pause is four times as long, up to the longest.
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 1.0


class NoticeSender:
    __slots__ = (
        "_insist_at", "_insistent", "_on_planned", "_pause_s", "_signal_child", "_talk", "reason", "repeat_at",
    )  # fmt: skip

    def __init__(
        self, talk: ChildTalk, signal_child: Callable[[int], None] | None, on_planned: Callable[[], None]
    ) -> None:  # fmt: skip
        """`signal_child` None: the child's event loop reads notices by itself. `on_planned()` is called when
        `repeat_at` has changed.
        """
        self._talk = talk
        self._signal_child = signal_child
        self._on_planned = on_planned
        self.reason: str | None = None  # why the handler of the current job was interrupted
        self.repeat_at = math.inf  # when `repeat` is due (monotonic s)
        self._pause_s = 0.0
        self._insist_at = math.inf  # when a notice that was left to the next checkpoint is raised anywhere
        self._insistent: Notice | None = None  # that notice

    def mention(self, token: int, reason: str) -> None:
        """Have `should_stop` become True in the job with this token. Nothing is raised.

        No signal is sent: it could end a system call of C code that does not expect it.
        """
        self._talk.send(messages.pack_notice(Notice(token, reason, gently=True)))

    def interrupt(self, token: int, reason: str, message: str = "", patience_s: float = 0.0) -> None:
        """Have `Interrupted`, or `SoftTimeout`, raised in the job with this token, if it still runs.

        For `patience_s` seconds only a checkpoint of the job raises it, then any place does.
        """
        notice = Notice(token, reason, message, at_checkpoint=patience_s > 0)
        self._insist_at = clock.monotonic() + patience_s if patience_s > 0 else math.inf
        self._insistent = notice._replace(at_checkpoint=False)
        self.reason = reason
        self._send(notice)

    def _send(self, notice: Notice) -> None:
        """If the notice cannot be sent, the kill that follows it ends the job."""
        if self._talk.send(messages.pack_notice(notice)):
            self._pause_s = _FIRST_PAUSE_S
            self.repeat()

    def repeat(self) -> None:
        """Signal that there is a notice, and plan the next repetition. Insist once patience is over."""
        now_at = clock.monotonic()
        if now_at >= self._insist_at and self._insistent is not None:
            self._insist_at = math.inf
            self._send(self._insistent)
            return
        next_at = math.inf
        if self._signal_child is not None:
            self._signal_child(kernel.NOTICE_SIGNAL)
            next_at = now_at + self._pause_s if self._pause_s <= _LONGEST_PAUSE_S else math.inf
        self.repeat_at = min(next_at, self._insist_at)
        self._pause_s *= 4
        self._on_planned()

    def forget(self) -> None:
        """The job has been answered or taken back: its notice does not hold for the next one."""
        self.reason, self._insistent = None, None
        self.repeat_at = self._insist_at = math.inf
