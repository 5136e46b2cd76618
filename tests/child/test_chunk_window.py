"""The window bounds what a job has under way, and opens as Redis takes it."""

from supervisor.child.chunk_window import ChunkWindow
from supervisor.messages import MOST_CHUNK_BYTES, MOST_CHUNKS


def filled(*sizes):
    window = ChunkWindow()
    for size_bytes in sizes:
        assert window.has_room(size_bytes)
        window.add(size_bytes)
    return window


def test_window_is_full_after_the_most_chunks():
    window = filled(*[1] * MOST_CHUNKS)
    assert not window.has_room(1)
    window.taken(1)
    assert window.has_room(1)


def test_window_is_full_after_the_most_bytes():
    window = filled(MOST_CHUNK_BYTES // 2, MOST_CHUNK_BYTES // 2)
    assert not window.has_room(1)
    window.taken(1)
    assert window.has_room(MOST_CHUNK_BYTES // 2)
    assert not window.has_room(MOST_CHUNK_BYTES // 2 + 1)


def test_one_chunk_of_any_size_may_go_alone():
    window = filled(2 * MOST_CHUNK_BYTES)
    assert not window.has_room(1)
    window.taken(1)
    assert window.has_room(1)


def test_answer_that_comes_late_opens_nothing():
    window = filled(*[1] * MOST_CHUNKS)
    window.taken(10)
    window.taken(3)
    for _ in range(10):
        assert window.has_room(1)
        window.add(1)
    assert not window.has_room(1)


def test_window_asks_for_a_look_at_the_answers_when_half_full():
    window = filled(*[1] * (MOST_CHUNKS // 2 - 1))
    assert not window.is_half_full
    window.add(1)
    assert window.is_half_full
    window.taken(1)
    assert not window.is_half_full
