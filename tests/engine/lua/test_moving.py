"""put of a known jid, and Job.move, from every state. See also test_put.py."""

import pytest

from supervisor.engine.model.errors import JobNotFound, LeaseLost

OPTIONS = {"priority": 4, "retries": 9, "timeout": 7, "max_deaths": 8, "tags": ["red", "blue"]}


def waiting(client, q):
    q.put("k", {"n": 1}, jid="x", **OPTIONS)


def scheduled(client, q):
    q.put("k", {"n": 1}, jid="x", delay=100, **OPTIONS)


def depends(client, q):
    q.put("k", jid="parent")
    q.put("k", {"n": 1}, jid="x", depends=["parent"], on_parent_failure="run", **OPTIONS)


def running(client, q):
    waiting(client, q)
    return q.lease("w")[0]


def front(client, q):
    running(client, q).release()


def failed(client, q):
    running(client, q).fail("group", "message")


def complete(client, q):
    running(client, q).complete({"r": 1})


EVERYWHERE = pytest.mark.parametrize("arrive", [waiting, scheduled, running, front, failed, complete])


@EVERYWHERE
@pytest.mark.parametrize("delay", [0, 5])
def test_job_moves_unchanged_from_any_state(client, clock, arrive, delay):
    held = arrive(client, client.queue("old"))
    client.job("x").move("new", delay)
    job = client.job("x")
    assert (job.state, job.queue, job.klass, job.data) == ("scheduled" if delay else "waiting", "new", "k", {"n": 1})
    assert (job.priority, job.retries, job.timeout_s, job.max_deaths) == (4, 9, 7.0, 8)
    assert (job.tags, job.due_unix) == (["red", "blue"], clock.now + delay if delay else None)
    assert (job.failures, job.deaths, job.interruptions, job.failure, job.result) == (0, 0, 0, None, None)
    assert not held or not held.complete()


@EVERYWHERE
def test_put_replaces_only_named_tags(client, arrive):
    arrive(client, client.queue("old"))
    client.queue("new").put("k", jid="x")
    assert client.job("x").tags == ["red", "blue"]
    client.queue("new").put("k", jid="x", tags=["green", "blue"])
    assert client.job("x").tags == ["green", "blue"]
    assert client.tags() == {"blue": 1, "green": 1}
    client.queue("new").put("k", jid="x", tags=[])
    assert (client.job("x").tags, client.tags()) == ([], {})


@pytest.mark.parametrize("verb", ["put", "move"])
def test_worker_of_a_moved_job_has_lost_the_lease(client, verb):
    held = running(client, client.queue("old"))
    if verb == "put":
        client.queue("old").put("k", jid="x")
    else:
        client.job("x").move("old")
    assert [held.complete(), held.fail("g", "m"), held.release()] == [False, False, False]
    for refused in (held.renew, held.retry, lambda: held.died("oom")):
        with pytest.raises(LeaseLost):
            refused()
    assert (client.job("x").state, client.worker("w").running) == ("waiting", [])


def test_worker_loses_the_lease_of_a_job_by_its_own_move(client):
    held = running(client, client.queue("old"))
    client.job("x").move("new")
    (again,) = client.queue("new").lease("w")
    assert again.token > held.token
    assert [held.complete(), again.complete()] == [False, True]


def test_move_into_its_own_queue_goes_to_the_back(client):
    q = client.queue("q")
    for jid in "ab":
        q.put("k", jid=jid)
    client.job("a").move("q")
    assert [job.jid for job in q.jobs("waiting")] == ["b", "a"]


def test_move_without_a_delay_ends_an_earlier_one(client):
    client.queue("q").put("k", jid="x", delay=100)
    client.job("x").move("q")
    assert [lease.jid for lease in client.queue("q").lease("w")] == ["x"]


def test_moved_dependent_job_waits_for_the_same_parents(client):
    depends(client, client.queue("old"))
    client.job("x").move("new")
    job = client.job("x")
    assert (job.state, job.queue, job.dependencies, job.on_parent_failure) == ("depends", "new", ["parent"], "run")
    client.queue("old").lease("w")[0].complete()
    assert [lease.jid for lease in client.queue("new").lease("w")] == ["x"]


@pytest.mark.parametrize(
    ("given", "state", "parents"),
    [({}, "depends", ["parent"]), ({"depends": []}, "waiting", []), ({"depends": ["other"]}, "depends", ["other"])],
)
def test_put_keeps_unnamed_dependencies(client, given, state, parents):
    client.queue("q").put("k", jid="other")
    depends(client, client.queue("q"))
    client.queue("q").put("k", jid="x", **given)
    job = client.job("x")
    assert (job.state, job.dependencies) == (state, parents)
    assert client.job("parent").dependents == (["x"] if parents == ["parent"] else [])


def test_moved_parent_keeps_its_dependents(client):
    depends(client, client.queue("q"))
    client.job("parent").move("new")
    assert client.job("x").state == "depends"
    client.queue("new").lease("w")[0].complete()
    assert client.job("x").state == "waiting"


def test_move_of_a_missing_job_is_refused(client):
    client.queue("q").put("k", jid="x")
    job = client.job("x")
    client.cancel("x")
    with pytest.raises(JobNotFound):
        job.move("new")
    assert (client.job("x"), list(client.queues())) == (None, ["q"])


def test_refused_put_of_a_known_jid_changes_nothing(client, server, namespace):
    waiting(client, client.queue("q"))
    before = server.dump(namespace)
    for bad in ({"retries": -1}, {"tags": ["ok", ""]}, {"depends": "a"}, {"on_parent_failure": "maybe"}):
        with pytest.raises((TypeError, ValueError)):
            client.queue("new").put("k", jid="x", **bad)
    assert server.dump(namespace) == before


def test_a_moved_job_names_its_queues_in_its_history(client, clock):
    failed(client, client.queue("old"))
    clock.tick(7)
    client.job("x").move("new")
    story = [(entry["what"], entry.get("queue"), entry["when"] - clock.now) for entry in client.job("x").history]
    assert story == [("put", "old", -7), ("popped", None, -7), ("failed", None, -7), ("put", "new", 0)]
