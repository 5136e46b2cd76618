"""Checks the modes of a unique job: debounce, throttle, collect. Runs in every process that puts jobs. Must not do I/O.

include/modes.lua says what each of them does.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from supervisor.engine.model.bounds import DATA_BYTES
from supervisor.engine.model.validation import checked_int, duration_ms

MODES: Final = ("debounce", "throttle", "collect")
#: The options of put that only a put with a mode has.
MODE_OPTIONS: Final = frozenset({*MODES, "most"})
#: How many data one job collects, where a put does not say.
DEFAULT_MOST: Final = 500
MOST_COLLECTED: Final = 10_000
LONGEST_SPAN_MS: Final = 7 * 24 * 3600 * 1000
#: Options that debounce and collect exclude, because these modes decide when the job runs.
_NOT_LATER: Final = ("delay", "at", "depends", "batch")


class Mode(NamedTuple):
    """A checked mode: its name, its span, and for collect how many data one job has at most."""

    name: str
    span_ms: int
    most: int

    @property
    def stored(self) -> str:
        """Return the option `mode` as put.lua takes it."""
        numbers = {"throttle": f" {self.span_ms}", "collect": f" {self.most}"}
        return self.name + numbers.get(self.name, "")

    @property
    def delay_ms(self) -> int | None:
        """Return when the job may run; None if the mode does not say."""
        return None if self.name == "throttle" else self.span_ms


def checked_mode(options: Mapping[str, Any]) -> Mode | None:
    """Return the mode that put's options ask for. Raises TypeError or ValueError naming the option."""
    given = [name for name in MODES if options.get(name) is not None]
    if "collect" not in given and options.get("most") is not None:
        raise ValueError(f"most goes with collect: {options['most']!r:.100}")
    if not given:
        return None
    if len(given) > 1:
        raise ValueError(f"{given[0]} and {given[1]} exclude each other: {options[given[1]]!r:.100}")
    [name] = given
    span_ms = duration_ms(name, options[name], least=0.001)
    if span_ms > LONGEST_SPAN_MS:
        raise ValueError(f"{name} must be at most 7 days: {options[name]!r:.100}")
    _check_others(name, options)
    most = DEFAULT_MOST
    if options.get("most") is not None:
        most = checked_int("most", options["most"], 1, MOST_COLLECTED)
    return Mode(name, span_ms, most)


def _check_others(name: str, options: Mapping[str, Any]) -> None:
    unique = options.get("unique")
    if unique is None or unique is False:
        raise ValueError(f"{name} needs unique, the key by which jobs count as the same: {unique!r}")
    if name == "collect" and unique is True:
        raise ValueError("collect needs a key as unique, for jobs of the same data have nothing to collect: True")
    if options.get("persistent"):
        raise ValueError(f"{name} and persistent exclude each other: True")
    for other in () if name == "throttle" else _NOT_LATER:
        if options.get(other) is not None:
            raise ValueError(f"{name} and {other} exclude each other: {options[other]!r:.100}")


def as_list(kind: str, raw: bytes) -> bytes:
    """Return the data of one put as the list with which its job begins to collect. Raises ValueError for bytes."""
    if kind != "json":
        raise ValueError(f"data must be JSON where they are collected, not bytes: {raw!r:.100}")
    if len(raw) + 2 > DATA_BYTES:
        raise ValueError(f"data must have at most {DATA_BYTES - 2} bytes where they are collected, not {len(raw)}")
    return b"[%b]" % raw
