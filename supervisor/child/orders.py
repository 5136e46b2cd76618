"""Defines the exceptions by which a handler ends its job, or is stopped. Runs in children and applications.

Must not import redis, which every child would carry.
"""

from supervisor.engine.model.validation import Duration, in_seconds
from supervisor.messages import MAX_DELAY_S


class Retry(Exception):  # no error: an order to the supervisor
    """Raise it in a handler: run this job again, after `delay` (None: the usual back-off). Spends a retry.

    `delay`: seconds, a text such as "30s" or "5m", or a timedelta.
    """

    def __init__(self, delay: Duration | None = None, message: str = "") -> None:
        super().__init__(message or "the handler asked for a retry")
        self.delay = None if delay is None else _retry_delay(delay)


def _retry_delay(delay: Duration) -> float:
    try:
        seconds = in_seconds("delay", delay)
    except ValueError as error:
        raise ValueError(f"Retry: {error}") from None
    if not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_DELAY_S:
        raise ValueError(f"Retry(delay={delay!r}): give seconds, 0 or more, or a duration like '30s'")
    return seconds


class Fail(Exception):
    """Raise it in a handler: this job has failed for good, in failure group `group`."""

    def __init__(self, group: str, message: str = "") -> None:
        super().__init__(message or group)
        if not isinstance(group, str) or not group:
            raise ValueError(f"Fail(group={group!r}): give the name of a failure group")
        self.group = group


class Interrupted(BaseException):  # not an Exception: `except Exception` in a handler must not catch it
    """Raised inside a handler that has to stop. The job returns to the front of its queue and keeps its retries.

    `reason`: drain, reload, scaled, cut-off, cancelled or lease-lost.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SoftTimeout(BaseException):  # not an Exception, for the same reason
    """Raised inside a handler before its time limit: a tenth of the limit before it, at most `--term-grace`.

    The handler should clean up, or return what it has. If the exception leaves the handler, the job has failed in group
    `timeout`. At the limit itself the supervisor kills the job's process tree, which is a death.
    """
