"""Whatever errors the sockets of children give, in any combination, placing jobs ends and loses no lease.

Children have no process. Their jobs stay in their sockets until they are taken back.
"""

import errno
import os
from itertools import product

import pytest

from supervisor.engine.model.outcomes import Released
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.states import ChildState
from supervisor.messages import HandlerSettings
from tests.master.jobs.conftest import QUICK_S
from tests.parts import grant_of, lease_of

PLAIN, SHARED = HandlerSettings(), HandlerSettings(concurrency=10)
#: The child's own doing: its unanswered jobs leave room in its socket.
TAMPERED = {errno.EPIPE, errno.EPERM, errno.EAGAIN}
ERRORS = [None, *sorted(TAMPERED), errno.ENOMEM, errno.EMSGSIZE, errno.ENOBUFS]
SCENES = [
    ("idle",), ("busy",), ("shared",),
    ("idle", "idle"), ("busy", "idle"), ("busy", "busy"), ("shared", "idle"), ("shared", "shared"), ("busy", "shared"),
]  # fmt: skip
#: With some errors a job is tried once for each kind of job that waits. No place needs more sends to one child.
MOST_SENDS = 10


class Refusal:
    """Stands in for the send of a child's job pipe."""

    def __init__(self, number):
        self._number = number
        self._sends = 0

    def __call__(self, _held):
        self._sends += 1
        assert self._sends <= MOST_SENDS, "a child is sent to without end"
        raise OSError(self._number, os.strerror(self._number))


class Scene:
    """A desk whose children are in these states and whose job pipes give these errors, and its ready jobs."""

    def __init__(self, desk, new_child, states, errors, is_link_lost):
        self.desk, self.is_link_lost, self.outcomes = desk, is_link_lost, []
        desk.report = self._report
        desk.pace.learn("plain", QUICK_S)
        desk.pace.learn("shared", QUICK_S)
        self.tokens = iter(range(1, 1_000))
        self.errors = dict(zip(range(1, 1 + len(states)), errors, strict=True))
        for number, state in enumerate(states, 1):
            child = new_child(number)
            desk.slots.add(child)
            if state != "idle":
                self._occupy(child, "shared" if state == "shared" else "plain")
            if self.errors[number] is not None:
                child.jobs.send = Refusal(self.errors[number])
        has_shared, has_plain = "shared" in states, set(states) != {"shared"}
        handlers = {"shared": SHARED} if has_shared else {}
        handlers |= {"plain": PLAIN} if has_plain else {}
        leases = [lease_of(next(self.tokens), klass) for _ in range(2) for klass in handlers]
        leases.append(lease_of(next(self.tokens), next(iter(handlers)), at_most_once=True))
        desk.intake.accept(grant_of(leases), handlers)

    def _report(self, _started):
        return not self.is_link_lost

    def _occupy(self, child, klass):
        settings = SHARED if klass == "shared" else PLAIN
        held = HeldLease(lease_of(next(self.tokens), klass), settings, 60.0, QUICK_S, start_reported=True)
        self.desk.ledger.add(held)
        child.send(held)
        child.trust_domain = held.trust_domain

    def place(self):
        self.desk.placing.place(reports_starts=not self.is_link_lost)
        self.desk.starts.finish()
        self.outcomes += self.desk.outcomes()

    def check(self):
        """Each lease is in one place, and no child was killed but for its own doing."""
        sent = [held for child in self.desk.slots for held in child.sent]
        places = [*self.desk.ledgers.ready, *sent, *self.outcomes]
        assert sorted(each.lease.token for each in places) == list(range(1, next(self.tokens)))
        self.tokens = iter(range(len(places) + 1, 1_000))
        assert all(type(outcome) is Released and not outcome.started for outcome in self.outcomes)
        assert all(held.start_reported for held in sent if held.lease.at_most_once)
        for child in self.desk.slots:
            assert child.state is not ChildState.DOOMED or self.errors[child.number] in TAMPERED

    def check_that_the_only_good_child_has_jobs(self):
        """An idle child gets jobs though all others are chosen before it, which are to blame for their errors."""
        good = [child for child in self.desk.slots if self.errors[child.number] is None]
        others = {error for error in self.errors.values() if error is not None}
        if len(good) == 1 and good[0].shared is None and others <= TAMPERED:
            assert good[0].sent

    def mend(self):
        """Killed children have ended, the others take jobs, and Redis is back."""
        self.is_link_lost = False
        for child in self.desk.slots:
            vars(child.jobs).pop("send", None)
            if child.state is ChildState.DOOMED:
                self.desk.dispatcher.on_gone(child, None, child.why_killed)
                self._close(child)

    def close(self):
        for child in self.desk.slots:
            self._close(child)

    def _close(self, child):
        self.desk.slots.remove(child)
        child.close_child_ends()
        child.close()


@pytest.mark.parametrize("is_link_lost", [False, True], ids=["link", "no link"])
@pytest.mark.parametrize("states", SCENES, ids="+".join)
def test_no_error_of_a_job_pipe_stops_placing_or_loses_a_lease(desk, new_child, states, is_link_lost):
    each = desk(processes=str(len(states)), dispatch_ahead="1s")
    for errors in product(ERRORS, repeat=len(states)):
        scene = Scene(each, new_child, states, errors, is_link_lost)
        scene.place()
        scene.check()
        scene.check_that_the_only_good_child_has_jobs()
        scene.mend()
        scene.place()
        each.placing.hand_back()
        scene.outcomes += each.outcomes()
        scene.check()
        assert not each.ledgers.ready
        scene.close()
