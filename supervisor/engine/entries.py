"""Runs in every process that speaks to Redis. Owns: how the payload is found in what another program pushed.
Must not: do I/O. lua/include/entries.lua decides what such an entry means, and keeps its bytes as they came.
"""

import base64
import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # what every decoder of objects calls

import orjson

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def payload_of_kind(kind: str | None, stored: bytes) -> tuple[bytes, bool]:
    """As `payload_of`, of the kind that a record names; None: it is JSON."""
    return payload_of(kind.encode(), stored) if kind else (stored, False)


def payload_of(kind: bytes, stored: bytes) -> tuple[bytes, bool]:
    """The payload of a job whose data is not plain JSON, and whether it is its caller's own bytes. Of an entry it is
    what the entry's "data" has, character by character, or its "data_b64", decoded; one that is not JSON after all, as
    only Lua has read it so far, is answered whole: it is no JSON to whoever decodes it either.
    """
    if kind != b"entry":
        return stored, True
    try:
        value, is_base64 = _value(stored.decode())
        return (base64.b64decode(json.loads(value), validate=True), True) if is_base64 else (value.encode(), False)
    except RecursionError:
        return _deep_value(stored), False
    except (ValueError, IndexError):
        return stored, False


def _deep_value(stored: bytes) -> bytes:
    """The data of an entry that is nested deeper than this interpreter can follow; another decoder can."""
    try:
        return orjson.dumps(orjson.loads(stored).get("data"))
    except ValueError:
        return stored


def _value(text: str) -> tuple[str, bool]:
    """The JSON of the payload, and whether it is base64. The last one of several counts, as in every decoder."""
    found = "null", False
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "}":
        key, at = scanstring(text, at + 1)
        start = _skip(text, _skip(text, at) + 1)
        value, end = _DECODER.raw_decode(text, start)
        if key == "data" or (key == "data_b64" and value is not None):
            found = text[start:end], key == "data_b64"
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
