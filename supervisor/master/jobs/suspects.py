"""Finds the job that kills a shared child, among those that ran beside it. Runs in the master. Does no I/O.

All jobs that a shared child held when it died are suspects. They run again beside suspects only, half as many at once.
The culprit kills the half that it is in, each time a smaller one, until it is alone and counts its death.
"""

from collections.abc import Iterable
from typing import Final

from supervisor.engine.model.jobs import LeaseRecord

#: So many suspects are remembered. They lie in the queue until they run again, and a peer may take them.
_MOST: Final = 50_000


class Suspects:
    def __init__(self) -> None:
        self._most: dict[str, int] = {}  # by jid, oldest first: how many may run at once

    def add(self, jids: Iterable[str], at_once: int) -> None:
        """A child has died while it ran these jobs. At most `at_once` of them may run in one child from now on."""
        for jid in jids:
            self._most.pop(jid, None)
            self._most[jid] = at_once
        while len(self._most) > _MOST:
            del self._most[next(iter(self._most))]

    def clear(self, jid: str) -> None:
        """The job has ended by itself."""
        if self._most:
            self._most.pop(jid, None)

    def at_once(self, lease: LeaseRecord) -> int | None:
        """Return how many suspects may run in a child with this job. None: it is not suspected.

        A job whose child has died runs alone, so that the next death is certainly its own.
        """
        return 1 if lease.deaths else self._most.get(lease.jid)
