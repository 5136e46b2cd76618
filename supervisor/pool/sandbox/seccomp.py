"""Filters of system calls: one leaves a process no network, one no say in the limits of others. Runs in zygote and
children.

Owns the filters' instructions. They hold for all threads of the process and for what they start, and are never lifted.
Sockets that are open already go on working: nobody may have left any to the process.
"""

import ctypes
import errno
import os
import socket
import struct
from typing import Final, NamedTuple

from supervisor.pool import kernel

_SET_MODE_FILTER: Final = 1
_GET_ACTION_AVAIL: Final = 2
#: For all threads; and without the defence against speculation that kernels before 5.16 would switch on with it, at
#: the cost of every process's speed: it is the parts of one process that it keeps from each other.
_ALL_THREADS: Final = 1
_FLAGS: Final = _ALL_THREADS | 4

_ALLOW: Final = 0x7FFF0000
_KILL_PROCESS: Final = 0x80000000
_ERRNO: Final = 0x00050000

# Where they stand in what the filter is shown.
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_FIRST_ARGUMENT_AT: Final = 16  # its lower half: families are ints, and both machines are little-endian
_THIRD_ARGUMENT_AT: Final = 32

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K


class _Machine(NamedTuple):
    """The kernel's numbers on one architecture."""

    architecture: int
    seccomp: int
    socket: int
    socketpair: int
    foreign_from: int  # from this number on calls are of another ABI; 0: there is none


_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, 317, 41, 53, 0x40000000),
    "aarch64": _Machine(0xC00000B7, 277, 198, 199, 0),
}
_MACHINE: Final = os.uname().machine
#: The number of prlimit64 in every ABI of a machine: also 32-bit programs may run there.
_PRLIMIT: Final = {
    "x86_64": ((0xC000003E, 302), (0xC000003E, 0x40000000 | 302), (0x40000003, 340)),
    "aarch64": ((0xC00000B7, 261), (0x40000028, 369)),
}
_IO_URING: Final = (425, 426, 427)  # the same on every architecture: it opens sockets past any filter


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def why_not() -> str:
    """Why there can be no filter here; empty: there can be one."""
    if _MACHINE not in _MACHINES:
        return f"the filter is written for {' and '.join(_MACHINES)}, not for {_MACHINE}"
    try:
        action = ctypes.c_uint32(_KILL_PROCESS)
        kernel.system_call(_MACHINES[_MACHINE].seccomp, _GET_ACTION_AVAIL, 0, ctypes.byref(action))
    except OSError as error:
        return f"the kernel has no seccomp filters for us ({error.strerror})"
    return ""


class Filter:
    """Made once: `install` is then one system call."""

    def __init__(self, code: list[tuple[int, int, int, int]]) -> None:
        """`code`: of each instruction what it does, where it jumps to if true and if not, and with what."""
        self._program = _Program(len(code), b"".join(struct.pack("=HBBI", *instruction) for instruction in code))

    def install(self) -> None:
        """For all threads of this process. Needs `no_new_privs`."""
        number = _MACHINES[_MACHINE].seccomp
        try:
            answer = kernel.system_call(number, _SET_MODE_FILTER, _FLAGS, ctypes.byref(self._program))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # gVisor knows the first flag alone
            answer = kernel.system_call(number, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(self._program))
        if answer:
            raise OSError(errno.ESRCH, f"thread {answer} of this process cannot be given the filter")


class OwnLimitsOnly(Filter):
    """Nobody's resource limits can be set but one's own: EPERM. A handler may have its supervisor's user, and a limit
    of no processor time is a kill. They are named by 0, as every libc does it; one's own pid is refused, too.
    """

    def __init__(self) -> None:
        code: list[tuple[int, int, int, int]] = []
        for architecture, number in _PRLIMIT[_MACHINE]:
            code += [
                (_LOAD, 0, 0, _ARCHITECTURE_AT),
                (_IF_EQUAL, 0, 9, architecture),
                (_LOAD, 0, 0, _NUMBER_AT),
                (_IF_EQUAL, 0, 7, number),
                (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
                (_IF_EQUAL, 5, 0, 0),
                (_LOAD, 0, 0, _THIRD_ARGUMENT_AT),
                (_IF_EQUAL, 0, 2, 0),
                (_LOAD, 0, 0, _THIRD_ARGUMENT_AT + 4),
                (_IF_EQUAL, 1, 0, 0),  # no new limit: they are only asked for
                (_RETURN, 0, 0, _ERRNO | errno.EPERM),
            ]
        super().__init__([*code, (_RETURN, 0, 0, _ALLOW)])


class NoNetwork(Filter):
    """Sockets are of the Unix family alone, others are refused with EACCES. io_uring is refused with EPERM. A program
    of another ABI, whose system calls have other numbers, is killed.
    """

    def __init__(self) -> None:
        machine = _MACHINES[_MACHINE]
        code = [
            (_LOAD, 0, 0, _ARCHITECTURE_AT),
            (_IF_EQUAL, 1, 0, machine.architecture),
            (_RETURN, 0, 0, _KILL_PROCESS),
            (_LOAD, 0, 0, _NUMBER_AT),
        ]
        if machine.foreign_from:
            code += [(_IF_AT_LEAST, 0, 1, machine.foreign_from), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
        for number in _IO_URING:
            code += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
        code += [
            (_IF_EQUAL, 2, 0, machine.socket),
            (_IF_EQUAL, 1, 0, machine.socketpair),
            (_RETURN, 0, 0, _ALLOW),
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            (_IF_EQUAL, 0, 1, socket.AF_UNIX),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _ERRNO | errno.EACCES),
        ]
        super().__init__(code)
