"""Entries of other programs: valid ones become jobs, invalid ones are kept and read again on request."""

import base64
import json
import re
import shutil
import subprocess

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing
from supervisor.engine.model.outcomes import Completed

ANY = bytes(range(256))
TRACE = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest.fixture
def push(server, namespace):
    def push_entries(*entries, queue="q"):
        texts = [one if isinstance(one, bytes | str) else json.dumps(one) for one in entries]
        server.redis.lpush(f"{{{namespace}}}:in:{queue}", *texts)

    return push_entries


def broken(client, group="broken"):
    """Push entries in this order."""
    return sorted(client.failed(group)[1], key=lambda job: job.jid)


# Jobs.


def test_an_entry_is_a_job_with_the_next_lease(client, push):
    push({"klass": "k", "data": {"n": 1}})
    (lease,) = client.queue("q").lease("w")
    assert (lease.klass, lease.data, lease.queue, lease.priority, lease.tags) == ("k", {"n": 1}, "q", 0, [])
    assert lease.complete() is True
    assert client.job(lease.jid).state == "complete"


def test_entries_are_served_in_push_order(client, push):
    push(*({"klass": "k", "data": i} for i in range(30)))
    push({"klass": "k", "data": 30})
    assert [lease.data for lease in client.queue("q").lease("w", 50)] == list(range(31))


def test_unread_entries_count(client, push):
    push(*({"klass": "k"} for _ in range(5)))
    client.queue("q").put("k")
    counts = client.queue("q").counts()
    assert (counts.waiting, client.queue("q").length()) == (6, 6)
    client.queue("q").lease("w")
    counts = client.queue("q").counts()
    assert (counts.waiting, counts.running) == (5, 1)


def test_all_of_puts_arguments_may_be_given(client, push, clock):
    client.queue("q").put("k", jid="parent", delay=99)
    push(
        {
            "klass": "k", "data": None, "jid": "j", "priority": -3, "delay": 5, "retries": 2, "timeout": 1.5,
            "max_deaths": 7, "tags": ["a", "b"],
            "depends": ["parent"], "on_parent_failure": "run", "lane": "l", "limit": ["key", "other"],
            "unique": "u", "expires": 60, "persistent": False, "at_most_once": True,
            "trace": TRACE,
        }
    )  # fmt: skip
    push({"klass": "k", "jid": "at", "at": clock.now + 7, "unique": True, "persistent": True})
    assert client.queue("q").lease("w") == []
    job = client.job("j")
    assert (job.state, job.due_unix, job.dependencies) == ("depends", clock.now + 5, ["parent"])
    assert (job.priority, job.retries, job.timeout_s, job.max_deaths) == (-3, 2, 1.5, 7)
    assert (job.tags, job.on_parent_failure, job.lane, job.limit) == (["a", "b"], "run", "l", ("key", "other"))
    assert (job.unique, job.start_by_unix, job.persistent, job.at_most_once) == ("u", clock.now + 60, False, True)
    assert job.trace == TRACE
    job = client.job("at")
    assert (job.state, job.due_unix, job.unique, job.persistent) == ("scheduled", clock.now + 7, True, True)


def test_null_counts_as_not_given(client, push):
    push({"klass": "k", "jid": None, "priority": None, "tags": None, "lane": None, "data": None, "data_b64": None})
    (lease,) = client.queue("q").lease("w")
    assert (lease.data, lease.lane) == (None, None)


def test_a_known_jid_is_moved_as_put_does(client, push):
    client.queue("r").put("k", 1, jid="j", priority=4)
    push({"klass": "other", "data": 2, "jid": "j"})
    (lease,) = client.queue("q").lease("w")
    assert (lease.jid, lease.klass, lease.data, lease.priority) == ("j", "other", 2, 4)


def test_missing_jid_becomes_an_unused_one(client, push):
    push(*({"klass": "k"} for _ in range(3)))
    jids = [lease.jid for lease in client.queue("q").lease("w", 3)]
    assert len(set(jids)) == 3


def test_entries_line_up_behind_waiting_jobs_by_priority(client, push):
    q = client.queue("q")
    push({"klass": "k", "jid": "pushed"}, {"klass": "k", "jid": "urgent", "priority": -1})
    q.put("k", jid="put")
    assert [lease.jid for lease in q.lease("w", 3)] == ["urgent", "put", "pushed"]


def test_a_paused_queue_leaves_entries_in_their_list(client, push, server, namespace):
    client.queue("q").pause()
    push({"klass": "k"})
    assert client.queue("q").lease("w") == []
    assert server.redis.llen(f"{{{namespace}}}:in:q") == 1
    client.queue("q").unpause()
    assert len(client.queue("q").lease("w")) == 1


def test_queue_becomes_known_by_its_first_entry(client, push):
    push({"klass": "k"}, queue="new")
    assert len(client.queue("new").lease("w")) == 1
    assert "new" in client.queues()


def test_entries_beyond_one_lease_are_all_served(client, push):
    push(*({"klass": "k", "data": i} for i in range(500)))
    found = []
    while leases := client.queue("q").lease("w", 7):
        found += [lease.data for lease in leases]
    assert found == list(range(500))


# Data, character by character.

EXACT = [
    "12345678901234567890123456789", "1e400", "0.1000000000000000055511151231257827", "[]", "{}", '[[],{"a":[]}]',
    '"\\u0000\\ud83d\\ude00 \\/"', "-0", "1.0", "null", "true", '"data"', '{"data": {"klass": "x"}}', '"\\"data\\": 1"',
    '{"b": 1, "a": 2}', '"' + "x" * 100_000 + '"', "9007199254740993",
]  # fmt: skip


@pytest.mark.parametrize("text", EXACT, ids=lambda text: text[:20])
def test_data_is_kept_character_by_character(client, push, text):
    push(f'{{"klass": "k", "data": {text}, "priority": 1}}')
    (lease,) = client.queue("q").lease("w")
    assert (lease.raw, lease.is_bytes, client.job(lease.jid).raw) == (text.encode(), False, text.encode())


def test_whitespace_between_the_parts_is_not_data(client, push):
    push(' \n{ "data" :\t[1 , 2]  ,\r\n "klass":"k" } ')
    assert client.queue("q").lease("w")[0].raw == b"[1 , 2]"


def test_no_data_is_null(client, push):
    push({"klass": "k"})
    assert client.queue("q").lease("w")[0].data is None


def test_bytes_come_in_base64(client, push):
    push({"klass": "k", "data_b64": base64.b64encode(ANY).decode()}, {"klass": "k", "data_b64": ""})
    first, second = client.queue("q").lease("w", 2)
    assert (first.data, first.is_bytes, second.data) == (ANY, True, b"")


def test_the_data_stays_the_same_through_every_stage(client, push, clock):
    text = '{"n":12345678901234567890123,"l":[],"o":{}}'
    push(f'{{"klass": "k", "data": {text}, "jid": "j"}}')
    q = client.queue("q")
    for way in (
        lambda it: it.retry(), lambda it: it.retry(delay=5), lambda it: it.release(), lambda it: it.died("oom"),
        lambda it: it.fail("g", "m"), lambda it: it.complete(next="q"), lambda it: client.job("j").move("q"),
    ):  # fmt: skip
        (lease,) = q.lease("w")
        assert lease.raw == text.encode()
        way(lease)
        client.unfail("g")
        clock.tick(5)
    q.lease("w")[0].renew(data={"new": 1})
    assert client.job("j").data == {"new": 1}


# Bare data.


def test_bare_entries_run_as_the_klass_of_their_queue(client, push):
    client.config.set("klass-q", "resize")
    push(ANY, b"", "a b c", "[1, 2]", b'{"no": "klass"}', b"\xff\xfe")
    leases = client.queue("q").lease("w", 9)
    assert [lease.data for lease in leases] == [ANY, b"", b"a b c", b"[1, 2]", b'{"no": "klass"}', b"\xff\xfe"]
    assert {(lease.klass, lease.is_bytes) for lease in leases} == {("resize", True)}


def test_a_klass_may_be_set_for_all_queues(client, push):
    client.config.set("klass", "any")
    client.config.set("klass-q", "resize")
    push(b"x")
    push(b"x", queue="r")
    assert [lease.klass for lease in client.lease("w", ["q", "r"], 2)] == ["resize", "any"]


def test_an_entry_with_a_klass_is_no_bare_one(client, push):
    client.config.set("klass-q", "resize")
    push({"klass": "other", "data": 1})
    assert client.queue("q").lease("w")[0].klass == "other"


# Invalid entries.

WRONG = {
    "no JSON": "hello",
    "half of JSON": '{"klass": "k"',
    "no object": '["klass", "k"]',
    "nothing": "",
    "any bytes": ANY,
    "deep": "[" * 5000,
    "a deep object": '{"klass":"k","data":' + "[" * 5000 + "]" * 5000 + "}",
    "no klass": "{}",
    "a klass that is no name": '{"klass": 5}',
    "an empty klass": '{"klass": ""}',
    "a klass that is too long": json.dumps({"klass": "k" * 65}),
    "an unknown key": '{"klass": "k", "prio": 1}',
    "a priority that is none": '{"klass": "k", "priority": "high"}',
    "half a priority": '{"klass": "k", "priority": 0.5}',
    "a delay before now": '{"klass": "k", "delay": -1}',
    "two times": '{"klass": "k", "delay": 1, "at": 1}',
    "two kinds of data": '{"klass": "k", "data": 1, "data_b64": "eA=="}',
    "bad base64": '{"klass": "k", "data_b64": "x"}',
    "tags that are no list": '{"klass": "k", "tags": "t"}',
    "a tag that is no name": '{"klass": "k", "tags": ["a\\nb"]}',
    "a lane that is no name": '{"klass": "k", "lane": "a\\nb"}',
    "a jid that is no name": b'{"klass": "k", "jid": "\xff"}',
    "a policy that is none": '{"klass": "k", "on_parent_failure": "explode"}',
    "a wait for itself": '{"klass": "k", "jid": "x", "depends": ["x"]}',
    "what excludes each other": '{"klass": "k", "persistent": true, "at_most_once": true}',
    "a flag that is none": '{"klass": "k", "persistent": 1}',
    "a trace that is no text": '{"klass": "k", "trace": 1}',
    "a trace in capitals": json.dumps({"klass": "k", "trace": TRACE.upper()}),
    "a trace that is longer": json.dumps({"klass": "k", "trace": TRACE + "0"}),
    "a trace of nothing": json.dumps({"klass": "k", "trace": f"00-{'0' * 32}-{'b' * 16}-01"}),
    "a trace without a span": json.dumps({"klass": "k", "trace": f"00-{'a' * 32}-{'0' * 16}-01"}),
    "a trace of no version": json.dumps({"klass": "k", "trace": "ff" + TRACE[2:]}),
}


@pytest.mark.parametrize("why", WRONG)
def test_invalid_entry_fails_with_its_bytes_and_blocks_no_job(client, push, why):
    entry = WRONG[why]
    push(entry, {"klass": "k", "jid": "good"})
    assert [lease.jid for lease in client.queue("q").lease("w", 5)] == ["good"]
    (job,) = broken(client)
    assert job.raw == (entry if isinstance(entry, bytes) else entry.encode())
    assert (job.queue, job.is_bytes, job.failure["group"]) == ("q", True, "broken")
    assert job.failure["message"].startswith("an entry of in:q is no job: ")


@pytest.mark.parametrize("depth", [200, 300, 500, 940, 980, 998])
def test_data_of_any_depth_is_found(client, push, depth):
    data = "[" * depth + "]" * depth
    push('{"klass":"k","jid":"deep","tags":["]}"],"data":' + data + "}")
    (lease,) = client.queue("q").lease("w")
    assert (lease.raw.decode(), lease.tags) == (data, ["]}"])
    assert client.job("deep").raw == lease.raw
    assert [job.jid for job in client.queue("q").jobs("running")] == ["deep"]


def test_failure_of_an_entry_says_why(client, push):
    push('{"klass": "k", "prio": 1}', "hello", "{}", '{"klass": "k", "retries": -1}')
    client.queue("q").lease("w")
    assert [job.failure["message"].partition("no job: ")[2] for job in broken(client)] == [
        "it has the unknown key prio", "it is not a JSON object", "it has no klass",
        "retries must be a whole number that is 0 or more",
    ]  # fmt: skip


def test_broken_entries_are_bounded_as_all_that_failed(client, push):
    client.config.set("failed-history-count", 5)
    for _ in range(4):
        push(*("hello" for _ in range(5)))
        client.queue("q").lease("w", 5)
    client.sweep()
    assert client.failed() == {"broken": 5}


def test_broken_entry_is_read_again_when_its_queue_has_a_klass(client, push):
    push(b"\xff raw")
    q = client.queue("q")
    assert q.lease("w") == []
    assert client.unfail("broken") == 0
    assert len(broken(client)) == 1
    client.config.set("klass-q", "resize")
    assert client.unfail("broken") == 1
    (lease,) = q.lease("w")
    assert (lease.klass, lease.data, broken(client)) == ("resize", b"\xff raw", [])


def test_broken_entry_can_get_a_klass_or_new_data(client, push):
    push(b"\xff raw", '{"klass": "mail", "prio": 5}')
    q = client.queue("q")
    assert q.lease("w") == []
    first, second = broken(client)
    assert first.unfail(klass="resize") is True
    assert second.unfail(data={"to": "x"}) is True
    leases = {lease.jid: (lease.klass, lease.data) for lease in q.lease("w", 5)}
    assert leases == {first.jid: ("resize", b"\xff raw"), second.jid: ("mail", {"to": "x"})}


def test_entry_that_is_still_broken_stays(client, push):
    push('{"klass": "k", "prio": 5}')
    client.queue("q").lease("w")
    (before,) = broken(client)
    assert (client.unfail("broken"), before.unfail()) == (0, False)
    (after,) = broken(client)
    assert (after.jid, after.raw, after.failure) == (before.jid, before.raw, before.failure)


def test_valid_entry_failed_by_its_handler_is_an_ordinary_job(client, push):
    push({"klass": "k", "data": {"n": 1}, "priority": 3})
    q = client.queue("q")
    q.lease("w")[0].fail("g", "m")
    assert client.unfail("g") == 1
    (lease,) = q.lease("w")
    assert (lease.data, lease.priority) == ({"n": 1}, 3)


def test_an_entry_cannot_come_into_being_twice(client, push, server, namespace):
    """Entries are taken in and deleted in one step."""
    push(*({"klass": "k", "jid": f"j{i}"} for i in range(40)))
    client.settle([Completed(lease) for lease in client.queue("q").lease("w", 10)])
    assert server.redis.llen(f"{{{namespace}}}:in:q") == 40 - 26
    assert client.queue("q").counts().waiting == 30


# Other programs.


def test_redis_cli_pushes_as_the_documents_say(client, server, namespace):
    program = shutil.which("redis-cli") or shutil.which("valkey-cli")
    if program is None:
        pytest.skip("there is no redis-cli")
    entry = '{"klass": "email.send", "data": {"to": "ann@example.com"}}'
    subprocess.run(
        [program, "-s", str(server.socket), "LPUSH", f"{{{namespace}}}:in:q", entry],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    (lease,) = client.queue("q").lease("w")
    assert (lease.klass, lease.data) == ("email.send", {"to": "ann@example.com"})


NODE = """
const [path, key, entry] = process.argv.slice(1);
const socket = require("net").connect(path, () => {
  const parts = ["LPUSH", key, entry];
  socket.write(`*${parts.length}\\r\\n` + parts.map((p) => `$${Buffer.byteLength(p)}\\r\\n${p}\\r\\n`).join(""));
});
socket.on("data", () => socket.end());
"""


def test_node_pushes_as_the_documents_say(client, server, namespace):
    program = shutil.which("node")
    if program is None:
        pytest.skip("there is no node")
    entry = json.dumps({"klass": "email.send", "data": {"to": "Zoë"}}, ensure_ascii=False)
    arguments = [program, "-e", NODE, str(server.socket), f"{{{namespace}}}:in:q", entry]
    subprocess.run(arguments, check=True, capture_output=True, timeout=60)
    assert client.queue("q").lease("w")[0].data == {"to": "Zoë"}


# Hostile ones.


def test_entry_gets_free_jid_however_many_are_taken(client, push):
    """Another program has taken the next numbers: the search for a free one ends, and no job is replaced."""
    q = client.queue("q")
    q.put_many({"klass": "theirs", "jid": f"in-{number}"} for number in range(21_001, 42_001))
    push({"klass": "k", "priority": -1}, {"klass": "k", "priority": -1})
    drawn = [lease.jid for lease in q.lease("w", 2)]
    assert q.counts().waiting == 21_000 and len(drawn) == 2
    assert all(re.fullmatch(r"in-\d+-[0-9a-f]{12}", jid) for jid in drawn)


def test_recurrence_gets_free_jid_however_many_are_taken(client, clock):
    q = client.queue("q")
    q.recur("k", every=1, jid="r", offset=1)
    q.put_many({"klass": "theirs", "jid": f"r-{number}"} for number in range(1, 6_000))
    clock.tick(2)
    q.lease("w", 1)
    assert (q.counts().waiting, q.counts().running) == (6_000, 1), "5,999 of theirs, and two new ones"


@pytest.mark.parametrize("jid", ["r" * 48, "ä" * 24])
def test_long_jid_keeps_its_drawn_end(client, clock, server, namespace, jid):
    q = client.queue("q")
    q.put_many({"klass": "theirs", "jid": f"{jid}-{number}"} for number in (1, *range(10**14, 10**14 + 9)))
    server.redis.set(f"{{{namespace}}}:seq", 10**14)
    q.recur("k", every=1, jid=jid, offset=1)
    clock.tick(1)
    drawn = [lease.jid for lease in q.lease("w", 99) if lease.klass == "k"]
    assert len(drawn) == 1 and len(drawn[0].encode()) == 64
    assert re.fullmatch(jid + r"-\d{10}-[0-9a-f]{4}", drawn[0])


def test_poison_entry_is_buried_and_others_go_on(client, push, server, namespace):
    """The jid leads to a key of a foreign type, so that the put raises amid its plan."""
    server.redis.set(f"{{{namespace}}}:job:poison", "foreign")
    push({"klass": "k", "data": 1}, {"klass": "k", "jid": "poison"}, {"klass": "k", "data": 2})
    client.queue("other").put("k", data=3)
    queues = ["q", "other"]
    grant = calls_of(client).call(leasing.lease, "w", queues, 9)
    assert grant.leases == [] and grant.next_at_unix == grant.now_unix
    assert [lease.data for lease in client.lease("w", queues, 9)] == [1, 2, 3]
    (job,) = broken(client)
    assert job.raw == b'{"klass": "k", "jid": "poison"}' and "WRONGTYPE" in job.failure["message"]
    server.redis.delete(f"{{{namespace}}}:job:poison")
    assert client.unfail("broken") == 1
    assert [lease.jid for lease in client.queue("q").lease("w", 9)] == ["poison"]


def test_poison_entry_does_not_stop_the_deletion_of_its_queue(client, push, server, namespace):
    server.redis.set(f"{{{namespace}}}:job:poison", "foreign")
    push({"klass": "k"}, {"klass": "k", "jid": "poison"}, {"klass": "k"})
    assert client.queue("q").cancel({"n": 1}) == []
    assert [job.klass for job in broken(client)] == ["broken"]
    server.redis.delete(f"{{{namespace}}}:job:poison")


def test_entry_that_depends_on_a_poison_job_is_buried(client, push, server, namespace):
    server.redis.set(f"{{{namespace}}}:job:poison", "foreign")
    push({"klass": "k", "depends": ["poison"]}, {"klass": "k", "data": 1})
    assert client.queue("q").lease("w", 9) == []
    assert [lease.data for lease in client.queue("q").lease("w", 9)] == [1]
    assert len(broken(client)) == 1
    server.redis.delete(f"{{{namespace}}}:job:poison")


def test_foreign_key_of_a_queue_buries_no_entry(client, push, server, namespace):
    key = f"{{{namespace}}}:unique:q"
    server.redis.set(key, "foreign")
    push({"klass": "k", "unique": "u"}, {"klass": "k", "jid": "j", "unique": "v"})
    with pytest.raises(Exception, match="WRONGTYPE"):
        client.queue("q").lease("w", 9)
    server.redis.delete(key)
    assert len(client.queue("q").lease("w", 9)) == 2
    assert client.failed() == {}


def test_buried_poison_entry_tells_why(client, push, server, namespace):
    server.redis.set(f"{{{namespace}}}:job:poison", "foreign")
    push({"klass": "k", "jid": "poison"})
    with client.events() as events:
        client.queue("q").lease("w", 9)
        event = next(event for event in events if event.name == "job.failed")
    assert "WRONGTYPE" in event.fields["message"]
    server.redis.delete(f"{{{namespace}}}:job:poison")


def test_huge_entry_fails_undecoded_with_its_bytes(client, push):
    huge = b'{"klass": "k", "data": [' + b"{}," * 400_000 + b"1]}"
    push(huge, {"klass": "k", "data": 1})
    assert client.queue("q").lease("w", 9) == [], "one call takes in no more than it can look through in time"
    assert [lease.data for lease in client.queue("q").lease("w", 9)] == [1]
    (job,) = broken(client)
    assert job.raw == huge
    assert f"too large: {len(huge)} bytes, above 1048576: put it by a client" in job.failure["message"]
    assert client.unfail("broken") == 0


def test_huge_entry_is_data_where_the_queue_has_a_klass(client, push, config):
    config(**{"klass-q": "k"})
    push(b"x" * 2_000_000)
    (lease,) = client.queue("q").lease("w", 9)
    assert (lease.klass, len(lease.raw)) == ("k", 2_000_000)


def test_entries_with_many_names_are_taken_in_steps(client, push):
    """One lease takes a bounded number of entries and reports that there are more."""
    tags = [f"t{number}" for number in range(100)]
    push(*({"klass": "k", "tags": tags} for _ in range(200)))
    grant = calls_of(client).call(leasing.lease, "w", ["q"], 1_000)
    assert 0 < len(grant.leases) < 100
    assert grant.next_at_unix == grant.now_unix
    rest = [lease for _ in range(19) for lease in client.queue("q").lease("w", 1_000)]
    assert len(grant.leases) + len(rest) == 200
