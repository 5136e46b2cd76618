"""The tasks of a Celery application run in our children, and its own callers put them and get the results."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest
from supervised import ROOT

from tests.environment import without_settings
from tests.process.apps import start_app

pytest.importorskip("celery", reason="the extra `celery` is not installed")

TASKS, KILLS = 200, 6

SHOP = """
from datetime import date, datetime
from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from supervisor.contrib.celery import adopt

app = Celery("shop", broker=os.environ.get("SHOP_BROKER"), backend=os.environ.get("SHOP_BROKER"))
app.conf.task_default_queue = os.environ.get("SHOP_QUEUE", "celery")

class Hooked(Task):
    def on_failure(self, *args): count("hooked")

@app.task
def add(x, y=1):
    return x + y

@app.task(bind=True)
def day_after(self, day, is_next=False):
    if not is_next:
        self.retry((date.fromordinal(day.toordinal() + 1), True), eta=datetime.utcnow())
    return day

@app.task(bind=True)
def described(self, *args, **kwargs):
    request = self.request
    return [request.id == self.request.root_id, request.retries, request.args, request.kwargs, args, kwargs]

@app.task(bind=True, max_retries=2)
def thrice(self):
    try:
        raise KeyError("again")
    except KeyError as error:
        raise self.retry(countdown=0, exc=error)
    finally:
        count("thrice")

@app.task(bind=True)
def patient(self, most):
    count("patient")
    self.retry(countdown=0, max_retries=most)

@app.task(bind=True)
def changing(self, left, seen=0):
    if left:
        self.retry((left - 1,), {"seen": seen + 1}, countdown=0)
    return seen

@app.task(bind=True)
def unraised(self, end):
    if not self.request.retries:
        self.retry(countdown=0, throw=False)
        if end != "return":
            raise {"Ignore": Ignore, "Reject": Reject, "KeyError": KeyError}[end]("too early")
        return "too early"
    return "in the end"

@app.task(autoretry_for=(Exception,), dont_autoretry_for=(ValueError,), retry_kwargs={"max_retries": 3, "countdown": 0})
def auto(error):
    if count(f"auto-{error}") < 3 or error == "ValueError":
        raise {"OSError": OSError, "ValueError": ValueError}[error](error)
    return "in the end"

@app.task(base=Hooked, rate_limit="1/s", soft_time_limit=5, serializer="pickle")
def lacking(): ...

@app.task
def large(size):
    return "x" * size

@app.task
def exact():
    return 2 ** 70

class OutOfStock(Exception):
    pass

@app.task
def sells():
    raise OutOfStock("come again")

@app.task
def once():
    raise RuntimeError("not again")

@app.task(ignore_result=True)
def quiet():
    return 1

@app.task
def ignored():
    raise Ignore()

@app.task
def rejected():
    raise Reject("no more", requeue=False)

@app.task(name="a" * 65)
def long_named(): ...

adopt(app)
"""
#: Prints what each call gets, or why it failed. A call is a task's name, its arguments, those by name, and perhaps how
#: often Celery's own worker has retried it. Prints the id, the state and the text of each; then the type of what the
#: call gets, and its traceback.
CALLER = """
import datetime, json, sys
from celery.exceptions import TimeoutError
import app
sent = [
    getattr(app, name).apply_async(args, kwargs, retries=sum(retries))
    for name, args, kwargs, *retries in json.load(sys.stdin)
]
sent.append(app.day_after.delay(datetime.date(2026, 12, 31)))
got = [each.get(timeout=60, propagate=False) for each in sent]
print(json.dumps([
    [each.id, each.state, str(value), f"{type(value).__module__}.{type(value).__name__}", each.traceback]
    for each, value in zip(sent, got)
]))
"""


@pytest.fixture
def shop(stage):
    """Return a function that calls tasks as the application does, and the environment of both sides."""
    redis, queue = stage.server.redis, f"foreign-{stage.namespace}"
    broker = stage.server.url.replace("unix://", "redis+socket://")
    environment = {"SHOP_BROKER": broker, "SHOP_QUEUE": queue}

    def begin(*calls):
        process = subprocess.Popen(
            [sys.executable, "-c", CALLER], cwd=stage.directory, text=True,
            env={**without_settings(), "PYTHONPATH": f"{ROOT}:{stage.directory}", **environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        process.stdin.write(json.dumps(calls))
        process.stdin.close()
        process.stdin = None
        return process

    def all_answers(process):
        out, err = process.communicate(timeout=90)
        assert process.returncode == 0, err
        sent = json.loads(out)
        redis.unlink(*(f"celery-task-meta-{id}" for id, *_ in sent))
        return sent

    def answers(process):
        return [tuple(each[:3]) for each in all_answers(process)]

    answers.all = all_answers
    stage.client.doors.add("tasks", format="celery", source=queue, queue="default")
    yield begin, answers, environment
    stage.client.doors.remove("tasks")
    redis.unlink(queue, f"_kombu.binding.{queue}")


def start(stage, environment):
    return start_app(stage, SHOP, processes=1, jobs_per_child=0, environment=environment)


def calls_of(stage, name):
    return os.path.getsize(stage.directory / name)


def finish(stage, pool):
    stage.client.doors.remove("tasks")
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_tasks_run_in_our_children_and_their_callers_get_the_results(stage, shop):
    begin, answers, environment = shop
    pool = start(stage, environment)
    *ended, (_, _, day) = answers(begin(
        ("add", [1, 2], {}), ("add", [1], {"y": 5}), ("add", [], {"x": 1}), ("described", [1], {"of": "x"}),
        ("quiet", [], {}), ("once", [], {}), ("ignored", [], {}), ("rejected", [], {}),
    ))  # fmt: skip
    assert day == "2027-01-01"
    values = [value for _, _, value in ended]
    assert values[:4] == ["3", "6", "2", "[True, 0, [1], {'of': 'x'}, [1], {'of': 'x'}]"]
    assert [(state, value) for _, state, value in ended[4:]] == [
        ("PENDING", "None"), ("FAILURE", "not again"), ("SUCCESS", "None"), ("FAILURE", "no more"),
    ]  # fmt: skip
    failed = stage.client.job(ended[5][0])
    assert (failed.failure["group"], failed.failures) == ("RuntimeError", 0)
    finish(stage, pool)


def test_caller_gets_the_exception_of_its_task_with_its_traceback(stage, shop):
    begin, answers, environment = shop
    pool = start(stage, environment)
    calls = ("sells", [], {}), ("thrice", [], {}), ("once", [], {}), ("rejected", [], {}), ("add", [1], {})
    *ended, _ = answers.all(begin(*calls))
    assert [(value, kind) for _, _, value, kind, _ in ended] == [
        ("come again", "app.OutOfStock"), ("'again'", "builtins.KeyError"), ("not again", "builtins.RuntimeError"),
        ("no more", "builtins.Exception"), ("2", "builtins.int"),
    ]  # fmt: skip
    assert ended[0][4].endswith("app.OutOfStock: come again\n") and ended[4][4] is None
    finish(stage, pool)


def test_task_whose_result_cannot_be_kept_fails(stage, shop):
    begin, answers, environment = shop
    pool = start(stage, environment)
    *ended, _ = answers(begin(("large", [65_534], {}), ("large", [65_535], {}), ("exact", [], {})))
    assert [state for _, state, _ in ended] == ["SUCCESS", "FAILURE", "FAILURE"]
    assert len(ended[0][2]) == 65_534
    assert ended[1][2] == "the result has 65537 bytes as JSON, of at most 65536: leave it elsewhere"
    assert ended[2][2].startswith("the result cannot be kept: ")
    assert {jid: stage.client.job(jid).failure["group"] for jid, *_ in ended[1:]} == dict.fromkeys(
        [ended[1][0], ended[2][0]], "result"
    )
    finish(stage, pool)


def test_task_that_celerys_own_worker_has_retried_has_fewer_tries_left(stage, shop):
    begin, answers, environment = shop
    pool = start(stage, environment)
    (_, state, value), _ = answers(begin(("thrice", [], {}, 1)))
    assert (state, value, calls_of(stage, "thrice")) == ("FAILURE", "'again'", 2)
    finish(stage, pool)


def test_task_orders_its_next_try_as_in_celery(stage, shop):
    begin, answers, environment = shop
    pool = start(stage, environment)
    *ended, _ = answers(begin(
        ("thrice", [], {}), ("patient", [1], {}), ("changing", [2], {}), ("auto", ["OSError"], {}),
        ("auto", ["ValueError"], {}), *(("unraised", [end], {}) for end in ("return", "Ignore", "Reject", "KeyError")),
    ))  # fmt: skip
    said = [(state, value) for _, state, value in ended]
    assert said[0] == ("FAILURE", "'again'") and calls_of(stage, "thrice") == 3
    assert said[1][0] == "FAILURE" and "tried 1 times again" in said[1][1] and calls_of(stage, "patient") == 2
    assert said[2:5] == [("SUCCESS", "2"), ("SUCCESS", "in the end"), ("FAILURE", "ValueError")]
    assert said[5:] == [("SUCCESS", "in the end")] * 4
    assert calls_of(stage, "auto-ValueError") == 1
    finish(stage, pool)


@pytest.mark.sampled(2)
def test_each_caller_gets_its_result_while_children_and_a_master_are_killed(stage, shop):
    begin, answers, environment = shop
    stage.config(heartbeat=1, grace=0.5)
    stage.client.config.set("max-deaths", 0)
    pool = killed = start(stage, environment)
    calling = begin(*(("add", [number], {"y": 1}) for number in range(TASKS)))
    for number in range(KILLS):
        least = (number + 1) * TASKS // 2 // KILLS
        stage.wait_until_counted(lambda least=least: stage.queue.stats().run.count >= least)
        for pid in pool.child_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if number == KILLS // 2:
            pool.send(signal.SIGKILL)
            pool.wait()
            pool = start(stage, environment)
    *ended, _ = answers(calling)
    assert [value for _, _, value in ended] == [str(number + 1) for number in range(TASKS)]
    assert stage.queue.stats().run.count == TASKS + 1
    stage.forget(killed)
    finish(stage, pool)


def test_features_that_a_task_lacks_are_said_at_boot(stage, shop):
    _, _, environment = shop
    pool = start(stage, environment).wait_ready()
    finish(stage, pool)
    lines = [line.strip() for line in pool.said if line.startswith("leasehold: task ")]
    lacks = "; ".join([
        "its messages are pickle, so they will be `broken`", "rate_limit is not followed",
        "soft_time_limit is not followed", "on_failure of its class will not be called",
    ])  # fmt: skip
    assert lines == [
        f"leasehold: task {'a' * 65} is not adopted: its name has more than 64 bytes",
        f"leasehold: task app.lacking: {lacks}",
    ]
