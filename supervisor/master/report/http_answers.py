"""Answers the queries of the HTTP thread. Runs in the master, in its loop.

Owns the queries that wait for Redis. Each is answered soon, even if Redis does not answer. An answer is plain data that
does not change later.
"""

from collections.abc import Callable
from typing import Any, Final

from supervisor import clock
from supervisor.master.redis.backlog import Backlog
from supervisor.master.report.state import State
from supervisor.master.timers import Timers
from supervisor.ops.events import Events
from supervisor.ops.http_queries import COMPLAINT, HttpQueries, HttpQuery

#: A query waits for figures from Redis for at most this time. Then it is answered with the last ones.
LOOKED_S: Final = 0.5
#: The key of the timer.
_ANSWERS: Final = "http-answers"


class HttpAnswers:
    def __init__(
        self,
        queries: HttpQueries,
        state: State,
        status: Callable[[], Any],
        snapshot: Callable[[], Any],
        backlog: Backlog,
        events: Events,
        timers: Timers,
    ) -> None:
        """`status` and `snapshot` return the answers to `/status` and `/metrics`, as plain data."""
        self._queries = queries
        self._state = state
        self._status = status
        self._snapshot = snapshot
        self._backlog = backlog
        self._events = events
        self._timers = timers
        self._waiting: list[tuple[HttpQuery, float]] = []  # and since when (monotonic s)

    def on_asked(self) -> None:
        """Answer the queries that need no figures from Redis, and ask Redis for the others."""
        now_at = clock.monotonic()
        for query in self._queries.take():
            match query.what:
                case "/livez":
                    self._queries.answer(query, None)
                case "/readyz":
                    self._queries.answer(query, (self._state.can_lease, self._state.word))
                case _ if query.what == COMPLAINT:
                    self._events.warn(query.detail)
                case _:
                    self._backlog.look(self._answer)
                    self._waiting.append((query, now_at))
        self._plan()

    def _answer(self, now_at: float) -> None:
        """Answer the queries for which Redis has answered, or has had enough time to."""
        waiting, self._waiting = self._waiting, []
        for query, since_at in waiting:
            if self._backlog.looked_at < since_at and now_at < since_at + LOOKED_S:
                self._waiting.append((query, since_at))
                continue
            self._queries.answer(query, self._status() if query.what == "/status" else self._snapshot())
        self._plan()

    def _plan(self) -> None:
        if self._waiting:
            self._timers.set(_ANSWERS, self._waiting[0][1] + LOOKED_S, self._answer)
