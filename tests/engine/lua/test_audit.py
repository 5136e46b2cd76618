"""The record of who did what: acts, actors, subjects and bounds."""

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import bulk, choices, settling
from supervisor.engine.model.bounds import Login

DAY_S = 86400


@pytest.fixture
def kim(client):
    return client.acting_as("kim@web-1")


@pytest.fixture
def q(kim):
    return kim.queue("q")


def told(client, subject=None):
    return [(act.act, act.kind, act.names, act.number, act.queue, act.value) for act in client.audit(subject)]


def fail(queue, jid):
    queue.put("k", jid=jid)
    (lease,) = queue.lease("w")
    lease.fail("g", "m")


def move_many(client, q):
    calls_of(client).act(bulk.move, choices.Choice("q"), ["x"], "r")


def fail_many(client, q):
    calls_of(client).act(bulk.fail, choices.NOT_COMPLETE, ["x", "nobody"], "g", "m")


#: Act -> what is done to job x of queue q in lane l, and what is recorded of it.
ACTS = {
    "cancel": (lambda c, q: c.cancel("x", "gone"), ("cancel", "job", ("x",), 1, None, None)),
    "cancel by data": (lambda c, q: q.cancel({"n": 1}), ("cancel", "job", ("x",), 1, None, None)),
    "move": (lambda c, q: c.job("x").move("r"), ("move", "job", ("x",), 1, "r", None)),
    "move many": (move_many, ("move", "job", ("x",), 1, None, "r")),
    "priority": (lambda c, q: c.job("x").set_priority(-3), ("priority", "job", ("x",), 1, None, "-3")),
    "fail": (lambda c, q: c.job("x").fail("g", "m"), ("fail", "job", ("x",), 1, None, "g")),
    "signal": (lambda c, q: c.signal("x", "go"), ("signal", "job", ("x",), 1, None, "go")),
    "pause": (lambda c, q: q.pause(), ("pause", "queue", ("q",), 1, None, None)),
    "pause all": (lambda c, q: c.config.set("paused", True), ("pause", "queue", (), 0, None, None)),
    "option": (lambda c, q: c.config.set("grace-q", 9), ("set", "option", ("grace-q",), 1, "q", "9")),
    "pause lane": (lambda c, q: q.lane("l").pause(), ("pause", "lane", ("l",), 1, "q", None)),
    "weight": (lambda c, q: q.lane("l").weight(3), ("weight", "lane", ("l",), 1, "q", "3")),
    "tag": (lambda c, q: c.job("x").tag("a", "b"), ("tag", "job", ("x",), 1, None, "a b")),
    "untag": (lambda c, q: c.job("x").untag("a"), ("untag", "job", ("x",), 1, None, "a")),
    "track": (lambda c, q: c.job("x").track(), ("track", "job", ("x",), 1, None, None)),
    "fail many": (fail_many, ("fail", "job", ("x",), 1, None, "g")),
    "limit": (lambda c, q: c.limit("smtp", 5, "9/s"), ("limit", "limit", ("smtp",), 1, None, "5 at once 9 in 1000 ms")),
    "delete": (lambda c, q: q.delete(), ("delete", "queue", ("q",), 1, None, None)),
    "delete lane": (lambda c, q: q.lane("l").delete(), ("delete", "lane", ("l",), 1, "q", None)),
    "recur": (lambda c, q: q.recur("k", every=60, jid="tick"), ("recur", "recurrence", ("tick",), 1, "q", None)),
    "deregister": (lambda c, q: c.deregister("w"), ("deregister", "worker", ("w",), 1, None, None)),
}


@pytest.mark.parametrize("act", ACTS)
def test_each_act_leaves_a_line_with_its_actor(client, kim, q, clock, act):
    do, line = ACTS[act]
    client.queue("q").put("k", {"n": 1}, jid="x", lane="l")
    do(kim, q)
    assert told(client) == [line]
    assert [(one.actor, one.at_unix) for one in client.audit()] == [("kim@web-1", clock.now)]
    assert client.check() == []


def test_retry_and_release_are_recorded(client, kim, q):
    fail(q, "x")
    kim.job("x").unfail("r")
    fail(q, "y")
    kim.unfail("g")
    client.queue("r").lease("w")
    kim.job("x").release()
    assert told(client) == [
        ("release", "job", ("x",), 1, None, None),
        ("retry", "job", ("y",), 1, None, "g"),
        ("retry", "job", ("x",), 1, "r", None),
    ]


def test_dependencies_marks_and_tags_of_recurring_jobs_are_recorded(client, kim, q):
    client.queue("q").put("k", jid="x", depends=[client.queue("q").put("k", jid="parent")])
    client.queue("q").put("k", jid="other")
    kim.job("x").depend("other")
    kim.job("x").undepend("parent")
    kim.job("x").undepend(all=True)
    kim.track("x")
    kim.untrack("x")
    kim.untrack("x")
    client.queue("q").recur("k", every=60, jid="tick")
    kim.recurring("tick").tag("a")
    kim.recurring("tick").untag("a")
    assert told(client) == [
        ("untag", "recurrence", ("tick",), 1, None, "a"),
        ("tag", "recurrence", ("tick",), 1, None, "a"),
        ("untrack", "job", ("x",), 1, None, None),
        ("track", "job", ("x",), 1, None, None),
        ("undepend", "job", ("x",), 1, None, "all"),
        ("undepend", "job", ("x",), 1, None, "parent"),
        ("depend", "job", ("x",), 1, None, "other"),
    ]
    assert client.check() == []


def test_requests_to_supervisors_are_recorded_and_looks_are_not(client, kim):
    name = "web-1"
    calls_of(client).call(settling.settle, name, [], number=1)
    for what in ("status", "stacks", "pause", "drain"):
        kim.ask(name, what, timeout=0)
    kim.serve(name, ["a", "b"])
    assert told(client, name) == [
        ("serve", "worker", (name,), 1, None, "a b"),
        ("drain", "worker", (name,), 1, None, None),
        ("pause", "worker", (name,), 1, None, None),
        ("stacks", "worker", (name,), 1, None, None),
    ]


def test_batch_and_its_members_are_recorded(client, kim):
    with client.batch("b") as batch:
        batch.put("q", "k", jid="x")
        batch.put("q", "k", jid="y")
    for act in (kim.batch("b").pause, kim.batch("b").pause, kim.batch("b").resume, kim.batch("b").cancel):
        act()
    assert told(client) == [
        ("cancel", "batch", ("b",), 2, None, None),
        ("resume", "batch", ("b",), 1, None, None),
        ("pause", "batch", ("b",), 1, None, None),
    ]


def test_acts_on_a_batch_name_who_asks(client, q):
    with client.batch("b") as batch:
        batch.put("q", "k", jid="x")
        batch.put("q", "k", jid="y")
    q.lease("w")[0].fail("g", "m")
    batch.pause(by="ada")
    batch.resume(by="bob")
    batch.retry(by="cleo")
    batch.cancel(by="dora")
    assert [(act.act, act.actor) for act in client.audit()] == [
        ("cancel", "dora"), ("retry", "cleo"), ("resume", "bob"), ("pause", "ada"),
    ]  # fmt: skip


def test_no_claim_looks_like_a_login(client, server, namespace, q):
    q.put("k", jid="x")
    for claim in (
        lambda: Client(server.url, namespace, actor="login:kim"),
        lambda: client.acting_as("login:kim"),
        lambda: client.job("x").cancel(by="login:kim"),
        lambda: q.pause(by="login:kim"),
    ):
        with pytest.raises(ValueError, match=r"must not begin with login:.*'login:kim'"):
            claim()
    assert client.audit() == [] and q.length() == 1
    client.acting_as(Login("kim")).doors.add("d", format="rwq", source="s", queue="q", klass="k")
    assert [act.actor for act in client.audit()] == ["login:kim"]


def test_doors_are_recorded(client, kim):
    for queue in ("q", "q", "r"):
        kim.doors.add("d", format="hworker", source="hworker-jobs-app", queue=queue, klass="k")
    kim.doors.remove("d")
    assert [(act.act, act.kind, act.names, act.number) for act in client.audit()] == [
        ("remove", "door", ("d",), 1), ("add", "door", ("d",), 2),
    ]  # fmt: skip


def test_removed_settings_are_recorded(client, kim, q):
    q.pause()
    q.unpause()
    kim.limit("smtp", 5)
    kim.unlimit("smtp")
    q.recur("k", every=60, jid="tick")
    kim.unrecur("tick")
    kim.config.set("grace", 7)
    kim.config.unset("grace")
    assert [act.act for act in client.audit()] == [
        *("unset", "set", "unrecur", "recur", "unlimit", "limit", "unpause", "pause"),
    ]


def test_acts_that_change_nothing_leave_no_line(client, kim, q):
    q.pause()
    q.pause()
    kim.cancel("gone")
    kim.unfail("g")
    kim.unlimit("smtp")
    kim.unrecur("tick")
    assert [act.act for act in client.audit()] == ["pause"]


def test_unnamed_acts_on_jobs_are_not_recorded_and_those_on_queues_are(client):
    client.queue("q").put("k", jid="x")
    client.cancel("x")
    client.queue("q").pause()
    assert [(act.act, act.actor) for act in client.audit()] == [("pause", None)]


def test_actor_of_a_call_goes_before_that_of_the_client(client, kim):
    client.queue("q").put("k", jid="x")
    kim.cancel("x", by="robin")
    assert [act.actor for act in client.audit()] == ["robin"]
    assert client.cancelled("x").by == "robin"


def test_plain_jobs_leave_no_record(client, kim, q, server, namespace):
    q.put("k", jid="x")
    (lease,) = q.lease("w")
    lease.renew()
    lease.complete()
    assert client.audit() == []
    assert not server.redis.exists(f"{{{namespace}}}:audit")


def test_acts_are_found_by_their_object(client, kim, q):
    for jid in ("x", "x2", "y"):
        q.put("k", jid=jid)
    kim.cancel("x")
    kim.job("y").set_priority(4)
    kim.job("y").move("r")
    q.pause()
    assert [act.act for act in client.audit("y")] == ["move", "priority"]
    assert [act.act for act in client.audit("r")] == ["move"]
    assert [act.act for act in client.audit("q")] == ["pause"]
    assert client.audit("x2") == client.audit("4") == client.audit("cancel") == []
    assert [act.act for act in client.audit(None, 1, 2)] == ["move", "priority"]


def test_calls_in_steps_are_one_act(client, kim, q, clock):
    jids = [f"j{i}" for i in range(60)]
    q.put_many({"klass": "k", "jid": jid} for jid in jids)
    for first in range(0, 50, 10):
        clock.tick(10)
        kim.cancel(*jids[first : first + 10])
    (act,) = client.audit()
    assert (act.number, act.names, act.at_unix) == (50, tuple(jids[:20]), clock.now)
    clock.tick(60)
    kim.cancel(*jids[50:])
    assert [act.number for act in client.audit()] == [10, 50]


def test_acts_of_others_and_on_others_stay_apart(client, kim, q):
    for queue in ("q", "r"):
        kim.queue(queue).put("k")
        kim.queue(queue).delete()
    client.acting_as("robin").queue("q").put("k", jid="x")
    client.acting_as("robin").cancel("x")
    assert [(act.actor, act.names) for act in client.audit()] == [
        ("robin", ("x",)),
        ("kim@web-1", ("r",)),
        ("kim@web-1", ("q",)),
    ]


def test_newest_ten_thousand_acts_are_kept(client, kim, server, namespace, clock):
    key = f"{{{namespace}}}:audit"
    kim.limit("first", 1)
    (line,) = server.redis.lrange(key, 0, -1)
    server.redis.rpush(key, *[line.replace(b"first", b"later")] * 9_999)
    assert [act.names for act in client.audit("first")] == [("first",)]
    kim.limit("last", 1)
    assert server.redis.llen(key) == 10_000
    assert client.audit("first") == [] and client.audit("last") != []


def test_acts_are_kept_for_ninety_days(client, kim, server, namespace, clock):
    kim.limit("a", 1)
    clock.tick(90 * DAY_S)
    kim.limit("b", 1)
    assert len(client.audit()) == 2
    clock.tick(1)
    kim.limit("c", 1)
    assert [act.names for act in client.audit()] == [("c",), ("b",)]
    assert 0 < server.redis.pttl(f"{{{namespace}}}:audit") <= 90 * DAY_S * 1000


def test_long_and_strange_values_stay_one_line(client, kim):
    kim.config.set("klass-q", "a" * 60)
    strange = client.acting_as("a | <b> é")
    strange.limit("key with spaces", 1)
    newest, before = client.audit()
    assert (newest.actor, newest.names) == ("a | <b> é", ("key with spaces",))
    assert before.value == "a" * 60


@pytest.mark.parametrize("actor", ["", "a\nb", "x" * 129, 7])
def test_actor_that_is_no_name_is_refused(client, actor):
    with pytest.raises((TypeError, ValueError)):
        client.acting_as(actor)


def test_page_is_bounded(client):
    with pytest.raises(ValueError, match="count"):
        client.audit(None, 0, 1001)
    with pytest.raises(ValueError, match="offset"):
        client.audit(None, -1)
