"""Chooses jobs by queue, tag, group, klass and state, and changes them in bulk. Runs in applications and commands.

Must not do I/O. Each change applies only to jobs that still match the choice.
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from supervisor import clock
from supervisor.engine.commands import job_changes, lanes
from supervisor.engine.commands.command import Argument, Command, checked_by, checked_names, now_ms, parse_names
from supervisor.engine.commands.steps import Steps, Told, ignored
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.keys import GROUP_BYTES, checked_name
from supervisor.engine.model.outcomes import failure_json
from supervisor.engine.model.validation import EXACT_INT, checked_int

#: The states to choose from. running includes stalled jobs; waiting excludes parked ones.
STATES: Final = ("waiting", "scheduled", "depends", "parked", "running", "failed", "complete")
#: The most jobs that one call changes.
MOST_CHANGED: Final = 500
#: Jobs that a step changes. Redis does nothing else during the few milliseconds of a step.
STEP: Final = 250
#: What the scripts compare for jobs that are named: complete ones stay as they are.
_NAMED: Final = ("", f",{','.join(STATES[:-1])},", "", "")
#: The places of a queue that hold jobs of a state, in the order in which jobs move through them.
_PLACES: Final = {
    "depends": ("depends",),
    "scheduled": ("scheduled",),
    "parked": ("parked",),
    "waiting": ("scheduled", "apart", "waiting", "lanes", "front"),
    "running": ("running",),
    "failed": ("failed",),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of jobs: of a queue, with a tag, in a group of failed ones, and among these of a klass.

    All conditions given must hold, and the state.
    """

    queue: str | None = None
    tag: str | None = None
    group: str | None = None
    states: Sequence[str] = STATES
    klass: str | None = None

    def __post_init__(self) -> None:
        if self.queue is None and self.tag is None and self.group is None:
            raise ValueError("queue, tag or group must be given")
        for state in self.states:
            if state not in STATES:
                raise ValueError(f"states must be some of {', '.join(STATES)}: {state!r:.100}")
        for name, value in (("queue", self.queue), ("tag", self.tag), ("klass", self.klass)):
            if value is not None:
                checked_name(name, value)
        if self.group is not None:
            checked_name("group", self.group, GROUP_BYTES)

    @property
    def words(self) -> tuple[str, str, str, str]:
        """Return what the scripts compare: queue, states, group, klass."""
        return self.queue or "", f",{','.join(self.states)},", self.group or "", self.klass or ""


class PlacePage(NamedTuple):
    """The chosen jobs of a slice of a place with their states, the last first, and the size of the place."""

    total: int
    states: dict[str, str]


class BulkResult(NamedTuple):
    """How many jobs were changed.

    `needed` were left: others wait for those that were to be cancelled, or the jobs before them have too many
    dependents, or tell other programs too much, for one call.
    """

    number: int
    needed: list[str]


def find(choice: Choice, place: str, offset: int = 0, *, now: float | None = None) -> Command[PlacePage]:
    """Find the chosen jobs among the 1,000 of a place from `offset` on, counted from its end."""
    args = (now_ms(now), place, *choice.words, checked_int("offset", offset, 0), MOST)
    return Command(scripts.FIND, args, _parse_place_page)


def found(
    choice: Choice, now: Callable[[], float | None], most: float = math.inf, told: Told = ignored
) -> Steps[dict[str, str]]:
    """Return the states of all jobs that are chosen now, first come first. Jobs put meanwhile may be among them.

    If there are more than `most`, only some are returned: as many, or up to 1,000 more.
    """
    chosen: dict[str, str] = {}
    for place in (yield from _places(choice, now)):
        of_place: dict[str, str] = {}
        offset = 0
        while len(chosen) + len(of_place) <= most:
            page: PlacePage = yield find(choice, place, offset, now=now())
            of_place |= page.states
            told(len(chosen) + len(of_place))
            offset += MOST
            if offset >= page.total:
                break
        chosen.update(reversed(of_place.items()))
    return chosen


class BulkChange:
    """A change of chosen jobs, in steps. It can be left between two of them: what is done stays."""

    def __init__(self, verb: str, jids: Iterable[str], build: Callable[[Sequence[str]], Command[BulkResult]]) -> None:
        """`jids` come from `found`. `build` returns the command that changes some of them."""
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


def _places(choice: Choice, now: Callable[[], float | None]) -> Generator[Command[Any], Any, Iterable[str]]:
    if choice.tag is not None:
        return [f"tag:{choice.tag}"]
    if choice.group is not None:
        return [f"failed:{choice.group}"]
    queue = checked_name("queue", choice.queue)
    places = dict.fromkeys(place for state, of in _PLACES.items() if state in choice.states for place in of)
    if "lanes" not in places:
        return places
    filled = yield from lanes.waiting(queue, now)
    named = [f"lane:{name.decode()}" for name, number in filled.items() if name and number]
    return [each for place in places for each in (named if place == "lanes" else [place])]


def cancel(
    choice: Choice | None, jids: Sequence[str], *, by: str | None = None, now: float | None = None
) -> Command[BulkResult]:
    """Cancel up to 500 jobs that still match, except those that others wait for; None: in any state but complete.

    `by` names who asks.
    """
    return _each("cancel", choice, "", b"", jids, by, now)


def retry(
    choice: Choice | None, jids: Sequence[str], *, by: str | None = None, now: float | None = None
) -> Command[BulkResult]:
    """Put those of up to 1,000 jobs back that have failed and still match; None: all that have. `by` names who asks."""
    group, of_queue, of_klass = (choice.group, choice.queue or "", choice.klass or "") if choice else (None, "", "")
    command = job_changes.unfail_jobs(jids, group=group, of_queue=of_queue, of_klass=of_klass, by=by, now=now)
    return Command(command.script, command.args, lambda reply: BulkResult(reply, []))


def fail(
    choice: Choice | None,
    jids: Sequence[str],
    group: str,
    message: str,
    *,
    by: str | None = None,
    now: float | None = None,
) -> Command[BulkResult]:
    """Fail up to 500 jobs that still match; None: in any state but complete. `by` names who asks."""
    failure = failure_json(checked_name("group", group), message, None, clock.unix() if now is None else now, {})
    return _each("fail", choice, group, failure, jids, by, now)


def move(
    choice: Choice | None, jids: Sequence[str], queue: str, *, by: str | None = None, now: float | None = None
) -> Command[BulkResult]:
    """Move up to 500 jobs that still match into a queue; None: in any state but complete.

    A scheduled job keeps its time. `by` names who asks.
    """
    return _each("move", choice, checked_name("queue", queue), b"", jids, by, now)


def set_priority(
    choice: Choice | None, jids: Sequence[str], priority: int, *, by: str | None = None, now: float | None = None
) -> Command[BulkResult]:
    """Change the priority of up to 500 jobs that still match; None: in any state but complete. `by` names who asks."""
    return _each("priority", choice, checked_int("priority", priority, -EXACT_INT), b"", jids, by, now)


def _each(
    verb: str,
    choice: Choice | None,
    argument: Argument,
    failure: Argument,
    jids: Sequence[str],
    by: str | None,
    now: float | None,
) -> Command[BulkResult]:
    args = now_ms(now), verb, *(choice.words if choice else _NAMED), argument, failure, checked_by(by)
    return Command(
        scripts.EACH,
        (*args, *checked_names("jids", jids, MOST_CHANGED)),
        lambda reply: BulkResult(reply[0], parse_names(reply[1:])),
    )


def _parse_place_page(reply: list[Any]) -> PlacePage:
    words = parse_names(reply[1:])
    return PlacePage(reply[0], dict(zip(words[::2], words[1::2], strict=True)))
