"""The one module that tells time. Runs in every process. `_at` values are monotonic, `_unix` values wall time."""

import time
from typing import Final

#: Seconds on the clock that deadlines are counted on; means nothing to another machine. The call itself: it is asked a
#: dozen times for each job.
monotonic: Final = time.monotonic
#: Seconds of processor time that this process has used, without those that it has waited for.
processor_time: Final = time.process_time


def unix() -> float:
    """Wall time in seconds since the epoch, for people and logs. Decides about no lease: the server's clock does."""
    return time.time()


def boottime() -> float:
    """Seconds since the machine has started, with those in which it was suspended. Linux."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_second = 0
_time_of_day = ""


def time_of_day() -> str:
    """Local wall time as HH:MM:SS, for titles and logs; formatted at most once a second."""
    global _second, _time_of_day
    second = int(time.time())
    if second != _second:
        _second, _time_of_day = second, time.strftime("%H:%M:%S", time.localtime(second))
    return _time_of_day
