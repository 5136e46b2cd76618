"""Knows what in a shard waits for a person, or has gone wrong unseen. Runs in the master. Does no I/O.

Each supervisor that is asked for its metrics looks, because any of them may be the only one left.
"""

import math
from collections.abc import Sequence
from typing import Final

from supervisor import clock
from supervisor.engine.commands import concerns
from supervisor.engine.commands.concerns import Concerns
from supervisor.engine.worker.exchange import Part

#: Time between two rounds over all queues. A round of many queues takes several looks.
_ROUND_S: Final = 15.0
#: Findings are not shown as current once no answer has come for so long.
_FRESH_S: Final = 60.0


class ConcernsWatch:
    def __init__(self) -> None:
        self._found: Concerns | None = None  # by the last round
        self._found_at = -math.inf  # when the last round ended (monotonic s)
        self._heard_at = -math.inf  # when the last answer came
        self._gathered = Concerns()  # by the round under way
        self._offset = 0  # where that goes on

    @property
    def current(self) -> Concerns | None:
        """The findings of the last round; None before the first, and if no round goes on."""
        return self._found if clock.monotonic() < self._heard_at + _FRESH_S else None

    def parts(self, now_at: float) -> Sequence[Part]:
        """Return what belongs to a look, if a round is due or under way."""
        if not self._offset and now_at < self._found_at + _ROUND_S:
            return []
        return [Part(concerns.read(self._offset), self._on_read)]

    def _on_read(self, answer: tuple[Concerns, int | None]) -> None:
        page, following = answer
        self._gathered = self._gathered | page if self._offset else page
        self._offset, self._heard_at = following or 0, clock.monotonic()
        if not self._offset:
            self._found, self._found_at = self._gathered, self._heard_at


def together(found: Sequence[Concerns | None]) -> Concerns | None:
    """Return what several shards have found. None if one of them has found nothing as yet."""
    shards = [each for each in found if each is not None]
    return concerns.of_all(shards) if len(shards) == len(found) else None
