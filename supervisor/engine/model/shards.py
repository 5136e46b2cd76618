"""Says in which shard of a namespace a job lies. Runs in every process that speaks to Redis. Must not do I/O.

A namespace of several shards is as many namespaces of the engine, each with a hash tag of its own, so that a Cluster
can spread them over its primaries. A job lies in the shard that follows from its jid, and a lease in the one that
follows from its token. What must be one atomic step has one key, and so lies in one shard.
"""

import re
from binascii import crc32, crc_hqx
from collections.abc import Iterable
from typing import Final, NamedTuple

from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.keys import NAME_BYTES, checked_name

MOST_SHARDS: Final = 64
#: Each shard draws its tokens from a range of its own. lua/include/layout.lua has the same figure.
_TOKENS: Final = 2**45
#: A jid has at most 64 bytes: 22 of its own, two braces, and the key.
KEY_BYTES: Final = 40
_COUNT: Final = re.compile(r"([0-9]+)(<?)")


def key_of(name: str) -> str:
    """Return from what the shard of a jid, a limit, a unique key or a batch follows.

    Redis does the same with its keys: what stands between the first pair of braces, if anything does, else all of it.
    What no jid has room for, or cannot stand between braces, is stood for by 13 characters.
    """
    first = name.find("{")
    last = name.find("}", first + 1) if first >= 0 else -1
    key = name[first + 1 : last] if last > first + 1 else name
    raw = key.encode()
    if len(raw) <= KEY_BYTES and "{" not in key and "}" not in key:
        return key
    return f"~{crc32(raw):08x}{crc_hqx(raw, 0):04x}"


def shard_of(name: str, shards: int) -> int:
    """Return the shard of a jid, a limit, a unique key or a batch in a namespace of so many shards."""
    return crc_hqx(key_of(name).encode(), 0) % shards


def shard_of_token(token: int) -> int:
    """Return the shard that has granted a lease with this token."""
    return token // _TOKENS


def checked_shards(argument: str, shards: object) -> int:
    """Return a number of shards, 1 to 64. Raises TypeError or ValueError naming the argument."""
    if not isinstance(shards, int) or isinstance(shards, bool):
        raise TypeError(f"{argument} must be an int, not {type(shards).__name__}: {shards!r:.100}")
    if not 1 <= shards <= MOST_SHARDS:
        raise ValueError(f"{argument} must be 1 to {MOST_SHARDS}: {shards}")
    return shards


class ShardCount(NamedTuple):
    """How many shards a namespace has, as the mark of its layout says.

    `has_guests`: shard 0 has jobs whose jids belong to other shards, since the namespace was divided.
    """

    number: int = 1
    has_guests: bool = False


class OtherShards(LeaseholdError):
    """The namespace has another number of shards than the caller knows. Nothing has changed.

    `count`: how many; None while its jobs are being moved.
    """

    def __init__(self, why: str) -> None:
        said = why.partition(" ")[0]
        counted = _COUNT.fullmatch(said)
        self.count = None if counted is None else ShardCount(int(counted[1]), bool(counted[2]))
        if self.count is None:
            before, _, after = said.partition(">")
            moved = (
                "what was left in the first shard is being moved"
                if before == after
                else (f"the namespace is being moved from {before} shards to {after}")
            )
            super().__init__(
                f"{moved}: nothing has changed, try again; if the move was broken off, `leasehold reshard {after}` goes"
                " on with it"
            )
        else:
            super().__init__(f"the namespace has {self.count.number} shards, not as many as this caller knows")


class Tie(NamedTuple):
    """A thing that must be in one step with the job, and its key: they must lie in one shard.

    `kind` and `name`: as lua/guests.lua takes them.
    """

    what: str
    key: str
    kind: str = ""
    name: str = ""


def tied_jid(jid: str, own: bool, ties: Iterable[Tie], most_bytes: int = NAME_BYTES) -> str:
    """Return the jid that lies where all that the job is tied to does. `own`: it was given, and cannot be changed.

    Another jid is cut to `most_bytes` with its key. Raises ValueError if there is none.
    """
    wanted: Tie | None = None
    for tie in (*((Tie("its jid", key_of(jid)),) if own else ()), *ties):
        if wanted is not None and tie.key != wanted.key:
            raise ValueError(
                f"{wanted.what} and {tie.what} may lie in different shards ({wanted.key!r:.100}, {tie.key!r:.100}), and"
                " one step cannot reach both: give both names the same part in braces, like {customer-7}"
            )
        wanted = tie
    if own or wanted is None or key_of(jid) == wanted.key:
        return jid
    end = f"{{{checked_key(f'the key of {wanted.what}', wanted.key)}}}"
    return jid[: most_bytes - len(end.encode())] + end


def checked_key(what: str, key: object) -> str:
    """Return a key that a jid has room for: 1 to 40 bytes without braces. Raises TypeError or ValueError naming it."""
    name = checked_name(what, key, KEY_BYTES)
    if "{" in name or "}" in name:
        raise ValueError(f"{what} must have no braces, which end a key: {name!r:.100}")
    return name
