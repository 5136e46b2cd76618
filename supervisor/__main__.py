"""The `leasehold` command, in the process that the user or container started: blocks `run`'s signals, then dispatches.

Must not import anything before that: a PID 1 loses signals that come while they have neither a handler nor a block.
"""

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
    try:
        from supervisor.cli.parser import dispatch

        return dispatch(sys.argv[1:])
    except KeyboardInterrupt:
        return 130  # Exit.INTERRUPTED; not imported here, as the import itself may be what was interrupted


if __name__ == "__main__":
    sys.exit(main())
