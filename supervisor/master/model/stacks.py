"""The file for the Python stacks of one process. Runs in the master. Never blocks.

faulthandler writes into it, even inside C code and in a crash. The file is the master's, so it outlives the process.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Size of the file. The kernel allocates pages as they are written.
SIZE_BYTES: Final = 64 * 1024
#: Between the signal that has a process that does not start write its stacks, and its kill.
WRITE_S: Final = 0.2
_PACKAGE: Final = Path(__file__).parents[2]
_OUR_FRAMES: Final = (
    *(f'  File "{_PACKAGE / folder}{os.sep}' for folder in ("zygote", "child", "sandbox", "linux")),
    '  File "<string>"',
)


class Stacks:
    """A sealed memfd: the process cannot resize it, and text that does not fit is lost."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("leasehold-stacks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, SIZE_BYTES)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)

    @property
    def end(self) -> int:
        """The end of the text. It is the file offset, which the process shares and may have moved anywhere."""
        return min(os.lseek(self.fd, 0, os.SEEK_CUR), SIZE_BYTES)

    def make_room(self) -> int:
        """Clear the file if it is half full. Return the offset at which the next stacks will begin."""
        if self.end > SIZE_BYTES // 2:
            self.clear()
        return self.end

    def clear(self, start: int = 0) -> None:
        """Drop the text from `start` on."""
        os.lseek(self.fd, start, os.SEEK_SET)

    def write_heading(self, line: str) -> None:
        """Write a line above the next stacks. It is lost if the file is full."""
        if os.lseek(self.fd, 0, os.SEEK_CUR) > SIZE_BYTES:  # the process has moved the offset; the stacks would be lost
            self.clear()
        # EPERM: the file is full. EINVAL: the process has moved the offset again.
        with contextlib.suppress(OSError):
            os.write(self.fd, f"{line}\n".encode())

    def read(self, start: int = 0) -> str:
        """Return the text from `start` on, without our own frames, which call every handler."""
        text = os.pread(self.fd, max(0, self.end - start), start).replace(b"\0", b"").decode(errors="replace")
        return "".join(_foreign(text.splitlines(keepends=True)))

    def close(self) -> None:
        os.close(self.fd)


def _foreign(lines: list[str]) -> Iterator[str]:
    """Yield each thread's lines without our own frames. A thread that has no others keeps its first frame."""
    own: list[str] = []
    first = False  # the thread has no other frame yet
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
