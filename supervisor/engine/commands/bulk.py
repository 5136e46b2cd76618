"""Runs in applications and commands. Owns: how jobs are chosen by what they are, and how the same is done to each of
those that still are that. Must not: do I/O.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from supervisor import clock
from supervisor.engine.commands import lanes
from supervisor.engine.commands.steps import Steps, all_pages
from supervisor.engine.commands.writes import MOST, Argument, Command, checked_by, checked_names, now_ms, parse_names
from supervisor.engine.model import scripts
from supervisor.engine.model.keys import GROUP_BYTES, checked_name
from supervisor.engine.model.outcomes import failure_json
from supervisor.engine.model.validation import EXACT_INT, checked_int

#: By which one chooses. running: also those whose lease has run out; waiting: without those that are parked.
STATES: Final = ("waiting", "scheduled", "depends", "parked", "running", "failed", "complete")
#: Jobs that one call changes.
MOST_CHANGED: Final = 500
#: The places of a queue in which jobs of a state lie, in the order in which they move from one to the next.
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
    """Some jobs: those of a queue, with a tag, in a group of failed ones; of several all must hold. In these states."""

    queue: str | None = None
    tag: str | None = None
    group: str | None = None
    states: Sequence[str] = STATES

    def __post_init__(self) -> None:
        if self.queue is None and self.tag is None and self.group is None:
            raise ValueError("queue, tag or group must be given")
        for state in self.states:
            if state not in STATES:
                raise ValueError(f"states must be some of {', '.join(STATES)}: {state!r:.100}")
        for name, value, most in (("queue", self.queue, 64), ("tag", self.tag, 64), ("group", self.group, GROUP_BYTES)):
            if value is not None:
                checked_name(name, value, most)

    @property
    def words(self) -> tuple[str, str, str]:
        """What the scripts compare: queue, states, group."""
        return self.queue or "", f",{','.join(self.states)},", self.group or ""


class Page(NamedTuple):
    """Some jobs of a place with their states, the last first, and how many lie there."""

    total: int
    states: dict[str, str]


class Done(NamedTuple):
    """To how many it was done, and which ones were not cancelled because others wait for them, or are left to another
    call, as those before them wait for too many others.
    """

    number: int
    needed: list[str]


def find(choice: Choice, place: str, offset: int = 0, *, now: float | None = None) -> Command[Page]:
    """Those of a place that are chosen, of the 1,000 from `offset` on, counted from its end."""
    args = (now_ms(now), place, *choice.words, checked_int("offset", offset, 0), MOST)
    return Command(scripts.FIND, args, _parse_page)


def found(choice: Choice, now: Callable[[], float | None]) -> Steps[dict[str, str]]:
    """The states of all that are chosen now, those that come first first. What is put meanwhile may be among them."""
    chosen: dict[str, str] = {}
    for place in (yield from _places(choice, now)):
        of_place: dict[str, str] = {}
        offset = 0
        while True:
            page: Page = yield find(choice, place, offset, now=now())
            of_place |= page.states
            offset += MOST
            if offset >= page.total:
                break
        chosen.update(reversed(of_place.items()))
    return chosen


def _places(choice: Choice, now: Callable[[], float | None]) -> Generator[Command[Any], Any, Iterable[str]]:
    if choice.tag is not None:
        return [f"tag:{choice.tag}"]
    if choice.group is not None:
        return [f"failed:{choice.group}"]
    queue = checked_name("queue", choice.queue)
    places = dict.fromkeys(place for state, of in _PLACES.items() if state in choice.states for place in of)
    if "lanes" not in places:
        return places
    filled = yield from all_pages(lambda offset: lanes.read(queue, None, offset, now=now()))
    named = [f"lane:{name}" for name, counts in filled.items() if name and counts.waiting]
    return [each for place in places for each in (named if place == "lanes" else [place])]


def cancel(choice: Choice, jids: Sequence[str], *, by: str | None = None, now: float | None = None) -> Command[Done]:
    """Deletes those of up to 500 jobs that still are of the choice, but for those for which others wait. `by`: who
    wants that.
    """
    return _each("cancel", choice, checked_by(by), b"", jids, now)


def fail(choice: Choice, jids: Sequence[str], group: str, message: str, *, now: float | None = None) -> Command[Done]:
    """Fails those of up to 500 jobs that still are of the choice."""
    failure = failure_json(checked_name("group", group), message, None, clock.unix() if now is None else now, {})
    return _each("fail", choice, group, failure, jids, now)


def move(choice: Choice, jids: Sequence[str], queue: str, *, now: float | None = None) -> Command[Done]:
    """Moves those of up to 500 jobs that still are of the choice, into a queue. Who has a time keeps it."""
    return _each("move", choice, checked_name("queue", queue), b"", jids, now)


def set_priority(choice: Choice, jids: Sequence[str], priority: int, *, now: float | None = None) -> Command[Done]:
    """Changes the priority of those of up to 500 jobs that still are of the choice."""
    return _each("priority", choice, checked_int("priority", priority, -EXACT_INT), b"", jids, now)


def _each(
    verb: str, choice: Choice, argument: Argument, failure: Argument, jids: Sequence[str], now: float | None
) -> Command[Done]:
    args = (now_ms(now), verb, *choice.words, argument, failure, *checked_names("jids", jids, MOST_CHANGED))
    return Command(scripts.EACH, args, lambda reply: Done(reply[0], parse_names(reply[1:])))


def _parse_page(reply: list[Any]) -> Page:
    words = parse_names(reply[1:])
    return Page(reply[0], dict(zip(words[::2], words[1::2], strict=True)))
