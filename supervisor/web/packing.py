"""Writes values as JSON, whatever depth they have. Runs in the web server's process."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

#: Stands for what is nested deeper than JSON can be written. Jobs come from anybody, and may hold such values.
TOO_DEEP: Final = "(nested too deep)"
_DEEPEST: Final = 100


def packed(value: Any, option: int = 0) -> bytes:
    """Return a value as JSON. What is no JSON is written as a text."""
    option |= orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, default=str, option=option)
    except orjson.JSONEncodeError:
        return orjson.dumps(_cut(value, 0), default=str, option=option)


def _cut(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return TOO_DEEP
    match value:
        case Mapping():
            return {key: _cut(each, depth + 1) for key, each in value.items()}
        case list() | tuple():
            return [_cut(each, depth + 1) for each in value]
    return value
