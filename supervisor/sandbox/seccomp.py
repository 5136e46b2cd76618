"""Filters of system calls: for every level, for `strict`, and for no network. Runs in zygote and children.

Owns the filters' instructions. A filter holds for all threads of the process and for what they start, irreversibly. It
does not affect sockets that are open already, so the process must have none.
"""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from supervisor.linux import kernel

_SET_MODE_FILTER: Final = 1
_GET_ACTION_AVAIL: Final = 2
#: For all threads. The second flag (4) omits a mitigation of speculation that kernels before 5.16 would switch on: it
#: would slow down every process, and protects only parts of one process from each other.
_ALL_THREADS: Final = 1
_FLAGS: Final = _ALL_THREADS | 4

_ALLOW: Final = 0x7FFF0000
_KILL_PROCESS: Final = 0x80000000
_ERRNO: Final = 0x00050000

# Offsets in struct seccomp_data.
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_FIRST_ARGUMENT_AT: Final = 16  # the lower half suffices: families are ints, and both machines are little-endian
_SECOND_ARGUMENT_AT: Final = 24
_THIRD_ARGUMENT_AT: Final = 32

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_IF_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K


class _Machine(NamedTuple):
    """System call numbers of one architecture."""

    architecture: int
    seccomp: int
    socket: int
    socketpair: int
    foreign_from: int  # calls from this number on belong to another ABI; 0: there is none


_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, 317, 41, 53, 0x40000000),
    "aarch64": _Machine(0xC00000B7, 277, 198, 199, 0),
}
_MACHINE: Final = os.uname().machine


class _Abi(NamedTuple):
    """System call numbers of one ABI. A machine may also run 32-bit programs."""

    architecture: int
    clone: int
    prctl: int
    prlimit: int
    unshare: int
    objects: tuple[int, ...]  # calls that make shared memory, queues and semaphores without an owner process


_ABIS: Final = {
    "x86_64": (
        _Abi(0xC000003E, 56, 157, 302, 272, (29, 64, 68, 240)),  # x32 has these numbers with one more bit
        _Abi(0x40000003, 120, 172, 340, 310, (117, 393, 395, 399, 277)),  # i386: 117 is ipc(2)
    ),
    "aarch64": (
        _Abi(0xC00000B7, 220, 167, 261, 97, (180, 186, 190, 194)),
        _Abi(0x40000028, 120, 172, 369, 337, (274, 299, 303, 307)),
    ),
}
_X32: Final = 0x40000000
_CLONE3: Final = 435  # from here on: the same on every architecture
_IO_URING: Final = (425, 426, 427)  # opens sockets past any filter
_CLONE_PARENT: Final = 0x8000
_CLONE_NEWUSER: Final = 0x10000000
_PR_SET_CHILD_SUBREAPER: Final = 36

_Code = list[tuple[int, int, int, int]]
_ALLOWED: Final = (_RETURN, 0, 0, _ALLOW)
_REFUSED: Final = (_RETURN, 0, 0, _ERRNO | errno.EPERM)


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def why_not() -> str:
    """Return why there can be no filter here. Empty: there can be one."""
    if _MACHINE not in _MACHINES:
        return f"the filter is written for {' and '.join(_MACHINES)}, not for {_MACHINE}"
    try:
        action = ctypes.c_uint32(_KILL_PROCESS)
        kernel.system_call(_MACHINES[_MACHINE].seccomp, _GET_ACTION_AVAIL, 0, ctypes.byref(action))
    except OSError as error:
        return f"the kernel has no seccomp filters for us ({error.strerror})"
    return ""


class SyscallFilter:
    """A program in the kernel's form, so that `install` is one system call."""

    def __init__(self, code: _Code) -> None:
        """`code`: per instruction the operation, the jumps if true and if false, and the operand."""
        self._program = _Program(len(code), b"".join(struct.pack("=HBBI", *instruction) for instruction in code))

    def install(self) -> None:
        """Install the filter for all threads of this process. Needs `no_new_privs`."""
        number = _MACHINES[_MACHINE].seccomp
        try:
            answer = kernel.system_call(number, _SET_MODE_FILTER, _FLAGS, ctypes.byref(self._program))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # gVisor knows the first flag only
            answer = kernel.system_call(number, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(self._program))
        if answer:
            raise OSError(errno.ESRCH, f"thread {answer} of this process cannot be given the filter")


def _rules_of(rules: Callable[[_Abi], dict[int, _Code]]) -> _Code:
    """Return a program that allows all calls but those of `rules(abi)`, which maps call numbers to checks."""
    code: _Code = []
    for abi in _ABIS[_MACHINE]:
        block = [(_LOAD, 0, 0, _NUMBER_AT)]
        if _MACHINE == "x86_64":
            block.append((_AND, 0, 0, 0xFFFFFFFF ^ _X32))
        for number, check in rules(abi).items():
            block += [(_IF_EQUAL, 0, len(check), number), *check]
        block.append(_ALLOWED)
        code += [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_IF_EQUAL, 0, len(block), abi.architecture), *block]
    return [*code, _ALLOWED]


def _refuse_bits(bits: int) -> _Code:
    """Refuse the call if its first argument has one of these bits."""
    return [(_LOAD, 0, 0, _FIRST_ARGUMENT_AT), (_IF_ANY_BIT, 0, 1, bits), _REFUSED, _ALLOWED]


#: prlimit of another process may read a limit but not set one.
_OWN_LIMITS: Final[_Code] = [
    (_LOAD, 0, 0, _FIRST_ARGUMENT_AT), (_IF_EQUAL, 5, 0, 0), (_LOAD, 0, 0, _THIRD_ARGUMENT_AT), (_IF_EQUAL, 0, 2, 0),
    (_LOAD, 0, 0, _THIRD_ARGUMENT_AT + 4), (_IF_EQUAL, 1, 0, 0), _REFUSED, _ALLOWED,
]  # fmt: skip
_STAYS_SUBREAPER: Final[_Code] = [
    (_LOAD, 0, 0, _FIRST_ARGUMENT_AT), (_IF_EQUAL, 0, 3, _PR_SET_CHILD_SUBREAPER),
    (_LOAD, 0, 0, _SECOND_ARGUMENT_AT), (_IF_EQUAL, 0, 1, 0), _REFUSED, _ALLOWED,
]  # fmt: skip


class Basic(SyscallFilter):
    """Refuses calls with EPERM in children of every level but none.

    Limits: a process may set its own limits only. A handler may run as its supervisor's user, and a limit of no
    processor time would kill the supervisor. libc names its own process by pid 0; an explicit own pid is refused, too.

    The tree: no process becomes a sibling of the child (CLONE_PARENT), or an orphan that does not come back to it. A
    filter cannot see the arguments of clone3, so clone3 fails with ENOSYS, and every libc then uses clone.
    """

    def __init__(self) -> None:
        super().__init__(
            _rules_of(
                lambda abi: {
                    abi.prlimit: _OWN_LIMITS,
                    abi.clone: _refuse_bits(_CLONE_PARENT),
                    abi.prctl: _STAYS_SUBREAPER,
                    _CLONE3: [(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)],
                }
            )
        )


class Strict(SyscallFilter):
    """Refuses more calls with EPERM in children of `strict`.

    System V shared memory, queues and semaphores, and POSIX queues outlive their makers, and no limit counts their
    memory. In a user namespace of its own, a process has all privileges, and reaches more of the kernel.
    """

    def __init__(self) -> None:
        super().__init__(
            _rules_of(
                lambda abi: {
                    **{number: [_REFUSED] for number in abi.objects},
                    abi.clone: _refuse_bits(_CLONE_NEWUSER),
                    abi.unshare: _refuse_bits(_CLONE_NEWUSER),
                }
            )
        )


class NoNetwork(SyscallFilter):
    """Allows sockets of the Unix family only.

    Other families fail with EACCES, and io_uring with EPERM. A program of another ABI, with other call numbers, is
    killed.
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
