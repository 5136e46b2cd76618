"""Any program that can LPUSH puts jobs: idle supervisors run them within a second, without polling."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from supervisor.engine.worker.push_listeners import MOST_LISTENERS
from tests.lengths import SOON_S

#: A supervisor without a push listener leases after ten seconds. An idle machine needs a second at most.
AT_ONCE_S = 5.0
HUGE_BYTES = 64 << 20
#: RESP by hand, over nothing but a socket: what a program in any language can do.
NODE = """
const net = require("net");
const [path, key, ...entries] = process.argv.slice(1);
const words = ["LPUSH", key, ...entries];
const command = `*${words.length}\\r\\n` + words.map((w) => `$${Buffer.byteLength(w)}\\r\\n${w}\\r\\n`).join("");
const peer = net.connect(path, () => peer.write(command));
peer.on("data", (answer) => { process.stdout.write(answer); peer.end(); });
"""


def push(stage, *entries, queue="default"):
    texts = [entry if isinstance(entry, bytes | str) else json.dumps(entry) for entry in entries]
    return stage.server.redis.lpush(f"{stage.prefix}in:{queue}", *texts)


def peak_bytes(pool):
    return int(re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{pool.pid}/status").read_text())[1]) << 10


def completed(stage, count):
    stage.wait_until(lambda: len(stage.find("job.completed")) >= count, f"{count} completed jobs")
    return [event["jid"] for event in stage.find("job.completed")]


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="there is no redis-cli")
def test_push_by_redis_cli_starts_within_a_second(stage, measured):
    pool = stage.start(processes=1).wait_ready()
    waits_s = []
    for number in range(3):
        stage.wait_until_idle(1)
        entry = json.dumps({"klass": "good.echo", "data": {"n": number}, "tags": ["cli"], "priority": 3})
        pushed_unix = time.time()
        subprocess.run(
            ["redis-cli", "-s", str(stage.server.socket), "LPUSH", f"{stage.prefix}in:default", entry],
            check=True, capture_output=True, timeout=SOON_S,
        )  # fmt: skip
        stage.wait_until(lambda n=number: len(stage.ledger.starts()) > n, "its start")
        waits_s.append(stage.ledger.starts()[-1].unix - pushed_unix)
    measured(f"redis-cli LPUSH -> started: {', '.join(f'{1000 * s:.0f}' for s in waits_s)} ms")
    assert max(waits_s) <= AT_ONCE_S
    jobs = stage.client.jobs(*completed(stage, 3))
    assert [(job.result, job.tags, job.priority) for job in jobs] == [({"n": n}, ["cli"], 3) for n in range(3)]
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_push_by_node_starts_within_a_second(stage, measured):
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    entries = [json.dumps({"klass": "good.echo", "data": text}) for text in ("ä", "\u2028", "😀")]
    pushed_unix = time.time()
    done = subprocess.run(
        ["node", "-e", NODE, str(stage.server.socket), f"{stage.prefix}in:default", *entries],
        check=True, capture_output=True, text=True, timeout=SOON_S,
    )  # fmt: skip
    assert done.stdout == ":3\n"  # as text
    stage.wait_until(lambda: len(stage.ledger.starts()) >= 1, "its start")
    waited_s = stage.ledger.starts()[0].unix - pushed_unix
    measured(f"node's LPUSH (and node's own start) -> started: {1000 * waited_s:.0f} ms")
    assert waited_s <= AT_ONCE_S + 5  # node itself takes a moment
    assert [job.result for job in stage.client.jobs(*completed(stage, 3))] == ["ä", "\u2028", "😀"]
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_every_idle_supervisor_receives_every_push(stage, measured):
    """A busy supervisor must not be the only one that has received it."""
    for _ in range(3):
        stage.start(processes=1).wait_ready()
    stage.wait_until_idle(3)
    gate = stage.gate("gate")
    waits_s = []
    for number in range(3):
        pushed_unix = time.time()
        push(stage, {"klass": "good.hold", "data": gate})
        stage.wait_until(lambda n=number: len(stage.ledger.starts()) > n, "its start")
        waits_s.append(stage.ledger.starts()[-1].unix - pushed_unix)
    measured(f"three pushes, three supervisors: started after {', '.join(f'{1000 * s:.0f}' for s in waits_s)} ms")
    assert max(waits_s) <= AT_ONCE_S
    stage.open_gate(gate)
    completed(stage, 3)
    assert [pool.drain() for pool in stage.pools] == [0, 0, 0]
    stage.assert_nothing_left()


def test_burst_of_pushes_is_received_in_full(stage):
    for _ in range(2):
        stage.start(processes=1, jobs_per_child=0).wait_ready()
    stage.wait_until_idle(2)
    for _ in range(300):
        push(stage, {"klass": "good.noop"})
    completed(stage, 300)
    assert [pool.drain() for pool in stage.pools] == [0, 0]
    stage.assert_nothing_left()


@pytest.mark.sampled(2)
def test_huge_push_does_not_grow_idle_supervisors(stage, measured):
    pools = [stage.start(processes=1).wait_ready() for _ in range(2)]
    stage.wait_until_idle(2)
    before = [peak_bytes(pool) for pool in pools]
    push(stage, b"x" * HUGE_BYTES, {"klass": "good.echo", "data": "next"})
    completed(stage, 1)
    assert stage.client.failed() == {"broken": 1}
    grown = [peak_bytes(pool) - peak for pool, peak in zip(pools, before, strict=True)]
    measured(f"LPUSH of {HUGE_BYTES >> 20} MB: {', '.join(f'{bytes_ >> 20}' for bytes_ in grown)} MB more at the most")
    assert max(grown) < HUGE_BYTES // 8
    assert [pool.drain() for pool in pools] == [0, 0]
    stage.assert_nothing_left()


def test_pushes_to_sixteen_queues_are_received(stage):
    queues = [f"q{number}" for number in range(MOST_LISTENERS)]
    pool = stage.start(processes=1, queue=[*queues, "beyond"]).wait_ready()
    stage.wait_until_idle(1)
    pushed_unix = time.time()
    for queue in (queues[0], queues[-1]):
        push(stage, {"klass": "good.noop"}, queue=queue)
    stage.wait_until(lambda: len(stage.ledger.starts()) >= 2, "their starts")
    assert stage.ledger.starts()[-1].unix - pushed_unix <= AT_ONCE_S
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_entries_of_a_paused_queue_cause_no_busy_loop(stage, proxies, measured):
    stage.queue.put("good.noop", jid="known")
    stage.client.cancel("known")
    proxy = proxies(0)
    pool = stage.start(processes=1, redis_url=proxy.url).wait_ready()
    stage.queue.pause()
    stage.wait_until_idle(1)
    before = proxy.wait_until_quiet()
    push(stage, {"klass": "good.noop"})
    stage.let_time_pass(6.0)
    trips = proxy.counts()["batches"] - before
    measured(f"an entry in a paused queue: {trips} round trips in 6 s")
    assert trips <= 30
    assert stage.ledger.starts() == []
    stage.queue.unpause()
    completed(stage, 1)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_lost_push_listener_reconnects(stage):
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    listeners = [client["id"] for client in stage.server.redis.client_list() if client["cmd"] == "blmove"]
    for number in listeners:
        stage.server.redis.client_kill_filter(_id=number)
    waiting = [client["id"] for client in stage.server.redis.client_list() if client["cmd"] == "blpop"]
    stage.queue.put("good.noop")
    completed(stage, 1)
    stage.let_time_pass(1.1)  # not again and again at once
    stage.queue.put("good.noop")
    completed(stage, 2)
    stage.wait_until_idle(1)
    push(stage, {"klass": "good.noop"})
    completed(stage, 3)
    stage.wait_until_idle(1)
    assert waiting == [client["id"] for client in stage.server.redis.client_list() if client["cmd"] == "blpop"]
    assert pool.find("redis.lost") == []
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_pushes_are_received_again_soon_after_an_outage(own_stage, own_server, measured):
    stage = own_stage
    stage.config(grace=0.5)  # it connects again sooner than its push listeners would
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    own_server.kill()
    pool.wait_for("redis.lost")
    own_server.start()
    back_unix = pool.wait_for("redis.connected")["time"]
    stage.wait_until_idle(1)
    measured(f"connected anew -> it waits at the door: {time.time() - back_unix:.2f} s")
    push(stage, {"klass": "good.noop"})
    completed(stage, 1)
    assert pool.find("job.completed")[0]["time"] - back_unix < 5.0  # by itself it looks after ten
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_invalid_entry_fails_as_broken_and_the_next_runs(stage):
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    push(stage, b"\xff\xfe no json", {"no": "klass"}, {"klass": "good.noop"})
    completed(stage, 1)
    total, broken = stage.client.failed("broken")
    assert total == 2
    assert sorted(job.raw for job in broken) == [b'{"no": "klass"}', b"\xff\xfe no json"]
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_deeply_nested_data_ends_no_supervisor(stage):
    pool = stage.start(processes=1).wait_ready()
    depths = (200, 300, 980, 998)
    data = {f"deep-{depth}": "[" * depth + "]" * depth for depth in depths}
    push(stage, *(f'{{"klass":"good.noop","jid":"{jid}","data":{text}}}' for jid, text in data.items()))
    stage.wait_until_ended(data)
    assert set(stage.states(list(data))) == {"complete"}
    assert pool.drain() == 0
    stage.assert_nothing_left()
