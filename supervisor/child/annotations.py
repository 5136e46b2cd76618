"""Enforces the annotations of a handler's parameters and result by pydantic. Runs in zygotes, children and producers.

Needs the extra `typed`. Import it only for handlers with annotations: pydantic takes 20 MB. Both sides use lax mode.
"""

import inspect
import re
import types
import typing
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any, Final, Literal, NotRequired

import orjson
import pydantic
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic.warnings import TypedDictExtraConfigWarning
from pydantic_core import ErrorDetails, PydanticOmit, PydanticSerializationError, SchemaSerializer
from typing_extensions import NoExtraItems, TypedDict

from supervisor.child.parameters import WrongShape, is_plain, wrong_shape

#: Messages of ours in place of pydantic's, which speak of fields and inputs.
_MESSAGES: Final = {"missing": "is missing", "extra_forbidden": "is no parameter"}

#: Errors of values that JSON cannot hold or that a child could not read.
_UNWRITABLE: Final = (PydanticSerializationError, orjson.JSONDecodeError)

#: Types that JSON writes as lists, and JSON's own containers. A union made at each call would cost more than the call.
_LISTS: Final = (list, tuple, set, frozenset, deque)
_CONTAINERS: Final = (dict, list)

#: An object's address, which is another in each process, as the default __repr__ has it.
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


class Shape:
    """The types of a handler's parameters, as one TypedDict."""

    def __init__(self, types_by_name: Mapping[str, Any], required: Sequence[str], others: Any) -> None:
        """`others`: the type of keys without a parameter. NoExtraItems: there are none."""
        fields = {name: kind if name in required else NotRequired[kind] for name, kind in types_by_name.items()}
        made: Any = TypedDict  # mypy knows only those that are written as classes
        typed = made("data", fields, extra_items=others)
        typed.__pydantic_config__ = ConfigDict(extra="forbid")  # for dataclasses and TypedDicts within it, too
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TypedDictExtraConfigWarning)  # `others` wins: that is meant
            self._adapter: TypeAdapter[dict[str, Any]] = _adapter_of(typed)
        self._serializer = SchemaSerializer(_for_dumping(self._adapter.core_schema))

    def dumped(self, given: Mapping[str, Any]) -> bytes:
        """Return arguments as JSON that a child will accept. Raises WrongShape, and what foreign serializers raise."""
        try:
            raw = self._written(given)
        except _UNWRITABLE as error:
            raise WrongShape(f"{self._culprit(given)}: {error}") from None
        self.taken(raw)
        return raw

    def _written(self, given: Mapping[str, Any]) -> bytes:
        """Return arguments as JSON for validation: by alias, and without what is computed from other fields."""
        raw = self._serializer.to_json(dict(given), by_alias=True, round_trip=True, warnings=False)
        data = orjson.loads(raw)  # as a child does: it refuses numbers that pydantic takes
        if b"null" in raw or b'**"' in raw:  # what numbers that are not finite, and secrets, become
            kept = self._serializer.to_python(dict(given), by_alias=True, round_trip=True, warnings=False)
            if problems := _lost(kept, data):
                raise wrong_shape(iter(problems), len(problems))
        return raw

    def _culprit(self, given: Mapping[str, Any]) -> str:
        """Return the first argument that cannot be dumped."""
        for name, value in given.items():
            try:
                self._written({name: value})
            except _UNWRITABLE:
                return name
        return "the data"

    def taken(self, raw: bytes) -> dict[str, Any]:
        """Return the arguments of JSON. Raises WrongShape, and whatever foreign validators raise."""
        try:
            return self._adapter.validate_json(raw)
        except ValidationError as error:
            raise wrong_shape(_problems(error), error.error_count()) from None

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the data."""
        return schema_of(self._adapter, "validation")


def _lost(kept: Any, written: Any, *path: str | int) -> list[str]:
    """Return what JSON does not hold of values that pydantic would keep. Where both differ in structure: nothing."""
    steps: Iterable[tuple[str | int, Any, Any]] = ()
    if isinstance(written, dict) and isinstance(kept, dict):
        steps = zip(written, written.values(), kept.values(), strict=False)
    elif isinstance(written, list) and isinstance(kept, _LISTS):
        steps = zip(range(len(written)), written, kept, strict=False)
    problems = []
    for step, ours, value in steps:
        if ours is None:
            if isinstance(value, float):
                problems.append(f"{_path((*path, step))}: JSON has no {value}")
        elif isinstance(ours, str):
            if ours.endswith("**") and hasattr(value, "get_secret_value") and value.get_secret_value() != ours:
                problems.append(f"{_path((*path, step))}: a secret is masked in JSON; give its type a serializer")
        elif isinstance(ours, _CONTAINERS):
            problems += _lost(value, ours, *path, step)
    return problems


def _for_dumping(schema: Any) -> Any:
    """Return a schema of pydantic's core that dumps what its validation takes, and keeps what that refuses.

    Fields of dataclasses that `__init__` does not take are left out. Unknown keys of a TypedDict are not dropped.
    """
    if isinstance(schema, list):
        return [_for_dumping(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _for_dumping(value) for key, value in schema.items()}
    if made.get("type") == "dataclass-field" and made.get("init") is False:
        made["serialization_exclude"] = True
    if made.get("type") == "typed-dict":
        made["extra_behavior"] = "allow"
    return made


class _JsonSchemas(GenerateJsonSchema):
    """Makes JSON schemas, also of types that have none: the place of such a type has a comment."""

    def generate_inner(self, schema: Any) -> dict[str, Any]:
        try:
            return super().generate_inner(schema)
        except PydanticOmit:  # pydantic's own way to leave out a part
            raise
        except Exception as error:  # noqa: BLE001  it has no JSON schema, or foreign code that makes one raises
            return {"$comment": _ADDRESS.sub("", _reason(error))}


def schema_of(adapter: TypeAdapter[Any], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """Return the JSON schema of a type."""
    return adapter.json_schema(mode=mode, schema_generator=_JsonSchemas)


def _problems(error: ValidationError) -> Iterator[str]:
    for one in error.errors(include_url=False, include_context=False):
        yield f"{_path(one['loc'])}: {_MESSAGES.get(one['type']) or _sentence(one)}"


def _path(loc: Iterable[str | int]) -> str:
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step:.60}" for step in loc)
    return steps.removeprefix(".") or "the data"


def _sentence(error: ErrorDetails) -> str:
    return f"{error['msg']:.300}, and not {error['input']!r:.60}"


def shape_of(
    function: Callable[..., Any], named: Iterable[Parameter], required: Sequence[str], others: Parameter | None
) -> Shape:
    """Return the shape of these parameters. Raises TypeError for an annotation that has no meaning for data.

    `others`: the `**others` of the handler.
    """
    kinds = {one.name: _resolved(function, one.name, one.annotation) for one in named}
    kind_of_others = NoExtraItems if others is None else _resolved(function, others.name, others.annotation)
    try:
        return Shape(kinds, required, kind_of_others)
    except Exception as error:  # foreign types make schemas of their own, and may raise anything
        for name, kind in [*kinds.items(), *([] if others is None else [(others.name, kind_of_others)])]:
            _check_alone(name, kind)
        raise TypeError(f"no data can be checked against its annotations: {_reason(error)}") from error


def _check_alone(name: str, kind: Any) -> None:
    try:
        _adapter_of(kind)
    except Exception as error:  # as above
        raise TypeError(
            f"no data can be checked against the annotation of {name!r} ({kind!r:.100}): {_reason(error)}"
        ) from error


def _adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return what validates and dumps a type. Raises whatever the type does, and for names that are not defined."""
    adapter = TypeAdapter(kind)
    adapter.rebuild(raise_errors=True)  # pydantic puts it off until the first use if a name is not defined
    return adapter


def _reason(error: BaseException) -> str:
    """Return the first line of what foreign code has raised, with the cure for a name that is not defined."""
    known = isinstance(error, NameError | pydantic.errors.PydanticUserError)
    line = f"{error if known else f'{type(error).__name__}: {error}'}".partition("\n")[0][:300]
    return f"{line}; import it outside of `if TYPE_CHECKING`" if isinstance(error, NameError) else line


def _resolved(function: Callable[..., Any], name: str, annotation: Any) -> Any:
    """Return an annotation without strings in it. Raises TypeError naming the parameter."""
    if annotation is Parameter.empty:
        return Any
    within = inspect.unwrap(getattr(function, "func", function))
    alone = types.SimpleNamespace(__annotations__={name: annotation})
    try:
        hints = typing.get_type_hints(alone, getattr(within, "__globals__", {}), include_extras=True)
    except (Exception, SystemExit) as error:  # an annotation as text is foreign code, which may raise anything
        raise TypeError(f"the annotation of {name!r} cannot be resolved: {_reason(error)}") from error
    return hints[name]


def result_adapter(function: Callable[..., Any]) -> TypeAdapter[Any] | None:
    """Return what dumps the results of a handler, by its return annotation. None: plain JSON does."""
    try:
        kind = _resolved(function, "return", inspect.signature(function).return_annotation)
        return None if is_plain(kind) else _adapter_of(kind)
    except Exception:  # noqa: BLE001  an annotation that is not meant for data
        return None
