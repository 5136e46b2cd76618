"""Two engines side by side: each a source tree, a server and a player; and the search for a short difference."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from typing import Any, Final

from tests import servers
from tests.engine.beside.calls import Call, Drawing

PLAYER: Final = Path(__file__).with_name("player.py")
#: Attempts to leave calls out of a list that shows a difference.
MOST_CUTS: Final = 400


class Engine:
    """The engine of one source tree. Plays each list of calls in a namespace of its own."""

    def __init__(self, tree: Path, program: str) -> None:
        self._stack = ExitStack()
        self.tree = tree
        self.socket = self._stack.enter_context(servers.running(program))
        self._player = subprocess.Popen(
            [sys.executable, PLAYER, self.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        self._played = 0
        self.used: set[str] = set()

    def begin(self, seed: int, calls: Sequence[Call], *, whole: bool = False) -> None:
        """Start to play a list of calls; `end` returns the replies."""
        self._played += 1
        request = {"namespace": f"n{self._played}", "seed": seed, "calls": calls, "whole": whole}
        assert self._player.stdin
        self._player.stdin.write(json.dumps(request) + "\n")
        self._player.stdin.flush()

    def end(self) -> list[str]:
        assert self._player.stdout
        line = self._player.stdout.readline()
        if not line:
            raise RuntimeError(f"the player of {self.tree} has ended: {self._player.wait()}")
        answer = json.loads(line)
        self.used |= set(answer["used"])
        replies: list[str] = answer["replies"]
        return replies

    def close(self) -> None:
        assert self._player.stdin
        self._player.stdin.close()
        self._player.wait(60)
        self._stack.close()


@contextmanager
def engine_of(tree: Path) -> Iterator[Engine]:
    program = servers.binary()
    assert program, "there is no server"
    engine = Engine(tree, program)
    try:
        yield engine
    finally:
        engine.close()


@dataclass
class Difference:
    """The first call of a list that two engines answer differently, with both replies."""

    calls: list[Call]
    replies: tuple[Any, Any]

    def lines(self) -> list[str]:
        shown = [json.dumps(call, ensure_ascii=False) for call in self.calls]
        parts = list(_differing(*self.replies, ""))
        return [*shown, "", "differ in:", *(f"  {where}: {one}  |  {other}" for where, one, other in parts[:40])]


@dataclass
class Pair:
    """The reference and the candidate."""

    reference: Engine
    candidate: Engine
    played: int = field(default=0, init=False)

    def first_difference(self, seed: int, calls: Sequence[Call], *, whole: bool = False) -> tuple[int, Any] | None:
        """Play a list on both. Return the place of the first differing reply and both replies; None if all agree."""
        for engine in (self.reference, self.candidate):
            engine.begin(seed, calls, whole=whole)
        one, other = self.reference.end(), self.candidate.end()
        bug = next((reply for reply in one if '"raised"' in reply), None)
        if bug:
            raise RuntimeError(f"the reference cannot play this: {json.loads(bug)}")
        self.played += len(calls)
        for place, pair in enumerate(zip(one, other, strict=True)):
            if pair[0] != pair[1]:
                return place, tuple(map(json.loads, pair))
        return None

    def compare(self, seed: int, calls: Sequence[Call]) -> Difference | None:
        """Play a list on both, and cut it down if they differ."""
        found = self.first_difference(seed, calls)
        if found is None:
            return None
        looks = [*calls[: found[0] + 1], {"do": "look"}]
        short = cut_down(looks, lambda some: self.first_difference(seed, some) is not None)
        place, replies = self.first_difference(seed, short, whole=True) or (len(short) - 1, found[1])
        return Difference(short[: place + 1], replies)


def drawn(seed: int, count: int, look_every: int) -> list[Call]:
    return list(Drawing(seed).calls(count, look_every))


def cut_down(calls: list[Call], differs: Callable[[list[Call]], bool]) -> list[Call]:
    """Leave out as many calls as can be, in ever smaller parts, so that the rest still `differs`."""
    size, cuts = max(1, len(calls) // 2), 0
    while cuts < MOST_CUTS:
        first, is_shorter = 0, False
        while first < len(calls) and cuts < MOST_CUTS:
            rest = calls[:first] + calls[first + size :]
            cuts += 1
            if rest and differs(rest):
                calls, is_shorter = rest, True
            else:
                first += size
        if size == 1 and not is_shorter:
            break
        size = max(1, size // 2)
    return calls


def _differing(one: Any, other: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from _differing(one.get(key, "absent"), other.get(key, "absent"), f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other, strict=True)):
            yield from _differing(*pair, f"{where}[{i}]")
    elif one != other:
        yield where or "all", one, other
