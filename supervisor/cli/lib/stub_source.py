"""Turns described handlers into the source of a module that puts their jobs. Runs in the command's process. No I/O."""

import keyword
import re
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
#: Names that the module uses itself.
_TAKEN: Final = frozenset({"job", "handler", "JobContext", "elsewhere", *(name for _, name in _FORMATS.values())})
_HEAD: Final = '''"""Puts jobs for the handlers of {root}. `leasehold stubs` has written this module: do not edit it."""
'''
_ELSEWHERE: Final = """

def elsewhere() -> Any:
    raise NotImplementedError("this is a stub of a handler, which puts jobs; its code is elsewhere")
"""


def source_of(root: str, handlers: Iterable[Described]) -> str:
    """Return the module's source, formatted like ours but for long lines."""
    types = _Types()
    names = _Names(_TAKEN)
    functions = [_function(names.new(each.klass), each, types) for each in handlers]
    imports = [f"from {module} import {', '.join(sorted(used))}" for module, used in sorted(types.imports.items())]
    standard = [line for line in imports if not line.startswith("from typing_extensions")]
    others = [line for line in imports if line.startswith("from typing_extensions")]
    head = [_HEAD.format(root=repr(root)), *standard, "", *others, "from supervisor import JobContext, handler"]
    return "\n".join([*head, _ELSEWHERE, *types.classes, *functions])


def _function(name: str, handler: Described, types: "_Types") -> str:
    options = ", ".join([f"name={handler.klass!r}", *(f"{key}={value!r}" for key, value in handler.options.items())])
    signature = ["job: JobContext", "/", *_parameters(handler, types)]
    about = f"    {_docstring(handler.doc)}\n" if handler.doc else ""
    return f"\n@handler({options})\ndef {name}({', '.join(signature)}) -> Any:\n{about}    return elsewhere()\n"


def _docstring(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"""{escaped}"""'


def _parameters(handler: Described, types: "_Types") -> list[str]:
    schema = handler.data
    if schema is None:  # it takes any data, which only Queue.put can give
        return []
    definitions = schema.get("$defs", {})
    required = schema.get("required", ())
    given: list[str] = []
    for name in handler.parameters or ():
        about = schema["properties"].get(name, {})
        text = f"{name}: {types.of(about, definitions)}"
        if name in required:
            given.append(text)
        elif "default" in about:
            given.append(f"{text} = {about['default']!r}")
        else:
            given.append(f"{text} = cast(Any, None)")
            types.use("typing", "cast")
    ordered = sorted(given, key=lambda text: " = " in text)  # keyword-only ones may come in any order
    others = ["**others: Any"] if schema.get("additionalProperties") else []
    return ["*", *ordered, *others] if ordered else others


class _Names:
    """Gives each text an identifier of its own."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def new(self, text: str) -> str:
        name = re.sub(r"\W+", "_", text).strip("_") or "handler_"
        name = f"_{name}" if name[0].isdigit() else name
        while name in self._taken or keyword.iskeyword(name):
            name += "_"
        self._taken.add(name)
        return name


class _Types:
    """Python's types of JSON schemas, with the imports and classes that they need."""

    def __init__(self) -> None:
        self.imports: dict[str, set[str]] = {"typing": {"Any"}}
        self.classes: list[str] = []
        self._known: dict[str, str] = {}  # definition -> class
        self._names = _Names(_TAKEN)

    def use(self, module: str, name: str) -> str:
        self.imports.setdefault(module, set()).add(name)
        return name

    def of(self, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
        """Return the annotation for a schema. What has no counterpart is Any."""
        if "$ref" in schema:
            return self._definition(schema["$ref"].rpartition("/")[2], definitions)
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            return f"{self.use('typing', 'Literal')}[{', '.join(map(repr, values))}]"
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

    def _union(self, types: Sequence[str]) -> str:
        return "Any" if "Any" in types else " | ".join(dict.fromkeys(types))

    def _array(self, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
        if "prefixItems" in schema:
            return f"tuple[{', '.join(self.of(each, definitions) for each in schema['prefixItems'])}]"
        return f"list[{self.of(schema.get('items', {}), definitions)}]"

    def _object(self, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
        if "properties" in schema:
            return self._class(schema.get("title", "Data"), schema, definitions)
        others = schema.get("additionalProperties", {})
        return f"dict[str, {self.of(others if isinstance(others, Mapping) else {}, definitions)}]"

    def _definition(self, name: str, definitions: Mapping[str, Any]) -> str:
        schema = definitions.get(name, {})
        if "properties" not in schema:
            return self.of(schema, definitions) if "$ref" not in schema else "Any"
        key = f"{name} {schema}"
        if key not in self._known:
            self._known[key] = self._names.new(name)
            self._class(name, schema, definitions, self._known[key])
        return f'"{self._known[key]}"'

    def _class(self, title: str, schema: Mapping[str, Any], definitions: Mapping[str, Any], name: str = "") -> str:
        name = name or self._names.new(title)
        required = schema.get("required", ())
        fields = []
        for key, about in schema["properties"].items():
            text = self.of(about, definitions)
            optional = f"{self.use('typing_extensions', 'NotRequired')}[{text}]"
            fields.append(f"{key!r}: {text if key in required else optional}")
        typed_dict = self.use("typing_extensions", "TypedDict")
        self.classes.append(f"\n{name} = {typed_dict}({name!r}, {{{', '.join(fields)}}})\n")
        return name
