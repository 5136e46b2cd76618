"""Requests to running supervisors stand until they are answered, even if hints are lost."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from supervisor import clock as times
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import leasing, mailbox
from supervisor.engine.commands.mailbox import OperatorRequest
from supervisor.engine.model.errors import LeaseholdError
from tests.engine.invariants import left_over, read_namespace
from tests.engine.played import PlayedWorker, Reply


def echo(ask: OperatorRequest):
    return {"what": ask.what, "argument": ask.argument}


@pytest.fixture
def play(server, namespace):
    """Workers that have been started: play(answers)."""
    played = []

    def start(answers=None) -> PlayedWorker:
        played.append(PlayedWorker(server.url, namespace, answers))
        return played[-1].start()

    yield start
    for worker in played:
        worker.close()


@pytest.fixture
def listening(server, namespace):
    """Workers that listen and answer, each in a thread: listening(answers)."""
    with ExitStack() as stack:

        def start(answers=echo) -> PlayedWorker:
            worker = PlayedWorker(server.url, namespace, answers)
            stack.callback(worker.close)
            return stack.enter_context(worker.listening())

        yield start


@pytest.fixture
def asks(live):
    """Return the open requests to a worker."""
    return lambda worker: calls_of(live).call(mailbox.requests, worker)


# Both clients.


def test_request_to_all_returns_the_answers_of_all_live_workers(live, listening):
    workers = [listening(), listening()]
    answers = live.ask(None, "stacks")
    assert answers == {worker.name: {"what": "stacks", "argument": None} for worker in workers}


def test_some_are_asked_by_name_with_an_argument(live, listening):
    one, two, other = listening(), listening(), listening()
    assert live.ask(one.name, "scale", argument={"by": 2}) == {one.name: {"what": "scale", "argument": {"by": 2}}}
    assert live.ask([two.name, one.name], "scale").keys() == {two.name, one.name}
    assert other.asked == []


def test_the_async_client_asks_the_same(server, namespace, listening):
    async def main():
        async with AsyncClient(server.url, namespace) as client:
            return await client.ask(None, "stacks"), await client.ask(worker.name, "scale", 5.0, [1])

    worker = listening()
    assert asyncio.run(main()) == (
        {worker.name: {"what": "stacks", "argument": None}},
        {worker.name: {"what": "scale", "argument": [1]}},
    )


def test_an_answer_comes_at_once(live, listening, measured_s):
    listening()
    took_s = min(measured_s(lambda: live.ask(None, "stacks")) for _ in range(5))
    assert took_s < 0.25, "nobody polls"


@pytest.fixture
def measured_s():
    """A function that returns the time of a call."""

    def measure(call) -> float:
        began_at = times.monotonic()
        call()
        return times.monotonic() - began_at

    return measure


def test_the_answers_of_others_are_there_if_one_has_not_answered_in_time(live, listening, play, measured_s):
    silent, worker = play(), listening()
    answers = {}
    took_s = measured_s(lambda: answers.update(live.ask(None, "stacks", timeout=2)))
    assert answers == {silent.name: None, worker.name: {"what": "stacks", "argument": None}}
    assert took_s >= 2


def test_request_without_workers_returns_nothing(live, server, namespace):
    live.queue("q").put("k")
    live.queue("q").lease("a client that leases is no supervisor")
    before = server.dump(namespace)
    assert live.ask(None, "stacks") == {}
    assert server.dump(namespace) == before


def test_unknown_name_among_workers_refuses_the_request(live, play, server, namespace):
    worker = play()
    before = server.dump(namespace)
    with pytest.raises(LeaseholdError, match=r"there is no worker nobody \(any more\); `leasehold status` shows"):
        live.ask([worker.name, "nobody"], "stacks")
    assert server.dump(namespace) == before


def test_a_worker_that_has_left_is_not_there(live, play, asks, keys):
    worker = play()
    live.ask(worker.name, "stacks", timeout=0)
    worker.leave()
    with pytest.raises(LeaseholdError, match="there is no worker"):
        live.ask(worker.name, "stacks")
    assert live.ask(None, "stacks") == {}
    assert {key for key in keys() if not key.startswith("course:")} == {"audit"}


def test_idle_worker_unseen_for_a_minute_is_asked_only_by_name(client, clock):
    for worker in ("dead", "busy", "idle"):
        calls_of(client).call(leasing.resume, worker, 1, [])
    client.queue("q").put("k")
    client.queue("q").lease("busy", ttl=1)
    client.queue("q").lease("dead")
    clock.tick(61)
    client.queue("q").lease("idle", 0)
    assert client.ask(None, "stacks", timeout=0) == {"idle": None, "busy": None}
    assert client.ask("dead", "stacks", timeout=0) == {"dead": None}


# A worker's side.


def test_a_request_stands_until_its_answer_and_is_told_once(live, play, asks):
    worker = play()
    with ThreadPoolExecutor() as pool:
        asker = pool.submit(live.ask, worker.name, "stacks", 20.0)
        worker.listen_until_asked()
        (ask,) = asks(worker.name)
        worker.session.serving.look_for_requests()
        worker.lease()
        assert worker.asked == [ask]
        worker.reply(Reply(ask, [1, 2]))
        assert asker.result(20) == {worker.name: [1, 2]}
    assert asks(worker.name) == []


def test_a_lost_hint_costs_time_and_no_request(live, play, server, namespace):
    worker = play()
    live.ask(None, "stacks", timeout=0)
    assert server.redis.lrange(f"{{{namespace}}}:mail:{worker.name}", 0, -1) == [b"ask"]
    server.redis.delete(f"{{{namespace}}}:mail:{worker.name}")
    worker.lease()
    assert [ask.what for ask in worker.asked] == ["stacks"]


def test_requests_and_other_queues_are_seen_together(live, play):
    worker = play()
    live.serve(worker.name, ["other"])
    live.ask(None, "first", timeout=0)
    live.ask(None, "second", timeout=0)
    worker.listen_until_asked(2)
    assert [ask.what for ask in worker.asked] == ["first", "second"]
    assert worker.session.serving.names == ("other",)


def test_a_request_to_answer_changes_no_queues(live, play):
    worker = play()
    live.ask(None, "stacks", timeout=0)
    worker.listen_until_asked()
    assert worker.session.serving.names == ("q",)


def test_request_unanswered_at_a_lost_connection_is_read_again(live, play, asks):
    worker = play()
    live.ask(None, "stacks", timeout=0)
    worker.listen_until_asked()
    (ask,) = worker.asked
    worker.lose_the_connection([Reply(ask, "lost on its way")])
    assert worker.asked == [ask, ask]
    worker.reply(Reply(ask, "come"))
    assert asks(worker.name) == []


def test_pending_request_is_not_repeated_after_an_outage(live, play):
    worker = play()
    live.ask(None, "stacks", timeout=0)
    worker.listen_until_asked()
    worker.lose_the_connection()
    assert len(worker.asked) == 1


def test_request_made_during_an_outage_arrives_afterwards(live, play, server, namespace):
    worker = play()
    live.ask(None, "stacks", timeout=0)
    server.redis.delete(f"{{{namespace}}}:mail:{worker.name}")
    worker.lose_the_connection()
    assert len(worker.asked) == 1


@pytest.mark.parametrize(
    ("answer", "error"), [("x" * 2**20, "answer must have at most 1048576 bytes"), ({1}, "answer must be JSON")]
)
def test_an_answer_that_cannot_be_sent_is_said_to_be_so(live, listening, answer, error):
    worker = listening(lambda _ask: answer)
    assert live.ask(None, "stacks")[worker.name]["error"].startswith(error)


def test_an_answer_has_at_most_a_mebibyte(live, listening):
    worker = listening(lambda _ask: {"stack": "x" * 1_000_000})
    assert len(live.ask(None, "stacks")[worker.name]["stack"]) == 1_000_000


def test_a_request_is_answered_once(live, play, keys, server, namespace):
    worker = play()
    request = "a request"
    calls_of(live).call(mailbox.ask, request, worker.name, "stacks")
    assert calls_of(live).call(mailbox.answer, worker.name, request, 1) is True
    before = server.dump(namespace)
    assert calls_of(live).call(mailbox.answer, worker.name, request, 2) is False
    assert calls_of(live).call(mailbox.answer, "nobody", request, 2) is False
    assert server.dump(namespace) == before


# Nothing stays.


def test_expired_request_is_neither_told_nor_answered(client, clock):
    calls_of(client).call(leasing.resume, "w", 1, [])
    calls_of(client).call(mailbox.ask, "short", "w", "stacks", stands_s=5)
    calls_of(client).call(mailbox.ask, "long", "w", "stacks", stands_s=50)
    assert [ask.id for ask in calls_of(client).call(mailbox.requests, "w")] == ["short", "long"]
    clock.tick(5)
    assert [ask.id for ask in calls_of(client).call(mailbox.requests, "w")] == ["long"]
    assert calls_of(client).call(mailbox.answer, "w", "short", 1) is False


def test_the_hundred_newest_stand(client):
    calls_of(client).call(leasing.resume, "w", 1, [])
    for number in range(103):
        calls_of(client).call(mailbox.ask, f"{number}", "w", "stacks")
    assert [ask.id for ask in calls_of(client).call(mailbox.requests, "w")] == [f"{number}" for number in range(3, 103)]


def test_unanswered_requests_and_unread_answers_expire(client, server, namespace):
    calls_of(client).call(leasing.resume, "w", 1, [])
    calls_of(client).call(mailbox.ask, "long", "w", "stacks", stands_s=500)
    calls_of(client).call(mailbox.ask, "short", "w", "stacks", stands_s=5)
    calls_of(client).call(mailbox.answer, "w", "short", 1)
    ends_s = {name: server.redis.ttl(f"{{{namespace}}}:{name}") for name in ("asks:w", "answer:short")}
    assert 400 < ends_s["asks:w"] <= 500
    assert 0 < ends_s["answer:short"] <= 60
    assert left_over(read_namespace(server.redis, namespace)) == []


def test_a_deregistered_worker_is_asked_nothing_any_more(client, keys):
    calls_of(client).call(leasing.resume, "w", 1, [])
    client.ask("w", "stacks", timeout=0)
    client.deregister("w")
    assert not {key for key in keys() if key.startswith("asks:")}


def test_a_damaged_request_is_passed_over(client, server, namespace):
    calls_of(client).call(leasing.resume, "w", 1, [])
    calls_of(client).call(mailbox.ask, "good", "w", "stacks")
    for damaged in (b"nonsense", b"2000000000\na\nb\nno JSON", b"2000000000000\na\nb\nno JSON"):
        server.redis.lpush(f"{{{namespace}}}:asks:w", damaged)
    assert calls_of(client).call(mailbox.requests, "w") == [OperatorRequest("good", "stacks")]
    assert calls_of(client).call(mailbox.answer, "w", "good", 1) is True


def test_another_clock_does_not_change_requests_and_answers(server, namespace, clock):
    with Client(server.url, namespace, clock) as client:
        calls_of(client).call(leasing.resume, "w", 1, [])
        with ThreadPoolExecutor() as pool:
            asker = pool.submit(client.ask, "w", "stacks", 20.0)
            while not (asks := calls_of(client).call(mailbox.requests, "w")):
                pass
            calls_of(client).call(mailbox.answer, "w", asks[0].id, {"n": 1})
            assert asker.result(20) == {"w": {"n": 1}}
