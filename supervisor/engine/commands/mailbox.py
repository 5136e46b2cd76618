"""Builds the commands by which operators ask workers, and workers answer. Runs in every process that speaks to Redis.

Must not do I/O.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from supervisor.engine.commands.command import Argument, Command, checked_by, checked_names, now_ms, parse_names
from supervisor.engine.commands.routes import home, repeated
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import ASK_S, MOST
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.model.validation import checked_each, milliseconds, to_json

ARGUMENT_BYTES: Final = 4096
ANSWER_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """An operator's request to a supervisor that is not answered yet."""

    id: str
    what: str
    argument: Any = None


def tell(worker: str, message: str | bytes) -> Command[int]:
    """Leave a hint in a worker's mailbox. Answers how many hints it holds."""
    if not isinstance(message, str | bytes):
        raise TypeError(f"message must be str or bytes, not {type(message).__name__}: {message!r:.100}")
    return Command(scripts.TELL, (checked_name("worker", worker), message), int, route=home)


def ask(
    request: str,
    workers: Sequence[str] | str | None,
    what: str,
    argument: object = None,
    *,
    stands_s: float = ASK_S,
    by: str | None = None,
    now: float | None = None,
) -> Command[list[str]]:
    """Send a request to workers (up to 1,000; None: all live ones) under a new id. Answers the workers that got it.

    Redis answers an error beginning with REFUSED if a named worker is unknown. The request expires after `stands_s`.
    `by` names who asks.
    """
    names: tuple[str, ...] = ()
    if isinstance(workers, str):
        names = (checked_name("workers", workers),)
    elif workers is not None:
        names = checked_names("workers", tuple(checked_each("workers", workers, "names")), MOST)
    text = b"" if argument is None else to_json("argument", argument)
    if len(text) > ARGUMENT_BYTES:
        raise ValueError(f"argument must have at most {ARGUMENT_BYTES} bytes as JSON, not {len(text)}")
    stands = milliseconds("stands_s", stands_s, least=0)
    args: tuple[Argument, ...] = (checked_name("request", request), checked_name("what", what), text, stands)
    return Command(scripts.ASK, (now_ms(now), *args, checked_by(by), *names), parse_names, route=home)


def answer(worker: str, request: str, answer: object, *, now: float | None = None) -> Command[bool]:
    """Answer a request with any JSON of at most 1 MiB. Answers False if the request was answered or has expired."""
    text = to_json("answer", [checked_name("worker", worker), answer])
    if len(text) > ANSWER_BYTES:
        raise ValueError(f"answer must have at most {ANSWER_BYTES} bytes as JSON, not {len(text)}: give a part of it")
    args = now_ms(now), worker, checked_name("request", request), text
    return Command(scripts.ANSWER, args, bool, route=home)


def requests(worker: str, *, now: float | None = None) -> Command[list[OperatorRequest]]:
    """Read the open requests to a worker, oldest first. A request ends with its answer, or with its time."""
    return Command(scripts.ASKS, (now_ms(now), checked_name("worker", worker)), _parse_requests, route=home)


def _parse_requests(reply: list[Any]) -> list[OperatorRequest]:
    requests = []
    for request, what, argument in reply:
        with contextlib.suppress(ValueError):  # a damaged request expires by itself
            requests.append(
                OperatorRequest(request.decode(), what.decode(), orjson.loads(argument) if argument else None)
            )
    return requests


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """The last request to a supervisor to serve other queues.

    `number` counts its requests so far. Empty `queues`: there was no such request. `order` None: the order does not
    change.
    """

    number: int
    queues: list[str]
    order: str | None


def serve(
    worker: str,
    queues: Sequence[str],
    order: str | None = None,
    *,
    by: str | None = None,
    now: float | None = None,
) -> Command[int]:
    """Ask a running worker to serve these queues, in this order (None: the present one). `by` names who asks.

    Answers the request's number; 0 for an unknown worker.
    """
    patterns = Queues(queues, "strict" if order is None else order).patterns
    args = now_ms(now), checked_name("worker", worker), order or "", checked_by(by)
    return Command(scripts.SERVE, (*args, *patterns), int, route=repeated)


def serve_request(worker: str) -> Command[ServeRequest]:
    """Read which queues a worker was last asked to serve."""
    return Command(scripts.SERVED, (checked_name("worker", worker),), _parse_serve_request, route=home)


def _parse_serve_request(reply: list[Any]) -> ServeRequest:
    number, order, *queues = reply
    return ServeRequest(number, parse_names(queues), order.decode(errors="replace") or None)
