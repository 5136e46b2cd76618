"""`why_worker` names all that is wrong with a supervisor, and a batch says why it has not ended."""

import pytest

from supervisor.engine.commands.workers import WorkerJobs
from supervisor.engine.why.supervisors import conclude_worker
from tests.engine.played import PlayedWorker
from tests.lengths import SOON_S

HELD = WorkerJobs("w-1", 1_000_000.0, ["a", "b"], [])
SERVING = {
    "state": "serving", "busy": 1, "processes": {"now": 2}, "queues": ["q", "r"], "children": [], "admission": {},
    "redis": {"exchange_ms": 0.3, "reconnects": 0, "lost": None}, "longest_turn_s": 0.01,
    "log": {"dropped": 0, "printed_dropped": 0}, "reload": None,
}  # fmt: skip
RELOAD = {"at_unix": 1_000_000.0, "by": "SIGHUP", "outcome": "failed", "message": "SyntaxError", "traceback": "t"}
LOST = {"exchange_ms": 0.3, "reconnects": 4, "lost": {"ago_s": 7.0, "message": "closed by the server"}}
LOUD = {"printed_dropped": 9, "printed_last": {"ago_s": 7.0, "jid": "loud", "klass": "burst"}}


@pytest.mark.parametrize(
    ("more", "reason", "words"),
    [
        ({}, "serving", "worker w-1 serves q, r; 1 of 2 processes are busy"),
        ({"busy": 2}, "children-busy", "worker w-1 serves q, r; 2 of 2 processes are busy"),
        ({"state": "draining", "left_s": 22.2}, "draining", "is draining, and ends within 22 s, with 1 job running"),
        ({"admission": {"stop": "it is paused"}}, "worker-stopped", "starts no job: it is paused"),
        ({"state": "booting"}, "worker-stopped", "starts no job: it is importing its handlers"),
        (
            {"reload": RELOAD}, "reload-failed",
            "has refused the new code at 1970-01-12 13:46:40 UTC, and works with the old one: SyntaxError",
        ),
        (
            {"redis": LOST}, "redis-cut",
            "has lost its connection to Redis 4 times since it began, the last time 7 s ago: closed by the server",
        ),
        (
            {"redis": {**LOST, "reconnects": 0, "shards": 16, "shards_away": [3, 7]}}, "redis-away",
            "does not reach shards 3, 7 of Redis; it goes on with the other 14; it has lost its connection to Redis 7",
        ),
        ({"redis": {"shards": 1, "shards_away": [0]}}, "redis-away", "worker w-1 does not reach shard 0 of Redis"),
        ({"redis": {"exchange_ms": 312.0}}, "redis-slow", "gets the answers of Redis only after 312 ms"),
        ({"longest_turn_s": 1.5}, "loop-slow", "took 1.5 s for a turn of its loop in the last minute"),
        (
            {"log": {"dropped": 3, "dropped_ago_s": 7.0}}, "log-dropped",
            "has dropped 3 lines of its log, whose reader is too slow",
        ),
        (
            {"log": LOUD}, "log-dropped",
            "has left out 9 lines that jobs have printed, most lately of job loud (burst)",
        ),
    ],
)  # fmt: skip
def test_status_tells_the_reason(more, reason, words):
    why = conclude_worker(HELD, {**SERVING, **more})
    assert why.reason == reason and words in why.sentence, why
    assert why.facts["state"] == more.get("state", "serving") and why.facts["running"] == 2


def test_all_that_is_wrong_is_told_the_gravest_first():
    why = conclude_worker(HELD, {**SERVING, "reload": RELOAD, "redis": LOST, "longest_turn_s": 2})
    assert why.reason == "reload-failed"
    assert "; it has lost its connection" in why.sentence and "; it took 2.0 s for a turn" in why.sentence


def test_loss_of_long_ago_and_status_of_an_older_release_are_no_trouble():
    lost = {**LOST, "lost": {"ago_s": 7200.0, "message": "m"}}
    assert conclude_worker(HELD, {**SERVING, "redis": lost}).reason == "serving"
    log = {"dropped": 1, "dropped_ago_s": 7200.0, "printed_dropped": 1, "printed_last": {"ago_s": 7200.0}}
    assert conclude_worker(HELD, {**SERVING, "log": log}).reason == "serving"
    old = {name: SERVING[name] for name in ("state", "busy", "processes", "queues")}
    assert conclude_worker(HELD, old).reason == "serving"


def test_worker_that_does_not_answer_takes_no_questions_or_is_not_there(client, server, namespace):
    silent = PlayedWorker(server.url, namespace)
    try:
        silent.start()
        why = client.why_worker(silent.name, timeout=0.01)
        assert why.reason == "worker-silent" and "has not answered in time; it was last seen at" in why.sentence
    finally:
        silent.close()
    client.queue("q").put("k", jid="j")
    client.queue("q").lease("plain")
    why = client.why_worker("plain")
    assert why.reason == "unasked" and "takes no questions, as supervisors do; it was last seen" in why.sentence
    assert "holds 1 job" in why.sentence
    assert client.why_worker("nobody").sentence == "there is no worker nobody: it has left, or was never there"


def test_worker_is_asked(live, server, namespace):
    worker = PlayedWorker(server.url, namespace, lambda _request: {**SERVING, "longest_turn_s": 1.5})
    try:
        with worker.listening():
            assert live.why_worker(worker.name, timeout=SOON_S).reason == "loop-slow"
    finally:
        worker.close()


def test_batch_tells_why_it_has_not_ended(client, clock):
    with client.batch("import", on_success={"queue": "q", "klass": "k"}) as batch:
        batch.put("q", "k", jid="a")
        batch.put("q", "k", jid="b")
        why = batch.why()
        assert why.reason == "open" and "its program still puts jobs, or was killed in the block" in why.sentence
        assert why.facts["to_call"] == ["on_success"]
    assert batch.why().sentence == "batch import waits for its jobs: 2 of 2 jobs have not ended"
    batch.pause(by="kim@web-1")
    assert batch.why().reason == "paused-batch" and "is paused, by kim@web-1, since" in batch.why().sentence
    batch.resume()
    first, second = client.queue("q").lease("w", 2)
    first.complete()
    second.fail("g", "m")
    assert batch.why().reason == "failed" and batch.why().sentence.endswith("; 1 job failed")
    assert client.batch("never").why().sentence.startswith("there is no batch never: it was never opened")
