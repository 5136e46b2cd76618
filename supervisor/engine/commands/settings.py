"""Builds the commands about the settings of a namespace. Runs in every process that speaks to Redis.

Must not do I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from supervisor.engine.commands.command import Command, checked_by, checked_queues, now_ms, parse_by, parse_fields
from supervisor.engine.commands.routes import Asking, home, repeated
from supervisor.engine.model import scripts
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.keys import checked_name

#: Options by which one shard would count jobs without knowing those of the others.
_OF_ONE_SHARD: Final = frozenset({"max-concurrency"})


def configure(
    option: str, queue: str | None, value: str | None, *, by: str | None = None, now: float | None = None
) -> Command[bool]:
    """Set an option, of one queue or of all, to a value from checked_value; None unsets it. Answers whether it changed.

    `by` names who sets it.
    """
    name = "" if queue is None else checked_name("queue", queue)
    args = now_ms(now), option, name, value or "", checked_by(by)

    def ask(command: Command[bool], shards: int) -> Asking[bool]:
        if option in _OF_ONE_SHARD and value is not None:
            raise LeaseholdError(
                f"{option} cannot count jobs in several shards, of which this namespace has {shards}: put them with"
                " limit=, which one shard counts"
            )
        return repeated(command, shards)

    return Command(scripts.CONFIGURE, args, bool, route=ask)


def read() -> Command[dict[str, str]]:
    """Read all settings as they are stored: `<option>` and `<option>-<queue>`."""
    return Command(scripts.SETTINGS, (), _parse_settings, route=home)


def setter(option: str) -> Command[tuple[str | None, float | None]]:
    """Read who set an option, and when in unix seconds; None for what is unknown."""
    name = f"by:{option}".encode()
    return Command(
        scripts.SETTINGS, (), lambda flat: parse_by(dict(zip(flat[::2], flat[1::2], strict=True)).get(name)), route=home
    )


def _parse_settings(flat: Sequence[bytes]) -> dict[str, str]:
    return {name: value for name, value in parse_fields(flat).items() if not name.startswith("by:")}


@dataclass(frozen=True, slots=True)
class Timing:
    """The shortest heartbeat of some queues, their longest grace and their shortest grace, in seconds.

    Of the namespace: how many replicas must acknowledge what is durable, and within which time.
    """

    heartbeat_s: float
    grace_s: float
    shortest_grace_s: float
    acknowledge_timeout_s: float
    acknowledge: int


def timing(queues: Sequence[str]) -> Command[Timing]:
    """Read the heartbeat and grace of these queues, and what replicas must acknowledge, from the configuration."""
    return Command(scripts.TIMING, checked_queues(queues), _parse_timing, route=home)


def _parse_timing(reply: list[int]) -> Timing:
    heartbeat_ms, grace_ms, shortest_grace_ms, timeout_ms, acknowledge = reply
    return Timing(heartbeat_ms / 1000, grace_ms / 1000, shortest_grace_ms / 1000, timeout_ms / 1000, acknowledge)
