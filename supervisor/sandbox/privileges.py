"""Gives up users, capabilities and namespaces. Runs in zygote and children. Owns no state.

Must not decide which process gives up what.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterable
from typing import Final

from supervisor.linux import kernel

_MACHINE: Final = os.uname().machine
#: Number of capset(2), for which some libcs have no function.
_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_VERSION_3: Final = 0x20080522
_MOST_CAPABILITIES: Final = 64
_CLONE_NEWNET: Final = 0x40000000

CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID = 0, 1, 3, 5, 6, 7
#: Capabilities that the zygote needs to manage the directories and the end of another user's children.
FOR_ANOTHER_USER: Final = {
    CHOWN: "CAP_CHOWN",
    DAC_OVERRIDE: "CAP_DAC_OVERRIDE",
    FOWNER: "CAP_FOWNER",
    KILL: "CAP_KILL",
    SETGID: "CAP_SETGID",
    SETUID: "CAP_SETUID",
}

_libc = ctypes.CDLL(None, use_errno=True)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapabilitySet(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


_head = _CapabilityHeader(_VERSION_3, 0)
_sets = (_CapabilitySet * 2)()
_HEAD: Final = ctypes.byref(_head)
_NOTHING: Final = ctypes.byref(_sets)


def why_not() -> str:
    """Return why capabilities cannot be given up here. Empty: they can."""
    return "" if _MACHINE in _CAPSET else f"this is written for {' and '.join(_CAPSET)}, not for {_MACHINE}"


def held() -> int:
    """Return the effective capabilities of the calling thread as a bit mask."""
    with open("/proc/thread-self/status", "rb") as status:
        return int(status.read().partition(b"\nCapEff:")[2].split(None, 1)[0], 16)


def lacking(capabilities: Iterable[int]) -> set[int]:
    """Return the capabilities among these that the calling thread lacks."""
    has = held()
    return {each for each in capabilities if not has >> each & 1}


def give_up_capabilities() -> None:
    """Drop all capabilities of the calling thread and of all that it starts. Under `no_new_privs` none comes back."""
    kernel.system_call(_CAPSET[_MACHINE], _HEAD, _NOTHING)


def bound_capabilities() -> None:
    """Let no program that this process or a descendant executes gain capabilities. This process keeps its own."""
    with contextlib.suppress(OSError):  # EPERM: `no_new_privs` does the same; EINVAL: past the last capability
        for capability in range(_MOST_CAPABILITIES):
            kernel.bound_capability(capability)


def become(uid: int, gid: int) -> None:
    """Become another user with all threads, in no other group, irreversibly.

    Clears capabilities and the parent-death signal, and may make the process dumpable again.
    """
    os.setgroups(())
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def network_namespace() -> int:
    """Enter a new network namespace, in which even the loopback device is down. Returns its descriptor.

    Raises OSError where that is not allowed. Call it in a process that needs no network any more.
    """
    if _libc.unshare(_CLONE_NEWNET) != 0:
        raise kernel.last_error()
    fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    enter_network(fd)  # children will need this call to be allowed, too
    return fd


def enter_network(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise kernel.last_error()
