"""Chunks go with the next exchange, in order, each once, at a bounded rate, and never more than a job may have."""

import math

import pytest

from supervisor import clock
from supervisor.engine.model.chunks import CHUNK_BYTES, cost_of, to_chunk
from supervisor.engine.model.outcomes import Completed
from supervisor.messages import MOST_CHUNK_BYTES, MOST_CHUNKS
from tests.master.model.conftest import add

A, B, C = (to_chunk(value) for value in "abc")
LARGE = to_chunk(b"x" * CHUNK_BYTES)
FAR_S = 10.0


def taken(ledger, now_at=None):
    batches = ledger.chunks.take(clock.monotonic() if now_at is None else now_at)
    return [(batch.entry.token, batch.entry.before, batch.entry.chunks) for batch in batches]


def test_chunks_go_once_in_order_counted_from_the_start(ledger):
    first, second = add(ledger, 1, 2)
    for held, chunk in ((first, A), (second, B), (first, C)):
        ledger.chunks.add(held, chunk)
    assert taken(ledger) == [(1, 0, [A, C]), (2, 0, [B])]
    assert not ledger.chunks.any and ledger.chunks.next_at() == math.inf
    ledger.chunks.add(first, B)
    assert taken(ledger) == [(1, 2, [B])]


def test_chunks_under_way_are_bounded_by_number_and_bytes(ledger):
    many, large = add(ledger, 1, 2)
    for _ in range(MOST_CHUNKS):
        ledger.chunks.add(many, A)
    for _ in range(MOST_CHUNK_BYTES // len(LARGE)):
        ledger.chunks.add(large, LARGE)
    for held, chunk in ((many, A), (large, LARGE)):
        with pytest.raises(ValueError, match="without waiting for its turn"):
            ledger.chunks.add(held, chunk)
    taken(ledger)
    with pytest.raises(ValueError):  # Redis has not answered
        ledger.chunks.add(many, A)
    many.stream.taken = 1
    ledger.chunks.add(many, A)


def test_job_that_has_used_its_rate_waits_and_the_others_do_not(ledger):
    flood, other = add(ledger, 1, 2)
    now_at = clock.monotonic()
    while flood.stream is None or flood.stream.next_at <= now_at:
        ledger.chunks.add(flood, LARGE)
        taken(ledger, now_at)
        flood.stream.taken = flood.stream.sent
    assert flood.stream.sent * cost_of(LARGE) < 2**20
    ledger.chunks.add(flood, A)
    ledger.chunks.add(other, B)
    assert taken(ledger, now_at) == [(2, 0, [B])]
    assert now_at < ledger.chunks.next_at() < now_at + 0.1
    assert [token for token, _before, _chunks in taken(ledger, ledger.chunks.next_at())] == [1]


def test_end_of_a_job_takes_its_chunks_along_whatever_the_rate(ledger):
    (held,) = add(ledger, 1)
    ledger.chunks.add(held, A)
    taken(ledger)
    held.stream.next_at = clock.monotonic() + FAR_S
    ledger.chunks.add(held, B)
    assert taken(ledger) == []
    ledger.end(held, Completed(held.lease))
    assert taken(ledger) == [(1, 1, [B])]


def test_lost_lease_streams_no_more(ledger):
    kept, lost = add(ledger, 1, 2)
    for held in (kept, lost):
        ledger.chunks.add(held, A)
    ledger.lose(lost, "cancelled")
    assert taken(ledger) == [(1, 0, [A])]


def test_one_exchange_takes_a_bounded_number_of_bytes_and_the_next_the_rest(ledger):
    jobs = add(ledger, *range(1, 41))
    for held in jobs:
        ledger.chunks.add(held, LARGE)
    first, second = taken(ledger), taken(ledger, clock.monotonic() + FAR_S)
    while more := taken(ledger, clock.monotonic() + FAR_S):
        second += more
    assert len(first) <= 17
    assert [token for token, _before, _chunks in first + second] == list(range(1, 41))


def test_refused_chunks_go_again_before_newer_ones(ledger):
    running, ended = add(ledger, 1, 2)
    for held in (running, ended):
        ledger.chunks.add(held, A)
    now_at = clock.monotonic()
    batches = ledger.chunks.take(now_at)
    ledger.end(ended, Completed(ended.lease))
    ledger.chunks.refused(batches, now_at)
    ledger.chunks.add(running, B)
    assert taken(ledger, now_at) == []
    assert taken(ledger, ledger.chunks.next_at()) == [(1, 0, [A]), (1, 1, [B])]
