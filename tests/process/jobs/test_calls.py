"""Arguments that another program's entry has by position reach the parameters of handlers."""

import base64
import json

from tests.process.apps import start_app

SHOP = """
@handler(name="proj.tasks.add")
def add(job, x: int, y, *, scale=1):
    return scale * (x + y)

@handler
def whole(job):
    return job.data
"""


def task(id, name, args, kwargs):
    """Return a message as Celery writes it."""
    none = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return json.dumps({
        "body": base64.b64encode(json.dumps([args, kwargs, none]).encode()).decode(),
        "content-type": "application/json", "headers": {"task": name, "id": id, "ignore_result": True},
        "properties": {"body_encoding": "base64"},
    })  # fmt: skip


def entry(jid, klass, args):
    """Return an entry as Sidekiq writes it."""
    return json.dumps({"class": klass, "args": args, "jid": jid, "queue": "default"})


def results(stage, *jids):
    stage.wait_until_ended(jids)
    return [stage.client.job(jid).result for jid in jids]


def test_arguments_of_entries_reach_the_parameters(stage):
    tasks, classes = f"foreign-{stage.namespace}", f"foreign-{stage.namespace}:queue:default"
    stage.client.doors.add("tasks", format="celery", source=tasks, queue="default")
    klasses = {"Add": "proj.tasks.add"}
    stage.client.doors.add("classes", format="sidekiq", source=classes, queue="default", klasses=klasses)
    redis = stage.server.redis
    redis.lpush(
        tasks,
        task("by-position", "proj.tasks.add", [1, 2], {}),
        task("by-both", "proj.tasks.add", [1], {"y": 2, "scale": 10}),
        task("by-name", "proj.tasks.add", [], {"x": 1, "y": 2, "scale": 100}),
        task("whole", "whole", [1], {"y": 2}),
        task("too-many", "proj.tasks.add", [1, 2, 3, 4], {}),
        task("twice", "proj.tasks.add", [1, 2], {"x": 1}),
        task("missing", "proj.tasks.add", [1], {}),
        task("wrong", "proj.tasks.add", ["one", 2], {}),
    )
    redis.lpush(classes, entry("ruby", "Add", [3, 4]), entry("ruby-whole", "whole", []))
    pool = start_app(stage, SHOP, processes=1, jobs_per_child=0)
    assert results(stage, "by-position", "by-both", "by-name") == [3, 30, 300]
    assert results(stage, "ruby", "ruby-whole", "whole") == [7, [], {"args": [1], "kwargs": {"y": 2}}]
    said = {
        "too-many": "4 values were given by position for the parameters x, y, scale",
        "twice": "x: was given twice, by position and by name",
        "missing": "y: is missing",
        "wrong": "x: Input should be a valid integer",
    }
    stage.wait_until_ended(said)
    for jid, problem in said.items():
        failure = stage.client.job(jid).failure
        assert (failure["group"], failure["message"][: len(problem)]) == ("broken", problem)
    assert not redis.exists(tasks, classes)
    for name in ("tasks", "classes"):
        stage.client.doors.remove(name)
    assert pool.drain() == 0
    redis.unlink(f"foreign-{stage.namespace}:stat:processed", f"foreign-{stage.namespace}:stat:failed")
    stage.assert_nothing_left()


def test_ordinary_job_has_no_arguments_by_position(stage):
    pool = start_app(stage, SHOP, processes=1)
    jids = [stage.queue.put("proj.tasks.add", data) for data in ([1, 2], {"args": [1, 2], "kwargs": {}})]
    stage.wait_until_ended(jids)
    assert [stage.client.job(jid).failure["group"] for jid in jids] == ["broken"] * 2
    assert results(stage, stage.queue.put("whole", [1, 2])) == [[1, 2]]
    assert pool.drain() == 0
    stage.assert_nothing_left()
