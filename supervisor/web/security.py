"""Refuses requests of strangers, and gives each answer its security headers. Runs in the web server's process.

A page in a visitor's browser can reach this server too, by a name of its own that leads to this address. Its requests
carry that name in `Host`. Must not know any page.
"""

from collections.abc import Collection
from math import ceil
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.web.auth import MAY_LOOK, Auth, Loopback, is_address, is_loopback

#: No inline script or style, nothing from elsewhere, in no frame.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without a referrer a browser says no origin of our own forms either
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
#: A page elsewhere can give a name of its own this server's address, and no address another one.
_OURS: Final = "localhost"
#: A browser that saves JSON under the name in the address could make a program of it.
_NAME_OF_JSON: Final = 'inline; filename="leasehold.json"'
#: What a stranger needs in order to log in.
_OPEN: Final = ("/login", "/static/")
#: Answers everybody, under any name, that the server lives. It tells nothing else, so that a platform can ask.
PROBE: Final = "/livez"


class Gate:
    """Stands before all pages."""

    def __init__(self, app: ASGIApp, auth: Auth, hosts: Collection[str]) -> None:
        """`hosts`: further names under which this server may be asked, without a port."""
        self._app = app
        self._auth = auth
        # Without a login a proxy of this machine would pass strangers on, under the machine's address.
        self._is_own_address = is_loopback if isinstance(auth, Loopback) else is_address
        self._hosts = {_OURS, *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
                if headers.get("content-type") == "application/json":
                    headers["Content-Disposition"] = _NAME_OF_JSON
            await send(message)

        refusal = self._refusal(HTTPConnection(scope))
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, connection: HTTPConnection) -> Response | None:
        base = str(connection.scope.get("root_path", ""))
        path = str(connection.scope["path"]).removeprefix(base)
        if path == PROBE and connection.scope.get("method") in ("GET", "HEAD"):
            return None
        host = connection.headers.get("host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if name not in self._hosts and not self._is_own_address(name.removeprefix("[").removesuffix("]")):
            return PlainTextResponse("this server is not asked under that name\n", 421)
        visitor = self._auth.visitor(connection)
        connection.scope["leasehold.visitor"] = visitor
        if self._auth.has_login and path.startswith(_OPEN):
            return None
        if visitor is None and self._auth.has_login:
            if path.startswith("/api/") and (wait_s := self._auth.wait_s(connection)):
                sentence = "too many wrong tokens came from this address"
                return JSONResponse({"error": sentence}, 429, {"Retry-After": str(ceil(wait_s))})
            if path.startswith("/api/"):
                return JSONResponse({"error": "a token is needed"}, 401, {"WWW-Authenticate": "Bearer"})
            return RedirectResponse(f"{base}/login", 303)
        # Each act names the roles that may do it, also those of producers and workers. All others look.
        is_act = connection.scope["method"] in ("POST", "DELETE") and path.startswith("/api/")
        if visitor is None or not (visitor.role in MAY_LOOK or path == "/logout" or is_act):
            return PlainTextResponse("this is not for you to see\n", 403)
        return None
