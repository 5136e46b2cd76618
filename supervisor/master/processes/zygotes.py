"""The live zygotes, the role of each, and what the current one says of its handlers. Runs in the master.

`ZygoteStarts` adds zygotes, `ZygoteReaper` removes them, and `RollingReload` moves the roles.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from supervisor import clock
from supervisor.master.jobs.admission import Admission
from supervisor.master.model import memory
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.reload_log import Reloads
from supervisor.master.model.states import ZygoteState
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.messages import HandlerSettings
from supervisor.ops.events import Events

#: The memory of a zygote that forks is measured at most this often: hooks and threads may have it grow.
_MEASURE_EVERY_S: Final = 0.1


class Zygotes:
    def __init__(self, admission: Admission, budget: Budget, events: Events, reload_log: Reloads) -> None:
        self._admission = admission
        self._budget = budget
        self._events = events
        self._reload_log = reload_log
        self._by_number: dict[int, ZygoteHandle] = {}
        self.current: ZygoteHandle | None = None  # forks the children, or boots to do so
        self.candidate: ZygoteHandle | None = None  # boots during a reload, and takes over once it has a ready child
        self.kept: ZygoteHandle | None = None  # forked before the current one; forks again if that one fails
        self.handlers: dict[str, HandlerSettings] = {}  # by klass
        self.once: tuple[str, ...] = ()  # the klasses whose jobs never start twice
        self.recurrences: Mapping[str, dict[str, Any]] = {}  # what handlers declare that recur, by klass
        self.release = ""
        self.schemas: Mapping[str, str] = {}  # of the data that handlers take, as JSON, by shape
        self.sandbox: dict[str, str] = {}  # each part of the children's sandbox: "on", or why not
        self.measured = 0  # the zygote whose first child gave `child_bytes`; 0: none yet
        self.child_bytes = 0  # memory of a child that has run nothing

    def __iter__(self) -> Iterator[ZygoteHandle]:
        return iter(tuple(self._by_number.values()))

    def __contains__(self, zygote: ZygoteHandle) -> bool:
        return zygote.number in self._by_number

    def get(self, number: int) -> ZygoteHandle | None:
        return self._by_number.get(number)

    @property
    def ready(self) -> bool:
        """True if jobs can run now, or as soon as a child is forked."""
        return self.current is not None and self.current.state is ZygoteState.CURRENT

    @property
    def reloading(self) -> bool:
        return self.candidate is not None

    @property
    def last_reload(self) -> dict[str, Any] | None:
        """The result of the last reload: at_unix, by, outcome (completed or failed), message, traceback."""
        return self._reload_log.last

    @property
    def sandbox_levels(self) -> list[str]:
        """Return the levels of the sandbox that the handlers have: mostly one, that of the run."""
        return sorted({settings.profile.level for settings in self.handlers.values()})

    def status(self) -> list[dict[str, Any]]:
        return [
            {
                "zygote": zygote.number, "pid": zygote.pid, "state": self._role_of(zygote),
                "handlers": sorted(zygote.handlers),
            }
            for zygote in self
        ]  # fmt: skip

    def _role_of(self, zygote: ZygoteHandle) -> str:
        if zygote is self.candidate:
            return "candidate"
        return zygote.state.value if zygote is self.current else "retired"

    # their lives

    def add(self, zygote: ZygoteHandle) -> None:
        self._by_number[zygote.number] = zygote

    def remove(self, zygote: ZygoteHandle) -> None:
        """Remove a zygote that has ended. A candidate keeps its role until `RollingReload` has failed it."""
        del self._by_number[zygote.number]
        if zygote is self.kept:
            self.kept = None
        if zygote is self.current:
            self.current = None

    def retire(self, zygote: ZygoteHandle) -> None:
        """Let the zygote fork no more. It ends after its last child."""
        zygote.become(ZygoteState.RETIRED)
        if zygote is self.current:
            self.current = None

    def discard(self, zygote: ZygoteHandle) -> None:
        """Kill a zygote that is of no use any more, unless it has ended by itself."""
        if zygote in self:
            self.retire(zygote)
            zygote.kill()

    def make_current(self, zygote: ZygoteHandle) -> None:
        """Let this zygote fork the children from now on. What it has reported of its handlers holds."""
        assert zygote.report is not None
        zygote.become(ZygoteState.CURRENT)
        self.current = zygote
        self.handlers = zygote.handlers
        self.once = tuple(klass for klass, settings in self.handlers.items() if settings.at_most_once)
        self.recurrences, self.release = zygote.report.recurrences, zygote.report.release
        self.schemas = zygote.report.schemas
        self.sandbox = dict(zygote.report.sandbox)
        if warning := self._budget.use_zygote(zygote.inherited):
            self._events.warn(warning)
        self.reserve_memory()

    # their memory

    def reserve_memory(self) -> None:
        """Take the memory of the other zygotes out of the jobs' budget."""
        others = [zygote.inherited for zygote in self if zygote is not self.current]
        if self._budget.use_other_zygotes(others):
            self._admission.try_again()

    def measure(self, zygote: ZygoteHandle) -> None:
        """Measure the memory that children inherit from the current zygote."""
        now_at = clock.monotonic()
        if zygote.state is ZygoteState.CURRENT and now_at >= zygote.next_sample_at:
            zygote.next_sample_at = now_at + _MEASURE_EVERY_S
            zygote.inherited = memory.of(zygote.pid) or zygote.inherited
            self._budget.use_zygote(zygote.inherited)

    def measure_child(self, child: ChildHandle) -> None:
        """Measure the first ready child of each zygote, which has run nothing yet."""
        if child.zygote != self.measured:
            self.measured, self.child_bytes = child.zygote, child.meter.sample()
