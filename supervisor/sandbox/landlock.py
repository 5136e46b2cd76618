"""Landlock, the kernel's irreversible restriction of files, signals and sockets. Runs in zygote and children.

Owns the kernel's constants. Must not decide what is forbidden. A domain holds for the calling thread and all that it
starts, and can only be narrowed. Processes of one domain cannot trace those of another.
"""

import ctypes
import os
import stat
from typing import Final

from supervisor.linux import kernel

_CREATE_RULESET: Final = 444  # system calls: the same numbers on every architecture
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
#: Rights that apply to anything but a directory.
_OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | _IOCTL_DEV
READ: Final = EXECUTE | READ_FILE | READ_DIR
USE: Final = READ_FILE | WRITE_FILE | TRUNCATE | _IOCTL_DEV
#: Every right but making devices, which a working directory never needs.
OWN: Final = 0xFFFF & ~(_MAKE_CHAR | _MAKE_BLOCK)
#: All rights that each version of the interface knows, newest first.
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
    """Return the version of the interface. Raises OSError where the kernel lacks it, or it is off or forbidden."""
    return kernel.system_call(_CREATE_RULESET, None, 0, _ASK_VERSION)


def handled_files(abi: int) -> int:
    """Return all rights to files that this version can restrict."""
    return next(rights for since, rights in _FILES if abi >= since)


def create(abi: int, *, files: bool, tcp: bool, scoped: int) -> int:
    """Make a ruleset that restricts what it names, except what a Rule then allows. Returns its descriptor.

    Leaves out what this version does not know.
    """
    attributes = _Ruleset(
        handled_files(abi) if files else 0,
        _TCP if tcp and abi >= _TCP_SINCE else 0,
        scoped if abi >= SCOPES_SINCE else 0,
    )
    return kernel.system_call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)


class Rule:
    """Allows rights below one path, wherever it is moved. Keeps the path open for later rulesets."""

    def __init__(self, path: str, rights: int, handled: int) -> None:
        """Raises OSError where the path is missing or unreachable. `handled`: the result of `handled_files`."""
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
    """Enter a new domain with these rules. Needs `no_new_privs`."""
    kernel.system_call(_RESTRICT_SELF, ruleset, 0)
