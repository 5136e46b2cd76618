"""Where a child lives, whatever the level of the sandbox. Runs in zygote and children, before any handler does.

Owns the child's surroundings; what it is kept from is `confinement`.

It runs once per fork, where each page that is touched costs more than the call: strings here, no Paths.
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

#: What is meant for the master may be sent to the whole group, or to all of a control group: it must neither kill nor
#: stop a process of ours. Not SIG_IGN: the programs that handlers start would inherit it and become deaf to their own
#: `terminate()`. What they fork without an exec is not ours either.
GROUP_SIGNALS: Final = kernel.HANDLED_SIGNALS - {signal.SIGCONT, signal.SIGCHLD}
_PYTHON_IGNORES: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_NO_PRIORITY: Final = os.sched_param(0)


class Guard:
    """Ties each forked child to the life of the zygote, before any other code runs in it.

    Registered before handlers are imported, so that none of their at-fork hooks comes first. The check of the parent
    closes the gap between the fork and the parent-death signal.
    """

    def __init__(self) -> None:
        self._zygote_pid = os.getpid()
        self._forking = False
        self._masks = threading.local()  # of threads of a handler while they fork
        os.register_at_fork(before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child)

    def fork(self) -> int:
        self._forking = True
        try:
            return atfork.fork()
        finally:
            self._forking = False

    def _before(self) -> None:
        if not self._forking and os.getpid() != self._zygote_pid:
            # Python forgets what reaches a fork before it is told of itself: its parent's `terminate()`, too.
            self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)

    def _in_parent(self) -> None:
        if not self._forking and os.getpid() != self._zygote_pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _in_child(self) -> None:
        if self._forking:
            self.bind()
        elif hasattr(self._masks, "before"):
            heed_group_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def bind(self) -> None:
        """Tie the calling child to the zygote's life. Once more after a change of user, which unties it."""
        kernel.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != self._zygote_pid:
            os._exit(1)


def ignore_group_signals() -> None:
    for signo in GROUP_SIGNALS:
        signal.signal(signo, _do_nothing)


def heed_group_signals() -> None:
    """In a process that a handler has forked: it is to end by `terminate()` as everywhere."""
    for signo in GROUP_SIGNALS:
        if signal.getsignal(signo) is _do_nothing:
            signal.signal(signo, signal.default_int_handler if signo is signal.SIGINT else signal.SIG_DFL)


def _do_nothing(_signo: int, _frame: object) -> None:
    """A handler, so that an exec makes the default of it."""


def tell_stacks() -> None:
    """Have a crash, or the master's question, write the Python stacks to STACKS_FD, whatever else runs just then."""
    faulthandler.enable(file=STACKS_FD)
    faulthandler.register(kernel.STACKS_SIGNAL, file=STACKS_FD, all_threads=True)
    kernel.make_room_for_signals()


def prepare() -> None:
    """In the zygote, once foreign code has been imported: all that children inherit, so that no fork pays for it.

    Signals have their default dispositions, but for the group signals, and what Python ignores so that it becomes an
    exception. What foreign code has made of signals and of faulthandler is taken back.
    """
    ignore_group_signals()
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *GROUP_SIGNALS, *_PYTHON_IGNORES}:
        if signal.getsignal(signo) not in (signal.SIG_DFL, None):
            signal.signal(signo, signal.SIG_DFL)
    tell_stacks()


def enter(workdir: Workdir, open_files: int) -> None:
    """Give the calling child a session, limits and a directory of its own.

    `open_files`: its soft and hard limit. The zygote keeps the master's: a descriptor per child. Descriptors in flight
    are counted for all processes of a user, and compared with the sender's limit: a child must not use up the master's.
    """
    kernel.unblock_all_signals()
    os.setsid()
    _give_way()
    kernel.become_subreaper()
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    workdir.claim()
    _reseed()


def _give_way() -> None:
    """Where processors are short, a job that wakes up does not interrupt the master, which has leases to renew and
    other jobs to hand out. What the operator has decided otherwise stays.
    """
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, _NO_PRIORITY)
    except OSError:  # EPERM, ENOSYS: a container may forbid it
        return


def _reseed() -> None:
    """Python's own generator starts anew after a fork; numpy's global one would go on alike in all children."""
    seed = getattr(sys.modules.get("numpy.random"), "seed", None)
    if seed is not None:
        seed()


class DataRoom:
    """How much private memory the calling process can map: a backstop, should it grow faster than the master looks."""

    def __init__(self) -> None:
        self._limit_bytes = 0  # of the job that runs

    def limit(self, limit_bytes: int) -> None:
        """At most twice so much beside what is there already, for an address space is asked for long before it is used
        (8 MiB for a thread's stack); 0: as it likes.
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
    """Data and stack of this process, used or not."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[5]) * resource.getpagesize()


def end_leftovers() -> bool:
    """Kill and reap every process that the calling one still has below it; 0.3 µs where there is none. False: some are
    not gone in time, and only the end of this process ends them, as its zygote can kill its whole group.
    """
    while (pid := kernel.reap_one()) > 0:
        continue
    return pid < 0 or not strays.end_strangers(frozenset(), clock.monotonic() + strays.TRY_S)[1]
