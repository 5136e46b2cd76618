"""OpenTelemetry spans of jobs (extra `otel`). Runs in zygote and children, for handlers that call `instrument`.

Owns the span of the running job, and the time that a child waits until its spans are sent. Must not delay or fail a
job: a collector that does not answer harms nothing but its own spans.
"""

import math
import mmap
import socket
import struct
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from supervisor import clock
from supervisor.child.answers import print_line, text_of
from supervisor.child.around import Ending, around_job
from supervisor.child.hooks import on_exit, when_confined
from supervisor.units import parse_duration

try:
    from opentelemetry import context, trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise ImportError("spans need the package opentelemetry-sdk: pip install 'leasehold[otel]'") from missing

if TYPE_CHECKING:
    from supervisor.child.context import JobContext

#: Pause before one child waits again for a collector that has not answered.
_AGAIN_S: Final = 5.0
#: Other children wait for this fraction of the budget: a half.
_IN_COMPANY: Final = 2
_LOOK_S: Final = 0.02
#: The master kills a child that has not exited ten seconds after its last job.
_LONGEST_BUDGET_S: Final = 8.0
_PROPAGATOR: Final = TraceContextTextMapPropagator()


def instrument(
    provider: TracerProvider | Callable[[], TracerProvider] | None = None, flush: float | str = "2s"
) -> None:
    """Have each job be a span, a child of the span in which it was put. Call it once, in the handlers' package.

    `provider`: a TracerProvider; None: the global one; or a function that makes one in each child before its first job,
    because the thread that most providers need does not survive a fork. If it raises, that child has no spans.
    `flush`: how long a child waits at most, after its last job, until its spans are sent. No job is late for it, since
    its outcome is sent before. Raises TypeError or ValueError.
    """
    if provider is not None and not isinstance(provider, TracerProvider) and not callable(provider):
        raise TypeError(f"provider must be a TracerProvider, a function that makes one, or None: {provider!r:.100}")
    spans = _Spans(provider, _checked_budget(flush))
    when_confined(spans.open)
    around_job(spans.around)
    on_exit(spans.flush)


def _checked_budget(flush: float | str) -> float:
    try:
        budget_s = parse_duration(flush) if isinstance(flush, str) else float(flush)
    except (TypeError, ValueError) as error:
        raise ValueError(f"flush={flush!r}: {error}; write seconds, or a duration like '2s'") from error
    if not 0 <= budget_s <= _LONGEST_BUDGET_S:
        raise ValueError(f"flush={flush!r}: write 0 to {_LONGEST_BUDGET_S:g} seconds: no child lives on for longer")
    return budget_s


class _Spans:
    """The spans of one child's jobs."""

    def __init__(self, provider: TracerProvider | Callable[[], TracerProvider] | None, budget_s: float) -> None:
        self._given = provider
        self._collector = _CollectorWait(budget_s)
        self._provider: Any = None
        self._tracer: trace.Tracer = trace.NoOpTracer()
        self._any = False

    def open(self) -> None:
        """Get the tracer, in a new child."""
        try:
            self._provider = self._given() if callable(self._given) else self._given or trace.get_tracer_provider()
            self._tracer = self._provider.get_tracer("leasehold")
        except Exception as error:  # noqa: BLE001  foreign code, which must not fail the jobs
            print_line(f"this child has no spans: {type(error).__name__}: {text_of(error)}")

    def around(self, job: "JobContext") -> Generator[None, Ending, None]:
        """Have a span be current while the handler runs."""
        self._any = True
        nothing = context.Context()  # an earlier job may have left a span current, which is not this job's cause
        cause = _PROPAGATOR.extract({"traceparent": job.trace}, nothing) if job.trace else nothing
        span = self._tracer.start_span(
            f"process {job.klass}", cause, trace.SpanKind.CONSUMER, _attributes(job), record_exception=False
        )
        token = context.attach(trace.set_span_in_context(span, cause))
        ending = yield
        context.detach(token)
        _set_outcome(span, ending)
        span.end()

    def flush(self) -> None:
        """Send the spans of a child that is about to exit. A thread that takes too long ends with the process."""
        force = getattr(self._provider, "force_flush", None)  # the global provider may have none
        if self._any and force is not None and _has_network() and not self._collector.is_over():
            thread = threading.Thread(target=force, args=(math.ceil(self._collector.budget_s * 1000),), daemon=True)
            thread.start()
            self._collector.wait_for(thread)


def _has_network() -> bool:
    """True if this child can reach a network. Without one, waiting for the collector is in vain. Sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("127.0.0.1", 9))
    except OSError:  # EPERM or EACCES of a filter, ENETUNREACH of an empty namespace
        return False
    return True


class _CollectorWait:
    """Decides how long a child waits for its collector. Shared memory connects all children of one zygote.

    A child that waits to exit takes up room for a new one. So while the collector does not answer, few children wait.
    """

    _SHARED: Final = struct.Struct("dd")  # start of the oldest wait, 0: none; when waiting makes sense again

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self._shared = mmap.mmap(-1, self._SHARED.size)

    def is_over(self) -> bool:
        """True if the collector did not answer lately. After the pause one child tries again, alone."""
        _, ill_until_at = self._SHARED.unpack_from(self._shared)
        now_at = clock.monotonic()
        if ill_until_at and now_at >= ill_until_at:
            self._note(0.0, now_at + self.budget_s + _AGAIN_S)
        return bool(now_at < ill_until_at)

    def wait_for(self, thread: threading.Thread) -> None:
        begun_at = clock.monotonic()
        _, ill_before_at = self._SHARED.unpack_from(self._shared)
        while True:
            thread.join(_LOOK_S)
            if not thread.is_alive():
                self._note(0.0, 0.0)
                return
            now_at = clock.monotonic()
            if now_at >= begun_at + self.budget_s:
                self._note(0.0, now_at + _AGAIN_S)
                print_line(
                    f"spans were not sent within {self.budget_s:g} s, and for {_AGAIN_S:g} s no child waits for that"
                )
                return
            oldest_at, ill_until_at = self._SHARED.unpack_from(self._shared)
            others_wait = oldest_at and oldest_at != begun_at and now_at - oldest_at > self.budget_s / _IN_COMPANY
            if not ill_before_at and (ill_until_at or others_wait):
                return
            if not oldest_at:
                self._note(begun_at, ill_until_at)

    def _note(self, oldest_at: float, ill_until_at: float) -> None:
        self._SHARED.pack_into(self._shared, 0, oldest_at, ill_until_at)


def _attributes(job: "JobContext") -> dict[str, str | int | float]:
    return {
        "messaging.system": "leasehold",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": job.queue,
        "messaging.message.id": job.jid,
        "leasehold.jid": job.jid,
        "leasehold.klass": job.klass,
        "leasehold.queue": job.queue,
        "leasehold.attempt": job.attempt,
        "leasehold.wait_s": job.waited_s,
    }


def _set_outcome(span: trace.Span, ending: Ending) -> None:
    """Set outcome and error of the span. Retries and interruptions are no errors unless the job has failed."""
    span.set_attribute("leasehold.outcome", ending.outcome)
    trouble = ending.trouble
    if trouble is None:
        return
    if trouble.traceback is not None:
        kind = "SoftTimeout" if trouble.group == "timeout" else trouble.group or "Exception"
        span.add_event(
            "exception",
            {
                "exception.type": kind, "exception.message": trouble.message, "exception.stacktrace": trouble.traceback
            },
        )  # fmt: skip
        span.set_attribute("error.type", kind)
    elif trouble.message:
        span.set_attribute("leasehold.message", trouble.message)
    if trouble.group is not None:
        span.set_attribute("leasehold.group", trouble.group)
    if trouble.traceback is not None or ending.outcome == "failed":
        span.set_status(trace.StatusCode.ERROR, trouble.message)
