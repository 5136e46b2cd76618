"""Doors: entries of other programs become jobs, and their producers find what their own workers would have left."""

import base64
import hashlib
import json
import os
import traceback
import zlib

import pytest

from supervisor import Client, DependencyError, LeaseholdError
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import bulk, deleting, doors, leasing, maintenance, settling
from supervisor.engine.commands.bulk import BulkChange
from supervisor.engine.commands.choices import Choice
from supervisor.engine.model.outcomes import LATER, Completed, Failed
from tests import clusters

UUID = "0f14d0ab-9605-4a62-a9e4-5ed26688389b"


@pytest.fixture
def foreign(server, namespace):
    """A prefix of keys of another program, which go with the test."""
    prefix = f"foreign-{namespace}"
    yield prefix
    for key in server.redis.scan_iter(f"[^{{]*{prefix[1:]}*", count=1000):
        server.redis.unlink(key)


@pytest.fixture
def rwq(client, server, foreign):
    """Put an item as redis-work-queue does; the door to its queue is there."""
    client.doors.add("rwq", format="rwq", source=foreign, queue="q", klass="k")

    def add_item(id, data):
        is_new = server.redis.setnx(f"{foreign}:item:{id}", data)
        if is_new:
            server.redis.lpush(f"{foreign}:queue", id)
        return bool(is_new)

    return add_item


def leases(client, count=100):
    return client.queue("q").lease("w", count)


def broken(client):
    return {job.data: job.failure["message"] for job in client.failed("broken")[1]}


def sidekiq(jid="b4a577edbccf1d805744efa9", queue="default", **more):
    return json.dumps({"class": "HardJob", "args": [1, {"a": []}], "retry": 3, "jid": jid, "queue": queue, **more})


def celery(id, args="[]", kwargs="{}", tail='"chain": null', properties=None, **headers):
    """Return a message as kombu writes it for message protocol 2."""
    embedded = f'{{"callbacks": null, "errbacks": null, {tail}, "chord": null}}'
    body = base64.b64encode(f"[{args}, {kwargs}, {embedded}]".encode()).decode()
    times = {"eta": None, "expires": None, "retries": 0, "timelimit": [None, None]}
    return json.dumps({
        "body": body, "content-encoding": "utf-8", "content-type": "application/json",
        "headers": {"lang": "py", "task": "proj.add", "id": id, "root_id": id, **times, **headers},
        "properties": {"correlation_id": id, "body_encoding": "base64", **(properties or {})},
    })  # fmt: skip


# The doors themselves.


def test_doors_are_listed_with_what_waits_behind_them(client, rwq):
    rwq("1", b"x")
    (door,) = client.doors.list()
    assert (door.name, door.format, door.queue, door.klass, door.waiting) == ("rwq", "rwq", "q", "k", 1)
    assert client.doors.remove("rwq") is True
    assert client.doors.remove("rwq") is False
    assert client.doors.list() == []


def test_a_door_that_is_added_again_changes(client, rwq, foreign):
    same = {"format": "rwq", "source": foreign, "queue": "q"}
    assert client.doors.add("rwq", klass="k", **same) is False
    assert client.doors.add("rwq", klass="other", **same) is True
    assert [door.klass for door in client.doors.list()] == ["other"]


def test_two_doors_to_one_list_are_refused(client, rwq, foreign):
    with pytest.raises(LeaseholdError, match="door rwq has the list"):
        client.doors.add("again", format="rwq", source=foreign, queue="p", klass="k")


def test_a_key_of_another_type_is_refused(client, server, foreign):
    server.redis.set(f"{foreign}:queue", "x")
    with pytest.raises(LeaseholdError, match="is a string, and no list"):
        client.doors.add("rwq", format="rwq", source=foreign, queue="q", klass="k")


def test_a_door_in_a_cluster_is_refused(namespace, tmp_path):
    with clusters.nodes(tmp_path, 1) as made:
        clusters.join(made)
        with Client(clusters.url_of(made), namespace) as client:
            with pytest.raises(LeaseholdError, match="both must lie on one server, without Cluster"):
                client.doors.add("rwq", format="rwq", source="orders", queue="q", klass="k")
            assert client.doors.list() == []


@pytest.mark.parametrize(
    ("format", "source"),
    [
        ("celery", ":in:q"), ("celery", ":unheard"), ("client-lists", ":in"), ("client-lists", ""),
        ("rq-json", ":queue:default"), ("rwq", ""),
    ],
)  # fmt: skip
def test_a_door_to_a_key_of_the_namespace_is_refused(client, namespace, format, source):
    client.acting_as("kim").queue("q").pause()
    acts = client.audit()
    with pytest.raises(LeaseholdError, match="lies in the namespace"):
        client.doors.add("own", format=format, source=f"{{{namespace}}}{source}", queue="q", klass="k")
    assert client.doors.list() == [] and client.audit() == acts


def test_queue_behind_a_door_is_known_until_the_door_has_gone(client, rwq, clock, config):
    assert list(client.queues()) == ["q"], "supervisors with a pattern serve it"
    config(max_worker_age=10)
    for _ in range(2):
        client.sweep()
        clock.tick(11)
    assert list(client.queues()) == ["q"]
    client.doors.remove("rwq")
    for _ in range(2):
        client.sweep()
        clock.tick(11)
    assert list(client.queues()) == []


def test_a_paused_queue_takes_nothing(client, rwq):
    rwq("1", b"x")
    client.queue("q").pause()
    assert client.doors.take("rwq").count == 0
    client.queue("q").unpause()
    assert client.doors.take("rwq").count == 1


def test_a_list_that_became_another_type_counts_as_empty(client, server, rwq, foreign):
    server.redis.set(f"{foreign}:queue", "x")
    assert client.doors.take("rwq").count == 0
    assert [door.waiting for door in client.doors.list()] == [None]


def test_a_take_is_bounded_and_says_that_there_is_more(client, rwq):
    for number in range(5):
        rwq(str(number), b"x")
    taken = client.doors.take("rwq", 3)
    assert (taken.count, taken.has_more) == (3, True)
    assert [lease.jid for lease in leases(client)] == ["0", "1", "2"]


def test_take_reports_more_behind_a_door_without_a_turn(client, server, rwq, foreign):
    client.doors.add("first", format="hworker", source=foreign, queue="q", klass="k")
    server.redis.lpush(f"hworker-jobs-{foreign}", f'["large","{"x" * 600_000}"]')
    rwq("1", b"x")
    for is_left in (True, False):
        taken = calls_of(client).run(doors.take(["first", "rwq"], 100))
        assert (taken.count, taken.has_more) == (1, is_left)


# redis-work-queue.


def test_an_item_becomes_a_job_under_its_id_byte_for_byte(client, rwq):
    data = bytes(range(256))
    rwq(UUID, data)
    client.doors.take("rwq")
    (lease,) = leases(client)
    assert (lease.jid, lease.klass, lease.data) == (UUID, "k", data)


def test_an_item_counts_as_processing_until_its_job_ends(client, server, rwq, foreign):
    rwq("1", b"x")
    client.doors.take("rwq")
    assert server.redis.lrange(f"{foreign}:processing", 0, -1) == [b"1"]
    assert server.redis.exists(*(f"{foreign}:{key}:1" for key in ("item", "lease", "leased_by_session"))) == 3
    assert rwq("1", b"again") is False
    (lease,) = leases(client)
    lease.complete()
    assert list(server.redis.scan_iter(f"{foreign}:*")) == []
    assert rwq("1", b"again") is True


def test_fewer_items_end_at_once_where_many_are_processed(client, server, rwq, foreign, clock):
    server.redis.lpush(f"{foreign}:processing", *range(20_000))
    for number in range(200):
        rwq(f"own-{number}", b"x")
    client.doors.take("rwq", 200)
    outcomes = [Completed(lease) for lease in leases(client, 200)]
    answers = calls_of(client).run(settling.settle("w", outcomes, now=clock.now))
    assert 20 <= answers.count(True) <= 150
    assert client.settle(outcomes) == [answer == LATER for answer in answers]
    assert list(server.redis.scan_iter(f"{foreign}:*")) == [f"{foreign}:processing".encode()]
    assert server.redis.llen(f"{foreign}:processing") == 20_000


@pytest.fixture
def many(client, server, rwq, foreign):
    """Put 200 items behind the door and take them, where 20,000 others are processed. Return their ids."""
    server.redis.lpush(f"{foreign}:processing", *range(20_000))
    ids = [f"own-{number}" for number in range(200)]
    for id in ids:
        rwq(id, b"x")
    client.doors.take("rwq", 200)
    return ids


@pytest.mark.parametrize("verb", ["cancel", "fail"])
def test_bulk_change_ends_items_in_several_calls_where_many_are_processed(client, server, many, foreign, clock, verb):
    said = () if verb == "cancel" else ("g", "m")

    def change(jids):
        return getattr(bulk, verb)(Choice(queue="q"), jids, *said, now=clock.now)

    number, needed = calls_of(client).run(change(many))
    assert 20 <= number <= 150 and len(needed) == 200 - number
    changed = BulkChange(verb, needed, change)
    calls_of(client).follow(changed.steps())
    assert (changed.done, changed.left) == (len(needed), [])
    assert list(server.redis.scan_iter(f"{foreign}:*")) == [f"{foreign}:processing".encode()]


def test_cancel_of_items_that_takes_too_long_is_refused(client, many):
    with pytest.raises(DependencyError, match="came by doors and tell as much as one call may"):
        client.cancel(*many)
    assert client.queue("q").counts().waiting == 200
    assert len(client.cancel(*many[:20])) == 20


def test_deletion_ends_all_items_however_many_are_processed(client, server, many, foreign, clock):
    server.redis.lpush(f"{foreign}:processing", *range(180_000))
    dropped = calls_of(client).run(deleting.drop("q", "waiting", 0, now=clock.now))
    assert 5 <= dropped.dropped <= 20
    assert client.queue("q").delete().dropped == 200 - dropped.dropped


def test_sweep_fails_items_of_a_lost_worker_in_several_calls(client, many, clock, config):
    config(max_deaths=1)
    assert len(leases(client, 200)) == 200
    clock.tick(60)
    swept = calls_of(client).run(maintenance.sweep(1_000, now=clock.now))
    assert 20 <= swept.taken <= 150
    assert client.sweep(1_000) == 200 - swept.taken
    assert client.failed() == {"died:lost": 200}


def test_lease_fails_items_of_a_lost_worker_in_several_calls(client, many, clock, config):
    config(max_deaths=1)
    assert len(leases(client, 200)) == 200
    clock.tick(60)
    grant = calls_of(client).run(leasing.lease("other", ["q"], 200, now=clock.now))
    assert grant.leases == [] and 20 <= client.failed()["died:lost"] <= 150
    while client.failed()["died:lost"] < 200:
        assert client.queue("q").lease("other", 200) == []


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_an_item_goes_however_its_job_ends(client, server, rwq, foreign, end):
    rwq("1", b"x")
    client.doors.take("rwq")
    if end == "fail":
        leases(client)[0].fail("g", "m")
    else:
        client.cancel("1")
    assert list(server.redis.scan_iter(f"{foreign}:*")) == []


def test_an_item_that_was_added_anew_survives_the_second_end_of_its_job(client, server, rwq, foreign):
    rwq("1", b"x")
    client.doors.take("rwq")
    leases(client)[0].fail("g", "m")
    client.unfail("g", "q")
    assert rwq("1", b"new") is True
    leases(client)[0].complete()
    assert server.redis.get(f"{foreign}:item:1") == b"new"
    client.doors.take("rwq")
    assert [lease.data for lease in leases(client)] == [b"new"]


def test_an_item_that_was_completed_elsewhere_and_added_anew_runs_again(client, server, rwq, foreign):
    rwq("1", b"x")
    client.doors.take("rwq")
    (lease,) = leases(client)
    server.redis.unlink(*(f"{foreign}:{key}:1" for key in ("item", "lease", "leased_by_session")))
    server.redis.lrem(f"{foreign}:processing", 0, "1")
    assert rwq("1", b"new") is True
    assert client.doors.take("rwq").count == 1
    assert lease.complete() is True
    assert client.doors.take("rwq").count == 1
    (again,) = leases(client)
    assert (again.jid, again.data, again.complete()) == ("1", b"new", True)
    assert list(server.redis.scan_iter(f"{foreign}:*")) == []


def test_an_id_without_an_item_is_dropped(client, server, rwq, foreign):
    server.redis.lpush(f"{foreign}:queue", "gone")
    assert client.doors.take("rwq").count == 1
    assert (leases(client), client.failed()) == ([], {})


def test_a_living_job_of_the_door_stays_as_it_is(client, server, rwq, foreign):
    rwq("1", b"x")
    client.doors.take("rwq")
    (lease,) = leases(client)
    server.redis.lpush(f"{foreign}:queue", "1")  # as a deep clean may do
    assert client.doors.take("rwq").count == 1
    assert client.job("1").state == "running"
    assert lease.complete() is True


def test_an_id_of_a_living_job_that_came_otherwise_is_broken(client, rwq):
    client.queue("q").put("own", jid="1")
    rwq("1", b"x")
    client.doors.take("rwq")
    assert "living job that did not come by this door" in broken(client)[b"1"]
    assert client.job("1").klass == "own"


def test_a_take_reads_only_so_much_for_items_of_living_jobs(client, server, rwq, foreign):
    for number in range(20):
        rwq(f"item-{number}", b"x" * 100_000)
    while client.doors.take("rwq", 100).count:
        pass
    server.redis.lpush(f"{foreign}:queue", *(f"item-{number}" for number in range(20)))
    taken = client.doors.take("rwq", 100)
    assert 1 <= taken.count <= 10 and taken.has_more


def test_a_long_id_is_hashed_and_kept(client, server, rwq, foreign):
    long = "i" * 100
    rwq(long, b"x")
    client.doors.take("rwq")
    (lease,) = leases(client)
    assert lease.jid == hashlib.sha1(long.encode()).hexdigest()
    lease.complete()
    assert list(server.redis.scan_iter(f"{foreign}:*")) == []


def test_an_item_of_another_type_is_broken(client, server, rwq, foreign):
    server.redis.lpush(f"{foreign}:item:1", "x")
    server.redis.lpush(f"{foreign}:queue", "1")
    client.doors.take("rwq")
    assert "holds no string" in broken(client)[b"1"]


def test_an_item_too_large_for_a_script_stays_where_it_is(client, server, rwq, foreign):
    rwq("large", b"x" * (16 * 1024 * 1024 + 1))
    rwq("i" * 1_048_577, b"x")
    while client.doors.take("rwq").count:
        pass
    assert broken(client).keys() == {b"large", b"i" * 1_048_577}
    assert all("is too large" in why for why in broken(client).values())
    assert server.redis.exists(f"{foreign}:item:large") == 1


def test_an_id_that_is_no_text_is_one_of_a_job(client, server, rwq, foreign):
    server.redis.set(f"{foreign}:item:".encode() + b"\xff", b"x")
    server.redis.lpush(f"{foreign}:queue", b"\xff")
    client.doors.take("rwq")
    (lease,) = leases(client)
    assert client.job(lease.jid).state == "running"
    lease.complete()
    assert list(server.redis.scan_iter(f"{foreign}:*")) == []


def test_a_foreign_key_of_another_type_holds_up_no_end(client, server, rwq, foreign):
    rwq("1", b"x")
    client.doors.take("rwq")
    server.redis.unlink(f"{foreign}:processing")
    server.redis.set(f"{foreign}:processing", "x")
    assert leases(client)[0].complete() is True


def test_an_entry_whose_job_meets_a_foreign_key_fails_alone(client, server, namespace, rwq):
    server.redis.lpush(f"{{{namespace}}}:data:1", "a list")
    server.redis.lpush(f"{{{namespace}}}:job:1", "a list")
    rwq("1", b"x")
    rwq("2", b"y")
    while client.doors.take("rwq").count:
        pass
    assert [lease.jid for lease in leases(client)] == ["2"]
    assert b"1" in broken(client)
    server.redis.unlink(f"{{{namespace}}}:data:1", f"{{{namespace}}}:job:1")


# hworker.


@pytest.fixture
def hworker(client, server, foreign):
    client.doors.add("hworker", format="hworker", source=foreign, queue="q", klass="k")
    return lambda *entries: server.redis.lpush(f"hworker-jobs-{foreign}", *entries)


def test_an_hworker_job_keeps_its_json(client, hworker):
    hworker(f'["{UUID}",{{"n":12345678901234567890,"empty":[],"text":"],["}}]')
    client.doors.take("hworker")
    (lease,) = leases(client)
    assert (lease.jid, lease.data) == (UUID, {"n": 12345678901234567890, "empty": [], "text": "],["})


def test_a_failed_hworker_job_lies_in_its_failed_list(client, server, hworker, foreign):
    entries = [f'["u{number}",{number}]' for number in range(2)]
    hworker(*entries)
    client.doors.take("hworker")
    first, second = leases(client)
    first.complete()
    second.fail("g", "m")
    assert server.redis.lrange(f"hworker-failed-{foreign}", 0, -1) == [entries[1].encode()]


def test_broken_hworker_entries_are_kept_as_they_were(client, hworker):
    entries = [b"junk", b'["alone"]', b"[1,2]", b'{"a":1}', b'["a",1,2]', b"\xff", b'["a",1]\0x']
    hworker(*entries)
    assert client.doors.take("hworker").count == len(entries)
    assert set(broken(client)) == set(entries)


def test_an_hworker_entry_may_have_spaces_around_its_parts(client, hworker):
    hworker(' [ "a" , [1, 2] ] ')
    client.doors.take("hworker")
    assert [(lease.jid, lease.data) for lease in leases(client)] == [("a", [1, 2])]


# Worqr.


@pytest.fixture
def to_worqr(client, server, foreign):
    client.doors.add("worqr", format="worqr", source=f"{foreign}:queues:mail", queue="q", klass="k")

    def enqueue(*tasks):
        for task in tasks:
            server.redis.set(f"{foreign}:uniqueTasks:{hashlib.md5(task.encode()).hexdigest()}", "1")
        server.redis.lpush(f"{foreign}:queues:mail", *tasks)

    return enqueue


def test_a_worqr_task_ends_with_its_event_and_its_unique_key(client, server, to_worqr, foreign):
    tasks = ["", "a task", "x" * 200, "ü" * 60]
    to_worqr(*tasks)
    client.doors.take("worqr")
    with server.redis.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(f"{foreign}_mail_done")
        channel.get_message(timeout=5)
        held = leases(client)
        assert [lease.data for lease in held] == [task.encode() for task in tasks]
        held[0].complete({"sent": ["ü"]})
        for lease in held[1:]:
            lease.complete()
        said = [json.loads(channel.get_message(timeout=5)["data"]) for _ in tasks]
    first, *others = [{"workerId": "w", "task": task} for task in tasks]
    assert said == [first | {"result": {"sent": ["ü"]}}, *others]
    assert list(server.redis.scan_iter(f"{foreign}:*")) == []


def test_large_worqr_task_ends_without_its_event(client, server, to_worqr, foreign):
    large = "x" * 1_048_577
    to_worqr(large, "small")
    with server.redis.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(f"{foreign}_mail_done")
        channel.get_message(timeout=5)
        for _ in range(2):
            client.doors.take("worqr")
            assert [lease.complete() for lease in leases(client)] == [True]
        assert json.loads(channel.get_message(timeout=5)["data"])["task"] == "small"


def test_a_call_digests_only_so_many_tasks(client, server, to_worqr, foreign):
    to_worqr(*(f"{number:04}" + "x" * 1000 for number in range(200)))
    takes = [client.doors.take("worqr", 1000)]
    while takes[-1].has_more:
        takes.append(client.doors.take("worqr", 1000))
    assert [taken.count for taken in takes[:-1]] == [takes[0].count] * (len(takes) - 1)
    assert 10 <= takes[0].count <= 50
    assert sum(taken.count for taken in takes) == 200
    assert {lease.complete() for lease in leases(client, 200)} == {True}
    assert list(server.redis.scan_iter(f"{foreign}:*")) == []


def test_one_settle_tells_only_so_much_and_the_next_one_the_rest(client, server, to_worqr, foreign, clock):
    to_worqr(*(f"{number:03}" + "x" * 60_000 for number in range(40)))
    while client.doors.take("worqr").count:
        pass
    held = []
    while more := leases(client):
        held += more
    outcomes = [Completed(lease) for lease in held]
    with server.redis.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(f"{foreign}_mail_done")
        channel.get_message(timeout=5)
        answers = calls_of(client).run(settling.settle("w", outcomes, now=clock.now))
        assert 10 <= answers.count(True) <= 20
        assert answers.count(LATER) == len(held) - answers.count(True)
        assert client.settle(outcomes) == [answer == LATER for answer in answers]
        said = [json.loads(channel.get_message(timeout=5)["data"])["task"][:3] for _ in held]
    assert said == [f"{number:03}" for number in range(40)]
    assert list(server.redis.scan_iter(f"{foreign}:*")) == []


# Sidekiq.


@pytest.fixture
def to_sidekiq(client, server, foreign):
    client.doors.add(
        "sidekiq", format="sidekiq", source=f"{foreign}:queue:default", queue="q", klasses={"HardJob": "hard"}
    )
    return lambda *entries: server.redis.lpush(f"{foreign}:queue:default", *entries)


def test_a_sidekiq_job_has_its_jid_arguments_and_retries(client, server, to_sidekiq, foreign):
    to_sidekiq(sidekiq(), sidekiq("other", **{"class": "Soft", "retry": False, "args": [12345678901234567890]}))
    client.doors.take("sidekiq")
    first, second = leases(client)
    assert (first.jid, first.klass, first.data, first.retries) == (
        "b4a577edbccf1d805744efa9", "hard", [1, {"a": []}], 3,
    )  # fmt: skip
    assert (second.klass, second.data, second.retries) == ("Soft", [12345678901234567890], 0)
    first.complete()
    second.fail("g", "m")
    assert server.redis.mget(f"{foreign}:stat:processed", f"{foreign}:stat:failed") == [b"2", b"1"]


def test_due_entries_of_the_sidekiq_schedule_of_its_queue_are_taken(client, server, to_sidekiq, foreign, clock):
    entries = {sidekiq("due"): clock() - 1, sidekiq("later"): clock() + 60, sidekiq("elsewhere", "low"): clock() - 1}
    server.redis.zadd(f"{foreign}:schedule", entries)
    taken = client.doors.take("sidekiq")
    assert (taken.count, taken.again_s) == (1, 5.0)
    assert [(lease.jid, lease.complete()) for lease in leases(client)] == [("due", True)]
    assert server.redis.zcard(f"{foreign}:schedule") == 2
    clock.tick(60)
    client.doors.take("sidekiq")
    assert [lease.jid for lease in leases(client)] == ["later"]


@pytest.mark.parametrize("namespaced", [True, False])
def test_a_sidekiq_queue_may_have_any_name(client, server, foreign, clock, namespaced):
    """Without a namespace the keys of Sidekiq have fixed names, which other tests may use."""
    prefix, queue = f"{foreign}:" if namespaced else "", f"my_queue:{foreign}"
    client.doors.add("sidekiq", format="sidekiq", source=f"{prefix}queue:{queue}", queue="q")
    schedule, day = f"{prefix}schedule", f"{prefix}stat:processed:1970-01-12"
    server.redis.zadd(schedule, {sidekiq("due", queue): clock() - 1})
    runs = int(server.redis.get(day) or 0)
    assert client.doors.take("sidekiq").count == 1
    leases(client)[0].complete()
    assert int(server.redis.get(day)) > runs
    if not namespaced:
        server.redis.decr(day)
        server.redis.decr("stat:processed")


def test_due_entries_of_the_sidekiq_retry_set_have_the_retries_left(client, server, to_sidekiq, foreign, clock):
    entries = {
        sidekiq("third", retry=5, retry_count=1): clock() - 1,
        sidekiq("last", retry=1, retry_count=0): clock() - 2,
        sidekiq("later", retry_count=0): clock() + 60,
    }
    server.redis.zadd(f"{foreign}:retry", entries)
    assert client.doors.take("sidekiq").count == 2
    assert [(lease.jid, lease.retries) for lease in leases(client)] == [("last", 0), ("third", 3)]
    assert server.redis.zcard(f"{foreign}:retry") == 1


def test_due_entry_too_large_to_be_decoded_is_broken(client, server, to_sidekiq, foreign, clock):
    def entry(queue):
        return f'{{"retry":true,"queue":"{queue}","class":"k","args":["{"x" * 1_048_576}",{{"queue":"default"}}]}}'

    server.redis.zadd(f"{foreign}:schedule", {entry("default"): clock() - 2, entry("low"): clock() - 1})
    while client.doors.take("sidekiq").count:
        clock.tick(5.003)
    assert broken(client).keys() == {entry("default").encode()}
    assert server.redis.zrange(f"{foreign}:schedule", 0, -1) == [entry("low").encode()]


@pytest.mark.parametrize("retry", ["-1", "-1e999"])
def test_sidekiq_job_with_negative_retries_has_none(client, to_sidekiq, retry):
    to_sidekiq(sidekiq().replace('"retry": 3', f'"retry": {retry}'))
    client.doors.take("sidekiq")
    assert [lease.retries for lease in leases(client)] == [0]


def test_many_due_entries_are_taken_one_call_after_the_other(client, server, to_sidekiq, foreign, clock):
    server.redis.zadd(f"{foreign}:schedule", {sidekiq(str(n)): clock() - 1 for n in range(1_000)})
    takes = [client.doors.take("sidekiq", 1_000)]
    while takes[-1].has_more:
        takes.append(client.doors.take("sidekiq", 1_000))
    assert sum(taken.count for taken in takes) == 1_000
    assert 2 <= len(takes) <= 4


@pytest.mark.parametrize(("number", "size"), [(10_000, 10), (60, 100_000)])
def test_due_entries_of_other_queues_hide_none(client, server, to_sidekiq, foreign, clock, number, size):
    elsewhere = {sidekiq(str(n), "low", args=["x" * size]): clock() - 2 for n in range(number)}
    server.redis.zadd(f"{foreign}:schedule", elsewhere)
    server.redis.zadd(f"{foreign}:schedule", {sidekiq("own"): clock() - 1})
    looks = 1
    while client.doors.take("sidekiq").count == 0:
        clock.tick(5.003)
        looks += 1
        assert looks < 100
    assert [lease.jid for lease in leases(client)] == ["own"]
    assert server.redis.zcard(f"{foreign}:schedule") == number


def test_a_due_entry_whose_job_meets_a_foreign_key_fails_alone(client, server, namespace, to_sidekiq, foreign, clock):
    server.redis.lpush(f"{{{namespace}}}:job:1", "a list")
    server.redis.zadd(f"{foreign}:schedule", {sidekiq("1"): clock() - 2, sidekiq("2"): clock() - 1})
    while client.doors.take("sidekiq").count:
        pass
    assert [lease.jid for lease in leases(client)] == ["2"]
    assert sidekiq("1").encode() in broken(client)
    server.redis.unlink(f"{{{namespace}}}:job:1")


def test_the_numbers_of_sidekiq_count_each_run_by_date(client, server, to_sidekiq, foreign, clock):
    clock.now = 1_700_000_000.0  # 2023-11-14
    to_sidekiq(sidekiq("well", retry=1), sidekiq("badly", retry=1), sidekiq("at once", retry=1))
    client.doors.take("sidekiq")
    well, badly, at_once = leases(client)
    at_once.fail("g", "m")
    assert [each.retry(0, "g", "m") for each in (well, badly)] == [0, 0]
    well, badly = leases(client)
    well.complete()
    badly.retry(0, "g", "m")
    keys = [f"{foreign}:stat:{what}{day}" for what in ("processed", "failed") for day in ("", ":2023-11-14")]
    assert server.redis.mget(keys) == [b"5", b"5", b"4", b"4"]
    assert server.redis.ttl(keys[1]) > 4 * 365 * 86400


def test_broken_sidekiq_entries_are_kept_as_they_were(client, to_sidekiq):
    entries = [b"[]", b'{"class":"A"}', b'{"class":"A","args":[]}', b'{"class":"","args":[],"jid":"j"}']
    to_sidekiq(*entries)
    client.doors.take("sidekiq")
    assert set(broken(client)) == set(entries)


def test_sidekiq_job_that_only_sidekiq_can_run_is_broken_with_a_reason(client, to_sidekiq):
    refused = {sidekiq("a", bid="b"): "batches", sidekiq("b", encrypt=True): "encrypted arguments"}
    to_sidekiq(*refused, sidekiq("good", bid=None, encrypt=False))
    client.doors.take("sidekiq")
    assert [lease.jid for lease in leases(client)] == ["good"]
    said = broken(client)
    assert {data.decode() for data in said} == set(refused)
    assert all(refused[data.decode()] in why for data, why in said.items())


# Celery.


@pytest.fixture
def to_celery(client, server, foreign):
    client.doors.add("celery", format="celery", source=foreign, queue="q")
    return lambda *entries: server.redis.lpush(foreign, *entries)


@pytest.mark.parametrize(
    ("args", "kwargs", "data", "is_call"),
    [
        ("[]", "{}", {}, False),
        ("[2, 3]", "{}", [2, 3], True),
        ("[]", '{"x": 12345678901234567890}', {"x": 12345678901234567890}, False),
        ("[]", '{"args": [], "kwargs": {}}', {"args": [], "kwargs": {}}, False),
        ("[1]", '{"y": "]"}', {"args": [1], "kwargs": {"y": "]"}}, True),
    ],
)
def test_the_arguments_of_a_celery_task_are_the_data(client, to_celery, args, kwargs, data, is_call):
    to_celery(celery("t-1", args, kwargs))
    client.doors.take("celery")
    (lease,) = leases(client)
    assert (lease.jid, lease.klass, lease.data, lease.is_call) == ("t-1", "proj.add", data, is_call)
    assert client.job("t-1").is_call is is_call


@pytest.mark.parametrize("space", ["", " "])
def test_task_with_an_empty_object_of_callbacks_runs(client, to_celery, space):
    arguments = {f"t-{number}": ["x" * number] for number in range(3)}
    for jid, args in arguments.items():
        body = json.dumps([args, {}, {}], separators=(f",{space}", ":"))
        message = json.loads(celery(jid)) | {"body": base64.b64encode(body.encode()).decode()}
        to_celery(json.dumps(message))
    client.doors.take("celery")
    assert {lease.jid: lease.data for lease in leases(client)} == arguments


def ends_of_celery(client, server, foreign):
    to = f"{foreign}-t"
    return to, lambda end: json.loads(server.redis.get(f"celery-task-meta-{to}-{end}"))


def test_the_result_of_a_celery_task_is_set_and_published(client, server, to_celery, foreign):
    task, meta = ends_of_celery(client, server, foreign)
    to_celery(*(celery(f"{task}-{end}") for end in ("complete", "fail", "cancel")))
    client.doors.take("celery")
    completed, failed, cancelled = leases(client)
    with server.redis.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(f"celery-task-meta-{task}-complete")
        channel.get_message(timeout=5)
        completed.complete({"sum": 5})
        assert json.loads(channel.get_message(timeout=5)["data"]) == meta("complete")
    failed.fail("ValueError", 'no "number"')
    client.cancel(cancelled.jid)
    assert (meta("complete")["status"], meta("complete")["result"]) == ("SUCCESS", {"sum": 5})
    assert (meta("fail")["status"], meta("fail")["result"]["exc_message"]) == ("FAILURE", ['no "number"'])
    assert meta("cancel")["status"] == "REVOKED"
    assert server.redis.ttl(f"celery-task-meta-{task}-complete") > 0


@pytest.fixture
def backend(server):
    """The result store of Celery itself, which calls deprecated functions of redis-py."""
    celery_package = pytest.importorskip("celery", reason="the extra `celery` is not installed")
    url = f"redis+socket://{server.path}"
    return celery_package.Celery("tests", broker=url, backend=url).backend


class OutOfStock(Exception):
    pass


def raised(error):
    """Return an exception as a child describes it."""
    try:
        raise error
    except type(error) as caught:
        return caught, {"traceback": traceback.format_exc()}


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")
@pytest.mark.parametrize("headers", [{}, {"group": "g-1", "parent_id": 'p-"1"'}, {"parent_id": "p"}, {"group": 1}])
def test_result_of_a_celery_task_has_what_celery_itself_keeps(
    client, server, to_celery, backend, foreign, clock, headers
):
    from celery.app.task import Context
    from celery.exceptions import TaskRevokedError

    clock.now = 1_700_000_000.0
    task, meta = ends_of_celery(client, server, foreign)
    errors = {
        f"{task}-{n}": raised(error) for n, error in enumerate((ValueError("no"), KeyError("no"), OutOfStock("no")))
    }
    to_celery(*(celery(id, **headers) for id in (f"{task}-complete", f"{task}-cancelled", *errors)))
    client.doors.take("celery")
    completed, cancelled, *failed = leases(client)
    completed.complete({"sum": 5})
    client.cancel(cancelled.jid)
    for lease, (error, details) in zip(failed, errors.values(), strict=True):
        client.settle([Failed(lease, type(error).__name__, str(error), details)])
    strings = {name: value for name, value in headers.items() if isinstance(value, str)}

    def theirs(id, result, state, text=None):
        server.redis.unlink(f"celery-task-meta-{id}")
        backend.store_result(id, result, state, traceback=text, request=Context(strings, id=id, children=[]))
        return json.loads(server.redis.get(f"celery-task-meta-{id}"))

    ends = [("complete", {"sum": 5}, "SUCCESS", None), ("cancelled", TaskRevokedError("revoked"), "REVOKED", None)]
    ends += [(str(n), error, "FAILURE", details["traceback"]) for n, (error, details) in enumerate(errors.values())]
    for end, *ended in ends:
        ours = meta(end)
        assert ours.pop("date_done") == "2023-11-14T22:13:20.000000+00:00"
        assert list(ours.items()) == [
            each for each in theirs(f"{task}-{end}", *ended).items() if each[0] != "date_done"
        ]


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")
def test_result_that_celerys_own_worker_has_left_stays(client, server, to_celery, backend, foreign):
    task, meta = ends_of_celery(client, server, foreign)
    backend.store_result(f"{task}-known", "theirs", "SUCCESS")
    backend.store_result(f"{task}-again", KeyError("no"), "RETRY")
    to_celery(celery(f"{task}-known"), celery(f"{task}-again"))
    client.doors.take("celery")
    for lease in leases(client):
        lease.complete("ours")
    assert (meta("known")["result"], meta("again")["result"]) == ("theirs", "ours")


@pytest.mark.parametrize("group", ["SystemExit", "NotImplemented", "died:lost", "sum", "Café"])
def test_failure_of_celery_task_names_only_classes_that_can_be_caught(
    client, server, to_celery, backend, foreign, group
):
    to_celery(celery(f"{foreign}-t"))
    client.doors.take("celery")
    client.settle([Failed(leases(client)[0], group, "why", {"traceback": f'File "x"\n{group}: why\n'})])
    error = backend.get_result(f"{foreign}-t")
    assert isinstance(error, Exception) and str(error) == "why"


def test_a_celery_task_that_ignores_its_result_leaves_none(client, server, to_celery, foreign):
    to_celery(celery(f"{foreign}-t", ignore_result=True))
    client.doors.take("celery")
    leases(client)[0].complete(1)
    assert not server.redis.exists(f"celery-task-meta-{foreign}-t")


def test_times_of_a_celery_task_are_kept(client, to_celery, clock):
    clock.now = 1_700_000_000.0  # 2023-11-14T22:13:20Z
    to_celery(
        celery("eta", eta="2023-11-14T22:14:20.500000+00:00"),
        celery("zone", eta="2023-11-15T00:14:20+02:00"),
        celery("expires", expires="2023-11-14T22:13:30Z", timelimit=[7, 5]),
    )
    client.doors.take("celery")
    (lease,) = leases(client)
    assert (lease.jid, lease.timeout_s, lease.release()) == ("expires", 7.0, True)
    clock.tick(60)
    assert "zone" in [lease.jid for lease in leases(client)]
    clock.tick(0.5)
    assert [lease.jid for lease in leases(client)] == ["eta"]


def test_a_celery_task_that_did_not_start_in_time_is_revoked(client, server, to_celery, foreign, clock):
    clock.now = 1_700_000_000.0  # 2023-11-14T22:13:20Z
    task, meta = ends_of_celery(client, server, foreign)
    to_celery(celery(f"{task}-expired", expires="2023-11-14T22:13:30Z"))
    client.doors.take("celery")
    clock.tick(11)
    assert leases(client) == []
    assert (meta("expired")["status"], meta("expired")["result"]["exc_message"]) == ("REVOKED", ["expired"])


def test_one_lease_ends_only_so_many_expired_tasks(client, to_celery, clock):
    clock.now = 1_700_000_000.0  # 2023-11-14T22:13:20Z
    to_celery(*(celery(f"t-{number}", expires="2023-11-14T22:13:30Z", ignore_result=True) for number in range(580)))
    while client.doors.take("celery", 1_000).count:
        pass
    clock.tick(11)
    grant = calls_of(client).run(leasing.lease("w", ["q"], 1_000, now=clock.now))
    assert grant.leases == [] and 400 <= client.failed()["expired"] <= 550
    assert leases(client) == [] and client.failed() == {"expired": 580}


@pytest.mark.parametrize(("said", "failures"), [(3, 3), (0, 0), (-1, 0), (1.5, 0), (1e9, 0), ("3", 0), (None, 0)])
def test_retries_by_celerys_own_worker_count(client, to_celery, said, failures):
    to_celery(celery("t", retries=said))
    client.doors.take("celery")
    (lease,) = leases(client)
    assert lease.failures == failures
    assert lease.retry(0, "g", "m") == 5 - failures - 1


def test_the_lists_of_all_priorities_are_taken_the_most_urgent_first(client, server, to_celery, foreign):
    for priority in (9, 3, 1):
        message = celery(f"of-{priority}", properties={"priority": priority})
        server.redis.lpush(f"{foreign}\x06\x16{priority}", message)
    to_celery(celery("of-0", properties={"priority": 0}))
    assert [door.waiting for door in client.doors.list()] == [4]
    assert client.doors.take("celery", 1).has_more is True
    assert client.doors.take("celery").count == 3
    assert [(lease.jid, client.job(lease.jid).priority) for lease in leases(client)] == [
        ("of-0", 0), ("of-1", 1), ("of-3", 3), ("of-9", 9),
    ]  # fmt: skip
    assert list(server.redis.scan_iter(f"{foreign}*")) == []


def test_a_task_that_is_more_urgent_overtakes_those_that_were_taken_before(client, server, to_celery, foreign):
    server.redis.lpush(f"{foreign}\x06\x163", celery("later", properties={"priority": 4}))
    client.doors.take("celery")
    to_celery(celery("first", properties={"priority": 0}))
    client.doors.take("celery")
    assert [lease.jid for lease in leases(client)] == ["first", "later"]


def test_task_that_only_celery_can_run_is_broken_with_a_reason(client, to_celery):
    refused = {
        celery("a", tail='"chain": [{}]'): "callbacks, chains and chords",
        celery("b", compression="gzip"): "compressed",
        celery("c", properties={"body_encoding": "none"}): "no body in base64",
        celery("d").replace("application/json", "application/x-python-serialize"): "not JSON",
        '{"task": "proj.add", "id": "e", "args": []}': "message protocol 2",
    }
    to_celery(*refused)
    client.doors.take("celery")
    assert {data.decode() for data in broken(client)} == set(refused)
    for data, why in broken(client).items():
        assert refused[data.decode()] in why


# RQ. tests/process/jobs/test_real_producers.py compares with RQ itself.


@pytest.fixture
def to_rq(client, server, foreign):
    """Put jobs as RQ does with its JSON serializer, given their ids and calls. Options are fields of their hash."""
    client.doors.add("rq", format="rq-json", source=f"{foreign}:queue:default", queue="q", klasses={"shop.old": "new"})

    def enqueue(calls, to_list=True, level=-1, **fields):
        for id, call in calls.items():
            data = zlib.compress(call if isinstance(call, bytes) else json.dumps(call).encode(), level)
            about = {"data": data, "status": "queued", "origin": "default", "timeout": 180}
            server.redis.hset(f"{foreign}:job:{id}", mapping=about | fields)
            if to_list:
                server.redis.rpush(f"{foreign}:queue:default", id)

    return enqueue


def call_of(name, *args, **kwargs):
    return [name, None, args, kwargs]


@pytest.mark.parametrize("level", [-1, 0, 9])
@pytest.mark.parametrize(
    ("call", "klass", "data", "is_call"),
    [
        (call_of("shop.add", 1, 12345678901234567890), "shop.add", [1, 12345678901234567890], True),
        (call_of("shop.add", 1, x="]"), "shop.add", {"args": [1], "kwargs": {"x": "]"}}, True),
        (call_of("shop.old", x=1), "new", {"x": 1}, False),
        (call_of("größe"), "größe", {}, False),
        (call_of("a.a.a.a.a.a.a.a.a.a.a.a", "a.a.a."), "a.a.a.a.a.a.a.a.a.a.a.a", ["a.a.a."], True),
        (call_of("shop.add", *range(3000)), "shop.add", [*range(3000)], True),
        (b'["shop.add",null,[1.50],{}]', "shop.add", [1.5], True),
    ],
    ids=str,
)
def test_the_call_of_an_rq_job_is_its_klass_and_data(client, to_rq, call, klass, data, is_call, level):
    to_rq({"a": call}, level=level)
    client.doors.take("rq")
    assert (client.job("a").klass, client.job("a").data, client.job("a").is_call) == (klass, data, is_call)
    (lease,) = leases(client)
    assert (lease.jid, lease.klass, lease.data) == ("a", klass, data)


def test_what_rq_stored_stays_as_it_was(client, server, to_rq, foreign):
    to_rq({"a": call_of("shop.add", 1)})
    client.doors.take("rq")
    assert leases(client)[0].raw == server.redis.hget(f"{foreign}:job:a", "data")


def test_rq_jobs_come_in_the_order_of_rq(client, to_rq, foreign, server):
    to_rq({id: call_of("k") for id in "abc"})
    server.redis.lpush(f"{foreign}:queue:default", "gone")
    assert (client.doors.take("rq", 2).count, client.doors.take("rq").count) == (2, 2)
    assert [lease.jid for lease in leases(client)] == ["a", "b", "c"]


def test_options_of_an_rq_job_are_kept(client, server, to_rq, foreign, clock):
    to_rq({"a": call_of("k")}, retries_left=3, timeout=7)
    to_rq({"b": call_of("k")}, timeout=-1)
    server.redis.expire(f"{foreign}:job:b", 100)
    client.doors.take("rq")
    assert client.job("a").start_by_unix is None
    assert client.job("b").start_by_unix == pytest.approx(clock() + 100, abs=20)
    first, second = leases(client)
    assert (first.retries, first.timeout_s, second.retries, second.timeout_s) == (3, 7.0, None, 0.0)
    assert server.redis.ttl(f"{foreign}:job:b") == -1, "it stays until its job ends"


def test_the_end_of_an_rq_job_is_in_its_hash_its_result_and_a_registry(client, server, to_rq, foreign, clock):
    clock.now = 1_700_000_000.0  # 2023-11-14T22:13:20Z
    to_rq({id: call_of("k") for id in ("well", "nothing", "badly", "cancelled")})
    client.doors.take("rq")
    well, nothing, badly, cancelled = leases(client)
    clock.tick(1.5)
    well.complete({"sum": "ü" * 100})
    nothing.complete()
    badly.fail("ValueError", 'no "number"\n\\')
    client.cancel(cancelled.jid)
    redis = server.redis
    job = redis.hgetall(f"{foreign}:job:well")
    assert (job[b"status"], job[b"worker_name"]) == (b"finished", b"w")
    assert (job[b"started_at"], job[b"ended_at"]) == (b"2023-11-14T22:13:20.000000Z", b"2023-11-14T22:13:21.500000Z")
    ((_, result),) = redis.xrange(f"{foreign}:results:well")
    assert (result[b"type"], json.loads(base64.b64decode(result[b"return_value"]))) == (b"1", {"sum": "ü" * 100})
    assert b"return_value" not in redis.xrange(f"{foreign}:results:nothing")[0][1]
    ((_, result),) = redis.xrange(f"{foreign}:results:badly")
    assert result[b"type"] == b"2"
    assert zlib.decompress(base64.b64decode(result[b"exc_string"])) == b'ValueError: no "number"\n\\'
    states = redis.hget(f"{foreign}:job:badly", "status"), redis.hget(f"{foreign}:job:cancelled", "status")
    assert states == (b"failed", b"canceled")
    assert redis.zrange(f"{foreign}:finished:default", 0, -1, withscores=True) == [
        (b"nothing", 1_700_000_501), (b"well", 1_700_000_501),
    ]  # fmt: skip
    assert redis.zrange(f"{foreign}:failed:default", 0, -1, withscores=True) == [(b"badly", 1_731_536_001)]
    assert redis.zrange(f"{foreign}:canceled:default", 0, -1) == [b"cancelled"]
    assert all(0 < redis.ttl(f"{foreign}:{key}:well") <= 500 for key in ("job", "results"))


@pytest.mark.parametrize("size", [1, 2, 3, 1_000, 60_000])
def test_a_result_of_any_size_is_one_of_rq(client, server, to_rq, foreign, size):
    to_rq({"a": call_of("k")})
    client.doors.take("rq")
    leases(client)[0].complete("x" * size)
    ((_, result),) = server.redis.xrange(f"{foreign}:results:a")
    assert json.loads(base64.b64decode(result[b"return_value"], validate=True)) == "x" * size


def test_times_to_keep_an_rq_job_are_its_own(client, server, to_rq, foreign):
    to_rq({"gone": call_of("k")}, result_ttl=0)
    to_rq({"stays": call_of("k")}, result_ttl=-1)
    to_rq({"short": call_of("k")}, failure_ttl=9)
    client.doors.take("rq")
    gone, stays, short = leases(client)
    gone.complete(1)
    stays.complete(1)
    short.fail("g", "m")
    assert {key.decode().removeprefix(foreign) for key in server.redis.scan_iter(f"{foreign}*")} == {
        ":job:stays", ":results:stays", ":finished:default", ":job:short", ":results:short", ":failed:default",
    }  # fmt: skip
    assert server.redis.zscore(f"{foreign}:finished:default", "stays") == float("inf")
    assert (server.redis.ttl(f"{foreign}:job:stays"), server.redis.ttl(f"{foreign}:job:short") > 0) == (-1, True)


def test_an_rq_job_that_is_put_back_leaves_the_failed_ones(client, server, to_rq, foreign):
    to_rq({"a": call_of("k")})
    client.doors.take("rq")
    leases(client)[0].fail("g", "m")
    client.unfail("g", "q")
    leases(client)[0].complete(1)
    assert server.redis.hget(f"{foreign}:job:a", "status") == b"finished"
    assert server.redis.zcard(f"{foreign}:failed:default") == 0
    assert [entry[b"type"] for _, entry in server.redis.xrange(f"{foreign}:results:a")] == [b"2", b"1"]


def test_an_rq_job_that_its_producer_deletes_or_cancels_stays_so(client, server, to_rq, foreign):
    to_rq({"deleted": call_of("k"), "cancelled": call_of("k")})
    client.doors.take("rq")
    server.redis.unlink(f"{foreign}:job:deleted")
    server.redis.hset(f"{foreign}:job:cancelled", "status", "canceled")
    assert [lease.complete() for lease in leases(client)] == [True, True]
    assert server.redis.hget(f"{foreign}:job:cancelled", "status") == b"canceled"
    assert list(server.redis.scan_iter(f"{foreign}*")) == [f"{foreign}:job:cancelled".encode()]


@pytest.fixture
def dependent(server, to_rq, foreign):
    """Put a job that waits for others, as RQ does."""

    def enqueue(id, *parents, **fields):
        to_rq({id: call_of("k")}, to_list=False, status="deferred", **fields)
        server.redis.zadd(f"{foreign}:deferred:default", {id: 1})
        for parent in parents:
            server.redis.sadd(f"{foreign}:job:{parent}:dependents", id)
            server.redis.sadd(f"{foreign}:job::{id}:dependencies", parent)

    return enqueue


def test_rq_jobs_that_wait_for_others_follow_when_all_have_ended(client, server, to_rq, dependent, foreign):
    to_rq({id: call_of("k") for id in ("first", "second", "fails")})
    dependent("waits", "first", "second", "gone")
    dependent("never", "fails")
    dependent("whatever", "fails", allow_dependency_failures=1)
    client.doors.take("rq")
    first, second, fails = leases(client)
    first.complete()
    assert client.doors.take("rq").count == 0
    client.settle([Completed(second)])
    fails.fail("g", "m")
    client.doors.take("rq")
    assert sorted(lease.jid for lease in leases(client)) == ["waits", "whatever"]
    assert server.redis.zrange(f"{foreign}:deferred:default", 0, -1) == [b"never"]
    assert server.redis.smembers(f"{foreign}:queues") == {f"{foreign}:queue:default".encode()}


def test_rq_job_follows_when_its_parents_end_in_one_call(client, to_rq, dependent):
    to_rq({id: call_of("k") for id in ("first", "second")})
    dependent("waits", "first", "second")
    client.doors.take("rq")
    client.settle([Completed(lease) for lease in leases(client)])
    assert client.doors.take("rq").count == 1


def test_rq_job_without_a_queue_holds_up_no_end(client, server, to_rq, dependent, foreign):
    to_rq({"first": call_of("k")})
    dependent("nowhere", "first")
    server.redis.hdel(f"{foreign}:job:nowhere", "origin")
    client.doors.take("rq")
    assert [lease.complete() for lease in leases(client)] == [True]
    assert client.doors.take("rq").count == 0


def test_rq_job_follows_when_many_of_its_many_parents_end_in_one_call(client, server, to_rq, dependent, foreign):
    last, ended = [f"last-{number}" for number in range(40)], [f"ended-{number}" for number in range(2960)]
    to_rq({id: call_of("k") for id in last})
    for id in ended:
        server.redis.hset(f"{foreign}:job:{id}", "status", "finished")
    dependent("waits", *last, *ended)
    assert client.doors.take("rq", 1000).count == 40
    client.settle([Completed(lease) for lease in leases(client)])
    assert client.doors.take("rq", 1000).count == 1


def test_fewer_rq_jobs_end_at_once_where_many_wait_for_each(client, server, to_rq, foreign, clock):
    ids = [f"parent-{number}" for number in range(200)]
    to_rq({id: call_of("k") for id in ids})
    for id in ids:
        server.redis.sadd(f"{foreign}:job:{id}:dependents", *range(1_000))
    while client.doors.take("rq", 200).count:
        pass
    outcomes = [Completed(lease) for lease in leases(client, 200)]
    answers = calls_of(client).run(settling.settle("w", outcomes, now=clock.now))
    assert 10 <= answers.count(True) <= 40
    assert client.settle(outcomes) == [answer == LATER for answer in answers]


def test_due_jobs_of_the_rq_schedule_are_taken_unless_a_scheduler_runs(client, server, to_rq, foreign, clock):
    to_rq({"due": call_of("k"), "later": call_of("k")}, to_list=False, status="scheduled")
    server.redis.zadd(f"{foreign}:scheduled:default", {"due": clock() - 1, "later": clock() + 60})
    server.redis.set(f"{foreign}:scheduler-lock:default", "x")
    assert client.doors.take("rq").count == 0
    server.redis.unlink(f"{foreign}:scheduler-lock:default")
    taken = client.doors.take("rq")
    assert (taken.count, taken.again_s) == (1, 5.0)
    assert [lease.jid for lease in leases(client)] == ["due"]
    assert server.redis.zrange(f"{foreign}:scheduled:default", 0, -1) == [b"later"]


def test_rq_job_that_only_rq_can_run_is_broken_with_a_reason(client, to_rq):
    refused = {
        "a": (call_of("k"), {"success_callback_name": "shop.told"}, "callbacks and webhooks"),
        "b": (call_of("k"), {"webhooks": "[]"}, "callbacks and webhooks"),
        "c": (call_of("k"), {"repeats_left": 1}, "repeats"),
        "d": (call_of("k"), {"rate_limit_key": "x"}, "rate limits"),
        "e": (b"\x80\x04\x95", {}, "JSON serializer"),
        "f": (call_of("k"), {"data": b"x\x9c" + b"\xff" * 100}, "JSON serializer"),
        "g": (call_of("k"), {"data": b"no zlib"}, "JSON serializer"),
        "h": (call_of("k" * 65), {}, "no name of 1 to 64 bytes"),
        "i": (call_of("k"), {"data": b"x" * 1_100_000}, "too large"),
    }
    for id, (call, fields, _) in refused.items():
        to_rq({id: call}, **fields)
    client.doors.take("rq")
    said = broken(client)
    assert {id.decode() for id in said} == set(refused)
    for id, why in said.items():
        assert refused[id.decode()][2] in why


def test_a_take_reads_only_so_much_for_broken_rq_jobs(client, to_rq):
    to_rq({f"job-{number}": b"no JSON" + os.urandom(100_000) for number in range(20)})
    taken = client.doors.take("rq", 100)
    assert 1 <= taken.count <= 10 and taken.has_more


def test_arguments_of_an_rq_job_that_inflate_without_end_are_no_data(client, to_rq):
    to_rq({"a": call_of("k", "x" * 2_000_000), "b": b'["k", null, [1]'})
    client.doors.take("rq")
    for lease in leases(client):
        with pytest.raises(ValueError):
            _ = lease.data
    assert client.job("a").is_bytes is True


def test_a_door_to_rq_needs_the_right_to_its_jobs(server, namespace, foreign):
    rules = f"reset on >PASSWORD +@all ~{{{namespace}}}:* ~{foreign}:queue:* &*"
    server.redis.execute_command("ACL", "SETUSER", "no-jobs", *rules.split())
    try:
        with (
            Client(server.url_with("no-jobs", "PASSWORD"), namespace) as client,
            pytest.raises(LeaseholdError, match=f"may not change the keys {foreign}:job:"),
        ):
            client.doors.add("rq", format="rq-json", source=f"{foreign}:queue:default", queue="q")
    finally:
        server.redis.acl_deluser("no-jobs")


# Lists of clients.


@pytest.fixture
def from_clients(client, server, foreign):
    """Put messages as the clients of a queue do."""
    client.doors.add("c", format="client-lists", source=f"{foreign}:mail", queue="q", klass="k")

    def send(name, *messages, attempts=0):
        texts = [json.dumps({"client_id": name, "msg": message, "attempts": attempts}) for message in messages]
        server.redis.lpush(f"{foreign}:mail:{name}", *texts)
        return texts

    return send


def test_messages_of_clients_are_jobs_in_their_lanes(client, from_clients, foreign):
    from_clients("ada", {"n": 12345678901234567890}, [])
    from_clients("x" * 65, "text")
    client.doors.take("c")
    found = {json.dumps(lease.data): (lease.lane, lease.retries, lease.klass) for lease in leases(client)}
    long = hashlib.sha1(b"x" * 65).hexdigest()
    assert found == {'{"n": 12345678901234567890}': ("ada", 5, "k"), "[]": ("ada", 5, "k"), '"text"': (long, 5, "k")}


def test_lists_of_clients_are_found_kept_and_forgotten_with_the_door(client, server, namespace, from_clients, foreign):
    from_clients("ada", 1)
    server.redis.lpush(f"{foreign}:mail-2:kim", "of another queue")
    server.redis.set(f"{foreign}:mail:no-list", "x")
    client.doors.take("c", 1)
    (door,) = client.doors.list()
    assert (list(door.client_lists), door.waiting) == ([f"{foreign}:mail:ada"], 0)
    from_clients("ada", 2, 3)
    assert calls_of(client).run(doors.take(["c"], 10)).count == 2
    client.doors.remove("c")
    assert not server.redis.exists(f"{{{namespace}}}:doorlists:c")
    assert calls_of(client).run(doors.remember(door, [b"late"])) == 0


def test_each_client_gets_its_share_of_the_room(client, from_clients):
    from_clients("many", *range(1_000))
    for number in range(5):
        from_clients(f"few-{number}", number)
    taken = client.doors.take("c", 12)
    lanes = [lease.lane for lease in leases(client)]
    assert {f"few-{number}" for number in range(5)} < set(lanes)
    assert (7 <= taken.count <= 12, taken.has_more) == (True, True)


def test_a_dead_message_lies_in_the_dead_set_as_it_was_pushed(client, server, from_clients, foreign):
    (text,) = from_clients("ada", 1, attempts=4)
    client.doors.take("c")
    (lease,) = leases(client)
    assert lease.retries == 1
    lease.fail("g", "m")
    assert server.redis.smembers(f"{foreign}:dead:mail") == {text.encode()}


def test_client_that_is_a_number_has_the_lane_of_its_own_id(client, server, from_clients, foreign):
    server.redis.lpush(
        f"{foreign}:mail:7", '{"msg":{"client_id":5},"client_id":7}', '{"msg":1,"client_id":12345678901234567890}'
    )
    client.doors.take("c")
    assert {lease.lane for lease in leases(client)} == {"7", "12345678901234567890"}


def test_check_finds_nothing_wrong_with_lists_of_clients(client, from_clients):
    from_clients("ada", 1)
    client.doors.take("c")
    assert client.check() == []


def test_new_list_beyond_the_bound_takes_the_place_of_the_one_not_seen_for_longest(client, from_clients, clock):
    (door,) = client.doors.list()
    calls_of(client).run(doors.remember(door, [f"{n}".encode() for n in range(1_000)], now=clock.now))
    clock.tick(100)
    assert calls_of(client).run(doors.remember(door, [b"0", b"new"], now=clock.now)) == 1
    (door,) = client.doors.list()
    assert {"0", "new"} <= set(door.client_lists[:2])
    assert calls_of(client).run(doors.remember(door, [b"1"], now=clock.now)) == 1, "it was forgotten"


def test_broken_messages_of_clients_are_kept_as_they_were(client, server, from_clients, foreign):
    entries = [b"{", b"[]", b'{"client_id":"a"}', b'{"msg":1}']
    server.redis.lpush(f"{foreign}:mail:ada", *entries)
    client.doors.take("c")
    assert set(broken(client)) == set(entries)


# Entries that are no jobs, and odd ones, in every format.

DEEP = "[" * 10_000 + "]" * 10_000
NO_JOBS = [
    b"", b" ", b"\0", b"\xff\xfe", b"{", b"null", b"1", b"{}", b"[]", b'{"a":1}\0', b"\xef\xbb\xbf{}", DEEP.encode(),
    f'{{"a":{DEEP}}}'.encode(), b"{" * 100_000, b'["a",' * 100_000, b'{"a":"' + b"x" * 1_100_000 + b'"}',
]  # fmt: skip


@pytest.fixture
def doors_of_all(client, server, foreign):
    """Add a door of each format. Return, for each, what puts an entry into its list, and a good one."""
    rq_list = f"{foreign}:queue:rq"
    to_rq = zlib.compress(json.dumps(call_of("k")).encode())
    server.redis.hset(f"{foreign}:job:good", mapping={"data": to_rq, "status": "queued"})
    server.redis.set(f"{foreign}:item:good", "x")
    formats = {
        "rwq": (foreign, f"{foreign}:queue", "good"),
        "hworker": (foreign, f"hworker-jobs-{foreign}", '["good",1]'),
        "worqr": (f"{foreign}:queues:x", f"{foreign}:queues:x", "good"),
        "client-lists": (f"{foreign}:mail", f"{foreign}:mail:ada", '{"client_id":"ada","msg":1}'),
        "sidekiq": (f"{foreign}:queue:s", f"{foreign}:queue:s", sidekiq("good")),
        "celery": (f"{foreign}-celery", f"{foreign}-celery", celery("good", ignore_result=True)),
        "rq-json": (rq_list, rq_list, "good"),
    }

    def add(format):
        source, key, good = formats[format]
        client.doors.add("d", format=format, source=source, queue="q", klass="k")
        push = server.redis.rpush if format == "rq-json" else server.redis.lpush
        return lambda entry: push(key, entry), good

    return add


def take_all(client):
    taken = 0
    while count := client.doors.take("d").count:
        taken += count
    return taken


def take_no_jobs(client, push, good):
    """Take all entries that are no jobs, and a good one behind them."""
    for entry in NO_JOBS:
        push(entry)
    push(good)
    assert take_all(client) == len(NO_JOBS) + 1


@pytest.mark.parametrize("format", ["hworker", "client-lists", "sidekiq", "celery"])
def test_each_broken_entry_is_kept_and_the_door_goes_on(client, doors_of_all, format):
    take_no_jobs(client, *doors_of_all(format))
    assert set(broken(client)) == set(NO_JOBS)
    assert [lease.complete() for lease in leases(client)] == [True]
    assert client.check() == []


@pytest.mark.parametrize("format", ["rwq", "worqr", "rq-json"])
def test_any_bytes_may_be_an_id_or_a_task(client, doors_of_all, format):
    take_no_jobs(client, *doors_of_all(format))
    too_large = {entry for entry in NO_JOBS if len(entry) > 1_048_576} if format != "worqr" else set()
    assert set(broken(client)) == too_large
    held = []
    while more := leases(client):
        held += more
    assert len(held) == (len(NO_JOBS) + 1 if format == "worqr" else 1), "an id without a job or an item is dropped"
    assert {lease.complete() for lease in held} == {True}


NUMBERS = ["1e999", "-1e999", "NaN", "1e308", "9" * 400, "0x10", "-1", "1.5", '"inf"', '"nan"', "[]", "{}", "null"]


@pytest.mark.parametrize("number", NUMBERS)
def test_odd_numbers_make_no_job_that_cannot_be_read(client, server, doors_of_all, foreign, number):
    text = json.loads(number) if number.startswith('"') else number
    odd = {
        "sidekiq": [sidekiq(f"s-{field}", **{field: "@"}) for field in ("retry", "retry_count", "at")],
        "celery": [
            *(celery(f"c-{each}", ignore_result=True, **{each: "@"}) for each in ("retries", "eta", "expires")),
            celery("c-timelimit", ignore_result=True, timelimit=["@", "@"]),
            celery("c-priority", ignore_result=True, properties={"priority": "@"}),
        ],
        "client-lists": ['{"client_id":"ada","msg":1,"attempts":"@"}'],
        "rq-json": ["odd"],
    }  # fmt: skip
    fields = dict.fromkeys(("timeout", "retries_left", "result_ttl", "ttl"), text)
    server.redis.hset(f"{foreign}:job:odd", mapping={"data": zlib.compress(b'["k",null,[],{}]'), **fields})
    for format, entries in odd.items():
        push, _ = doors_of_all(format)
        for entry in entries:
            push(entry.replace('"@"', number))
        take_all(client)
        client.doors.remove("d")
    assert client.check() == []
    held = leases(client)
    assert {lease.complete() for lease in held} == {True}
    scheduled = client.queue("q").counts().scheduled
    assert len(held) + scheduled + client.failed().get("expired", 0) == sum(map(len, odd.values()))


@pytest.mark.parametrize("format", ["sidekiq", "celery"])
def test_entries_with_an_empty_id_are_broken_each(client, doors_of_all, format):
    push, _ = doors_of_all(format)
    entries = [celery("", args) if format == "celery" else sidekiq("", args=[args]) for args in ("[1]", "[2]")]
    for entry in entries:
        push(entry)
    assert take_all(client) == 2
    assert {data.decode() for data in broken(client)} == set(entries)
