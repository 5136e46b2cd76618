"""Chunks are packed and unpacked without a change, and what no child has packed is refused."""

import pytest

from supervisor.engine.model.chunks import (
    CHUNK_BYTES,
    COST_BYTES,
    ENTRY_BYTES,
    check_chunk,
    cost_of,
    to_chunk,
    to_chunks,
    unpack,
)

VALUES = ["", "ä", b"", b"\x00\xff", None, 7, 1.5, True, [], {"n": [None, {"deep": 1}]}]


def test_chunks_come_out_unchanged_with_their_cost():
    packed = to_chunks(VALUES)
    assert [value for _cost, value in unpack(b"".join(packed))] == VALUES
    assert [cost for cost, _value in unpack(b"".join(packed))] == [cost_of(one) for one in packed]
    assert cost_of(to_chunk(b"123")) == COST_BYTES + 3
    for one in packed:
        check_chunk(one)


@pytest.mark.parametrize("value", [{1}, object(), {1: 2}, "\ud800", {"b": b"bytes"}])
def test_chunk_that_is_not_json_is_refused(value):
    with pytest.raises((TypeError, ValueError), match="chunk"):
        to_chunk(value)


def test_the_largest_chunk_fits_and_no_larger():
    check_chunk(to_chunk(b"x" * CHUNK_BYTES))
    for value in (b"x" * (CHUNK_BYTES + 1), "x" * CHUNK_BYTES):  # the quotes count
        with pytest.raises(ValueError, match="stream it in pieces"):
            to_chunk(value)


def test_more_than_an_entry_holds_is_refused():
    to_chunks([b"x" * 1000] * (ENTRY_BYTES // 1005))
    with pytest.raises(ValueError, match="in several calls"):
        to_chunks([b""] * 100_000)


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x00",
        to_chunk(1)[:-1],
        to_chunk(1) + b"x",
        to_chunk(1) * 2,
        b"\x02" + to_chunk(1)[1:],
        b"\x01\xff\xff\xff\xff",
        b"\x01" + (CHUNK_BYTES + 1).to_bytes(4, "little") + b"x" * (CHUNK_BYTES + 1),
    ],
)
def test_chunk_that_no_child_has_packed_is_refused(packed):
    with pytest.raises(ValueError, match="not a chunk"):
        check_chunk(packed)


@pytest.mark.parametrize(
    "packed", [to_chunk(1)[:-1], to_chunk(1) + b"x", b"\x02\x00\x00\x00\x00", b"\x00\x01\x00\x00\x00{"]
)
def test_readers_refuse_what_is_cut_off_or_no_json(packed):
    with pytest.raises(ValueError):
        list(unpack(packed))
