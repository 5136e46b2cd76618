"""The handlers of all tasks of a Django project: `--handlers supervisor.contrib.django.handlers`. Runs in zygote and
children.

Its import sets Django up, by DJANGO_SETTINGS_MODULE, and registers a handler for each task.
"""

from typing import Any

import django
from django.apps import apps

from supervisor.child.context import JobContext
from supervisor.child.handlers import handler

if not apps.ready:
    django.setup()

from django import db
from django.utils import timezone

from supervisor.contrib.django.current_job import current_job
from supervisor.contrib.django.interface import base, signals, tasks
from supervisor.contrib.django.registry import declared
from supervisor.contrib.django.results import started


def register(task: Any) -> None:
    """Register the handler of a task. Its klass is the task's path."""

    def run(job: JobContext) -> Any:
        before = current_job.set(job)
        try:
            return _run(task, job)
        finally:
            current_job.reset(before)

    handler(name=task.module_path)(run)


def _run(task: Any, job: JobContext) -> Any:
    """Run the task with Django's signals, and return its value."""
    now = timezone.now()
    result = started(
        task, job.data, id=job.jid, status=base.TaskResultStatus.RUNNING, started_at=now, last_attempted_at=now,
        backend=task.backend, worker_ids=["leasehold"] * job.attempt,
    )  # fmt: skip
    sender = type(tasks.task_backends[task.backend])
    context = (base.TaskContext(task_result=result),) if task.takes_context else ()
    db.close_old_connections()
    signals.task_started.send(sender, task_result=result)
    status = base.TaskResultStatus.FAILED
    try:
        value = base.normalize_json(task.call(*context, *result.args, **result.kwargs))
        status = base.TaskResultStatus.SUCCESSFUL
        return value
    finally:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", timezone.now())
        signals.task_finished.send(sender, task_result=result)
        db.close_old_connections()


for _task in declared():
    register(_task)
db.connections.close_all()  # children must not share one that an import has opened
