"""Changes chosen jobs in bulk. Runs in applications and commands.

Must not do I/O. Each change applies only to jobs that still match the choice.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from supervisor import clock
from supervisor.engine.commands import job_changes
from supervisor.engine.commands.choices import Choice
from supervisor.engine.commands.command import Argument, Command, checked_by, checked_names, now_ms, parse_names
from supervisor.engine.commands.routes import divided, united
from supervisor.engine.commands.steps import Steps, Told, ignored
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.outcomes import failure_json
from supervisor.engine.model.validation import EXACT_INT, checked_int

#: The most jobs that one call changes.
MOST_CHANGED: Final = 500
#: Jobs that a step changes. Redis does nothing else during the few milliseconds of a step.
STEP: Final = 250


class BulkResult(NamedTuple):
    """How many jobs were changed.

    `needed` were left: others wait for those that were to be cancelled, or the jobs before them have too many
    dependents, or tell other programs too much, for one call.
    """

    number: int
    needed: list[str]


class BulkChange:
    """A change of chosen jobs, in steps. It can be left between two of them: what is done stays."""

    def __init__(self, verb: str, jids: Iterable[str], build: Callable[[Sequence[str]], Command[BulkResult]]) -> None:
        """`jids` come from `choices.found`. `build` returns the command that changes some of them."""
        jids = list(jids)
        # Dependent jobs are mostly put after their dependencies, and must be cancelled first.
        self.left = jids[::-1] if verb == "cancel" else jids
        self.done = 0
        self.under_way = 0
        self._build = build

    def steps(self, told: Told = ignored) -> Steps[None]:
        """Change the jobs. `left` has then those that others wait for."""
        while self.left:
            needed, before = list[str](), self.done
            for first in range(0, len(self.left), STEP):
                step = self.left[first : first + STEP]
                self.under_way = len(step)
                answer: BulkResult = yield self._build(step)
                self.under_way = 0
                self.done += answer.number
                needed += answer.needed
                told(self.done)
            self.left = needed
            if self.done == before:
                break


def cancel(
    choice: Choice, jids: Sequence[str], *, by: str | None = None, now: float | None = None
) -> Command[BulkResult]:
    """Cancel up to 500 jobs that still match, except those that others wait for. `by` names who asks."""
    return _each("cancel", choice, "", b"", jids, by, now)


def retry(
    choice: Choice, jids: Sequence[str], *, by: str | None = None, now: float | None = None
) -> Command[BulkResult]:
    """Put those of up to 1,000 jobs back that have failed and still match. `by` names who asks."""
    command = job_changes.unfail_jobs(jids, group=choice.group, chosen=choice.lines, by=by, now=now)
    build = partial(retry, choice, by=by, now=now)
    route = divided(checked_names("jids", jids, MOST), build, _together)
    return Command(command.script, command.args, lambda reply: BulkResult(reply, []), route=route)


def fail(
    choice: Choice,
    jids: Sequence[str],
    group: str,
    message: str,
    *,
    by: str | None = None,
    now: float | None = None,
) -> Command[BulkResult]:
    """Fail up to 500 jobs that still match. `by` names who asks."""
    failure = failure_json(checked_name("group", group), message, None, clock.unix() if now is None else now, {})
    return _each("fail", choice, group, failure, jids, by, now)


def move(
    choice: Choice, jids: Sequence[str], queue: str, *, by: str | None = None, now: float | None = None
) -> Command[BulkResult]:
    """Move up to 500 jobs that still match into a queue. A scheduled job keeps its time. `by` names who asks."""
    return _each("move", choice, checked_name("queue", queue), b"", jids, by, now)


def set_priority(
    choice: Choice, jids: Sequence[str], priority: int, *, by: str | None = None, now: float | None = None
) -> Command[BulkResult]:
    """Change the priority of up to 500 jobs that still match. `by` names who asks."""
    return _each("priority", choice, checked_int("priority", priority, -EXACT_INT), b"", jids, by, now)


def _each(
    verb: str,
    choice: Choice,
    argument: Argument,
    failure: Argument,
    jids: Sequence[str],
    by: str | None,
    now: float | None,
) -> Command[BulkResult]:
    args = now_ms(now), verb, choice.lines, argument, failure, checked_by(by)
    checked = checked_names("jids", jids, MOST_CHANGED)

    def build(part: Sequence[str]) -> Command[BulkResult]:
        return _each(verb, choice, argument, failure, part, by, now)

    return Command(
        scripts.EACH,
        (*args, *checked),
        lambda reply: BulkResult(reply[0], parse_names(reply[1:])),
        route=divided(checked, build, _together),
    )


def _together(answers: list[BulkResult]) -> BulkResult:
    return BulkResult(sum(answer.number for answer in answers), united([answer.needed for answer in answers]))
