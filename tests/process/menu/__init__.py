"""A menu of misbehaviour for the process tests. Runs in children; the tests import nothing of it.

Each handler first writes one line into the ledger, by one write(2): a record of starts that does not depend on the
supervisor. Handlers wait at gates: opening such a named pipe for reading ends when the test opens its other end.
"""

import os
import time


def enter(job):
    """Record a start in the ledger: jid, attempt, pid, wall time."""
    line = f"{job.jid} {job.attempt} {os.getpid()} {time.time():.6f} {job.klass}\n"
    write_line(line)


def write_line(line):
    ledger = os.open(os.environ["MENU_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(ledger, line.encode())
    finally:
        os.close(ledger)


def wait_at(gate):
    """Block until the test opens the gate of this name. Interruptible at any instant."""
    os.close(os.open(os.path.join(os.environ["MENU_GATES"], gate), os.O_RDONLY | os.O_CLOEXEC))
