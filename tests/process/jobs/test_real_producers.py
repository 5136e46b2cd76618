"""The producers' own clients, as they are published: what they put runs here, and they are answered.

TEST_FULL=1 runs them. The Python packages are installed once, into a folder that later runs find again.
"""

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from watched import FULL

pytestmark = pytest.mark.skipif(not FULL, reason="installs other queues, which has to be asked for: TEST_FULL=1")

LONGEST_S = 300
COUNT = 1000
PACKAGES = ("celery[redis]==5.7.0", "redis-work-queue==0.1.5")
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
print(json.dumps([[each.get(timeout={LONGEST_S}) for each in sent], named.get(timeout={LONGEST_S}), why]))
"""
#: The counter is raised by each task that runs at Celery's own worker.
SHARED = f"""
import json, sys
from tasks import app

while not app.control.ping(timeout=5):
    pass
sent = [app.send_task("good.echo", [n]) for n in range({COUNT})]
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
REDIS_WORK_QUEUE = f"""
import contextlib, io, json, sys, time
import redis
from redis_work_queue import Item, KeyPrefix, WorkQueue

db, queue = redis.Redis(unix_socket_path=sys.argv[1]), WorkQueue(KeyPrefix("orders"))
with contextlib.redirect_stdout(io.StringIO()) as cleaner:
    for n in range({COUNT}):
        queue.add_item(db, Item(str(n), id=str(n)))
        queue.light_clean(db)
while queue.queue_len(db) or queue.processing(db):
    time.sleep(0.01)
print(json.dumps([cleaner.getvalue().count("was reset"), len(db.keys("orders:*"))]))
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


@pytest.fixture(scope="module")
def python():
    """An interpreter with the packages."""
    named = "-".join(PACKAGES).replace("[redis]", "").replace("==", "")
    folder = Path(tempfile.gettempdir(), f"leasehold-{named}-{sys.version_info.minor}")
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder / "venv"], check=True, timeout=LONGEST_S)
            install = [folder / "venv/bin/python", "-m", "pip", "install", "--quiet", *PACKAGES]
            done = subprocess.run(install, capture_output=True, text=True, timeout=900, check=False)
            if done.returncode:
                pytest.skip(f"the packages cannot be had: {done.stderr.strip().splitlines()[-1]}")
            (folder / "complete").touch()
    return str(folder / "venv/bin/python")


@pytest.fixture
def said(own_stage):
    """Return what a program says whose jobs a supervisor runs behind a door, and show that nothing is left."""

    def run(door, *command):
        own_stage.client.doors.add("d", queue="default", **door)
        pool = own_stage.start(processes=2, jobs_per_child=0).wait_ready()
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
        assert done.returncode == 0, done.stderr
        own_stage.client.doors.remove("d")
        assert pool.drain() == 0
        own_stage.assert_nothing_left()
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_celery_gets_its_results(said, python, own_server):
    url = f"redis+socket://{own_server.socket}"
    results, named, why = said({"format": "celery", "source": "celery"}, python, "-c", CELERY, url)
    assert results == [[n] for n in range(COUNT)]
    assert (named, why) == ({"name": "Ada"}, "there is none")


@pytest.fixture
def celery_worker(python, own_server, tmp_path_factory, monkeypatch):
    """Celery's own worker, which takes from the same list."""
    folder = tmp_path_factory.mktemp("celery")
    (folder / "tasks.py").write_text(TASKS.format(url=f"redis+socket://{own_server.socket}"))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    command = [python, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "--loglevel", "info"]
    with (folder / "log").open("w+") as log:
        worker = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        yield worker
        worker.terminate()
        worker.wait(LONGEST_S)


def test_celery_and_a_door_share_a_list_and_run_each_task_once(said, python, celery_worker, own_stage):
    results, theirs = said({"format": "celery", "source": "celery"}, python, "-c", SHARED)
    assert all(result in ("theirs", [n]) for n, result in enumerate(results))
    assert theirs == results.count("theirs") > 0
    assert own_stage.queue.stats().run.count == COUNT - theirs > 0


def test_cleaner_of_redis_work_queue_leaves_items_alone_until_they_are_done(said, python, own_server):
    door = {"format": "rwq", "source": "orders", "klass": "good.noop"}
    assert said(door, python, "-c", REDIS_WORK_QUEUE, str(own_server.socket)) == [0, 0]


def test_sidekiq_shows_what_was_processed(said, own_server):
    if shutil.which("ruby") is None or subprocess.run(["ruby", "-e", "require 'sidekiq'"], check=False).returncode:
        pytest.skip("there is no sidekiq, which is Debian's ruby-sidekiq")
    door = {"format": "sidekiq", "source": "queue:default"}
    assert said(door, "ruby", "-e", SIDEKIQ, own_server.url) == [0, 0, 0, COUNT + 1]
