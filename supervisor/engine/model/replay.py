"""Defines what a start of a handler finds of the starts before it: signals, ended waits, results of steps.

Runs in every process that leases jobs, and in children. Must not do I/O. lua/include/replay.lua writes it.
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson

#: Most bytes of the value of a signal, as JSON. The result of a step may have as many bytes as a checkpoint.
SIGNAL_BYTES: Final = 64 * 1024
#: Most bytes of the names and results of all steps of a job.
STEPS_BYTES: Final = 1024 * 1024
MOST_STEPS: Final = 1000
MOST_WAITS: Final = 1000
#: The time of a wait without a time-out, in ms.
NEVER_MS: Final = 2**53


def packed(fields: Sequence[bytes], now_ms: int) -> bytes:
    """Return the fields and values of the hash as JSON: signals, waits (name -> whether it is over now), steps."""
    signals, waits, steps = {}, {}, {}
    for field, value in zip(fields[::2], fields[1::2], strict=True):
        kind, _, name = field.decode(errors="replace").partition(":")
        if kind == "signal":
            signals[name] = orjson.Fragment(value)
        elif kind == "wait":
            waits[name] = value.isdigit() and int(value) <= now_ms
        elif kind == "step":
            steps[name] = orjson.Fragment(value)
    return orjson.dumps((signals, waits, steps))


class Replay:
    """The signals, waits and steps that a start finds. `raw`: from `packed`; None: there are none."""

    def __init__(self, raw: bytes | None) -> None:
        """Raises ValueError for foreign values."""
        signals, waits, steps = orjson.loads(raw) if raw else ({}, {}, {})
        self.signals: dict[str, Any] = signals
        self.waits: dict[str, bool] = waits
        self.steps: dict[str, Any] = steps
