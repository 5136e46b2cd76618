"""Each alert for Prometheus by a real situation: it fires, no other one does, and its cause is named.

A real supervisor is scraped before the situation and in it, and promtool plays these scrapes. Ages come from clients
whose clock is slow. Two situations cannot last, and are only held for the minutes that their alerts ask for:

- LeaseholdDrainStuck: no test can make a process that the kernel does not end, and a drain is over after 2 s. Here the
  zygote stands still, which reports the end of the child.
- LeaseholdLoopSlow: a master without processor time is one that is stopped for a second, amid a turn.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

import psutil
import pytest
from apps import put, start_app, wait_for_arrival, write_app
from scraping import Scraper
from supervised import HERE, ROOT

from supervisor import Client
from tests.between import Between
from tests.deploy.play import INSTANCE, JOB, rules_test
from tests.deploy.rules import ALERTS
from tests.process.operate.test_top import forget_answers

LONG_S = 20
HOUR_S, DAY_S = 3600, 86400


class Scene:
    """A stage with one supervisor, and what its scrapes have shown: the first one before the situation."""

    def __init__(self, stage):
        self.stage = stage
        self.client = stage.client
        self.url = stage.server.url
        self.shown = []

    def begin(self, pool):
        """Scrape a supervisor that is well."""
        self.pool = pool
        self.scraper = Scraper(pool)
        self.scrape()
        return pool

    def start(self, **flags):
        return self.begin(self.stage.start(redis_url=self.url, http="127.0.0.1:0", **flags).wait_ready())

    def start_app(self, source="", **flags):
        return self.begin(start_app(self.stage, source, http="127.0.0.1:0", **flags).wait_ready())

    def hang(self):
        """Have a job run until the end."""
        self.stage.queue.put("good.hold", self.stage.gate("end"), jid="hangs")
        self.stage.wait_for_starts("hangs")

    def scrape(self):
        self.scraper.scrape()
        self.shown.append(self.scraper.values)

    def scrape_until(self, name, least=1):
        """Scrape until a metric shows the situation. A look for concerns comes every 15 s."""
        deadline_at = time.monotonic() + 2 * LONG_S
        while (value := self.scraper.value(name)) < least:
            assert time.monotonic() < deadline_at, (name, value, self.stage.last_words())
            time.sleep(0.3)  # only a scrape shows it
        self.shown.append(self.scraper.values)

    @contextlib.contextmanager
    def ago(self, seconds):
        """A client whose clock is slow."""
        with Client(self.stage.server.url, self.stage.namespace, clock=lambda: time.time() - seconds) as client:
            yield client

    def end(self):
        client = self.client
        if (self.stage.directory / "gates" / "end").exists():
            self.stage.open_gate("end")
        assert self.pool.drain() == 0
        for worker in client.workers():
            client.deregister(worker.name)
        for name, counts in client.queues().items():
            for each in client.queue(name).jobs("recurring") if counts.recurring else ():
                client.unrecur(each.jid)
            client.queue(name).delete()
        for key in client.limits():
            client.unlimit(key)
        forget_answers(self.stage)
        self.stage.assert_nothing_left()


# whom to ask


def job(jid, timeout=LONG_S):
    return lambda scene: scene.client.why(jid, timeout=timeout).sentence


def queue(name):
    return lambda scene: scene.client.queue(name).why(timeout=LONG_S).sentence


def typed(*words):
    """`leasehold WORDS`, in which WORKER is the supervisor."""

    def ask(scene):
        done = scene.stage.run_command(
            *(scene.pool.worker if word == "WORKER" else word for word in words), url=scene.url
        )
        return done.stdout + done.stderr

    return ask


def until(words, ask):
    """Ask until the answer has these words: a supervisor tells the mean of its last exchanges."""

    def repeat(scene):
        deadline_at = time.monotonic() + 2 * LONG_S
        while words not in (answer := ask(scene)) and time.monotonic() < deadline_at:
            pass
        return answer

    return repeat


def supervisor(scene):
    [worker] = scene.client.workers()
    return scene.client.why_worker(worker.name, timeout=LONG_S).sentence


def batch(name):
    return lambda scene: scene.client.batch(name).why().sentence


def logged(event):
    return lambda scene: str(scene.pool.find(event))


# situations


@contextlib.contextmanager
def much_waits_for_a_person(scene):
    """The only child is busy, and the supervisor runs without cronsim."""
    stage, client = scene.stage, scene.client
    (stage.directory / "without").mkdir()
    (stage.directory / "without/cronsim.py").write_text("raise ImportError")
    queues = ["crowded", "default", "stopped", "shut", "crashed", "chain", "hourly", "nightly"]
    scene.start(queue=queues, environment={"PYTHONPATH": f"{stage.directory / 'without'}:{ROOT}:{HERE}"})
    client.limit("smtp", running=1)
    client.limit("sms", running=0, by="kim@web-1")
    stage.config(**{"grace-crashed": 600})
    client.queue("hourly").recur("bad.fail", every="1h", jid="hourly", retries=0)
    with scene.ago(DAY_S + HOUR_S) as yesterday:
        yesterday.queue("chain").put("bad.fail", jid="parent", retries=0, delay=DAY_S + HOUR_S)
        yesterday.queue("chain").put("good.noop", jid="child", depends=["parent"], on_parent_failure="wait")
    stage.wait_until_ended(["hourly-1", "parent"])
    stage.queue.put("good.hold", stage.gate("end"), jid="hangs", limit="smtp")
    stage.wait_for_starts("hangs")
    client.queue("shut").pause(by="kim@web-1")
    client.queue("misspelt").put("good.noop")
    with scene.ago(2 * HOUR_S) as earlier:
        earlier.queue("default").put("good.noop", jid="parked", limit="smtp")
        assert earlier.queue("default").lease("w") == []
        earlier.queue("nightly").recur("good.noop", cron="30 * * * *", jid="nightly")
        earlier.batch("import").__enter__()
    with scene.ago(600) as lately:
        lately.queue("crowded").put("good.noop", jid="old")
        lately.queue("stopped").put("good.noop", jid="closed", limit="sms")
        assert lately.queue("stopped").lease("w") == []
        lately.queue("crashed").put("good.noop", jid="stalled")
        assert len(lately.queue("crashed").lease("lost")) == 1
    scene.scrape_until("leasehold_queue_unserved")
    yield
    client.batch("import").cancel()
    client.queue("shut").unpause()
    scene.end()


@contextlib.contextmanager
def more_comes_than_is_done(scene):
    scene.start()
    scene.hang()
    for count in (101, 10):
        scene.stage.queue.put_many({"klass": "good.noop"} for _ in range(count))
        scene.scrape()
    yield
    scene.stage.queue.delete()
    scene.end()


@contextlib.contextmanager
def jobs_fail_and_die(scene):
    """Let jobs fail and die. A failure and a death before the first scrape raise no alert."""
    stage = scene.stage

    def run(klass, count, **options):
        jids = [f"{klass}-{count}-{n}" for n in range(count)]
        stage.queue.put_many({"klass": klass, "jid": jid, "max_deaths": 1, **options} for jid in jids)
        stage.wait_until_ended(jids)

    pool = stage.start(processes=2, http="127.0.0.1:0").wait_ready()
    run("bad.fail", 1), run("bad.kill_self", 1)
    scene.begin(pool)
    run("memory.grow_under_64", 1, data={"mb": 200})
    for count in (7, 8):
        run("bad.fail", count), run("bad.kill_self", count)
        unknown = stage.queue.put("no.such", jid=f"no.such-{count}")
        stage.wait_until_counted(lambda jid=unknown: stage.client.job(jid).unknown_unix is not None)
        scene.scrape()
    yield
    scene.end()


@contextlib.contextmanager
def nobody_is_there(scene):
    pool = scene.start()
    assert pool.drain() == 0
    scene.stage.queue.put("good.noop")
    with pytest.raises(ConnectionRefusedError):
        scene.scraper.scrape()
    scene.shown.append(None)
    yield
    scene.end()


@contextlib.contextmanager
def zygote_dies_and_the_next_one_does_not_boot(scene):
    stage = scene.stage
    pool = scene.start_app()
    gate = stage.gate("import")
    stage.queue.put("hold", stage.gate("end"), jid="interrupted")
    wait_for_arrival(stage, "end")
    write_app(stage, f"wait_at({gate!r})")
    os.kill(pool.zygote_pid, signal.SIGKILL)
    wait_for_arrival(stage, gate)
    scene.scrape()
    yield
    stage.open_gate(gate)
    scene.end()


@contextlib.contextmanager
def zygote_stands_still_in_a_drain(scene):
    stage = scene.stage
    pool = scene.start(drain_timeout="0s", term_grace="0.2s")
    stage.queue.put("bad.c_sleep", 600, jid="deaf")
    pool.wait_for("job.printed", line="asleep in C")
    os.kill(pool.zygote_pid, signal.SIGSTOP)
    pool.send(signal.SIGTERM)
    pool.wait_for("master.killing")
    scene.scrape()
    yield
    os.kill(pool.zygote_pid, signal.SIGCONT)
    scene.end()


@contextlib.contextmanager
def new_code_is_broken(scene):
    pool = scene.start_app()
    write_app(scene.stage, "def (:")
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.failed")
    scene.scrape()
    yield
    scene.end()


@contextlib.contextmanager
def master_stood_still_for_longer_than_its_leases(scene):
    """A peer has taken over what it had."""
    stage = scene.stage
    pool = scene.start(processes=12)
    gate = stage.gate("end")
    jids = stage.queue.put_many({"klass": "good.hold", "data": gate, "jid": f"held-{n}"} for n in range(12))
    for jid in jids:
        stage.wait_until_start_is_known(jid)
    pool.send(signal.SIGSTOP)
    yield
    with scene.ago(-HOUR_S) as later:
        assert later.sweep() == len(jids)
    pool.send(signal.SIGCONT)
    scene.scrape_until("leasehold_leases_lost_total", len(jids))
    scene.end()


@contextlib.contextmanager
def master_gets_no_processor(scene):
    """Stop the master for a second where it computes, until that was amid a turn."""
    stage = scene.stage
    pool = start_app(stage, "", http="127.0.0.1:0", log_level="warning", processes=2, jobs_per_child=0)
    stage.wait_until_settled(put(stage, "noop"))
    scene.begin(pool)
    master = psutil.Process(pool.pid)
    while scene.scraper.value("leasehold_loop_longest_turn_seconds") <= 1:
        put(stage, "noop", 5000)
        stage.wait_until_counted(lambda: master.status() == psutil.STATUS_RUNNING)
        pool.send(signal.SIGSTOP)
        stage.let_time_pass(1.1)
        pool.send(signal.SIGCONT)
    scene.scrape()
    yield
    scene.end()


@contextlib.contextmanager
def handler_prints_too_much(scene):
    scene.start()
    scene.stage.queue.put("words.burst", {"lines": 20_000, "gate": scene.stage.gate("end")}, jid="loud")
    scene.scrape_until("leasehold_printed_lines_dropped_total")
    scene.stage.wait_until(lambda: "left out" in logged("job.printed")(scene), "the log says so")
    yield
    scene.end()


@contextlib.contextmanager
def redis_is_away(scene):
    pool = scene.start()
    scene.stage.server.kill()
    pool.wait_for("redis.lost")
    scene.scrape()
    yield
    scene.stage.server.start()
    pool.wait_for("redis.connected")
    scene.end()


@contextlib.contextmanager
def redis_closes_silent_connections(scene):
    pool = scene.start()
    scene.stage.server.redis.config_set("timeout", 1)
    pool.wait_for("redis.connected", nth=4, timeout_s=60)
    scene.scrape()
    yield
    scene.stage.server.redis.config_set("timeout", 0)
    scene.end()


@contextlib.contextmanager
def redis_refuses_scripts(scene):
    scene.start()
    scene.stage.server.refuse_scripts()
    for _ in range(2):
        scene.scrape()
    yield
    scene.stage.server.accept_scripts()
    scene.stage.wait_until_ended([scene.stage.queue.put("good.noop")])
    scene.end()


class Slow(Between):
    """Each reply takes so long."""

    delay_s = 0.0

    def reply(self, near, data):
        time.sleep(self.delay_s)
        return super().reply(near, data)


@contextlib.contextmanager
def network_is_slow(scene):
    slow = Slow(scene.stage.directory / "slow", scene.stage.server.socket)
    scene.url = f"unix://{slow.path}"
    scene.start()
    scene.hang()
    slow.delay_s = 0.3
    for _ in range(4):
        scene.scrape()
    yield
    slow.delay_s = 0
    scene.end()
    slow.close()


@contextlib.contextmanager
def redis_is_full_and_makes_room(scene):
    """Fill Redis until it evicts keys of another program. No other keys expire so soon."""
    redis = scene.stage.server.redis
    scene.start()
    redis.config_set("maxmemory-policy", "volatile-ttl")
    redis.config_set("maxmemory-samples", 64)
    redis.config_set("maxmemory", redis.info("memory")["used_memory"] + 2**20)
    for n in range(2000):
        redis.set(f"other:{n}", b"x" * 1000, ex=600)
    scene.scrape_until("leasehold_redis_evicted_keys_total")
    yield
    redis.config_set("maxmemory", 0)
    redis.delete(*redis.keys("other:*"))
    scene.end()


class Row(NamedTuple):
    alert: str
    situation: Callable[[Scene], AbstractContextManager[None]]
    labels: Mapping[str, str]
    ask: Callable[[Scene], str]
    cause: str  # in the answer


def of_queue(name):
    return {**JOB, "queue": name}


def of_klass(klass, **more):
    return {**of_queue("default"), "klass": klass, **more}


#: alert, situation, labels of the alert, whom to ask for the cause, and what the answer says.
TABLE = (
    Row("LeaseholdOldestTooOld", much_waits_for_a_person, of_queue("crowded"),
        job("old"), "all 1 children of worker .* are busy; their oldest job is hangs, since"),
    Row("LeaseholdStalled", much_waits_for_a_person, of_queue("crashed"),
        job("stalled"), "worker lost was lost with the job: its lease ended at .* takes it over after the grace"),
    Row("LeaseholdPausedForLong", much_waits_for_a_person, of_queue("shut"),
        queue("shut"), "queue shut is paused, by kim@web-1, since"),
    Row("LeaseholdQueueUnserved", much_waits_for_a_person, of_queue("misspelt"),
        queue("misspelt"), "no living worker serves queue misspelt; 1 living worker only for others"),
    Row("LeaseholdParkedForLong", much_waits_for_a_person, of_queue("default"),
        job("parked"), "limit smtp is full: 1 of 1, held by hangs"),
    Row("LeaseholdLimitClosed", much_waits_for_a_person, {**JOB, "limit": "sms"},
        job("closed"), "limit sms is set to 0, by kim@web-1, since"),
    Row("LeaseholdOldDepends", much_waits_for_a_person, of_queue("chain"),
        job("child"), "the job waits for parent; parent is failed in group no-such-customer"),
    Row("LeaseholdRecurrenceLate", much_waits_for_a_person, of_queue("nightly"),
        queue("nightly"), "1 recurring job of queue nightly is late .* a cron needs cronsim"),
    Row("LeaseholdRecurrenceFailed", much_waits_for_a_person, of_queue("hourly"),
        job("hourly-1"), "the job failed with no-such-customer: there is none"),
    Row("LeaseholdBatchOpen", much_waits_for_a_person, JOB, batch("import"),
        "batch import is open since 2.*: its program still puts jobs, or was killed in the block"),
    Row("LeaseholdFailedJobsLie", much_waits_for_a_person, {**JOB, "group": "no-such-customer"},
        job("parent"), "the job failed with no-such-customer: there is none; 1 other job failed so"),
    Row("LeaseholdTooFewReplicas", much_waits_for_a_person, JOB,
        queue("crowded"), "all 1 children of worker .* are busy; their oldest job is hangs"),
    Row("LeaseholdBacklogGrows", more_comes_than_is_done, of_queue("default"),
        queue("default"), "all 1 children of worker .* are busy; their oldest job is hangs"),
    Row("LeaseholdTooFewReplicas", more_comes_than_is_done, JOB,
        queue("default"), "all 1 children of worker .* are busy; their oldest job is hangs"),
    Row("LeaseholdFailures", jobs_fail_and_die, of_klass("bad.fail"),
        job("bad.fail-8-0"), "failed with no-such-customer: there is none; 15 other jobs failed so"),
    Row("LeaseholdDeaths", jobs_fail_and_die, of_klass("bad.kill_self"),
        job("bad.kill_self-8-0"), "died:SIGKILL: .* killed by SIGKILL, which we did not send"),
    Row("LeaseholdDeathsByMemory", jobs_fail_and_die, of_klass("memory.grow_under_64", reason="memory"),
        job("memory.grow_under_64-1-0"), "died:memory: .* MB of private memory, its limit is 64 MB"),
    Row("LeaseholdUnknownKlass", jobs_fail_and_die, of_klass("no.such"),
        job("no.such-7"), "handler for no.such"),
    Row("LeaseholdNobodyServes", nobody_is_there, {}, queue("default"), "no living worker serves queue default"),
    Row("LeaseholdNoneReady", zygote_dies_and_the_next_one_does_not_boot, JOB,
        job("interrupted"), "worker .* starts no job: it is importing its handlers"),
    Row("LeaseholdNotReady", zygote_dies_and_the_next_one_does_not_boot, INSTANCE,
        job("interrupted"), "worker .* starts no job: it is importing its handlers"),
    Row("LeaseholdZygoteLost", zygote_dies_and_the_next_one_does_not_boot, INSTANCE, typed("top"), "zygote-lost"),
    Row("LeaseholdTooFewReplicas", zygote_dies_and_the_next_one_does_not_boot, JOB,
        job("interrupted"), "worker .* starts no job: it is importing its handlers"),
    Row("LeaseholdNoneReady", zygote_stands_still_in_a_drain, JOB,
        job("deaf"), "the job runs at worker .*, and is being stopped: drain"),
    Row("LeaseholdDrainStuck", zygote_stands_still_in_a_drain, INSTANCE,
        job("deaf"), "the job runs at worker .* in the child with pid .*, and is being stopped: drain"),
    Row("LeaseholdReloadFailed", new_code_is_broken, INSTANCE,
        supervisor, "worker .* has refused the new code at 2.*the handlers cannot be imported: SyntaxError"),
    Row("LeaseholdLeasesLost", master_stood_still_for_longer_than_its_leases, INSTANCE,
        job("held-0", timeout=0.1), "with worker .*, which has not answered in time; its lease ends at"),
    Row("LeaseholdLoopSlow", master_gets_no_processor, INSTANCE,
        supervisor, r"worker .* took [1-9]\.\d s for a turn of its loop .* too little processor time"),
    Row("LeaseholdLogDropped", handler_prints_too_much, INSTANCE,
        supervisor, r"has left out [\d,]+ lines that jobs have printed, most lately of job loud \(words.burst\)"),
    Row("LeaseholdRedisAway", redis_is_away, INSTANCE, typed("why", "j"), "cannot reach Redis at"),
    Row("LeaseholdNoneReady", redis_is_away, JOB, typed("why", "j"), "cannot reach Redis at"),
    Row("LeaseholdNotReady", redis_is_away, INSTANCE, typed("why", "j"), "cannot reach Redis at"),
    Row("LeaseholdRedisReconnects", redis_closes_silent_connections, INSTANCE,
        supervisor, r"has lost its connection to Redis \d+ times since it began, the last time \d+ s ago: \w+"),
    Row("LeaseholdRedisRefuses", redis_refuses_scripts, INSTANCE,
        typed("why", "j"), "no permissions to run the 'evalsha'"),
    Row("LeaseholdExchangesSlow", network_is_slow, INSTANCE,
        until("Redis answers", job("hangs")), r"the job runs at .*; Redis answers worker .* only after [1-9]\d\d ms"),
    Row("LeaseholdRedisFull", redis_is_full_and_makes_room, JOB,
        queue("default"), "queue default has no jobs; Redis uses .* MB, and refuses puts when it is full"),
    Row("LeaseholdRedisEvicts", redis_is_full_and_makes_room, JOB,
        queue("default"), "refuses puts when it is full; of those that expire it has evicted .* keys"),
)  # fmt: skip

SITUATIONS = tuple(dict.fromkeys(row.situation for row in TABLE))
#: Situations that stop, fill or change the server.
AT_ITS_OWN_SERVER = {
    redis_is_away, redis_closes_silent_connections, redis_refuses_scripts, redis_is_full_and_makes_room,
}  # fmt: skip
#: Metrics that keep growing in a situation.
GOES_ON = {
    more_comes_than_is_done: ["leasehold_queue_jobs"],
    jobs_fail_and_die: ["leasehold_jobs_ended_total"],
    redis_refuses_scripts: ["leasehold_redis_errors_total"],
    network_is_slow: ["leasehold_redis_exchange_seconds"],
}
#: Situations that wait for a look of the supervisor, or for the server.
SLOW = {
    much_waits_for_a_person, redis_closes_silent_connections, redis_is_full_and_makes_room, network_is_slow,
}  # fmt: skip


def test_each_alert_has_a_situation():
    assert {row.alert for row in TABLE} == set(ALERTS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "situation",
    [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW), id=each.__name__) for each in SITUATIONS],
)
def test_situation_fires_its_alerts_and_its_cause_is_named(promtool, tmp_path, request, situation):
    scene = Scene(request.getfixturevalue("own_stage" if situation in AT_ITS_OWN_SERVER else "stage"))
    rows = [row for row in TABLE if row.situation is situation]
    with situation(scene):
        answers = {row.alert: row.ask(scene) for row in rows}
    for row in rows:
        assert re.search(row.cause, answers[row.alert]), (row.alert, answers[row.alert])
    fires = {row.alert: row.labels for row in rows}
    (tmp_path / "played.yml").write_text(rules_test(scene.shown, fires, GOES_ON.get(situation, ())))
    done = promtool("test", "rules", tmp_path / "played.yml")
    assert done.returncode == 0, done.stdout + done.stderr
