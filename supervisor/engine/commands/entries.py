"""Reads what other programs have pushed to `in:<queue>`, before a lease makes jobs of it. Runs in commands.

Must not do I/O. lua/include/entries.lua decides what an entry means.
"""

from typing import Final, NamedTuple

import orjson

from supervisor.engine.commands.check import next_keys
from supervisor.engine.commands.command import Argument, Command
from supervisor.engine.commands.steps import Steps
from supervisor.engine.model.entries import payload_of
from supervisor.engine.model.scripts import Script

_LISTS: Final = b"in:"
_LRANGE: Final = Script("lrange", "#!lua flags=no-writes\n")  # a stand-in for messages, as LRANGE is no script
#: Entries in one page. Each has at most 1 MiB, or fails as `broken`.
_PAGE: Final = 100


class Entry(NamedTuple):
    """An entry as the job that it will be. `klass` None: it names none. `jid` None: it will get one."""

    klass: str | None
    jid: str | None
    raw: bytes
    is_bytes: bool


class _EntryPage(Command[list[Entry]]):
    def wire(self, prefix: str, *_known: str) -> tuple[Argument, ...]:
        name, offset = self.args
        key = prefix.encode() + _LISTS + bytes(name)  # type: ignore[arg-type]  # a name is bytes
        return ("LRANGE", key, -int(offset) - _PAGE, -int(offset) - 1)


def page(queue: bytes, offset: int) -> Command[list[Entry]]:
    """Read up to 100 entries of a queue, the oldest first, behind the `offset` oldest ones."""
    return _EntryPage(_LRANGE, (queue, offset), lambda reply: [_read(entry) for entry in reversed(reply)])


def queues() -> Steps[set[bytes]]:
    """Look for all queues with entries, also those that exist only as such a list."""
    found: set[bytes] = set()
    cursor, left = 0, True
    while left:
        cursor, keys = yield next_keys(cursor, _LISTS)
        found |= {key.partition(b"}:" + _LISTS)[2] for key in keys}
        left = cursor != 0
    return found


def _read(entry: bytes) -> Entry:
    try:
        said = orjson.loads(entry)
    except orjson.JSONDecodeError:
        said = None
    klass = said.get("klass") if isinstance(said, dict) else None
    if not isinstance(klass, str):
        return Entry(None, None, entry, True)
    jid = said.get("jid")
    payload = payload_of(b"entry", entry)
    return Entry(klass, jid if isinstance(jid, str) else None, payload.raw, payload.is_bytes)
