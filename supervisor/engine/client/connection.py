"""Finds the server and the namespace for both clients, and says what the errors of a connection mean.

Runs in applications and commands (never in zygote or child). Must not: send anything.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import redis as redis_py

from supervisor import redis_url
from supervisor.engine.client.following import CannotLogIn
from supervisor.engine.commands.acknowledge import Acknowledgement
from supervisor.engine.commands.command import Command
from supervisor.engine.model.errors import (
    DependencyError,
    LayoutError,
    LeaseholdError,
    NoServer,
    OutcomeUnknown,
    ReadOnlyReplica,
    StoreUnavailable,
    code_and_reason,
)
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.shards import OtherShards
from supervisor.engine.model.validation import Duration, checked_poll
from supervisor.engine.transport.account import NoAccount, without_arguments

T = TypeVar("T")
Clock = Callable[[], float]

SOCKET_TIMEOUT_S = 10.0
#: Where another server may take the place of one that hangs, the next call is to reach that one soon.
REPLACEABLE_TIMEOUT_S: Final = 3.0
_LONGEST_WAIT_S = 5.0


class Share(Protocol):
    """A share in the embedded server."""

    @property
    def url(self) -> str: ...
    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The server's place. `shown` is fit for messages; `share` must be released."""

    url: str
    shown: str
    share: Share | None


class EmbeddedServerWarning(UserWarning):
    """A client was made without a url and without LEASEHOLD_REDIS_URL, so it uses the embedded server."""


def find_server(url: str | None) -> ServerAddress:
    """Return the server of an url; of LEASEHOLD_REDIS_URL, if None; else the embedded one, started if need be (blocks).

    LEASEHOLD_REDIS_PASSWORD_FILE belongs to LEASEHOLD_REDIS_URL.

    Raises NoServer where the embedded server would lose its jobs: in handlers, and as PID 1.
    """
    if url is not None and not isinstance(url, str):
        raise TypeError(f"url must be a str, not {type(url).__name__}: {url!r:.100}")
    name, url = ("url", url) if url else ("LEASEHOLD_REDIS_URL", os.environ.get("LEASEHOLD_REDIS_URL"))
    if url and url != redis_url.EMBEDDED:
        checked = _checked_url(name, url, "" if name == "url" else os.environ.get("LEASEHOLD_REDIS_PASSWORD_FILE", ""))
        return ServerAddress(checked, redis_url.redacted(url), None)
    from supervisor.engine.embedded import embedded  # only those who want a server of their own load what starts one

    if not url:
        if why := embedded.refusal(f"Client({redis_url.EMBEDDED!r})"):
            raise NoServer(why)
        _announce(embedded.default_directory())
    share = embedded.acquire()
    return ServerAddress(share.url, "the embedded server", share)


def _checked_url(name: str, url: str, password_file: str) -> str:
    try:
        checked = redis_url.checked(url)
        return redis_url.with_password_file(checked, os.path.abspath(password_file)) if password_file else checked
    except ValueError as error:
        raise ValueError(f"{name} {redis_url.redacted(url)!r} {error}") from None


_announced = False


def _announce(directory: Path) -> None:
    """Warn once per process that an embedded server is used by default. The caller made a Client."""
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
    """Return the namespace of a name; of LEASEHOLD_NAMESPACE, if None; else leasehold."""
    return Namespace(os.environ.get("LEASEHOLD_NAMESPACE") or "leasehold" if namespace is None else namespace)


def find_poll(poll: Duration | None) -> float:
    """Return after how many seconds a call that waits looks again; of LEASEHOLD_REDIS_POLL, if None.

    0: it waits in Redis. Raises TypeError or ValueError.
    """
    if poll is not None:
        return checked_poll("poll", poll)
    given = os.environ.get("LEASEHOLD_REDIS_POLL") or "none"
    return 0.0 if given == "none" else checked_poll("LEASEHOLD_REDIS_POLL", given)


def check_may_wait(poll_s: float) -> None:
    """Raise ValueError for a durable put of a client that waits nowhere in Redis. `poll_s`: as `find_poll` has it."""
    if poll_s:
        raise ValueError(
            "a durable put waits in Redis until replicas have it, and no call of this client waits there (poll,"
            " LEASEHOLD_REDIS_POLL): put it by a client with poll=0, at an address that lets calls wait"
        )


#: The clock of all clients without one of their own. None: the server's.
_moved_clock: Clock | None = None


@contextmanager
def moved_clock(clock: Clock) -> Iterator[None]:
    """Have all clients without a clock of their own use this one meanwhile: those of a test."""
    global _moved_clock
    before, _moved_clock = _moved_clock, clock
    try:
        yield
    finally:
        _moved_clock = before


def _usual_clock() -> float:
    clock = _moved_clock
    return None if clock is None else clock()  # type: ignore[return-value]  # commands take None as the server's clock


def checked_clock(clock: Clock | None) -> Clock:
    """Return the injected clock, or the usual one, which returns None for the server's. Raises TypeError."""
    if clock is None:
        return _usual_clock
    if not callable(clock):
        raise TypeError(f"clock must be callable, not {type(clock).__name__}: {clock!r:.100}")
    return clock


def shown_address(given: Mapping[str, Any]) -> str:
    """Return the server of a given connection's arguments, fit for messages."""
    return str(given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}")


def longest_wait_s(arguments: Mapping[str, Any]) -> float:
    """Return the longest single wait for wake-ups. A socket that times out first would look like a lost server."""
    timeout_s: float | None = arguments.get("socket_timeout", SOCKET_TIMEOUT_S)
    return _LONGEST_WAIT_S if timeout_s is None else min(_LONGEST_WAIT_S, timeout_s / 2)


def blocking_pop(keys: Sequence[str], seconds: float) -> tuple[Any, ...]:
    """Return the command that waits until something comes into one of the lists, and takes it."""
    return "BLPOP", *keys, f"{max(seconds, 0.001):.3f}"  # 0 would wait for ever


def clause(error: Exception) -> str:
    """Return the text of an error, as a part of a sentence of ours."""
    return without_arguments(error).rstrip(".")


#: The errors of redis-py's pools when their max_connections are in use.
_EXHAUSTED: Final = frozenset({"Too many connections", "No connection available."})


def unreachable(shown: str, error: Exception) -> StoreUnavailable:
    """Return the error of a call that was not sent, for want of a connection, or of a refused wait."""
    if isinstance(error, redis_py.AuthenticationError):
        return StoreUnavailable(
            f"Redis at {shown} lets nobody in without the right password: {clause(error)}. Nothing was sent; check user"
            " and password: in the URL, like redis://user:password@host:6379/0, or in the file or function they come"
            " from."
        )
    if isinstance(error, CannotLogIn | NoAccount):
        return StoreUnavailable(f"cannot log in to Redis at {shown}: {clause(error)}. Nothing was sent.")
    if isinstance(error, redis_py.exceptions.AskError):
        return elsewhere(shown, error)
    if str(error) in _EXHAUSTED:
        return StoreUnavailable(
            f"all connections to Redis that this client may have (max_connections) are in use, at {shown}. Nothing was"
            " sent; raise max_connections, or make fewer calls at the same time."
        )
    return StoreUnavailable(
        f"cannot reach Redis at {shown}: {clause(error)}. Nothing was sent;"
        " is it running, and is LEASEHOLD_REDIS_URL right?"
    )


def elsewhere(shown: str, error: redis_py.exceptions.AskError) -> StoreUnavailable:
    """Return the error of a Cluster's node when another holds the namespace (MOVED), or is getting it (ASK)."""
    if "+cluster://" in shown:
        return StoreUnavailable(
            f"the namespace has moved within the Cluster {shown}: {error.host}:{error.port} has it, or is getting it"
            f" (slot {error.slot_id}). Nothing has changed; try again, and the call goes there."
        )
    return StoreUnavailable(
        f"Redis at {shown} is a node of a Cluster that does not hold the namespace: {error.host}:{error.port} does"
        f" (slot {error.slot_id}). Nothing has changed; name that node in the URL, or the Cluster, through which"
        " clients follow their slot: redis+cluster://host:port,host:port."
    )


#: Errors of a server that cannot serve the namespace now, while another one may: it was demoted, has moved the
#: namespace away, or has not read its data. NOREPLICAS is one, too, of a primary that is cut off from its replicas.
_ELSEWHERE: Final = (
    redis_py.exceptions.AskError,
    redis_py.exceptions.TryAgainError,
    redis_py.exceptions.ClusterDownError,
    redis_py.exceptions.MasterDownError,
    redis_py.ReadOnlyError,
    redis_py.BusyLoadingError,
)


def is_elsewhere(error: object) -> bool:
    """Return whether the next call needs a new connection, which may lead to another server."""
    return isinstance(error, _ELSEWHERE) or (
        isinstance(error, redis_py.ResponseError) and str(error).startswith("NOREPLICAS")
    )


def unanswered(shown: str, command: Command[Any], error: Exception) -> StoreUnavailable | OutcomeUnknown:
    """Return the error of a connection that ended between a call and its answer."""
    name = command.script.name
    if command.script.reads_only or isinstance(error, redis_py.BusyLoadingError):
        return StoreUnavailable(
            f"Redis at {shown} did not answer {name}: {clause(error)}. Nothing has changed; try again."
        )
    return OutcomeUnknown(
        f"Redis at {shown} did not answer {name}: {clause(error)}. The outcome is unknown:"
        " all of it was carried out, or none. Look before you call again."
    )


def check_acknowledged(shown: str, command: Command[Any], wanted: Acknowledgement, reply: object) -> None:
    """Raise OutcomeUnknown unless enough replicas have acknowledged a write. `reply`: to WAIT, or its error."""
    if wanted.is_met(reply):
        return
    said = f"{reply} have within {wanted.within_s:g} s" if isinstance(reply, int) else f"WAIT failed: {reply}"
    raise OutcomeUnknown(
        f"Redis at {shown} has carried out {command.script.name}, which {wanted.replicas} of its replicas must"
        f" acknowledge: {said}. It stands unless a failover loses it. Look before you call again."
    )


#: In place of an answer: the server had no script for the command, and has not run it.
NO_SCRIPT: Final = object()


def as_answer(shown: str, command: Command[Any], error: Exception) -> object:
    """Return the error of one of several commands under way as its answer, to be raised elsewhere; or NO_SCRIPT."""
    if isinstance(error, redis_py.exceptions.NoScriptError):
        return NO_SCRIPT
    if isinstance(error, redis_py.ResponseError):
        refusal = refused(shown, command, error)
        refusal.__cause__ = error
        return refusal
    return error


def has_failed(answers: Sequence[object]) -> bool:
    """Return whether one of the answers to calls is an error."""
    return any(isinstance(answer, LeaseholdError) for answer in answers)


def unread(shown: str, command: Command[Any], error: Exception) -> OutcomeUnknown:
    """Return the error of a lease whose large payloads could not be read."""
    return OutcomeUnknown(
        f"Redis at {shown} did not answer with the payloads of {command.script.name}: {clause(error)}. The jobs are"
        " leased, and come back when their leases have expired."
    )


def refused(shown: str, command: Command[Any], error: Exception) -> LeaseholdError:
    """Return the error of a reply that is one, by the script or by the server. None comes after a first write."""
    if isinstance(error, redis_py.exceptions.AskError):
        return elsewhere(shown, error)
    code, why = code_and_reason(str(error))
    if code in _REFUSALS:
        return _REFUSALS[code](why)
    if isinstance(error, redis_py.ReadOnlyError):
        return ReadOnlyReplica(
            f"Redis at {shown} is a read-only replica and refused {command.script.name}. Nothing has changed;"
            " name its primary, or the sentinels that know it, like redis+sentinel://host:port,host:port/service."
        )
    return StoreUnavailable(f"Redis at {shown} refused {command.script.name}: {clause(error)}. Nothing has changed.")


def refused_as(error: LeaseholdError) -> str:
    """Return the code of the reply by which the server has refused a call, like OOM. Empty: it has not."""
    reply = error.__cause__
    if isinstance(reply, redis_py.exceptions.OutOfMemoryError):
        return "OOM"  # redis-py leaves the code out
    return code_and_reason(str(reply))[0] if isinstance(reply, redis_py.ResponseError) else ""


_REFUSALS: dict[str, type[LeaseholdError]] = {
    "DEPENDENCY": DependencyError,
    "LAYOUT": LayoutError,
    "REFUSED": LeaseholdError,
    "SHARDED": OtherShards,
}
