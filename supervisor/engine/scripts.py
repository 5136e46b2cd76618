"""Runs in every process that speaks to Redis. Owns: the texts of the Lua scripts, and what they need of a
server. Must not: do I/O beyond reading them.

A line `--- @include name` stands for lua/include/name.lua; each is put in once, where it is first asked for.
"""

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

from supervisor.engine.errors import StoreUnavailable

_INCLUDE = re.compile(r"^--- @include (\w+)\n", re.MULTILINE)
_LUA = files("supervisor.engine.lua")


@dataclass(frozen=True, slots=True)
class Script:
    """A script as Redis gets it: SCRIPT LOAD takes the text, EVALSHA the sha."""

    name: str
    text: str
    sha: str

    @property
    def reads_only(self) -> bool:
        """Whether it changes nothing."""
        return self.text.startswith("#!lua flags=no-writes\n")


def source(name: str) -> str:
    """The file of one verb as it is written."""
    return (_LUA / f"{name}.lua").read_text(encoding="utf-8")


def _resolve(text: str, seen: set[str]) -> str:
    def included(found: re.Match[str]) -> str:
        name = found[1]
        if name in seen:
            return ""
        seen.add(name)
        return _resolve((_LUA / "include" / f"{name}.lua").read_text(encoding="utf-8"), seen)

    return _INCLUDE.sub(included, text)


def load(name: str) -> Script:
    """One verb with its includes put in."""
    text = _resolve(source(name), set())
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


PUT = load("put")
LEASE = load("lease")
SETTLE = load("settle")
RENEW = load("renew")
RESUME = load("resume")
SWEEP = load("sweep")
DEREGISTER = load("deregister")
TELL = load("tell")
JOB = load("job")
FAILED = load("failed")
COUNTS = load("counts")
TIMING = load("timing")

ALL = (PUT, LEASE, SETTLE, RENEW, RESUME, SWEEP, DEREGISTER, TELL, JOB, FAILED, COUNTS, TIMING)


def check_server(info: bytes) -> str:
    """What the server calls itself, from its reply to INFO server. Raises StoreUnavailable if it is too old for the
    scripts: they need `#!lua flags=`, so Redis 7.0 or Valkey 7.2 (which reports itself as Redis 7.2.4).
    """
    found = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    name = found.get("server_name", "redis")
    version = found.get(f"{name}_version", found["redis_version"])
    if int(found["redis_version"].split(".")[0]) < 7:
        raise StoreUnavailable(f"the server is {name} {version}; Leasehold needs Redis >= 7.0 or Valkey >= 7.2")
    return f"{name} {version}"
