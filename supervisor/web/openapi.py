"""Describes the API as an OpenAPI document, from the table of pages. Runs in the web server's process."""

import re
from collections.abc import Iterable
from typing import Any

from supervisor.web.pages.page import Parameter, WebPage

_TYPES = {"200": "the answer", "400": "a parameter is wrong", "404": "there is no such thing", "503": "Redis is away"}


def document(pages: Iterable[WebPage], base: str, version: str) -> dict[str, Any]:
    """Return the document. `base`: the path of the API."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Leasehold", "version": version, "description": "What a namespace holds, read only."},
        "servers": [{"url": base}],
        "paths": {page.api: {"get": _operation(page)} for page in pages},
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {"error": {"type": "string", "description": "the reason, as one sentence"}},
                }
            }
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
        "responses": {code: _response(code, meaning, page) for code, meaning in _TYPES.items()},
    }


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
