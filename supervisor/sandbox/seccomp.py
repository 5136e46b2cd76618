"""Filters of system calls: what children of every level, of `strict`, and without a network are refused. Runs in zygote
and children.

Owns the filters' instructions. They hold for all threads of the process and for what they start, and are never lifted.
Sockets that are open already go on working: nobody may have left any to the process.
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
_SECOND_ARGUMENT_AT: Final = 24
_THIRD_ARGUMENT_AT: Final = 32

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_IF_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
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


class _Abi(NamedTuple):
    """The numbers of one of the ABIs that a machine has: 32-bit programs may run there, too."""

    architecture: int
    clone: int
    prctl: int
    prlimit: int
    unshare: int
    objects: tuple[int, ...]  # what makes or opens shared memory, queues and semaphores that no process owns


_ABIS: Final = {
    "x86_64": (
        _Abi(0xC000003E, 56, 157, 302, 272, (29, 64, 68, 240)),  # x32 has the same numbers, and a bit
        _Abi(0x40000003, 120, 172, 340, 310, (117, 393, 395, 399, 277)),  # i386: 117 is ipc(2)
    ),
    "aarch64": (
        _Abi(0xC00000B7, 220, 167, 261, 97, (180, 186, 190, 194)),
        _Abi(0x40000028, 120, 172, 369, 337, (274, 299, 303, 307)),
    ),
}
_X32: Final = 0x40000000
_CLONE3: Final = 435  # the same on every architecture, as the next ones
_IO_URING: Final = (425, 426, 427)  # it opens sockets past any filter
_CLONE_PARENT: Final = 0x8000
_CLONE_NEWUSER: Final = 0x10000000
_PR_SET_CHILD_SUBREAPER: Final = 36

_Code = list[tuple[int, int, int, int]]
_ALLOWED: Final = (_RETURN, 0, 0, _ALLOW)
_REFUSED: Final = (_RETURN, 0, 0, _ERRNO | errno.EPERM)


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

    def __init__(self, code: _Code) -> None:
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


def _rules_of(rules: Callable[[_Abi], dict[int, _Code]]) -> _Code:
    """A program that allows what `rules(abi)` does not name. `rules`: what to do, by the number of the call."""
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
    """Where the first argument has one of them."""
    return [(_LOAD, 0, 0, _FIRST_ARGUMENT_AT), (_IF_ANY_BIT, 0, 1, bits), _REFUSED, _ALLOWED]


#: Limits of others are only asked for: there is no new one.
_OWN_LIMITS: Final[_Code] = [
    (_LOAD, 0, 0, _FIRST_ARGUMENT_AT), (_IF_EQUAL, 5, 0, 0), (_LOAD, 0, 0, _THIRD_ARGUMENT_AT), (_IF_EQUAL, 0, 2, 0),
    (_LOAD, 0, 0, _THIRD_ARGUMENT_AT + 4), (_IF_EQUAL, 1, 0, 0), _REFUSED, _ALLOWED,
]  # fmt: skip
_STAYS_SUBREAPER: Final[_Code] = [
    (_LOAD, 0, 0, _FIRST_ARGUMENT_AT), (_IF_EQUAL, 0, 3, _PR_SET_CHILD_SUBREAPER),
    (_LOAD, 0, 0, _SECOND_ARGUMENT_AT), (_IF_EQUAL, 0, 1, 0), _REFUSED, _ALLOWED,
]  # fmt: skip


class Basic(Filter):
    """What a child of every level but none is refused, with EPERM.

    Limits: nobody's resource limits can be set but one's own. A handler may have its supervisor's user, and a limit of
    no processor time is a kill. They are named by 0, as every libc does it; one's own pid is refused, too.

    The tree: no process is made a sibling of the child (CLONE_PARENT), nor an orphan that does not come back to it.
    The arguments of clone3 are out of a filter's sight: it is answered as by a kernel that lacks it (ENOSYS), and
    every libc then takes clone.
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


class Strict(Filter):
    """What a child of `strict` is refused beside that, with EPERM.

    Shared memory, queues and semaphores of System V, and queues of POSIX: they outlive whoever makes them, and no
    limit sees their memory. User namespaces: in one of its own a process has all privileges, and what of the kernel
    they open.
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
