"""Tells a shard which recurring jobs the handlers declare, once for each release of the code. Runs in the master.

No I/O. A recurring job lies in the shard of its jid, so all others are told that its klass does not recur there. One
that cannot be declared is told to none: it may be a guest in the first shard.
The release that was told last decides, so nothing is told again later. A Redis that has forgotten the worker may have
lost its data: it is told only of what no release has declared there.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from supervisor import clock
from supervisor.engine.commands import recurrences
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.recurring import Declared, declared
from supervisor.engine.model.shards import shard_of
from supervisor.engine.worker.exchange import Part, Refused
from supervisor.engine.worker.identity import Identity
from supervisor.master.redis.demand import Demand
from supervisor.master.redis.speaker import Speaker
from supervisor.ops.events import Events

_AGAIN_S: Final = 1.0


class _Release(NamedTuple):
    klasses: frozenset[str]
    recurrences: Mapping[str, dict[str, Any]]  # of those that recur in this shard
    shards: int = 1


class Declaring(Speaker):
    def __init__(
        self, identity: Identity, demand: Demand, events: Events, shard: int = 0, shards: Callable[[], int] = lambda: 1
    ) -> None:
        """`shards()` returns how many shards the namespace has by now."""
        self._identity = identity
        self._shard = shard
        self._shards = shards
        self._demand = demand
        self._events = events
        self._seen: Collection[str] = ()  # the klasses at the last look
        self._told = _Release(frozenset(), {})
        self._told_by = ""  # the worker's name then
        self._again_at = 0.0

    def parts(self, now_at: float) -> Sequence[Part]:
        klasses, worker, shards = self._demand.klasses, self._identity.name, self._shards()
        is_same_worker = worker == self._told_by and shards == self._told.shards
        if (klasses is self._seen and is_same_worker) or not klasses or now_at < self._again_at:
            return ()
        self._seen = klasses
        here = {
            klass: declaration
            for klass, declaration in self._demand.recurrences.items()
            if shard_of(klass, shards) == self._shard
        }
        others = self._demand.recurrences.keys() - here.keys()
        kept = {klass for klass in others if _declared(klass, self._demand.recurrences[klass], shards)[0] is None}
        release = _Release(frozenset(klasses) - kept, here, shards)
        is_same_release = release == self._told
        if is_same_release and is_same_worker:
            return ()  # another zygote with the same code
        self._told, self._told_by = release, worker
        return self._parts_of(release, only_missing=is_same_release)

    def _parts_of(self, release: _Release, only_missing: bool) -> Sequence[Part]:
        plain = sorted(release.klasses - release.recurrences.keys())
        commands = recurrences.declarations(
            plain, list(self._checked(release.recurrences, release.shards)), only_missing
        )
        lost = partial(self._on_lost, release if only_missing else _Release(frozenset(), {}))
        refused: dict[str, Refused] = {"REFUSED": self._on_refused, "SHARDED": partial(self._on_moving, lost)}
        return [Part(command, self._on_declared, refused, lost=lost) for command in commands]

    def _checked(self, recurrences: Mapping[str, dict[str, Any]], shards: int) -> Iterator[Declared]:
        """Leave out what cannot be put, like one of several shards whose jobs have their limit in another one."""
        for klass, declaration in recurrences.items():
            one, why_not = _declared(klass, declaration, shards)
            if one is not None:
                yield one
            else:
                self._events.warn(f"the recurring job that {klass} declares is not put: {why_not}")

    def _on_declared(self, answer: tuple[list[str], list[str]]) -> None:
        put, removed = answer
        if put or removed:
            self._events.emit("recurring.declared", put=put, removed=removed)

    def _on_refused(self, message: str) -> None:
        self._events.warn(f"recurring jobs that handlers declare are not put: {message}")

    def _on_moving(self, lost: Callable[[], None], _message: str) -> None:
        """Jobs of this shard are being moved."""
        self._again_at = clock.monotonic() + _AGAIN_S
        lost()

    def _on_lost(self, told: _Release) -> None:
        self._told, self._told_by = told, ""


def _declared(klass: str, declaration: dict[str, Any], shards: int) -> tuple[Declared | None, str]:
    """Return what a handler declares; or None, and why it cannot be put."""
    try:
        one = declared(klass, declaration, clock.unix())
        if shards > 1:
            one.recurrence.tied()
    except (TypeError, ValueError, LeaseholdError) as error:
        return None, str(error)
    return one, ""
