"""A worker reads large payloads as a part of the exchange or the wait that leases their jobs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from supervisor.engine.commands import leasing, settling
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.commands.payloads import LeftOut
from supervisor.engine.model.outcomes import Completed
from supervisor.engine.transport.link import LinkLost
from supervisor.engine.worker.exchange import Part, Wanted
from tests.engine.played import PlayedWorker

LARGE = "x" * 100_000


@pytest.fixture
def before_payloads(monkeypatch) -> Callable[[Callable[[], object]], None]:
    """Have something done once, when a worker has the next reply that leaves payloads out."""
    acts: list[Callable[[], object]] = []

    class Interrupted(LeftOut):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            if self.commands and acts:
                acts.pop()()

    monkeypatch.setattr(leasing, "LeftOut", Interrupted)
    return acts.append


class Exchange:
    """A lease of a worker, beside other parts."""

    def __init__(self, worker: PlayedWorker, *parts: Part, count: int = 9, starting: int = 9) -> None:
        self.grant: Grant | None = None
        lease = worker.session.leaser.command(Wanted(count, starting))
        worker.session.exchange([*parts, Part(lease, self._granted)])

    def _granted(self, grant: Grant) -> None:
        self.grant = grant

    @property
    def jids(self) -> list[str] | None:
        return self.grant and [lease.jid for lease in self.grant.leases]


def cut(worker: PlayedWorker) -> None:
    """The connections end."""
    worker.session.pipeline._link._socket.shutdown(2)
    worker.session.wakeups._link._socket.shutdown(2)


def wait_for(worker: PlayedWorker, *jids: str) -> None:
    """Wait until these jobs are granted. The hint of a new queue ends a wait, too."""
    while not {lease.jid for lease in worker.granted} >= set(jids):
        worker.wait_for_jobs(2)
        worker.wait_to_end()


def lose(worker: PlayedWorker) -> None:
    """Turn until the worker knows that its connection is lost, and resume."""
    with pytest.raises(LinkLost):
        worker.turn_until(lambda: False)
    assert worker.session.may_hold_more
    worker.session.lose()
    worker.start()


def test_exchange_ends_with_its_payloads(worker, live):
    live.queue("q").put_many({"klass": "k", "data": data, "jid": jid} for jid, data in [("a", LARGE), ("b", 1)])
    exchange = Exchange(worker)
    worker.turn_until(lambda: worker.session.idle)
    assert [lease.data for lease in exchange.grant.leases] == [LARGE, 1]
    assert exchange.grant.starting == 9
    assert live._store.run(settling.settle(worker.name, [Completed(it) for it in exchange.grant.leases])) == [
        True,
        True,
    ]


def test_job_that_is_lost_before_its_payload_is_read_is_not_granted(worker, live, before_payloads):
    live.queue("q").put_many({"klass": "k", "data": LARGE, "jid": jid} for jid in "abc")
    before_payloads(lambda: live.cancel("a"))
    exchange = Exchange(worker, starting=2)
    worker.turn_until(lambda: worker.session.idle)
    assert (exchange.jids, exchange.grant.starting) == (["b", "c"], 1)


@pytest.mark.parametrize("options", [{}, {"at_most_once": True}], ids=["plain", "at most once"])
def test_jobs_go_back_uncounted_if_the_connection_ends_before_their_payloads(worker, live, before_payloads, options):
    live.queue("q").put("k", LARGE, jid="a", **options)
    before_payloads(partial(cut, worker))
    exchange = Exchange(worker)
    lose(worker)
    assert exchange.grant is None
    job = live.job("a")
    assert (job.state, job.deaths, job.interruptions, job.started) == ("waiting", 0, 0, False)
    again = Exchange(worker)
    worker.turn_until(lambda: worker.session.idle)
    assert [lease.data for lease in again.grant.leases] == [LARGE]


def test_outcome_counts_once_if_the_connection_ends_before_payloads(worker, live, before_payloads):
    live.queue("q").put("k", 1, jid="done")
    first = Exchange(worker, count=1)
    worker.turn_until(lambda: worker.session.idle)
    live.queue("q").put("k", LARGE, jid="a")
    before_payloads(partial(cut, worker))
    settle = settling.settle(
        worker.name, [Completed(first.grant.leases[0])], number=worker.session.identity.next_number
    )
    answers: list[Any] = []
    Exchange(worker, Part(settle, answers.extend, must=True, again=True))
    lose(worker)
    assert answers == [True]
    assert (live.job("done").state, live.job("a").state) == ("complete", "waiting")


def test_refused_payloads_end_the_connection(worker, live, monkeypatch):
    class Refused(LeftOut):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.commands = (("MGET",), *self.commands[1:])

    live.queue("q").put("k", LARGE, jid="a")
    with monkeypatch.context() as patched:
        patched.setattr(leasing, "LeftOut", Refused)
        Exchange(worker)
        with pytest.raises(LinkLost, match="Redis refused MGET behind a lease: ERR wrong number of arguments"):
            worker.turn_until(lambda: False)
    worker.session.lose()
    worker.start()
    assert live.job("a").state == "waiting"


# behind a wait


def test_wait_ends_with_its_payloads(worker, live):
    worker.wait_for_jobs(2)
    live.queue("q").put_many({"klass": "k", "data": LARGE, "jid": jid} for jid in "ab")
    worker.wait_to_end()
    assert [lease.data for lease in worker.granted] == [LARGE] * 2
    assert live._store.run(settling.settle(worker.name, [Completed(it) for it in worker.granted])) == [True, True]
    live.queue("q").put("k", 1, jid="c")
    wait_for(worker, "c")


def test_job_that_is_lost_before_a_wait_has_its_payload_is_not_granted(worker, live, before_payloads):
    before_payloads(lambda: live.queue("q").put("other", LARGE * 2, jid="a"))
    worker.wait_for_jobs()
    live.queue("q").put("k", LARGE, jid="a")
    worker.wait_to_end()
    assert worker.granted == []
    assert not worker.session.may_hold_more
    wait_for(worker, "a")
    assert [(lease.klass, lease.data) for lease in worker.granted] == [("other", LARGE * 2)]


def test_jobs_of_a_wait_go_back_if_its_connection_ends_before_their_payloads(worker, live, before_payloads):
    before_payloads(partial(cut, worker))
    worker.wait_for_jobs()
    live.queue("q").put("k", LARGE, jid="a", at_most_once=True)
    lose(worker)
    assert worker.granted == []
    assert (live.job("a").state, live.job("a").deaths) == ("waiting", 0)
    wait_for(worker, "a")
    assert [lease.data for lease in worker.granted] == [LARGE]


def test_wait_that_reads_payloads_is_not_ended_again(worker, live, server, namespace, before_payloads):
    def end() -> None:
        assert worker.session.wakeups.lease_behind.is_own

    before_payloads(end)
    worker.wait_for_jobs()
    live.queue("q").put("k", LARGE, jid="a")
    worker.turn_until(lambda: worker.session.wakeups.is_ending)
    worker.session.wakeups.end_wait()  # a master that has a reason to lease
    worker.wait_to_end()
    worker.lease()  # the server has carried out all that came before
    assert b"wake" not in server.redis.lrange(f"{{{namespace}}}:mail:{worker.name}", 0, -1)


def test_worker_with_another_name_asks_for_no_payloads(worker, live, before_payloads):
    asked: list[str] = []
    before_payloads(lambda: asked.append("payloads"))
    worker.wait_for_jobs()
    live.queue("q").put("k", LARGE, jid="a")
    while live.job("a").state != "running":
        pass
    worker.rename()
    worker.turn_until(lambda: worker.session.idle and not worker.session.wakeups.waiting)
    assert (asked, worker.granted) == ([], [])
    assert live.job("a").state == "waiting"
