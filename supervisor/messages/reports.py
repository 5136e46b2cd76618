"""Packs what a running job reports, stores, streams and asks on `talk`. Runs in master, zygote and child."""

from struct import Struct
from typing import Final, NamedTuple

import orjson

from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.validation import STATE_BYTES, checked_progress
from supervisor.messages.outcomes import Verb, pack_outcome

#: Most results of parents that a child asks for at once.
MOST_RESULTS: Final = 64


class ProgressReport(NamedTuple):
    """How far a job is, from 0 to 1, and a short text."""

    fraction: float
    text: str


def pack_progress(token: int, progress: ProgressReport) -> bytes:
    return pack_outcome(Verb.PROGRESS, token, 0.0, orjson.dumps(tuple(progress)))


def unpack_progress(body: bytes) -> ProgressReport:
    """Raises ValueError or TypeError for anything that `pack_progress` does not make."""
    fraction, text = orjson.loads(body)
    return ProgressReport(*checked_progress(fraction, text))


_CHECKPOINT_HEAD: Final = Struct("<QB")  # number of the checkpoint, counted per child; length of the step's name


class Checkpoint(NamedTuple):
    """A job's state for its next start, as JSON; or the result of a step of this name."""

    number: int
    state: bytes
    step: str = ""


def pack_checkpoint(token: int, number: int, state: bytes, step: str = "") -> bytes:
    name = step.encode()
    return pack_outcome(Verb.CHECKPOINT, token, 0.0, _CHECKPOINT_HEAD.pack(number, len(name)) + name + state)


def unpack_checkpoint(body: bytes) -> Checkpoint:
    """Raises ValueError for anything that `pack_checkpoint` does not make."""
    if len(body) <= _CHECKPOINT_HEAD.size:
        raise ValueError(f"not a checkpoint: {body!r}")
    number, name_bytes = _CHECKPOINT_HEAD.unpack_from(body)
    state_at = _CHECKPOINT_HEAD.size + name_bytes
    step, state = body[_CHECKPOINT_HEAD.size : state_at].decode(), body[state_at:]
    if len(state) > STATE_BYTES:
        raise ValueError(f"a checkpoint of {len(state)} bytes, the limit is {STATE_BYTES}")
    orjson.loads(state)
    return Checkpoint(number, state, step and checked_name("step", step))


_WANTED: Final = Struct("<QII")


class ResultsWanted(NamedTuple):
    """A job wants what its parents have left, from this one on, and at most `most`."""

    number: int  # of the question, counted per child
    first: int
    most: int


def pack_wanted(token: int, wanted: ResultsWanted) -> bytes:
    return pack_outcome(Verb.RESULTS, token, 0.0, _WANTED.pack(*wanted))


def unpack_wanted(body: bytes) -> ResultsWanted:
    """Raises ValueError for anything that `pack_wanted` does not make."""
    if len(body) != _WANTED.size:
        raise ValueError(f"no question for results: {body[:100]!r}")
    wanted = ResultsWanted(*_WANTED.unpack(body))
    if not 1 <= wanted.most <= MOST_RESULTS:
        raise ValueError(f"a question for {wanted.most} results, the limit is {MOST_RESULTS}")
    return wanted


#: A handler waits in `job.stream` before it sends more than this ahead of the last `Taken`.
MOST_CHUNKS: Final = 64
MOST_CHUNK_BYTES: Final = 128 * 1024


def pack_chunk(token: int, chunk: bytes) -> bytes:
    return pack_outcome(Verb.CHUNK, token, 0.0, chunk)
