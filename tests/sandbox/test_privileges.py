"""Giving up users, capabilities and networks, tried on the kernel as root."""

import errno
import os
import socket
import subprocess
from pathlib import Path

import pytest

from supervisor.linux import kernel
from supervisor.sandbox import privileges
from tests.parts import in_fork

NEEDED = (privileges.SETUID, privileges.SETGID, privileges.CHOWN, 8)  # 8: CAP_SETPCAP
as_root = pytest.mark.skipif(
    os.geteuid() != 0 or bool(privileges.lacking(NEEDED)), reason="this user has no capabilities to give up"
)


def sets():
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    return {line[:6]: int(line.split()[1], 16) for line in lines if line.startswith("Cap")}


@as_root
def test_no_capability_is_left_or_regained_by_a_program():
    def run():
        privileges.bound_capabilities()
        kernel.forbid_new_privileges()
        assert privileges.held()
        privileges.give_up_capabilities()
        assert sets() == dict.fromkeys(sets(), 0)
        assert privileges.lacking([privileges.KILL]) == {privileges.KILL}
        said = subprocess.run(["grep", "CapEff", "/proc/self/status"], capture_output=True, text=True).stdout
        assert int(said.split()[1], 16) == 0
        with pytest.raises(PermissionError):
            os.setuid(65534)
        with pytest.raises(PermissionError):
            os.chown("/", 1, 1)

    in_fork(run)


@as_root
def test_other_user_has_no_groups_and_no_way_back():
    def run():
        privileges.become(65534, 65533)
        assert os.getresuid() == (65534,) * 3
        assert os.getresgid() == (65533,) * 3
        assert os.getgroups() == []
        assert privileges.held() == 0
        with pytest.raises(PermissionError):
            os.setuid(0)

    in_fork(run)


@as_root
def test_empty_network_namespace_can_be_entered_by_descriptor(tmp_path):
    server = socket.create_server(("127.0.0.1", 0))

    def run():
        own = os.readlink("/proc/self/ns/net")
        try:
            fd = privileges.network_namespace()
        except OSError as error:
            assert error.errno in (errno.EPERM, errno.EINVAL, errno.ENOSPC), error
            return  # a container may forbid it, and its report says so
        assert os.readlink("/proc/self/ns/net") != own
        for address in (server.getsockname(), ("127.0.0.1", 1)):
            with pytest.raises(OSError):
                socket.create_connection(address, 1)
        pid = os.fork()
        if pid == 0:
            privileges.enter_network(fd)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    in_fork(run)
    server.close()


def test_giving_up_no_capabilities_is_no_error():
    def run():
        if os.geteuid() == 0:
            privileges.become(65534, 65534)
        privileges.bound_capabilities()
        privileges.give_up_capabilities()
        with pytest.raises(PermissionError):
            privileges.network_namespace()

    in_fork(run)
