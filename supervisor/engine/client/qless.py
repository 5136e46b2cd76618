"""Reads and removes the jobs of a qless or reqless. Runs in commands.

Owns its connections to that server. Removes what `remove` and `forget` name there, and writes nothing but the name of
the move that is under way.
"""

import math
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import redis as redis_py

from supervisor.engine.client.connection import ServerAddress, clause, unreachable
from supervisor.engine.client.pools import pool_of
from supervisor.engine.commands import qless
from supervisor.engine.commands.qless import OldJob, OldRecurrence
from supervisor.engine.model.bounds import DATA_BYTES
from supervisor.engine.model.errors import LeaseholdError, StoreUnavailable
from supervisor.engine.model.new_jobs import MOST_PARENTS
from supervisor.engine.transport.account import without_arguments

_LOST: Final = (redis_py.ConnectionError, redis_py.TimeoutError, OSError)
#: Jobs of one step, and bytes of their records: one job at least.
PAGE: Final = 100
_PAGE_BYTES: Final = 8 * 1024 * 1024
#: Fields of a record that may be large.
_LARGE: Final = ("data", "failure", "history", "tags")
#: qless's own settings, where none are set.
_HEARTBEAT_S: Final = 60.0
_GRACE: Final = b"10"
_MOST_DIGITS: Final = 12
_SHOWN_QUEUES: Final = 100
_NO_HASH: Final = "its record is no hash"
#: The name of the move that is under way, and when its last step was. No other program writes this key.
_MOVER: Final = "ql:leasehold:mover"
#: A move without a step for so long counts as killed.
_STALE_S: Final = 10.0
RIGHTS: Final = "~ql:* +@read +@transaction +time +del +zrem +lrem +srem +zincrby +zremrangebyscore"


@dataclass(frozen=True, slots=True)
class Left:
    """A job that stays there, and why."""

    queue: str
    jid: str
    why: str


@dataclass(frozen=True, slots=True)
class OldQueue:
    """A queue of qless. `klasses`, `problems`: how many of the `looked_at` jobs have each."""

    queue: str
    counts: Mapping[str, int]  # waiting, running, stalled, scheduled, depends, throttled, recurring
    paused: bool
    looked_at: int
    klasses: Mapping[str, int]
    problems: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class OldSystem:
    """All of a qless. `living`: why nothing can be moved now, a sentence for each worker."""

    queues: Sequence[OldQueue]
    number_of_queues: int
    failed: Mapping[str, int]  # by group
    failed_problems: Mapping[str, int]  # as those of a queue, of the first failed jobs
    complete: int
    living: Sequence[str]


class JobsChanged(LeaseholdError):
    """Jobs changed there while they were moved, and none of them was removed."""


class OldPlace(NamedTuple):
    """Where jobs lie there. `queue` is None for the failed jobs of a group."""

    key: bytes
    queue: bytes | None
    kind: str


class Qless:
    """The connection to a qless. Raises StoreUnavailable."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address.shown
        self._pool = pool_of(redis_py, address.url, "ql:queues")
        self._redis: Any = redis_py.Redis(connection_pool=self._pool)
        self._name = secrets.token_hex(8)

    def close(self) -> None:
        self._pool.disconnect()

    @contextmanager
    def spoken(self, advice: str = "") -> Iterator[None]:
        """Turn errors of the connection into ours. `advice` is added to that of a lost one."""
        try:
            yield
        except redis_py.AuthenticationError as error:
            raise unreachable(self._address, error) from error
        except _LOST as error:
            raise StoreUnavailable(f"cannot reach Redis at {self._address}: {clause(error)}{advice}") from error
        except redis_py.ResponseError as error:
            raise StoreUnavailable(f"Redis at {self._address} refused a command: {without_arguments(error)}") from error

    def pipeline(self, *, atomic: bool = False) -> Any:
        return self._redis.pipeline(transaction=atomic)

    def commit(self, pipe: Any) -> None:
        """Run the queued commands. A key of another type stops none of them.

        Raises JobsChanged if a watched key has changed: none of them was run then.
        """
        try:
            _values(pipe)
        except redis_py.WatchError as error:
            lost = error.__cause__ or error.__context__
            if isinstance(lost, _LOST):  # redis-py says so of a lost connection, too. The commands may have been run
                raise lost from None
            raise JobsChanged(
                "jobs changed there while they were moved: a worker, a producer or another move still runs. Stop it,"
                " and call this again: it goes on where it was"
            ) from None

    def queues(self) -> list[bytes]:
        """Return the names of all queues, in the order in which qless has them."""
        names: list[bytes] = self._redis.zrange("ql:queues", 0, -1)
        return names

    def groups(self) -> list[bytes]:
        """Return the groups of failed jobs."""
        return sorted(self._redis.smembers("ql:failures"))

    def failed(self, groups: Sequence[bytes]) -> list[int]:
        """Return how many failed jobs each of these groups has."""
        with self.pipeline() as pipe:
            for group in groups:
                pipe.llen(b"ql:f:" + group)
            numbers: list[int] = pipe.execute()
        return numbers

    def is_paused(self, queue: bytes) -> bool:
        return bool(self._redis.sismember("ql:paused_queues", queue))

    def most_running(self, queue: bytes) -> int:
        """Return how many jobs of a queue may run at once; 0: any number."""
        with self.pipeline() as pipe:
            pipe.hget(b"ql:th:ql:q:" + queue, "maximum")
            pipe.hget("ql:config", queue + b"-max-concurrency")
            found = pipe.execute()
        return next((_maximum(each) for each in found if each is not None and each.isdigit()), 0)

    def most_throttled(self, name: str) -> int:
        """Return the maximum of a throttle without an end; 0: there is none."""
        with self.pipeline() as pipe:
            pipe.hget(f"ql:th:{name}", "maximum")
            pipe.pttl(f"ql:th:{name}")
            maximum, ttl = pipe.execute()
        return _maximum(maximum) if maximum is not None and maximum.isdigit() and ttl < 0 else 0

    def now_unix(self) -> float:
        seconds, micros = self._redis.time()
        return float(seconds + micros / 1_000_000)

    def living(self, queues: Sequence[bytes]) -> list[str]:
        """Return a sentence for each of the first workers that may still take jobs, or hold one of these queues."""
        now_unix = self.now_unix()
        settings = self._redis.hgetall("ql:config")
        beats = [value for name, value in settings.items() if name == b"heartbeat" or name.endswith(b"-heartbeat")]
        quiet_s = max([_HEARTBEAT_S, *map(_seconds, beats)]) + _seconds(settings.get(b"grace-period", _GRACE))
        with self.pipeline() as pipe:
            pipe.zrangebyscore("ql:workers", f"({now_unix - quiet_s}", "+inf", 0, 10, withscores=True)
            for queue in queues:
                pipe.zrangebyscore(key_of(queue, "locks"), f"({now_unix}", "+inf", 0, 1, withscores=True)
            seen, *held = pipe.execute()
        said = [
            f"worker {shown(name)} was seen {max(now_unix - at, 0):.0f} s ago: stop it. It counts as gone"
            f" {quiet_s:.0f} s after it was seen last"
            for name, at in seen
        ]
        for queue, locks in zip(queues, held, strict=True):
            said += [
                f"job {shown(jid)} of queue {shown(queue)} is held by a worker for another {until - now_unix:.0f} s"
                for jid, until in locks
            ]
        return said

    def page(self, place: OldPlace, left: int, count: int = PAGE) -> list[tuple[bytes, float]]:
        """Return the next jids of a place behind those that stay, each with its score."""
        found: list[tuple[bytes, float]]
        if place.queue is None:
            newest_first = self._redis.lrange(place.key, -left - count, -left - 1)
            found = [(jid, 0.0) for jid in reversed(newest_first)]
        else:
            is_last_first = qless.PLACES.get(place.kind, False)
            found = self._redis.zrange(place.key, left, left + count - 1, desc=is_last_first, withscores=True)
        key_of_record = recurrence_key if place.kind == "recur" else job_key
        return found[: self._number_that_fits([key_of_record(jid) for jid, _ in found])]

    def _number_that_fits(self, keys: Sequence[bytes]) -> int:
        with self.pipeline() as pipe:
            for key in keys:
                _measure(pipe, key)
            sizes = _by(len(_LARGE), _values(pipe))
        kept = total = 0
        for each in sizes:
            total += sum(size or 0 for size in each)
            if kept and total > _PAGE_BYTES:
                break
            kept += 1
        return kept

    def jobs(self, place: OldPlace, page: Sequence[tuple[bytes, float]]) -> list[OldJob | Left]:
        """Read the jobs of a page."""
        with self.pipeline() as pipe:
            for jid, _ in page:
                _measure(pipe, job_key(jid))
                pipe.scard(job_key(jid, "-dependencies"))
                pipe.lrange(job_key(jid, "-history"), -1, -1)
                pipe.scard(job_key(jid, "-dependents"))
            heads = _by(len(_LARGE) + 3, _values(pipe))
            self._read_on([(jid, head[-2]) for (jid, _), head in zip(page, heads, strict=True)])
            for (jid, _), (*sizes, n_parents, _, _) in zip(page, heads, strict=True):
                _read_fields(pipe, job_key(jid), qless.OF_JOB, sizes)
                pipe.srandmember(job_key(jid, "-dependencies"), min(n_parents or 0, MOST_PARENTS + 1))
            bodies = _values(pipe)
        return [
            self._job(place, jid, score, head, values, parents)
            for (jid, score), head, values, parents in zip(page, heads, bodies[::2], bodies[1::2], strict=True)
        ]

    def _read_on(self, histories: Sequence[tuple[bytes, list[bytes] | None]]) -> None:
        """Add the older entries to histories of which the last one is read, as many as lines here can hold.

        How large an entry is cannot be asked, so the slices are of 2, 4, 8, … entries.
        """
        read = 1
        while read < qless.MOST_ENTRIES:
            longer = [
                (jid, entries)
                for jid, entries in histories
                if entries is not None and len(entries) == read and sum(map(len, entries)) < qless.HISTORY_BYTES
            ]
            with self.pipeline() as pipe:
                for jid, _ in longer:
                    pipe.lrange(job_key(jid, "-history"), -2 * read - 1, -read - 1)
                for (_, entries), older in zip(longer, _values(pipe), strict=True):
                    entries[:0] = older or ()
            read = 2 * read + 1

    def _job(
        self, place: OldPlace, jid: bytes, score: float, head: Sequence[Any], values: Any, parents: Any
    ) -> OldJob | Left:
        *sizes, n_parents, history, n_children = head
        fields = dict(zip(qless.OF_JOB, values or [None] * len(qless.OF_JOB), strict=True))
        queue = place.queue if place.queue is not None else fields["queue"] or b""
        try:
            if values is None:
                raise ValueError(_NO_HASH)
            if n_parents is None or history is None or n_children is None:
                raise ValueError("its dependencies or dependents are no set, or its history is no list")
            if fields["state"] is None:
                raise ValueError("its record is gone")
            _check_sizes(sizes)
            if (fields["state"] == b"failed") != (place.queue is None):
                raise ValueError(f"its record says that it is {shown(fields['state'])}")
            due_unix = score if place.kind == "scheduled" else None
            return qless.read_job(jid, qless.text("queue", queue), fields, due_unix, parents or (), history)
        except (ValueError, TypeError) as error:
            return Left(shown(queue), shown(jid), str(error))

    def recurrences(self, queue: bytes, page: Sequence[tuple[bytes, float]]) -> list[OldRecurrence | Left]:
        """Read the recurring jobs of a page."""
        now_unix = self.now_unix()
        with self.pipeline() as pipe:
            for jid, _ in page:
                _measure(pipe, recurrence_key(jid))
            measured = _by(len(_LARGE), _values(pipe))
            for (jid, _), sizes in zip(page, measured, strict=True):
                _read_fields(pipe, recurrence_key(jid), qless.OF_RECURRENCE, sizes)
            rows = _values(pipe)
        found: list[OldRecurrence | Left] = []
        for (jid, next_unix), sizes, values in zip(page, measured, rows, strict=True):
            try:
                if values is None:
                    raise ValueError(_NO_HASH)
                _check_sizes(sizes)
                fields = dict(zip(qless.OF_RECURRENCE, values, strict=True))
                found.append(qless.read_recurrence(jid, qless.text("queue", queue), fields, next_unix, now_unix))
            except (ValueError, TypeError) as error:
                found.append(Left(shown(queue), shown(jid), str(error)))
        return found

    def children(self, jobs: Sequence[OldJob]) -> list[bytes]:
        """Return jobs that wait for these, up to 1,000 for each."""
        with self.pipeline() as pipe:
            for job in jobs:
                pipe.srandmember(job_key(job.jid.encode(), "-dependents"), MOST_PARENTS)
            return [jid for found in _values(pipe) for jid in found or ()]

    def depending(self, jids: Sequence[bytes]) -> list[tuple[OldPlace, list[tuple[bytes, float]]]]:
        """Return those of these jobs that wait for others, as a page for each queue."""
        with self.pipeline() as pipe:
            for jid in jids:
                pipe.hmget(job_key(jid), "state", "queue")
            rows = _values(pipe)
        pages: dict[bytes, list[tuple[bytes, float]]] = {}
        for jid, row in zip(jids, rows, strict=True):
            state, queue = row or (None, None)
            if state == b"depends" and queue:
                pages.setdefault(queue, []).append((jid, 0.0))
        return [
            (
                OldPlace(key_of(queue, "depends"), queue, "depends"),
                page[: self._number_that_fits([job_key(j) for j, _ in page])],
            )
            for queue, page in pages.items()
        ]

    def not_ended(self, jids: Iterable[str]) -> set[str]:
        """Return which of these jobs are there, and not complete."""
        names = sorted(set(jids))
        with self.pipeline() as pipe:
            for jid in names:
                pipe.type(job_key(jid.encode()))
                pipe.hget(job_key(jid.encode()), "state")
            found = _values(pipe)
        return {
            jid
            for jid, kind, state in zip(names, found[::2], found[1::2], strict=True)
            if kind != b"none" and state != b"complete"
        }

    def exist(self, keys: Sequence[bytes]) -> list[bool]:
        """Return for each of these keys whether there is one."""
        with self.pipeline() as pipe:
            for key in keys:
                pipe.exists(key)
            return list(map(bool, pipe.execute()))

    def look(self) -> OldSystem:
        """Look at all, and change nothing."""
        queues, groups = self.queues(), self.groups()
        failed: list[OldJob | Left] = []
        for place in (group_place(group) for group in groups[:PAGE]):
            failed += self.jobs(place, self.page(place, 0)) if len(failed) < PAGE else ()
        return OldSystem(
            queues=[self._look_at(queue) for queue in queues[:_SHOWN_QUEUES]],
            number_of_queues=len(queues),
            failed={shown(group): number for group, number in zip(groups, self.failed(groups), strict=True)},
            failed_problems=_problems(failed),
            complete=self._redis.zcard("ql:completed"),
            living=self.living(queues),
        )

    def _look_at(self, queue: bytes) -> OldQueue:
        now_unix = self.now_unix()
        kinds = ("work", "scheduled", "depends", "throttled", "recur")
        with self.pipeline() as pipe:
            pipe.zcount(key_of(queue, "locks"), f"({now_unix}", "+inf")
            pipe.zcount(key_of(queue, "locks"), "-inf", now_unix)
            for kind in kinds:
                pipe.zcard(key_of(queue, kind))
            numbers = pipe.execute()
        found: list[OldJob | OldRecurrence | Left] = []
        for place in places(queue, "depends"):
            found += self.jobs(place, self.page(place, 0)) if len(found) < PAGE else ()
        found += self.recurrences(queue, self.page(OldPlace(key_of(queue, "recur"), queue, "recur"), 0))
        names = ("running", "stalled", "waiting", *kinds[1:4], "recurring")
        return OldQueue(
            queue=shown(queue),
            counts=dict(zip(names, numbers, strict=True)),
            paused=self.is_paused(queue),
            looked_at=len(found),
            klasses=dict(Counter(each.klass for each in found if not isinstance(each, Left))),
            problems=_problems(found),
        )

    def remove(self, pipe: Any, place: OldPlace, job: OldJob) -> None:
        """Queue the commands that remove a job from all places and indexes there."""
        jid, name = job.jid.encode(), job.jid
        pipe.delete(*keys_of_job(jid))
        for kind in (*qless.PLACES, "depends"):
            pipe.zrem(key_of(job.queue.encode(), kind), name)
        if place.queue is None:
            pipe.lrem(place.key, -1, name)  # from the end, where the oldest are
        for tag in job.tags:
            pipe.zrem(f"ql:t:{tag}", name)
            pipe.zincrby("ql:tags", -1, tag)
        if job.tags:
            pipe.zremrangebyscore("ql:tags", "-inf", 0)
        for throttle in job.throttles:
            pipe.zrem(f"ql:th:{throttle}-locks", name)
            pipe.zrem(f"ql:th:{throttle}-pending", name)
        if job.worker:
            pipe.zrem(f"ql:w:{job.worker}:jobs", name)
        pipe.zrem("ql:tracked", name)

    def tracked(self, jobs: Sequence[OldJob]) -> list[str]:
        """Return the jids of those jobs that are tracked."""
        with self.pipeline() as pipe:
            for job in jobs:
                pipe.zscore("ql:tracked", job.jid)
            return [job.jid for job, score in zip(jobs, pipe.execute(), strict=True) if score is not None]

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Be the only move. Raises StoreUnavailable if this account may not remove, LeaseholdError if another moves."""
        self._begin()
        try:
            yield
        finally:
            with suppress(*_LOST, redis_py.ResponseError):  # then it ends by its time
                self._redis.zrem(_MOVER, self._name)

    def _begin(self) -> None:
        try:
            with self.pipeline(atomic=True) as pipe:
                pipe.watch(_MOVER)
                now_unix = self.now_unix()
                if pipe.zrangebyscore(_MOVER, now_unix - _STALE_S, now_unix + _STALE_S):
                    raise LeaseholdError(
                        f"another move is under way there, or was killed less than {_STALE_S:.0f} s ago: call this"
                        " again when it has ended"
                    )
                pipe.multi()
                pipe.lrem(_MOVER, -1, "")
                pipe.srem(_MOVER, "")
                pipe.zremrangebyscore(_MOVER, "-inf", "+inf")
                pipe.delete(_MOVER)
                self._sign(pipe, now_unix)
                self.commit(pipe)
        except redis_py.ResponseError as error:
            raise StoreUnavailable(
                f"no job can be removed from Redis at {self._address}, so nothing was put here: {clause(error)}. A move"
                f" needs a master, and an account with these rights: {RIGHTS}"
            ) from error

    @contextmanager
    def step(self, keys: Iterable[bytes]) -> Iterator[Any]:
        """Watch these keys, and that no other move begins. Raises LeaseholdError if one has begun."""
        with self.pipeline(atomic=True) as pipe:
            pipe.watch(_MOVER, *keys)
            if pipe.zscore(_MOVER, self._name) is None:
                raise LeaseholdError(
                    f"another move has begun there, for this one made no step within {_STALE_S:.0f} s: that one moves"
                    " all jobs"
                )
            yield pipe

    def begin_removal(self, pipe: Any) -> None:
        """Let the next commands of a step be run together. With them the move counts as alive."""
        now_unix = self.now_unix()
        pipe.multi()
        self._sign(pipe, now_unix)

    def _sign(self, pipe: Any, now_unix: float) -> None:
        pipe.zrem(_MOVER, self._name)
        pipe.zincrby(_MOVER, now_unix, self._name)

    def is_alone(self) -> bool:
        """Return whether this is still the only move. If so, no other begins within 10 s."""
        try:
            with self.step(()) as pipe:
                self.begin_removal(pipe)
                self.commit(pipe)
        except LeaseholdError:
            return False
        return True

    def forget_queue(self, queue: bytes) -> None:
        """Remove the name of a queue that has no jobs any more."""
        keys = [key_of(queue, kind) for kind in (*qless.PLACES, "depends", "recur")]
        self._forget(keys, ("ZREM", "ql:queues", queue), ("SREM", "ql:paused_queues", queue))

    def forget_group(self, group: bytes) -> None:
        """Remove the name of a group that has no jobs any more."""
        self._forget([b"ql:f:" + group], ("SREM", "ql:failures", group))

    def _forget(self, keys: Sequence[bytes], *commands: tuple[Any, ...]) -> None:
        with self.pipeline(atomic=True) as pipe:
            pipe.watch(*keys)
            if not pipe.exists(*keys):
                pipe.multi()
                for command in commands:
                    pipe.execute_command(*command)
                self.commit(pipe)


def places(queue: bytes, *more: str) -> list[OldPlace]:
    return [OldPlace(key_of(queue, kind), queue, kind) for kind in (*qless.PLACES, *more)]


def group_place(group: bytes) -> OldPlace:
    return OldPlace(b"ql:f:" + group, None, "failed")


def key_of(queue: bytes, kind: str) -> bytes:
    return b"ql:q:" + queue + f"-{kind}".encode()


def job_key(jid: bytes, more: str = "") -> bytes:
    return b"ql:j:" + jid + more.encode()


def keys_of_job(jid: bytes) -> list[bytes]:
    """Return the keys that are a job's own."""
    return [job_key(jid, more) for more in ("", "-history", "-dependencies", "-dependents")]


def recurrence_key(jid: bytes) -> bytes:
    return b"ql:r:" + jid


def _values(pipe: Any) -> list[Any]:
    """Return the replies of queued reads. None stands also for a key of another type, so that it stops no others."""
    found: list[Any] = pipe.execute(raise_on_error=False)
    for reply in found:
        if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
            raise reply
    return [None if isinstance(reply, Exception) else reply for reply in found]


def _by(count: int, replies: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the replies in rows of `count`."""
    return list(zip(*(replies[n::count] for n in range(count)), strict=True))


def _problems(found: Iterable[object]) -> dict[str, int]:
    """Return how many of these jobs would stay there for each reason."""
    return dict(Counter(each.why for each in found if isinstance(each, Left)))


def _measure(pipe: Any, key: bytes) -> None:
    """Queue the reads of the sizes of a record's large fields."""
    for name in _LARGE:
        pipe.hstrlen(key, name)


def _most_bytes(name: str) -> int:
    return DATA_BYTES if name == "data" else _PAGE_BYTES


def _read_fields(pipe: Any, key: bytes, names: Sequence[str], sizes: Sequence[int | None]) -> None:
    """Queue the read of a record. A field that is too large is not read, and counts as missing."""
    over = {name for name, size in zip(_LARGE, sizes, strict=True) if (size or 0) > _most_bytes(name)}
    pipe.hmget(key, *(name if name not in over else "none" for name in names))


def _check_sizes(sizes: Sequence[int]) -> None:
    """Raise ValueError if a field of a record is too large here. It was not read then."""
    for name, size in zip(_LARGE, sizes, strict=True):
        if size > _most_bytes(name):
            raise ValueError(f"its {name} has {size} bytes, of at most {_most_bytes(name)}")


def _maximum(digits: bytes) -> int:
    """Return how many jobs may run at once; 0: any number. A number that is too large for a limit here bounds none."""
    return int(digits) if len(digits) <= _MOST_DIGITS else 0


def _seconds(value: bytes) -> float:
    try:
        seconds = float(value)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def shown(name: bytes | None) -> str:
    return (name or b"").decode(errors="backslashreplace")
