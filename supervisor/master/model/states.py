"""Used in the master: every state of it, of a zygote and of a child, and every legal move. Imports nothing of ours.

ARCHITECTURE.md draws these tables; a test keeps the two equal.
"""

from enum import Enum
from typing import Final, TypeVar


class Phase(Enum):
    """Where the master's life stands."""

    SERVING = "serving"  # leasing; also while Redis is away or no child is ready yet
    DRAINING = "draining"  # leases nothing; running jobs may finish
    INTERRUPTING = "interrupting"  # patience is over: Interrupted is raised in the handlers
    KILLING = "killing"  # their process trees are killed; waiting for their ends
    LEAVING = "leaving"  # no job is in our hands; the last exchange is under way
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
    """Where a zygote's life stands, as the master knows it."""

    BOOTING = "booting"  # imports the handlers
    PROVING = "proving"  # of a reload: has imported them; a child of it is to show that it is of use
    CURRENT = "current"  # the one that forks
    KEPT = "kept"  # another one forks, but has not filled its place yet: if it cannot, this one does so again
    RETIRED = "retired"  # forks no more: ends with its last child, was killed, or has ended by itself
    LEAVING = "leaving"  # has been told that there will be no more requests
    GONE = "gone"  # reaped, its children buried


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
    """Where a child's life stands, as the master knows it."""

    SPAWNING = "spawning"  # asked of the zygote
    IDLE = "idle"  # ready, no job sent
    BUSY = "busy"  # at least one job sent and not answered
    LEAVING = "leaving"  # has answered its last job, or is to take no more
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
    """`new`, if the move is legal."""
    if new not in moves[old]:
        raise IllegalMove(f"{type(old).__name__}: {old.value} -> {new.value}")
    return new
