"""Validates the values that callers pass. Runs in every process that speaks to Redis. Must not do I/O.

Each function raises TypeError or ValueError naming the argument and the value.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

import orjson

from supervisor.engine.model.bounds import DATA_BYTES as DATA_BYTES
from supervisor.engine.model.keys import checked_name
from supervisor.setting_values import LONGEST_POLL_S, SHORTEST_POLL_S
from supervisor.units import parse_duration

#: A duration: seconds, a text such as 30s, 500ms, 5m, 2h or 7d, or a timedelta.
Duration = float | str | timedelta

PROGRESS_CHARS = 1000
STATE_BYTES = 64 * 1024  # of a checkpoint, as JSON
EXACT_INT = 2**53  # the largest exact integer in scores of Redis and in Lua, which are doubles
# orjson has its own forms for these types, which do not decode to the same values.
_ONLY_JSON = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class Unset:
    """The type of UNSET: an argument that was not given, where None is a value."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


def checked_int(argument: str, value: object, least: int, most: int = EXACT_INT) -> int:
    """Return the value if it is an int (no bool) from least to most.

    Raises TypeError or ValueError naming the argument.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{argument} must be an int, not {type(value).__name__}: {value!r:.100}")
    if not least <= value <= most:
        raise ValueError(f"{argument} must be from {least} to {most}: {value!r:.100}")
    return value


def milliseconds(argument: str, seconds: object, least: float = -math.inf) -> int:
    """Return seconds as whole milliseconds. Raises TypeError or ValueError naming the argument."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"{argument} must be a number of seconds, not {type(seconds).__name__}: {seconds!r:.100}")
    if not (-EXACT_INT / 1000 <= seconds <= EXACT_INT / 1000):  # NaN is outside, too
        raise ValueError(f"{argument} must be a finite number of seconds: {seconds!r:.100}")
    if seconds < least:
        raise ValueError(f"{argument} must be {least} or more: {seconds!r}")
    return round(seconds * 1000)


def in_seconds(argument: str, value: object) -> object:
    """Return a Duration as a number of seconds, anything else unchanged.

    Raises ValueError naming argument and value.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        return value
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{argument} must be seconds, a duration or a timedelta: {value!r:.100} {error}") from None


def duration_ms(argument: str, value: object, least: float) -> int:
    """Return a Duration as whole milliseconds. Raises TypeError or ValueError naming the argument."""
    return milliseconds(argument, in_seconds(argument, value), least)


def in_unix_seconds(argument: str, value: object) -> object:
    """Return a datetime as unix seconds, anything else unchanged. Raises ValueError if it has no time zone."""
    if not isinstance(value, datetime):
        return value
    if value.utcoffset() is None:
        raise ValueError(
            f"{argument} must be unix seconds or a datetime with a time zone, as datetime.now(UTC) has: {value!r}"
        )
    return value.timestamp()


def moment_ms(argument: str, value: object) -> int:
    """Return unix seconds or a datetime as whole milliseconds. Raises TypeError or ValueError naming the argument."""
    return milliseconds(argument, in_unix_seconds(argument, value), least=0)


def checked_seconds(argument: str, value: object) -> float:
    """Return a Duration as a finite number of seconds. Raises TypeError or ValueError naming the argument."""
    seconds = in_seconds(argument, value)
    milliseconds(argument, seconds)
    return seconds  # type: ignore[return-value]  # just checked


def checked_poll(argument: str, value: object) -> float:
    """Return the interval of looks in seconds, 0 for none. Raises TypeError or ValueError naming the argument."""
    seconds = checked_seconds(argument, value)
    if seconds and not SHORTEST_POLL_S <= seconds <= LONGEST_POLL_S:
        bounds = f"{SHORTEST_POLL_S:g} to {LONGEST_POLL_S:g} seconds"
        raise ValueError(f"{argument} must be 0 (wait in Redis), or from {bounds}: {value!r:.100}")
    return seconds


def checked_progress(fraction: object, text: object) -> tuple[float, str]:
    """Return a progress report: a fraction from 0 to 1 and its text.

    Raises TypeError or ValueError naming the argument.
    """
    if not isinstance(fraction, int | float) or isinstance(fraction, bool):
        raise TypeError(f"fraction must be a number from 0 to 1, not {type(fraction).__name__}: {fraction!r:.100}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be a number from 0 to 1: {fraction!r:.100}")
    words = checked_text("text", text)
    if len(words) > PROGRESS_CHARS:
        raise ValueError(f"text must have at most {PROGRESS_CHARS} characters, not {len(words)}")
    return float(fraction), words


def to_state(argument: str, value: object) -> bytes:
    """Return a checkpoint as JSON. Raises TypeError or ValueError naming the argument."""
    raw = to_json(argument, value)
    if len(raw) > STATE_BYTES:
        raise ValueError(
            f"{argument} must have at most {STATE_BYTES} bytes as JSON, not {len(raw)}: keep the rest elsewhere"
        )
    return raw


def checked_each(argument: str, values: object, each: str) -> Iterable[Any]:
    """Return the values if they are iterable and no text; `each` names one in the error. Raises TypeError."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{argument} must be a list of {each}, not {type(values).__name__}: {values!r:.100}")
    return values


def checked_flag(argument: str, value: object) -> bool:
    """Return the value if it is a bool. Raises TypeError naming the argument."""
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be a bool, not {type(value).__name__}: {value!r:.100}")
    return value


def checked_text(argument: str, value: object) -> str:
    """Return the value if it is a str that UTF-8 can encode. Raises TypeError or ValueError naming the argument."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {type(value).__name__}: {value!r:.100}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{argument} must be valid Unicode: {value!r:.100}") from None
    return value


def to_json(argument: str, value: object, wanted: str = "JSON") -> bytes:
    """Return the value as JSON. Raises TypeError naming the argument, the `wanted`, and what is not JSON."""
    try:
        return orjson.dumps(value, option=_ONLY_JSON)
    except TypeError as error:
        why = next(_strangers(argument, value), str(error))
        raise TypeError(f"{argument} must be {wanted}: {why}") from None


#: How to convert values of common types that JSON lacks.
_CURES: Final = {
    "datetime.datetime": "give .isoformat() or .timestamp()",
    "datetime.date": "give .isoformat()",
    "datetime.time": "give .isoformat()",
    "datetime.timedelta": "give .total_seconds()",
    "decimal.Decimal": "give str(…), which keeps every digit, or float(…)",
    "builtins.set": "give a list",
    "builtins.frozenset": "give a list",
    "builtins.bytes": "give text, such as base64; only data as a whole may be bytes",
    "builtins.complex": "give two numbers",
}
_LARGEST_INT: Final = 2**64
#: The search for the culprit in a large payload ends after so many values.
_MOST_LOOKED_AT: Final = 100_000


def _strangers(argument: str, value: object) -> Iterator[str]:
    """Yield what is not JSON in a value, in order, with its path and the cure."""
    waiting: list[tuple[str, object]] = [(argument, value)]
    for _ in range(_MOST_LOOKED_AT):
        if not waiting:
            return
        path, one = waiting.pop()
        if isinstance(one, dict):
            for key in one:
                if not isinstance(key, str):
                    yield f"{path} has the key {key!r:.60}, and keys must be str"
            waiting += [(f"{path}[{key!r:.60}]", each) for key, each in reversed(one.items())]
        elif isinstance(one, list) or type(one) is tuple:
            waiting += [(f"{path}[{n}]", each) for n, each in reversed([*enumerate(one)])]
        elif isinstance(one, int):
            if not -(_LARGEST_INT // 2) <= one < _LARGEST_INT:
                yield f"{path} is an int of more than 64 bits; give it as a str"
        elif not isinstance(one, str | float | UUID | Enum | orjson.Fragment | None):
            name = f"{type(one).__module__}.{type(one).__qualname__}"
            cure = _CURES.get(name, "make a str, a number, a list or a dict of it")
            yield f"{path} is a {name.removeprefix('builtins.')}; {cure}"


#: What is stored as it is. A union of types would be made anew for each job.
_RAW: Final = (bytes, bytearray, memoryview)
#: orjson's bytes keep the buffer that they were written into, of 4 KiB at least. Shorter ones are copied out of it.
_BUFFER_BYTES: Final = 4096


def to_data(argument: str, value: object) -> tuple[str, bytes]:
    """Return the kind and the bytes to store: the caller's bytes unchanged ("bytes"), anything else as "json"."""
    if isinstance(value, _RAW):
        _check_size(argument, value.nbytes if isinstance(value, memoryview) else len(value))  # before the copy
        return "bytes", bytes(value)
    raw = to_json(argument, value, "JSON or bytes")
    if len(raw) < _BUFFER_BYTES:
        return "json", b"%b" % raw
    _check_size(argument, len(raw))
    return "json", raw


def _check_size(argument: str, size: int) -> None:
    if size > DATA_BYTES:
        raise ValueError(f"{argument} must have at most {DATA_BYTES} bytes, not {size}")


def to_new_data(argument: str, value: object) -> tuple[str, bytes]:
    """Return what to_data does. UNSET, which keeps the job's data, returns kind "" and no bytes."""
    return ("", b"") if value is UNSET else to_data(argument, value)


def checked_lines(argument: str, names: object, most: int) -> str:
    """Return the names, each once, a line each. Raises TypeError or ValueError naming the argument."""
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise TypeError(f"{argument} must be a list of names, not {type(names).__name__}: {names!r:.100}")
    unique = dict.fromkeys(checked_name(argument, name) for name in names)
    if len(unique) > most:
        raise ValueError(f"{argument} must be at most {most} names, not {len(unique)}")
    return "\n".join(unique)
