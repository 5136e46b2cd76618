"""The backend of django.tasks that puts tasks as jobs. Used in applications.

Owns a client per backend. Must not put before the transaction around it has committed.
"""

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone

from supervisor.contrib.django.current_job import current_job
from supervisor.contrib.django.interface import backends, base, exceptions, signals
from supervisor.contrib.django.registry import task_of
from supervisor.contrib.django.results import data_of, result_of
from supervisor.contrib.outbox.entries import entry
from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.new_jobs import checked_options, new_jid

_INSERT: Final = "INSERT INTO leasehold_outbox (id, job) VALUES (%(id)s, %(job)s)"
_OPTIONS: Final = frozenset({"redis_url", "namespace", "database", "outbox", "put"})


class LeaseholdBackend(backends.BaseTaskBackend):  # type: ignore[misc]  # Django ships no types
    """Puts each task after the commit. ENQUEUE_ON_COMMIT = False: at once.

    OPTIONS: `redis_url` and `namespace`, as Client has them; `database`: whose transaction counts; `outbox`: leave
    the job in that database, for `leasehold outbox`; `put`: options of each put. A failed task is not tried again
    unless these say `retries`. What a task enqueues is put with its completion, or at once if there is a `redis_url`.
    Raises ValueError or TypeError for unknown options.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = self.options.keys() - _OPTIONS
        if unknown:
            raise ValueError(f"OPTIONS has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(_OPTIONS))}")
        self._put_options = {"retries": 0, **self.options.get("put", {})}
        checked_options(self._put_options)
        self._database = self.options.get("database", DEFAULT_DB_ALIAS)
        self._uses_outbox = bool(self.options.get("outbox", False))
        self._waits = bool(params.get("ENQUEUE_ON_COMMIT", True)) and not self._uses_outbox

    @cached_property
    def client(self) -> Client:
        """The client of this backend. Threads may share it."""
        return Client(self.options.get("redis_url"), self.options.get("namespace"))

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Put a task. Its result has `enqueued_at` once it is put. Raises as the client's put does, then."""
        self.validate_task(task)
        result = base.TaskResult(
            task=task, id=new_jid(), status=base.TaskResultStatus.READY, enqueued_at=None, started_at=None,
            last_attempted_at=None, finished_at=None, args=args, kwargs=kwargs, backend=self.alias, errors=[],
            worker_ids=[],
        )  # fmt: skip
        connection = connections[self._database]
        has_transaction = connection.in_atomic_block or (connection.connection and not connection.autocommit)
        if self._waits and has_transaction:
            transaction.on_commit(partial(self._put, result), using=self._database)
        else:
            self._put(result)
        return result

    def _put(self, result: Any) -> None:
        now = timezone.now()
        whole_ms = now.replace(microsecond=now.microsecond // 1000 * 1000)  # as Redis has the times that follow
        object.__setattr__(result, "enqueued_at", whole_ms)  # it is frozen, and Django's own backends do this
        task = result.task
        job = (task.queue_name, task.module_path, data_of(result))
        options = {**self._put_options, "jid": result.id, "priority": -task.priority}  # ours: lower runs sooner
        if task.run_after is not None:
            options["at"] = timezone.make_aware(task.run_after) if timezone.is_naive(task.run_after) else task.run_after
        if self._uses_outbox:
            with connections[self._database].cursor() as cursor:
                cursor.execute(_INSERT, entry(*job, **options))
        elif (running := current_job.get()) is not None and not self.options.get("redis_url"):
            running.put(*job, **options)
        else:
            self.client.queue(job[0]).put(job[1], job[2], **options)
        signals.task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        """Return the state of a task as it is now. Raises TaskResultDoesNotExist if Redis keeps it no more."""
        job = self.client.job(str(result_id))
        task = None if job is None else task_of(job.klass)
        if job is None or task is None:
            raise exceptions.TaskResultDoesNotExist(result_id)
        return result_of(job, task, self.alias)

    def close(self) -> None:
        """Close the connections to Redis. A later call connects again."""
        self.client.close()
