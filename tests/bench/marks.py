"""Starts of jobs, as each job itself writes them: one record of 24 bytes, appended to one file in memory.

One write(2) of half a microsecond, the same for every contender in whatever language, and right across forks, threads
and processes. The size of the file tells how many have started without a question to anybody.
"""

import os
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.bench.benchmark import Unmeasured

RECORD = struct.Struct("<dQQ")  # monotonic seconds, pid, number of the job
#: The variable that tells a job where the file is.
VARIABLE = "BENCH_MARKS"
LOOK_S = 0.002


class Mark(NamedTuple):
    """One start."""

    at: float
    pid: int
    job: int


class Marks:
    """The file. Removed with `close`."""

    def __init__(self) -> None:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._file = tempfile.NamedTemporaryFile(prefix="lh-bench-", dir=memory)  # noqa: SIM115 -- until close
        os.chmod(self._file.name, 0o666)
        self.path = self._file.name

    def count(self) -> int:
        return os.stat(self.path).st_size // RECORD.size

    def all(self) -> list[Mark]:
        return [Mark(*fields) for fields in RECORD.iter_unpack(Path(self.path).read_bytes())]

    def clear(self) -> None:
        os.truncate(self.path, 0)

    def wait(self, wanted: int, is_alive: Callable[[], bool] = lambda: True, patience_s: float = 60) -> None:
        """Wait until `wanted` jobs have started. Raises Unmeasured if no further job starts in time, or none can."""
        last, moved_at = self.count(), time.monotonic()
        while last < wanted:
            time.sleep(LOOK_S)
            now = self.count()
            if now != last:
                last, moved_at = now, time.monotonic()
            elif not is_alive() or time.monotonic() > moved_at + patience_s:
                raise Unmeasured(f"{last} of {wanted} jobs have started, then no more")

    def close(self) -> None:
        self._file.close()
