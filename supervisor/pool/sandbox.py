"""What a child may touch. Runs in zygote and children, before any handler does. Owns the child's surroundings."""

import os
import resource
import shutil
import signal
from pathlib import Path
from typing import Final

from supervisor.pool import kernel

#: A signal to the whole group must not kill a process that the master is draining. Not SIG_IGN: the programs that
#: handlers start would inherit it and become deaf to their own `terminate()`.
_GROUP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Guard:
    """Ties each forked child to the life of the zygote, before any other code runs in it.

    Registered before handlers are imported, so that none of their at-fork hooks comes first. The check of the parent
    closes the gap between the fork and the parent-death signal.
    """

    def __init__(self) -> None:
        self._zygote_pid = os.getpid()
        self._forking = False
        os.register_at_fork(after_in_child=self._in_child)

    def fork(self) -> int:
        self._forking = True
        try:
            return os.fork()
        finally:
            self._forking = False

    def _in_child(self) -> None:
        if self._forking:
            kernel.set_parent_death_signal(signal.SIGKILL)
            if os.getppid() != self._zygote_pid:
                os._exit(1)


def ignore_group_signals() -> None:
    for signo in _GROUP_SIGNALS:
        signal.signal(signo, lambda _signo, _frame: None)


def reset_signals() -> None:
    """Default dispositions and an empty mask, as a program started from a shell has them, but for the group signals."""
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(signo) not in (signal.SIG_DFL, None):
            signal.signal(signo, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python sets it, so that a closed pipe is an exception
    ignore_group_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def enter(workdir: Path) -> None:
    """Close the world around the calling child; what is given up here cannot be had back."""
    os.setsid()
    kernel.become_subreaper()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kernel.forbid_new_privileges()
    os.umask(0o077)
    claim(workdir)


def claim(workdir: Path) -> None:
    """Make `workdir` an empty directory of ours, whatever an earlier child has left in its place, and go there."""
    if workdir.is_symlink() or not workdir.is_dir():
        workdir.unlink(missing_ok=True)
        workdir.mkdir(mode=0o700)
    os.chdir(workdir)
    clean(workdir)


def clean(workdir: Path) -> None:
    """Empty the directory and come back to it. Follows no link out of it."""
    for name in os.listdir(workdir):  # noqa: PTH208  once per job, and usually empty: no Path is made for nothing
        path = workdir / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def end_leftovers() -> None:
    """Kill and reap every process that the calling one still has below it; 0.3 µs where there is none."""
    while True:
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            for leftover in kernel.children_of_self():
                os.kill(leftover, signal.SIGKILL)
            os.waitpid(-1, 0)
