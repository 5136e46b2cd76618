"""Puts the page and its API together. Runs in the process of `leasehold web`, or in an ASGI application."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.commands import batches
from supervisor.engine.model.bounds import Login
from supervisor.engine.model.errors import JobNotFound, LeaseholdError, OutcomeUnknown, StoreUnavailable
from supervisor.web import login
from supervisor.web.acts.act import OPERATORS, ActCall, WebAct, from_form, from_json
from supervisor.web.acts.table import ACTS
from supervisor.web.auth import Auth, Loopback, Visitor
from supervisor.web.bulk_acts import BulkActs
from supervisor.web.choosing import choice_of
from supervisor.web.data_check import WrongData
from supervisor.web.event_hub import EventHub
from supervisor.web.export import as_csv
from supervisor.web.forms import FormKeys, read_form, read_json
from supervisor.web.hiding import Hiding
from supervisor.web.job_export import FORMATS, ExportResponse, JobExports
from supervisor.web.login import base
from supervisor.web.openapi import document
from supervisor.web.packing import packed
from supervisor.web.pages.page import BadParameter, Missing, Site, TooMany, WebPage
from supervisor.web.pages.table import BAR, PAGES
from supervisor.web.poller import SharedModel
from supervisor.web.rendering import environment
from supervisor.web.security import PROBE, Gate
from supervisor.web.tokens import Tokens

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient

API: Final = "/api/v1"
#: Data of a job that is edited, and of jobs that programs put or settle.
MOST_FORM_BYTES: Final = 2**20
MOST_JSON_BYTES: Final = 2**24
_STATIC: Final = Path(__file__).with_name("static")
_TITLES: Final = {**{page.name: page.title for page in PAGES}, "events": "Events", "login": "Log in"}


def app(
    client: "AsyncClient",
    *,
    auth: Auth,
    hide: Sequence[str] = (),
    hosts: Collection[str] = (),
    allow_actions: bool = False,
) -> "WebApp":
    """Return the page as an ASGI application, to run by itself or to mount. The client stays the caller's to close.

    `auth` says who visitors are. `hide`: parts of the names of fields that are shown to nobody. `hosts`: names under
    which the server may be asked, beside those of the machine's loopback. `allow_actions`: visitors
    may act as their roles let them, in their own names; without it nothing is changed in Redis. Raises ValueError for
    acts without a login.
    """
    if allow_actions and isinstance(auth, Loopback):
        raise ValueError("allow_actions needs a login: auth=Tokens(…), ProxyHeader(…) or another one of yours")
    site = _Website(client, Hiding(hide), auth, ACTS if allow_actions else ())
    return WebApp(Gate(site.application(), auth, hosts), site.end_streams)


class WebApp:
    """The page as an ASGI application."""

    def __init__(self, gate: Gate, end_streams: Callable[[], Awaitable[None]]) -> None:
        self._gate = gate
        #: Ends the streams of events, which would hold up a server that waits for its connections.
        self.end_streams = end_streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._gate(scope, receive, send)


class _Website:
    """The answers to all requests."""

    def __init__(self, client: "AsyncClient", hiding: Hiding, auth: Auth, acts: Sequence[WebAct]) -> None:
        self._acts = acts
        self._keys = FormKeys()
        self._auth = auth
        self._site = Site(client, SharedModel(client), BulkActs())
        self._hiding = hiding
        self._hub = EventHub(client, hiding)
        self._exports = JobExports(client, hiding)
        self._templates = environment()

    def application(self) -> Starlette:
        routes = [
            Route("/", lambda request: RedirectResponse(f"{base(request)}/overview"), name="root"),
            Route(PROBE, lambda _request: PlainTextResponse("ok\n")),
            Route("/search", self._search),
            Route("/events", self._events_page),
            *(Route(f"/{page.name}", self._page_of(page)) for page in PAGES),
            *(Route(f"/act/{act.name}", self._form_of(act), methods=["POST"]) for act in self._acts),
            *(Route(_path(act.api), self._program_of(act), methods=[act.method]) for act in self._acts),
            Route(f"{API}/openapi.json", self._document),
            Route(f"{API}/events", self._events),
            Route(f"{API}/export", self._export),
            *(Route(_path(page.api), self._api_of(page)) for page in PAGES),
            *(login.routes(self._auth, self._html) if isinstance(self._auth, Tokens) else ()),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ]
        return Starlette(
            routes=routes,
            exception_handlers={HTTPException: self._refused, Exception: self._broken},
            lifespan=self._lifespan,
        )

    async def end_streams(self) -> None:
        await self._hub.close()

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        await self._hub.close()
        await self._site.bulk.close()
        await self._site.model.close()

    # pages

    def _page_of(self, page: WebPage) -> Any:
        async def answer(request: Request) -> Response:
            shown = await self._read(page, dict(request.query_params))
            return self._html(request, page.name, shown, is_live=page.is_live or bool(shown.get("is_live")))

        return answer

    async def _events_page(self, request: Request) -> Response:
        return self._html(request, "events", {})

    async def _search(self, request: Request) -> Response:
        """Go to the job, queue, group, tag, batch or supervisor of that name."""
        wanted, root = request.query_params.get("q", "").strip(), base(request)
        if not wanted:
            return RedirectResponse(f"{root}/overview")
        client, name = self._site.client, quote(wanted, safe="")
        try:
            if await client.job(wanted) or await client.recurring(wanted):
                return RedirectResponse(f"{root}/job?jid={name}")
            if wanted in await client.queues():
                return RedirectResponse(f"{root}/queue?queue={name}")
            if wanted in await client.failed():
                return RedirectResponse(f"{root}/jobs?group={name}")
            if (await client.tagged(wanted, 0, 1))[0]:
                return RedirectResponse(f"{root}/jobs?tag={name}")
            if await calls_of(client).call(batches.look, wanted):
                return RedirectResponse(f"{root}/batch?batch={name}")
            if (await client.worker(wanted)).seen_unix is not None:
                return RedirectResponse(f"{root}/supervisor?worker={name}")
            if await client.cancelled(wanted):
                return RedirectResponse(f"{root}/job?jid={name}")
        except (ValueError, LeaseholdError) as error:
            raise _status_of(error) from error
        raise HTTPException(404, f"nothing is called {wanted}: no job, queue, group, tag, batch or supervisor")

    def _html(
        self, request: Request, name: str, shown: dict[str, Any], status: int = 200, *, is_live: bool = False
    ) -> Response:
        visitor: Visitor | None = request.scope.get("leasehold.visitor")
        template = self._templates.get_template(f"{name}.html")
        text = template.render(
            shown,
            base=base(request),
            api=f"{base(request)}{API}",
            path=request.url.path,
            asked=dict(request.query_params),
            here=name,
            title=_TITLES.get(name, "Leasehold"),
            bar=[(each, _TITLES[each]) for each in BAR],
            is_live=is_live,
            visitor=visitor,
            has_login=self._auth.has_login,
            may_act=bool(self._acts) and visitor is not None and visitor.role in OPERATORS,
            form_key=self._keys.key(request),
        )
        return HTMLResponse(text, status)

    # the API

    def _api_of(self, page: WebPage) -> Any:
        async def answer(request: Request) -> Response:
            asked = {**request.query_params, **request.path_params}
            form = asked.pop("format", "json")
            if form not in ("json", "csv") or (form == "csv" and page.rows is None):
                raise HTTPException(400, "format must be json or csv")
            shown = await self._read(page, asked)
            if form == "csv" and page.rows:
                headers = {"Content-Disposition": f'attachment; filename="{page.name}.csv"'}
                return Response(as_csv(shown[page.rows]), media_type="text/csv", headers=headers)
            return _json(shown)

        return answer

    async def _document(self, request: Request) -> Response:
        return _json(document(PAGES, self._acts, f"{base(request)}{API}", "1", self._auth.has_login))

    async def _events(self, request: Request) -> Response:
        if self._hub.is_full:
            raise HTTPException(429, "too many listen to events already")
        chunks = self._hub.stream(partial(self._may_look, request))
        first = await anext(chunks)  # a browser says that it listens once the answer begins
        return StreamingResponse(_joined(first, chunks), media_type="text/event-stream")

    async def _export(self, request: Request) -> Response:
        asked = dict(request.query_params)
        form = asked.pop("format", "csv")
        if form not in FORMATS:
            raise HTTPException(400, f"format must be one of {', '.join(FORMATS)}")
        headers = {"Content-Disposition": f'attachment; filename="jobs.{form}"'}
        if self._exports.is_full:
            raise HTTPException(429, "too many exports are under way already")
        try:
            choice = choice_of(asked)
            if request.method == "HEAD":
                return Response(media_type=FORMATS[form], headers=headers)
            chunks = self._exports.chunks(choice, form, partial(self._may_look, request))
            first = await anext(chunks)
        except (BadParameter, TypeError, ValueError, LeaseholdError) as error:
            raise _status_of(error) from error
        return ExportResponse(_joined(first, chunks), media_type=FORMATS[form], headers=headers)

    def _may_look(self, request: Request) -> bool:
        return self._auth.visitor(request) is not None

    # acts

    def _form_of(self, act: WebAct) -> Any:
        async def answer(request: Request) -> Response:
            visitor = _allowed(request, act)
            form = await read_form(request, MOST_FORM_BYTES)
            self._keys.check(request, form)
            try:
                shown = await self._do(act, request, visitor, lambda: from_form(act, form))
            except WrongData as wrong:
                return await self._edit_again(act, request, {name: values[-1] for name, values in form.items()}, wrong)
            if "why" in shown:
                raise HTTPException(504, str(shown["why"]))
            told = {**{name: values[-1] for name, values in form.items()}, **shown}
            if act.shows is not None:
                return self._html(request, act.shows, told)
            page, *names = act.page
            asked = "&".join(f"{name}={quote(told[name], safe='')}" for name in names if name in told)
            return RedirectResponse(f"{base(request)}/{page}?{asked}", 303)

        return answer

    async def _edit_again(self, act: WebAct, request: Request, form: dict[str, str], wrong: WrongData) -> Response:
        """Return the form's page with what the visitor has written, and with what is wrong there."""
        page = next(each for each in PAGES if each.name == act.page[0])
        shown = await self._read(page, {name: form[name] for name in act.page[1:]})
        edited = {"edited": form["data"], "wrong_fields": self._hiding.hide(wrong.fields)}
        return self._html(request, page.name, {**shown, **edited}, 422)

    def _program_of(self, act: WebAct) -> Any:
        async def answer(request: Request) -> Response:
            visitor = _allowed(request, act)
            sent = await read_json(request, MOST_JSON_BYTES) if act.method == "POST" else {}
            given = {**sent, **request.path_params}
            try:
                return _json(await self._do(act, request, visitor, lambda: from_json(act, given)))
            except WrongData as wrong:
                return _json(self._hiding.hide({"error": str(wrong), "fields": wrong.fields}), 422)

        return answer

    async def _do(
        self, act: WebAct, request: Request, visitor: Visitor, read: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        try:
            client = self._site.client.acting_as(Login(visitor.name))
            shown = await act.do(ActCall(client, visitor.name, read(), self._site.bulk, request.is_disconnected))
        except (Missing, BadParameter, TooMany, TypeError, ValueError, LeaseholdError) as error:
            raise _status_of(error) from error
        hidden: dict[str, Any] = self._hiding.hide(shown) if act.hides else shown
        return hidden

    # what both share

    async def _read(self, page: WebPage, asked: dict[str, str]) -> dict[str, Any]:
        try:
            shown = await page.read(self._site, asked)
        except (Missing, BadParameter, TypeError, ValueError, LeaseholdError) as error:
            raise _status_of(error) from error
        hidden: dict[str, Any] = self._hiding.hide(shown)
        return hidden

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return self._error(request, error.status_code, self._hiding.hide(error.detail))  # it may name what was refused

    async def _broken(self, request: Request, _error: Exception) -> Response:
        return self._error(request, 500, "this is a bug of Leasehold; the log of the server has it")

    def _error(self, request: Request, status: int, sentence: str) -> Response:
        if request.url.path.startswith(f"{base(request)}{API}"):
            return _json({"error": sentence}, status)
        return self._html(request, "error", {"status": status, "sentence": sentence}, status)


async def _joined(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield first
        async for chunk in rest:
            yield chunk


def _path(api: str) -> str:
    return API + re.sub("}", ":path}", api)


def _allowed(request: Request, act: WebAct) -> Visitor:
    visitor: Visitor = request.scope["leasehold.visitor"]
    if visitor.role not in act.roles:
        roles = " and ".join(sorted(act.roles))
        raise HTTPException(403, f"{visitor.name} is a {visitor.role}, and {act.name} is for the role {roles}")
    return visitor


def _status_of(error: Exception) -> HTTPException:
    match error:
        case Missing() | JobNotFound():
            return HTTPException(404, str(error))
        case TooMany():
            return HTTPException(429, str(error))
        case StoreUnavailable() | OutcomeUnknown():
            return HTTPException(503, str(error))
        case _:  # a name that the client refuses, or a refusal of the engine
            return HTTPException(400, str(error))


def _json(value: Any, status: int = 200) -> Response:
    return Response(packed(value), status, media_type="application/json")
