"""Defines a job that is ready to be put. Runs in applications, masters, zygotes and children. Must not do I/O."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson


class JobToPut(dict[str, Any]):
    """A job that is ready to be put: put's arguments by name, with the queue and a jid of its own.

    `handler.job(…)` makes it, and puts nothing. It goes wherever a job is put: `put_many` of its queue, `then` of an
    outcome, `job.put` in a handler. In `depends` it stands for its jid.
    """

    #: True if nobody has given the jid: a job that puts it into its own shard gives it another one.
    draws_jid = False

    @property
    def jid(self) -> str:
        jid: str = self["jid"]
        return jid

    @property
    def queue(self) -> str:
        queue: str = self["queue"]
        return queue

    @property
    def data(self) -> Any:
        """Return the data as the handler's process will decode it. Changing it changes no job."""
        return orjson.loads(orjson.dumps(self["data"]))

    def __reduce__(self) -> tuple[Any, ...]:
        data = self["data"]
        if not isinstance(data, orjson.Fragment):
            return type(self), ({**self},)
        return _with_json, ({**self, "data": None}, orjson.dumps(data))  # a Fragment cannot be pickled

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.jid} {self['klass']} queue={self.queue}>"


def _with_json(arguments: Mapping[str, Any], raw: bytes) -> JobToPut:
    return JobToPut({**arguments, "data": orjson.Fragment(raw)})


def as_jids(parents: object) -> object:
    """Return an iterable of parents with a jid in place of each JobToPut. Anything else is returned unchanged."""
    if isinstance(parents, str | bytes | Mapping) or not isinstance(parents, Iterable):
        return parents
    return [parent.jid if isinstance(parent, JobToPut) else parent for parent in parents]
