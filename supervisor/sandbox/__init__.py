"""A child's surroundings at every level of the sandbox. Runs in zygote and children, before any handler does.

Owns session, limits and signals of a child; `confinement` owns what the child may not do. `enter` runs once per fork,
where a touched page costs more than a system call: it uses strings, no Paths.
"""

import faulthandler
import os
import resource
import signal
import sys
import threading
from typing import Final

from supervisor import clock
from supervisor.linux import atfork, kernel, strays
from supervisor.messages import STACKS_FD
from supervisor.sandbox.workdir import Workdir

#: Signals for the master may be sent to its whole group or control group. They must neither kill nor stop zygote and
#: children. Not SIG_IGN: programs that handlers start would inherit it and ignore their own `terminate()`.
GROUP_SIGNALS: Final = kernel.HANDLED_SIGNALS - {signal.SIGCONT, signal.SIGCHLD}
_PYTHON_IGNORES: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_NO_PRIORITY: Final = os.sched_param(0)


class Guard:
    """Ties each forked child to the life of the zygote, before any other code runs in the child.

    Registered before handlers are imported, so that their at-fork hooks come later. The check of the parent closes the
    gap between the fork and the parent-death signal.
    """

    def __init__(self) -> None:
        self._zygote_pid = os.getpid()
        self._forking = False
        self._masks = threading.local()  # signal masks of a handler's threads during their forks
        os.register_at_fork(before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child)

    def fork(self) -> int:
        self._forking = True
        try:
            return atfork.fork()
        finally:
            self._forking = False

    def _before(self) -> None:
        if not self._forking and os.getpid() != self._zygote_pid:
            # Python drops signals that reach a fork before its own at-fork code, such as `terminate()` of the parent.
            self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)

    def _in_parent(self) -> None:
        if not self._forking and os.getpid() != self._zygote_pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _in_child(self) -> None:
        if self._forking:
            self.bind()
        elif hasattr(self._masks, "before"):
            restore_group_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def bind(self) -> None:
        """Tie the calling child to the zygote's life. Repeat it after a change of user, which unties the child."""
        kernel.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != self._zygote_pid:
            os._exit(1)


def ignore_group_signals() -> None:
    for signo in GROUP_SIGNALS:
        signal.signal(signo, _do_nothing)


def restore_group_signals() -> None:
    """Restore the default of group signals in a process that a handler forked, so that `terminate()` ends it."""
    for signo in GROUP_SIGNALS:
        if signal.getsignal(signo) is _do_nothing:
            signal.signal(signo, signal.default_int_handler if signo is signal.SIGINT else signal.SIG_DFL)


def _do_nothing(_signo: int, _frame: object) -> None:
    """A handler is reset to the default by an exec, unlike SIG_IGN."""


def enable_stack_dumps() -> None:
    """Have a crash, or the master's STACKS_SIGNAL, write the Python stacks to STACKS_FD at any instruction."""
    faulthandler.enable(file=STACKS_FD)
    faulthandler.register(kernel.STACKS_SIGNAL, file=STACKS_FD, all_threads=True)
    kernel.make_room_for_signals()


def prepare() -> None:
    """Prepare in the zygote, after the import of foreign code, all that children inherit: so it costs no fork time.

    Signals get their default dispositions, except group signals and those that Python turns into exceptions. Changes by
    foreign code to signals and to faulthandler are undone.
    """
    ignore_group_signals()
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *GROUP_SIGNALS, *_PYTHON_IGNORES}:
        if signal.getsignal(signo) not in (signal.SIG_DFL, None):
            signal.signal(signo, signal.SIG_DFL)
    enable_stack_dumps()


def enter(workdir: Workdir, open_files: int) -> None:
    """Give the calling child a session, limits and a directory of its own.

    `open_files`: its soft and hard limit. The kernel counts the descriptors in flight of all processes of a user, and
    compares them with the sender's limit. So children get less than the master, and cannot use up its descriptors.
    """
    kernel.unblock_all_signals()
    os.setsid()
    _yield_to_master()
    kernel.become_subreaper()
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    workdir.claim()
    _reseed()


def _yield_to_master() -> None:
    """Schedule the child as SCHED_BATCH: its wake-ups do not preempt the master. Keep a policy of the operator's."""
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, _NO_PRIORITY)
    except OSError:  # EPERM, ENOSYS: containers may forbid it
        return


def _reseed() -> None:
    """Reseed numpy's global generator, which would be alike in all children. Python reseeds its own after a fork."""
    seed = getattr(sys.modules.get("numpy.random"), "seed", None)
    if seed is not None:
        seed()


class DataRoom:
    """Limits the private memory that the calling process can map, in case it grows faster than the master looks."""

    def __init__(self) -> None:
        self._limit_bytes = 0

    def limit(self, limit_bytes: int) -> None:
        """Allow twice `limit_bytes` above what is mapped now; 0: no limit.

        Twice, because address space is mapped long before it is used (8 MiB for a thread's stack).
        """
        if limit_bytes == self._limit_bytes:
            return
        self._limit_bytes = limit_bytes
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]  # a handler may have lowered it
        most = _mapped_bytes() + 2 * limit_bytes if limit_bytes else 0
        if not limit_bytes or (hard != resource.RLIM_INFINITY and most > hard):
            most = hard
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _mapped_bytes() -> int:
    """Return the size of this process's data and stack, used or not."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[5]) * resource.getpagesize()


def end_strays() -> bool:
    """Kill and reap every process below the calling one. Costs 0.3 µs where there is none.

    False: some did not end in time. The caller must end, because its zygote can kill its whole group.
    """
    while (pid := kernel.reap_one()) > 0:
        continue
    return pid < 0 or not strays.end_strays(frozenset(), clock.monotonic() + strays.TRY_S)[1]
