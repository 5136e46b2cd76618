"""Describes the data and results of handlers as JSON schemas. Runs in zygotes, and where a command imports handlers."""

import hashlib
from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any, Final

import orjson

from supervisor.child.handler import Handler
from supervisor.engine.model.validation import EXACT_INT
from supervisor.messages import MOST_SCHEMAS_BYTES, SCHEMA_BYTES

#: The shape of handlers that take any data.
ANY: Final = "any"


def described(handler: Handler[..., Any]) -> tuple[str, str]:
    """Return the shape of the data that a handler takes, and their schema as JSON; no schema if any data fit.

    The shape is a digest. Handlers that take the same data have the same.
    """
    schema = data_schema(handler)
    if schema is None:
        return ANY, ""
    if handler.collects:
        schema = _of_list(schema)
    written = orjson.dumps(schema, option=orjson.OPT_SORT_KEYS, default=repr)
    return hashlib.sha1(written, usedforsecurity=False).hexdigest()[:16], written.decode()


def _of_list(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the data of a handler that collects: the list that is its one parameter."""
    [parameter] = schema["properties"].values()
    return {"type": "array", **parameter, "$defs": schema.get("$defs", {})}


def published(descriptions: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the schemas by shape, for Redis. One that is too large, or for which no room is left, is not published."""
    schemas: dict[str, str] = {}
    room_bytes = MOST_SCHEMAS_BYTES
    for shape, schema in descriptions:
        size_bytes = len(schema.encode())
        if schema and shape not in schemas and size_bytes <= min(SCHEMA_BYTES, room_bytes):
            schemas[shape] = schema
            room_bytes -= size_bytes
    return schemas


def data_schema(handler: Handler[..., Any]) -> dict[str, Any] | None:
    """Return the JSON schema of a handler's data. None: any data fit."""
    parameters = handler.parameters
    if parameters is None:
        return None
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: {} for name in parameters.names},
        "required": list(parameters.required),
        "additionalProperties": parameters.takes_others,
    }
    if parameters.shape is not None:
        schema |= parameters.shape.json_schema()
    schema.pop("title", None)
    properties: Mapping[str, dict[str, Any]] = schema["properties"]
    for name, parameter in signature(handler.function).parameters.items():
        if name in properties:
            properties[name].pop("title", None)
            if _is_plain(parameter.default):
                properties[name]["default"] = parameter.default
    return schema


def _is_plain(value: object) -> bool:
    """Return whether JSON holds a default exactly, for each reader."""
    if type(value) in (int, float):
        return -EXACT_INT <= value <= EXACT_INT  # type: ignore[operator]  # of a number; NaN is outside, too
    return value is None or type(value) in (bool, str)


def result_schema(handler: Handler[..., Any]) -> dict[str, Any] | None:
    """Return the JSON schema of a handler's results. None: plain JSON writes any."""
    if handler.result_adapter is None:
        return None
    from supervisor.child.annotations import schema_of

    return schema_of(handler.result_adapter, "serialization")
