"""Huge pages for what the handlers' import has loaded. Runs in zygote. Changes nothing that a program could see.

A fork copies an entry of the page table for each page that there is, and each child's end takes them all away again:
with small pages an application of 150 MB doubles what a job costs. A huge page has one entry for 512. What a child
writes to is copied for it alone, by small pages as ever.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from supervisor import clock
from supervisor.linux import kernel

_SETTINGS: Final = Path("/sys/kernel/mm/transparent_hugepage")
#: Of copying memory together, at the most, before the first child is forked.
_LONGEST_S: Final = 1.0
#: Of a huge page, there as small ones. For the rest the kernel takes new memory: hundreds of megabytes for tables,
#: pools and stacks of which little is in use.
_LEAST_SHARE: Final = 7 / 8

#: From the first byte to behind the last.
Range = tuple[int, int]


def private() -> list[Range]:
    """The memory that this process alone writes to, but for its stack and what comes from files."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            span, rights, _offset, _device, inode, *name = line.split(maxsplit=5)
            if rights == "rw-p" and inode == "0" and not (name and name[0].startswith("[stack")):
                start, _, end = span.partition("-")
                found.append((int(start, 16), int(end, 16)))
    return found


def gather(before: Sequence[Range]) -> int:
    """Put what is `private` now, and was not `before`, into huge pages: what was there before is our own, which each
    child writes to here and there; and what is in use only here and there stays as it is. Answers how many bytes; none
    where the system has no huge pages, or wants none.
    """
    size_bytes = _size_bytes()
    if not size_bytes:
        return 0
    until_at, gathered_bytes = clock.monotonic() + _LONGEST_S, 0
    for start in _whole_pages(size_bytes, before):
        if clock.monotonic() >= until_at:
            break
        if kernel.is_resident(start, size_bytes, _LEAST_SHARE) and kernel.collapse(start, size_bytes):
            gathered_bytes += size_bytes
    return gathered_bytes


def _size_bytes() -> int:
    """Of a huge page; 0: there are to be none."""
    try:
        if "[never]" in (_SETTINGS / "enabled").read_text():
            return 0
        return int((_SETTINGS / "hpage_pmd_size").read_text())
    except (OSError, ValueError):  # a kernel without them, or a container that hides them
        return 0


def _whole_pages(size_bytes: int, before: Sequence[Range]) -> Iterator[int]:
    """Where huge pages have room within one range."""
    for start, end in private():
        for page in range(-(-start // size_bytes) * size_bytes, end - size_bytes + 1, size_bytes):
            if all(page + size_bytes <= known or page >= known_end for known, known_end in before):
                yield page
