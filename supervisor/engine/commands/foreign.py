"""Looks at the queues of another program in the same database, before doors lead there. Runs in commands.

Must not do I/O, nor load a pickle: its first byte tells it. Judges entries as lua/include/door_entries.lua does, which
decides when they are taken. Reads a bounded number of keys and entries.
"""

import base64
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from supervisor.engine.commands.command import Argument, Command
from supervisor.engine.commands.steps import Steps
from supervisor.engine.model.doors import FORMATS
from supervisor.engine.model.keys import NAME_BYTES
from supervisor.engine.model.scripts import Script

_RAW: Final = Script("look", "#!lua flags=no-writes\n")  # a stand-in for messages, as no script is called
#: Entries read of each list, the next ones to be taken, in pages: one page at least, and no other after so many bytes.
_SAMPLE: Final = 100
_PAGE: Final = 10
_MOST_BYTES: Final = 1024 * 1024
MOST_QUEUES: Final = 100
#: Pages of 1,000 keys in which Celery's bindings are looked for.
_MOST_PAGES: Final = 1000
_PICKLED: Final = b"\x80"
_BETWEEN: Final = "\x06\x16"  # in Celery's bindings
_OF_WORKERS: Final = re.compile(r"celeryev(\..*)?|.*\.pidbox")  # where Celery's workers tell each other what they do
_PICKLE: Final = "it is pickled, which is never loaded"
_CALLBACKS: Final = "callbacks, chains and chords are for Celery's own worker"
_NO_BODY: Final = "it has no body in base64"
#: How the JSON of a body of Celery ends that has none of these, as PLAIN_ENDS in lua/include/door_entries.lua.
_PLAIN_ENDS: Final = (
    b'"callbacks": null, "errbacks": null, "chain": null, "chord": null}]',
    b'"callbacks":null,"errbacks":null,"chain":null,"chord":null}]',
    b", {}]",
    b",{}]",
)
_HOOKS: Final = "callbacks and webhooks are for RQ's own worker"
#: Fields of a job of RQ that only its own worker heeds, and why a door does not take it.
_OF_RQ_WORKERS: Final = {
    "success_callback_name": _HOOKS, "failure_callback_name": _HOOKS, "stopped_callback_name": _HOOKS,
    "webhooks": _HOOKS,
    "repeats_left": "repeats are for RQ's own worker", "rate_limit_key": "rate limits are for RQ's own worker",
}  # fmt: skip
_UNSET: Final = (None, b"", b"0")
#: Entries of more bytes are too large for a door, as in lua/include/entries.lua.
_LARGEST: Final = 1024 * 1024
_TOO_LARGE: Final = "it is too large: a door takes entries of up to 1 MiB"
#: What waits elsewhere.
_HELD: Final = "that its own workers hold and will finish, so that no door takes them"
_WHEN_DUE: Final = "from which a door takes those of its queue when they are due"
_DEAD: Final = "which no door takes"


class _Raw(Command[Any]):
    def wire(self, prefix: str, *_known: str) -> tuple[Argument, ...]:
        return self.args


def _raw(*words: Argument) -> Command[Any]:
    return _Raw(_RAW, words, lambda reply: reply)


class _Said(NamedTuple):
    """The word of one entry: the name of its task. `problem`: why a door would not take it."""

    name: str | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ForeignQueue:
    """A queue of another program. `names`, `problems`: how many of the `looked_at` entries have each.

    `would_run`: the names of those without a problem.
    """

    queue: str
    list: str
    waiting: int
    looked_at: int
    names: Mapping[str, int]
    would_run: Mapping[str, int]
    problems: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ForeignSystem:
    """The queues of another program. `notes`: what waits elsewhere, and what was not looked at."""

    queues: list[ForeignQueue]
    notes: list[str]


def survey(program: str) -> Steps[ForeignSystem]:
    """Look at all queues of one of PROGRAMS."""
    return (yield from PROGRAMS[program]())


def _celery() -> Steps[ForeignSystem]:
    names: set[str] = set()
    cursor = 0
    for _ in range(_MOST_PAGES):
        cursor, keys = yield _raw("SCAN", cursor, "MATCH", "_kombu.binding.*", "COUNT", 1000, "TYPE", "set")
        cursor = int(cursor)
        for key in keys[:MOST_QUEUES]:
            names |= {member.rpartition(_BETWEEN)[2] for member in (yield from _members(key))}
        if cursor == 0:
            break
    if (yield _raw("TYPE", "celery")) == b"list":  # bindings are made anew by each worker and producer
        names.add("celery")
    queues, (first, notes) = [], _first(name for name in names if not _OF_WORKERS.fullmatch(name))
    for name in first:
        lists = [each.format(name) for each in FORMATS["celery"].lists]
        queues.append((yield from _queue(name, lists, _celery_entry)))
    notes += yield from _noted([("unacked", "hash")], f"messages of Celery {_HELD}")
    return ForeignSystem(queues, notes)


def _sidekiq() -> Steps[ForeignSystem]:
    queues, (first, notes) = [], (yield from _registered("queues"))
    for name in first:
        queues.append((yield from _queue(name, [f"queue:{name}"], _sidekiq_entry)))
    for name, of_doors in (("schedule", _WHEN_DUE), ("retry", _WHEN_DUE), ("dead", _DEAD)):
        notes += yield from _noted([(name, "zset")], f"jobs in Sidekiq's set {name}, {of_doors}")
    return ForeignSystem(queues, notes)


def _rq() -> Steps[ForeignSystem]:
    queues, (first, notes) = [], (yield from _registered("rq:queues"))
    names = [key.removeprefix("rq:queue:") for key in first]
    for name, key in zip(names, first, strict=True):
        if why := (yield from _why_not(key, "list")):
            queues.append(_counted(name, key, 0, [_Said(None, why)]))
            continue
        waiting = yield _raw("LLEN", key)
        said = []
        for jid in (yield _raw("LRANGE", key, 0, _PAGE - 1)):
            job = b"rq:job:" + jid
            if why := (yield from _why_not(job, "hash")):
                said.append(_Said(None, why))
            else:
                said.append(_rq_job(*(yield _raw("HMGET", job, "data", *_OF_RQ_WORKERS))))
        queues.append(_counted(name, key, waiting, said))
    scheduled = [(f"rq:scheduled:{name}", "zset") for name in names]
    notes += yield from _noted(scheduled, "scheduled jobs, which a door takes when they are due")
    notes += yield from _noted([(f"rq:wip:{name}", "zset") for name in names], f"jobs of RQ {_HELD}")
    return ForeignSystem(queues, notes)


def _registered(key: str) -> Steps[tuple[list[str], list[str]]]:
    """Return the queues that a set names, those that are looked at, and notes."""
    if why := (yield from _why_not(key, "set")):
        return [], [why]
    return _first((yield from _members(key)))


def _noted(keys: Iterable[tuple[str, str]], what: str) -> Steps[list[str]]:
    """Return notes on how much lies in keys of some types together, and on those of another type."""
    notes, total = [], 0
    for key, wanted in keys:
        if why := (yield from _why_not(key, wanted)):
            notes.append(why)
        else:
            total += yield _raw("HLEN" if wanted == "hash" else "ZCARD", key)
    return [*notes, f"{what}: {total}"] if total else notes


def _members(key: bytes | str) -> Steps[list[str]]:
    """Return a page of the members of a set."""
    _, members = yield _raw("SSCAN", key, 0, "COUNT", 1000)
    return [member.decode(errors="replace") for member in members]


def _why_not(key: bytes | str, wanted: str) -> Steps[str | None]:
    """Return why a key is not what the other program has there; None if it is, or there is none."""
    found = (yield _raw("TYPE", key)).decode()
    name = key.decode(errors="replace") if isinstance(key, bytes) else key
    return None if found in (wanted, "none") else f"the key {name} is a {found}, and no {wanted}"


def _first(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names that are looked at, and notes on the others."""
    found = sorted(names)
    notes = [f"only the first {MOST_QUEUES} of {len(found)} queues are shown"] if len(found) > MOST_QUEUES else []
    return found[:MOST_QUEUES], notes


def _queue(name: str, lists: Sequence[str], judge: Callable[[bytes], _Said]) -> Steps[ForeignQueue]:
    waiting, said, size = 0, [], 0
    for key in lists:
        if why := (yield from _why_not(key, "list")):
            said.append(_Said(None, why))
            continue
        length, looked_at = (yield _raw("LLEN", key)), 0
        waiting += length
        while looked_at < min(length, _SAMPLE) and (size < _MOST_BYTES or not looked_at):
            page = yield _raw("LRANGE", key, -looked_at - _PAGE, -looked_at - 1)
            if not page:
                break  # others have taken them meanwhile
            said += [judge(entry) for entry in reversed(page)]
            looked_at, size = looked_at + len(page), size + sum(map(len, page))
    return _counted(name, lists[0], waiting, said)


def _counted(name: str, key: str, waiting: int, said: list[_Said]) -> ForeignQueue:
    judged = [(each.name, each.problem or _problem_of_name(each.name)) for each in said]
    names = Counter(name for name, _ in judged if name is not None)
    would_run = Counter(name for name, problem in judged if name is not None and problem is None)
    problems = Counter(problem for _, problem in judged if problem is not None)
    return ForeignQueue(name, key, waiting, len(said), names, would_run, problems)


def _problem_of_name(name: str | None) -> str | None:
    return None if name is None or len(name.encode()) <= NAME_BYTES else "its name is too long: it needs a --klass-map"


def _object(text: bytes | str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _celery_entry(entry: bytes) -> _Said:
    if len(entry) > _LARGEST:
        return _Said(None, _TOO_LARGE)
    found = _object(entry)
    headers = found.get("headers") if found else None
    if found is None or not isinstance(headers, dict):
        return _Said(None, _PICKLE if entry[:1] == _PICKLED else "it is no message of Celery")
    name = headers.get("task") if isinstance(headers.get("task"), str) else None
    if name is None or not isinstance(headers.get("id"), str) or not headers["id"]:
        return _Said(name, "it is of message protocol 1: set task_protocol = 2")
    if found.get("content-type") == "application/x-python-serialize":
        return _Said(name, _PICKLE)
    if found.get("content-type") != "application/json":
        return _Said(name, "its content is not JSON")
    if headers.get("compression"):
        return _Said(name, "it is compressed")
    properties = found.get("properties")
    if not isinstance(properties, dict) or properties.get("body_encoding") != "base64":
        return _Said(name, _NO_BODY)
    try:
        body = base64.b64decode(found["body"], validate=True)
        _args, _kwargs, _embed = orjson.loads(body)
    except (KeyError, TypeError, ValueError):
        return _Said(name, _NO_BODY)
    return _Said(name, None if body.endswith(_PLAIN_ENDS) else _CALLBACKS)


def _sidekiq_entry(entry: bytes) -> _Said:
    if len(entry) > _LARGEST:
        return _Said(None, _TOO_LARGE)
    found = _object(entry) or {}
    name = next((found[key] for key in ("wrapped", "class") if isinstance(found.get(key), str)), None)
    jid = found.get("jid")
    if name is None or not isinstance(found.get("args"), list) or not (isinstance(jid, str) and jid):
        return _Said(name, "it is no job of Sidekiq")
    if isinstance(found.get("bid"), str):
        return _Said(name, "batches are for Sidekiq's own worker")
    return _Said(name, "encrypted arguments are for Sidekiq's own worker" if found.get("encrypt") is True else None)


def _rq_job(data: bytes | None, *of_workers: bytes | None) -> _Said:
    """Judge by the first bytes. RQ compresses what its serialiser has made."""
    if data is None:
        return _Said(None)  # the job has gone, and its id is dropped
    if len(data) > _LARGEST:
        return _Said(None, _TOO_LARGE)
    try:
        begin = zlib.decompressobj().decompress(data, 1000)
    except zlib.error:
        begin = data
    if begin[:1] == _PICKLED:
        return _Said(None, _PICKLE)
    named = re.match(rb'\[\s*"([^"]+)"', begin)
    if not named:
        return _Said(None, "it is not JSON")
    why = next(
        (why for why, value in zip(_OF_RQ_WORKERS.values(), of_workers, strict=True) if value not in _UNSET), None
    )
    return _Said(named[1].decode(errors="replace"), why)


PROGRAMS: Final[Mapping[str, Callable[[], Steps[ForeignSystem]]]] = {"celery": _celery, "rq": _rq, "sidekiq": _sidekiq}
