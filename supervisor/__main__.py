"""The `leasehold` command, in the process that the user or container started: blocks `run`'s signals, then dispatches.

Must not import anything before that: a PID 1 loses signals that come while they have neither a handler nor a block.
"""

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


def main() -> int:
    """Run the command of sys.argv. Answers its exit code."""
    if sys.argv[1:2] == ["run"]:
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    _open_what_is_closed()
    try:
        from supervisor.cli.parser import dispatch

        return dispatch(sys.argv[1:])
    except KeyboardInterrupt:
        return 130  # Exit.INTERRUPTED; not imported here, as the import itself may be what was interrupted


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
