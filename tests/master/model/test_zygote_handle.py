"""A zygote that ends at once or cannot be started."""

import os
import sys

import pytest

from supervisor import messages
from supervisor.config import RunConfig
from supervisor.master.model import zygote_handle
from supervisor.master.model.zygote_handle import ZygoteHandle, boot_of
from tests.parts import open_fds


def test_killed_zygote_is_known_by_the_end_of_its_socket(tmp_path, monkeypatch):
    spawn = os.posix_spawn

    def killed(path, arguments, environment, **options):
        pid = spawn("/bin/false", arguments, environment, **options)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return pid

    monkeypatch.setattr(zygote_handle.os, "posix_spawn", killed)
    config = RunConfig.load({"redis-url": "redis://localhost", "handlers": "app"}, {}, terminal=False)
    zygote = ZygoteHandle(1, boot_of(config, tmp_path, 1024), {}, 0.0)
    try:
        assert list(zygote.read()) == [(None, [])]
    finally:
        os.waitpid(zygote.pid, 0)
        zygote.let_go()
        zygote.stacks.close()


def test_zygote_that_cannot_be_started_leaks_no_descriptor(monkeypatch, tmp_path):
    boot = messages.Boot("handlers", str(tmp_path), 1, "retry", 0, 1024)
    before = open_fds()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            ZygoteHandle(1, boot, {}, 0.0)
    assert open_fds() == before
