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
    append_to(os.environ["MENU_LEDGER"], line, 0)


def append_to(path, line, more_flags=os.O_CREAT):
    """Append a line to a file by one write(2). By default the file is made if need be."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | more_flags)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def wait_at(gate):
    """Block until the test opens the gate of this name. Interruptible at any instant."""
    os.close(os.open(os.path.join(os.environ["MENU_GATES"], gate), os.O_RDONLY | os.O_CLOEXEC))
