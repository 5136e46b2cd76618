"""Landlock: what a process may never do again with files, signals and sockets. Runs in zygote and children.

Owns the kernel's names for it. Must not decide what is forbidden. A domain, once entered, holds for the calling thread
and all that it starts; it can be narrowed and never left. Processes of one domain cannot trace, nor look into, those of
another.
"""

import ctypes
import os
import stat
from typing import Final

from supervisor.linux import kernel

_CREATE_RULESET: Final = 444  # the same on every architecture
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
_MAKE_CHAR: Final = 1 << 6
_MAKE_BLOCK: Final = 1 << 11
TRUNCATE: Final = 1 << 14
_IOCTL_DEV: Final = 1 << 15
#: What can be allowed of something that is no directory.
_OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | _IOCTL_DEV
READ: Final = EXECUTE | READ_FILE | READ_DIR
USE: Final = READ_FILE | WRITE_FILE | TRUNCATE | _IOCTL_DEV
#: Everything but devices, which nobody makes in a working directory.
OWN: Final = 0xFFFF & ~(_MAKE_CHAR | _MAKE_BLOCK)
#: All rights that a version of the interface knows, from the newest.
_FILES: Final = ((5, 0xFFFF), (3, 0x7FFF), (2, 0x3FFF), (1, 0x1FFF))
_TCP: Final = 0b11  # bind and connect
_TCP_SINCE: Final = 4
SCOPES_SINCE: Final = 6
ABSTRACT_SOCKETS: Final = 1 << 0
SIGNALS: Final = 1 << 1


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def abi() -> int:
    """The version of its interface. Raises OSError where the kernel has it not, or it is switched off, or forbidden."""
    return kernel.system_call(_CREATE_RULESET, None, 0, _ASK_VERSION)


def handled_files(abi: int) -> int:
    """All rights to files that this version can take away."""
    return next(rights for since, rights in _FILES if abi >= since)


def create(abi: int, *, files: bool, tcp: bool, scoped: int) -> int:
    """A ruleset that takes away what it names, but for what a Rule then allows. Answers its descriptor.

    What this version does not know is left out.
    """
    attributes = _Ruleset(
        handled_files(abi) if files else 0,
        _TCP if tcp and abi >= _TCP_SINCE else 0,
        scoped if abi >= SCOPES_SINCE else 0,
    )
    return kernel.system_call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)


class Rule:
    """What is allowed below one path, wherever it is moved. Keeps it open, for the rulesets to come."""

    def __init__(self, path: str, rights: int, handled: int) -> None:
        """Raises OSError where there is nothing, or nothing that this user can reach. `handled`: `handled_files`."""
        self.path = path
        self.fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not stat.S_ISDIR(os.fstat(self.fd).st_mode):
            rights &= _OF_FILES
        self._rule = _Beneath(rights & handled, self.fd)
        self._reference = ctypes.byref(self._rule)

    def add_to(self, ruleset: int) -> None:
        kernel.system_call(_ADD_RULE, ruleset, 1, self._reference, 0)

    def close(self) -> None:
        os.close(self.fd)


def restrict(ruleset: int) -> None:
    """Enter a new domain of these rules. Needs `no_new_privs`."""
    kernel.system_call(_RESTRICT_SELF, ruleset, 0)
