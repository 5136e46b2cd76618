"""Defines a registered handler. Runs in zygotes, children and producers.

Owns what was declared beside the function. A call of the handler is a call of the function; `child/typed_put.py` puts
jobs for it. Must not import redis.
"""

import functools
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, Unpack, overload

import orjson

from supervisor.child.parameters import Parameters, WrongShape, is_plain, parameters_of
from supervisor.child.typed_put import DEFAULT_QUEUE, HandlerOptions, TypedPut
from supervisor.engine.model.errors import JobFailed
from supervisor.engine.model.job_to_put import JobToPut
from supervisor.engine.model.new_jobs import with_plain_values
from supervisor.messages import MAX_DELAY_S, HandlerSettings

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from supervisor.child.context import JobContext

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")

DEFAULT_ROOT: Final = "handlers"


class HandlersError(Exception):
    """The handlers cannot be used. The message says which and why."""


def module_of(root: str) -> str:
    """Return the dotted name of a root of handlers, which may be written as a path."""
    return root.strip("/").removeprefix("./").removesuffix(".py").replace("/", ".")


@dataclass(eq=False)
class Handler(Generic[P, R]):
    """A function that runs jobs of one klass. @handler makes it.

    A call runs the plain function, in this process. `put`, `aput` and `job` make jobs of the function's parameters.
    `settings`: what a supervisor does with its jobs; None where the `run` flag or the default decides. `put_options`:
    what each job of `put`, `aput` and `job` has unless `with_options` says otherwise. `rhythm`: cron and tz, or every,
    of the recurring job that supervisors put for it; empty: none.
    """

    function: Callable[Concatenate["JobContext", P], R]
    name: str | None
    settings: HandlerSettings
    is_async: bool = False
    backoff: tuple[float, ...] | Callable[[int], object] | None = None
    retry_on: tuple[type[BaseException], ...] | None = None
    fail_on: tuple[type[BaseException], ...] = ()
    put_options: Mapping[str, Any] = field(default_factory=dict)
    rhythm: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.function, updated=())

    def __call__(self, job: "JobContext", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(job, *args, **kwargs)

    def __reduce__(self) -> str:
        return self._qualified_name  # pickled by its name, as its function would be

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or self._qualified_name}>"

    @property
    def _qualified_name(self) -> str:
        function: Any = self.function
        return str(function.__qualname__)

    # puts

    @property
    def _typed(self) -> TypedPut[P]:
        return TypedPut(self, self.put_options)

    @property
    def klass(self) -> str:
        """Return the klass of its jobs: `name`, else the module's path below the root, and the function's name.

        The root is what `leasehold run --handlers` names: LEASEHOLD_HANDLERS, else "handlers". Raises ValueError for a
        module that does not lie below "handlers", if the variable is not set: its klass cannot be known then.
        """
        if self.name is not None:
            return self.name
        named = os.environ.get("LEASEHOLD_HANDLERS")
        root = module_of(named or DEFAULT_ROOT)
        if not named and not f"{self.__module__}.".startswith(f"{root}."):
            raise ValueError(
                f"the klass of {self.__module__}.{self._qualified_name} is not known, as its module does not lie below"
                f" {root!r}; set LEASEHOLD_HANDLERS to what `leasehold run --handlers` names, or give @handler(name=…)"
            )
        return self.klass_below(root)

    def klass_below(self, root: str) -> str:
        """Return the klass by which a supervisor of this root knows the handler."""
        function: Any = self.function
        return self.name or f"{function.__module__}.".removeprefix(f"{root}.") + function.__name__

    def put(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Put a job with these parameters by the default client, and return its jid. Blocks for a round trip.

        The default client is one `Client()` a process. Raises ValueError, before anything is written, for parameters
        that the handler would not accept; and what `Queue.put` raises.
        """
        return self._typed.put(*args, **kwargs)

    async def aput(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Put a job, as `put` does, by one `AsyncClient()` an event loop."""
        return await self._typed.aput(*args, **kwargs)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> JobToPut:
        """Return a job with these parameters that is ready to be put. Raises ValueError as `put` does.

        It is for `put_many`, `depends`, `then`, and `job.put` in a handler.
        """
        return self._typed.job(*args, **kwargs)

    def with_options(self, **options: Unpack[HandlerOptions]) -> TypedPut[P]:
        """Return `put`, `aput` and `job` with other options: those of `Queue.put`, the queue, and the client."""
        return self._typed.with_options(**options)

    # results

    @overload
    def result_of(self: "Handler[P, Coroutine[Any, Any, T]]", job: "JobContext", jid: str | None = None) -> T: ...
    @overload
    def result_of(self, job: "JobContext", jid: str | None = None) -> R: ...
    def result_of(self, job: "JobContext", jid: str | None = None) -> Any:
        """Return what a parent of this job has returned, which was a job of this handler.

        `jid`: which parent; None: the only one. The result has the type of the return annotation. Raises JobFailed for
        a parent that has failed, LookupError for a jid that is none of the parents, and what `job.results` raises.
        """
        results = job.results
        if jid is None and len(results) == 1:
            jid = next(iter(results))
        if jid is None or jid not in results:
            which = "so say which one" if jid is None else f"and {jid!r} is none of them"
            raise LookupError(f"job {job.jid} has {len(results)} parents, {which}: job.results has them by jid")
        result = results[jid]
        if isinstance(result, JobFailed):
            raise result
        adapter = self.result_adapter
        return result if adapter is None else adapter.validate_json(orjson.dumps(result))

    @property
    def plain_options(self) -> dict[str, Any]:
        """Return `put_options` as JSON has them."""
        plain = with_plain_values(self.put_options)
        return {name: list(value) if name == "tags" else value for name, value in plain.items()}

    @property
    def recurrence(self) -> dict[str, Any] | None:
        """Return the queue, the rhythm and the options of its recurring job, as JSON. None: it does not recur."""
        return {"queue": DEFAULT_QUEUE, **self.plain_options, **self.rhythm} if self.rhythm else None

    # runs

    @property
    def collects(self) -> bool:
        """Return whether one job has the data of several puts, as a list."""
        return self.put_options.get("collect") is not None

    @functools.cached_property
    def parameters(self) -> Parameters | None:
        """The parameters behind the context. None: there are none, and the data may be anything. Raises TypeError."""
        parameters = parameters_of(self.function)
        if self.collects and parameters is not None and (len(parameters.names) != 1 or parameters.takes_others):
            raise TypeError("it collects, so it takes one parameter beside the job: the list of what was put")
        return parameters

    @functools.cached_property
    def result_adapter(self) -> "TypeAdapter[Any] | None":
        """The adapter that dumps the results, by the return annotation. None: plain JSON does."""
        if is_plain(getattr(self.function, "__annotations__", {}).get("return")):
            return None  # without pydantic, which takes 20 MB
        try:
            from supervisor.child.annotations import result_adapter
        except ModuleNotFoundError as error:
            if error.name != "pydantic":
                raise
            return None
        return result_adapter(self.function)

    def prepare(self, klass: str) -> None:
        """Read parameters and result, before the first fork. Raises HandlersError."""
        try:
            parameters, _ = self.parameters, self.result_adapter  # both are kept from here on
        except TypeError as error:
            raise HandlersError(f"handler {klass!r}: {error}") from error
        if self.rhythm and parameters is not None and parameters.required:
            raise HandlersError(
                f"handler {klass!r} recurs without data, so its parameter {parameters.required[0]!r} needs a default"
            )

    def arguments_of(self, job: "JobContext") -> dict[str, Any]:
        """Return what the function gets beside the context. Raises WrongShape, and what foreign validators raise."""
        if self.parameters is None:
            return {}
        if job.raw is job.data:  # bytes were put
            raise WrongShape(f"the data must be JSON with the keys {', '.join(self.parameters.names)}, and is bytes")
        if (call := job.call) is not None:
            return self.parameters.taken_call(*call)
        return (self.parameters.taken_list if self.collects else self.parameters.taken)(job.raw, job.data)

    def gives_up(self, error: BaseException, on_error: str) -> bool:
        """Return whether an exception fails the job for good. `on_error`: the run's choice, for what names no class."""
        if isinstance(error, self.fail_on):
            return True
        if self.retry_on is not None and isinstance(error, self.retry_on):
            return False
        return (self.settings.on_error or ("fail" if self.retry_on is not None else on_error)) == "fail"

    def backoff_s(self, failures: int) -> float | None:
        """Return the seconds until the next try by the handler's own `backoff`. None: it has none.

        `failures`: the failures before this one. Raises ValueError for a value out of range, and whatever a foreign
        function raises.
        """
        if self.backoff is None:
            return None
        if isinstance(self.backoff, tuple):
            return self.backoff[min(failures, len(self.backoff) - 1)]
        answer = self.backoff(failures)
        if isinstance(answer, bool) or not isinstance(answer, int | float) or not 0 <= answer <= MAX_DELAY_S:
            raise ValueError(f"it answers {answer!r:.100} for {failures} failures; give seconds, 0 or more")
        return float(answer)
