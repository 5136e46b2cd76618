"""The launch directory keeps its name, which a deploy may point elsewhere."""

import pytest

from supervisor.master.processes.launch_directory import LaunchDirectory


@pytest.fixture
def releases(tmp_path, monkeypatch):
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
    (tmp_path / "current").symlink_to("1")
    monkeypatch.chdir(tmp_path / "current")
    monkeypatch.setenv("PWD", str(tmp_path / "current"))
    return tmp_path


def swap(releases):
    (releases / "current").unlink()
    (releases / "current").symlink_to("2")


def test_launch_directory_is_where_its_name_leads_now(releases):
    place = LaunchDirectory.here()
    assert (place.name, place.now()) == (str(releases / "current"), "")
    swap(releases)
    assert place.now() == str(releases / "2")
    (releases / "current").unlink()
    assert place.now() == str(releases / "current")


@pytest.mark.parametrize("said", ["", "relative", "{}/2", "{}/nowhere"])
def test_kernels_name_wins_over_a_different_pwd(releases, monkeypatch, said):
    monkeypatch.setenv("PWD", said.format(releases))
    place = LaunchDirectory.here()
    assert (place.name, place.now()) == (str(releases / "1"), "")
    swap(releases)
    assert place.now() == ""
