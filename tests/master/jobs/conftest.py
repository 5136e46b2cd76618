"""Fixtures for tests of single parts: slots with children, and the parts that decide about their jobs."""

import os
from collections.abc import Callable

import orjson
import pytest

from supervisor import messages
from supervisor.engine.model.outcomes import Completed
from supervisor.master.jobs.admission import Admission
from supervisor.master.jobs.capacity import Capacity
from supervisor.master.jobs.child_choice import ChildChoice
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.pace import Pace
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.master.timers import Timers
from supervisor.messages import Blob, Completion, Follower, pack_completion
from tests.parts import await_readable, lease_of, rest

#: A run time that is short enough for sending jobs ahead.
QUICK_S = 0.0001
#: Most estimated run time of the jobs that wait at one child.
AHEAD_S = 0.02


class Pool:
    """Children with their slots, and the parts that say how many jobs they get, and which child gets one."""

    def __init__(self, processes: int, jobs_per_child: int, ahead_s: float) -> None:
        self.slots = Slots(processes, jobs_per_child)
        self.ledgers = Ledgers()
        self.ledger = self.ledgers.by_shard[0]
        self.timers = Timers()
        self.pace = Pace()
        self.admission = Admission(self.slots, self.ledgers, Budget(0), self.timers)
        self.choice = ChildChoice(self.slots, self.admission, self.pace, ahead_s)
        self.capacity = Capacity(self.slots, self.admission, self.pace, ahead_s)

    def child(self, number: int) -> ChildHandle:
        child = self.slots.get(number)
        assert child is not None
        return child

    def send(self, held: HeldLease) -> int | None:
        """Send the job to the child that is chosen for it. Return the child's number, or None."""
        child = self.choice.choose(held)
        if child is None:
            return None
        child.send(held)
        return child.number

    def end(self, number: int, state: ChildState) -> None:
        """The child has answered its first job, and goes on as `state`."""
        self.child(number).answered(0.0)
        self.child(number).become(state)


@pytest.fixture
def pool(new_child) -> Callable[..., Pool]:
    """Makes a pool with idle children, numbered from 1: as many as processes, if not told otherwise."""

    def make(
        processes: int = 2, jobs_per_child: int = 0, children: int | None = None, ahead_s: float = AHEAD_S
    ) -> Pool:
        made = Pool(processes, jobs_per_child, ahead_s)
        for number in range(1, 1 + (processes if children is None else children)):
            made.slots.add(new_child(number))
        return made

    return make


# behaviours and readings that several modules share


def summary(outcomes):
    """Return (kind, token) of each outcome."""
    return [(type(outcome), outcome.lease.token) for outcome in outcomes]


def busy_with_five(desk):
    """Return a child that keeps the first of five jobs which were expected to be quick, and the jobs."""
    desk.pace.learn("k", QUICK_S)

    def behave(ends):
        ends.talk.send(messages.pack_ready())
        ends.next_job()
        os.write(ends.out, b"has it\n")
        rest()

    child = desk.child(behave)
    held = desk.give(*(lease_of(token) for token in range(1, 6)), starting=0)
    await_readable(child.output.fd)
    return child, held


def results(desk):
    return [orjson.dumps(outcome.result) for outcome in desk.outcomes() if isinstance(outcome, Completed)]


def follows(size_bytes, jobs=1):
    """A completion that puts this many jobs."""
    followers = [Follower("q", "k", {"jid": f"f{n}"}, Blob("bytes", b"x" * size_bytes)) for n in range(jobs)]
    return pack_completion(Completion(b"1", None, followers))
