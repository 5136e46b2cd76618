"""The Python stacks of children, for whoever wants to know what they are doing. Runs in master. Must not block.

faulthandler writes them, in the midst of C code and of a crash too, into a file of ours that outlives the child.
"""

import contextlib
import fcntl
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from supervisor import clock

if TYPE_CHECKING:
    from supervisor.pool.children import Child

#: What one child may write; pages are taken as they are written.
SIZE_BYTES: Final = 64 * 1024
#: Between the signal and the first look; and when what is not there is given up.
_WRITTEN_S: Final = 0.2
_LONGEST_S: Final = 1.0
_OUR_FRAMES: Final = (f'  File "{Path(__file__).parent}{os.sep}', '  File "<string>"')


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

    def head(self, line: str) -> None:
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


class Seen(NamedTuple):
    """What one child is doing. `stack` is empty where it has not said so in time."""

    child: "Child"
    stack: str


def describe(child: "Child") -> dict[str, Any]:
    """Which child it is, and what it runs."""
    head = child.head
    return {
        "child": child.number,
        "pid": child.pid,
        "jid": head and head.lease.jid,
        "klass": head and head.lease.klass,
        "running_s": head and round(clock.monotonic() - head.started_at, 3),
    }


class Watcher:
    """Has all children write their stacks, and reads them a moment later. Who asks meanwhile gets the same."""

    def __init__(self) -> None:
        self._asked: list[tuple[Child, int]] = []  # with where its stacks will be
        self._then: list[Callable[[list[Seen]], None]] = []
        self._began_at = 0.0
        self.deadline_at = math.inf

    def ask(self, children: Iterable["Child"], then: Callable[[list[Seen]], None]) -> None:
        """`then` is called with what was seen, a moment later, once."""
        self._then.append(then)
        if len(self._then) > 1:
            return
        self._asked = [(child, child.stacks.make_room()) for child in children if child.is_ready]
        for child, _start in self._asked:
            child.write_stacks()
        self._began_at = clock.monotonic()
        self.deadline_at = self._began_at + _WRITTEN_S

    def keep_time(self, now_at: float) -> None:
        if now_at < self.deadline_at:
            return
        living = [(child, start) for child, start in self._asked if not child.closed]
        seen = [Seen(child, child.stacks.read(start)) for child, start in living]
        if not all(each.stack for each in seen) and now_at < self._began_at + _LONGEST_S:
            self.deadline_at = now_at + _WRITTEN_S / 2
            return
        for child, start in living:
            child.stacks.clear(start)  # what was asked for tells nothing of how a job ends
        then, self._then, self._asked, self.deadline_at = self._then, [], [], math.inf
        for tell in then:
            tell(seen)
