"""Defines what a test learns of one run of a job. Used in the process of pytest. Must not do I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.engine.model.job_to_put import JobToPut


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one job.

    `outcome`: completed, retried, failed, interrupted, suspended or died. `result`: as JSON keeps it. `error`: the
    exception that left the handler. `group`, `message`: of a failure, or the reason of an interruption or a death, or
    the signal that the job waits for. `puts`: the jobs of `job.put`, which are put if the job has completed.
    `progress`, `checkpoints`: what the handler has told, in order.
    """

    jid: str
    klass: str
    attempt: int
    outcome: str
    result: Any = None
    error: BaseException | None = None
    group: str | None = None
    message: str = ""
    traceback: str = ""
    puts: Sequence[JobToPut] = ()
    progress: Sequence[tuple[float, str]] = ()
    checkpoints: Sequence[Any] = ()

    def check(self) -> Any:
        """Return the result. Raises AssertionError with the handler's traceback if the job has not completed."""
        if self.outcome != "completed":
            raise AssertionError(str(self)) from self.error
        return self.result

    def __str__(self) -> str:
        words = f"{self.klass} {self.jid}, attempt {self.attempt}: {self.outcome}"
        why = ": ".join(filter(None, (self.group, self.message)))
        return "\n".join(filter(None, (f"{words} ({why})" if why else words, self.traceback.rstrip())))
