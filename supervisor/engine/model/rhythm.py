"""Checks the rhythm of a recurring job that a handler declares. Runs in producers, zygotes and children. No I/O."""

from typing import Any

from supervisor.engine.model.validation import Duration, in_seconds


def checked_rhythm(cron: str | None, tz: str | None, every: Duration | None) -> dict[str, Any]:
    """Return cron and tz, or every in seconds. Raises TypeError or ValueError naming the argument.

    Without cronsim a cron expression is checked by the supervisor that puts the job.
    """
    if cron is not None and every is not None:
        raise ValueError("every and cron: give one of them")
    if cron is None:
        if tz is not None:
            raise ValueError("tz goes with cron, not with every")
        seconds = in_seconds("every", every)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.001 <= seconds < 2**40:
            raise ValueError(f"every must be seconds, 0.001 or more, or a duration like '10m': {every!r:.100}")
        return {"every": seconds}
    from supervisor.engine.model import cron_times

    try:
        return {"cron": cron_times.checked_cron(cron), **({"tz": zone} if (zone := cron_times.checked_tz(tz)) else {})}
    except cron_times.CronMissing:
        return {"cron": cron, **({} if tz is None else {"tz": tz})}
