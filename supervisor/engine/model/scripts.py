"""Assembles the Lua scripts and checks the server's version. Runs in every process that speaks to Redis.

Must not do I/O beyond reading the script files. A line `--- @include name` is replaced by lua/include/name.lua, once,
at its first mention. An include with the line `--- @module` becomes a table whose functions are defined at the first
call. What follows a line `--- @rest` becomes a function of its own: a call that ends before that line pays for none of
those behind it. A Lua function has at most 200 local variables, and references at most 60 of outer functions.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from supervisor.engine.model.errors import StoreUnavailable

_MODULE = "--- @module\n"
_REST = "--- @rest\n"
_MOST_OUTER = 50  # names that modules which are defined together reference
_NAME = re.compile(r"[A-Za-z_]\w*")
_DECLARED = re.compile(r"^local (?:function )?([\w, ]+)", re.MULTILINE)
_INCLUDE = re.compile(r"^--- @include (\w+)\n", re.MULTILINE)
_LUA = Path(__file__).parents[1] / "lua"


class Script:
    """A script for Redis: SCRIPT LOAD takes its text, EVALSHA its sha.

    The text of a verb is assembled on first use, because most processes need only a few scripts.
    """

    def __init__(self, name: str, text: str | None = None) -> None:
        """Take the text given, or that of the verb."""
        self.name = name
        if text is not None:
            self.text = text

    @cached_property
    def text(self) -> str:
        return _text_of(self.name)

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    @property
    def reads_only(self) -> bool:
        """Return whether the script changes nothing."""
        return self.text.startswith("#!lua flags=no-writes\n")


def source(name: str) -> str:
    """Return the source file of one verb."""
    return (_LUA / f"{name}.lua").read_text(encoding="utf-8")


@cache
def _include(name: str) -> str:
    return (_LUA / "include" / f"{name}.lua").read_text(encoding="utf-8")


@cache
def _module(name: str) -> tuple[str, str]:
    """Return the module's include lines, and the rest of it."""
    body = _include(name)
    return "".join(needed[0] for needed in _INCLUDE.finditer(body)), _INCLUDE.sub("", body).replace(_MODULE, "")


@cache
def _names(text: str) -> frozenset[str]:
    return frozenset(_NAME.findall(text))


def _resolve(text: str, seen: set[str], modules: dict[str, str]) -> str:
    def included(found: re.Match[str]) -> str:
        name = found[1]
        if name in seen:
            return ""
        seen.add(name)
        body = _include(name)
        if _MODULE in body:
            body, modules[name] = _module(name)
        return _resolve(body, seen, modules)

    return _INCLUDE.sub(included, text)


def _definitions(head: str, modules: Mapping[str, str]) -> str:
    """Return the Lua code behind `head` that declares the modules as tables, each filled at its first use.

    Defining a function costs as much as a Redis call, and most calls of a script need few functions. All modules of a
    script can call each other.
    """
    if not modules:
        return ""
    text = _resolve("--- @include modules\n", set(), {})
    text += f"local {', '.join(modules)} = {', '.join('{}' for _ in modules)}\n"
    declared = {name.strip() for names in _DECLARED.findall(head) for name in names.split(",")}
    for group in _groups(modules, declared | modules.keys()):
        bodies = "".join(f"[{name}] = function({name})\n{modules[name]}end,\n" for name in group)
        text += f"modules(function() return {{\n{bodies}}} end, {', '.join(group)})\n"
    return text


def _groups(modules: Mapping[str, str], declared: set[str]) -> Iterator[list[str]]:
    """Yield the names of modules that are defined together. Such a group references only so many declared names."""
    group: list[str] = []
    outer: set[str] = set()
    for name, body in modules.items():
        needed = declared & _names(body)
        if group and len(outer | needed) > _MOST_OUTER:
            yield group
            group, outer = [], set()
        group.append(name)
        outer |= needed
    yield group


def load(name: str) -> Script:
    """Return the script of one verb."""
    return Script(name)


def _text_of(name: str) -> str:
    seen: set[str] = set()
    modules: dict[str, str] = {}
    text = source(name)
    end = max((found.end() for found in _INCLUDE.finditer(text)), default=0)
    head = _resolve(text[:end], seen, modules)
    text = head + _definitions(head, modules) + text[end:]
    return text.replace(_REST, "return (function()\n") + text.count(_REST) * "end)()\n"


PUT = load("put")
MOVE = load("move")
LEASE = load("lease")
SETTLE = load("settle")
RENEW = load("renew")
STREAM = load("stream")
RESUME = load("resume")
SWEEP = load("sweep")
DEREGISTER = load("deregister")
TELL = load("tell")
CANCEL = load("cancel")
FAIL = load("fail")
UNFAIL = load("unfail")
RELEASE = load("release")
SIGNAL = load("signal")
PRIORITY = load("priority")
TAG = load("tag")
TRACK = load("track")
LOG = load("log")
DEPEND = load("depend")
FORGET = load("forget")
RECUR = load("recur")
UNRECUR = load("unrecur")
RECURTAG = load("recurtag")
SPAWN = load("spawn")
JOB = load("job")
DATA = load("data")
FAILED = load("failed")
COUNTS = load("counts")
CONCERNS = load("concerns")
TIMING = load("timing")
NAMES = load("names")
LIST = load("list")
PEEK = load("peek")
TAGGED = load("tagged")
TAGS = load("tags")
TRACKED = load("tracked")
WORKERS = load("workers")
WORKER = load("worker")
STATS = load("stats")
RECENT = load("recent")
COURSE = load("course")
RECURRING = load("recurring")
SETTINGS = load("settings")
CONFIGURE = load("configure")
CHECK = load("check")
LIMIT = load("limit")
UNLIMIT = load("unlimit")
LIMITS = load("limits")
LIMITED = load("limited")
LANE = load("lane")
LANES = load("lanes")
DROP = load("drop")
FIND = load("find")
EACH = load("each")
CANCELLED = load("cancelled")
AUDIT = load("audit")
NOTE = load("note")
UNHEARD = load("unheard")
WHY = load("why")
AWAIT = load("await")
FOLLOW = load("follow")
SERVE = load("serve")
SERVED = load("served")
DESCRIBE = load("describe")
SCHEMAS = load("schemas")
ASK = load("ask")
ASKS = load("asks")
ANSWER = load("answer")
DESIRE = load("desire")
RETIRE = load("retire")
SKILLS = load("skills")
DECLARE = load("declare")
DIVIDE = load("divide")
RESHARD = load("reshard")
PREPARE = load("prepare")
DEPART = load("depart")
ARRIVE = load("arrive")
LEAVE = load("leave")
LAND = load("land")
GUESTS = load("guests")
LAYOUTS = load("layouts")
CONVERT = load("convert")
EXPAND = load("expand")
SCORES = load("scores")
BATCHOPEN = load("batchopen")
BATCHCLOSE = load("batchclose")
BATCHCANCEL = load("batchcancel")
BATCHPAUSE = load("batchpause")
BATCH = load("batch")
BATCHES = load("batches")
DOOR = load("door")
DOORS = load("doors")
DOORLISTS = load("doorlists")
DOORTAKE = load("doortake")

ALL = tuple(script for script in globals().values() if isinstance(script, Script))
#: A master's scripts. It loads these on each connect, and Redis does nothing else meanwhile.
OF_A_WORKER = (
    LEASE,
    SETTLE,
    RENEW,
    STREAM,
    RESUME,
    SWEEP,
    SPAWN,
    DEREGISTER,
    TELL,
    TIMING,
    CONCERNS,
    NAMES,
    SERVED,
    ASKS,
    ANSWER,
    SKILLS,
    DECLARE,
)


@cache
def within_memory(script: Script) -> Script:
    """Return SETTLE or RENEW as a script that a server with full memory refuses, as it does a put."""
    return Script(script.name, script.text.replace("#!lua flags=allow-oom\n", "#!lua\n", 1))


_NEEDED: Final = "Leasehold needs Redis >= 7.0 or Valkey >= 7.2"
#: Servers that say they are a Redis new enough, by the field of INFO that only they have, and why no script runs there.
_OTHERS: Final = {
    "dragonfly_version": ("Dragonfly", "refuses scripts that begin with #!lua, and keys that a call does not name"),
    "garnet_version": ("Garnet", "refuses scripts that begin with #!lua"),
}


def check_server(info: bytes) -> str:
    """Return the server's name and version from its reply to INFO server.

    Raises StoreUnavailable if it is too old, or only resembles Redis. The scripts need `#!lua flags=`: Redis 7.0, or
    Valkey 7.2, which reports itself as Redis 7.2.4.
    """
    found = dict(line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line)
    for field, (name, why) in _OTHERS.items():
        if field in found:
            raise StoreUnavailable(f"the server is {name} {found[field]}, which {why}; {_NEEDED}")
    like = found.get("redis_version", "")
    name = found.get("server_name", "redis")
    version = found.get(f"{name}_version", like)
    number = re.match(r"\d+", like)
    if number is None:
        raise StoreUnavailable(
            f"the server does not say which Redis it is like (redis_version: {like!r:.40}); {_NEEDED}"
        )
    if int(number[0]) < 7:
        raise StoreUnavailable(f"the server is {name} {version}; {_NEEDED}")
    return f"{name} {version}"
