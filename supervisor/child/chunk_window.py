"""Counts the chunks of one job that are on their way to Redis. Runs in children. No I/O.

Has no lock: whoever sends holds one, and `taken` may come between any two instructions of it.
"""

from collections import deque

from supervisor.messages import MOST_CHUNK_BYTES, MOST_CHUNKS


class ChunkWindow:
    def __init__(self) -> None:
        self._sent = 0
        self._taken = 0
        self._sizes: deque[int] = deque()  # of the chunks that are not known to be taken

    def has_room(self, size_bytes: int) -> bool:
        """Return whether a chunk of this size may be sent. One may always be under way, whatever its size."""
        while len(self._sizes) > self._sent - self._taken:
            self._sizes.popleft()
        if not self._sizes:
            return True
        return len(self._sizes) < MOST_CHUNKS and sum(self._sizes) + size_bytes <= MOST_CHUNK_BYTES

    @property
    def is_half_full(self) -> bool:
        """True if it is time to read what Redis has taken, so that the answers do not fill the socket."""
        return 2 * (self._sent - self._taken) >= MOST_CHUNKS

    def add(self, size_bytes: int) -> None:
        """Count a chunk before it is sent: the handler may be interrupted in between."""
        self._sent += 1
        self._sizes.append(size_bytes)

    def taken(self, count: int) -> None:
        self._taken = max(self._taken, count)
