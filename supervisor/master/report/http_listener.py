"""Serves HTTP from before the first zygote starts until the last one has ended. Runs in the master."""

import contextlib
import importlib.util
import socket
from collections.abc import Iterator
from typing import Final

from supervisor.config import ConfigError, RunConfig
from supervisor.master.inbox import Inbox
from supervisor.master.report.http_answers import HttpAnswers
from supervisor.ops import metrics
from supervisor.ops.events import Events
from supervisor.ops.http_queries import HttpQueries

_NO_METRICS: Final = "metrics need the package prometheus-client: pip install 'leasehold[metrics]'"
#: The thread has this long to close its connections.
_CLOSE_S: Final = 0.5


def listen(config: RunConfig) -> socket.socket | None:
    """Return the listening socket, or None without `--http`. Raises ConfigError if the address cannot be used."""
    if config.http is None:
        return None
    from supervisor.ops import http  # here, because most supervisors serve none

    try:
        return http.listen(config.http)
    except http.Unavailable as error:
        raise ConfigError([f"{error}."]) from error


class HttpListener:
    def __init__(
        self, config: RunConfig, inbox: Inbox, queries: HttpQueries, answers: HttpAnswers, events: Events
    ) -> None:
        self._name = config.http_name
        self._inbox = inbox
        self._queries = queries
        self._answers = answers
        self._events = events

    @contextlib.contextmanager
    def serving(self, listening: socket.socket | None) -> Iterator[None]:
        """Serve in a thread meanwhile. `listening` None: serve nothing."""
        if listening is None:
            yield
            return
        from supervisor.ops import http

        has_metrics = importlib.util.find_spec("prometheus_client") is not None
        page = metrics.render if has_metrics else _NO_METRICS
        listener = http.Listener(listening, self._queries, page, self._name)
        self._inbox.watch(self._queries, self._answers.on_asked)
        listener.start()
        self._events.emit("http.listening", address=str(listener.address), port=listener.address.port)
        if not has_metrics:
            self._events.warn(f"/metrics is not served: {_NO_METRICS}")
        try:
            yield
        finally:
            listener.close(_CLOSE_S)
