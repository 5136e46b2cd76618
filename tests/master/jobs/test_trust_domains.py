"""Handlers of different trust domains in one pool: which child gets which job, and which child leaves."""

import pytest

from supervisor import clock
from supervisor.master.jobs.unstarted import HAND_BACK
from supervisor.master.model.states import ChildState
from supervisor.messages import HandlerSettings
from tests.parts import grant_of, honest, lease_of

HANDLERS = {
    "free": HandlerSettings(sandbox="basic", network=True),
    "shut": HandlerSettings(sandbox="strict", network=False),
}


@pytest.fixture
def pool(desk):
    """Makes a pool whose children run any number of jobs, of both kinds of handlers."""

    def make(children=2, handlers=HANDLERS, **flags):
        made = desk(**{"processes": "2", "jobs_per_child": "0", **flags})
        made.known = handlers
        made.children = [made.child(honest) for _ in range(children)]
        return made

    return make


def run(pool, *klasses, first=1):
    """Lease jobs of these handlers. Return the number of the child that got each, or 0."""
    leases = [lease_of(first + index, klass) for index, klass in enumerate(klasses)]
    pool.intake.accept(grant_of(leases, len(leases)), pool.known)
    pool.placing.place()
    return [pool.ledger.find(lease.token).child_number for lease in leases]


def finish(pool):
    pool.turn(lambda: not any(child.sent for child in pool.slots))


def leave(pool, child):
    """The child exits, as it was told to, and its zygote reports it."""
    assert child.state is ChildState.LEAVING
    pool.processes[child.number].end()
    pool.dispatcher.on_gone(child, None, None)
    pool.slots.remove(child)
    child.close()


def test_handlers_of_one_domain_bind_no_child(pool):
    pool = pool(handlers={"free": HANDLERS["free"], "other": HANDLERS["free"]})
    assert run(pool, "free", "other") == [1, 2]
    assert not pool.admission.separates_domains
    assert {child.trust_domain for child in pool.children} == {None}


def test_a_child_gets_only_jobs_of_its_first_ones_domain(pool):
    pool = pool()
    assert run(pool, "free", "shut") == [1, 2]
    finish(pool)
    assert run(pool, "shut", first=3) == [2]
    finish(pool)
    assert run(pool, "shut", "free", first=4) == [2, 1]


def test_a_child_of_the_domain_comes_before_an_unused_one(pool):
    pool = pool()
    run(pool, "shut")
    finish(pool)
    assert run(pool, "shut", first=2) == [1]
    assert pool.children[1].trust_domain is None


def test_an_idle_child_leaves_for_a_job_of_another_domain(pool):
    pool = pool()
    run(pool, "free", "free")
    finish(pool)
    assert run(pool, "shut", first=3) == [0]
    assert sorted(child.state.value for child in pool.children) == ["idle", "leaving"]
    (recycled,) = pool.events("child.recycled")
    assert "may not share a child" in recycled["reason"]
    assert pool.slots.missing() == 1
    assert pool.capacity.to_lease() == (0, 0)  # nothing more is leased until the new one is ready
    pool.child(honest)
    assert pool.capacity.to_lease()[1] == 2
    pool.placing.place()
    assert pool.ledger.find(3).child_number == 3


def test_no_second_child_leaves_while_the_new_one_is_forked(pool):
    pool = pool()
    run(pool, "free", "free")
    finish(pool)
    run(pool, "shut", first=3)
    for _ in range(10):
        pool.placing.place()
    coming = pool.child(honest, ready=False)
    leave(pool, next(child for child in pool.children if child.state is ChildState.LEAVING))
    for _ in range(10):
        pool.placing.place()
    assert coming.state is ChildState.SPAWNING
    assert len(pool.events("child.recycled")) == 1


def test_as_many_children_leave_as_jobs_wait(pool):
    pool = pool(processes="3", children=3)
    run(pool, "free", "free", "free")
    finish(pool)
    run(pool, "shut", "shut", "free", first=4)
    assert [child.state for child in pool.children].count(ChildState.LEAVING) == 2


def test_no_child_leaves_while_all_processes_are_busy(pool):
    pool = pool(processes="1", children=2)
    pool.intake.accept(grant_of([]), pool.known)
    pool.children[0].trust_domain = HANDLERS["free"].trust_domain("free")
    run(pool, "free", "shut")
    assert pool.children[1].state is ChildState.IDLE


def test_a_job_that_waits_too_long_for_its_child_goes_back(pool):
    pool = pool(dispatch_ahead="20ms")
    run(pool, "free", "free")
    finish(pool)
    pool.outcomes()
    run(pool, "shut", first=3)
    pool.keep_time(pool.timers.at(HAND_BACK))
    (released,) = pool.outcomes()
    assert (released.lease.token, released.started) == (3, False)
    assert pool.capacity.to_lease() == (0, 0)
    pool.keep_time(clock.monotonic() + 10)
    assert pool.capacity.to_lease() != (0, 0)


def test_jobs_are_sent_ahead_only_within_one_domain(pool):
    pool = pool(dispatch_ahead="1s")
    pool.pace.learn("free", 0.001)
    pool.pace.learn("shut", 0.001)
    run(pool, "free")
    assert not pool.admission.leases_for_idle_only
    assert pool.capacity.to_lease()[0] > 2
    run(pool, "shut", first=2)
    assert pool.admission.leases_for_idle_only
    finish(pool)
    assert pool.capacity.to_lease() == (2, 2)


def test_no_job_is_sent_ahead_to_another_domain(pool):
    pool = pool(processes="1", children=1)
    pool.pace.learn("free", 0.001)
    pool.pace.learn("shut", 0.001)
    assert run(pool, "free", "free", "shut") == [1, 1, 0]


STRICT = HandlerSettings(sandbox="strict", network=False)
BASIC = HandlerSettings(sandbox="basic", network=True)


@pytest.mark.parametrize(
    ("settings", "jobs_per_child", "shares"), [(STRICT, "0", False), (BASIC, "0", True), (STRICT, "1", True)]
)
def test_klasses_under_strict_share_no_reused_child(pool, settings, jobs_per_child, shares):
    pool = pool(handlers={"one": settings, "other": settings}, jobs_per_child=jobs_per_child)
    assert pool.known["one"].trust_domain("one") == pool.known["one"].trust_domain("one")
    assert (pool.known["one"].trust_domain("one") == pool.known["other"].trust_domain("other")) == (settings is BASIC)
    run(pool, "one", "other")
    assert pool.admission.separates_domains != shares
