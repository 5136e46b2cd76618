"""Reads a worker's mail, and has looked up what it hints at. Runs in each worker. Does no I/O.

Mail only hints at what stands in Redis, so a lost message costs time alone.
"""

from collections.abc import Callable
from typing import Final

from supervisor.engine.worker.served_queues import ServedQueues

#: No token has more digits. Anybody who reaches Redis can write mail, and Python refuses to read very long numbers.
_MOST_DIGITS: Final = 20


class MailReader:
    def __init__(
        self,
        serving: ServedQueues,
        lease_soon: Callable[[], None],
        on_hint_of_loss: Callable[[int | None], None],
        look_for_doors: Callable[[], None] = lambda: None,
    ) -> None:
        """`lease_soon` has the worker lease. `on_hint_of_loss(token)`: this lease may be lost; None: any may be."""
        self._serving = serving
        self._lease_soon = lease_soon
        self._on_hint_of_loss = on_hint_of_loss
        self._look_for_doors = look_for_doors

    def read(self, message: bytes) -> None:
        match message.split():
            case [b"queues"]:
                self._serving.look_for_queues()
            case [b"serve" | b"ask"]:
                self._serving.look_for_requests()
            case [b"doors"]:
                self._look_for_doors()
            case [b"lost", *about]:
                self._on_hint_of_loss(_token_in(about))
                self._lease_soon()  # if the worker itself is unknown, the lease says so
            case [b"klass"]:
                self._lease_soon()  # peers leave jobs here for which they have no handler


def _token_in(words: list[bytes]) -> int | None:
    """Return the token that a message names first. None: it names none."""
    if words and words[0].isdigit() and len(words[0]) <= _MOST_DIGITS:
        return int(words[0])
    return None
