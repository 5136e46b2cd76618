"""Runs in every process that speaks to Redis. Owns: the names of keys, and what a name may be. Must not: do I/O.

The scripts derive most keys themselves (see lua/README.md); here are only those that Python uses directly.
"""

import unicodedata
from dataclasses import dataclass

NAME_BYTES = 64


#: A group that was made of a queue's name (failed-retries-<queue>) is longer than a given one may be.
GROUP_BYTES = 80


def checked_name(argument: str, value: object, most_bytes: int = NAME_BYTES) -> str:
    """The value, if it can name a queue, klass, worker, jid or group: 1 to 64 bytes of UTF-8, no control characters.

    Raises TypeError or ValueError naming the argument.
    """
    if isinstance(value, str) and value.isascii() and value.isprintable() and 1 <= len(value) <= most_bytes:
        return value  # as nearly all are
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


@dataclass(frozen=True, slots=True)
class Namespace:
    """Everything that shares a prefix, and with it a Cluster slot, a token counter and a configuration."""

    name: str

    def __post_init__(self) -> None:
        checked_name("namespace", self.name)
        if set(self.name) & set("{}*?[]\\"):
            raise ValueError(f"namespace must not contain any of {{}}*?[]\\: {self.name!r}")

    @property
    def prefix(self) -> str:
        """What every key begins with; KEYS[1] of every script."""
        return f"{{{self.name}}}:"

    def bell(self, queue: str) -> str:
        """The list that a worker without work waits on; one token lies in it when there is something to lease."""
        return f"{self.prefix}bell:{queue}"

    def incoming(self, queue: str) -> str:
        """The list that any program may push jobs to; the next lease of the queue takes them, oldest first."""
        return f"{self.prefix}in:{queue}"

    def mail(self, worker: str) -> str:
        """The list of hints for one worker, oldest first."""
        return f"{self.prefix}mail:{worker}"

    def answer(self, question: str) -> str:
        """The list in which whoever has asked workers something finds their answers."""
        return f"{self.prefix}answer:{question}"

    def ended(self, jid: str) -> str:
        """The list in which whoever waits for a job finds a token when it has ended."""
        return f"{self.prefix}ended:{jid}"
