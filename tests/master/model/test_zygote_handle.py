"""A zygote that ends at once or cannot be started, and the descriptors beside its reports."""

import errno
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from supervisor import messages
from supervisor.config import RunConfig
from supervisor.linux import kernel
from supervisor.master.model import zygote_handle
from supervisor.master.model.zygote_handle import ZygoteHandle, boot_of
from supervisor.messages import Reaped
from tests.lengths import SOON_S
from tests.parts import open_fds, refused


@pytest.fixture
def killed(tmp_path, monkeypatch):
    """A zygote that has ended already."""
    spawn = os.posix_spawn

    def spawn_dead(path, arguments, environment, **options):
        pid = spawn("/bin/false", arguments, environment, **options)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return pid

    monkeypatch.setattr(zygote_handle.os, "posix_spawn", spawn_dead)
    config = RunConfig.load({"redis-url": "redis://localhost", "handlers": "app"}, {}, terminal=False)
    zygote = ZygoteHandle(1, boot_of(config, tmp_path, 1024), {}, 0.0)
    yield zygote
    os.waitpid(zygote.pid, 0)
    zygote.let_go()
    zygote.stacks.close()


def test_killed_zygote_is_known_by_the_end_of_its_socket(killed):
    assert list(killed.read()) == [(None, [])]


def test_too_long_packet_is_nonsense(killed):
    killed.control.close()
    killed.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    killed.control.setblocking(False)
    with theirs:
        theirs.send(b"x" * (messages.MAX_PACKET_BYTES + 1))
        assert list(killed.read()) == [(None, [])]
    assert "nonsense" in killed.failure.message


def test_lack_of_kernel_memory_is_no_nonsense(killed, monkeypatch):
    monkeypatch.setattr(kernel, "receive", refused(1, errno.ENOMEM, kernel.receive))
    assert (list(killed.read()), killed.failure) == ([], None)
    assert list(killed.read()) == [(None, [])]


def test_only_unrequested_descriptors_wake_the_closing_thread(killed, monkeypatch):
    closed = []
    monkeypatch.setattr(zygote_handle.foreign_files, "close", closed.append)
    killed.control.close()
    killed.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    killed.control.setblocking(False)
    reaped = Reaped(1, 2, 0, 0.0, 0)
    with theirs:
        kernel.send(theirs, messages.pack_control(reaped))
        assert list(killed.read()) == [(reaped, [])]
        assert closed == []
        kernel.send(theirs, messages.pack_control(reaped), (theirs.fileno(),))
        assert list(killed.read()) == [(reaped, [])]
        (fds,) = closed
    for fd in fds:
        os.close(fd)


def test_zygote_that_cannot_be_started_leaks_no_descriptor(monkeypatch, tmp_path):
    boot = messages.Boot("handlers", str(tmp_path), 1, "retry", 0, 1024)
    before = open_fds()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            ZygoteHandle(1, boot, {}, 0.0)
    assert open_fds() == before


def test_zygote_that_no_free_descriptor_can_watch_is_killed_at_its_end(monkeypatch):
    monkeypatch.setattr(os, "pidfd_open", refused(1, errno.EMFILE, os.pidfd_open))
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        ZygoteHandle.await_end(SimpleNamespace(pid=process.pid, kill=process.kill), 0.1)
        assert process.wait(SOON_S) == -signal.SIGKILL
