"""Finds the payload in an entry that another program pushed. Runs in every process that speaks to Redis.

Must not do I/O. lua/include/entries.lua decides what an entry means and keeps its bytes unchanged. No depth or shape of
an entry may crash its reader, so this code does not recurse and builds no objects for the parts that it skips.
"""

import base64
import json
import re
import zlib
from json.decoder import scanstring  # type: ignore[attr-defined]  # the function that every decoder of objects calls
from typing import Final, NamedTuple

#: The arguments of a job of RQ have at most so many bytes when they are inflated.
MOST_INFLATED: Final = 1024 * 1024
_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"[^,:\[\]{}\s\"]+")
#: Strings (to skip the brackets in them) and brackets.
_NESTING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)


class Payload(NamedTuple):
    """The payload of a job, which is JSON unless it `is_bytes`.

    `is_call`: it has arguments by position, as a list, or as `{"args": [...], "kwargs": {...}}`. Both: it is the
    compressed call of a job of RQ, which takes as long to inflate as its producer likes. `opened` does that.
    """

    raw: bytes
    is_bytes: bool = False
    is_call: bool = False


def payload_of_kind(kind: str | None, stored: bytes) -> Payload:
    """Return `payload_of` for the kind that a record names. None stands for JSON."""
    return payload_of(kind.encode(), stored) if kind else Payload(stored)


def payload_of(kind: bytes, stored: bytes) -> Payload:
    """Return the payload of a job whose data is not plain JSON.

    The payload of an entry is the value of its "data", character by character, or its decoded "data_b64". That of a
    message of Sidekiq or Celery is its arguments, that of a client's its "msg", likewise. What only Lua accepts as JSON
    is returned whole, and its decoder reports the error.
    """
    if kind == b"rq":
        return Payload(stored, is_bytes=True, is_call=True)
    if kind not in (b"entry", b"sidekiq", b"celery", b"client"):
        return Payload(stored, is_bytes=True)
    try:
        if kind == b"client":
            return Payload(_value(stored.decode(), "msg")[0].encode())
        if kind == b"sidekiq":
            args = _value(stored.decode(), "args")[0]
            return Payload(args.encode(), is_call=args.startswith("["))
        if kind == b"celery":
            return _celery_arguments(stored.decode())
        value, is_base64 = _value(stored.decode())
        if is_base64:
            return Payload(base64.b64decode(json.loads(value), validate=True), is_bytes=True)
        return Payload(value.encode())
    except (ValueError, TypeError, IndexError, RecursionError):
        return Payload(stored)


def opened(payload: Payload, most: int = MOST_INFLATED) -> Payload:
    """Return the arguments of a job of RQ. Any other payload, and a call above `most` bytes, is returned as it is."""
    if not (payload.is_bytes and payload.is_call):
        return payload
    try:
        inflating = zlib.decompressobj()
        call = inflating.decompress(payload.raw, most)
        return _rq_arguments(call.decode()) if inflating.eof else payload
    except (zlib.error, ValueError, IndexError):
        return payload


def _rq_arguments(call: str) -> Payload:
    at = _skip(call, 0)
    if call[at] != "[":
        raise ValueError("no list")
    values = []
    for _ in range(4):
        start = _skip(call, at + 1)
        end = _end_of(call, start)
        values.append(call[start:end])
        at = _skip(call, end)
    _name, instance, args, kwargs = values
    if (instance, args[0], kwargs[0]) != ("null", "[", "{"):
        raise ValueError("no call")
    return _arguments(args, kwargs)


def _value(text: str, wanted: str = "data") -> tuple[str, bool]:
    """Return the JSON of a key's value, and whether it is base64. The last of several keys counts, as in decoders."""
    found = "null", False
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "}":
        key, at = scanstring(text, at + 1)
        start = _skip(text, _skip(text, at) + 1)
        end = _end_of(text, start)
        if key == wanted or (key == f"{wanted}_b64" and text[start:end] != "null"):
            found = text[start:end], key != wanted
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _celery_arguments(text: str) -> Payload:
    """Return the arguments of a Celery task: by name as an object, by position as a list, or both under their names."""
    body = base64.b64decode(json.loads(_value(text, "body")[0]), validate=True).decode()
    start = _skip(body, _skip(body, 0) + 1)
    end = _end_of(body, start)
    args = body[start:end]
    start = _skip(body, _skip(body, end) + 1)
    return _arguments(args, body[start : _end_of(body, start)])


def _arguments(args: str, kwargs: str) -> Payload:
    if len(args) > 2 and len(kwargs) > 2:
        return Payload(f'{{"args":{args},"kwargs":{kwargs}}}'.encode(), is_call=True)
    return Payload(args.encode(), is_call=True) if len(args) > 2 else Payload(kwargs.encode())


def _end_of(text: str, start: int) -> int:
    """Return the end of the value that begins at `start`. Raises ValueError if there is none."""
    if text[start] == '"':
        end: int = scanstring(text, start + 1)[1]
        return end
    if text[start] not in "[{":
        scalar = _SCALAR.match(text, start)
        if scalar is None:
            raise ValueError("no value")
        return scalar.end()
    depth = 0
    for part in _NESTING.finditer(text, start):
        depth += 1 if part[0] in "[{" else -1 if part[0] in "]}" else 0
        if depth == 0:
            return part.end()
    raise ValueError("a value without an end")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
