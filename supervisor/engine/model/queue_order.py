"""Resolves a list of queue names and globs into queues, their order and their weights. Runs in every process that
leases.

Must not do I/O: the caller passes the names of the existing queues.
"""

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Final

from supervisor.engine.model.keys import checked_name

#: The orders in which a lease serves several queues.
ORDERS: Final = ("strict", "round-robin", "random", "weighted")
MOST_WEIGHT: Final = 1000
#: The most queues of one lease.
MOST_PATTERNS: Final = 1000

_GLOB = re.compile(r"[*?\[]")
_WEIGHT = re.compile(r"(?P<name>.*):(?P<weight>[-+]?[0-9.]+)", re.DOTALL)


class Queues:
    """A worker's queues: names, globs (`email-*`) and exclusions (`!email-bulk`), served in one of ORDERS. Immutable.

    In the order "weighted" each may end in `:weight`, 1 to 1000 (default 1). Raises TypeError or ValueError naming the
    argument `queues` or `order`.
    """

    __slots__ = ("_excluded", "_excludes", "_globs", "_lines", "_weights", "order", "patterns")

    def __init__(self, patterns: Iterable[str], order: str = "strict") -> None:
        self.order: Final = checked_order(order)
        #: As given, stripped and without duplicates.
        self.patterns: Final = _cleaned(patterns)
        self._lines: list[str] = []  # names and globs, in the order given
        self._globs: dict[str, re.Pattern[str]] = {}
        self._weights: dict[str, int] = {}
        self._excluded: set[str] = set()
        self._excludes: list[re.Pattern[str]] = []
        for pattern in self.patterns:
            if pattern.startswith("!"):
                self._exclude(pattern)
            else:
                self._include(pattern)
        if not self._lines:
            raise ValueError(f"queues only excludes: {_shown(self.patterns)}; name what is to be served, or add '*'")
        if not self._globs and not self.resolve(()):
            raise ValueError(f"queues excludes all it names: {_shown(self.patterns)}; leave one of them in")

    def _include(self, pattern: str) -> None:
        name, weight = _weighed(pattern) if self.order == "weighted" else (pattern, 1)
        checked_name("queues", name)
        if name in self._weights:
            return
        self._weights[name] = weight
        self._lines.append(name)
        if _GLOB.search(name):
            self._globs[name] = re.compile(fnmatch.translate(name))

    def _exclude(self, pattern: str) -> None:
        name = checked_name("queues", pattern[1:].strip())
        if _GLOB.search(name):
            self._excludes.append(re.compile(fnmatch.translate(name)))
        else:
            self._excluded.add(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Queues) and (self.patterns, self.order) == (other.patterns, other.order)

    def __hash__(self) -> int:
        return hash((self.patterns, self.order))

    def __repr__(self) -> str:
        return f"Queues({list(self.patterns)!r}, {self.order!r})"

    @property
    def has_globs(self) -> bool:
        """Return whether the queues depend on which ones exist. If not, resolve(()) is complete."""
        return bool(self._globs)

    def resolve(self, known: Sequence[str]) -> tuple[str, ...]:
        """Return the queues to serve, each once, in the order of the list.

        A name stands where it is listed, whether the queue exists or not. A glob stands for the known queues that match
        it and are not listed by name, in alphabetical order.
        """
        ordered = sorted(set(known)) if self._globs else []
        found: dict[str, None] = {}
        for line in self._lines:
            glob = self._globs.get(line)
            if glob is None:
                found[line] = None
            else:
                # A queue listed by name keeps its own place; otherwise "*" could not be followed by a last queue.
                found.update((name, None) for name in ordered if name not in self._weights and glob.match(name))
        return tuple(name for name in found if not self._is_excluded(name))

    def weights(self, names: Iterable[str]) -> dict[str, int] | None:
        """Return the weights of these queues, or None unless the order is "weighted"."""
        return {name: self.weight(name) for name in names} if self.order == "weighted" else None

    def weight(self, name: str) -> int:
        """Return the queue's own weight, else that of the first glob that matches it, else 1."""
        if name in self._weights and name not in self._globs:
            return self._weights[name]
        return next((self._weights[line] for line, glob in self._globs.items() if glob.match(name)), 1)

    def _is_excluded(self, name: str) -> bool:
        return name in self._excluded or any(glob.match(name) for glob in self._excludes)


def checked_order(order: object) -> str:
    """Return the value if it is one of ORDERS. Raises TypeError or ValueError naming `order`."""
    if not isinstance(order, str):
        raise TypeError(f"order must be a str, not {type(order).__name__}: {order!r:.100}")
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r:.100}")
    return order


def _cleaned(patterns: Iterable[str]) -> tuple[str, ...]:
    if isinstance(patterns, str | bytes) or not isinstance(patterns, Iterable):
        raise TypeError(f"queues must be a list of names, not {type(patterns).__name__}: {patterns!r:.100}")
    cleaned: dict[str, None] = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"queues must hold str, not {type(pattern).__name__}: {pattern!r:.100}")
        cleaned["!" + pattern.strip()[1:].strip() if pattern.strip()[:1] == "!" else pattern.strip()] = None
    if not 1 <= len(cleaned) <= MOST_PATTERNS:
        raise ValueError(f"queues must be 1 to {MOST_PATTERNS} names, not {len(cleaned)}")
    return tuple(cleaned)


def _weighed(pattern: str) -> tuple[str, int]:
    """Split off the weight. A name may contain colons: only a number after the last one is a weight."""
    match = _WEIGHT.fullmatch(pattern)
    if match is None:
        return pattern, 1
    text = match["weight"]
    if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= MOST_WEIGHT:
        raise ValueError(
            f"queues must have weights from 1 to {MOST_WEIGHT}, whole numbers, not {text}: {pattern!r:.100};"
            " a name that ends like one needs its weight behind it, as in 'name:7:1'"
        )
    return match["name"].strip(), int(text)


def _shown(patterns: Sequence[str]) -> str:
    return f"{', '.join(patterns):.100}"
