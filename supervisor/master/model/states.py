"""Every state of the master, of a zygote and of a child, and every legal move. Runs in the master.

Imports no module of ours. ARCHITECTURE.md draws these tables; a test keeps the two equal.
"""

from enum import Enum
from typing import Final, TypeVar


class Phase(Enum):
    """The master's state."""

    SERVING = "serving"  # leases; also while Redis is away or no child is ready yet
    DRAINING = "draining"  # leases nothing; running jobs may finish
    INTERRUPTING = "interrupting"  # the time to finish is over: Interrupted is raised in the handlers
    KILLING = "killing"  # the jobs' process trees are killed; the master waits for their ends
    LEAVING = "leaving"  # no job is left; the last exchange is under way
    STOPPED = "stopped"


PHASE_MOVES: Final = {
    Phase.SERVING: {Phase.DRAINING},
    Phase.DRAINING: {Phase.INTERRUPTING, Phase.LEAVING},
    Phase.INTERRUPTING: {Phase.KILLING, Phase.LEAVING},
    Phase.KILLING: {Phase.LEAVING},
    Phase.LEAVING: {Phase.STOPPED},
    Phase.STOPPED: set(),
}


class ZygoteState(Enum):
    """A zygote's state, as the master knows it."""

    BOOTING = "booting"  # imports the handlers
    PROVING = "proving"  # in a reload: has imported them; a first child is to show that they work
    CURRENT = "current"  # forks the children
    KEPT = "kept"  # its successor forks; if that one fails to fill the pool, this zygote forks again
    RETIRED = "retired"  # forks no more: ends with its last child, was killed, or ended by itself
    LEAVING = "leaving"  # was told that no more requests will come
    GONE = "gone"  # reaped, and so are its children


ZYGOTE_MOVES: Final = {
    ZygoteState.BOOTING: {ZygoteState.PROVING, ZygoteState.CURRENT, ZygoteState.RETIRED},
    ZygoteState.PROVING: {ZygoteState.CURRENT, ZygoteState.RETIRED},
    ZygoteState.CURRENT: {ZygoteState.KEPT, ZygoteState.RETIRED},
    ZygoteState.KEPT: {ZygoteState.CURRENT, ZygoteState.RETIRED},
    ZygoteState.RETIRED: {ZygoteState.LEAVING, ZygoteState.GONE},
    ZygoteState.LEAVING: {ZygoteState.GONE},
    ZygoteState.GONE: set(),
}


class ChildState(Enum):
    """A child's state, as the master knows it."""

    SPAWNING = "spawning"  # requested of the zygote
    IDLE = "idle"  # ready, no job sent
    BUSY = "busy"  # at least one job sent and not answered
    LEAVING = "leaving"  # has answered its last job, or takes no more
    DOOMED = "doomed"  # SIGKILL sent
    GONE = "gone"  # reaped, its jobs settled or taken back


CHILD_MOVES: Final = {
    ChildState.SPAWNING: {ChildState.IDLE, ChildState.DOOMED, ChildState.GONE},
    ChildState.IDLE: {ChildState.BUSY, ChildState.LEAVING, ChildState.DOOMED, ChildState.GONE},
    ChildState.BUSY: {ChildState.IDLE, ChildState.LEAVING, ChildState.DOOMED, ChildState.GONE},
    ChildState.LEAVING: {ChildState.DOOMED, ChildState.GONE},
    ChildState.DOOMED: {ChildState.GONE},
    ChildState.GONE: set(),
}

State = TypeVar("State", Phase, ZygoteState, ChildState)


class IllegalMove(AssertionError):
    """A bug in the supervisor, never a condition of the outside world."""


def move(moves: dict[State, set[State]], old: State, new: State) -> State:
    """Return `new`. Raises IllegalMove if no move leads there from `old`."""
    if new not in moves[old]:
        raise IllegalMove(f"{type(old).__name__}: {old.value} -> {new.value}")
    return new
