"""Reads all results that a job's parents have left for it, some at a time. Runs in children. No I/O."""

from collections.abc import Callable
from typing import Any, Final

import orjson

from supervisor.engine.model.errors import JobFailed
from supervisor.engine.model.jobs import ParentResult
from supervisor.messages import MOST_RESULTS, ResultsPage

#: Large results come one or two in a packet, small ones by dozens: the first question is for few.
_FIRST: Final = 8


def read_all(ask: Callable[[int, int], ResultsPage]) -> dict[str, Any]:
    """Return the results by jid, in the order of the parents. `ask(first, most)` blocks."""
    results: dict[str, Any] = {}
    first, most, total = 0, _FIRST, 1
    while first < total:
        page = ask(first, most)
        results.update((each.jid, _value_of(each)) for each in page.results)
        n = len(page.results)
        first, total = first + n, page.total if n else 0
        most = min(MOST_RESULTS, 2 * most) if n == most else max(1, n)
    return results


def _value_of(parent: ParentResult) -> Any:
    if parent.failure is not None:
        return JobFailed(parent.jid, *parent.failure)
    return None if parent.result is None else orjson.loads(parent.result)
