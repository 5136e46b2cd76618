"""Moves the jobs of a namespace from one shard into several: `leasehold reshard`. Runs in applications and commands.

Must not do I/O. A call yields each command with the shard that it goes to, and receives the answer. Each job is read
in the first shard, stored where it goes, removed in the first shard, and only then put into its place. A call that was
killed in between goes on when it is made again. lua/README.md has the steps.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from supervisor.engine.commands.check import SCAN, ScanPage, next_keys, next_members
from supervisor.engine.commands.command import Argument, Command, now_ms
from supervisor.engine.commands.steps import Told, Walk, ignored
from supervisor.engine.model import scripts
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.shards import checked_shards, key_of, shard_of

T = TypeVar("T")

_PAGE: Final = 700  # things in one call: Redis does nothing else for some 20 ms
_COPIED: Final = 400  # settings in one call
_PIECE_BYTES: Final = 1024 * 1024

#: Why things stay in the first shard, with words for their number.
WHY: Final[Mapping[str, str]] = {
    "runs": "run",
    "depends": "wait for other jobs or are waited for",
    "limit": "have a limit",
    "unique": "hold a unique key",
    "batch": "belong to a batch",
    "door": "came by a door",
    "changed": "have changed meanwhile",
    "there": "have a newer one of the same name in their shard",
    "damaged": "are damaged, which `leasehold check --repair` mends",
}


class ShardState(NamedTuple):
    """The state of a shard. `shards`: as its mark has them, like 1, 16, 16< or 1>16; empty: it has no keys."""

    shards: str
    number: str  # of the pass that moves jobs; empty: there is none
    seq: int
    has_doors: bool
    has_max_concurrency: bool


class Parcel(NamedTuple):
    """All of one thing that may move. `why`: it stays, empty: it can move, gone: there is none."""

    name: bytes
    why: str
    limits: list[bytes]
    unique: bytes
    seal: bytes
    large: bytes
    size: int
    parts: list[Any]


@dataclass
class MovedJobs:
    """The account of one pass. `jobs`: the number that went to each shard; `stay`: why jobs have stayed."""

    shards: int
    jobs: Counter[int] = field(default_factory=Counter)
    at_home: int = 0
    stay: Counter[str] = field(default_factory=Counter)
    recurrences: int = 0
    recurrences_stay: int = 0
    limits: int = 0
    limits_stay: int = 0
    batches_stay: int = 0
    has_guests: bool = False


# The commands.


def look(*, now: float | None = None) -> Command[ShardState]:
    """Read how many shards there are, and whether jobs are being moved."""
    return _pass("look", 1, now)


def begin(shards: int, *, now: float | None = None) -> Command[ShardState]:
    """Begin a pass, in the first shard: from now on only leases that run are served there, and no other pass writes."""
    return _pass("begin", shards, now)


def end(
    shards: int, number: str, has_guests: bool, seq: int | None = None, *, now: float | None = None
) -> Command[ShardState]:
    """End a pass in one shard. `seq`: of the first one, whose last sequence this was; a later one means guests."""
    return _pass("end", shards, now, number, "1" if has_guests else "", "" if seq is None else seq)


def prepare(
    shards: int, found: ShardState, name: bytes = b"", values: Sequence[bytes] = (), *, now: float | None = None
) -> Command[int]:
    """Make a shard ready, and copy up to 400 fields of a hash, or members of a sorted set, to it."""
    return Command(scripts.PREPARE, (now_ms(now), found.number, shards, found.seq, name, *values), int)


def depart(names: Sequence[bytes]) -> Command[list[Parcel]]:
    """Read the first of up to 1,000 things, as many as one call can."""
    return Command(scripts.DEPART, tuple(names), lambda reply: [_parcel(*row) for row in zip(names, reply)])  # noqa: B905


def arrive(number: str, parcels: Iterable[Parcel], *, now: float | None = None) -> Command[list[bool]]:
    """Store things where they go, out of sight. Answers for each whether it has room there."""
    words = (word for one in parcels for word in (one.name, "", len(one.parts), *one.parts))
    return Command(scripts.ARRIVE, (now_ms(now), number, *words), _parse_flags)


def arrive_piece(
    number: str, parcel: Parcel, at: int, piece: bytes, *, now: float | None = None
) -> Command[list[bool]]:
    """Store the next bytes of a large string of a thing that is to arrive."""
    return Command(scripts.ARRIVE, (now_ms(now), number, parcel.name, parcel.large, at, piece), _parse_flags)


def leave(number: str, parcels: Iterable[Parcel], *, now: float | None = None) -> Command[list[bool]]:
    """Remove things that have arrived elsewhere. Answers for each whether it was as it was read, and has gone."""
    words = (word for one in parcels for word in (one.name, one.seal))
    return Command(scripts.LEAVE, (now_ms(now), number, *words), _parse_flags)


def land(number: str, names: Iterable[bytes], *, now: float | None = None) -> Command[list[bool]]:
    """Put things that have arrived, and have left the first shard, into their places."""
    return Command(scripts.LAND, (now_ms(now), number, "land", *names), _parse_flags)


def forget(number: str, names: Iterable[bytes], *, now: float | None = None) -> Command[list[bool]]:
    """Forget things that have arrived, and are still in the first shard."""
    return Command(scripts.LAND, (now_ms(now), number, "forget", *names), _parse_flags)


class _Read(Command[T]):
    """A command that names one key, and no script."""

    def wire(self, prefix: str, *_known: str) -> tuple[Argument, ...]:
        verb, name, *more = self.args
        return (verb, prefix.encode() + bytes(name), *more)  # type: ignore[arg-type]  # a name is bytes


def _next_pairs(name: bytes, cursor: int) -> Command[ScanPage]:
    """Read the next members with their scores, or fields with their values: an array of both."""
    verb = "ZSCAN" if name == b"queues" else "HSCAN"
    return _Read(SCAN, (verb, name, cursor, "COUNT", _COPIED // 4), lambda reply: ScanPage(int(reply[0]), reply[1]))


def _piece_of(name: bytes, at: int) -> Command[bytes]:
    return _Read(SCAN, ("GETRANGE", name, at, at + _PIECE_BYTES - 1), bytes)


def _pass(verb: str, shards: int, now: float | None, *more: Argument) -> Command[ShardState]:
    return Command(scripts.RESHARD, (now_ms(now), verb, shards, *(more or ("", "", ""))), _parse_found)


def _parse_found(reply: list[Any]) -> ShardState:
    shards, number, seq, has_doors, has_max_concurrency = reply
    return ShardState(shards.decode(), number.decode(), int(seq), has_doors == 1, has_max_concurrency == 1)


def _parse_flags(reply: list[int]) -> list[bool]:
    return [answer == 1 for answer in reply]


def _parcel(name: bytes, row: list[Any]) -> Parcel:
    why, limit, unique, seal, large, size, *parts = row
    return Parcel(name, why.decode(), limit.split(b"\t") if limit else [], unique, seal, large, int(size), parts)


# The calls.


def survey(
    namespace: Namespace, shards: int, clock: Callable[[], float | None], told: Told = ignored
) -> Walk[MovedJobs]:
    """Say what `move` would do now. Nothing is written."""
    walk = _Resharding(namespace, shards, clock, told)
    yield from walk.check()
    yield from walk.walk(is_trial=True)
    return walk.moved


def move(namespace: Namespace, shards: int, clock: Callable[[], float | None], told: Told = ignored) -> Walk[MovedJobs]:
    """Move all jobs that can move from the first shard into theirs.

    `told` is called with the number of jobs moved so far. Raises LeaseholdError before anything is written if the
    namespace cannot have several shards. Called again, it moves what can move by then, also after it was broken off.
    """
    walk = _Resharding(namespace, shards, clock, told)
    yield from walk.check()
    yield from walk.begin()
    yield from walk.walk()
    yield from walk.end()
    return walk.moved


class _Resharding:
    def __init__(self, namespace: Namespace, shards: int, clock: Callable[[], float | None], told: Told) -> None:
        if checked_shards("shards", shards) == 1:
            raise LeaseholdError("a namespace has 1 shard unless it was given several, and then it keeps them")
        self._places = [Namespace(namespace.name, shard, shards) for shard in range(shards)]
        self._shards = shards
        self._clock = clock
        self._told = told
        self._found = ShardState("", "", 0, False, False)
        self._is_first = False  # no pass has ended yet
        self._limits: set[bytes] = set()
        self._limits_in_use: set[bytes] = set()
        self.moved = MovedJobs(shards)

    def _first(self, command: Command[T]) -> Generator[tuple[Namespace, Command[T]], Any, T]:
        answer: T = yield self._places[0], command
        return answer

    def check(self) -> Walk[None]:
        """Raise LeaseholdError if the jobs cannot be moved."""
        found = yield from self._first(look())
        number, moving, after = found.shards.rstrip("<").partition(">")
        wanted = str(self._shards)
        self._is_first = is_first = number in ("", "1")
        if moving and after != wanted:
            raise LeaseholdError(f"jobs are being moved into {after} shards: `leasehold reshard {after}` goes on")
        if not is_first and number != wanted:
            raise LeaseholdError(
                f"the namespace has {number} shards, and a namespace gets several of them only once:"
                f" `leasehold reshard {number}` moves what was left in its first one"
            )
        if is_first and found.has_doors:
            raise LeaseholdError("a namespace of several shards has no doors: remove them with `leasehold door` first")
        if is_first and (found.has_max_concurrency or (yield from self._has_max_concurrency())):
            raise LeaseholdError(
                "a namespace of several shards has no max-concurrency: unset it with `leasehold config`, and put the"
                " jobs with a limit instead"
            )
        for place in self._places[1:]:
            other: ShardState = yield place, look()
            if other.shards.rstrip("<") not in ("", wanted):
                raise LeaseholdError(f"there is a namespace {place.prefix[1:-2]} already, whose keys are in the way")

    def _has_max_concurrency(self) -> Walk[bool]:
        cursor, left = 0, True
        while left:
            cursor, fields = yield from self._first(next_members(b"options", cursor, is_hash=True))
            if any(name.startswith(b"max-concurrency-") for name in fields):
                return True
            left = cursor != 0
        return False

    def begin(self) -> Walk[None]:
        """Begin the pass, make the other shards ready, and end what an earlier pass has left half done."""
        self._found = yield from self._first(begin(self._shards, now=self._clock()))
        for place in self._places[1:]:
            yield place, self._prepared()
        for name in (b"options", b"queues", b"declared") if self._is_first else ():
            yield from self._copy(name)
        for place in self._places[1:]:
            yield from self._recover(place)

    def _prepared(self, name: bytes = b"", values: Sequence[bytes] = ()) -> Command[int]:
        return prepare(self._shards, self._found, name, values, now=self._clock())

    def _copy(self, name: bytes) -> Walk[None]:
        """Copy a hash, or the sorted set of queues, to all other shards."""
        cursor, left = 0, True
        while left:
            cursor, values = yield from self._first(_next_pairs(name, cursor))
            left = cursor != 0
            for at in range(0, len(values), 2 * _COPIED):
                for place in self._places[1:]:
                    yield place, self._prepared(name, values[at : at + 2 * _COPIED])

    def _recover(self, place: Namespace) -> Walk[None]:
        """Land what has arrived and has left the first shard, and forget what is still there."""
        names: list[bytes] = []
        cursor, left = 0, True
        while left:
            page: ScanPage = yield place, next_members(b"arriving", cursor)
            names += page.found
            cursor, left = page.cursor, page.cursor != 0
        for name in names:
            kind, _, of = name.partition(b":")
            asked = b"home:" + of if kind == b"job" else name
            [parcel] = yield from self._first(depart([asked]))
            act = land if parcel.why == "gone" else forget
            yield place, act(self._found.number, [name], now=self._clock())

    def walk(self, is_trial: bool = False) -> Walk[None]:
        """Go through all keys of the first shard, and move what can move."""
        cursor, left = 0, True
        waiting: list[bytes] = []
        while left or waiting:
            while left and len(waiting) < _PAGE:
                cursor, keys = yield from self._first(next_keys(cursor))
                left = cursor != 0
                for key in keys:
                    name = key.partition(b"}:")[2]
                    waiting += self._to_move(name)
                    if name.startswith(b"lanes:") and not is_trial and self._is_first:
                        yield from self._copy(name)
            page, waiting = waiting[:_PAGE], waiting[_PAGE:]
            yield from self._move_all(page, is_trial)
        if not is_trial:
            for name in (b"tracked-jobs", b"cancelled", b"dropped"):
                yield from self._move_memories(name)
        yield from self._move_limits(is_trial)

    def _to_move(self, name: bytes) -> Sequence[bytes]:
        """Return the thing that a key stands for, if it is to be looked at in its turn."""
        kind, _, of = name.partition(b":")
        if kind == b"job" and self._shard_of(of) == 0:
            return (b"home:" + of,)
        if kind == b"batch" and self._shard_of(of):
            self.moved.batches_stay += 1
        elif kind == b"limit" and self._shard_of(of):
            self._limits.add(name)
        elif kind == b"job" or (kind in (b"recur", b"throttled") and self._home_of(name)):
            return (name,)
        return ()

    def _shard_of(self, name: bytes) -> int:
        try:
            return shard_of(name.decode(), self._shards)
        except UnicodeDecodeError:
            return 0  # no name of ours

    def _home_of(self, name: bytes) -> int:
        """Return the shard of a thing: a throttled key, or anything else, follows from its name."""
        kind, _, of = name.partition(b":")
        return self._shard_of(of.partition(b"\n")[2].removeprefix(b"\1") if kind == b"throttled" else of)

    def _move_all(self, names: list[bytes], is_trial: bool = False) -> Walk[None]:
        while names:
            parcels = yield from self._first(depart(names))
            names = names[len(parcels) :]
            going = [parcel for parcel in parcels if self._can_go(parcel)]
            if is_trial:
                for parcel in going:
                    self._count(parcel)
            elif going:
                yield from self._send(going)
                self._told(sum(self.moved.jobs.values()))

    def _can_go(self, parcel: Parcel) -> bool:
        """Return whether a thing can move, and count it if it stays."""
        kind, _, of = parcel.name.partition(b":")
        self._limits_in_use.update(parcel.limits)
        why = parcel.why
        if kind == b"home" and why == "home":
            self.moved.at_home += 1
            if self._is_tied_elsewhere(parcel.unique, 0):
                self.moved.has_guests = True
        if not why and kind in (b"job", b"recur") and self._key_of_claim(kind, parcel.unique) not in ("", _key(of)):
            why = "unique"
        if why in ("", "gone", "home"):
            return not why
        self._stays(kind, why)
        return False

    def _is_tied_elsewhere(self, unique: bytes, shard: int) -> bool:
        return bool(unique) and self._shard_of(unique.removeprefix(b"\1")) != shard

    @staticmethod
    def _key_of_claim(kind: bytes, unique: bytes) -> str:
        """Return the key of a unique key: as a job has it, or with a sign before it as a recurrence has."""
        return _key(unique[1:] if kind == b"recur" else unique.removeprefix(b"\1"))

    def _stays(self, kind: bytes, why: str) -> None:
        if kind == b"job":
            self.moved.stay[why] += 1
        elif kind == b"recur":
            self.moved.recurrences_stay += 1

    def _count(self, parcel: Parcel) -> None:
        kind = parcel.name.partition(b":")[0]
        if kind == b"job":
            self.moved.jobs[self._home_of(parcel.name)] += 1
        elif kind == b"recur":
            self.moved.recurrences += 1
        elif kind == b"limit":
            self.moved.limits += 1

    def _send(self, parcels: Iterable[Parcel]) -> Walk[None]:
        """Move things: store them where they go, remove them here, and put them into their places there."""
        number = self._found.number
        by_shard: dict[int, list[Parcel]] = defaultdict(list)
        for parcel in parcels:
            by_shard[self._home_of(parcel.name)].append(parcel)
        arrived: list[Parcel] = []
        for shard, some in by_shard.items():
            for parcel in some:
                if parcel.large:
                    yield from self._send_large(shard, parcel)
            has_room: list[bool] = yield self._places[shard], arrive(number, some, now=self._clock())
            arrived += [parcel for parcel, has in zip(some, has_room, strict=True) if has]
            yield from self._take_back((it for it, has in zip(some, has_room, strict=True) if not has), "there")
        # The span of a throttled key stays in the first shard, too, for the guests there. It ends by itself.
        leaving = [parcel for parcel in arrived if not parcel.name.startswith(b"throttled:")]
        answers = (yield from self._first(leave(number, leaving, now=self._clock()))) if leaving else []
        changed = {parcel.name for parcel, has_left in zip(leaving, answers, strict=True) if not has_left}
        yield from self._take_back((parcel for parcel in leaving if parcel.name in changed), "changed")
        landing = {parcel.name for parcel in arrived} - changed
        for shard, some in by_shard.items():
            if names := [parcel.name for parcel in some if parcel.name in landing]:
                yield self._places[shard], land(number, names, now=self._clock())
        for parcel in arrived:
            if parcel.name in landing:
                self._count(parcel)

    def _send_large(self, shard: int, parcel: Parcel) -> Walk[None]:
        for at in range(0, parcel.size, _PIECE_BYTES):
            piece = yield from self._first(_piece_of(parcel.large, at))
            yield self._places[shard], arrive_piece(self._found.number, parcel, at, piece, now=self._clock())

    def _take_back(self, parcels: Iterable[Parcel], why: str) -> Walk[None]:
        for parcel in parcels:
            self._stays(parcel.name.partition(b":")[0], why)
            place = self._places[self._home_of(parcel.name)]
            yield place, forget(self._found.number, [parcel.name], now=self._clock())

    def _move_memories(self, name: bytes) -> Walk[None]:
        """Move what is remembered of jids without jobs."""
        cursor, left = 0, True
        while left:
            cursor, jids = yield from self._first(next_members(name, cursor))
            left = cursor != 0
            yield from self._move_all([b"memory:" + jid for jid in jids if self._shard_of(jid)])

    def _move_limits(self, is_trial: bool) -> Walk[None]:
        """Move the limits that no job of the first shard has.

        Jobs that were put since the pass began may have been missed.
        """
        found = yield from self._first(look())
        names = sorted(self._limits)
        if found.seq == self._found.seq or is_trial:
            free = [name for name in names if name.partition(b":")[2] not in self._limits_in_use]
            yield from self._move_all(free, is_trial)
        self.moved.limits_stay = len(names) - self.moved.limits

    def _drop_older(self) -> Walk[None]:
        """Remove jobs that have moved if what ran meanwhile has put them anew, in the first shard.

        Later, what runs there puts no job of another shard.
        """
        cursor, left = 0, bool(self.moved.stay) or self._found.seq < (yield from self._first(look())).seq
        while left:
            cursor, keys = yield from self._first(next_keys(cursor, b"job:"))
            left = cursor != 0
            by_shard: dict[int, list[bytes]] = defaultdict(list)
            for jid in (key.partition(b"}:job:")[2] for key in keys):
                by_shard[self._shard_of(jid)].append(jid)
            for shard in by_shard.keys() - {0}:
                yield from self._drop_at(self._places[shard], by_shard[shard])

    def _drop_at(self, place: Namespace, jids: list[bytes]) -> Walk[None]:
        for at in range(0, len(jids), _PAGE):
            there: list[Parcel] = yield place, depart([b"home:" + jid for jid in jids[at : at + _PAGE]])
            older = [b"job:" + parcel.name.partition(b":")[2] for parcel in there if parcel.why == "home"]
            while older:
                parcels: list[Parcel] = yield place, depart(older)
                older = older[len(parcels) :]
                yield place, leave(self._found.number, parcels, now=self._clock())

    def end(self) -> Walk[None]:
        """End the pass in all shards, in the first one last: until then the same call goes on."""
        if self._is_first:
            yield from self._drop_older()
        moved, number, seq = self.moved, self._found.number, self._found.seq
        stay = moved.recurrences_stay + moved.limits_stay + moved.batches_stay + sum(moved.stay.values())
        found = yield from self._first(look())
        has_guests = moved.has_guests or stay > 0 or found.seq > seq
        for place in self._places[1:]:
            yield place, end(self._shards, number, has_guests, now=self._clock())
        ended = yield from self._first(end(self._shards, number, has_guests, found.seq, now=self._clock()))
        moved.has_guests = ended.shards.endswith("<")


def _key(name: bytes) -> str:
    return key_of(name.decode(errors="replace"))
