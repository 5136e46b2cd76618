"""Memory of handlers lies in huge pages, unchanged for the zygote and for each fork."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from supervisor.linux import huge_pages, kernel

HUGE = huge_pages._size_bytes()
ROOM = 4 * HUGE


def are_to_be_had():
    """Linux has MADV_COLLAPSE since 6.1."""
    with mmap.mmap(-1, ROOM, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        room.write(b"x" * ROOM)
        start = -(-ctypes.addressof(ctypes.c_char.from_buffer(room)) // HUGE) * HUGE
        return kernel.collapse(start, HUGE)


pytestmark = pytest.mark.skipif(
    not HUGE or not are_to_be_had(), reason="this system has no huge pages, or wants none, or is short of them"
)


def huge_bytes():
    line = next(line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if "AnonHuge" in line)
    return int(line.split()[1]) * 1024


@pytest.fixture
def loaded():
    """Our memory in small pages, of which each byte tells its place, and the ranges from before."""
    before = huge_pages.private()
    with mmap.mmap(-1, ROOM, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        for page in range(0, ROOM, mmap.PAGESIZE):
            room[page : page + 8] = page.to_bytes(8, "little")
        yield room, before


def is_intact(room, but=()):
    pages = set(range(0, ROOM, mmap.PAGESIZE)) - set(but)
    return all(room[page : page + 8] == page.to_bytes(8, "little") for page in pages)


def test_new_memory_is_gathered_unchanged(loaded):
    room, before = loaded
    for _ in range(20):  # the kernel may be short of huge pages for a moment
        gathered = huge_pages.gather(before)
        if gathered >= ROOM - 2 * HUGE:
            break
    assert gathered >= ROOM - 2 * HUGE
    assert huge_bytes() >= gathered
    assert is_intact(room)


def test_sparse_memory_takes_no_more_than_before():
    before = huge_pages.private()
    with mmap.mmap(-1, ROOM, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        for at in range(0, ROOM, HUGE // 4):
            room[at] = 1
        assert huge_pages.gather(before) == 0


def test_earlier_memory_stays_unchanged(loaded):
    assert huge_pages.gather(huge_pages.private()) == 0


def test_writing_fork_changes_only_its_own_copy(loaded):
    room, before = loaded
    huge_pages.gather(before)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        changed = range(0, ROOM, 8 * mmap.PAGESIZE)
        for page in changed:
            room[page] = 0xFF
        os.write(writing, b"intact" if is_intact(room, changed) else b"broken")
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as told:
        assert told.read() == b"intact"
    os.waitpid(pid, 0)
    assert is_intact(room)


def test_switched_off_huge_pages_are_not_used(loaded, tmp_path, monkeypatch):
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    (tmp_path / "hpage_pmd_size").write_text(f"{HUGE}\n")
    monkeypatch.setattr(huge_pages, "_SETTINGS", tmp_path)
    assert huge_pages.gather(loaded[1]) == 0


def test_system_without_huge_pages_is_left_alone(loaded, tmp_path, monkeypatch):
    monkeypatch.setattr(huge_pages, "_SETTINGS", tmp_path / "missing")
    assert huge_pages.gather(loaded[1]) == 0
