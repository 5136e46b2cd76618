"""Packs what master and zygote say to each other. Runs in master, zygote and child.

A packet of the control socket is one JSON array, the message's name first, with descriptors beside it.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

import orjson

#: Stands for a control message that is too long for a packet. The message is in the memfd beside it.
IN_MEMFD: Final = b"memfd"
#: The zygote inherits its control socket at this number.
CONTROL_FD: Final = 3
#: A child writes Python stacks to this descriptor. The file belongs to the master and outlives the child.
STACKS_FD: Final = 4
#: Upper bounds of the JSON schema of a handler's data, and of all that a zygote reports.
SCHEMA_BYTES: Final = 16 * 1024
MOST_SCHEMAS_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Boot:
    """The first message: what to import and how children run."""

    handlers: str
    workdir: str
    jobs_per_child: int
    on_error: str
    memory_limit_bytes: int  # for handlers without a limit of their own; 0: none
    open_files: int  # the children's limit; the master's own is higher
    workdir_limit_bytes: int = 0  # per file that a job writes; 0: none
    sandbox: str = "basic"  # level of handlers without a level of their own
    readable: list[str] = field(default_factory=list)  # paths added to the default list under strict
    hidden: list[str] = field(default_factory=list)  # paths that stay unreadable under strict, wherever they lie
    child_user: list[int] = field(default_factory=list)  # uid and gid; empty: the level decides
    directory: str = ""  # entered before anything is imported; empty: stay
    held_back: list[str] = field(default_factory=list)  # names of variables that handlers do not get
    terminal: str = ""  # path of the terminal that children get as stdin, stdout and stderr; empty: none
    release: str = ""  # empty: the git commit, if there is one


class Spawn(NamedTuple):
    """Fork child number `child`. Four descriptors come along: the child's ends of `jobs` and `talk`, the pipe for its
    output, and the file for its stacks.
    """

    child: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The handlers are imported.

    `handlers`: name -> settings (`HandlerSettings` as a dict). `threads`, `descriptors`: what the import left running
    and open, in words. `before_fork`: True if a hook of the handlers runs before each fork. `sandbox`: each part of the
    sandbox, with "on" or the reason why it is not. `files`: the files that the handlers were loaded from.
    `recurrences`: name -> queue, rhythm and options of the recurring job that a handler declares. `release`: the name
    of the code, empty if it has none. `schemas`: shape -> the JSON schema of such data, within the bounds above.
    """

    handlers: dict[str, dict[str, Any]]
    threads: list[str]
    descriptors: list[str]
    before_fork: bool = False
    sandbox: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    recurrences: dict[str, dict[str, Any]] = field(default_factory=dict)
    release: str = ""
    schemas: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BootFailed:
    """The handlers cannot be imported, and the zygote exits. `files`: those loaded so far, and those that the error
    names.
    """

    message: str
    traceback: str
    files: list[str] = field(default_factory=list)


class Spawned(NamedTuple):
    """The child is forked. Its pidfd comes along, opened right after the fork."""

    child: int
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The fork failed. `traceback`: of a hook of the handlers; empty: the kernel refused the fork."""

    child: int
    message: str
    traceback: str = ""


class Reaped(NamedTuple):
    """A child has ended, and nothing is left of its process tree. `status` is wait(2)'s."""

    child: int
    pid: int
    status: int
    cpu_s: float
    max_rss_bytes: int


Control = Boot | Spawn | Ready | BootFailed | Spawned | SpawnFailed | Reaped
_CONTROL: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (Boot, Spawn, Ready, BootFailed, Spawned, SpawnFailed, Reaped)
}


def pack_control(message: Control) -> bytes:
    # Messages about one child are tuples: the zygote makes them between two forks, where each touched page is copied.
    values = message if isinstance(message, tuple) else [getattr(message, field.name) for field in fields(message)]
    return orjson.dumps((type(message).__name__, *values))


def unpack_control(packet: bytes) -> Control:
    """Raises ValueError or TypeError for anything that is no message."""
    name, *values = orjson.loads(packet)
    if name not in _CONTROL:
        raise ValueError(f"no message of the control socket: {name!r:.100}")
    message: Control = _CONTROL[name](*values)
    return message
