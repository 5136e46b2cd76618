"""Stands in for what Django's own tests look for in a backend beside the interface. Runs under Django's test runner."""

import contextlib
import logging

from django.tasks.base import TaskResultStatus

from supervisor.contrib.django.backend import LeaseholdBackend
from supervisor.engine.model.errors import JobFailed


class DummyBackend(LeaseholdBackend):
    """A backend without a supervisor. Jobs stay in the queue, and the backend can show and forget them."""

    @property
    def results(self):
        return [self.get_result(job.jid) for job in self.client.queue("default").jobs("waiting")]

    def clear(self):
        self.client.queue("default").delete()


class ImmediateBackend(LeaseholdBackend):
    """A supervisor runs its jobs, and `enqueue` returns after the end. The log of a failure is the supervisor's."""

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task.using(queue_name="served") if self.queues == set() else task, args, kwargs)
        with contextlib.suppress(JobFailed):
            self.client.wait(result.id, "20s")
        result.refresh()
        object.__setattr__(result, "task", task)
        if result.status == TaskResultStatus.FAILED:
            logging.getLogger("django.tasks").error(result.errors[0].traceback)
        return result
