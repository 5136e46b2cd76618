"""Runs in applications and commands (never in zygote or child). Owns: what both clients share: where the server
is, what an existing connection lends, and what its errors mean. Must not: send anything.
"""

import os
import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import orjson
import redis as redis_py

from supervisor import redis_url
from supervisor.engine.commands.writes import MOST, Command, Grant, checked_batch
from supervisor.engine.model.errors import (
    DependencyError,
    JobFailed,
    JobNotFound,
    LeaseholdError,
    NoServer,
    OutcomeUnknown,
    ReadOnlyReplica,
    StoreUnavailable,
)
from supervisor.engine.model.jobs import JobRecord, NewJob, new_job
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.outcomes import Completed, Outcome
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.model.validation import DATA_BYTES, UNSET, checked_each, checked_number

T = TypeVar("T")
#: Jobs that a client's sweep takes in one call.
SWEPT: Final = 200
Clock = Callable[[], float]

SOCKET_TIMEOUT_S = 10.0
#: Connections of a client that is given a url: redis-py's own default of 100 would limit threads without being asked.
MOST_CONNECTIONS = 2**31
_LONGEST_WAIT_S = 5.0
_BELLS_S = 1.0  # nobody rings for what other programs push, nor for a new queue that a glob stands for
#: The states of which nothing more will come; None: there is no such job.
ENDED: Final = (None, "complete", "failed")
#: What a lease of no queue gives.
NOTHING = Grant(0.0, None, [], [])


class Share(Protocol):
    """A share in the embedded server."""

    @property
    def url(self) -> str: ...
    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is: `shown` is fit for messages, `share` what must be released."""

    url: str
    shown: str
    share: Share | None


class EmbeddedServerWarning(UserWarning):
    """A client was made without a url and without LEASEHOLD_REDIS_URL, so it uses the embedded server."""


def find_server(url: str | None) -> Address:
    """Return the server of an url; of LEASEHOLD_REDIS_URL, if None; else the embedded one, started if need be (blocks).

    Raises NoServer where the embedded server would lose its jobs: in handlers, and as PID 1.
    """
    if url is not None and not isinstance(url, str):
        raise TypeError(f"url must be a str, not {type(url).__name__}: {url!r:.100}")
    name, url = ("url", url) if url else ("LEASEHOLD_REDIS_URL", os.environ.get("LEASEHOLD_REDIS_URL"))
    if url and url != redis_url.EMBEDDED:
        return Address(_checked_url(name, url), redis_url.redacted(url), None)
    from supervisor.engine.embedded import embedded  # only those who want a server of their own load what starts one

    if not url:
        if why := embedded.refusal(f"Client({redis_url.EMBEDDED!r})"):
            raise NoServer(why)
        _announce(embedded.default_directory())
    share = embedded.acquire()
    return Address(share.url, "the embedded server", share)


def _checked_url(name: str, url: str) -> str:
    try:
        return redis_url.checked(url)
    except ValueError as error:
        raise ValueError(f"{name} {redis_url.redacted(url)!r} {error}") from None


_announced = False


def _announce(directory: Path) -> None:
    """Warn of the embedded server that nobody asked for by name, once per process. The caller made a Client."""
    global _announced
    if not _announced:
        warnings.warn(
            f"no LEASEHOLD_REDIS_URL and no url: this process uses the embedded server in {directory}; name a server,"
            f" or ask for this one with Client({redis_url.EMBEDDED!r})",
            EmbeddedServerWarning,
            stacklevel=4,
        )
        _announced = True


def find_namespace(namespace: str | None) -> Namespace:
    """The namespace of a name; of LEASEHOLD_NAMESPACE, if None; else leasehold."""
    return Namespace(os.environ.get("LEASEHOLD_NAMESPACE") or "leasehold" if namespace is None else namespace)


def checked_clock(clock: Clock | None) -> Clock:
    """A clock to call; one that says None (the server's) if none was injected."""
    if clock is None:
        return lambda: None  # type: ignore[return-value]  # commands take None as the server's clock
    if not callable(clock):
        raise TypeError(f"clock must be callable, not {type(clock).__name__}: {clock!r:.100}")
    return clock


# Of a given connection's arguments, what redis-py has added for the pool they are from.
_OF_THE_POOL = ("maint_notif", "oss_cluster", "orig_", "himport_registry", "event_dispatcher", "connection_pool")


def borrowed_arguments(pool: Any) -> dict[str, Any]:
    """The arguments of a given pool, to make one of our own: nothing is sent twice, and replies are bytes."""
    kept = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_OF_THE_POOL)}
    own = {"retry_on_error": [], "retry_on_timeout": False, "decode_responses": False, "protocol": 2}
    return {**kept, **own, "max_connections": pool.max_connections}


def uncounted_connection(pool: Any) -> Any:
    """Make a connection as the pool does, for a user that keeps it and closes it by itself.

    pool.make_connection() of redis-py 8 counts towards max_connections, and only what get_connection() has given can
    be given back.
    """
    return pool.connection_class(**pool.connection_kwargs)


def shown_address(given: Mapping[str, Any]) -> str:
    """A given connection's server, fit for messages."""
    return str(given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}")


def longest_wait_s(arguments: Mapping[str, Any]) -> float:
    """How long one wait for bells may be: a socket that times out first would look like a lost server."""
    timeout_s: float | None = arguments.get("socket_timeout", SOCKET_TIMEOUT_S)
    return _LONGEST_WAIT_S if timeout_s is None else min(_LONGEST_WAIT_S, timeout_s / 2)


def _clause(error: Exception) -> str:
    return str(error).rstrip(".")


#: The errors of redis-py's pools when their max_connections are in use.
_EXHAUSTED: Final = frozenset({"Too many connections", "No connection available."})


def unreachable(shown: str, error: Exception) -> StoreUnavailable:
    """Nothing was carried out: there was no connection to send it on, or the server refused what waits for others."""
    if isinstance(error, redis_py.AuthenticationError):
        return StoreUnavailable(
            f"Redis at {shown} lets nobody in without the right password: {_clause(error)}. Nothing was sent; put user"
            " and password into the URL, like redis://user:password@host:6379/0."
        )
    if isinstance(error, redis_py.exceptions.AskError):
        return elsewhere(shown, error)
    if str(error) in _EXHAUSTED:
        return StoreUnavailable(
            f"all connections to Redis that this client may have (max_connections) are in use, at {shown}. Nothing was"
            " sent; raise max_connections, or make fewer calls at the same time."
        )
    return StoreUnavailable(
        f"cannot reach Redis at {shown}: {_clause(error)}. Nothing was sent;"
        " is it running, and is LEASEHOLD_REDIS_URL right?"
    )


def elsewhere(shown: str, error: redis_py.exceptions.AskError) -> StoreUnavailable:
    """The server is a node of a Cluster, and another node holds the namespace (MOVED), or is getting it (ASK)."""
    return StoreUnavailable(
        f"Redis at {shown} is a node of a Cluster that does not hold the namespace: {error.host}:{error.port} does"
        f" (slot {error.slot_id}). Nothing has changed; name that node in the URL."
    )


def unanswered(shown: str, command: Command[Any], error: Exception) -> StoreUnavailable | OutcomeUnknown:
    """The connection ended between a call and its answer."""
    name = command.script.name
    if command.script.reads_only or isinstance(error, redis_py.BusyLoadingError):
        return StoreUnavailable(
            f"Redis at {shown} did not answer {name}: {_clause(error)}. Nothing has changed; try again."
        )
    return OutcomeUnknown(
        f"Redis at {shown} did not answer {name}: {_clause(error)}. The outcome is unknown:"
        " all of it was carried out, or none. Look before you call again."
    )


def refused(shown: str, command: Command[Any], error: Exception) -> LeaseholdError:
    """The server answered with an error: a script's own refusal, or the server's. None comes after a first write."""
    if isinstance(error, redis_py.exceptions.AskError):
        return elsewhere(shown, error)
    code, _, why = str(error).partition(" ")
    if code in _REFUSALS:
        return _REFUSALS[code](why.partition(" script: ")[0])
    if isinstance(error, redis_py.ReadOnlyError):
        return ReadOnlyReplica(
            f"Redis at {shown} is a read-only replica and refused {command.script.name}. Nothing has changed;"
            " name its primary."
        )
    return StoreUnavailable(f"Redis at {shown} refused {command.script.name}: {_clause(error)}. Nothing has changed.")


_REFUSALS: dict[str, type[LeaseholdError]] = {"DEPENDENCY": DependencyError, "REFUSED": LeaseholdError}


def checked_wait_s(argument: str, seconds: float) -> float:
    """Seconds to wait at most. Raises TypeError or ValueError naming the argument."""
    if checked_number(argument, seconds) < 0:
        raise ValueError(f"{argument} must be 0 or more seconds: {seconds!r}")
    return seconds


def checked_many(queue: str, given: Iterable[Mapping[str, Any]]) -> list[list[NewJob]]:
    """Check put_many's jobs, all before the first is sent. The batches have at most 1,000 jobs, fewer with many tags or
    parents, and 256 MB of data.
    """
    batches: list[list[NewJob]] = []
    room = room_bytes = 0
    for one in checked_each("jobs", given, "dicts of put's arguments"):
        if not isinstance(one, Mapping):
            raise TypeError(f"jobs must be dicts of put's arguments, not {type(one).__name__}: {one!r:.100}")
        arguments = dict(one)
        if "klass" not in arguments:
            raise TypeError(f"jobs must each have a klass: {one!r:.100}")
        job = new_job("put", queue, arguments.pop("klass"), arguments.pop("data", None), arguments)
        if room < job.weight or room_bytes < job.size_bytes:
            batches.append([])
            room, room_bytes = MOST, DATA_BYTES
        batches[-1].append(job)
        room -= job.weight
        room_bytes -= job.size_bytes
    return batches


def worker_of(outcomes: Sequence[Outcome]) -> str:
    """The one worker whose leases these outcomes end. Raises TypeError or ValueError naming the argument."""
    for outcome in outcomes:
        if not isinstance(outcome, Outcome):
            raise TypeError(f"outcomes must be Completed, Retried, Failed, Released or Died: {outcome!r:.100}")
    workers = {outcome.lease.worker for outcome in outcomes}
    if len(workers) > 1:
        raise ValueError(f"outcomes must all be of one worker's leases, not of {', '.join(sorted(workers))}")
    return workers.pop()


def in_steps(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """The outcomes that one call ends: so many that they put no more than 1,000 plain jobs, or one. Raises TypeError or
    ValueError naming the argument.
    """
    checked_batch("outcomes", outcomes)
    steps: list[list[Outcome]] = [[]]
    room = MOST
    for given in outcomes:
        outcome = given.with_checked_puts() if isinstance(given, Completed) else given
        weight = outcome.weight if isinstance(outcome, Completed) else 1
        if room < weight and steps[-1]:
            steps.append([])
            room = MOST
        steps[-1].append(outcome)
        room -= weight
    return steps


def at_most(wanted: Queues, known: Sequence[str]) -> tuple[str, ...]:
    """The queues that one lease serves: all, or 1,000 of them, the first in strict order, else drawn anew each time."""
    names = wanted.resolve(known)
    if len(names) <= MOST:
        return names
    return names[:MOST] if wanted.order == "strict" else tuple(random.sample(names, MOST))


def pause_s(grant: Grant, left_s: float, longest_s: float) -> float:
    """How long to wait for a bell before the next lease, if none rings."""
    pause = min(left_s, longest_s, _BELLS_S)
    return pause if grant.next_at_unix is None else min(pause, grant.next_at_unix - grant.now_unix)


class Answers:
    """What workers have answered to a question so far: None of those who have not."""

    def __init__(self, workers: Sequence[str]) -> None:
        self.by_worker: dict[str, Any] = dict.fromkeys(workers)
        self.missing = set(workers)

    def take(self, popped: bytes | None) -> None:
        """One answer as it was found; None: there was none."""
        if popped is None:
            return
        worker, answer = orjson.loads(popped)
        self.by_worker[worker] = answer
        self.missing.discard(worker)


# What answers mean.


def jid_of(job: NewJob, answer: bool | str) -> str:
    """What a put answers: the job's jid, or that of the holder of its unique key."""
    return answer if isinstance(answer, str) else job.jid


def result_of(jid: str, record: JobRecord | None) -> Any:
    """The result of a job that is complete; UNSET while it has not ended. Raises JobFailed or JobNotFound."""
    if record is None:
        raise JobNotFound(
            f"there is no job {jid} (any more): it never was, was cancelled, or completed and was not kept"
        )
    if record.state == "failed":
        failure = record.failure or {}
        raise JobFailed(jid, str(failure.get("group", "")), str(failure.get("message", "")))
    return record.result if record.state == "complete" else UNSET


def served(worker: str, number: int) -> None:
    """Of a wish. Raises LeaseholdError if nobody was there to have it."""
    if not number:
        raise LeaseholdError(f"there is no worker {worker} (any more); `leasehold status` shows who is there")
