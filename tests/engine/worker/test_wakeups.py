"""A waiting worker gets a job with the end of its wait: once and in its own name, or another worker gets it."""

import math

import pytest

from supervisor import clock
from supervisor.engine.commands import leasing, settling
from supervisor.engine.model.outcomes import Completed
from supervisor.engine.transport.link import LinkLost
from supervisor.engine.worker.exchange import Wanted
from tests.parts import until


@pytest.fixture
def waiting(worker, server):
    """The worker, once Redis knows that it waits."""
    worker.wait_for_jobs()
    until_blocked(server)
    return worker


def until_blocked(server):
    while server.redis.info("clients")["blocked_clients"] == 0:
        pass


def jids(worker):
    return [lease.jid for lease in worker.granted]


def test_a_job_is_leased_with_the_end_of_its_wait(waiting, live):
    exchanges = waiting.exchanges
    live.queue("q").put("k", jid="a")
    waiting.wait_to_end()
    assert (jids(waiting), waiting.exchanges) == (["a"], exchanges)
    assert (live.job("a").state, live.job("a").worker) == ("running", waiting.name)
    assert not waiting.session.wakeups.woken  # nothing is to be asked anew


def test_no_more_are_leased_than_were_wanted_and_another_worker_is_rung_for(waiting, live, server, namespace):
    live.queue("q").put_many({"klass": "k", "jid": jid} for jid in "abc")
    waiting.wait_to_end()
    assert jids(waiting) == ["a"]
    assert server.redis.llen(f"{{{namespace}}}:bell:q") == 1


def test_mail_ends_the_wait_and_what_there_is_is_leased_as_well(waiting, live):
    live.queue("q").pause()
    live.queue("q").put("k", jid="a")
    waiting.wait_to_end()
    assert jids(waiting) == []
    live.queue("q").unpause()
    waiting.wait_for_jobs()
    waiting.session.wakeups.end_wait()
    waiting.wait_to_end()
    assert jids(waiting) == ["a"]


def test_lease_behind_a_wait_that_ends_early_is_not_dated_later(waiting, server):
    """Redis times a wait by a clock that may jump, and an operator may end one."""
    [blocked] = [one["id"] for one in server.redis.client_list() if "b" in one["flags"]]
    server.redis.client_unblock(blocked)
    while (end := waiting.session.wakeups.read()) is None:
        waiting.wait_for_news()
    assert end.timed_out
    assert end.granted.confirmation.sent_at <= clock.boottime()


def test_wait_that_its_worker_ends_ends_once_redis_owes_no_reply(waiting, live, server):
    """A worker that dies while a reply is owed loses what it has sent since: here, that a job of the lease starts."""
    session, wakeups = waiting.session, waiting.session.wakeups
    wakeups.end_wait()
    until(lambda: wakeups.read() is None and wakeups.has_end)
    until(lambda: session.read() or not session.pipeline.is_owed)
    end = wakeups.read()
    assert end.granted.grant.leases == []
    assert not wakeups.has_end


def test_settling_during_the_wait_does_not_prevent_the_lease(worker, live, server):
    worker.wait_for_jobs()
    until_blocked(server)
    for number in range(worker.session.identity.number + 1, worker.session.identity.number + 4):
        worker.session.identity.number = number
        live._store.run(settling.settle(worker.name, [], number=number))
    live.queue("q").put("k", jid="a")
    worker.wait_to_end()
    assert jids(worker) == ["a"]
    assert live._store.run(settling.settle(worker.name, [Completed(worker.granted[0])], number=99)) == [True]


def test_a_wait_that_is_left_on_a_dead_connection_takes_no_job(waiting, live):
    live._store.run(
        leasing.resume(waiting.name, waiting.session.identity.number + 1, [])
    )  # it has come back by another one
    live.queue("q").put("k", jid="a")
    waiting.wait_to_end()
    assert (jids(waiting), live.job("a").state) == ([], "waiting")


def test_wait_of_a_deregistered_worker_takes_no_job(waiting, live):
    live.deregister(waiting.name)
    live.queue("q").put("k", jid="a")
    waiting.wait_to_end()
    assert (jids(waiting), live.job("a").state) == ([], "waiting")
    assert waiting.session.wakeups.woken  # it asks anew, and is told then that it is unknown


def test_lease_under_the_old_name_is_not_the_renamed_workers(waiting, live):
    live.queue("q").put("k", jid="a")
    while live.job("a").state == "waiting":
        pass
    live.deregister(waiting.name)
    waiting.rename()  # before it has read what was leased
    waiting.wait_to_end()
    assert (jids(waiting), live.job("a").state) == ([], "waiting")


def test_worker_leases_again_after_the_server_lost_its_scripts(waiting, live, server):
    server.redis.script_flush()
    live.queue("q").put("k", jid="a")
    waiting.wait_to_end()
    assert (jids(waiting), live.job("a").state) == ([], "waiting")
    assert waiting.session.wakeups.woken


def test_wait_can_end_after_the_server_lost_its_scripts(waiting, server):
    server.redis.script_flush()
    waiting.session.wakeups.end_wait()
    waiting.wait_to_end()
    assert waiting.session.wakeups.woken  # the lease behind it was lost as well: it asks anew


def test_lease_behind_a_wait_with_a_lost_reply_goes_back_uncounted(waiting, live):
    live.queue("q").put("k", jid="a")
    while live.job("a").state == "waiting":
        pass
    waiting.session.lose()  # before it has read that
    assert waiting.session.may_hold_more
    waiting.start()
    assert (live.job("a").state, live.job("a").deaths, jids(waiting)) == ("waiting", 0, [])


def test_a_worker_that_comes_back_raises_the_token_counter(waiting, live, server, namespace):
    """The server has lost the write that drew its token."""
    live.queue("q").put("k", jid="a")
    waiting.wait_to_end()
    server.redis.set(f"{{{namespace}}}:token", 0)
    waiting.lose_the_connection()
    live.queue("q").put("k", jid="b")
    assert live.queue("q").lease("w")[0].token > waiting.granted[0].token


def test_wait_whose_connection_was_lost_may_have_leased(waiting):
    waiting.session.lose()
    assert waiting.session.may_hold_more
    waiting.start()
    assert not waiting.session.may_hold_more


def test_wait_whose_end_lies_unread_is_no_silence(waiting, live):
    live.queue("q").put("k", jid="a")
    while live.job("a").state == "waiting":
        pass
    waiting.timers.run_due(math.inf)
    waiting.wait_to_end()
    assert jids(waiting) == ["a"]


def test_reply_that_lies_unread_is_no_silence(worker):
    session = worker.session
    worker.exchange(Wanted(1, 1))
    worker.wait_for_news()
    worker.timers.run_due(math.inf)
    worker.turn_until(lambda: session.idle)


def test_silence_in_a_wait_loses_the_connection(waiting):
    with pytest.raises(LinkLost):
        waiting.timers.run_due(math.inf)


def test_silence_in_an_exchange_loses_the_connection(worker, server):
    server.redis.client_pause(10_000)
    try:
        worker.exchange(Wanted(1, 1))
        with pytest.raises(LinkLost):
            worker.timers.run_due(math.inf)
    finally:
        server.redis.client_unpause()


def test_lost_session_connects_again_after_its_pause(worker):
    wait_s = worker.session.lose()
    worker.timers.run_due(clock.monotonic())
    assert not worker.session.connected
    worker.timers.run_due(clock.monotonic() + wait_s)
    worker.turn_until(lambda: worker.session.connected)
