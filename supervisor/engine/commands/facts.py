"""Builds the query for the facts that tell why a job or a queue stands where it does, and parses its reply.

Runs in applications and commands. Must not conclude anything from them: engine/why does.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from supervisor.engine.commands.audit import Act, act_of
from supervisor.engine.commands.command import Command, now_ms, parse_by
from supervisor.engine.commands.job_queries import parse_row
from supervisor.engine.commands.routes import everywhere, to
from supervisor.engine.model import scripts
from supervisor.engine.model.jobs import JobRecord
from supervisor.engine.model.keys import checked_name

#: Facts that are `<ms>:<who>`, and may contain any bytes.
ACTORS: Final = ("paused", "lane_pause", "batch_pause", "limit_by")


@dataclass(frozen=True, slots=True)
class Facts:
    """The answer of Redis. `told` has the facts of lua/why.lua that are not absent; its times are in ms."""

    jid: str | None
    job: JobRecord | None
    told: dict[str, Any]

    @property
    def now_unix(self) -> float:
        return float(self.told["now"] / 1000)

    @property
    def queue(self) -> str:
        return str(self.told["queue"])

    def count(self, name: str) -> int:
        """Return a number, 0 if it is absent."""
        return int(self.told.get(name, 0))

    def unix(self, name: str) -> float | None:
        """Return a time in unix seconds."""
        return self.told[name] / 1000 if name in self.told else None

    @property
    def deletions(self) -> list[Act]:
        """Return the newest deletions of many jobs among which a job without a record may have been."""
        return [act_of(line) for line in self.told.get("deletions", ())]

    def actor(self, name: str) -> tuple[str | None, float | None]:
        """Return who set something and when, as far as it is known."""
        return parse_by(self.told.get(name))


def of_job(jid: str, *, now: float | None = None) -> Command[Facts]:
    """Read the facts about a job, also if there is none."""
    args = now_ms(now), checked_name("jid", jid), ""
    route = to(jid, lambda found: found.job is None)
    return Command(scripts.WHY, args, lambda reply: _parse(jid, reply), route=route)


def of_queue(queue: str, *, now: float | None = None) -> Command[Facts]:
    """Read the facts about a queue."""
    args = now_ms(now), "", checked_name("queue", queue)
    return Command(scripts.WHY, args, lambda reply: _parse(None, reply), route=everywhere(_of_all))


#: Numbers of jobs of a queue, and of its late recurrences.
_SIZES: Final = (
    "front", "waiting", "in_paused_lanes", "running", "stalled", "scheduled", "due", "depends", "parked", "freed",
    "apart", "entries", "late",
)  # fmt: skip


def _of_all(answers: list[Facts]) -> Facts:
    """Return the numbers of all shards, and the other facts of the one that has most jobs of the queue."""
    fullest = max(answers, key=lambda found: sum(map(found.count, _SIZES)))
    sums = {name: sum(found.count(name) for found in answers) for name in _SIZES}
    return replace(fullest, told=fullest.told | {name: number for name, number in sums.items() if number})


def _parse(jid: str | None, reply: list[Any]) -> Facts:
    row, *pairs = reply
    told = {name.decode(): value for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
    return Facts(jid, parse_row(row) if row else None, {name: _text(name, value) for name, value in told.items()})


def _text(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_text(name, each) for each in value]
    return value.decode(errors="replace") if isinstance(value, bytes) and name not in ACTORS else value
