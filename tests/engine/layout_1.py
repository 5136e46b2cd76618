"""Plays Leasehold 0.1: its own scripts, with arguments as its client sent them.

layout_1.json.xz holds the texts of its 57 scripts (commit de0a2c1), the calls that fill two namespaces with jobs of
every kind in every place, and 138 calls of all scripts. MONITOR recorded all calls from the tests of that commit.
"""

import hashlib
import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

#: The time of the recorded calls, in unix seconds.
NOW = 100_000_000.0
_RECORDED = Path(__file__).with_name("layout_1.json.xz")


@cache
def recorded() -> dict[str, Any]:
    """Return `scripts`, `fills` and `scenes`. Bytes are texts in Latin-1."""
    return json.loads(lzma.decompress(_RECORDED.read_bytes()))


class Leasehold01:
    """A client of 0.1 on a namespace."""

    def __init__(self, redis: Any, namespace: str) -> None:
        self.redis = redis
        self.prefix = f"{{{namespace}}}:"

    def run(self, script: str, *args: object) -> Any:
        """Call a script. Raises redis.ResponseError."""
        text = recorded()["scripts"][script].encode()
        sha = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        if not self.redis.script_exists(sha)[0]:
            self.redis.script_load(text)
        return self.redis.evalsha(sha, 1, self.prefix, *map(_sent, args))

    def fill(self, kind: str) -> None:
        """Fill the namespace: "ready", jobs in every place; "special", jobs with lanes, limits and the like."""
        for verb, *args in recorded()["fills"][kind]:
            if verb == "script":
                self.run(*args)
            else:
                key, *rest = args
                self.redis.execute_command(verb, self.prefix + key, *map(_sent, rest))

    def play(self, scene: str) -> Any:
        """Make the call of a scene. Raises redis.ResponseError."""
        _kind, script, *args = recorded()["scenes"][scene]
        return self.run(script, *args)


def _sent(argument: object) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode("latin-1")
