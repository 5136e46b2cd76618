"""Names threads, processes and descriptors that preloaded code left: no fork carries them unharmed. Runs in the zygote.

Must not change them. The operator decides whether they matter.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Set
from pathlib import Path
from types import CodeType
from typing import Final

from supervisor import clock
from supervisor.linux import kernel

#: A joined thread may stay visible in /proc for a moment.
_GONE_BY_S: Final = 0.05
#: Stateless, so that sharing them does no harm.
HARMLESS: Final = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_KINDS: Final = {
    "anon_inode:[eventpoll]": "epoll",
    "anon_inode:[eventfd]": "eventfd",
    "anon_inode:[timerfd]": "timerfd",
    "anon_inode:[signalfd]": "signalfd",
    "anon_inode:inotify": "inotify",
    "anon_inode:[io_uring]": "io_uring",
    "anon_inode:[pidfd]": "pidfd",
}
_SOCKETS: Final[dict[tuple[int, int], str]] = {
    (socket.AF_INET, socket.SOCK_STREAM): "TCP",
    (socket.AF_INET6, socket.SOCK_STREAM): "TCP",
    (socket.AF_INET, socket.SOCK_DGRAM): "UDP",
    (socket.AF_INET6, socket.SOCK_DGRAM): "UDP",
}


def running() -> list[str]:
    """Return in words the other threads, including those unknown to Python, and the processes that were started."""
    own = threading.current_thread()
    known = [thread for thread in threading.enumerate() if thread is not own]
    found = [f"{thread.name} ({_what_runs(thread)})" for thread in known]
    found += _foreign_threads({threading.get_native_id(), *(thread.native_id for thread in known)})
    return found + [f"process {pid} ({_program(pid)})" for pid in sorted(kernel.children_of_self())]


def _what_runs(thread: threading.Thread) -> str:
    target = getattr(thread, "_target", None) or getattr(thread, "function", None) or type(thread).run
    target = getattr(target, "func", target)  # of a partial
    code = getattr(target, "__code__", None)
    if not isinstance(code, CodeType):
        return f"a {type(target).__qualname__}"  # no repr: that is foreign code
    return f"{target.__module__}.{code.co_qualname}, {_place(code.co_filename)}:{code.co_firstlineno}"


def _place(path: str) -> str:
    """Return the path, relative to the current directory where possible."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def _foreign_threads(known: Set[int | None]) -> list[str]:
    until_at = clock.monotonic() + _GONE_BY_S
    while foreign := {int(task) for task in os.listdir("/proc/self/task")} - known:
        if clock.monotonic() >= until_at:
            return [f"{_program(f'self/task/{task}')} (thread {task} of native code)" for task in sorted(foreign)]
        os.sched_yield()
    return []


def _program(process: int | str) -> str:
    name = kernel.program_of(process)
    return "gone meanwhile" if name is None else name


def open_descriptors() -> dict[int, str]:
    """Return all open descriptors of this process, and what they lead to."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def opened(before: Set[int]) -> list[str]:
    """Return in words the descriptors opened since `before`."""
    now = sorted(open_descriptors().items())
    return [f"fd {fd}: {_describe(fd, link)}" for fd, link in now if fd not in before and link not in HARMLESS]


def _describe(fd: int, link: str) -> str:
    if link.startswith("socket:"):
        return _describe_socket(fd)
    if link.startswith("pipe:"):
        return "pipe"
    return _KINDS.get(link, link)


def _describe_socket(fd: int) -> str:
    with socket.socket(fileno=os.dup(fd)) as twin:
        kind = "Unix" if twin.family == socket.AF_UNIX else _SOCKETS.get((twin.family, twin.type))
        local, peer = _address(twin.getsockname), _address(twin.getpeername)
        name = f"{kind or getattr(twin.family, 'name', twin.family)} socket"
        if twin.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return f"{name} that listens at {local}"
        return " ".join(filter(None, (name, local, peer and f"-> {peer}")))


def _address(of: Callable[[], object]) -> str:
    try:
        address = of()
    except OSError:  # ENOTCONN, and families without addresses
        return ""
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return address if isinstance(address, str) else repr(address)
