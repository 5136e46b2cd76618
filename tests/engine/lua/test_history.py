"""The history of a job: its steps with their times, and log lines."""

import pytest

from supervisor.engine.commands import settling
from supervisor.engine.model.errors import JobNotFound
from supervisor.engine.model.outcomes import Released


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def story(client, clock):
    """Return the events of a job. Their times must not go back."""

    def told(jid="x"):
        history = client.job(jid).history
        assert [entry["when"] for entry in history] == sorted(entry["when"] for entry in history)
        assert history[-1]["when"] <= clock.now
        return [{name: value for name, value in entry.items() if name != "when"} for entry in history]

    return told


PUT = {"what": "put", "queue": "q"}
POPPED = {"what": "popped", "worker": "w"}


def drained(held):
    held._calls.call(settling.settle, "w", [Released(held, reason="drain")])


def test_history_runs_from_put_to_end(client, q, story, clock):
    q.put("k", jid="x")
    assert story() == [PUT]
    clock.tick(1)
    (held,) = q.lease("w")
    assert story() == [PUT, POPPED]
    clock.tick(2)
    held.complete()
    assert story() == [PUT, POPPED, {"what": "completed"}]
    assert [entry["when"] for entry in client.job("x").history] == [clock.now - 3, clock.now - 2, clock.now]


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda held: held.retry(group="g"), {"what": "retried", "worker": "w", "group": "g"}),
        (lambda held: held.fail("g", "m"), {"what": "failed", "worker": "w", "group": "g"}),
        (lambda held: held.release(), {"what": "released", "worker": "w"}),
        (drained, {"what": "released", "worker": "w", "reason": "drain"}),
        (lambda held: held.died("oom"), {"what": "died", "worker": "w", "reason": "oom"}),
        (lambda held: held.complete(next="q"), {"what": "advanced", "to": "q"}),
    ],
)
def test_every_way_to_end_a_lease_is_told(q, story, clock, end, told):
    q.put("k", jid="x")
    clock.tick(1)
    (held,) = q.lease("w")
    clock.tick(1)
    end(held)
    assert story()[:3] == [PUT, POPPED, told]


def test_a_job_whose_worker_was_lost_tells_so(client, q, story, clock):
    q.put("k", jid="x", max_deaths=2)
    for _ in range(2):
        q.lease("w", ttl=1)
        clock.tick(10)
        client.sweep()
    died = {"what": "died", "reason": "lost", "worker": "w"}
    assert story() == [PUT, POPPED, died, POPPED, died, {"what": "failed", "group": "died:lost", "worker": "w"}]


def test_an_exhausted_job_names_its_group(q, story):
    q.put("k", jid="x", retries=0)
    q.lease("w")[0].retry()
    assert story()[2:] == [{"what": "failed", "group": "failed-retries-q", "worker": "w"}]


def test_operators_acts_are_in_the_history(client, q, story, clock):
    q.put("k", jid="x")
    q.lease("w")
    client.job("x").release()
    client.job("x").fail("g", "m")
    client.unfail("g")
    client.job("x").move("other")
    assert [entry["what"] for entry in story()] == ["put", "popped", "released", "failed", "put", "put"]


def test_each_stage_of_a_job_begins_with_a_put(client, q, story, clock):
    q.put("k", jid="x")
    q.lease("w")[0].complete(next="second")
    assert story() == [PUT, POPPED, {"what": "advanced", "to": "second"}, {"what": "put", "queue": "second"}]
    clock.tick(1)
    client.queue("second").lease("w")[0].complete()
    q.put("k", jid="x")
    assert [entry["what"] for entry in story()][4:] == ["popped", "completed", "put"]


# Lines.


def test_log_line_has_its_data(client, q, story, clock):
    q.put("k", jid="x")
    clock.tick(1)
    client.log("x", "half done", {"rows": 5})
    client.log("x", "no data")
    line = {"what": "log", "message": "half done", "data": {"rows": 5}}
    assert story() == [PUT, line, {"what": "log", "message": "no data"}]
    assert client.job("x").log == [
        {**line, "when": clock.now}, {"what": "log", "message": "no data", "when": clock.now},
    ]  # fmt: skip


@pytest.mark.parametrize("message", ["", 'a "quoted" \\ line\nand another', "é\x00€", "]}"])
def test_a_line_comes_back_unchanged(client, q, message):
    q.put("k", jid="x")
    client.log("x", message, [message, 2**60, [], {}])
    assert [(line["message"], line["data"]) for line in client.job("x").log] == [(message, [message, 2**60, [], {}])]


def test_log_line_during_a_run_follows_its_lease(client, q, story, clock):
    q.put("k", jid="x")
    client.log("x", "before")
    for end in (lambda held: held.release(), lambda held: held.complete()):
        clock.tick(1)
        (held,) = q.lease("w")
        clock.tick(1)
        client.log("x", "during")
        assert [entry["what"] for entry in story()][-2:] == ["popped", "log"]
        clock.tick(1)
        end(held)
    assert [entry["what"] for entry in story()] == [
        "put", "log", "popped", "log", "released", "popped", "log", "completed",
    ]  # fmt: skip


def test_log_line_for_an_unknown_job_is_refused(client, keys):
    with pytest.raises(JobNotFound):
        client.log("nobody", "hello")
    assert keys() == set()


def test_a_line_that_is_too_long_is_refused(client, server, namespace, q):
    q.put("k", jid="x")
    before = server.dump(namespace)
    with pytest.raises(ValueError, match="message and data"):
        client.log("x", "x" * 4096)
    assert server.dump(namespace) == before


# Its length.


def test_first_entry_and_the_last_99_are_kept(client, q):
    q.put("k", jid="x")
    for i in range(150):
        client.log("x", f"line {i}")
    history = client.job("x").history
    assert (len(history), history[0]["what"]) == (100, "put")
    assert [entry["message"] for entry in history[1:]] == [f"line {i}" for i in range(51, 150)]


def test_present_lease_is_the_last_of_a_hundred_entries(client, q):
    q.put("k", jid="x")
    for i in range(150):
        client.log("x", f"line {i}")
    (held,) = q.lease("w")
    held.complete()
    history = client.job("x").history
    assert len(history) == 100
    assert [entry["what"] for entry in (history[0], *history[-3:])] == ["put", "log", "popped", "completed"]


def test_job_put_from_queue_to_queue_keeps_its_first_put(client, q):
    q.put("k", jid="x")
    for i in range(120):
        client.job("x").move(f"q{i}")
    history = client.job("x").history
    assert [entry["queue"] for entry in history] == ["q", *(f"q{i}" for i in range(21, 120))]


def test_a_history_goes_with_its_job(client, q, keys):
    q.put("k", jid="x")
    client.log("x", "line")
    client.cancel("x")
    assert not {key for key in keys() if "x" in key.split(":")}
