"""The replies of an engine to random calls, as digests, for tests that cannot have that engine beside theirs.

`python -m tests.engine.beside record .` writes them anew: after a change of behaviour that is wanted.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.engine.beside.calls import Call
from tests.engine.beside.engines import Engine, drawn

FILE: Final = Path(__file__).with_name("recorded.json")
SEEDS: Final = range(12)
LENGTH: Final = 150
LOOK_EVERY: Final = 30
_DIGITS = 5  # of the digest of one reply


@dataclass(frozen=True)
class Departure:
    """The first call of a seed that was answered otherwise when the replies were recorded."""

    seed: int
    number: int
    call: Call
    reply: str


def calls_of(seed: int) -> list[Call]:
    return drawn(seed, LENGTH, LOOK_EVERY)


def record(engine: Engine) -> None:
    """Store the digests of an engine's replies."""
    replies = {seed: "".join(map(_digest, _replies(engine, seed))) for seed in SEEDS}
    FILE.write_text(json.dumps({"replies": replies}, indent=1) + "\n")


def departure(engine: Engine, seed: int) -> Departure | None:
    """Play the calls of a seed, and return the first reply that is not the recorded one."""
    text: str = json.loads(FILE.read_text())["replies"][str(seed)]
    wanted = [text[first : first + _DIGITS] for first in range(0, len(text), _DIGITS)]
    for number, (call, reply, digest) in enumerate(zip(calls_of(seed), _replies(engine, seed), wanted, strict=True)):
        if _digest(reply) != digest:
            return Departure(seed, number, call, reply)
    return None


def _replies(engine: Engine, seed: int) -> Iterable[str]:
    engine.begin(seed, calls_of(seed))
    return engine.end()


def _digest(reply: str) -> str:
    return hashlib.sha1(reply.encode()).hexdigest()[:_DIGITS]
