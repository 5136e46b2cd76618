"""The zygote's rehearsal leaves nothing behind."""

import os
import resource

from supervisor import messages
from supervisor.linux import kernel
from supervisor.zygote import rehearsal
from tests.parts import in_fork, open_fds


def boot(workdir):
    return messages.Boot("handlers", str(workdir), 0, "retry", 2**30, 1024)


def surroundings():
    return os.getcwd(), open_fds(), kernel.children_of_self(), os.umask(0o22), resource.getrlimit(resource.RLIMIT_DATA)


def test_rehearsal_changes_nothing(tmp_path):
    (tmp_path / "zygote-1").mkdir()

    def run():
        resource.setrlimit(resource.RLIMIT_DATA, (2**40, resource.RLIM_INFINITY))
        before = surroundings()
        rehearsal.rehearse(boot(tmp_path / "zygote-1"))
        assert surroundings() == before
        assert list((tmp_path / "zygote-1").iterdir()) == []

    in_fork(run)


def test_rehearsal_is_skipped_without_a_directory(tmp_path):
    (tmp_path / "zygote-1").write_text("no directory")

    def run():
        before = surroundings()
        rehearsal.rehearse(boot(tmp_path / "zygote-1"))
        assert surroundings() == before

    in_fork(run)
    assert (tmp_path / "zygote-1").read_text() == "no directory"


def test_rehearsal_works_in_a_removed_directory(tmp_path):
    (tmp_path / "zygote-1").mkdir()
    (tmp_path / "gone").mkdir()

    def run():
        os.chdir(tmp_path / "gone")
        os.rmdir(tmp_path / "gone")
        rehearsal.rehearse(boot(tmp_path / "zygote-1"))
        assert os.stat(".").st_nlink == 0
        assert list((tmp_path / "zygote-1").iterdir()) == []

    in_fork(run)
