"""Puts jobs by a handler's parameters. Runs in producers; in handlers only `job` is of use.

Owns the default clients. Must not load redis before the first put: children import this module.
"""

import os
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, Self, Unpack
from weakref import WeakKeyDictionary

import orjson

import supervisor
from supervisor.child.parameters import Parameters, WrongShape
from supervisor.engine.model.errors import NoServer
from supervisor.engine.model.job_to_put import JobToPut
from supervisor.engine.model.new_jobs import PutOptions, fresh_jid

if TYPE_CHECKING:
    import asyncio

    from supervisor.engine.client.async_client import AsyncClient
    from supervisor.engine.client.sync_client import Client

P = ParamSpec("P")

DEFAULT_QUEUE = "default"


class HandlerOptions(PutOptions, total=False):
    """The options of a handler's put: those of `Queue.put`, the queue, and the client."""

    queue: str  # default: the handler's own, else "default"
    durable: bool  # wait until replicas have the job, as `Queue.put` does
    client: "Client | AsyncClient | None"  # None: the default client


class Puttable(Protocol):
    """The part of a handler that a typed put needs."""

    @property
    def klass(self) -> str: ...
    @property
    def parameters(self) -> Parameters | None: ...
    @property
    def collects(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class TypedPut(Generic[P]):
    """A handler's put with options."""

    _handler: Puttable
    _options: Mapping[str, Any]
    _client: "Client | AsyncClient | None" = None

    def with_options(self, **options: Unpack[HandlerOptions]) -> Self:
        """Return a put with these options as well.

        Raises TypeError for an unknown one. The put raises TypeError or ValueError for a wrong value.
        """
        given: dict[str, Any] = {**options}
        for option in given.keys() - HandlerOptions.__annotations__.keys():
            known = ", ".join(sorted(HandlerOptions.__annotations__))
            raise TypeError(f"with_options has no option {option!r}; it has {known}")
        client = given.pop("client", self._client)
        times = {"at", "delay"}
        replaced = times if times & given.keys() else set()  # the later choice of the two replaces the earlier
        kept = {name: value for name, value in self._options.items() if name not in replaced}
        return type(self)(self._handler, {**kept, **given}, client)

    def put(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Put a job, as `Handler.put` does."""
        data, options = self._data(args, kwargs), {**self._options}
        queue = options.pop("queue", DEFAULT_QUEUE)
        client = self._client
        if client is None:
            client = self._default_client()
        elif not isinstance(client, supervisor.Client):
            raise TypeError(f"client must be a Client, and for aput an AsyncClient, not {type(client).__name__}")
        return client.queue(queue).put(self._handler.klass, data, **options)

    async def aput(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Put a job, as `Handler.aput` does."""
        data, options = self._data(args, kwargs), {**self._options}
        queue = options.pop("queue", DEFAULT_QUEUE)
        client = self._client
        if client is None:
            client = await self._default_async_client()
        elif not isinstance(client, supervisor.AsyncClient):
            raise TypeError(f"client must be an AsyncClient, and for put a Client, not {type(client).__name__}")
        return await client.queue(queue).put(self._handler.klass, data, **options)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> JobToPut:
        """Return a job that is ready to be put, as `Handler.job` does."""
        if "durable" in self._options:
            raise ValueError("durable is an option of the call that puts this job, like put_many(…, durable=True)")
        data, options = self._data(args, kwargs), {"queue": DEFAULT_QUEUE, **self._options}
        if draws_jid := "jid" not in options:
            given = {name: value for name, value in options.items() if name != "queue"}
            options["jid"] = fresh_jid(options["queue"], self._handler.klass, data, given)
        made = JobToPut({**options, "klass": self._handler.klass, "data": data})
        made.draws_jid = draws_jid
        return made

    def _data(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the arguments as put takes them. Raises ValueError naming each wrong one."""
        parameters = self._handler.parameters
        collects = self._options.get("collect") is not None
        try:
            if parameters is not None:
                if collects != self._handler.collects:
                    raise WrongShape("collect belongs to @handler, as it changes what the handler gets")
                dump = parameters.one_dumped if collects else parameters.dumped
                return orjson.Fragment(dump(parameters.given(args, kwargs)))
            if args or kwargs:
                raise WrongShape("the handler has no parameters beside the context; put its data by Queue.put")
        except WrongShape as error:
            raise WrongShape(f"{self._handler.klass}: {error}") from None
        return None

    def _default_client(self) -> "Client":
        key = _server()
        client = _clients.get(key)
        if client is None:
            try:
                client = _clients.setdefault(key, supervisor.Client())
            except NoServer as error:
                raise self._no_server(error) from None
        return client

    async def _default_async_client(self) -> "AsyncClient":
        from asyncio import get_running_loop

        loop, key = get_running_loop(), _server()
        known = _async_clients.setdefault(loop, {})
        if key not in known:
            try:
                client = supervisor.AsyncClient()
            except NoServer as error:
                raise self._no_server(error) from None
            closing = _closed_with_its_loop(client)
            known[key] = client, closing
            await anext(closing)
        return known[key][0]

    def _no_server(self, error: NoServer) -> NoServer:
        name = self._handler.klass.rpartition(".")[2]
        return NoServer(f"{error}. In a handler, use job.put({name}.job(…))")


#: The variables by which a default client finds its server and namespace.
_OF_THE_SERVER: Final = ("LEASEHOLD_REDIS_URL", "LEASEHOLD_REDIS_PASSWORD_FILE", "LEASEHOLD_NAMESPACE")
#: The default clients, by process and server: a fork must not use its parent's connections.
_clients: "dict[tuple[Any, ...], Client]" = {}
_OfLoop = dict[tuple[Any, ...], tuple["AsyncClient", AsyncGenerator[None]]]
_async_clients: "WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop]" = WeakKeyDictionary()


@contextmanager
def default_client(client: "Client") -> Iterator[None]:
    """Have the typed puts of this process use a client, as long as the variables name the same server."""
    key = _server()
    before = _clients.get(key)
    _clients[key] = client
    try:
        yield
    finally:
        del _clients[key]
        if before is not None:
            _clients[key] = before


def _server() -> tuple[Any, ...]:
    return os.getpid(), *map(os.environ.get, _OF_THE_SERVER)


async def _closed_with_its_loop(client: "AsyncClient") -> AsyncGenerator[None]:
    """Close a client when its event loop ends: asyncio.run closes the generators that are still open."""
    try:
        yield
    finally:
        await client.close()
