"""Names the keys that Python uses, and validates names. Runs in every process that speaks to Redis. Must not do I/O.

The scripts derive most keys themselves; lua/README.md lists them.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from typing import Final

NAME_BYTES = 64


#: A group derived from a queue's name (failed-retries-<queue>) may be longer than one given by a caller.
GROUP_BYTES = 80


def checked_name(argument: str, value: object, most_bytes: int = NAME_BYTES) -> str:
    """Return the value if it can name a queue, klass, worker, jid or group.

    A name has 1 to 64 bytes of UTF-8 and no control characters. Raises TypeError or ValueError naming the argument.
    """
    if isinstance(value, str) and value.isascii() and value.isprintable() and 1 <= len(value) <= most_bytes:
        return value  # the fast path of nearly all names
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {type(value).__name__}: {value!r:.100}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{argument} must be valid Unicode: {value!r:.100}") from None
    if not 1 <= size <= most_bytes:
        raise ValueError(f"{argument} must have 1 to {most_bytes} bytes in UTF-8, not {size}: {value!r:.100}")
    if not value.isprintable() and any(unicodedata.category(c) == "Cc" for c in value):
        raise ValueError(f"{argument} must not contain control characters: {value!r}")
    return value


#: The hash tag of a shard but the first ends like this.
_SHARD: Final = re.compile(r"#[0-9]+\Z")


@dataclass(frozen=True)
class Namespace:
    """A prefix of keys, with its own Cluster slot, token counter and configuration: one of the shards of a name."""

    name: str
    shard: int = 0
    shards: int = 1

    def __post_init__(self) -> None:
        checked_name("namespace", self.name)
        if set(self.name) & set("{}*?[]\\"):
            raise ValueError(f"namespace must not contain any of {{}}*?[]\\: {self.name!r}")
        if _SHARD.search(self.name):
            raise ValueError(f"namespace must not end in # and a number, as shards do: {self.name!r}")

    @cached_property
    def prefix(self) -> str:
        """Return the beginning of every key: KEYS[1] of every script."""
        return f"{{{self.name}#{self.shard}}}:" if self.shard else f"{{{self.name}}}:"

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Return KEYS of every script. The second one says how many shards the caller knows, if they are several."""
        return (self.prefix,) if self.shards == 1 else (self.prefix, f"{self.prefix}{self.shards}")

    def wakeup(self, queue: str) -> str:
        """Return the wake-up key: a list that an idle worker waits on.

        A token in it says that there are jobs to lease.
        """
        return f"{self.prefix}bell:{queue}"

    def incoming(self, queue: str) -> str:
        """Return the list that any program may push jobs to. The next lease of the queue takes them, oldest first."""
        return f"{self.prefix}in:{queue}"

    def mail(self, worker: str) -> str:
        """Return the list of hints for one worker, oldest first."""
        return f"{self.prefix}mail:{worker}"

    def answer(self, question: str) -> str:
        """Return the list in which the sender of a request finds the workers' answers."""
        return f"{self.prefix}answer:{question}"

    def ended(self, jid: str) -> str:
        """Return the list that Job.wait blocks on. A token in it says that the job has ended."""
        return f"{self.prefix}ended:{jid}"

    def stream(self, jid: str) -> str:
        """Return the stream of what the job's handler has streamed."""
        return f"{self.prefix}stream:{jid}"
