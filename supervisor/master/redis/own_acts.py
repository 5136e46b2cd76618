"""Tells Redis what this supervisor does because of a signal, for the record of acts. Runs in the master. Does no I/O.

Requests of operators through Redis are recorded there already.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from supervisor.engine.commands import audit
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.identity import Identity
from supervisor.master.model.signals import By
from supervisor.master.redis.speaker import Speaker

#: Acts that are kept while Redis is away, the newest ones.
_MOST: Final = 20


class _SignalledAct(NamedTuple):
    act: str
    by: str
    value: Mapping[str, Any] | None


class OwnActs(Speaker):
    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._untold: deque[_SignalledAct] = deque(maxlen=_MOST)

    def note(self, act: str, by: By, value: Mapping[str, Any] | None = None) -> None:
        """Record an act with the next exchange, if a signal is its origin."""
        if by.is_signal:
            self._untold.append(_SignalledAct(act, str(by), value))

    def parts(self, now_at: float) -> Sequence[Part]:
        untold = list(self._untold)
        self._untold.clear()
        worker = self._identity.name
        return [
            Part(audit.note(worker, one.by, one.act, one.value), lost=partial(self._untold.append, one))
            for one in untold
        ]
