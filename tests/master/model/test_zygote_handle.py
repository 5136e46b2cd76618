"""The master's end of a zygote, where that ends at the worst moment."""

import os

from supervisor.config import Config
from supervisor.master.model import zygote_handle
from supervisor.master.model.zygote_handle import ZygoteHandle, boot_of


def test_zygote_killed_before_its_first_word_is_told_by_its_socket(tmp_path, monkeypatch):
    spawn = os.posix_spawn

    def killed(path, arguments, environment, **options):
        pid = spawn("/bin/false", arguments, environment, **options)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return pid

    monkeypatch.setattr(zygote_handle.os, "posix_spawn", killed)
    config = Config.load({"redis-url": "redis://localhost", "handlers": "app"}, {}, terminal=False)
    zygote = ZygoteHandle(1, boot_of(config, tmp_path, 1024), {}, 0.0)
    try:
        assert list(zygote.read()) == [(None, [])]
    finally:
        os.waitpid(zygote.pid, 0)
        zygote.let_go()
        zygote.stacks.close()
