"""The only module that reads a clock. Runs in every process. `_at` values are monotonic, `_unix` values wall time."""

import time
from typing import Final

#: Seconds on the clock of all deadlines, without meaning on another machine. No wrapper: each job needs a dozen calls.
monotonic: Final = time.monotonic
#: Seconds of processor time of this process, without its children.
processor_time: Final = time.process_time
#: Other systems have no CLOCK_BOOTTIME. The CLOCK_MONOTONIC of macOS counts suspended time, too.
_BOOT_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def unix() -> float:
    """Return wall time in seconds since the epoch, for people and logs. Leases use the server's clock instead."""
    return time.time()


def boottime() -> float:
    """Return the seconds since the machine's start, suspended ones included where the system counts them."""
    return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)


_second = 0
_time_of_day = ""


def time_of_day() -> str:
    """Return local time as HH:MM:SS, for titles and logs. Formatted at most once a second."""
    global _second, _time_of_day
    second = int(time.time())
    if second != _second:
        _second, _time_of_day = second, time.strftime("%H:%M:%S", time.localtime(second))
    return _time_of_day
