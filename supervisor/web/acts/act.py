"""Defines what an act is: a change that a form of a page and a program of the API ask for alike. Runs in the web
server's process.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson

from supervisor.cli.lib.options import Reader
from supervisor.engine.model.bounds import MOST
from supervisor.web.forms import place_of
from supervisor.web.pages.page import BadParameter

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient
    from supervisor.web.bulk_acts import BulkActs

OPERATORS: Final = frozenset({"operator"})
PRODUCERS: Final = frozenset({"operator", "producer"})
WORKERS: Final = frozenset({"worker"})
WAITERS: Final = frozenset({"viewer", "operator", "producer"})

#: What a checkbox, or a form by hand, may say.
_YES: Final = {**dict.fromkeys(("yes", "true", "on", "1"), True), **dict.fromkeys(("no", "false", "off", "0"), False)}

#: Browsers send the lines of a text with both characters.
_LINE_END: Final = re.compile(r"\r?\n")
#: A whole number of a form, as long as one of JSON may be.
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]{1,19}\s*", re.ASCII)
#: A wait of the API ends after this time, so that a proxy does not end it before.
LONGEST_WAIT_S: Final = 30

T = TypeVar("T")
Fields = Mapping[str, Any]
Do = Callable[["ActCall"], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class ActCall:
    """One request to act. `client` acts in the visitor's name."""

    client: "AsyncClient"
    visitor: str
    fields: Fields
    bulk: "BulkActs"
    has_hung_up: Callable[[], Awaitable[bool]]

    def wait_s(self, name: str, default_s: int) -> int:
        """Return the field that says how long to wait. Raises BadParameter if that is too long."""
        return self.within(name, 0, LONGEST_WAIT_S, default_s)

    def within(self, name: str, least_s: int, most_s: int, default: T) -> int | T:
        """Return a field in seconds, or the default. Raises BadParameter if it is out of bounds."""
        value_s = self.fields.get(name)
        if value_s is None:
            return default
        if not least_s <= value_s <= most_s:
            raise BadParameter(f"{name} must be {least_s} to {most_s} seconds, not {value_s}")
        return int(value_s)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an act. `kind`: text, number, yes, names, json or objects."""

    name: str
    meaning: str
    kind: str = "text"
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class ActOptions:
    """Options of the client that an act takes beside its fields. The client checks them.

    `types`: a TypedDict of what a program sends. `readers`: of the texts of a form.
    """

    types: type
    readers: Mapping[str, Reader]


@dataclass(frozen=True, slots=True)
class WebAct:
    """One act. `page`: where a form leads when it is done, with these of its fields, or of its answer, in the query."""

    name: str
    api: str  # below /api/v1
    do: Do
    fields: tuple[Field, ...] = ()
    roles: frozenset[str] = OPERATORS
    page: tuple[str, ...] = field(default=("overview",))
    options: ActOptions | None = None
    hides: bool = True  # the answer has no hidden fields
    method: str = "POST"  # of the API; with another one it has no body
    checks_data: bool = False  # may raise WrongData
    shows: str | None = None  # the template that shows the answer to a form, in the place of a page


_TYPES: Final[dict[str, tuple[type, str]]] = {
    "text": (str, "a text"),
    "number": (int, "a whole number"),
    "yes": (bool, "true or false"),
    "names": (list, "a list of texts"),
    "objects": (list, "a list of objects"),
}


def from_json(act: WebAct, given: Fields) -> dict[str, Any]:
    """Return the checked fields of a program. Raises BadParameter that names the field and its value."""
    known = {each.name: each for each in act.fields}
    for name, value in given.items():
        if name not in known:
            if act.options is None:
                raise BadParameter(f"there is no field {name!r:.100} here, only {', '.join(known) or 'none'}")
        elif value is not None:
            _check(known[name], value)
    return _complete(act, given)


def _check(one: Field, value: Any) -> None:
    if one.kind == "json":
        return
    type_, words = _TYPES[one.kind]
    if isinstance(value, list) and len(value) > MOST:
        raise BadParameter(f"{one.name} must have at most {MOST} entries, not {len(value)}")
    inner = {"names": str, "objects": dict}.get(one.kind, object)
    is_right = type(value) is type_ and (not isinstance(value, list) or all(isinstance(each, inner) for each in value))
    if not is_right:
        raise BadParameter(f"{one.name} must be {words}, not {value!r:.100}")


def from_form(act: WebAct, given: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the checked fields of a form, in which all are texts. What is left empty is not given."""
    fields: dict[str, Any] = {}
    for one in act.fields:
        values = [value for value in given.get(one.name, []) if value != ""]
        if values:
            fields[one.name] = names_in(*values) if one.kind == "names" else _of_text(one, values[-1])
    for name, reader in (act.options.readers if act.options else {}).items():
        text = given.get(name, [""])[-1]
        if text and name not in fields:
            fields[name] = _read(name, reader, text)
    return _complete(act, fields)


def names_in(*texts: str) -> list[str]:
    """Return the names of fields of a form, of which each has one a line: a name may hold any other character."""
    return [name for text in texts for name in _LINE_END.split(text) if name]


def _read(name: str, reader: Reader, text: str) -> Any:
    try:
        return reader(text)
    except ValueError as error:
        raise BadParameter(f"{name} {text!r:.100} {error}") from None


def _of_text(one: Field, text: str) -> Any:
    match one.kind:
        case "number":
            if not _WHOLE.fullmatch(text):
                raise BadParameter(f"{one.name} must be a whole number, not {text!r:.100}")
            return int(text)
        case "json":
            try:
                return orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise BadParameter(f"{one.name} is not JSON: {place_of(error)}, in {text!r:.100}") from None
        case "yes":
            return _read(one.name, yes_or_no, text)
    return text


def yes_or_no(text: str) -> bool:
    """Return what a checkbox, or a form by hand, says. Raises ValueError saying what is expected."""
    if text.lower() not in _YES:
        raise ValueError("must be yes or no")
    return _YES[text.lower()]


#: Options of jobs that the command line has as flags of other kinds.
JOB_READERS: Final[Mapping[str, Reader]] = {
    **dict.fromkeys(("tags", "limit", "depends"), names_in),
    **dict.fromkeys(("at_most_once", "persistent"), yes_or_no),
}


def _complete(act: WebAct, fields: Fields) -> dict[str, Any]:
    for one in act.fields:
        if one.is_required and fields.get(one.name) in (None, "", []):
            raise BadParameter(f"{one.name} is missing: {one.meaning}")
    return {name: value for name, value in fields.items() if value is not None or name == "data"}
