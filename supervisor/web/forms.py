"""Reads what a form or a program sends in order to act. Runs in the web server's process.

A page elsewhere can have a visitor's browser send forms here, with the visitor's cookie. So a form must come from one
of our own pages, by its origin and by a key that no other site can read. JSON is taken only as JSON: for that a browser
asks first, and nobody answers.
"""

import hashlib
import hmac
import secrets
from typing import Any, Final
from urllib.parse import parse_qs

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request

from supervisor.web.tokens import session_cookie

#: The name of the field that has the key of a form.
KEY: Final = "csrf"


class FormKeys:
    """The keys of forms, one for each session. They end with the process."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def key(self, request: Request) -> str:
        """Return the key that a form for this visitor must carry."""
        visitor = request.scope.get("leasehold.visitor")
        whose = f"{session_cookie(request)}\n{visitor.name if visitor else ''}"
        return hmac.new(self._secret, whose.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()

    def check(self, request: Request, fields: dict[str, list[str]]) -> None:
        """Refuse a form without the key."""
        given = fields.pop(KEY, [""])[-1]
        if not hmac.compare_digest(given.encode(), self.key(request).encode()):
            raise HTTPException(403, "this form is not from a page of this session: load the page again")


async def read_form(request: Request, most_bytes: int) -> dict[str, list[str]]:
    """Return the fields of a form that one of our own pages has sent."""
    _check_origin(request)
    body = await _read(request, most_bytes)
    return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)


async def read_json(request: Request, most_bytes: int) -> dict[str, Any]:
    """Return the object that a program has sent; an empty one for nothing."""
    _check_origin(request)
    body = await _read(request, most_bytes)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the content type must be application/json")
    try:
        value = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {place_of(error)}") from None
    if not isinstance(value, dict):
        given = body[:100].decode("utf-8", "replace")
        raise HTTPException(400, f'the body must be an object of JSON, as {{"count": 10}}, not {given}')
    return value


def place_of(error: orjson.JSONDecodeError) -> str:
    """Say where JSON is wrong. The words of the library are its own, and may change."""
    return f"look at line {error.lineno}, column {error.colno}"


def _check_origin(request: Request) -> None:
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise HTTPException(403, "this form came from another site")


async def _read(request: Request, most_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > most_bytes:
            raise HTTPException(413, f"the body is larger than {most_bytes} bytes")
        body += chunk
    return bytes(body)
