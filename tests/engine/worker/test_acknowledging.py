"""A worker waits for replicas before some steps, and keeps its promises if they never get the data."""

from collections.abc import Iterator, Sequence

import hiredis
import pytest

from supervisor import clock
from supervisor.engine.commands import queue_counts
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.transport.dialer import ServerPatience
from supervisor.engine.worker.acknowledging import Acknowledging
from supervisor.engine.worker.exchange import Part, Wanted
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.engine.worker.served_queues import ServedQueues
from tests.engine.played import PlayedWorker


@pytest.fixture
def times() -> LeaseTimes:
    return LeaseTimes(30.0, ServedQueues(Queues(["q"], "strict")), ServerPatience(5.0, 30.0, 2.5))


@pytest.fixture
def acknowledging(times) -> Acknowledging:
    return Acknowledging(1, times)


def part(again: bool = True) -> Part:
    return Part(queue_counts.names(), again=again)


def exchange(acknowledging: Acknowledging, parts: Sequence[Part], acknowledged: object) -> Sequence[Part]:
    """Make an exchange. Return the parts that count."""
    command = acknowledging.command_behind(parts)
    all_parts = [*acknowledging.take_lacking(), *parts]
    if command is not None:
        acknowledging.take(acknowledged)
    counting, lacking = acknowledging.sort(all_parts)
    acknowledging.set_aside(lacking)
    return counting


def look(acknowledging: Acknowledging, monkeypatch) -> None:
    """Let the time come to ask again."""
    at = acknowledging.look_at
    monkeypatch.setattr(clock, "monotonic", lambda: at)


def test_only_an_exchange_that_must_be_acknowledged_waits(acknowledging):
    assert acknowledging.command_behind([part(again=False)]) is None
    assert acknowledging.command_behind([part(again=False), part()]) == ("WAIT", 1, 1000)


def test_only_a_short_look_waits_while_replicas_are_short(acknowledging, monkeypatch):
    first, second = part(), part()
    assert exchange(acknowledging, [first], 0) == []
    assert acknowledging.command_behind([second]) is None
    assert exchange(acknowledging, [second], 1) == []  # it has not asked
    look(acknowledging, monkeypatch)
    assert acknowledging.command_behind([]) == ("WAIT", 1, 100)
    assert acknowledging.command_behind([]) is None  # the next look is a second away


def test_look_lets_all_count_that_was_lacking(acknowledging, monkeypatch):
    first, second = part(), part()
    exchange(acknowledging, [first], 0)
    exchange(acknowledging, [second], 1)
    look(acknowledging, monkeypatch)
    assert exchange(acknowledging, [], 1) == [first, second]
    assert not acknowledging.is_short


def test_part_without_its_script_is_waited_for_again_during_a_look(acknowledging, monkeypatch):
    exchange(acknowledging, [part()], 0)
    look(acknowledging, monkeypatch)
    late = part()
    assert acknowledging.command_behind([late]) is not None
    assert acknowledging.command_behind_repeated(late) == ("WAIT", 1, 100)
    assert acknowledging.command_behind_repeated(part(again=False)) is None


def test_parts_sent_again_after_a_reconnect_wait_in_full(acknowledging):
    lacking = part()
    exchange(acknowledging, [lacking], 0)
    assert acknowledging.lose() == [lacking]
    assert acknowledging.command_behind([lacking]) == ("WAIT", 1, 1000)


def test_part_that_redis_has_refused_counts_at_once(acknowledging):
    refused = part()
    refused.reply = hiredis.ReplyError("OOM")
    assert exchange(acknowledging, [refused], 0) == [refused]


def test_two_waits_between_two_renewals_end_before_the_lease_does(acknowledging, times):
    times.ttl_s = 0.6
    assert times.ttl_s / 3 + 2 * acknowledging.wanted.within_s < times.ttl_s


# a job that must not start twice


@pytest.fixture
def lone(server, namespace, live) -> Iterator[PlayedWorker]:
    """A worker that waits for a replica, which its server does not have."""
    live.config.set("acknowledge", 1)
    played = PlayedWorker(server.url, namespace).start()
    yield played
    played.close()


def lease(worker: PlayedWorker) -> list[Grant]:
    """Begin an exchange that leases a job and starts none. Return a list that gets the answer."""
    granted: list[Grant] = []
    worker.session.exchange([Part(worker.session.leaser.command(Wanted(1, 0)), granted.append)])
    return granted


def test_job_counts_as_started_before_replicas_are_asked(lone, live):
    """After a failover that has lost the worker as well, no other record says that the job may have started."""
    live.queue("q").put("k", jid="a", at_most_once=True)
    granted = lease(lone)
    lone.turn_until(lambda: live.job("a").started)
    lone.turn_until(lambda: granted)
    assert not granted[0].acknowledged


def test_job_goes_back_if_the_connection_is_lost_while_replicas_are_asked(lone, live):
    live.queue("q").put("k", jid="a", at_most_once=True)
    granted = lease(lone)
    lone.turn_until(lambda: live.job("a").started)
    lone.session.lose()
    lone.start()
    job = live.job("a")
    assert (granted, job.state, job.started, job.interruptions) == ([], "waiting", False, 0)


def test_lease_without_such_jobs_asks_no_replicas(lone, live):
    live.queue("q").put("k", jid="a")
    granted = lease(lone)
    lone.turn_until(lambda: granted)
    assert granted[0].acknowledged and not live.job("a").started
