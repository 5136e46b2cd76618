"""Looks at the queues of another program in the same database, before doors lead there. Runs in commands.

Must not do I/O, nor load a pickle: its first byte tells it. Judges entries as lua/include/door_entries.lua does, which
decides when they are taken. Reads a bounded number of keys and entries.
"""

import base64
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from supervisor.engine.commands.steps import Steps
from supervisor.engine.commands.writes import Argument, Command
from supervisor.engine.model.keys import NAME_BYTES
from supervisor.engine.model.scripts import Script

_RAW: Final = Script("look", "#!lua flags=no-writes\n")  # a stand-in for messages, as no script is called
#: Entries read of each queue, the next ones to be taken, in pages; no further one after so many bytes.
_SAMPLE: Final = 100
_PAGE: Final = 10
_MOST_BYTES: Final = 1024 * 1024
MOST_QUEUES: Final = 100
#: Pages of 1,000 keys in which Celery's bindings are looked for.
_MOST_PAGES: Final = 1000
_PICKLED: Final = b"\x80"
_BETWEEN: Final = "\x06\x16"  # in Celery's bindings, and between a queue and a priority
_PRIORITIES: Final = ("3", "6", "9")
_OF_WORKERS: Final = re.compile(r"celeryev|.*\.pidbox")  # what Celery's workers tell each other
_PICKLE: Final = "it is pickled, which is never loaded"
_CALLBACKS: Final = "callbacks, chains and chords are for Celery's own worker"


class _Raw(Command[Any]):
    def wire(self, prefix: str) -> tuple[Argument, ...]:
        return self.args


def _raw(*words: Argument) -> Command[Any]:
    return _Raw(_RAW, words, lambda reply: reply)


class _Said(NamedTuple):
    """What an entry says. `problem`: why a door would not take it."""

    name: str | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ForeignQueue:
    """A queue of another program. `names`, `problems`: how many of the `looked_at` entries have each."""

    queue: str
    list: str
    waiting: int
    looked_at: int
    names: Mapping[str, int]
    problems: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ForeignSystem:
    """What there is of another program. `beside`: what waits elsewhere than in queues, and how many."""

    queues: list[ForeignQueue]
    beside: Mapping[str, int]


def survey(program: str) -> Steps[ForeignSystem]:
    """Look at all queues of one of PROGRAMS."""
    return (yield from PROGRAMS[program]())


def _celery() -> Steps[ForeignSystem]:
    names: set[str] = set()
    cursor = 0
    for _ in range(_MOST_PAGES):
        cursor, keys = yield _raw("SCAN", cursor, "MATCH", "_kombu.binding.*", "COUNT", 1000)
        cursor = int(cursor)
        for key in keys[:MOST_QUEUES]:
            _, members = yield _raw("SSCAN", key, 0, "COUNT", 1000)
            names |= {member.decode(errors="replace").rpartition(_BETWEEN)[2] for member in members}
        if cursor == 0:
            break
    if (yield _raw("LLEN", "celery")):  # bindings are made anew by each worker and producer
        names.add("celery")
    queues, beside = [], {}
    for name in sorted(name for name in names if not _OF_WORKERS.fullmatch(name))[:MOST_QUEUES]:
        queues.append((yield from _queue(name, name, _celery_entry)))
        for priority in _PRIORITIES:
            beside[f"{name} with priority {priority}"] = yield _raw("LLEN", f"{name}{_BETWEEN}{priority}")
    beside["taken and not acknowledged"] = yield _raw("HLEN", "unacked")
    return ForeignSystem(queues, {place: count for place, count in beside.items() if count})


def _sidekiq() -> Steps[ForeignSystem]:
    _, members = yield _raw("SSCAN", "queues", 0, "COUNT", 1000)
    queues, beside = [], {}
    for name in sorted(member.decode(errors="replace") for member in members)[:MOST_QUEUES]:
        queues.append((yield from _queue(name, f"queue:{name}", _sidekiq_entry)))
    for name in ("schedule", "retry", "dead"):
        beside[name] = yield _raw("ZCARD", name)
    return ForeignSystem(queues, {place: count for place, count in beside.items() if count})


def _rq() -> Steps[ForeignSystem]:
    _, members = yield _raw("SSCAN", "rq:queues", 0, "COUNT", 1000)
    queues = []
    for key in sorted(member.decode(errors="replace") for member in members)[:MOST_QUEUES]:
        waiting = yield _raw("LLEN", key)
        said = []
        for jid in (yield _raw("LRANGE", key, 0, _PAGE - 1)):
            said.append(_rq_job((yield _raw("HGET", b"rq:job:" + jid, "data"))))
        queues.append(_counted(key.removeprefix("rq:queue:"), key, waiting, said))
    return ForeignSystem(queues, {})


def _queue(name: str, key: str, judge: Callable[[bytes], _Said]) -> Steps[ForeignQueue]:
    waiting = yield _raw("LLEN", key)
    entries: list[bytes] = []
    while len(entries) < min(waiting, _SAMPLE) and sum(map(len, entries)) < _MOST_BYTES:
        page = yield _raw("LRANGE", key, -len(entries) - _PAGE, -len(entries) - 1)
        if not page:
            break  # others have taken them meanwhile
        entries += reversed(page)
    return _counted(name, key, waiting, [judge(entry) for entry in entries])


def _counted(name: str, key: str, waiting: int, said: list[_Said]) -> ForeignQueue:
    names = Counter(each.name for each in said if each.name is not None)
    problems = Counter(problem for each in said if (problem := each.problem or _problem_of_name(each.name)) is not None)
    return ForeignQueue(name, key, waiting, len(said), names, problems)


def _problem_of_name(name: str | None) -> str | None:
    return None if name is None or len(name.encode()) <= NAME_BYTES else "its name is too long: it needs a --klass-map"


def _object(text: bytes | str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _celery_entry(entry: bytes) -> _Said:
    found = _object(entry)
    headers = found.get("headers") if found else None
    if found is None or not isinstance(headers, dict):
        return _Said(None, _PICKLE if entry[:1] == _PICKLED else "it is no message of Celery")
    name = headers.get("task") if isinstance(headers.get("task"), str) else None
    if name is None or not isinstance(headers.get("id"), str):
        return _Said(name, "it is of message protocol 1: set task_protocol = 2")
    if found.get("content-type") == "application/x-python-serialize":
        return _Said(name, _PICKLE)
    if found.get("content-type") != "application/json":
        return _Said(name, "its content is not JSON")
    if headers.get("compression"):
        return _Said(name, "it is compressed")
    try:
        _args, _kwargs, embed = orjson.loads(base64.b64decode(found["body"], validate=True))
    except (KeyError, TypeError, ValueError):
        return _Said(name, "it has no body in base64")
    return _Said(name, _CALLBACKS if not isinstance(embed, dict) or any(embed.values()) else None)


def _sidekiq_entry(entry: bytes) -> _Said:
    found = _object(entry) or {}
    name = next((found[key] for key in ("wrapped", "class") if isinstance(found.get(key), str)), None)
    if name is None or not isinstance(found.get("args"), list) or not isinstance(found.get("jid"), str):
        return _Said(name, "it is no job of Sidekiq")
    return _Said(name)


def _rq_job(data: bytes | None) -> _Said:
    """Judge by the first bytes. RQ compresses what its serialiser has made."""
    if data is None:
        return _Said(None, "its job is gone")
    try:
        begin = zlib.decompressobj().decompress(data, 1000)
    except zlib.error:
        begin = data
    if begin[:1] == _PICKLED:
        return _Said(None, _PICKLE)
    named = re.match(rb'\s*\[\s*"([\w.]+)"', begin)
    return _Said(named[1].decode() if named else None, None if named else "it is not JSON")


PROGRAMS: Final[Mapping[str, Callable[[], Steps[ForeignSystem]]]] = {"celery": _celery, "rq": _rq, "sidekiq": _sidekiq}
