"""Results of django.tasks, made of jobs. Used in applications and children. Must not do I/O."""

import datetime
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from supervisor.contrib.django.interface import base
from supervisor.engine.model.jobs import JobRecord

_STATUS: Final = {"running": "RUNNING", "stalled": "RUNNING", "failed": "FAILED", "complete": "SUCCESSFUL"}
#: The ends of a run, in a job's history.
_ENDS: Final = {"completed", "failed"}


def data_of(result: Any) -> dict[str, Any]:
    """Return the data of a task's job. The times are those of the application, which Redis does not keep."""
    data = {"args": result.args, "kwargs": result.kwargs, "enqueued_at": result.enqueued_at.isoformat()}
    return data if result.task.run_after is None else {**data, "run_after": result.task.run_after.isoformat()}


def started(task: Any, data: Mapping[str, Any], **fields: Any) -> Any:
    """Return a result of this task with these data, and with the fields that begin as nothing."""
    run_after = _moment(data.get("run_after"))
    nothing: dict[str, Any] = {
        "started_at": None,
        "last_attempted_at": None,
        "finished_at": None,
        "errors": [],
        "worker_ids": [],
    }
    return base.TaskResult(
        **{**nothing, **fields},
        task=task if task.run_after == run_after else replace(task, run_after=run_after),
        args=data["args"],
        kwargs=data["kwargs"],
        enqueued_at=_moment(data.get("enqueued_at")),
    )


def _moment(text: str | None) -> datetime.datetime | None:
    return None if text is None else datetime.datetime.fromisoformat(text)


def result_of(job: JobRecord, task: Any, backend: str) -> Any:
    """Return the result of a job of this task."""
    status = base.TaskResultStatus[_STATUS.get(job.state, "READY")]
    starts = [event for event in job.history if event.get("what") == "popped"]
    ends = [event["when"] for event in job.history if event.get("what") in _ENDS]
    result = started(
        replace(task, queue_name=job.queue, priority=-job.priority, backend=backend),
        job.data,
        id=job.jid,
        status=status,
        started_at=_time(starts[0]["when"]) if starts else None,
        last_attempted_at=_time(starts[-1]["when"]) if starts else None,
        finished_at=_time(ends[-1]) if ends and job.state in {"failed", "complete"} else None,
        backend=backend,
        errors=[] if job.failure is None else [error_of(job.failure)],
        worker_ids=[str(event.get("worker")) for event in starts],
    )
    object.__setattr__(result, "_return_value", job.result)  # it is frozen, and Django's own backends do this
    return result


def error_of(failure: dict[str, Any]) -> Any:
    """Return the error of a failure. A failure that is no exception is a RuntimeError of its group."""
    traceback = str(failure.get("traceback") or "")
    group = str(failure["group"])
    last = re.findall(rf"^((?:\w+\.)*{re.escape(group)})(?::|$)", traceback, re.MULTILINE)
    if not last:
        return base.TaskError(exception_class_path="builtins.RuntimeError", traceback=f"{group}: {failure['message']}")
    return base.TaskError(
        exception_class_path=last[-1] if "." in last[-1] else f"builtins.{last[-1]}", traceback=traceback
    )


def _time(unix: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix, datetime.UTC)
