"""Says which jobs the handlers of a package could take. Runs in a process of its own, which `cli/doctor/` starts.

Imports foreign code and runs its validators, so it must not run in a process that holds anything. It calls no handler.
Whatever that code prints goes to stderr.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import orjson

from supervisor.child.context import JobCalls, JobContext
from supervisor.child.description import loaded
from supervisor.child.handler import Handler
from supervisor.child.parameters import WrongShape
from supervisor.messages import JobMessage

Jobs = Iterator[tuple[str, str, bool, bool, bytes]]


def main(root: str) -> None:
    """Write a line to stdout: null, or why the handlers cannot be imported. Then read jobs from stdin, each a line with
    klass, jid, whether the data are bytes or a call, and their length, and behind it the data. At the end write the
    findings.
    """
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    handlers = loaded(root)
    with answer:
        answer.write(orjson.dumps(handlers if isinstance(handlers, str) else None) + b"\n")
        answer.flush()
        if not isinstance(handlers, str):
            answer.write(orjson.dumps(tried(handlers, _jobs(sys.stdin.buffer))))


def _jobs(source: BinaryIO) -> Jobs:
    while head := source.readline():
        klass, jid, is_bytes, is_call, size_bytes = orjson.loads(head)
        yield klass, jid, is_bytes, is_call, source.read(size_bytes)


def tried(handlers: Mapping[str, Handler[..., Any]], jobs: Jobs) -> dict[str, Any]:
    """Return by klass how many jobs there are, how many have data of the wrong shape, and of the first its jid and why.

    A klass without a handler has no number of the latter.
    """
    found: dict[str, Any] = {}
    for klass, jid, is_bytes, is_call, raw in jobs:
        about = found.setdefault(klass, {"jobs": 0, "refused": 0 if klass in handlers else None, "first": None})
        about["jobs"] += 1
        if klass in handlers and (why := refusal(handlers[klass], is_bytes, is_call, raw)) is not None:
            about["refused"] += 1
            about["first"] = about["first"] or (jid, why)
    return found


def refusal(handler: Handler[..., Any], is_bytes: bool, is_call: bool, raw: bytes) -> str | None:
    """Return why a handler cannot take the data of a job. None: it can."""
    message = JobMessage(0, "", "", "", 0, 0, 0, 0, [], None, False, 0.0, is_bytes, raw, is_call=is_call)
    job = JobContext(message, "", JobCalls())
    try:
        job.data  # noqa: B018  decoded first, as a child does
    except ValueError as error:
        return f"the payload is not JSON: {error}"
    try:
        handler.arguments_of(job)
    except WrongShape as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  foreign validators may raise anything
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    main(sys.argv[1])
