"""The page on which one logs in with a token, and the end of a session. Runs in the web server's process."""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from supervisor.web.forms import read_form
from supervisor.web.tokens import SESSION_S, Tokens, cookie_name, is_encrypted, session_cookie

#: A form is a token and little more.
_MOST_BYTES: Final = 8192

Html = Callable[..., Response]


def routes(tokens: Tokens, html: Html) -> list[Route]:
    """Return the routes. `html` renders a template by its name."""

    async def login(request: Request) -> Response:
        status, wait_s = 200, 0.0
        if request.method == "POST":
            form = await read_form(request, _MOST_BYTES)
            cookie = tokens.log_in(form.get("token", [""])[-1], request)
            if cookie is not None:
                answer = RedirectResponse(f"{base(request)}/overview", 303)
                answer.set_cookie(
                    cookie_name(request), cookie, max_age=SESSION_S, path=base(request) or "/", httponly=True,
                    samesite="strict", secure=is_encrypted(request),
                )  # fmt: skip
                return answer
            wait_s = tokens.wait_s(request)
            status = 429 if wait_s else 403
        return html(request, "login", {"status": status, "wait_s": wait_s}, status)

    async def logout(request: Request) -> Response:
        await read_form(request, _MOST_BYTES)
        tokens.log_out(session_cookie(request))
        answer = RedirectResponse(f"{base(request)}/login", 303)
        answer.delete_cookie(cookie_name(request), path=base(request) or "/", secure=is_encrypted(request))
        return answer

    return [Route("/login", login, methods=["GET", "POST"]), Route("/logout", logout, methods=["POST"])]


def base(request: Request) -> str:
    """Return the path under which the application is mounted."""
    return str(request.scope.get("root_path", ""))
