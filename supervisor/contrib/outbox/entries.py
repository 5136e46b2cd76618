"""Entries of the outbox: jobs as columns of a row. Used in applications and in the relay's process. Must not do I/O."""

from typing import Any, Final, TypedDict, Unpack

import orjson

from supervisor.engine.model.new_jobs import NewJob, PutOptions, new_jid, new_job, with_plain_values
from supervisor.engine.model.trace_context import current_trace

#: The keys of an entry's JSON that are no options of put.
_NAMED: Final = ("queue", "klass", "data")


class OutboxEntry(TypedDict):
    """The columns of a new row of `leasehold_outbox`, by name."""

    id: str  # of the row, and of its job unless that has a jid of the caller's
    job: str  # JSON: add's arguments


def entry(queue: str, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> OutboxEntry:
    """Return a job as a row to insert. It is added once the transaction has committed, as `Queue.add` does it.

    So a known `jid` changes nothing, nor does a `unique` key that another job holds. `delay` and `expires` count from
    then. `entry(**handler.job(…))` works, too. Raises TypeError or ValueError naming the argument; data must be JSON.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        raise TypeError("data must be JSON: an outbox cannot keep bytes")
    new_job("add", queue, klass, data, options)  # a bad one is refused here, and not in the relay
    row = new_jid()
    kept = {"jid": row, **with_plain_values(options)}
    trace = current_trace()
    if trace is not None:
        kept.setdefault("trace", trace)
    return OutboxEntry(id=row, job=orjson.dumps({"queue": queue, "klass": klass, "data": data, **kept}).decode())


def job_of(job: str) -> NewJob:
    """Return the job of an entry, ready to be added. Raises TypeError or ValueError saying what is wrong with it."""
    arguments = orjson.loads(job)
    if not isinstance(arguments, dict) or not {"queue", "klass", "jid"} <= arguments.keys():
        raise ValueError("job must be an object with queue, klass and jid")
    options = {name: value for name, value in arguments.items() if name not in _NAMED}
    return new_job("add", arguments["queue"], arguments["klass"], arguments.get("data"), options)
