"""The `leasehold` command, in the process that the user or container started: blocks `run`'s signals, hides the process
from others of its user, then dispatches.

Must not import anything before the first of these: a PID 1 loses signals that come while they are not blocked.
"""

import gc
import os
import signal
import sys

#: What the master reads as values. Blocked from here on, so that an early one waits for it.
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
    """Run the command of sys.argv. Answers its exit code."""
    if sys.argv[1:2] == ["run"]:
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        gc.disable()  # until all is imported, which makes no garbage
    _hide()
    _open_what_is_closed()
    try:
        from supervisor.cli.lib.parser import dispatch

        return dispatch(sys.argv[1:])
    except KeyboardInterrupt:
        return 130  # Exit.INTERRUPTED; not imported here, as the import itself may be what was interrupted


def _hide() -> None:
    """Let no process of our user read the Redis secret in our environment or memory: a handler may be one of them.

    `run` takes it back for --sandbox none. linux/kernel.py has the same call, but loads too much for a first step.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _open_what_is_closed() -> None:
    """Of stdin, stdout and stderr: it leads to nowhere. Else the next socket gets its number, and what is written to it
    goes there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(nowhere, True)
            setattr(sys, name, open(nowhere, mode, encoding="utf-8"))  # noqa: SIM115 -- to the end


if __name__ == "__main__":
    sys.exit(main())
