"""Packs the jobs that the master sends to a child. Runs in master, zygote and child."""

from struct import Struct
from typing import Final, NamedTuple

import orjson

INLINE_PAYLOAD_BYTES: Final = 16 * 1024
_JOB_HEAD: Final = Struct("<QIB")  # token, length of the meta part, flags
_IN_MEMFD: Final = 1
_IS_BYTES: Final = 2
_IS_ONCE: Final = 4
_IS_CALL: Final = 8
_IS_DIVIDED: Final = 16


class JobMessage(NamedTuple):
    """A job as a child receives it.

    `payload` is None while it lies in the memfd that came with the packet, behind `saved_bytes` of the last checkpoint
    and `replay_bytes` of what else earlier starts have left.
    """

    token: int
    jid: str
    klass: str
    queue: str
    priority: int
    failures: int
    deaths: int
    interruptions: int
    tags: list[str]
    lane: str | None
    persistent: bool
    waited_s: float
    is_bytes: bool
    payload: bytes | None
    saved: bytes | None = None
    saved_bytes: int = 0
    trace: str | None = None
    at_most_once: bool = False
    replay: bytes | None = None
    replay_bytes: int = 0
    batch: str | None = None
    is_call: bool = False  # the payload has arguments by position; see entries.Payload
    is_divided: bool = False  # the namespace has several shards

    def filled(self, body: bytes) -> "JobMessage":
        """Return the message with `body` split into the last checkpoint (JSON), the replay (JSON) and the payload."""
        if not (self.saved_bytes or self.replay_bytes):
            return self._replace(payload=body)
        replay_at, payload_at = self.saved_bytes, self.saved_bytes + self.replay_bytes
        saved, replay = body[:replay_at] or None, body[replay_at:payload_at] or None
        return self._replace(saved=saved, replay=replay, payload=body[payload_at:])


Meta = tuple[str, str, str, int, int, int, int, list[str], str | None, bool, float]
_META_LENGTH: Final = 11
_job_message: Final = tuple.__new__  # JobMessage(...) with names takes as long as all the rest of unpacking


def pack_job(
    token: int,
    meta: Meta,
    payload: bytes | None,
    is_bytes: bool,
    saved: bytes | None = None,
    trace: str | None = None,
    replay_bytes: int = 0,
    at_most_once: bool = False,
    batch: str | None = None,
    is_call: bool = False,
    is_divided: bool = False,
) -> bytes:
    """`meta`: the fields of JobMessage from jid to waited_s. `payload`: behind its `replay_bytes`. None: it lies in a
    memfd, behind `saved`.
    """
    if saved or trace or replay_bytes or batch:
        head = orjson.dumps((*meta, len(saved) if saved else 0, trace, replay_bytes, batch))
        payload = saved + payload if saved and payload is not None else payload
    else:
        head = orjson.dumps(meta)
    flags = (_IS_BYTES if is_bytes else 0) | (_IN_MEMFD if payload is None else 0) | (_IS_ONCE if at_most_once else 0)
    if is_call:
        flags |= _IS_CALL
    if is_divided:
        flags |= _IS_DIVIDED
    return _JOB_HEAD.pack(token, len(head), flags) + head + (payload or b"")


def unpack_job(packet: bytes) -> JobMessage:
    token, length, flags = _JOB_HEAD.unpack_from(packet)
    body_at = _JOB_HEAD.size + length
    meta = orjson.loads(packet[_JOB_HEAD.size : body_at])
    is_bytes, is_once, is_call = bool(flags & _IS_BYTES), bool(flags & _IS_ONCE), bool(flags & _IS_CALL)
    is_divided = bool(flags & _IS_DIVIDED)
    payload = None if flags & _IN_MEMFD else packet[body_at:]
    if len(meta) == _META_LENGTH:
        return _job_message(
            JobMessage, (token, *meta, is_bytes, payload, None, 0, None, is_once, None, 0, None, is_call, is_divided)
        )
    *meta, saved_bytes, trace, replay_bytes, batch = meta
    beside = is_bytes, None, None, saved_bytes, trace, is_once, None, replay_bytes, batch, is_call, is_divided
    message = _job_message(JobMessage, (token, *meta, *beside))
    return message if payload is None else message.filled(payload)


def token_of(packet: bytes) -> int:
    """Return the token of a packed job, which identifies a job that was taken back.

    Raises ValueError if the packet is shorter than any job.
    """
    if len(packet) < _JOB_HEAD.size:
        raise ValueError(f"a job of {len(packet)} bytes")
    token: int = _JOB_HEAD.unpack_from(packet)[0]
    return token
