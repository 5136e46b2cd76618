"""Defines the exit codes of all commands. Used in the master and in commands."""

from enum import IntEnum


class Exit(IntEnum):
    """The numbers are public."""

    OK = 0
    REFUSED = 1  # the engine refused
    USAGE = 2  # unknown command or flag, missing or malformed argument
    UNREACHABLE = 69  # no Redis at start
    INTERNAL = 70  # a bug of Leasehold
    HANDLERS = 71  # the handlers do not boot
    NOT_HANDED_BACK = 75  # drained without Redis: the leases will expire
    CONFIG = 78  # a setting has a bad value
    INTERRUPTED = 130  # Ctrl-C in a command that has nothing to drain
