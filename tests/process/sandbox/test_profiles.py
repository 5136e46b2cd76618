"""Handlers of different sandboxes in one pool, whose children run many jobs each."""

import collections

from apps import start_app

APP = """
@handler
def free(job):
    socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
    return os.getpid()


@handler(network=False)
def shut(job):
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
    except PermissionError:
        return os.getpid()
    raise AssertionError("it has a network")
"""


def test_handlers_with_and_without_network_never_share_a_child(stage, measured):
    pool = start_app(stage, APP, processes=2, jobs_per_child=0).wait_ready()
    klasses = ["free"] * 20 + ["shut"] * 20 + ["free", "shut"] * 20
    jids = stage.queue.put_many([{"klass": klass} for klass in klasses])
    stage.wait_until_ended(jids)
    jobs = stage.client.jobs(*jids)
    assert {job.state for job in jobs} == {"complete"}, stage.last_words()
    pids = collections.defaultdict(set)
    for job in jobs:
        pids[job.klass].add(job.result)
    assert not pids["free"] & pids["shut"]
    recycled = [event for event in pool.find("child.recycled") if "another sandbox" in event["reason"]]
    leases = pool.find("lease.granted")
    measured(f"80 jobs of two kinds: {len(recycled)} children made room, {len(leases)} leases")
    assert len(recycled) <= 40
    assert len(leases) <= 160
    assert sum(len(of_kind) for of_kind in pids.values()) <= 42
    assert pool.drain() == 0
    stage.assert_nothing_left()


LEVELS = """
@handler
def plain(job):
    pass


@handler(sandbox="strict")
def shut_in(job):
    pass
"""


def test_status_tells_the_levels_of_all_handlers(stage):
    pool = start_app(stage, LEVELS).wait_ready()
    assert stage.client.ask(pool.worker, "status")[pool.worker]["sandbox_levels"] == ["basic", "strict"]
    assert pool.drain() == 0
    stage.assert_nothing_left()
