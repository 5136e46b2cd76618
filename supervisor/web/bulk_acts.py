"""Carries out acts on many jobs in steps, while pages show how far they are. Runs in the web server's process.

A step is one call to Redis of some milliseconds, so jobs go on meanwhile. An act that is stopped, or whose server ends,
keeps what is done. Must not change a job before an operator has been told how many there are.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from supervisor import clock
from supervisor.cli.lib.bulk_words import (
    Operation,
    changed_words,
    choice_words,
    chosen_words,
    needed_words,
    past_words,
    perhaps_words,
)
from supervisor.cli.lib.terminal import counted
from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.commands.bulk import BulkChange, BulkResult
from supervisor.engine.commands.choices import Choice, found
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.steps import Steps, Told
from supervisor.engine.model.errors import LeaseholdError
from supervisor.web.pages.page import BadParameter, Missing, TooMany

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient

T = TypeVar("T")
#: Makes the command that changes some jids: `by` and `now` come by name.
Build = Callable[..., Command[BulkResult]]

#: Jobs of one act, whose jids are kept meanwhile. An act on more jobs can be repeated.
MOST_JOBS: Final = 250_000
_MOST_UNDER_WAY: Final = 4
#: Acts that are kept for their pages, the latest ones.
_MOST_KEPT: Final = 8
#: An answer waits for the end of an act for so long, so that few jobs need no second look.
_AT_ONCE_S: Final = 0.3
_PREVIEWED: Final = 20
_ANY_JID: Final = "x"

log = logging.getLogger("leasehold")


class _Stopped(Exception):
    """An operator has stopped the act."""


class BulkAct:
    """One act, and how far it is.

    `state` is counting, counted (it waits for an operator), acting, done, stopped, or broken.
    """

    def __init__(self, words: str, by: str) -> None:
        self.id = secrets.token_urlsafe(9)
        self.words = words
        self.by = by
        self.begun_unix = clock.unix()
        self.state = "counting"
        self.found = 0
        self.total: int | None = None
        self.done = 0
        self.preview: list[str] = []
        self.notes: list[str] = []
        self.is_stopping = False
        self.task: asyncio.Task[None] | None = None
        #: Goes on after the count. None: there is nothing to go on with.
        self.change: Callable[[AsyncClient], Coroutine[Any, Any, None]] | None = None

    @property
    def is_under_way(self) -> bool:
        """Return True while it counts or acts."""
        return self.state in ("counting", "acting")

    def has_found(self, number: int) -> None:
        """Note how many jobs match so far. Ends the count if the act is stopped."""
        self.found = number
        self._check()

    def has_done(self, number: int) -> None:
        """Note how many jobs are changed so far. Ends the act if it is stopped."""
        self.done = number
        self._check()

    def _check(self) -> None:
        if self.is_stopping:
            raise _Stopped

    def shown(self) -> dict[str, Any]:
        """Return what a program is told."""
        return {
            "act": self.id,
            "words": self.words,
            "by": self.by,
            "begun_unix": self.begun_unix,
            "state": self.state,
            "found": self.found,
            "total": self.total,
            "done": self.done,
            "notes": self.notes,
        }


class BulkActs:
    """The acts of one server. They end with it."""

    def __init__(self) -> None:
        self._acts: dict[str, BulkAct] = {}

    def get(self, act_id: str) -> BulkAct:
        """Return an act. Raises Missing."""
        if act_id not in self._acts:
            raise Missing(f"there is no act {act_id}, or it is long ended")
        return self._acts[act_id]

    def all(self) -> list[BulkAct]:
        """Return the acts that are kept, the latest first."""
        return list(self._acts.values())[::-1]

    def under_way(self) -> list[BulkAct]:
        """Return the acts that count or change jobs now."""
        return [act for act in self.all() if act.is_under_way]

    async def choose(
        self, client: "AsyncClient", by: str, chosen: Choice, operation: Operation, build: Build
    ) -> BulkAct:
        """Count the jobs of a choice, for an operation on them that `start` begins. Raises BadParameter, TooMany."""
        build([_ANY_JID], by=None, now=None)  # bad arguments are told before anything is counted
        act = self._new(f"{operation.verb} all jobs{choice_words(chosen)}{operation.how}", by)
        await self._begin(act, self._count(act, client, chosen, operation, build))
        return act

    async def start(self, act_id: str, client: "AsyncClient", by: str) -> BulkAct:
        """Change the jobs that were counted. Raises Missing, TooMany, or BadParameter if that has begun already."""
        act = self.get(act_id)
        if act.change is None or act.state != "counted":
            raise BadParameter(f"act {act_id} is {act.state}: it cannot be started")
        self._check_room()
        change, act.change = act.change, None
        act.state, act.by = "acting", by
        await self._begin(act, change(client))
        return act

    async def change(
        self, client: "AsyncClient", by: str, jids: Sequence[str], operation: Operation, build: Build
    ) -> BulkAct:
        """Change the jobs that are named at once. Raises BadParameter, TooMany."""
        build([_ANY_JID], by=None, now=None)  # bad arguments are told before anything is changed
        act = self._new(f"{operation.verb} {counted(len(jids), 'job')}{operation.how}", by)
        act.state, act.total = "acting", len(jids)
        await self._begin(act, self._change(act, client, jids, operation, build))
        return act

    async def follow(
        self,
        client: "AsyncClient",
        by: str,
        words: str,
        call: Callable[[Told], Steps[T]],
        ended: Callable[[T], str],
        of_all: Callable[[list[T]], T] | None = None,
    ) -> BulkAct:
        """Carry out a call of many steps at once. `ended` says what has come of it. Raises TooMany.

        `of_all` makes one result of those in the shards of the namespace. None: the steps find their shards.
        """
        act = self._new(words, by)
        act.state = "acting"

        async def work() -> None:
            calls = calls_of(client)
            if of_all is None:
                result = await calls.follow(call(act.has_done))
            else:
                result = await calls.follow_each(lambda: call(act.has_done), of_all)
            act.notes.append(ended(result))

        await self._begin(act, work())
        return act

    async def stop(self, act_id: str) -> BulkAct:
        """Stop an act after its present step. What is done stays done. Raises Missing."""
        act = self.get(act_id)
        act.is_stopping = True
        if act.state == "counted":
            act.state, act.change = "stopped", None
        elif act.task is not None and act.is_under_way:
            await asyncio.wait([act.task], timeout=_AT_ONCE_S)
        return act

    async def close(self) -> None:
        """End all acts as they are."""
        tasks = [act.task for act in self._acts.values() if act.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _new(self, words: str, by: str) -> BulkAct:
        self._check_room()
        idle = [act.id for act in self._acts.values() if not act.is_under_way]
        for act_id in idle[: max(0, len(self._acts) - _MOST_KEPT + 1)]:
            del self._acts[act_id]
        act = BulkAct(words, by)
        self._acts[act.id] = act
        return act

    def _check_room(self) -> None:
        if len(self.under_way()) >= _MOST_UNDER_WAY:
            raise TooMany(f"{_MOST_UNDER_WAY} acts on many jobs are under way: wait for one of them, or stop it")

    async def _begin(self, act: BulkAct, work: Coroutine[Any, Any, None]) -> None:
        act.task = asyncio.create_task(self._guarded(act, work))
        await asyncio.wait([act.task], timeout=_AT_ONCE_S)

    async def _guarded(self, act: BulkAct, work: Awaitable[None]) -> None:
        state = "broken"
        try:
            await work
            state = "done"
        except _Stopped:
            state = "stopped"
        except LeaseholdError as error:
            act.notes.append(str(error))
        except Exception as error:
            log.exception("an act on many jobs broke")
            act.notes.append(f"this is a bug of Leasehold; the log of the server has it: {error}")
        finally:
            act.state = "counted" if state == "done" and act.change else state

    async def _count(
        self, act: BulkAct, client: "AsyncClient", chosen: Choice, operation: Operation, build: Build
    ) -> None:
        calls = calls_of(client)
        jobs = await calls.follow(found(chosen, calls.clock, MOST_JOBS, act.has_found))
        if len(jobs) > MOST_JOBS:
            jobs = dict(list(jobs.items())[:MOST_JOBS])
            act.notes.append(f"More jobs match. One act takes {MOST_JOBS:,}; repeat it for the others.")
        jids = list(jobs)
        act.found = act.total = len(jids)
        act.words = f"{operation.verb} {chosen_words(jobs, chosen)}{operation.how}"
        act.preview = jids[:_PREVIEWED]
        if jids:
            act.change = lambda client: self._change(act, client, jids, operation, build)

    async def _change(
        self, act: BulkAct, client: "AsyncClient", jids: Sequence[str], operation: Operation, build: Build
    ) -> None:
        calls = calls_of(client)
        change = BulkChange(operation.verb, jids, lambda some: build(some, by=calls.actor, now=calls.clock()))
        try:
            await calls.follow(change.steps(act.has_done))
        except (LeaseholdError, _Stopped) as error:
            perhaps = perhaps_words(error, change.under_way)
            act.notes.append(f"{past_words(change.done, len(jids), operation)}{perhaps}; the rest is as it was")
            raise
        act.notes.append(past_words(change.done, len(jids), operation))
        changed = len(jids) - change.done - len(change.left)
        if changed:
            act.notes.append(changed_words(changed, operation))
        if change.left:
            act.notes.append(needed_words(change.left, operation))
