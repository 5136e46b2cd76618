"""Sentry's events of jobs (extra `sentry`). Runs in zygote and children, for handlers that call `instrument`.

A child cannot tell its own death, nor whether a job that does not fit is `broken` or another release's: `report_deaths`
runs in a process beside the supervisors, which `python -m supervisor.contrib.sentry` starts. Must not fail a job.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

import supervisor
from supervisor.child.around import Ending, around_job
from supervisor.child.hooks import on_exit
from supervisor.child.orders import Retry
from supervisor.engine.model.validation import Duration, in_seconds

try:
    import sentry_sdk
except ImportError as missing:
    raise ImportError("Sentry needs the package sentry-sdk: pip install 'leasehold[sentry]'") from missing

if TYPE_CHECKING:
    from supervisor.child.context import JobContext
    from supervisor.engine.client.event_stream import Event
    from supervisor.engine.client.sync_client import Client

#: The master kills a child that has not exited ten seconds after its last job.
_LONGEST_FLUSH_S: Final = 8.0
_NO_ERRORS: Final = frozenset({"completed", "interrupted", "misfit"})


def instrument(flush: Duration = "2s") -> None:
    """Have each exception of a handler, and each time limit that it hears of, be an event. Call it once, in the
    handlers' package, after `sentry_sdk.init`.

    The event has the tags klass, jid, queue, attempt and outcome. `Retry` and interruptions are no errors. `flush`: how
    long a child waits at most, after its last job, until its events are sent. Raises TypeError or ValueError.
    """
    budget_s = in_seconds("flush", flush)
    if not isinstance(budget_s, int | float) or not 0 <= budget_s <= _LONGEST_FLUSH_S:
        raise ValueError(f"flush={flush!r}: write 0 to {_LONGEST_FLUSH_S:g} seconds: no child lives on for longer")
    around_job(_around)
    on_exit(lambda: sentry_sdk.flush(budget_s))


def _around(job: "JobContext") -> Generator[None, Ending, None]:
    with sentry_sdk.isolation_scope() as scope:
        _tag(scope, job.klass, job.jid, job.queue, job.attempt)
        ending = yield
        error = ending.exception
        if error is not None and ending.outcome not in _NO_ERRORS and not isinstance(error, Retry):
            scope.set_tag("outcome", ending.outcome)
            sentry_sdk.capture_exception(error)


def report_deaths(client: "Client | None" = None) -> None:
    """Have each death of a child, each kill at a time limit, and each `broken` job be an event. Blocks until it is
    interrupted.

    It hears of them from Redis, by `client` (None: `Client()`), from now on. Raises StoreUnavailable.
    """
    if client is None:
        with supervisor.Client() as own:
            report_deaths(own)
        return
    with client.events() as events:
        for event in events:
            if event.name == "job.died":
                _report(client, event, "died")
            elif event.name == "job.failed" and event.fields.get("group") == "broken":
                _report(client, event, "broken")


def _report(client: "Client", event: "Event", outcome: str) -> None:
    job = client.job(event.jid) if event.jid else None
    failure: dict[str, Any] = (job.failure if job else None) or {}
    with sentry_sdk.isolation_scope() as scope:
        attempt = job.failures + job.deaths + job.interruptions if job else event.fields.get("deaths", 1)
        _tag(scope, event.klass or "", event.jid or "", event.queue or "", attempt)
        scope.set_tag("outcome", outcome)
        reason = event.fields.get("reason")
        scope.set_tag("reason", reason)
        scope.set_context("child", {name: failure[name] for name in ("output", "stack") if name in failure})
        scope.fingerprint = ["leasehold", outcome, event.klass or "", str(reason)]
        said = failure.get("message") or event.fields.get("message")
        sentry_sdk.capture_message(said or f"a job of {event.klass} has {outcome}", "error")


def _tag(scope: Any, klass: str, jid: str, queue: str, attempt: int) -> None:
    for name, value in (("klass", klass), ("jid", jid), ("queue", queue), ("attempt", attempt)):
        scope.set_tag(name, value)


if __name__ == "__main__":
    sentry_sdk.init()  # by SENTRY_DSN
    report_deaths()
