"""put_many with two batches under way: their order, and what an error says of each."""

import asyncio
import base64
import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import hiredis
import pytest
import redis

from supervisor.engine.client.answers import checked_many
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_client import Client
from supervisor.engine.model import new_jobs
from supervisor.engine.model.errors import DependencyError, LeaseholdError, OutcomeUnknown, PutJobs, StoreUnavailable
from tests.between import Between
from tests.lengths import SOON_S

Put = Callable[..., list[str]]

NO_SCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"


class Watching(Between):
    """Knows how many puts are under way, and may hold back one answer, or hang up in place of one or of a put."""

    def __init__(self, path, upstream) -> None:
        self.most_under_way = 0
        self.held, self.awaited = 1, 0  # this answer, from 0, waits for so many puts
        self.patience_s = SOON_S
        self.passed: int | None = None  # hang up after so many answers to puts; None: never
        self.taken: int | None = None  # hang up after so many puts, while the next one comes in; None: never
        self.on_put: Callable[[int], Any] = lambda _nth: None
        self.denied: int | None = None  # this answer, from 0, says that the script is lost; None: none does
        self.sent = self._answered = 0
        self._asked, self._told = hiredis.Reader(), hiredis.Reader()
        self._are_puts: deque[bool] = deque()  # of the commands under way
        self._news = threading.Condition()
        super().__init__(path, upstream)

    def release(self) -> None:
        """Hold back no answer any more."""
        with self._news:
            self.awaited = 0
            self._news.notify_all()

    def request(self, far, data) -> bool:
        if self.sent == self.taken:
            return False
        self._asked.feed(data)
        with self._news:
            while (words := self._asked.gets()) is not False:
                is_put = words[0] == b"EVALSHA"
                self._are_puts.append(is_put)
                self.sent += is_put
                if is_put:
                    self.on_put(self.sent)
            self.most_under_way = max(self.most_under_way, self.sent - self._answered)
            self._news.notify_all()
        return super().request(far, data)

    def reply(self, near, data) -> bool:
        passed_on = 0
        for end in range(1, len(data) + 1):  # one by one: an answer that is held back holds back none before it
            self._told.feed(data[end - 1 : end])
            if self._told.gets() is False:
                continue
            is_put, number = self._are_puts.popleft(), self._answered
            if is_put and not self._is_passed():
                return False
            near.sendall(NO_SCRIPT if is_put and number == self.denied else data[passed_on:end])
            passed_on = end
        return super().reply(near, data[passed_on:])

    def _is_passed(self) -> bool:
        with self._news:
            if self._answered == self.held:
                self._news.wait_for(lambda: self.sent >= self.awaited, self.patience_s)
            if self._answered == self.passed:
                return False
            self._answered += 1
            return True


@pytest.fixture
def proxy(server, tmp_path) -> Iterator[Watching]:
    watching = Watching(tmp_path / "proxy", server.socket)
    yield watching
    watching.close()


@pytest.fixture(params=["sync", "async"])
def put_many(request, namespace) -> Put:
    """Call put_many of a new client."""

    def put(url, jobs):
        with Client(url, namespace) as client:
            return client.queue("q").put_many(jobs)

    async def put_async(url, jobs):
        async with AsyncClient(url, namespace) as client:
            return await client.queue("q").put_many(jobs)

    return put if request.param == "sync" else lambda *given: asyncio.run(put_async(*given))


@pytest.fixture
def live(server, namespace) -> Iterator[Client]:
    with Client(server.url, namespace) as client:
        client.queue("other").put("k")  # the server has the script
        yield client


def numbered(count, **options):
    """Jobs whose jids are their numbers, from 1."""
    return [{"klass": "k", "jid": str(number), **options} for number in range(1, count + 1)]


def jids(first, last):
    return [str(number) for number in range(first, last + 1)]


def failure(put_many, url, jobs, kind=LeaseholdError):
    with pytest.raises(kind) as raised:
        put_many(url, jobs)
    assert raised.value.jobs is not None
    return raised.value


def waiting(live):
    """The jids of waiting jobs, in the order in which they are leased."""
    found = []
    while leases := live.queue("q").lease("w", 1000):
        found += [lease.jid for lease in leases]
    return found


# under way


def test_two_batches_are_under_way_in_their_order(put_many, live, proxy):
    proxy.awaited = 3
    assert put_many(f"unix://{proxy.path}", numbered(4500)) == jids(1, 4500)
    assert proxy.most_under_way == 2
    assert waiting(live) == jids(1, 4500)


def test_first_batch_goes_alone(put_many, live, proxy):
    proxy.held, proxy.awaited, proxy.patience_s = 0, 2, 0.3
    assert put_many(f"unix://{proxy.path}", numbered(1500)) == jids(1, 1500)
    assert proxy.most_under_way == 1


def test_batches_of_jobs_with_parents_wait_for_each_other(put_many, live, proxy):
    proxy.awaited, proxy.patience_s = 3, 0.3
    jobs = numbered(3500)
    jobs[2000]["depends"] = ["1"]
    assert put_many(f"unix://{proxy.path}", jobs) == jids(1, 3500)
    assert proxy.most_under_way == 1
    assert live.job("2001").state == "depends"


def test_batches_of_many_megabytes_wait_for_each_other(put_many, live, proxy):
    proxy.awaited, proxy.patience_s = 3, 0.3
    jobs = numbered(3500)
    jobs[2000]["data"] = b"x" * (2**24 + 1)
    assert put_many(f"unix://{proxy.path}", jobs) == jids(1, 3500)
    assert proxy.most_under_way == 1


def test_health_check_takes_no_answer_for_its_own(server, namespace, live):
    given = redis.Redis(unix_socket_path=str(server.socket), health_check_interval=0.000001)
    with given, Client(namespace=namespace, redis=given) as client:
        assert client.queue("q").put_many(numbered(4500)) == jids(1, 4500)
    assert waiting(live) == jids(1, 4500)


def test_one_connection_is_enough(put_many, server, live):
    assert put_many(server.url_with(max_connections=1), numbered(4500)) == jids(1, 4500)
    assert waiting(live) == jids(1, 4500)


def test_large_batches_keep_their_order(put_many, server, live):
    """Batches of more than a megabyte go over another connection than the others."""
    jobs = numbered(4000)
    for job in jobs[1000:2000]:
        job["data"] = "x" * 1500
    assert put_many(server.url, jobs) == jids(1, 4000)
    assert waiting(live) == jids(1, 4000)


def test_lost_scripts_are_loaded_and_the_order_is_kept(put_many, server, live):
    server.redis.script_flush()
    assert put_many(server.url, numbered(2500)) == jids(1, 2500)
    assert waiting(live) == jids(1, 2500)


@pytest.mark.parametrize("put", [2, 3])
def test_scripts_lost_between_two_batches_are_loaded(put_many, server, live, proxy, put):
    proxy.on_put = lambda nth: server.redis.script_flush() if nth == put else None
    assert put_many(f"unix://{proxy.path}", numbered(4500)) == jids(1, 4500)
    assert waiting(live) == jids(1, 4500)


def test_no_batch_is_sent_again_behind_a_refused_one(put_many, server, live, proxy):
    jobs = lose_tags(live)
    proxy.on_put = lambda nth: server.redis.script_flush() if nth == 2 else None
    error = failure(put_many, f"unix://{proxy.path}", jobs)
    assert (error.jobs.put, error.jobs.not_put) == (jids(1, 1000), jids(1001, 4500))


def test_batch_whose_script_is_lost_is_not_sent_again_after_a_refusal(put_many, live, proxy):
    """The batch before it was refused by a server that had the script."""
    proxy.denied = 2
    error = failure(put_many, f"unix://{proxy.path}", lose_tags(live))
    assert proxy.sent == 3
    assert (error.jobs.put, error.jobs.unknown, error.jobs.not_put) == (jids(1, 1000), [], jids(1001, 4500))


def test_scripts_lost_again_and_again_refuse_a_batch(put_many, server, live, proxy):
    proxy.on_put = lambda nth: server.redis.script_flush() if nth >= 2 else None
    error = failure(put_many, f"unix://{proxy.path}", numbered(4500), StoreUnavailable)
    assert (error.jobs.put, error.jobs.unknown, error.jobs.not_put) == (jids(1, 1000), [], jids(1001, 4500))
    assert "No matching script" in str(error)
    assert waiting(live) == jids(1, 1000)


def test_holder_of_a_claim_is_answered_by_every_batch(put_many, server):
    jobs = numbered(3500)
    for number in (0, 700, 1500, 3300):
        jobs[number]["unique"] = "key"
    answers = put_many(server.url, jobs)
    assert [answers[number] for number in (0, 700, 1500, 3300)] == ["1"] * 4


def test_no_jobs_need_no_server(put_many):
    assert put_many("unix:///nowhere", []) == []


# errors


def lose_tags(live):
    """Have jobs 1,001 to 1,060 lose more tags by a put than one call may take away. Return 4,500 jobs with them."""
    lost = jids(1001, 1060)
    live.queue("q").put_many({"klass": "k", "jid": jid, "tags": [f"{jid}-{n}" for n in range(100)]} for jid in lost)
    jobs = numbered(4500)
    for job in jobs[1000:1060]:
        job["tags"] = []
    return jobs


def test_error_of_a_batch_names_the_next_one_that_was_put(put_many, server, live):
    error = failure(put_many, server.url, lose_tags(live))
    assert error.jobs == PutJobs([*jids(1, 1000), *jids(2001, 3000)], [], [*jids(1001, 2000), *jids(3001, 4500)])
    assert "lose too many tags" in str(error)
    assert str(error).endswith(
        " Of the 4,500 jobs 1 to 1,000 were put; 1,001 to 2,000 were not put; 2,001 to 3,000 were put; 3,001 to 4,500"
        " were not put."
    )
    assert set(waiting(live)) == {*jids(1, 1060), *jids(2001, 3000)}


def test_refused_batch_of_parents_leaves_its_children_unsent(put_many, server, live):
    live.queue("q").put_many([{"klass": "k", "jid": "1"}, {"klass": "k", "jid": "child", "depends": ["1"]}])
    jobs = numbered(1500)
    jobs[0]["depends"] = ["child"]  # it would wait for itself
    jobs[1200]["depends"] = ["2"]
    error = failure(put_many, server.url, jobs, DependencyError)
    assert error.jobs == PutJobs([], [], jids(1, 1500))
    assert live.job("1201") is None


def test_error_of_one_batch_says_no_more_than_that_of_a_put(put_many, server, live):
    live.queue("q").put_many([{"klass": "k", "jid": "1"}, {"klass": "k", "jid": "child", "depends": ["1"]}])
    error = failure(put_many, server.url, numbered(2, depends=["child"]), DependencyError)
    assert "Of the" not in str(error)
    assert error.jobs == PutJobs([], [], ["1", "2"])


@pytest.mark.parametrize(("put", "has_put"), [(1, 0), (2, 1000)])
def test_full_memory_refuses_all_that_follows(put_many, server, live, proxy, put, has_put):
    proxy.on_put = lambda nth: server.redis.config_set("maxmemory", 1) if nth == put else None
    try:
        error = failure(put_many, f"unix://{proxy.path}", numbered(4500), StoreUnavailable)
    finally:
        server.redis.config_set("maxmemory", 0)
    assert error.jobs == PutJobs(jids(1, has_put), [], jids(has_put + 1, 4500))
    assert "memory" in str(error)
    assert waiting(live) == jids(1, has_put)


def test_unreachable_server_has_put_nothing(put_many):
    error = failure(put_many, "unix:///nowhere", numbered(1500), StoreUnavailable)
    assert error.jobs == PutJobs([], [], jids(1, 1500))


def test_lost_answers_leave_both_batches_unknown(put_many, live, proxy):
    proxy.awaited, proxy.passed = 3, 1
    error = failure(put_many, f"unix://{proxy.path}", numbered(4500), OutcomeUnknown)
    assert error.jobs == PutJobs(jids(1, 1000), jids(1001, 3000), jids(3001, 4500))
    assert str(error).endswith(
        " Of the 4,500 jobs 1 to 1,000 were put; 1,001 to 3,000 may have been put; 3,001 to 4,500 were not put."
    )
    assert {*jids(1, 1000)} <= {*waiting(live)} <= {*jids(1, 3000)}


def test_lost_answer_of_the_later_batch_leaves_the_earlier_put(put_many, live, proxy):
    proxy.awaited, proxy.passed = 3, 2
    error = failure(put_many, f"unix://{proxy.path}", numbered(5500), OutcomeUnknown)
    assert error.jobs is not None
    assert error.jobs.put == jids(1, 2000)
    assert error.jobs.unknown[:1000] == jids(2001, 3000)
    assert error.jobs.not_put[-1500:] == jids(4001, 5500)  # the fourth batch may be under way
    assert {*jids(1, 2000)} <= {*waiting(live)} <= {*jids(1, 2000), *error.jobs.unknown}


def test_unknown_outcome_comes_before_a_refusal(put_many, live, proxy):
    jobs = lose_tags(live)
    proxy.awaited, proxy.passed = 3, 2
    error = failure(put_many, f"unix://{proxy.path}", jobs, OutcomeUnknown)
    assert error.jobs == PutJobs(jids(1, 1000), jids(2001, 3000), [*jids(1001, 2000), *jids(3001, 4500)])
    assert "lose too many tags" in str(error)


def test_batch_that_was_cut_off_was_not_put(namespace, live, proxy):
    """The batch is larger than what the kernel takes without a reader, so that it cannot be sent as a whole."""
    proxy.taken = 2
    with Client(f"unix://{proxy.path}", namespace) as client, pytest.raises(OutcomeUnknown) as raised:
        client.queue("q").put_many(numbered(3500, data="x" * 3000))
    assert raised.value.jobs is not None
    assert raised.value.jobs.put == jids(1, 1000)
    assert raised.value.jobs.unknown in ([], jids(1001, 2000))
    assert raised.value.jobs.not_put[-1500:] == jids(2001, 3500)
    assert {*waiting(live)} <= {*jids(1, 2000)}


# a call that ends before its answers


def test_cancelled_call_leaves_the_connection_to_others(namespace, live, proxy):
    async def main():
        async with AsyncClient(f"unix://{proxy.path}", namespace) as client:
            await client.queue("other").put("k")
            proxy.held, proxy.awaited = 2, 6
            putting = asyncio.create_task(client.queue("q").put_many(numbered(4500)))
            while proxy.most_under_way < 2:
                await asyncio.sleep(0.001)
            putting.cancel()
            await asyncio.wait([putting])
            return await asyncio.gather(client.queue("other").length(), client.queue("other").length())

    assert asyncio.run(main()) == [2, 2]
    assert waiting(live) == jids(1, 3000)


def test_interrupted_call_leaves_no_answer_to_the_next(server, namespace, live, monkeypatch):
    with Client(server.url, namespace) as client:
        answers, read = [], client._store.first._read

        def interrupted(*given):
            if answers:
                raise KeyboardInterrupt
            answers.append(read(*given))
            return answers[0]

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(client._store.first, "_read", interrupted)
            client.queue("q").put_many(numbered(4500))  # two batches are under way
        assert client.queue("other").length() == 1
    assert set(waiting(live)) <= {*jids(1, 3000)}


# traces and jids


def test_jobs_of_one_call_have_one_trace(put_many, server, live, monkeypatch):
    looked_up = []
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    monkeypatch.setattr(new_jobs, "current_trace", lambda: looked_up.append(1) or trace)
    made = put_many(server.url, [{"klass": "k"} for _ in range(2000)])
    assert looked_up == [1]
    assert {live.job(made[0]).trace, live.job(made[-1]).trace} == {trace}


def test_fork_while_jobs_are_given_has_jids_of_its_own(server, live):
    """The jids of many jobs are drawn together."""
    readable, writable = os.pipe()
    pids = []

    def given():
        yield {"klass": "k"}
        pids.append(os.fork())
        yield {"klass": "k"}

    batches = checked_many("q", given())
    if pids == [0]:
        os.write(writable, batches[0][1].jid.encode())
        os._exit(0)
    assert os.waitpid(pids[0], 0)[1] == 0
    assert os.read(readable, 22).decode() != batches[0][1].jid
    os.close(readable)
    os.close(writable)


def test_jids_of_many_are_those_of_one(put_many, server):
    made = put_many(server.url, [{"klass": "k"} for _ in range(3000)])
    drawn = islice(new_jobs._new_jids(), 20_000)
    for jid in {*made, *drawn}:
        raw = base64.urlsafe_b64decode(jid + "==")
        assert uuid.UUID(bytes=raw).version == 4
        assert base64.urlsafe_b64encode(raw)[:22].decode() == jid
        assert len(jid) == 22
        assert not jid.startswith("-")
    assert len({*made}) == 3000
