"""Commands as somebody without privileges, on a machine where what they need lies in directories of root's alone.

`prefix` makes a view of the file system in which the way to some paths is open; nothing changes for others.
"""

import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

UID = 65534

_ENTER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(answer):
    if answer:
        sys.exit("no view of its own: " + os.strerror(ctypes.get_errno()))
def mount(source, target, kind, flags, data=None):
    call(libc.mount(source.encode(), target.encode(), kind, flags, data))
uid, tops, paths, command = int(sys.argv[1]), sys.argv[2].split(":"), sys.argv[3].split(":"), sys.argv[4:]
call(libc.unshare(0x20000))
mount("none", "/", None, 0x44000)
opened = [os.open(path, os.O_PATH) for path in paths]
for top in filter(None, tops):
    mount("none", top, b"tmpfs", 0, b"mode=755")
for path, fd in zip(paths, opened):
    os.makedirs(path, exist_ok=True)
    mount(f"/proc/self/fd/{fd}", path, None, 0x5000)
    os.close(fd)
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
os.environ["HOME"] = "/"
os.execvp(command[0], command)
"""


def prefix(paths: Iterable[Path]) -> list[str]:
    """Return the words before a command that run it as nobody. The command can reach the interpreter and `paths`."""
    wanted = {os.path.realpath(each) for each in (*paths, sys.prefix, sys.base_prefix)}
    closed = {path: top for path in wanted if (top := _closed_above(path)) is not None}
    outermost = [path for path in closed if not any(path != other and path.startswith(f"{other}/") for other in closed)]
    return [sys.executable, "-c", _ENTER, str(UID), ":".join(sorted(set(closed.values()))), ":".join(outermost)]


def _closed_above(path: str) -> str | None:
    """The topmost directory above it that others may not pass."""
    for above in reversed(Path(path).parents):
        if not above.stat().st_mode & stat.S_IXOTH:
            return str(above)
    return None


def give(directory: Path) -> None:
    """Make it, and all below it, nobody's."""
    for path in (directory, *directory.rglob("*")):
        os.chown(path, UID, UID, follow_symlinks=False)
