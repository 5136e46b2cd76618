"""The job whose task runs. Runs in children; in an application there is none."""

from contextvars import ContextVar
from typing import Final

from supervisor.child.context import JobContext

current_job: Final = ContextVar[JobContext | None]("leasehold_current_job", default=None)
