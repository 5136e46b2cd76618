"""Validates W3C traceparents and reads the current one. Runs in every process that puts jobs, also in children.

Must not import OpenTelemetry: a program that uses it has imported it already, and no other program pays for it.
"""

import re
import sys
from typing import Any, Final

#: Version, trace, span, flags. Later versions may be longer but begin with these.
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_API: Final = "opentelemetry.trace"


def checked_trace(argument: str, value: object) -> str:
    """Return the value if it is a W3C traceparent. Raises TypeError or ValueError naming the argument."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {type(value).__name__}: {value!r:.100}")
    if not _TRACEPARENT.fullmatch(value):
        raise ValueError(
            f"{argument} must be a W3C traceparent in lower case, 00-<32 hex digits>-<16 hex digits>-<2 hex digits>,"
            f" no id all zeros: {value!r:.100}"
        )
    return value


def current_trace() -> str | None:
    """Return the traceparent of the current OpenTelemetry span, or None without one.

    A span that its sampler has dropped counts, too: its decision holds for what the span causes.
    """
    current_span = getattr(sys.modules.get(_API), "get_current_span", None)  # None also while it is being imported
    return None if current_span is None else trace_of(current_span().get_span_context())


def trace_of(context: Any) -> str | None:
    """Return the traceparent of an OpenTelemetry SpanContext, or None if it is invalid."""
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
