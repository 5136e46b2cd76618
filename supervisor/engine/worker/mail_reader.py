"""Reads a worker's mail, and has looked up what it hints at. Runs in each worker. Does no I/O.

Mail only hints at what stands in Redis, so a lost message costs time alone.
"""

from collections.abc import Callable

from supervisor.engine.worker.served_queues import ServedQueues


class MailReader:
    def __init__(
        self,
        serving: ServedQueues,
        ask: Callable[[], None],
        on_hint_of_loss: Callable[[int | None], None],
        look_for_doors: Callable[[], None] = lambda: None,
    ) -> None:
        """`ask` has the worker lease. `on_hint_of_loss(token)`: this lease may be lost; None: any of them may be."""
        self._serving = serving
        self._ask = ask
        self._on_hint_of_loss = on_hint_of_loss
        self._look_for_doors = look_for_doors

    def read(self, message: bytes) -> None:
        match message.split():
            case [b"queues"]:
                self._serving.look_for_queues()
            case [b"serve" | b"ask"]:
                self._serving.look_for_wish()
            case [b"doors"]:
                self._look_for_doors()
            case [b"lost", *about]:
                self._on_hint_of_loss(int(about[0]) if about and about[0].isdigit() else None)
                self._ask()  # if the worker itself is unknown, the lease says so
            case [b"klass"]:
                self._ask()  # peers leave jobs here for which they have no handler
