"""Refuses requests of strangers, and gives each answer its security headers. Runs in the web server's process.

A page in a visitor's browser can reach this server too, by a name of its own that leads to this address. Its requests
carry that name in `Host`. Must not know any page.
"""

from collections.abc import Collection
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.web.auth import Auth

#: No inline script or style, nothing from elsewhere, in no frame.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_OURS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Gate:
    """Stands before all pages."""

    def __init__(self, app: ASGIApp, auth: Auth, hosts: Collection[str]) -> None:
        """`hosts`: further names under which this server may be asked, without a port."""
        self._app = app
        self._auth = auth
        self._hosts = _OURS | {host.lower() for host in hosts}

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
            await send(message)

        refusal = self._refusal(HTTPConnection(scope))
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, connection: HTTPConnection) -> PlainTextResponse | None:
        host = connection.headers.get("host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if name not in self._hosts:
            return PlainTextResponse("this server is not asked under that name\n", 421)
        visitor = self._auth.visitor(connection)
        if visitor is None:
            return PlainTextResponse("who you are is not known here\n", 403)
        connection.scope["leasehold.visitor"] = visitor
        return None
