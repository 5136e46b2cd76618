"""Runs in every process that speaks to Redis. Owns: the walk of a consistency check through a whole namespace, and the
names of what it finds. Must not: do I/O, or judge anything itself: lua/check.lua looks at all of a job in one call, so
that a job which moves meanwhile is never taken for a damaged one.

A client runs the steps of a Check, one after the other, and tells it each answer:

    for step in check.steps():
        check.answered(store.run(step))
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from supervisor.engine import scripts
from supervisor.engine.checks import milliseconds
from supervisor.engine.commands import Argument, Command
from supervisor.engine.scripts import Script

SLICE = 100  # keys, or members of one set, in one call: a millisecond or two in which Redis does nothing else
_SCANNED = 500  # keys that one SCAN looks at, those of other namespaces included
_PASSES = 5  # what one repair uncovers, the next pass mends; damage is never as deep as that

#: What can be wrong. The subject of a violation is a jid, or the name of a key without the namespace's prefix.
KINDS: Final = {
    "half-written-job": "a record does not tell all that a job needs",
    "job-in-no-place": "a job is not where its record says that it lies",
    "job-in-two-places": "a job is somewhere else than where its record says that it lies",
    "id-without-record": "an id lies in a place, and there is no record of it",
    "lease-without-job": "a worker holds what does not run, or is not there",
    "stray-lease": "a job that does not run has an owner, whose token could still settle it",
    "wrong-score": "a job lies in its place, but in the wrong order, or its lease has another token",
    "phantom": "an id was met by a lease, or a like script, in a place that its record does not name",
    "dangling-dependency": "a job waits for one that has gone or ended, or for none",
    "missing-dependent": "a job waits for one that does not know of it",
    "stray-dependent": "a job is listed as waiting for one that it does not wait for",
    "tag-without-job": "a tag lists a job that is not there, or does not have it",
    "untagged-job": "a job has a tag that does not list it",
    "unsaid-rest": "a job is more than record and data, and what must say so does not: retention would leave the rest",
    "untracked-job": "a job is tracked by its record, or by the list of tracked jobs, and not by the other",
    "wrong-count": "an index of tags or groups is not what there is of them",
    "unlisted-queue": "a queue with jobs is not among the known queues",
    "unlisted-day": "figures of a day are not in the list by which old days are deleted",
    "half-written-recurrence": "a recurrence does not tell all that it needs",
    "recurrence-in-no-place": "a recurrence does not lie at its next time",
    "orphan": "something is left of a job, a recurrence or a day that is gone",
    "counter-behind": "a counter is below what was drawn from it, and would give it a second time",
    "foreign-type": "a key is of another type than its name says",
    "no-expiry": "a worker's record or mail would stay for ever",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that cannot be. `repaired` says what was done about it; None if the check only looked."""

    kind: str  # one of KINDS
    subject: str  # a jid, or the name of a key without the namespace's prefix
    detail: str  # what is wrong with it, so that "<subject> <detail>" is a sentence
    repaired: str | None = None


class Found(NamedTuple):
    """What one slice answered. `again`: something that stood in the way is mended, the slice is to be asked again.
    `too_large`: sets whose members are to be asked for bit by bit.
    """

    again: bool
    too_large: list[bytes]
    violations: list[Violation]


class Page(NamedTuple):
    """A page of a SCAN: the cursor of the next one, 0 if there is none, and what was found."""

    cursor: int
    found: list[bytes]


# The steps, as commands.


def _looking(script: Script) -> Script:
    """The same script, held by Redis to write nothing."""
    text = script.text.replace("#!lua flags=allow-oom\n", "#!lua flags=no-writes\n", 1)
    return Script(script.name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_LOOK = _looking(scripts.CHECK)
_SCAN = Script("scan", "#!lua flags=no-writes\n", "")  # for messages: it is no script, but changes as little


class _Walk(Command[Page]):
    """A SCAN of the namespace's keys, or a ZSCAN of one set: what a script must not do."""

    def wire(self, prefix: str) -> tuple[Argument, ...]:
        verb, cursor, name, count = self.args
        if verb == "SCAN":
            return (verb, cursor, "MATCH", f"{prefix}*", "COUNT", count)
        return (verb, prefix.encode() + bytes(name), cursor, "COUNT", count)  # type: ignore[arg-type]  # a name is bytes


def next_keys(cursor: int) -> Command[Page]:
    """The next keys of the namespace. Each that is there all the while comes at least once before the cursor is 0."""
    return _Walk(_SCAN, ("SCAN", cursor, b"", _SCANNED), lambda reply: Page(int(reply[0]), reply[1]))


def next_members(name: bytes, cursor: int) -> Command[Page]:
    """The next members of a sorted set, in the same way."""
    return _Walk(_SCAN, ("ZSCAN", cursor, name, SLICE), lambda reply: Page(int(reply[0]), reply[1][::2]))


def of_keys(names: Sequence[bytes], *, repair: bool = False, now: float | None = None) -> Command[Found]:
    """Judges up to 100 keys by their names without prefix; a job's key stands for all of the job."""
    return _judge(b"", names, repair, now)


def of_members(
    name: bytes, members: Sequence[bytes], *, repair: bool = False, now: float | None = None
) -> Command[Found]:
    """Judges up to 100 members of one sorted set."""
    return _judge(name, members, repair, now)


def _judge(name: bytes, subjects: Sequence[bytes], repair: bool, now: float | None) -> Command[Found]:
    now_ms = "" if now is None else milliseconds("now", now)
    script = scripts.CHECK if repair else _LOOK
    return Command(script, (now_ms, "1" if repair else "", name, *subjects), _parse_found)


def _parse_found(reply: list[Any]) -> Found:
    again, too_large, texts = reply
    shown = [text.decode(errors="backslashreplace") for text in texts]
    violations = [
        Violation(kind, subject, detail, repaired or None)
        for kind, subject, detail, repaired in zip(*(iter(shown),) * 4, strict=True)
    ]
    return Found(again == 1, too_large, violations)


# The walk.


class Check:
    """One check of a namespace, of `prefix`. With `repair` it walks again until a pass finds nothing to mend. `clock`
    answers unix seconds, or None for the server's clock.
    """

    def __init__(self, prefix: str, repair: bool, clock: Callable[[], float | None]) -> None:
        if not isinstance(repair, bool):
            raise TypeError(f"repair must be a bool, not {type(repair).__name__}: {repair!r:.100}")
        self._prefix_bytes = len(prefix.encode())
        self._repair = repair
        self._clock = clock
        self._answer: Any = None
        self._found: dict[tuple[str, str, str], Violation] = {}  # a SCAN may give a key more than once

    @property
    def violations(self) -> list[Violation]:
        """All that was found, in the order in which it was."""
        return list(self._found.values())

    def answered(self, answer: Any) -> None:
        """Takes the answer to the last step."""
        self._answer = answer

    def steps(self) -> Iterator[Command[Any]]:
        """The commands to run, each when the one before is answered."""
        for _ in range(_PASSES if self._repair else 1):
            before = len(self._found)
            yield from self._walk()
            if len(self._found) == before:
                return

    def _walk(self) -> Iterator[Command[Any]]:
        waiting: list[bytes] = []
        cursor, left = 0, True
        while left or waiting:
            while left and len(waiting) < SLICE:
                yield next_keys(cursor)
                cursor, found = self._answer
                waiting += [key[self._prefix_bytes :] for key in found]
                left = cursor != 0
            names, waiting = waiting[:SLICE], waiting[SLICE:]
            too_large: list[bytes] = []
            yield from self._judge_keys(names, too_large)
            for name in too_large:
                yield from self._walk_members(name)

    def _judge_keys(self, names: Sequence[bytes], too_large: list[bytes]) -> Iterator[Command[Any]]:
        again = True
        while again and names:
            yield of_keys(names, repair=self._repair, now=self._clock())
            again = self._answer.again
            too_large += self._answer.too_large
            self._note(self._answer.violations)

    def _walk_members(self, name: bytes) -> Iterator[Command[Any]]:
        cursor, left = 0, True
        while left:
            yield next_members(name, cursor)
            cursor, found = self._answer
            left = cursor != 0
            for first in range(0, len(found), SLICE):
                again = True
                while again:
                    members = found[first : first + SLICE]
                    yield of_members(name, members, repair=self._repair, now=self._clock())
                    again = self._answer.again
                    self._note(self._answer.violations)

    def _note(self, violations: Iterable[Violation]) -> None:
        for found in violations:
            self._found.setdefault((found.kind, found.subject, found.detail), found)
