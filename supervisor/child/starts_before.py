"""Gives a start of a handler the signals, ended waits and results of steps of those before it. Runs in children.

Owns which waits and steps this start has come to. Must not send anything.
"""

from typing import Any, Final

import orjson

from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.replay import MOST_STEPS, MOST_WAITS, STEPS_BYTES, Replay
from supervisor.engine.model.validation import to_state

#: The waits of `job.sleep` have these names, by their order in a start.
_SLEEP: Final = "sleep-"


class Suspend(BaseException):  # not an Exception: `except Exception` in a handler must not catch it
    """Leaves the handler of a job that waits. The job starts again at the signal `name`, or after `timeout_s`."""

    def __init__(self, name: str, timeout_s: float | None) -> None:
        super().__init__(name)
        self.name = name
        self.timeout_s = timeout_s


class StartsBefore:
    def __init__(self, raw: bytes | None) -> None:
        """`raw`: as `replay.packed` makes it; None: nothing is known."""
        replay = Replay(raw)
        self.signals = replay.signals
        self._waits = replay.waits
        self._steps = replay.steps
        self._steps_bytes = sum(_size(name, to_state(name, result)) for name, result in replay.steps.items())
        self._taken: set[str] = set()  # the steps of this start
        self._sleeps = 0

    def wait(self, name: str, timeout_s: float | None) -> Any:
        """Return the value of a signal. Raises TimeoutError if the wait is over, else Suspend."""
        checked_name("name", name)
        if name in self.signals:
            return self.signals[name]
        if self._waits.get(name):
            raise TimeoutError(f"no signal {name!r} has come in time")
        if name not in self._waits and len(self._waits) >= MOST_WAITS:
            raise ValueError(f"a job can wait {MOST_WAITS} times: let it go on as another job")
        raise Suspend(name, timeout_s)

    def sleep_name(self) -> str:
        """Return the name of the next sleep of this start."""
        self._sleeps += 1
        return f"{_SLEEP}{self._sleeps}"

    def begin_step(self, name: str) -> bool:
        """Return whether the result of a step is stored. Raises ValueError for a second step of this name."""
        checked_name("name", name)
        if name in self._taken:
            raise ValueError(f"job.step: {name!r} is a step of this start already; give each step a name of its own")
        if name not in self._steps and len(self._steps) >= MOST_STEPS:
            raise ValueError(f"job.step: a job can have {MOST_STEPS} steps")
        self._taken.add(name)
        return name in self._steps

    def result_of(self, name: str) -> Any:
        return self._steps[name]

    def raw_result(self, name: str, result: Any) -> bytes:
        """Return the result of a step as JSON. Raises TypeError or ValueError if it cannot be stored."""
        raw = to_state(f"the result of step {name!r}", result)
        size = _size(name, raw)
        if self._steps_bytes + size > STEPS_BYTES:
            raise ValueError(f"job.step: all results of a job have at most {STEPS_BYTES >> 20} MiB together")
        self._steps_bytes += size
        return raw

    def end_step(self, name: str, raw: bytes) -> Any:
        """Note a result that is stored, and return it as later starts will get it."""
        self._steps[name] = orjson.loads(raw)
        return self._steps[name]


def _size(name: str, raw: bytes) -> int:
    return len(name.encode()) + len(raw)
