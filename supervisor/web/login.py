"""The page on which one logs in with a token, and the end of a session. Runs in the web server's process."""

from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from supervisor.web.tokens import COOKIE, SESSION_S, Tokens

#: A form is a token and little more.
_MOST_BYTES: Final = 8192

Html = Callable[..., Response]


def routes(tokens: Tokens, html: Html) -> list[Route]:
    """Return the routes. `html` renders a template by its name."""

    async def login(request: Request) -> Response:
        wrong = False
        if request.method == "POST":
            form = await _form(request)
            cookie = tokens.log_in(form.get("token", "").strip())
            if cookie is not None:
                answer = RedirectResponse(f"{base(request)}/overview", 303)
                answer.set_cookie(
                    COOKIE, cookie, max_age=SESSION_S, path=base(request) or "/", httponly=True, samesite="strict",
                    secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto")),
                )  # fmt: skip
                return answer
            wrong = True
        return html(request, "login", {"wrong": wrong}, 403 if wrong else 200)

    async def logout(request: Request) -> Response:
        await _form(request)
        tokens.log_out(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse(f"{base(request)}/login", 303)
        answer.delete_cookie(COOKIE, path=base(request) or "/")
        return answer

    return [Route("/login", login, methods=["GET", "POST"]), Route("/logout", logout, methods=["POST"])]


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form that one of our own pages has sent."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise HTTPException(403, "this form came from another site")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, "the form is too large")
    return {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


def base(request: Request) -> str:
    """Return the path under which the application is mounted."""
    return str(request.scope.get("root_path", ""))
