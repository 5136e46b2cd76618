"""The file for the Python stacks of one process. Runs in master. Must not block.

faulthandler writes them, in the midst of C code and of a crash too, into a file of ours that outlives the child.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: What one child may write; pages are taken as they are written.
SIZE_BYTES: Final = 64 * 1024
_PACKAGE: Final = Path(__file__).parents[2]
_OUR_FRAMES: Final = (
    *(f'  File "{_PACKAGE / folder}{os.sep}' for folder in ("zygote", "child", "sandbox", "linux")),
    '  File "<string>"',
)


class Stacks:
    """One child's file. The child cannot make it larger; what does not fit is lost."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("leasehold-stacks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, SIZE_BYTES)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)

    @property
    def end(self) -> int:
        """Up to where it is written: the child shares our place in it, and may have moved it anywhere."""
        return min(os.lseek(self.fd, 0, os.SEEK_CUR), SIZE_BYTES)

    def make_room(self) -> int:
        """Begin anew if it is half full. Answers where the next stacks will be."""
        if self.end > SIZE_BYTES // 2:
            self.clear()
        return self.end

    def clear(self, start: int = 0) -> None:
        """Forget what is written from there on."""
        os.lseek(self.fd, start, os.SEEK_SET)

    def write_heading(self, line: str) -> None:
        """Say what the next stacks are."""
        with contextlib.suppress(PermissionError):  # it is full
            os.write(self.fd, f"{line}\n".encode())

    def read(self, start: int = 0) -> str:
        """What is written from there on, without the frames of ours that every handler is called by."""
        text = os.pread(self.fd, max(0, self.end - start), start).replace(b"\0", b"").decode(errors="replace")
        return "".join(_foreign(text.splitlines(keepends=True)))

    def close(self) -> None:
        os.close(self.fd)


def _foreign(lines: list[str]) -> Iterator[str]:
    """Of each thread what comes before our own frames; where there are only such, the first."""
    own: list[str] = []
    first = False  # of its thread
    for line in lines:
        if line.startswith("  File ") and line.startswith(_OUR_FRAMES):
            own.append(line)
            continue
        if line.startswith("  "):
            yield from own
            first = False
        elif first:
            yield from own[:1]
        own.clear()
        first = first or not line.startswith("  ")
        yield line
    if first:
        yield from own[:1]
