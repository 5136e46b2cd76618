"""Drives the shards of a namespace by a raw connection, and compares what they hold together with one shard."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hiredis
import redis

from supervisor.engine.commands.check import Check
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.resharding import MovedJobs, move
from supervisor.engine.commands.steps import Walk
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.shards import shard_of
from tests.engine.invariants import Snapshot, left_over, misplaced, read_namespace

NOW = 100_000_000.0
#: Each shard has these of its own.
_OWN = {"config", "tracked", "tags", "workers", "seq", "token", "queues", "idle", "quiet", "options", "declared",
        "groups", "resharding"}  # fmt: skip
_OWN_KINDS = {"lanes", "bell", "mail", "throttled", "worker", "skills", "shapes", "recent", "course", "bins", "stats"}
#: Their members are counted over all shards.
_SUMS = {"laned", "tag-counts"}


def _answer(connection: Any, words: tuple[Any, ...]) -> Any:
    connection.send_packed_command([hiredis.pack_command(words)])
    return connection.read_response()


def names_of(namespace: str, shards: int) -> list[str]:
    """Return the hash tags of all shards, for read_namespace."""
    return [namespace, *(f"{namespace}#{shard}" for shard in range(1, shards))]


@dataclass
class Shards:
    """The shards of a namespace, and a clock that stands still."""

    redis: Any
    namespace: str
    number: int = 4
    now: float = NOW

    def place(self, shard: int = 0) -> Namespace:
        return Namespace(self.namespace, shard, self.number)

    def one(self) -> Namespace:
        """Return the first shard as a caller sees it that knows of no others."""
        return Namespace(self.namespace)

    def run(self, place: Namespace, command: Command[Any]) -> Any:
        """Run a command in one place. Raises redis.ResponseError."""
        connection = self.redis.connection_pool.get_connection()
        try:
            try:
                return command.parse(_answer(connection, command.wire(*place.keys)))
            except redis.exceptions.NoScriptError:
                return command.parse(_answer(connection, command.wire_with_script(*place.keys)))
        finally:
            self.redis.connection_pool.release(connection)

    def clock(self) -> float:
        return self.now

    def drive(self, walk: Walk[Any], between: Callable[[int], object] = lambda step: None) -> Any:
        """Run a walk to its end. `between` is called before each command with its number."""
        answer, step = None, 0
        try:
            while True:
                place, command = walk.send(answer)
                between(step)
                answer, step = self.run(place, command), step + 1
        except StopIteration as end:
            return end.value

    def reshard(self, between: Callable[[int], object] = lambda step: None) -> MovedJobs:
        moved = self.drive(self.walk(), between)
        assert isinstance(moved, MovedJobs)
        return moved

    def walk(self) -> Walk[MovedJobs]:
        return move(self.one(), self.number, self.clock)

    def read(self) -> list[Snapshot]:
        return [read_namespace(self.redis, name) for name in names_of(self.namespace, self.number)]

    def marks(self) -> list[bytes | None]:
        return [self.redis.get(f"{{{name}}}:config") for name in names_of(self.namespace, self.number)]

    def violations(self) -> list[Any]:
        """Return what checks of all shards find, and what lies wrong by the reading of the tests."""
        found: list[Any] = []
        for shard, name in enumerate(names_of(self.namespace, self.number)):
            place = self.place(shard)
            check = Check(place.prefix, False, self.clock)
            for command in check.steps():
                check.answered(self.run(place, command))
            snapshot = read_namespace(self.redis, name)
            found += [*check.violations, *misplaced(snapshot), *left_over(snapshot)]
            found += [f"{key} is left of a move" for key in snapshot if key.startswith("arriving")]
        return found

    def jobs(self) -> dict[str, int]:
        """Return the shard of each job. Fails if one lies in two, or in one that is neither its own nor the first."""
        shards: dict[str, int] = {}
        for shard, found in enumerate(self.read()):
            for key in found:
                if key.startswith("job:"):
                    assert key[4:] not in shards, f"{key} is doubled"
                    shards[key[4:]] = shard
        assert {jid: shard for jid, shard in shards.items() if shard not in (0, shard_of(jid, self.number))} == {}
        return shards


def account(snapshots: list[Snapshot]) -> dict[Any, Any]:
    """Return all that some shards hold together, whichever has it. Fails if two of them hold the same thing."""
    told: dict[Any, Any] = {}
    for found in snapshots:
        for key, value in found.items():
            kind = key.partition(":")[0]
            is_index = key.endswith((":lanes", ":klasses")) or (kind == "apart" and key.count("\n") < 2)
            if key in _OWN or kind in _OWN_KINDS or is_index:
                continue
            if kind in _SUMS:
                for member, number in value.items() if isinstance(value, dict) else [("", int(value))]:
                    told[key, member] = told.get((key, member), 0) + number
            elif _is_shared(key):
                for member, score in value.items():
                    assert (key, member) not in told, f"{member} is in {key!r} of two shards"
                    told[key, member] = score
            else:
                assert key not in told, f"{key} is in two shards"
                told[key] = (value, found.payloads.get(key[4:])) if kind == "job" else value
    return told


def _is_shared(key: str) -> bool:
    """Return whether several jobs share a sorted set or hash."""
    kind, _, rest = key.partition(":")
    if kind == "limited" and rest.count("\n") < 2:
        return False
    return kind in {
        "queue", "lane", "limited", "apart", "unique", "expiring", "complete", "failed", "tag",
        "tracked-jobs", "cancelled", "cancelled-by", "dropped", "limits", "held", "holders",
    }  # fmt: skip
