"""Knows which children there are, how many the pool needs, and how many run a job. Runs in the master. Does no I/O."""

from collections.abc import Container, Iterator
from typing import Final

from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.job_pipe import MAX_SENT
from supervisor.master.model.states import ChildState

#: At most this many children are forked at a time: the zygote's socket takes a few hundred requests, and the open files
#: of a user are limited.
_MOST_SPAWNING: Final = 32


class Slots:
    """Holds the children by number. At most `processes` of them run a job.

    A child on its last job has a successor forked ahead, so that no job waits for a fork.
    """

    def __init__(self, processes: int, jobs_per_child: int) -> None:
        """`jobs_per_child` 0: no limit."""
        self.processes = processes
        self._most_before = 0  # the processes before the last shrinking, while the children of that time end
        self._jobs_per_child = jobs_per_child
        self._children: dict[int, ChildHandle] = {}

    def __iter__(self) -> Iterator[ChildHandle]:
        return iter(tuple(self._children.values()))

    def __len__(self) -> int:
        return len(self._children)

    def get(self, number: int) -> ChildHandle | None:
        return self._children.get(number)

    def add(self, child: ChildHandle) -> None:
        self._children[child.number] = child

    def remove(self, child: ChildHandle) -> None:
        del self._children[child.number]

    def free_number(self, taken: Container[int] = ()) -> int:
        """Return the lowest free child number. `taken`: numbers of children that are in no slot."""
        number = 1
        while number in self._children or number in taken:
            number += 1
        return number

    # how many there are to be

    def resize(self, processes: int) -> None:
        """Set the number of processes. `surplus` names excess idle children; busy ones end after their job."""
        self._most_before = max(self.processes, self._most_before)
        self.processes = processes

    def surplus(self) -> tuple[list[ChildHandle], int]:
        """Return the excess idle children, youngest first, and how many excess children are still being forked."""
        idle, lasting, spawning = self._staying()
        idle.sort(key=lambda child: child.asked_at, reverse=True)
        surplus = idle[: max(0, len(idle) + lasting - self.processes)]
        return surplus, max(0, len(idle) - len(surplus) + lasting + spawning - self.processes)

    def missing(self) -> int:
        """Return how many children to fork now."""
        idle, lasting, spawning = self._staying()
        needed = self.processes - lasting - len(idle) - spawning
        return max(0, min(needed, _MOST_SPAWNING - spawning, self._room()))

    def _staying(self) -> tuple[list[ChildHandle], int, int]:
        """Return the children that may take another job: those that are idle, and how many are busy or being forked."""
        idle: list[ChildHandle] = []
        lasting = spawning = 0
        for child in self._children.values():
            if child.retire_reason is not None:
                continue  # it leaves, now or when its job is done
            if child.state is ChildState.SPAWNING:
                spawning += 1
            elif child.state is ChildState.IDLE:
                idle.append(child)
            elif child.state is ChildState.BUSY and not self.is_done(child):
                lasting += 1
        return idle, lasting, spawning

    def _room(self) -> int:
        """Return how many more children there may be. Children that end, also surplus ones, still count."""
        if self._most_before and len(self._children) <= 3 * self.processes + 2:
            self._most_before = 0
        return 3 * max(self.processes, self._most_before) + 2 - len(self._children)

    # how many there are

    @property
    def busy(self) -> int:
        """How many children have a job. A killed child counts until its end is known.

        A shared child that only ends its last jobs does not count: others need not wait for the slowest of them.
        """
        return sum(1 for child in self._children.values() if takes_a_process(child))

    @property
    def spawning(self) -> int:
        return sum(child.state is ChildState.SPAWNING for child in self._children.values())

    @property
    def leaving(self) -> bool:
        """True if a child still cleans up after its last job."""
        return any(child.state is ChildState.LEAVING for child in self._children.values())

    # how many jobs a child takes

    @property
    def reuses_children(self) -> bool:
        """True if a child may run several jobs one after another."""
        return self._jobs_per_child != 1

    def jobs_left(self, child: ChildHandle) -> int:
        """Return how many more jobs may be sent to this child."""
        if child.retire_reason:
            return 0
        if not self._jobs_per_child:
            return MAX_SENT
        return self._jobs_per_child - child.served - len(child.sent)

    def is_done(self, child: ChildHandle) -> bool:
        """Return whether no more jobs may ever be sent to this child."""
        if child.shared is not None:
            return child.retire_reason is not None
        return self.jobs_left(child) <= 0

    def may_send_ahead(self, child: ChildHandle) -> bool:
        """Return whether jobs may wait at this child, which is busy. Whether its socket has room is not asked."""
        return (
            child.state is ChildState.BUSY
            and child.shared is None
            and child.sent[0].estimate_s is not None
            and not child.overran
            and self.jobs_left(child) > 0
        )


def takes_a_process(child: ChildHandle) -> bool:
    """Return whether the child's jobs count to the processes."""
    return bool(child.sent) and (child.shared is None or child.retire_reason is None)
