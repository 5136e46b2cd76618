"""Reads what a job's parents have left for it. Runs in masters, and in tests of applications. Does no I/O.

By plain commands, because Redis hashes each byte that a script gets: first the list of the parents, and behind that
what some of them have left. Both commands answer what is not there as nothing, whatever its type.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from supervisor.engine.commands.command import Argument, Command
from supervisor.engine.commands.routes import to
from supervisor.engine.model.jobs import ParentResult
from supervisor.engine.model.scripts import Script

_MGET: Final = Script("mget", "#!lua flags=no-writes\n")  # a stand-in for messages; MGET is no script
#: The keys that may have what one parent has left: its result or failure, and those of one that was deleted.
_PLACES: Final = ("result:", "keptresult:", "failure:", "keptfailure:")


class ParentResults(NamedTuple):
    """Some of the results that a job finds, in the order of its parents, and the number of all."""

    total: int
    results: list[ParentResult]


def read(jid: str, first: int, most: int) -> Command[ParentResults]:
    """Read what the parents from `first` on have left for a job, at most `most` of them."""

    def behind(prefix: str, reply: list[Any]) -> _LeftByParents:
        return _LeftByParents(prefix, reply, first, most)

    return _Reading(_MGET, (jid, first, most), ParentResults._make, behind, to(jid, lambda answer: not answer.total))


class _Reading(Command[ParentResults]):
    def wire(self, prefix: str, *_known: str) -> tuple[Argument, ...]:
        jid = self.args[0]
        assert isinstance(jid, str)
        return "MGET", f"{prefix}parents:{jid}"


class _LeftByParents:
    """Turns the reply, the list of the parents, into what they have left."""

    def __init__(self, prefix: str, reply: list[Any], first: int, most: int) -> None:
        self._reply = reply
        parents = reply[0].decode(errors="replace").split("\n") if reply[0] else []
        reply[:] = [len(parents), []]
        self._parents = parents[first : first + most]
        keys = [f"{prefix}{place}{jid}" for jid in self._parents for place in _PLACES]
        self.commands: Sequence[tuple[Any, ...]] = [("MGET", *keys)] if keys else ()

    def fill(self, replies: Sequence[Any]) -> None:
        for jid, at in zip(self._parents, range(0, len(replies[0]), len(_PLACES)), strict=True):
            self._reply[1].append(_parsed(jid, *replies[0][at : at + len(_PLACES)]))


def _parsed(jid: str, *left: bytes | None) -> ParentResult:
    result, kept_result, failure, kept_failure = left
    if (known := result or kept_result) is not None:
        return ParentResult(jid, known)
    why = failure or kept_failure
    return ParentResult(jid, failure=None if why is None else _group_and_message(why))


def _group_and_message(raw: bytes) -> tuple[str, str]:
    try:
        failure: Any = orjson.loads(raw)
        return str(failure["group"]), str(failure["message"])
    except (ValueError, TypeError, KeyError):
        return "unknown", "what Redis has of the failure is no JSON of ours"
