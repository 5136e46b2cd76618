"""Describes the API as an OpenAPI document, from the table of pages. Runs in the web server's process."""

import re
from collections.abc import Container, Iterable, Sequence
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from supervisor.web.acts.act import WebAct
from supervisor.web.choosing import CHOICE
from supervisor.web.job_export import FORMATS
from supervisor.web.pages.page import Parameter, WebPage

_ANSWERS: Final = {
    "200": "the answer",
    "400": "a parameter is wrong",
    "401": "a token is needed",
    "403": "the role has no right to it",
    "404": "there is no such thing",
    "429": "too many of these are under way, or too many wrong tokens came from this address",
    "503": "Redis is away",
}
_ANSWERS_OF_ACTS: Final = {
    **_ANSWERS,
    "413": "the body is too large",
    "415": "the body is not JSON",
}
_WRONG_DATA: Final = {"422": "the data do not fit the handler; `fields` says where"}


def document(
    pages: Iterable[WebPage], acts: Iterable[WebAct], base: str, version: str, needs_token: bool
) -> dict[str, Any]:
    """Return the document. `base`: the path of the API."""
    paths: dict[str, dict[str, Any]] = {page.api: {"get": _operation(page)} for page in pages}
    paths |= {path: {"get": operation} for path, operation in _streams().items()}
    for act in acts:
        paths.setdefault(act.api, {})[act.method.lower()] = _act(act)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Leasehold", "version": version, "description": "What a namespace holds, and acts on it."},
        "servers": [{"url": base}],
        "paths": paths,
        "security": [{"token": []}] if needs_token else [],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {"type": "string", "description": "the reason, as one sentence"},
                        "fields": {
                            "type": "array",
                            "description": "of 422: the first wrong fields of the data",
                            "items": {
                                "type": "object",
                                "required": ["path", "wrong"],
                                "properties": {"path": {"type": "string"}, "wrong": {"type": "string"}},
                            },
                        },
                    },
                }
            },
        },
    }


def _operation(page: WebPage) -> dict[str, Any]:
    in_path = set(re.findall(r"{(\w+)}", page.api))
    parameters = [_parameter(each, each.name in in_path) for each in page.parameters]
    if page.rows:
        form = Parameter("format", f"csv: only `{page.rows}`, as a table", allowed=("json", "csv"))
        parameters.append(_parameter(form, False))
    return {
        "operationId": page.name,
        "summary": (page.read.__doc__ or "").partition("\n")[0],
        "parameters": parameters,
        "responses": {code: _response(code, meaning, page) for code, meaning in _ANSWERS.items()},
    }


def _streams() -> dict[str, dict[str, Any]]:
    """Return the operations whose answers are no JSON, by path."""
    form = Parameter("format", "a table (default), or one object of JSON a line", allowed=tuple(FORMATS))
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}

    def operation(name: str, summary: str, kinds: Iterable[str], *parameters: Parameter) -> dict[str, Any]:
        content = {kind: {"schema": {"type": "string"}} for kind in kinds}
        return {
            "operationId": name,
            "summary": summary,
            "parameters": [_parameter(each, False) for each in parameters],
            "responses": {
                code: {"description": meaning, "content": content if code == "200" else error}
                for code, meaning in _ANSWERS.items()
            },
        }

    return {
        "/events": operation("events", "Stream events as they happen.", ["text/event-stream"]),
        "/export": operation("export", "Stream all jobs that match.", FORMATS.values(), form, *CHOICE),
    }


_SCHEMAS: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "number": {"type": "integer"},
    "yes": {"type": "boolean"},
    "names": {"type": "array", "items": {"type": "string"}},
    "objects": {"type": "array", "items": {"type": "object"}},
    "json": {},
}


def _act(act: WebAct) -> dict[str, Any]:
    in_path = set(re.findall(r"{(\w+)}", act.api))
    fields = [each for each in act.fields if each.name not in in_path]
    body = {
        "type": "object",
        "required": [each.name for each in fields if each.is_required],
        "properties": {
            **_options(act, in_path),
            **{each.name: {**_SCHEMAS[each.kind], "description": each.meaning} for each in fields},
        },
        "additionalProperties": False,
    }
    has_body = act.method == "POST"
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "operationId": act.name,
        "summary": (act.do.__doc__ or "").partition("\n")[0],
        "description": f"For the roles {', '.join(sorted(act.roles))}.",
        "parameters": [_parameter(Parameter(name, "its name", True), True) for name in sorted(in_path)],
        **({"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}} if has_body else {}),
        "responses": {
            code: {"description": meaning, "content": error if code != "200" else {"application/json": {"schema": {}}}}
            for code, meaning in (_ANSWERS_OF_ACTS | (_WRONG_DATA if act.checks_data else {})).items()
        },
    }


_JSON_TYPES: Final = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def _options(act: WebAct, in_path: Container[str]) -> dict[str, Any]:
    if act.options is None:
        return {}
    hints = get_type_hints(act.options.types)
    return {name: _schema_of(hint) for name, hint in hints.items() if name not in in_path}


def _schema_of(hint: Any) -> dict[str, Any]:
    """Return what JSON can say of a type: it has no dates, durations and jobs to put."""
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    parts = (hint, *get_args(hint)) if get_origin(hint) is not Sequence else (hint,)
    types = [_JSON_TYPES[part] for part in parts if part in _JSON_TYPES]
    if any(get_origin(part) is Sequence for part in parts):
        return {"type": [*types, "array"], "items": {"type": "string"}}
    return {"type": types}


def _parameter(parameter: Parameter, is_in_path: bool) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if parameter.allowed:
        schema["enum"] = list(parameter.allowed)
    if parameter.most is not None:
        schema = {"type": "integer", "minimum": 0, "maximum": parameter.most}
    return {
        "name": parameter.name,
        "in": "path" if is_in_path else "query",
        "required": is_in_path,
        "description": parameter.meaning,
        "schema": schema,
    }


def _response(code: str, meaning: str, page: WebPage) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"} if code == "200" else {"$ref": "#/components/schemas/Error"}
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if code == "200" and page.rows:
        content["text/csv"] = {"schema": {"type": "string"}}
    return {"description": meaning, "content": content}
