"""Packs how a job ended, as its child tells the master on `talk`. Runs in master, zygote and child."""

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

import orjson

from supervisor.messages.packets import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS, escaped

MAX_DELAY_S: Final = 1e9
MAX_RESULT_BYTES: Final = 64 * 1024


class Verb(IntEnum):
    """First byte of a packet on `talk`, from the child."""

    READY = 0
    COMPLETED = 1  # body: the result as JSON, or nothing
    RETRIED = 2  # body: Trouble as JSON
    FAILED = 3  # body: Trouble as JSON
    INTERRUPTED = 4  # the notice's exception left the handler
    FOLLOWED = 5  # completed, with something that follows; body: a Completion, here or in the memfd beside the packet
    PROGRESS = 6  # no outcome; body: ProgressReport as JSON
    #: No outcome: a MemoryError under our limit has left the handler; body: Trouble as JSON; the child exits now.
    OVERFLOWED = 7
    CHECKPOINT = 8  # no outcome; body: a Checkpoint to store; the handler waits for `Stored`
    MISFIT = 9  # the data do not fit the parameters, and the handler was not called; body: Trouble as JSON
    HEARD = 10  # no outcome: a job that runs beside others was interrupted, so it alone is to blame if it does not end
    CHUNK = 11  # no outcome; body: a chunk as `engine/model/chunks.py` packs it; `Taken` follows
    SUSPENDED = 12  # the handler waits for a signal or a time, and starts again then; body: Suspension as JSON
    RESULTS = 13  # no outcome: the handler waits for results of parents (`ResultsPage`); body: ResultsWanted


_OUTCOME_HEAD: Final = Struct("<BQQQQ")  # verb, token, run time in µs, processor time in µs, bytes


class Outcome(NamedTuple):
    """How a job ended, as its child reports it. `cpu_s`, `max_rss_bytes`: used since the fork by the child and by the
    processes that it has waited for.
    """

    verb: int
    token: int
    run_s: float
    body: bytes
    cpu_s: float = 0.0
    max_rss_bytes: int = 0


class Trouble(NamedTuple):
    """Why a handler did not complete, in an outcome's body."""

    group: str | None
    message: str
    traceback: str | None = None
    delay_s: float | None = None


def pack_outcome(
    verb: int, token: int, run_s: float, body: bytes = b"", cpu_s: float = 0.0, max_rss_bytes: int = 0
) -> bytes:
    return _OUTCOME_HEAD.pack(verb, token, int(run_s * 1e6), int(cpu_s * 1e6), max_rss_bytes) + body


def pack_ready(cpu_s: float = 0.0) -> bytes:
    """The child is ready for jobs. `cpu_s`: processor time that it took to get ready."""
    return pack_outcome(Verb.READY, 0, 0.0, b"", cpu_s)


def unpack_outcome(packet: bytes) -> Outcome:
    """Raises ValueError for a packet that is too short. The caller checks the body."""
    if len(packet) < _OUTCOME_HEAD.size:
        raise ValueError(f"not an outcome: {packet!r}")
    verb, token, run_us, cpu_us, max_rss_bytes = _OUTCOME_HEAD.unpack_from(packet)
    return Outcome(verb, token, run_us / 1e6, packet[_OUTCOME_HEAD.size :], cpu_us / 1e6, max_rss_bytes)


def pack_trouble(trouble: Trouble) -> bytes:
    traceback = trouble.traceback and escaped(trouble.traceback[-MAX_TRACEBACK_CHARS:])
    group = trouble.group and escaped(trouble.group)
    return orjson.dumps((group, escaped(trouble.message[:MAX_MESSAGE_CHARS]), traceback, trouble.delay_s))


def unpack_trouble(body: bytes) -> Trouble:
    """Raises ValueError or TypeError for anything that `pack_trouble` does not make: children may run hostile code."""
    group, message, traceback, delay_s = orjson.loads(body)
    said = all(text is None or type(text) is str for text in (group, traceback)) and type(message) is str
    if not said or (delay_s is not None and (type(delay_s) not in (int, float) or not 0 <= delay_s <= MAX_DELAY_S)):
        raise ValueError(f"not the description of a failure: {body[:100]!r}")
    return Trouble(group, message, traceback, delay_s)


class Suspension(NamedTuple):
    """The signal that a job waits for, and for how long at the most. None: without an end."""

    name: str
    timeout_s: float | None


def pack_suspension(suspension: Suspension) -> bytes:
    return orjson.dumps(tuple(suspension))


def unpack_suspension(body: bytes) -> Suspension:
    """Raises ValueError or TypeError for anything that `pack_suspension` does not make. The outcome checks the rest."""
    return Suspension(*orjson.loads(body))
