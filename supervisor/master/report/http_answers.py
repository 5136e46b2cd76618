"""What the master's loop answers to its listener. Runs in master. Owns the queries that wait for Redis.

Must answer each that it takes, soon, whether Redis does or not; must not hand out anything that changes later.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from supervisor.master.timers import Timers
from supervisor.ops.http_queries import COMPLAINT, HttpQueries, HttpQuery

#: How long a look into Redis is waited for: then what was known before must do.
LOOKED_S: Final = 0.5
#: The key of the timer.
_ANSWERS: Final = "http-answers"


class Teller(Protocol):
    """Who knows how the master is."""

    @property
    def able(self) -> bool:
        """Whether it can lease jobs."""

    @property
    def state(self) -> str: ...

    def tell(self) -> Mapping[str, Any]:
        """All that there is to know of it."""


class Looks(Protocol):
    """Who can look into the queues."""

    @property
    def looked_at(self) -> float:
        """When the last answer came (monotonic s)."""

    def look(self, then: Callable[[float], None]) -> None:
        """Look again, with the next exchange, if there will be one, and call `then(now_at)`."""


class HttpAnswers:
    def __init__(
        self,
        queries: HttpQueries,
        status: Teller,
        looks: Looks,
        snapshot: Callable[[], Any],
        warn: Callable[[str], None],
        timers: Timers,
    ) -> None:
        """`snapshot`: what metrics are made of, as plain data."""
        self._queries = queries
        self._status = status
        self._looks = looks
        self._snapshot = snapshot
        self._warn = warn
        self._timers = timers
        self._waiting: list[tuple[HttpQuery, float]] = []  # and since when (monotonic s)

    def on_asked(self, now_at: float) -> None:
        """Answer what can be answered at once."""
        for query in self._queries.take():
            match query.what:
                case "/livez":
                    self._queries.answer(query, None)
                case "/readyz":
                    self._queries.answer(query, (self._status.able, self._status.state))
                case _ if query.what == COMPLAINT:
                    self._warn(query.detail)
                case _:
                    self._looks.look(self._answer)
                    self._waiting.append((query, now_at))
        self._plan()

    def _answer(self, now_at: float) -> None:
        """Answer what Redis has answered since, or has had time enough to."""
        waiting, self._waiting = self._waiting, []
        for query, since_at in waiting:
            if self._looks.looked_at < since_at and now_at < since_at + LOOKED_S:
                self._waiting.append((query, since_at))
                continue
            answer = self._status.tell() if query.what == "/status" else self._snapshot()
            self._queries.answer(query, answer)
        self._plan()

    def _plan(self) -> None:
        if self._waiting:
            self._timers.set(_ANSWERS, self._waiting[0][1] + LOOKED_S, self._answer)
