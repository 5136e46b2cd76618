"""Turns described handlers into the source of a module that puts their jobs. Runs in the command's process. No I/O."""

import keyword
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from supervisor.cli.lib.described import Described

#: Python's types for formats of strings, and the modules that they come from.
_FORMATS: Final = {
    "date-time": ("datetime", "datetime"),
    "date": ("datetime", "date"),
    "time": ("datetime", "time"),
    "duration": ("datetime", "timedelta"),
    "uuid": ("uuid", "UUID"),
}
_PLAIN: Final = {"integer": "int", "number": "float", "boolean": "bool", "null": "None", "string": "str"}
#: Names that the generated module uses itself. It also has `_default`, which `_Names` makes of no text.
_TAKEN: Final = frozenset({
    "handler", "JobContext", "Any", "Literal", "TypedDict", "NotRequired", "NotImplementedError",
    "dict", "list", "tuple", *_PLAIN.values(), *(name for _, name in _FORMATS.values()),
})  # fmt: skip
_HEAD: Final = '''"""Puts jobs for the handlers of {root}. `leasehold stubs` has written this module: do not edit it."""

from __future__ import annotations
'''
#: A producer without pydantic may lack typing_extensions, which comes with it.
_TYPED_DICT: Final = """
try:
    from typing_extensions import TypedDict  # before Python 3.12 pydantic takes no other
except ModuleNotFoundError:
    from typing import TypedDict"""
_ELSEWHERE: Final = """
_default: Any = None  # stands for a default that only the handler's code has


def {elsewhere}() -> Any:
    raise NotImplementedError("this is a stub of a handler, which puts jobs; its code is elsewhere")
"""


def source_of(root: str, handlers: Sequence[Described]) -> str:
    """Return the module's source, formatted like ours but for long lines."""
    elsewhere = _Names(name for each in handlers for name in each.parameters or ()).new("elsewhere")
    names = _Names({*_TAKEN, elsewhere})
    named = [(names.new(each.klass), each) for each in handlers]
    types = _Types(names)
    functions = [_function(name, each, types, elsewhere) for name, each in named]
    imports = [f"from {module} import {', '.join(sorted(used))}" for module, used in sorted(types.imports.items())]
    head = [_HEAD.format(root=repr(root)), *imports, "", "from supervisor import JobContext, handler"]
    typed_dict = [_TYPED_DICT] if types.classes else []
    return "\n".join([*head, *typed_dict, _ELSEWHERE.format(elsewhere=elsewhere), *types.classes, *functions])


def _function(name: str, handler: Described, types: "_Types", elsewhere: str) -> str:
    """Return the source of one stub. `elsewhere`: the function that it calls, whose name no parameter has."""
    options = ", ".join([f"name={handler.klass!r}", *(f"{key}={value!r}" for key, value in handler.options.items())])
    names = _Names(handler.parameters or ())
    signature = [f"{names.new('job')}: JobContext", "/", *_parameters(handler, names, types)]
    about = f"    {_docstring(handler.doc)}\n" if handler.doc else ""
    return f"\n@handler({options})\ndef {name}({', '.join(signature)}) -> Any:\n{about}    return {elsewhere}()\n"


def _docstring(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"""{escaped}"""'


def _parameters(handler: Described, names: "_Names", types: "_Types") -> list[str]:
    schema = handler.data
    if schema is None:  # it takes any data, which only Queue.put can give
        return []
    definitions = schema.get("$defs", {})
    required = schema.get("required", ())
    given: list[str] = []
    for name in handler.parameters or ():
        about = schema["properties"].get(name, {})
        kind = types.of(about, definitions)
        given.append(f"{name}: {kind}" if name in required else f"{name}: {kind} = {_default(about, kind)}")
    ordered = sorted(given, key=lambda text: " = " in text)  # keyword-only ones may come in any order
    rest = schema["additionalProperties"]
    others = [] if rest is False else [f"**{names.new('others')}: {types.of(rest, definitions)}"]
    return ["*", *ordered, *others] if ordered else others


def _default(schema: Mapping[str, Any], kind: str) -> str:
    """Return what stands for a default: itself if its annotation takes it."""
    default = schema.get("default")
    if "default" not in schema or isinstance(default, list | dict):
        return "_default"
    own = {"Any", "None" if default is None else type(default).__name__, *(["float"] if type(default) is int else [])}
    is_literal = "Literal[" in kind and repr(default) in kind
    return repr(default) if is_literal or own & {*kind.split(" | ")} else "_default"


class _Names:
    """Gives each text an identifier of its own."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def new(self, text: str) -> str:
        name = "".join(each if f"_{each}".isidentifier() else "_" for each in text).strip("_") or "handler_"
        name = name if name.isidentifier() else f"_{name}"  # no digit at its beginning
        while name in self._taken or keyword.iskeyword(name):
            name += "_"
        self._taken.add(name)
        return name


class _Types:
    """Python's types of JSON schemas as text, with the imports and classes that they need.

    Annotations of the module are never evaluated before all classes are there, so a class may name any other.
    """

    def __init__(self, names: _Names) -> None:
        self.imports: dict[str, set[str]] = {"typing": {"Any"}}
        self.classes: list[str] = []
        self._known: dict[str, str] = {}  # definition -> class; Any while what has no class is being read
        self._names = names

    def use(self, module: str, name: str) -> str:
        self.imports.setdefault(module, set()).add(name)
        return name

    def of(self, schema: Any, definitions: Mapping[str, Any]) -> str:
        """Return the annotation for a schema. What has no counterpart is Any."""
        if not isinstance(schema, Mapping):
            return "Any"
        if "$ref" in schema:
            return self._definition(schema["$ref"].rpartition("/")[2], definitions)
        if "enum" in schema or "const" in schema:
            return self._literals(schema.get("enum", [schema.get("const")]))
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return self._union([self.of(each, definitions) for each in schema[several]])
        match schema.get("type"):
            case "array":
                return self._array(schema, definitions)
            case "object":
                return self._object(schema, definitions)
            case "string" if schema.get("format") in _FORMATS:
                return self.use(*_FORMATS[schema["format"]])
            case str(plain) if plain in _PLAIN:
                return _PLAIN[plain]
        return "Any"

    def _literals(self, values: Sequence[Any]) -> str:
        if not values or any(type(value) not in (str, int, bool, type(None)) for value in values):
            return "Any"  # no Literal of numbers with a fraction, lists and dicts
        return f"{self.use('typing', 'Literal')}[{', '.join(map(repr, values))}]"

    def _union(self, types: Sequence[str]) -> str:
        return "Any" if "Any" in types else " | ".join(dict.fromkeys(types))

    def _array(self, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
        if "prefixItems" in schema:
            return f"tuple[{', '.join(self.of(each, definitions) for each in schema['prefixItems'])}]"
        return f"list[{self.of(schema.get('items', {}), definitions)}]"

    def _object(self, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
        if "properties" in schema:
            return self._class(schema.get("title", "Data"), schema, definitions)
        return f"dict[str, {self.of(schema.get('additionalProperties'), definitions)}]"

    def _definition(self, name: str, definitions: Mapping[str, Any]) -> str:
        schema = definitions.get(name, {})
        key = f"{name} {schema}"
        if key in self._known:
            return self._known[key]
        if "properties" in schema:
            self._known[key] = self._names.new(name)
            return self._class(name, schema, definitions, self._known[key])
        self._known[key] = "Any"  # what names itself would not end
        kind = self.of(schema, definitions)
        del self._known[key]
        return kind

    def _class(self, title: str, schema: Mapping[str, Any], definitions: Mapping[str, Any], name: str = "") -> str:
        name = name or self._names.new(title)
        required = schema.get("required", ())
        fields = []
        for key, about in schema["properties"].items():
            kind = repr(self.of(about, definitions))
            optional = f"{self.use('typing', 'NotRequired')}[{kind}]"
            fields.append(f"{key!r}: {kind if key in required else optional}")
        self.classes.append(f"\n{name} = TypedDict({name!r}, {{{', '.join(fields)}}})\n")
        return name
