"""The job as its handler sees it. Runs in children. Holds data only; must not import redis."""

from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from supervisor.pool.messages import JobMessage


class Job:
    """One start of one job.

    `jid klass queue priority tags` as put; `token` of this lease; `failures deaths interruptions`: how earlier starts
    ended; `attempt`: 1 at the first start; `raw`: the payload's bytes; `workdir`: the current directory, its own and
    empty.
    """

    def __init__(self, message: JobMessage, raw: bytes, workdir: str) -> None:
        self.jid = message.jid
        self.klass = message.klass
        self.queue = message.queue
        self.priority = message.priority
        self.token = message.token
        self.failures = message.failures
        self.deaths = message.deaths
        self.interruptions = message.interruptions
        self.tags = message.tags
        self.raw = raw
        self._workdir = workdir
        self._is_bytes = message.is_bytes

    @property
    def attempt(self) -> int:
        return 1 + self.failures + self.deaths + self.interruptions

    @property
    def workdir(self) -> Path:
        return Path(self._workdir)

    @cached_property
    def data(self) -> Any:
        """The decoded payload, or the bytes where bytes were put."""
        return self.raw if self._is_bytes else orjson.loads(self.raw)

    def __repr__(self) -> str:
        return f"<Job {self.klass} {self.jid} attempt {self.attempt}>"
