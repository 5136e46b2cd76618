"""The filters of system calls, tried on the kernel."""

import ctypes
import errno
import mmap
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import threading

import pytest

from supervisor.linux import kernel
from supervisor.sandbox import seccomp
from tests.lengths import SOON_S
from tests.parts import Process, in_fork, rest

pytestmark = pytest.mark.skipif(bool(seccomp.why_not()), reason=seccomp.why_not())


def install():
    kernel.forbid_new_privileges()
    seccomp.NoNetwork().install()


def refusal(act):
    with pytest.raises(OSError) as raised:
        act()
    return raised.value.errno


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_INET, socket.SOCK_RAW),
        (socket.AF_INET6, socket.SOCK_STREAM), (socket.AF_INET6, socket.SOCK_DGRAM),
        (socket.AF_NETLINK, socket.SOCK_RAW), (socket.AF_PACKET, socket.SOCK_RAW),
        (socket.AF_VSOCK, socket.SOCK_STREAM),
    ],
)  # fmt: skip
def test_only_unix_sockets_can_be_made(family, kind):
    def run():
        install()
        assert refusal(lambda: socket.socket(family, kind)) == errno.EACCES

    in_fork(run)


def test_unix_sockets_programs_and_local_names_still_work():
    def run():
        install()
        socket.socket(socket.AF_UNIX).close()
        for end in socket.socketpair():
            end.close()
        assert os.waitstatus_to_exitcode(os.system("true")) == 0
        assert socket.getaddrinfo("127.0.0.1", 80)

    in_fork(run)


def test_filter_holds_for_running_threads_and_new_programs():
    def run():
        go, found = threading.Event(), []

        def later():
            go.wait(SOON_S)
            found.append(refusal(socket.socket))

        thread = threading.Thread(target=later)
        thread.start()
        install()
        go.set()
        thread.join(SOON_S)
        assert found == [errno.EACCES]
        assert os.waitstatus_to_exitcode(os.system("python3 -c 'import socket; socket.socket()' 2>/dev/null")) != 0

    in_fork(run)


@pytest.mark.parametrize("number", [425, 426, 427])
def test_io_uring_is_refused(number):
    def run():
        install()
        assert refusal(lambda: kernel.system_call(number, 1, 0, 0, 0, 0, 0)) == errno.EPERM

    in_fork(run)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="its other ABIs are those of x86")
def test_other_abis_do_not_bypass_the_filter():
    def run():
        install()
        x32 = 0x40000000 + 41  # socket
        assert refusal(lambda: kernel.system_call(x32, socket.AF_INET, socket.SOCK_STREAM, 0)) == errno.ENOSYS

    in_fork(run)

    def as_i386():
        install()
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, getpid; int 0x80; ret
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()

    assert Process(as_i386).await_end() & 0x7F == signal.SIGSYS


# limits of others


@pytest.fixture
def neighbour():
    """A process of the same user."""
    process = Process(rest)
    yield process
    process.end()


def test_limits_of_another_process_can_only_be_read(neighbour):
    def run():
        kernel.forbid_new_privileges()
        seccomp.Basic().install()
        limits = resource.prlimit(neighbour.pid, resource.RLIMIT_CPU)
        with pytest.raises(PermissionError):
            resource.prlimit(neighbour.pid, resource.RLIMIT_CPU, limits)

    limits = resource.prlimit(neighbour.pid, resource.RLIMIT_CPU)
    resource.prlimit(neighbour.pid, resource.RLIMIT_CPU, limits)  # without the filter it is allowed
    in_fork(run)


def test_own_limits_and_those_of_programs_can_be_set():
    def run():
        kernel.forbid_new_privileges()
        seccomp.Basic().install()
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (100, 200)
        assert os.waitstatus_to_exitcode(os.system("ulimit -n 50 && test $(ulimit -n) = 50")) == 0
        assert socket.socket(socket.AF_INET).close() is None

    in_fork(run)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86_64")
def test_limits_cannot_be_set_through_another_abi(neighbour):
    def run():
        kernel.forbid_new_privileges()
        seccomp.Basic().install()
        limits = ctypes.create_string_buffer(16)
        for number in (302, 0x40000000 | 302):
            ctypes.set_errno(0)
            answer = ctypes.CDLL(None, use_errno=True).syscall(number, neighbour.pid, 0, limits, None)
            assert (answer, ctypes.get_errno()) == (-1, errno.EPERM)

    in_fork(run)


# the tree

CLONE, UNSHARE, CLONE3 = (56, 272, 435) if os.uname().machine == "x86_64" else (220, 97, 435)
CLONE_PARENT, CLONE_NEWUSER = 0x8000, 0x10000000
SUBREAPER = 36


def under(*filters):
    kernel.forbid_new_privileges()
    for each in filters:
        each().install()


def clone(number, flags):
    """Fork by a raw call. Returns the pid."""
    pid = kernel.system_call(number, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid


def test_clone_parent_is_refused():
    def run():
        under(seccomp.Basic)
        assert refusal(lambda: clone(CLONE, CLONE_PARENT)) == errno.EPERM
        assert refusal(lambda: kernel.system_call(CLONE3, 0, 0)) == errno.ENOSYS
        os.waitpid(clone(CLONE, 0), 0)
        if os.uname().machine == "x86_64":
            with pytest.raises(OSError) as raised:
                clone(0x40000000 | CLONE, CLONE_PARENT)
            assert raised.value.errno == errno.EPERM

    in_fork(run)


def test_subreaper_stays_one():
    def run():
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(SUBREAPER, 1, 0, 0, 0)
        under(seccomp.Basic)
        assert prctl(SUBREAPER, 0, 0, 0, 0) == -1
        assert prctl(SUBREAPER, 1, 0, 0, 0) == 0
        kernel.set_parent_death_signal(signal.SIGKILL)

    in_fork(run)


@pytest.mark.parametrize("filters", [(seccomp.Basic,), (seccomp.Basic, seccomp.Strict)])
def test_threads_and_programs_start_as_usual(filters):
    def run():
        under(*filters)
        found = []
        thread = threading.Thread(target=lambda: found.append(1))
        thread.start()
        thread.join(SOON_S)
        assert found == [1]
        assert subprocess.run(["true"], check=True).returncode == 0
        assert subprocess.run(["true"], preexec_fn=lambda: None, close_fds=False, check=True).returncode == 0
        pid = os.posix_spawn("/bin/true", ["true"], {})
        assert os.waitpid(pid, 0)[1] == 0
        assert os.waitstatus_to_exitcode(os.system("true | true")) == 0
        process = multiprocessing.get_context("fork").Process(target=lambda: None)
        process.start()
        process.join(SOON_S)
        assert process.exitcode == 0

    in_fork(run)


# persistent objects and privileges


def objects():
    libc = ctypes.CDLL(None, use_errno=True)
    yield lambda: libc.shmget(0, 4096, 0o1600)
    yield lambda: libc.semget(0, 1, 0o1600)
    yield lambda: libc.msgget(0, 0o1600)
    yield lambda: libc.mq_open(f"/leasehold-{os.getpid()}".encode(), os.O_CREAT | os.O_RDWR, 0o600, None)


@pytest.mark.parametrize("index", range(4))
def test_ipc_objects_without_owner_are_refused(index):
    def run():
        under(seccomp.Strict)
        ctypes.set_errno(0)
        assert list(objects())[index]() == -1
        assert ctypes.get_errno() == errno.EPERM

    in_fork(run)


def test_user_namespace_is_refused():
    def run():
        under(seccomp.Basic, seccomp.Strict)
        assert refusal(lambda: kernel.system_call(UNSHARE, CLONE_NEWUSER)) == errno.EPERM
        assert refusal(lambda: clone(CLONE, CLONE_NEWUSER)) == errno.EPERM

    in_fork(run)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="its other ABIs are those of x86")
@pytest.mark.parametrize(
    ("number", "argument", "answer"),
    [
        (120, CLONE_PARENT, errno.EPERM), (120, CLONE_NEWUSER, errno.EPERM), (435, 0, errno.ENOSYS),
        (117, 23, errno.EPERM), (395, 0, errno.EPERM), (277, 0, errno.EPERM), (310, CLONE_NEWUSER, errno.EPERM),
        (20, 0, 0),
    ],
)  # fmt: skip
def test_i386_has_the_same_rules(number, argument, answer):
    def run():
        under(seccomp.Basic, seccomp.Strict)
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        # push rbx; mov eax, number; mov ebx, argument; int 0x80; pop rbx; ret
        code = b"\x53\xb8" + number.to_bytes(4, "little") + b"\xbb" + argument.to_bytes(4, "little")
        page.write(code + b"\xcd\x80\x5b\xc3")
        said = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
        assert said == -answer if answer else said == os.getpid()

    in_fork(run)
