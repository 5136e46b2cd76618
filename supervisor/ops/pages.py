"""The page of each HTTP path: code, type and body. Runs in the master, in the HTTP thread.

No I/O. Owns the words of all answers.
"""

import json
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import orjson

#: A loop without a turn for this long counts as standing still.
LIVE_S: Final = 10.0
#: Paths that are answered at once, and paths for which the loop asks Redis.
PROBES: Final = ("/livez", "/readyz")
REPORTS: Final = ("/status", "/metrics")

_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_INDEX: Final = """\
/livez    200 while the master's loop turns, whatever Redis and the jobs do; else 503
/readyz   200 while it can lease jobs; else 503, and why
/status   what the master knows of itself, as JSON
/metrics  the same for Prometheus
"""


class Page(NamedTuple):
    code: int
    body: bytes
    kind: str = _TEXT


INDEX: Final = Page(HTTPStatus.OK, _INDEX.encode())


def liveness(turns: bool, unheard_s: float) -> Page:
    """`turns`: the loop has seen the query. If not, it has been silent for `unheard_s`."""
    if turns:
        return Page(HTTPStatus.OK, b"ok\n")
    if unheard_s < LIVE_S:
        return Page(HTTPStatus.OK, f"busy for {unheard_s:.1f} s\n".encode())
    return refusal(
        "/livez", HTTPStatus.SERVICE_UNAVAILABLE, f"the master's loop stands still: no answer for {unheard_s:.1f} s"
    )


def readiness(able: bool, state: str) -> Page:
    return Page(HTTPStatus.OK if able else HTTPStatus.SERVICE_UNAVAILABLE, f"{state}\n".encode())


def status(answer: Any) -> Page:
    return Page(HTTPStatus.OK, _as_json(answer), _JSON)


def not_answered(path: str, unheard_s: float) -> Page:
    sentence = f"the master's loop has not answered for {unheard_s:.1f} s"
    return refusal(path, HTTPStatus.SERVICE_UNAVAILABLE, sentence)


def not_found(path: str) -> Page:
    *others, last = (*PROBES, *REPORTS)
    sentence = f"there is no {path[:80]!r}; there are {', '.join(others)} and {last}"
    return refusal(path, HTTPStatus.NOT_FOUND, sentence)


def refusal(path: str, code: int, sentence: str) -> Page:
    """Return an error page: JSON for /status, else text."""
    if path == "/status":
        return Page(code, _as_json({"error": sentence}), _JSON)
    return Page(code, f"{sentence}\n".encode("utf-8", "replace"))


def _as_json(answer: Any) -> bytes:
    try:
        return orjson.dumps(answer) + b"\n"
    except TypeError:  # lone surrogates, an int above 64 bits
        return json.dumps(answer, default=str).encode() + b"\n"
