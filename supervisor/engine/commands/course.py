"""Reads what all queues together have gone through lately, step by step. Runs in every process that speaks to Redis.

Must not do I/O: a command is a value, as command.py says.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from supervisor.engine.commands.command import Command, now_ms
from supervisor.engine.model import scripts

#: Seconds of a step of each period, and the number of its steps, the one under way among them.
PERIODS: Final = {"hour": (60, 61), "day": (600, 145), "month": (86400, 30)}
#: The counters of a step, as include/course.lua has them.
_COUNTERS: Final = struct.Struct(">4I2q")


@dataclass(frozen=True, slots=True)
class CourseStep:
    """What has happened from a time on, until the next step begins.

    `waiting`: the mean number of waiting jobs; None if no sweep has counted them. `started`: jobs that were leased,
    again ones, too; None if sweeps have not seen where the step began or ended. `failures`: jobs that failed for good.
    `deaths`: runs that ended with their child or their worker. `supervisors`: how many have begun.
    """

    since_unix: float
    waiting: float | None
    started: float | None
    failures: int
    deaths: int
    supervisors: int


def read(period: str, *, now: float | None = None) -> Command[list[CourseStep]]:
    """Read the steps of the last hour, day or month, the oldest first. Releases that count none leave them empty."""
    step_s, number = PERIODS[period]
    # The token at the end of the step before tells how many jobs the first one has started.
    return Command(scripts.COURSE, (now_ms(now), step_s, number + 1), lambda reply: _parse(step_s, *reply))


def _parse(step_s: int, now_ms: int, newest_first: list[Any]) -> list[CourseStep]:
    newest_unix = now_ms // 1000 // step_s * step_s
    steps: list[CourseStep] = []
    last_token, steps_since = 0, 1
    for ago in range(len(newest_first) - 1, -1, -1):
        counters = _counters(newest_first[ago])
        counted, failures, deaths, supervisors, waiting, token = counters
        started = None
        if counted:
            if last_token and token >= last_token:  # else the server has lost its last writes
                started = (token - last_token) / steps_since
            last_token, steps_since = token, 1
        else:
            steps_since += 1
        mean = waiting / counted if counted else None
        steps.append(CourseStep(newest_unix - ago * step_s, mean, started, failures, deaths, supervisors))
    return steps[1:]


def _counters(raw: bytes | None) -> Sequence[int]:
    """Return the six counters of a step. A string ends behind the last one that was raised."""
    text = raw or b""
    return _COUNTERS.unpack(text[: _COUNTERS.size].ljust(_COUNTERS.size, b"\0"))
