"""Checks data against the JSON schemas of handlers. Runs in threads of the web server's process.

A schema comes from the code of a handler, and may be made to harm who reads it. So the work is bounded, nothing is
loaded, and no expression of a schema is matched. Data that cannot be checked within these bounds count as fitting: a
child checks again, by the handler's own rules. No sentence holds a value of the data, which may be hidden.
"""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any, Final, NamedTuple

import orjson
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import create
from referencing import Registry

from supervisor import clock
from supervisor.web.packing import packed

#: So many wrong fields are named.
MOST_NAMED: Final = 20
#: Larger data are not checked. Pages offer only smaller ones for editing.
_MOST_BYTES: Final = 256 * 1024
#: Keywords that are evaluated for one answer, and for how long: unions within unions may have any number, and a keyword
#: may walk all the data.
_MOST_STEPS: Final = 50_000
_LONGEST_S: Final = 2.0
_MOST_CHARS: Final = 200
_TYPES: Final = {
    dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"
}  # fmt: skip

_steps: ContextVar[Iterator[int]] = ContextVar("_steps")
_ends_at: ContextVar[float] = ContextVar("_ends_at")
_Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]


class WrongField(NamedTuple):
    """A field whose value does not fit, and what is wrong with it."""

    path: str
    wrong: str


class WrongData(Exception):
    """Data do not fit the handler."""

    def __init__(self, klass: str, fields: Sequence[WrongField]) -> None:
        super().__init__(f"the data do not fit the handler of {klass}; force=true puts the job back all the same")
        self.fields = [field._asdict() for field in fields]


def wrong_fields(data: object, schemas: Sequence[bytes]) -> list[WrongField]:
    """Return the first wrong fields by the schema that the data fit best. None: they fit one, or are not checked."""
    data = {} if data is None else data  # as a child reads them
    if not schemas or len(packed(data)) > _MOST_BYTES:
        return []
    _steps.set(iter(range(_MOST_STEPS)))
    _ends_at.set(clock.monotonic() + _LONGEST_S)
    return min((_wrong_by(data, schema) for schema in schemas), key=len)


def _wrong_by(data: object, schema: bytes) -> list[WrongField]:
    try:
        read = orjson.loads(schema)
        if b'"$schema"' in orjson.dumps(read):  # a part in another dialect would have all keywords of that one
            return []
        errors = _Validator(read, registry=Registry()).iter_errors(data)
        return [_wrong(error) for error in islice(errors, MOST_NAMED)]
    except Exception:  # noqa: BLE001  of a schema that is none, or nested too deep, or takes too many steps
        return []


def _wrong(error: ValidationError) -> WrongField:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step:.60}" for step in error.path)
    return WrongField(path.removeprefix(".")[:_MOST_CHARS] or "the data", _sentence(error))


def _sentence(error: ValidationError) -> str:
    match error.validator:
        case "required":
            return "is missing"
        case "additionalProperties" | None:
            return "is no parameter"
        case "type":
            names = dict.fromkeys(_names(error.validator_value))
            return f"must be {' or '.join(names)}, not {_TYPES[type(error.instance)]}"
        case "anyOf" | "oneOf":
            return f"fits none of {len(error.validator_value)} alternatives"
    return f"must fit {error.validator} {packed(error.validator_value).decode()}"[:_MOST_CHARS]


def _names(types: Any) -> list[str]:
    """Return the types that a value may have, by what the keyword says."""
    return types if isinstance(types, list) else [types]


# The keywords. The others are not checked: expressions have another syntax in pydantic, and may take for ever, as may a
# comparison of all items; formats are known to pydantic alone; and `not`, `if` and `contains` would turn such a gap
# into a refusal.


def _type(validator: Any, types: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if not any(validator.is_type(instance, name) for name in _names(types)):
        yield ValidationError("")


def _required(validator: Any, names: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        yield from (ValidationError("", path=[name]) for name in names if name not in instance)


def _additional(validator: Any, others: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object") or "patternProperties" in schema:
        return
    known = schema.get("properties", {})
    for name in [name for name in instance if name not in known]:
        if others is False:
            yield ValidationError("", path=[name])
        else:
            yield from validator.descend(instance[name], others, path=name)


def _any_of(validator: Any, alternatives: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Yield the errors of the alternative that the data seem to mean. To keep those of all could take much memory."""
    found: list[list[ValidationError]] = []
    for alternative in alternatives:
        errors = [*islice(validator.descend(instance, alternative), MOST_NAMED)]
        if not errors:
            return
        found.append(errors)
    typed = [errors for errors in found if not any(map(_is_of_another_type, errors))]
    meant = [errors for errors in typed if not any(map(_has_another_tag, errors))]
    if meant or len(typed) == 1:
        yield from min(meant or typed, key=len)
    elif typed:
        yield ValidationError("")
    else:
        wrong_types = [error for errors in found for error in errors if _is_of_another_type(error)]
        names = [name for error in wrong_types for name in _names(error.validator_value)]
        yield ValidationError("", validator="type", validator_value=names)


def _is_of_another_type(error: ValidationError) -> bool:
    return error.validator == "type" and not error.path


def _has_another_tag(error: ValidationError) -> bool:
    """Return whether a field names another alternative: it has one value in each."""
    return error.validator == "const" and len(error.path) == 1


def _bounded(keyword: _Keyword) -> _Keyword:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if next(_steps.get(), None) is None or clock.monotonic() > _ends_at.get():
            raise OverflowError("too many steps, or too long ones")
        yield from keyword(validator, value, instance, schema) or ()

    return checked


_KEYWORDS: dict[str, _Keyword] = {
    name: Draft202012Validator.VALIDATORS[name]
    for name in (
        "$ref", "allOf", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "items", "maxItems", "maxLength",
        "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "prefixItems",
        "properties",
    )
}  # fmt: skip
_KEYWORDS |= {"additionalProperties": _additional, "anyOf": _any_of, "oneOf": _any_of}
_KEYWORDS |= {"required": _required, "type": _type}
_Validator: Final = create(
    Draft202012Validator.META_SCHEMA, {name: _bounded(keyword) for name, keyword in _KEYWORDS.items()}
)
