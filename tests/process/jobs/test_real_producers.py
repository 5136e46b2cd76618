"""The producers' own clients, as they are published: what they put runs here, and they are answered.

Meanwhile children and masters are killed at random. The packages are installed once, which TEST_FULL=1 does, into a
folder that later runs find again.
"""

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from watched import FULL, Killer

pytestmark = pytest.mark.timeout(4_000)

LONGEST_S = 3_000 if FULL else 120
COUNT, SHARED_COUNT, KILLS = (100_000, 50_000, 200) if FULL else (400, 400, 4)
PACKAGES = ("celery[redis]==5.7.0", "redis-work-queue==0.1.5", "rq==3.0.0")
NODE_PACKAGE = "@mevitae/redis-work-queue@0.1.5"
CELERY = f"""
import json, sys
from celery import Celery

app = Celery("producer", broker=sys.argv[1], backend=sys.argv[1])
sent = [app.send_task("good.echo", [n], priority=n % 10) for n in range({COUNT})]
named = app.send_task("good.echo", kwargs={{"name": "Ada"}}, countdown=1)
failed = app.send_task("bad.fail")
try:
    failed.get(timeout={LONGEST_S})
except Exception as error:
    why = str(error)
results = [each.get(timeout={LONGEST_S}) for each in sent]
print(json.dumps([results == [[n] for n in range({COUNT})], named.get(timeout={LONGEST_S}), why]))
"""
#: The counter is raised by each task that runs at Celery's own worker.
SHARED = f"""
import json, sys
from tasks import app

while not app.control.ping(timeout=5):
    pass
sent = [app.send_task("good.echo", [n]) for n in range({SHARED_COUNT})]
results = [each.get(timeout={LONGEST_S}) for each in sent]
print(json.dumps([results, int(app.backend.client.get("theirs") or 0)]))
"""
TASKS = """
from celery import Celery

app = Celery("tasks", broker="{url}", backend="{url}")

@app.task(name="good.echo")
def echo(n):
    app.backend.client.incr("theirs")
    return "theirs"
"""
#: What its own integration checks do to leases and lists beside the cleaner, and what they demand at the end.
REDIS_WORK_QUEUE = f"""
import contextlib, io, json, sys, time
import redis
from redis_work_queue import Item, KeyPrefix, WorkQueue

db, queue, prefix = redis.Redis(unix_socket_path=sys.argv[1]), WorkQueue(KeyPrefix("orders")), KeyPrefix("orders")
main, processing, cleaning = (prefix.of(":" + name) for name in ("queue", "processing", "cleaning"))

def disturb(n):
    if n % 5 == 0:
        db.rpoplpush(processing, cleaning)
    elif n % 5 == 1:
        db.rpoplpush(main, cleaning)
    else:
        for item in db.lrange(main if n % 5 == 2 else processing, 0, 0):
            if n % 5 == 4:
                db.delete(prefix.of(":leased_by_session:" + item.decode()))
            db.lpush(cleaning, item)

with contextlib.redirect_stdout(io.StringIO()):
    for n in range({COUNT}):
        queue.add_item(db, Item(str(n), id=str(n)))
        if n % 40 == 0:
            disturb(n // 40)
            queue.light_clean(db)
    while queue.queue_len(db) or queue.processing(db):
        queue.light_clean(db)
        time.sleep(0.01)
print(json.dumps([key.decode() for key in db.keys("orders:*")]))
"""
NODE = f"""
const {{ WorkQueue, Item, KeyPrefix }} = require("@mevitae/redis-work-queue/dist/WorkQueue.js");
const Redis = require("ioredis");
const db = new Redis(process.argv[1]), queue = new WorkQueue(new KeyPrefix("orders"));
(async () => {{
  for (let n = 0; n < {COUNT}; n++) await queue.addItem(db, new Item(`data of ${{n}}`, `${{n}}`));
  while ((await queue.queueLen(db)) || (await queue.processing(db))) await new Promise((end) => setTimeout(end, 10));
  console.log(JSON.stringify(await db.keys("orders:*")));
  db.disconnect();
}})();
"""
RQ = f"""
import json, sys, time
import redis
from rq import Queue
from rq.job import Job

db = redis.Redis(unix_socket_path=sys.argv[1])
queue = Queue("default", connection=db, serializer="json")
ids = [queue.enqueue("good.echo", n, result_ttl=86400).id for n in range({COUNT})]
last = queue.enqueue("good.echo", "last", depends_on=ids[-1], result_ttl=86400)
failed = queue.enqueue("bad.fail")
finished = queue.finished_job_registry
while finished.get_job_count(cleanup=False) < {COUNT} + 1 or not failed.is_failed:
    time.sleep(0.05)
wrong = 0
for first in range(0, {COUNT}, 1000):
    for n, job in enumerate(Job.fetch_many(ids[first:first + 1000], connection=db, serializer="json"), first):
        wrong += not job.is_finished or [result.return_value for result in job.results()] != [[n]]
print(json.dumps([wrong, last.return_value(), failed.latest_result().exc_string, queue.count]))
"""
#: Describes jobs that RQ's own worker has run, and equal ones that came by the door.
RQ_COMPARED = """
import json, sys, time
import redis
from rq import Queue, SimpleWorker
from rq.job import Job

db = redis.Redis(unix_socket_path=sys.argv[1])
ours, theirs = (Queue(name, connection=db, serializer="json") for name in ("default", "theirs"))
options = {
    "result": ("good.echo", [1], {}), "none": ("good.noop", [], {}), "fails": ("bad.fail", [], {}),
    "gone": ("good.echo", [1], {"result_ttl": 0}), "stays": ("good.echo", [1], {"result_ttl": -1, "failure_ttl": -1}),
    "failed for ever": ("bad.fail", [], {"failure_ttl": -1}), "short": ("bad.fail", [], {"failure_ttl": 60}),
}

def put(queue):
    jobs = {name: queue.enqueue(klass, *args, **more) for name, (klass, args, more) in options.items()}
    jobs["waits"] = queue.enqueue("good.noop", depends_on=jobs["result"])
    jobs["waits in vain"] = queue.enqueue("good.noop", depends_on=jobs["fails"])
    return jobs

def about(queue, job):
    registries = {
        type(one).__name__: one.connection.zscore(one.key, job.id) for one in (
            queue.finished_job_registry, queue.failed_job_registry, queue.deferred_job_registry,
            queue.started_job_registry, queue.canceled_job_registry,
        )
    }
    result = job.latest_result()
    return {
        "fields": {key.decode(): bool(value) for key, value in db.hgetall(job.key).items()},
        "status": (db.hget(job.key, "status") or b"").decode(),
        "registries": {name: score and score > time.time() + 1000 for name, score in registries.items()},
        "results": [db.xlen(f"rq:results:{job.id}"), result and [result.type.name, result.return_value]],
        "why": result and result.exc_string and result.exc_string.strip().rpartition(": ")[2],
        "kept_s": round(db.ttl(job.key), -2),
    }

both = {queue.name: (queue, put(queue)) for queue in (ours, theirs)}
SimpleWorker([theirs], connection=db, serializer="json").work(burst=True, logging_level="ERROR")
while ours.count or any(db.hget(job.key, "status") in (b"queued", b"started") for job in both["default"][1].values()):
    time.sleep(0.05)
print(json.dumps({name: {job: about(queue, jobs[job]) for job in jobs} for name, (queue, jobs) in both.items()}))
"""
SIDEKIQ = f"""
require "sidekiq"
require "sidekiq/api"
Sidekiq.configure_client {{ |config| config.redis = {{ url: ARGV[0] }} }}
{COUNT}.times {{ |n| Sidekiq::Client.push("class" => "good.echo", "args" => [n]) }}
Sidekiq::Client.push("class" => "good.echo", "args" => [-1], "at" => Time.now.to_f + 1)
sleep 0.1 until Sidekiq::Stats.new.processed == {COUNT + 1}
shown = Sidekiq::Stats.new
print [shown.failed, shown.enqueued, shown.scheduled_size, Sidekiq::Stats::History.new(2).processed.values.sum].to_json
"""


def installed(name, install):
    """Return a folder into which `install` has put packages, in this run or an earlier one."""
    folder = Path(tempfile.gettempdir(), f"leasehold-{name}")
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            if not FULL:
                pytest.skip("installs other queues, which has to be asked for: TEST_FULL=1")
            for command in install(folder):
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
                if done.returncode:
                    pytest.skip(f"the packages cannot be had: {done.stderr.strip().splitlines()[-1]}")
            (folder / "complete").touch()
    return folder


@pytest.fixture(scope="module")
def python():
    """An interpreter with the packages."""
    named = "-".join(PACKAGES).replace("[redis]", "").replace("==", "")
    folder = installed(f"{named}-{sys.version_info.minor}", lambda folder: [
        [sys.executable, "-m", "venv", "--clear", "venv"],
        [folder / "venv/bin/python", "-m", "pip", "install", "--quiet", *PACKAGES],
    ])  # fmt: skip
    return str(folder / "venv/bin/python")


@pytest.fixture(scope="module")
def node():
    """A folder from which Node finds the package."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    named = NODE_PACKAGE.replace("/", "-")
    return installed(named, lambda folder: [["npm", "install", "--silent", "--prefix", folder, NODE_PACKAGE]])


@pytest.fixture
def said(own_stage, measured):
    """Return what a program says whose jobs supervisors run behind a door, and show that nothing is left.

    `runs`: how many of its jobs run here at least, during which children and masters are killed.
    """

    def run(door, *command, runs, cwd=None):
        own_stage.config(heartbeat=1, grace=0.5, max_deaths=0)  # one job may be at many of the kills
        own_stage.client.doors.add("d", queue="default", **door)
        killer = Killer(own_stage, lambda: own_stage.start(processes=2, jobs_per_child=0), seed=7).fill(2)
        for pool in killer.pools:
            pool.wait_ready()
        began_at = time.monotonic()
        with tempfile.TemporaryFile("w+") as trouble:
            producer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=trouble, text=True, cwd=cwd)
            for number in range(KILLS):
                after = runs * (number + 0.5) / KILLS
                own_stage.wait_until_counted(
                    lambda after=after: own_stage.queue.stats().run.count >= after or producer.poll() is not None,
                    LONGEST_S,
                )
                killer.kill(killer.draw.choice(("child", "child", "master")))
            out, _ = producer.communicate(timeout=LONGEST_S)
            trouble.seek(0)
            assert producer.returncode == 0, trouble.read()[-5000:]
        measured(f"{runs} jobs, {killer.counts()}, {time.monotonic() - began_at:.0f} s")
        for pool in killer.pools:
            pool.wait_ready()
        own_stage.client.doors.remove("d")
        assert [pool.drain() for pool in killer.pools] == [0, 0]
        killer.forget_dead()
        own_stage.assert_nothing_left(directories=True)
        return json.loads(out.splitlines()[-1])

    return run


def test_celery_gets_its_results(said, python, own_server, own_stage):
    url = f"redis+socket://{own_server.socket}"
    door = {"format": "celery", "source": "celery"}
    assert said(door, python, "-c", CELERY, url, runs=COUNT) == [True, {"name": "Ada"}, "there is none"]
    assert own_stage.queue.stats().run.count == COUNT + 1


@pytest.fixture
def celery_worker(python, own_server, tmp_path_factory, monkeypatch):
    """Celery's own worker, which takes from the same list."""
    folder = tmp_path_factory.mktemp("celery")
    (folder / "tasks.py").write_text(TASKS.format(url=f"redis+socket://{own_server.socket}"))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    command = [python, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "--loglevel", "warning"]
    with (folder / "log").open("w+") as log:
        worker = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        yield worker
        worker.terminate()
        worker.wait(LONGEST_S)


def test_celery_and_a_door_share_a_list_and_run_each_task_once(said, python, celery_worker, own_stage):
    door = {"format": "celery", "source": "celery"}
    results, theirs = said(door, python, "-c", SHARED, runs=SHARED_COUNT // 4)
    assert all(result in ("theirs", [n]) for n, result in enumerate(results))
    assert theirs == results.count("theirs") > 0
    assert own_stage.queue.stats().run.count == SHARED_COUNT - theirs > 0


@pytest.mark.parametrize("language", ["python", "node"])
def test_redis_work_queue_has_nothing_left(said, own_server, own_stage, request, language):
    door = {"format": "rwq", "source": "orders", "klass": "good.noop"}
    place, words = request.getfixturevalue(language), (str(own_server.socket),)
    if language == "python":
        assert said(door, place, "-c", REDIS_WORK_QUEUE, *words, runs=COUNT) == []
    else:
        assert said(door, "node", "-e", NODE, *words, runs=COUNT, cwd=place) == []
    assert own_stage.queue.stats().run.count == COUNT


def test_rq_gets_its_results(said, python, own_server, own_stage):
    door = {"format": "rq-json", "source": "rq:queue:default"}
    wrong, last, why, waiting = said(door, python, "-c", RQ, str(own_server.socket), runs=COUNT)
    assert (wrong, last, why, waiting) == (0, ["last"], "no-such-customer: there is none", 0)
    assert own_stage.queue.stats().run.count == COUNT + 1


def test_rq_job_is_left_as_by_its_own_worker(said, python, own_server, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("rq")
    (folder / "good.py").write_text("def echo(*args): return list(args)\ndef noop(): return None")
    (folder / "bad.py").write_text("class none(Exception): pass\ndef fail(): raise none('there is none')")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    door = {"format": "rq-json", "source": "rq:queue:default"}
    both = said(door, python, "-c", RQ_COMPARED, str(own_server.socket), runs=8)
    for job, about in both["theirs"].items():
        assert both["default"][job] == about, job


def test_sidekiq_shows_what_was_processed(said, own_server, own_stage):
    if shutil.which("ruby") is None or subprocess.run(["ruby", "-e", "require 'sidekiq'"], check=False).returncode:
        pytest.skip("there is no sidekiq, which is Debian's ruby-sidekiq")
    door = {"format": "sidekiq", "source": "queue:default"}
    assert said(door, "ruby", "-e", SIDEKIQ, own_server.url, runs=COUNT) == [0, 0, 0, COUNT + 1]
    assert own_stage.queue.stats().run.count == COUNT + 1
