"""Tells Redis what a worker inside of an application can run. Runs in applications. No I/O."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from supervisor import clock
from supervisor.child.handler import Handler
from supervisor.engine.commands import recurrences, workers
from supervisor.engine.commands.command import Command
from supervisor.engine.model.recurring import declared
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.schema_report import SchemaReport

log = logging.getLogger("leasehold")


class Skills:
    def __init__(self, handlers: Mapping[str, Handler[..., Any]], schemas: Mapping[str, str]) -> None:
        """`handlers`: by klass; their settings have the shapes of their data. `schemas`: of these data, by shape."""
        self._handlers = handlers
        self._shapes = {klass: one.settings.shape for klass, one in handlers.items() if one.settings.shape}
        self._schemas = schemas
        self._schema_report = SchemaReport()
        #: Klasses whose jobs never start twice.
        self.once = [klass for klass, one in handlers.items() if one.settings.at_most_once]
        self._is_new = True
        self._told_by = ""  # the worker's name when they were told

    @property
    def are_due(self) -> bool:
        """True if there is something to tell."""
        return self._is_new or self._schema_report.is_due

    def tell_again(self) -> None:
        """Tell all with the next exchange: the worker is a new one for Redis, or serves other queues."""
        self._is_new = True

    def parts(self, worker: str, queues: Sequence[str]) -> list[Part]:
        """Return what is to be told with the exchange that begins."""
        parts: list[Part] = []
        if self._is_new:
            self._is_new = False
            parts = self._all(worker, queues)
            self._schema_report.tell(self._schemas)
        return parts + self._schema_report.parts()

    def _all(self, worker: str, queues: Sequence[str]) -> list[Part]:
        def told(_reply: Any) -> None:
            self._told_by = worker

        skills = workers.report_skills(worker, self._handlers, queues, self._shapes)
        if self._told_by in ("", worker):
            return [Part(skills, told, lost=self.tell_again)]
        # Redis has forgotten the worker, and may have lost its data.
        *first, last = self.declarations(only_missing=True)
        refused = {"REFUSED": log.warning}
        return [
            Part(skills, lost=self.tell_again),
            *(Part(each, refused=refused, lost=self.tell_again) for each in first),
            Part(last, told, refused, lost=self.tell_again),
        ]

    def declarations(self, only_missing: bool = False) -> list[Command[Any]]:
        """Return what puts, changes or removes the recurring jobs that the handlers declare.

        `only_missing`: it puts what no release has declared, and nothing else.

        Raises CronMissing without the extra `cron`.
        """
        recurring = {klass: found for klass, one in self._handlers.items() if (found := one.recurrence)}
        known = [declared(klass, recurrence, clock.unix()) for klass, recurrence in recurring.items()]
        return recurrences.declarations(
            (klass for klass in self._handlers if klass not in recurring), known, only_missing
        )
