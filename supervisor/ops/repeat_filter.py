"""Throttles messages that may come each second. Runs in the master. No I/O, no clock.

A new message passes at once. The same one passes again after 5 s, and then less and less often.
"""

from dataclasses import dataclass
from typing import Final

_FIRST_S: Final = 5.0
_LONGEST_S: Final = 600.0
#: A message that has not come for this long counts as new.
_FORGOTTEN_S: Final = 60.0
MOST_MESSAGES: Final = 200


@dataclass(slots=True)
class _Message:
    say_at: float  # when it passes again
    pause_s: float
    came_at: float  # the last time
    kept: int  # repetitions since it passed


class RepeatFilter:
    def __init__(self) -> None:
        self._messages: dict[tuple[str, str], _Message] = {}  # by event and text, the latest last

    def admit(self, event: str, text: str, now_at: float) -> str | None:
        """Count a message. Return the text to log now, or None."""
        known = self._messages.pop((event, text), None)
        if known is None or now_at >= known.came_at + _FORGOTTEN_S:
            known = _Message(now_at + _FIRST_S, _FIRST_S, now_at, 0)
            self._remember(event, text, known)
            return text
        self._remember(event, text, known)
        known.came_at = now_at
        known.kept += 1
        if now_at < known.say_at:
            return None
        known.pause_s = min(2 * known.pause_s, _LONGEST_S)
        known.say_at = now_at + known.pause_s
        times, known.kept = known.kept, 0
        return text if times == 1 else f"{text} ({times} times since this was said last)"

    def forget(self, event: str) -> None:
        """Forget the messages of this event, whose cause has ended: the next one is new."""
        for key in [key for key in self._messages if key[0] == event]:
            del self._messages[key]

    def _remember(self, event: str, text: str, message: _Message) -> None:
        if len(self._messages) >= MOST_MESSAGES:
            del self._messages[next(iter(self._messages))]
        self._messages[event, text] = message
