"""Packs what a handler streams for its way to Redis and to readers. Runs in all processes and applications.

Must not do I/O. A packed chunk is its kind, its length and its bytes; several lie behind each other.
"""

from collections.abc import Iterator, Sequence
from struct import Struct, error
from typing import Any, Final

import orjson

from supervisor.engine.model.validation import to_data

#: Most data of one chunk.
CHUNK_BYTES: Final = 64 * 1024
#: Most of the chunks that lie in one entry of a stream, as packed: a reader takes several entries at once.
ENTRY_BYTES: Final = 128 * 1024
#: Each chunk counts so much beside its data in the bounds of a stream; lua/include/streams.lua has the same.
COST_BYTES: Final = 64
_HEAD: Final = Struct("<BI")  # kind, bytes
_KINDS: Final = ("json", "bytes")


def to_chunk(value: object) -> bytes:
    """Pack one chunk: bytes as they are, anything else as JSON. Raises TypeError or ValueError."""
    kind, raw = to_data("chunk", value)
    if len(raw) > CHUNK_BYTES:
        raise ValueError(f"chunk must have at most {CHUNK_BYTES} bytes, not {len(raw)}: stream it in pieces")
    return _HEAD.pack(_KINDS.index(kind), len(raw)) + raw


def to_chunks(values: Sequence[object]) -> list[bytes]:
    """Pack chunks for one entry. Raises TypeError or ValueError."""
    packed = [to_chunk(value) for value in values]
    if sum(map(len, packed)) > ENTRY_BYTES:
        raise ValueError(f"chunks must have at most {ENTRY_BYTES} bytes together: stream them in several calls")
    return packed


def cost_of(packed: bytes) -> int:
    """Return how many bytes a packed chunk counts in the bounds of a stream."""
    return len(packed) - _HEAD.size + COST_BYTES


def check_chunk(packed: bytes) -> None:
    """Raises ValueError for what is not one chunk of a right size: children may run hostile code.

    JSON is not looked at. Readers pass over what is none.
    """
    is_whole = len(packed) >= _HEAD.size and _HEAD.unpack_from(packed)[1] == len(packed) - _HEAD.size
    if not is_whole or packed[0] >= len(_KINDS) or len(packed) > _HEAD.size + CHUNK_BYTES:
        raise ValueError(f"not a chunk: {packed[:100]!r}")


def unpack(packed: bytes) -> Iterator[tuple[int, Any]]:
    """Yield what each chunk counts, and its value. Raises ValueError for what no child has packed."""
    at = 0
    while at < len(packed):
        try:
            kind, size_bytes = _HEAD.unpack_from(packed, at)
        except error as cut:
            raise ValueError(f"not a chunk: {cut}") from cut
        at += _HEAD.size
        raw = packed[at : at + size_bytes]
        at += size_bytes
        if len(raw) < size_bytes or kind >= len(_KINDS):
            raise ValueError("not a chunk: it is cut off, or of no kind")
        yield size_bytes + COST_BYTES, orjson.loads(raw) if _KINDS[kind] == "json" else raw
