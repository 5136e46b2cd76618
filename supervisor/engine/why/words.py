"""Words that several reasons share. Runs in applications and commands."""

import datetime
from collections.abc import Sequence


def moment(unix: float) -> str:
    """Return a time as `2031-07-01 10:00:00 UTC`."""
    return datetime.datetime.fromtimestamp(unix, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def actor(who: tuple[str | None, float | None]) -> str:
    """Return `, by kim@web-1, since 2031-07-01 10:00:00 UTC`, as far as it is known."""
    by, since_unix = who
    return (f", by {by}" if by else "") + (f", since {moment(since_unix)}" if since_unix else "")


def counted(n: int, noun: str) -> str:
    """Return `1 job` or `2 jobs`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def some(names: Sequence[str], total: int) -> str:
    """Return the first names, and how many there are beyond them."""
    beyond = total - len(names)
    return ", ".join(names) + (f" and {beyond:,} more" if beyond > 0 else "")


def megabytes(size_bytes: int) -> str:
    """Return `1,200`, without the unit."""
    return f"{size_bytes / 1e6:,.0f}"
