"""The `leasehold` command. Runs in the process that the user or container started.

Blocks the signals of `run`, hides the process from others of its user, then dispatches. Must not import anything
before it blocks signals: PID 1 loses signals that come earlier.
"""

import gc
import os
import signal
import sys

#: Signals that the master reads as values. Once blocked, an early one waits for it.
HANDLED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGCHLD,
)
_PR_SET_DUMPABLE = 4


def main() -> int:
    """Run the command of sys.argv. Return its exit code."""
    if sys.argv[1:2] == ["run"]:
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        gc.disable()  # imports make no garbage; the master enables it
    _hide()
    _open_what_is_closed()
    try:
        from supervisor.cli.lib.parser import dispatch

        return dispatch(sys.argv[1:])
    except KeyboardInterrupt:
        return 130  # Exit.INTERRUPTED, whose import may be what was interrupted


def _hide() -> None:
    """Keep other processes of this user, such as handlers, from reading the Redis secret in environment or memory.

    `run` undoes it for --sandbox none. linux/kernel.py has the same call, but its import takes too long here.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _open_what_is_closed() -> None:
    """Open /dev/null for a closed stdin, stdout or stderr. Otherwise the next socket gets its number and output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            os.set_inheritable(nowhere, True)
            setattr(sys, name, open(nowhere, mode, encoding="utf-8"))  # noqa: SIM115 -- stays open to the end


if __name__ == "__main__":
    sys.exit(main())
