"""Walks a whole namespace for a consistency check. Runs in every process that speaks to Redis.

Must not do I/O or judge anything itself: lua/check.lua reads all of a job in one call, so a job that moves meanwhile is
never taken for a damaged one. A client runs the steps of a Check one after the other and passes on each answer:

    for step in check.steps():
        check.answered(store.run(step))
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from supervisor.engine.commands.command import Argument, Command
from supervisor.engine.model import scripts
from supervisor.engine.model.scripts import Script
from supervisor.engine.model.validation import milliseconds

SLICE = 100  # keys, or members of one set, in one call: Redis does nothing else for a millisecond or two
_SCANNED = 500  # keys that one SCAN visits, also those of other namespaces
MOST_LANES = 1000  # the lanes of one queue whose jobs are counted
#: The keys that mark the layout. No SCAN finds one that is missing.
_MARKS: Final = (b"config", b"tracked", b"tags", b"workers")
_PASSES = 5  # a repair can uncover damage for the next pass; damage is never five levels deep

#: The kinds of violations. A subject is a jid, or the name of a key without the namespace's prefix.
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
    "leaked-slot": "a slot of a limit is held by what does not run under it",
    "unlisted-limit": "a limit, or what is parked under it, is not where leases and people look",
    "unlisted-lane": "a lane has jobs, and no lease comes to it",
    "stray-lane": "a lane is paused, and leases come to it",
    "lost-key": "a job that is unique does not hold its key, or another one is unique by the same",
    "stray-key": "a unique key is held by what has no claim to it, so that nothing else can have it",
    "wrong-deadline": "the time by which a job must have started is not where it is looked for, or not its own",
    "wrong-count": "an index of tags or groups, or the counter of jobs in lanes, is not what there is of them",
    "foreign-value": "a setting, a figure or the like has a value that it cannot have",
    "idle-queue": "a queue with jobs counts as out of use",
    "quiet-queue": "a queue with jobs is passed over by leases of many queues",
    "unlisted-queue": "a queue with jobs is not among the known queues",
    "unlisted-day": "figures of a day are not in the list by which old days are deleted",
    "half-written-recurrence": "a recurrence does not tell all that it needs",
    "recurrence-in-no-place": "a recurrence does not lie at its next time",
    "unlisted-batch": "a batch is not where queries and sweeps look",
    "uncounted-member": "a job that has not ended is not among the pending jobs of its batch",
    "open-batch": "a batch was opened more than an hour ago, and the block that opened it was not left",
    "orphan": "something is left of a job, a recurrence or a day that is gone",
    "counter-behind": "a counter is below what was drawn from it, and would give it a second time",
    "lost-mark": "a key that marks the layout is missing or wrong, and does not stop clients of another layout",
    "foreign-type": "a key is of another type than its name says",
    "no-expiry": "a worker's record or mail, a request or an answer would stay for ever",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """An inconsistency in Redis. `repaired` says what was done about it; None if the check only read."""

    kind: str  # one of KINDS
    subject: str  # a jid, or the name of a key without the namespace's prefix
    detail: str  # what is wrong, so that "<subject> <detail>" is a sentence
    repaired: str | None = None


class SliceResult(NamedTuple):
    """The reply for one slice.

    `again`: an obstacle is repaired, and the slice must be judged again. `too_large`: the keys to be judged in parts.
    """

    again: bool
    too_large: list["LargeKey"]
    violations: list[Violation]


class LargeKey(NamedTuple):
    """A sorted set or hash with more members or fields than one call may read."""

    name: bytes
    is_hash: bool


class ScanPage(NamedTuple):
    """One page of a SCAN: its keys or members, and the cursor of the next page, 0 after the last."""

    cursor: int
    found: list[bytes]


# The steps, as commands.


def _read_only(script: Script) -> Script:
    """Return the script in a form that Redis does not let write."""
    text = script.text.replace("#!lua flags=allow-oom\n", "#!lua flags=no-writes\n", 1)
    return Script(script.name, text)


_CHECK_ONLY = _read_only(scripts.CHECK)
SCAN: Final = Script("scan", "#!lua flags=no-writes\n")  # a stand-in for messages; SCAN is no script


class _Walk(Command[ScanPage]):
    """A SCAN of the namespace's keys, or a ZSCAN or HSCAN of one of them. Scripts cannot call these."""

    def wire(self, prefix: str, *_known: str) -> tuple[Argument, ...]:
        verb, cursor, name, count = self.args
        if verb == "SCAN":
            return (verb, cursor, "MATCH", prefix.encode() + bytes(name) + b"*", "COUNT", count)  # type: ignore[arg-type]
        return (verb, prefix.encode() + bytes(name), cursor, "COUNT", count)  # type: ignore[arg-type]  # a name is bytes


def next_keys(cursor: int, head: bytes = b"") -> Command[ScanPage]:
    """Read the next keys of a head. One that exists throughout comes at least once before the cursor is 0."""
    return _Walk(SCAN, ("SCAN", cursor, head, _SCANNED), lambda reply: ScanPage(int(reply[0]), reply[1]))


def next_members(name: bytes, cursor: int, *, is_hash: bool = False) -> Command[ScanPage]:
    """Read the next members of a sorted set, or fields of a hash, in the same way."""
    verb = "HSCAN" if is_hash else "ZSCAN"
    return _Walk(SCAN, (verb, cursor, name, SLICE), lambda reply: ScanPage(int(reply[0]), reply[1][::2]))


def of_keys(names: Sequence[bytes], *, repair: bool = False, now: float | None = None) -> Command[SliceResult]:
    """Judge up to 100 keys by their names without prefix. A job's key stands for all of the job."""
    return _judge(b"", names, repair, now)


def of_members(
    name: bytes, members: Sequence[bytes], *, repair: bool = False, now: float | None = None
) -> Command[SliceResult]:
    """Judge up to 100 members of one sorted set, or fields of one hash."""
    return _judge(name, members, repair, now)


def of_lanes(
    queue: bytes, seen: Iterable[bytes], *, repair: bool = False, now: float | None = None
) -> Command[SliceResult]:
    """Judge the count of a queue's jobs in lanes. `seen`: the lanes that the walk has met."""
    return _judge(b"laned:" + queue, list(seen), repair, now)


def _judge(name: bytes, subjects: Sequence[bytes], repair: bool, now: float | None) -> Command[SliceResult]:
    now_ms = "" if now is None else milliseconds("now", now)
    script = scripts.CHECK if repair else _CHECK_ONLY
    return Command(script, (now_ms, "1" if repair else "", name, *subjects), _parse_slice)


def _parse_slice(reply: list[Any]) -> SliceResult:
    again, sets, hashes, texts = reply
    shown = [text.decode(errors="backslashreplace") for text in texts]
    violations = [
        Violation(kind, subject, detail, repaired or None)
        for kind, subject, detail, repaired in zip(*(iter(shown),) * 4, strict=True)
    ]
    too_large = [LargeKey(name, False) for name in sets] + [LargeKey(name, True) for name in hashes]
    return SliceResult(again == 1, too_large, violations)


# The walk.


class Check:
    """One check of a namespace with this `prefix`.

    With `repair` the check walks again until a pass repairs nothing. `clock` returns unix seconds, or None for the
    server's clock.
    """

    def __init__(self, prefix: str, repair: bool, clock: Callable[[], float | None]) -> None:
        if not isinstance(repair, bool):
            raise TypeError(f"repair must be a bool, not {type(repair).__name__}: {repair!r:.100}")
        self._prefix_bytes = len(prefix.encode())
        self._repair = repair
        self._clock = clock
        self._answer: Any = None
        self._found: dict[tuple[str, str, str], Violation] = {}  # a SCAN may return a key twice
        self._lanes: dict[bytes, set[bytes]] = {}  # the lanes that the walk has met, by queue

    @property
    def violations(self) -> list[Violation]:
        """Return all violations, in the order in which they were found."""
        return list(self._found.values())

    def answered(self, answer: Any) -> None:
        """Take the answer to the last step."""
        self._answer = answer

    def steps(self) -> Iterator[Command[Any]]:
        """Yield the commands to run, each after the answer to the one before."""
        # A Cluster node without this namespace returns an empty SCAN. A command that names a key fails there.
        yield of_keys((), now=self._clock())
        for _ in range(_PASSES if self._repair else 1):
            before = len(self._found)
            yield from self._walk()
            if len(self._found) == before:
                return

    def _walk(self) -> Iterator[Command[Any]]:
        waiting = list(_MARKS)
        cursor, left = 0, True
        self._lanes.clear()
        while left or waiting:
            while left and len(waiting) < SLICE:
                yield next_keys(cursor)
                cursor, found = self._answer
                waiting += [key[self._prefix_bytes :] for key in found]
                left = cursor != 0
            names, waiting = waiting[:SLICE], waiting[SLICE:]
            self._meet_lanes(names)
            for large in (yield from self._ask(of_keys, names)) if names else ():
                yield from self._walk_members(large)
        for queue, lanes in self._lanes.items():
            yield from self._ask(of_lanes, queue, lanes)

    def _meet_lanes(self, names: Iterable[bytes]) -> None:
        """Remember the lanes. Their sum can be judged only when all are known."""
        for name in names:
            kind, _, rest = name.partition(b":")
            queue, _, lane = rest.partition(b"\n")
            if kind not in (b"lane", b"laned"):
                continue
            lanes = self._lanes.setdefault(queue, set())
            if kind == b"lane" and len(lanes) <= MOST_LANES:
                lanes.add(lane)

    def _walk_members(self, large: LargeKey) -> Iterator[Command[Any]]:
        cursor, left = 0, True
        while left:
            yield next_members(large.name, cursor, is_hash=large.is_hash)
            cursor, found = self._answer
            left = cursor != 0
            for first in range(0, len(found), SLICE):
                yield from self._ask(of_members, large.name, found[first : first + SLICE])

    def _ask(
        self, judge: Callable[..., Command[SliceResult]], *subjects: object
    ) -> Generator[Command[Any], None, list[LargeKey]]:
        """Judge until nothing stands in the way. Return the keys that are too large for one call."""
        too_large: list[LargeKey] = []
        again = True
        while again:
            yield judge(*subjects, repair=self._repair, now=self._clock())
            again = self._answer.again
            too_large += self._answer.too_large
            self._note(self._answer.violations)
        return too_large

    def _note(self, violations: Iterable[Violation]) -> None:
        for found in violations:
            self._found.setdefault((found.kind, found.subject, found.detail), found)
