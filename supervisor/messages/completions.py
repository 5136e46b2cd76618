"""Packs a job's result with the jobs that follow it: the body of an outcome. Runs in master, zygote and child."""

from struct import Struct
from typing import Any, Final, NamedTuple

import orjson

from supervisor.engine.model.new_jobs import MOST_FOLLOWERS

INLINE_COMPLETION_BYTES: Final = 128 * 1024
#: Upper bound of a completion with everything that follows it.
MAX_COMPLETION_BYTES: Final = 257 * 1024 * 1024
#: Upper bound of the head, which holds everything but the data. Decoded JSON takes many times its size.
MAX_HEAD_BYTES: Final = 16 * 1024 * 1024
#: Upper bound of the values in the head, counted before it is decoded: an empty object grows from 3 bytes to 72. Far
#: more than the largest legal head has.
MOST_HEAD_PARTS: Final = 1_000_000
_BETWEEN_PARTS: Final = (b"[", b"{", b",")


class Blob(NamedTuple):
    """The data of a job that is to be put. `kind`: json, bytes, or empty where the data stays unchanged."""

    kind: str
    raw: bytes


class Stage(NamedTuple):
    """The queue in which a completed job goes on."""

    queue: str
    delay_s: float
    depends: list[str]
    data: Blob


class Follower(NamedTuple):
    """A job to put in the same step as the completion."""

    queue: str
    klass: str
    options: dict[str, Any]
    data: Blob


class Completion(NamedTuple):
    """A completed job's result as JSON or empty, and the jobs that follow."""

    result: bytes
    next: Stage | None
    then: list[Follower]


_COMPLETION_HEAD: Final = Struct("<I")  # length of the head; the result and all data lie behind the head


def pack_completion(completion: Completion) -> list[bytes]:
    """Return the parts of the body, to be sent one after another."""
    blobs = [each.data for each in completion.then]
    following = None
    if completion.next is not None:
        queue, delay_s, depends, data = completion.next
        following = (queue, delay_s, depends, data.kind, len(data.raw))
        blobs.insert(0, data)
    then = [(one.queue, one.klass, one.options, one.data.kind, len(one.data.raw)) for one in completion.then]
    head = orjson.dumps((len(completion.result), following, then))
    return [_COMPLETION_HEAD.pack(len(head)), head, completion.result, *(blob.raw for blob in blobs)]


def unpack_completion(body: bytes) -> Completion:
    """Raises ValueError or TypeError for anything that `pack_completion` does not make. Names and options of the jobs
    are not checked here.
    """
    if len(body) < _COMPLETION_HEAD.size:
        raise ValueError(f"not a completion: {body!r}")
    head_bytes = _COMPLETION_HEAD.unpack_from(body)[0]
    if head_bytes > MAX_HEAD_BYTES:
        raise ValueError(f"{head_bytes} bytes about what follows, the limit is {MAX_HEAD_BYTES}")
    start = _COMPLETION_HEAD.size + head_bytes
    head = body[_COMPLETION_HEAD.size : start]
    if (parts := sum(map(head.count, _BETWEEN_PARTS))) > MOST_HEAD_PARTS:
        raise ValueError(f"{parts} values in what is said of the jobs that follow, the limit is {MOST_HEAD_PARTS}")
    result_bytes, following, then = orjson.loads(head)
    rest = _Rest(body, start)
    result = rest.take(result_bytes)
    stage = None
    if following is not None:
        queue, delay_s, depends, kind, size_bytes = following
        stage = Stage(queue, delay_s, depends, Blob(_kind(kind, "", "json", "bytes"), rest.take(size_bytes)))
    if type(then) is not list or len(then) > MOST_FOLLOWERS:
        raise ValueError("not a list of jobs to put")
    followers = []
    for queue, klass, options, kind, size_bytes in then:
        if type(options) is not dict:
            raise ValueError(f"not the options of a job: {options!r:.100}")
        followers.append(Follower(queue, klass, options, Blob(_kind(kind, "json", "bytes"), rest.take(size_bytes))))
    rest.check_end()
    return Completion(result, stage, followers)


class _Rest:
    """The unread part of a body."""

    def __init__(self, body: bytes, start: int) -> None:
        self._body = body
        self._at = start

    def take(self, size_bytes: object) -> bytes:
        if type(size_bytes) is not int or not 0 <= size_bytes <= len(self._body) - self._at:
            raise ValueError(f"not a size: {size_bytes!r:.100}")
        self._at += size_bytes
        return self._body[self._at - size_bytes : self._at]

    def check_end(self) -> None:
        if self._at != len(self._body):
            raise ValueError(f"{len(self._body) - self._at} bytes too many")


def _kind(kind: object, *known: str) -> str:
    if type(kind) is not str or kind not in known:
        raise ValueError(f"no kind of data: {kind!r:.100}")
    return kind
