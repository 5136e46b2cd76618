"""Reads the parameters of a handler, and takes their values from a job's data. Runs in zygotes, children and producers.

Owns the names; `child/annotations.py` owns the types. Must not call a handler.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin

import orjson

from supervisor.engine.model.validation import to_data

if TYPE_CHECKING:
    from supervisor.child.annotations import Shape

#: Most wrong fields in one message. A list of a million wrong numbers has as many wrong fields.
_MOST_NAMED: Final = 20
_KEYWORD: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


#: Annotations of values that plain JSON writes as they say, also as text.
_PLAIN: Final = (None, type(None), Any, object, str, int, float, bool, dict, list)
_PLAIN_TEXTS: Final = frozenset({"None", "Any", "object", "str", "int", "float", "bool", "dict", "list"})


def is_plain(annotation: object) -> bool:
    """Return whether plain JSON writes values of an annotation as it says."""
    if isinstance(annotation, str):
        return annotation in _PLAIN_TEXTS
    if get_origin(annotation) in (dict, list, Union, UnionType):
        return all(is_plain(part) for part in get_args(annotation))
    return annotation in _PLAIN


class WrongShape(ValueError):
    """Data does not fit a handler's parameters. The message names each wrong field."""


def wrong_shape(problems: Iterator[str], count: int) -> WrongShape:
    """Return the error that names the first of `count` problems."""
    named = [*islice(problems, _MOST_NAMED)]
    more = f"; and {count - len(named)} more" if count > len(named) else ""
    return WrongShape("; ".join(named) + more)


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one handler behind its context. They are the keys of its jobs' data."""

    names: Sequence[str]
    required: Sequence[str]
    context: str  # name of the context's own parameter, which no key can have; "": it is positional-only
    takes_others: bool  # `**others` gets the keys without a parameter
    shape: "Shape | None"  # None: only names are checked

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name. Raises ValueError naming what is wrong with them."""
        given = dict(kwargs)
        if args:
            if len(args) > len(self.names):
                raise WrongShape(f"{len(args)} values were given by position for the parameters {self._listed()}")
            for name, value in zip(self.names, args, strict=False):
                if name in given:
                    raise WrongShape(f"{name}: was given twice, by position and by name")
                given[name] = value
        self._check_names(given)
        return given

    def dumped(self, given: Mapping[str, Any]) -> bytes:
        """Return the arguments as the JSON that a child will accept. Raises ValueError naming each wrong field."""
        if self.shape is not None:
            return self.shape.dumped(given)
        try:
            return to_data("data", given)[1]
        except TypeError as error:
            raise WrongShape(str(error)) from None

    def taken(self, raw: bytes, data: object) -> dict[str, Any]:
        """Return the arguments of a handler from its job's data. Raises WrongShape naming each wrong field."""
        if data is None:  # what a put without data stores
            raw, data = b"{}", {}
        if not isinstance(data, dict):
            raise WrongShape(
                f"the data must be an object with the keys {self._listed()}, not {type(data).__name__}: {data!r:.100}"
            )
        if self.context in data or self.shape is None:
            self._check_names(data)
        return data if self.shape is None else self.shape.taken(raw)

    def taken_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a handler from those of a call. Raises WrongShape naming each wrong one."""
        given = self.given(args, kwargs)
        return given if self.shape is None else self.shape.taken(json.dumps(given).encode())

    def one_dumped(self, given: Mapping[str, Any]) -> bytes:
        """Return the one member of a list as JSON: what one put gives to a job that collects.

        Raises ValueError naming each wrong field.
        """
        [name] = self.names
        members = orjson.loads(self.dumped(given)).get(name)
        if not isinstance(members, list) or len(members) != 1:
            raise WrongShape(f"{name}: each put gives a list of one, and the job gets the list of all")
        return orjson.dumps(members[0])

    def taken_list(self, raw: bytes, data: object) -> dict[str, Any]:
        """Return the argument of a handler that collects. Raises WrongShape naming each wrong field."""
        if not isinstance(data, list):
            raise WrongShape(f"the data must be a list, as collect makes it, not {type(data).__name__}: {data!r:.100}")
        [name] = self.names
        return self.taken(b'{"%b":%b}' % (name.encode(), raw), {name: data})

    def _check_names(self, given: Mapping[str, Any]) -> None:
        missing = [name for name in self.required if name not in given]
        unknown = [name for name in given if name not in self.names and (not self.takes_others or name == self.context)]
        if missing or unknown:
            problems = [f"{name}: is missing" for name in missing]
            known = {self.context: "but the job itself"}
            problems += [
                f"{name!s:.60}: is no parameter, {known.get(name) or f'which are {self._listed()}'}" for name in unknown
            ]
            raise wrong_shape(iter(problems), len(problems))

    def _listed(self) -> str:
        return ", ".join((*self.names, *(["any others"] if self.takes_others else []))) or "(none)"


def parameters_of(function: Callable[..., Any]) -> Parameters | None:
    """Return the parameters of a handler behind its context. None: it has none, and its data may be anything.

    Raises TypeError for parameters that no key can fill, and for annotations without a meaning for data.
    """
    try:
        context, *others = inspect.signature(function).parameters.values()
    except ValueError:  # nothing but the context can be said of a function without a signature, or without parameters
        return None
    if context.kind not in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        return None  # a wrapper that hides what it wraps
    named = [one for one in others if one.kind in _KEYWORD]
    by_kind = {one.kind: one for one in others}
    rest = by_kind.get(inspect.Parameter.VAR_KEYWORD)
    if (nameless := by_kind.get(inspect.Parameter.POSITIONAL_ONLY)) is not None:
        raise TypeError(f"the parameter {nameless.name!r} is positional-only, so no key of the data can fill it")
    if not named and (rest is None or inspect.Parameter.VAR_POSITIONAL in by_kind):
        return None  # with `*args, **kwargs` it is a wrapper that hides what it wraps
    required = tuple(one.name for one in named if one.default is inspect.Parameter.empty)
    shape = None
    if any(one.annotation is not inspect.Parameter.empty for one in (*named, rest) if one is not None):
        shape = _shape(function, named, required, rest)
    reserved = "" if context.kind is inspect.Parameter.POSITIONAL_ONLY else context.name
    return Parameters(tuple(one.name for one in named), required, reserved, rest is not None, shape)


def _shape(
    function: Callable[..., Any],
    named: Sequence[inspect.Parameter],
    required: Sequence[str],
    others: inspect.Parameter | None,
) -> "Shape | None":
    try:
        from supervisor.child.annotations import shape_of
    except ModuleNotFoundError as error:
        if error.name != "pydantic":
            raise
        return None  # without the extra `typed`, only names are checked
    return shape_of(function, named, required, others)
