"""Moves what the handlers' import has loaded into huge pages. Runs in the zygote. Owns no state.

A fork copies one page table entry per page, and each child's end removes them again: with small pages an application of
150 MB doubles the cost of a job. A huge page needs one entry for 512 small ones. Children still copy what they write to
by small pages. Must not change anything that a program can see.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from supervisor import clock
from supervisor.linux import kernel

_SETTINGS: Final = Path("/sys/kernel/mm/transparent_hugepage")
#: Time limit of copying, before the first child is forked.
_LONGEST_S: Final = 1.0
#: Share of a huge page that must be resident. Otherwise the kernel would take new memory: hundreds of megabytes for
#: tables, pools and stacks that are hardly used.
_LEAST_SHARE: Final = 7 / 8

#: First byte, and the one past the last.
Range = tuple[int, int]


def private() -> list[Range]:
    """Return this process's private writable memory, without its stack and files."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            span, rights, _offset, _device, inode, *name = line.split(maxsplit=5)
            if rights == "rw-p" and inode == "0" and not (name and name[0].startswith("[stack")):
                start, _, end = span.partition("-")
                found.append((int(start, 16), int(end, 16)))
    return found


def gather(before: Sequence[Range]) -> int:
    """Move what is `private` now and was not `before` into huge pages. Returns the number of bytes moved.

    Memory from before is our own, which each child writes to here and there. Sparse memory stays as it is. Returns 0
    where the system has no huge pages, or has switched them off.
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
    """Return the size of a huge page. 0: none may be used."""
    try:
        if "[never]" in (_SETTINGS / "enabled").read_text():
            return 0
        return int((_SETTINGS / "hpage_pmd_size").read_text())
    except (OSError, ValueError):  # a kernel without them, or a container that hides them
        return 0


def _whole_pages(size_bytes: int, before: Sequence[Range]) -> Iterator[int]:
    """Yield the starts of all aligned huge pages that lie within one range."""
    for start, end in private():
        for page in range(-(-start // size_bytes) * size_bytes, end - size_bytes + 1, size_bytes):
            if all(page + size_bytes <= known or page >= known_end for known, known_end in before):
                yield page
