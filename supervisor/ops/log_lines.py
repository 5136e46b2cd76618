"""Formats events as lines of JSON, or of text for a terminal. Runs in the master. Does no I/O."""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import orjson

from supervisor.ops.visible import visible, visible_json

#: Fields that text leaves out, for one line on a terminal.
JSON_ONLY: Final = {"master.started": frozenset({"processes_reason", "memory_budget_reason", "cells"})}
#: A line above LINE_BYTES is made again with each value cut to VALUE_CHARS.
LINE_BYTES: Final = 2**18
VALUE_CHARS: Final = 2**14

#: Makes a line of the time, name and level of an event, of the fields that all lines have, and of its own.
Encode = Callable[[float, str, str, dict[str, str], dict[str, Any]], bytes]


def json_line(time_unix: float, name: str, level: str, always: dict[str, str], fields: dict[str, Any]) -> bytes:
    if None in fields.values():
        fields = _without_none(fields)
    record = {"time": time_unix, "at": _utc(time_unix), "event": name, "level": level, **always, **fields}
    try:
        # The newline makes a copy: orjson's own result occupies 4 KiB, however short it is.
        line = orjson.dumps(record, _plain) + b"\n"
    except TypeError:  # lone surrogates, an int above 64 bits, nesting: the event is logged all the same
        line = json.dumps(record, default=_plain).encode() + b"\n"
    return line if len(line) <= LINE_BYTES else json_line(time_unix, name, level, always, _shortened(fields))


def json_lines(
    time_unix: float, name: str, level: str, always: dict[str, str], each: Iterable[dict[str, Any]]
) -> Iterator[bytes]:
    """Yield the line for each of the fields. What all lines begin with is encoded once."""
    head = orjson.dumps({"time": time_unix, "at": _utc(time_unix), "event": name, "level": level, **always})
    begin = head[:-1] + b","
    for fields in each:
        try:
            line = begin + orjson.dumps(fields, _plain, orjson.OPT_APPEND_NEWLINE)[1:]
        except TypeError:
            line = json_line(time_unix, name, level, always, fields)
        yield line if len(line) <= LINE_BYTES else json_line(time_unix, name, level, always, fields)


def one_by_one(
    encode: Encode, time_unix: float, name: str, level: str, always: dict[str, str], each: Iterable[dict[str, Any]]
) -> Iterator[bytes]:
    return (encode(time_unix, name, level, always, fields) for fields in each)


def json_on_terminal(time_unix: float, name: str, level: str, always: dict[str, str], fields: dict[str, Any]) -> bytes:
    line = json_line(time_unix, name, level, always, fields)
    return visible_json(line[:-1].decode()).encode() + b"\n"


def _plain(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _shortened(fields: dict[str, Any]) -> dict[str, Any]:
    """Cut each value so that the line is short enough. The end is kept: a traceback's end says what happened."""
    short = {}
    for key, value in fields.items():
        text = value if isinstance(value, str) else _plain(value)
        short[key] = value if len(text) <= VALUE_CHARS else f"… {text[-VALUE_CHARS:]}"
    return short


def _utc(time_unix: float) -> str:
    """Format a time as ISO 8601, to the millisecond."""
    return f"{_utc_second(int(time_unix))}.{int(time_unix % 1 * 1000):03d}Z"


@lru_cache(maxsize=2)
def _utc_second(second_unix: int) -> str:
    return datetime.fromtimestamp(second_unix, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def text_line(time_unix: float, name: str, level: str, always: dict[str, str], fields: dict[str, Any]) -> bytes:
    """Return `14:03:12.345 job.completed  email.send jid=… run_ms=12  message`, with further lines of a value below."""
    words: list[str] = []
    last = blocks = ""
    left_out = JSON_ONLY.get(name, ())
    for key, value in _without_none(_shortened(fields)).items():
        if key in left_out:
            continue
        text = _shown(value)
        if "\n" in text:
            blocks += f"\n  {key}:" + "".join(f"\n    {line}" for line in text.splitlines())
        elif key in {"message", "line"}:
            last = f"  {text}"
        elif key == "klass":
            words.insert(0, text)
        elif key.endswith("_bytes"):
            words.append(f"{key.removesuffix('_bytes')}={int(text) / 2**20:.3g}MB")
        else:
            words.append(f"{key}={text}")
    head = f"{_clock_time(int(time_unix))}.{int(time_unix % 1 * 1000):03d} {name}"
    return f"{head}  {' '.join(words)}{last}{blocks}\n".encode("utf-8", "backslashreplace")


@lru_cache(maxsize=2)
def _clock_time(second_unix: int) -> str:
    return datetime.fromtimestamp(second_unix).strftime("%H:%M:%S")


def _shown(value: object) -> str:
    """Return a value for a terminal, without characters that move its cursor or change its colours."""
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ",".join(map(_shown, value))
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_shown(each)}" for key, each in value.items())
    return visible(_plain(value).rstrip("\n"))
