"""Reads what all queues together have gone through lately, step by step. Runs in every process that speaks to Redis.

Must not do I/O: a command is a value, as command.py says.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from supervisor.engine.commands.command import Command, now_ms
from supervisor.engine.commands.routes import everywhere
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
    args = now_ms(now), step_s, number + 1
    return Command(scripts.COURSE, args, lambda reply: _parse(step_s, *reply), route=everywhere(_added))


def _added(answers: list[list[CourseStep]]) -> list[CourseStep]:
    """Add up the steps of all shards. Each has seen the same supervisors begin."""
    by_time: dict[float, list[CourseStep]] = {}
    for step in (step for answer in answers for step in answer):
        by_time.setdefault(step.since_unix, []).append(step)
    return [
        CourseStep(
            since_unix,
            _sum_of_known(step.waiting for step in steps),
            _sum_of_known(step.started for step in steps),
            sum(step.failures for step in steps),
            sum(step.deaths for step in steps),
            max(step.supervisors for step in steps),
        )
        for since_unix, steps in sorted(by_time.items())
    ]


def _sum_of_known(figures: Iterable[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None


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
