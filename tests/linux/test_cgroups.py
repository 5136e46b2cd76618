"""Memory and CPU limits and out-of-memory kills, in faked trees and by the kernel itself."""

import signal

import pytest

from supervisor import config
from supervisor.linux import cgroups
from tests import control_groups
from tests.control_groups import MB, faked

UNLIMITED_V1 = "9223372036854771712\n"
EVENTS = "low 0\nhigh 0\nmax 31\noom 3\noom_kill {}\noom_group_kill 0\n"
OOM_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


@pytest.mark.parametrize(
    ("lines", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "268435456\n"}, 256 * MB),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "1048576\n"}, MB),
        ("0::/a/b\n", {"a/b/memory.max": "1048576\n", "a/memory.max": "2097152\n"}, MB),
        ("0::/the/hosts/path\n", {"memory.max": "1048576\n"}, MB),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "1048576\n"}, MB),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": UNLIMITED_V1}, None),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "9223372036854710272\n"}, None),  # pages of 64 KB
        (
            "4:memory:/x/y\n",
            {"memory/x/y/memory.limit_in_bytes": UNLIMITED_V1, "memory/x/memory.limit_in_bytes": "1048576"},
            MB,
        ),
        (
            "4:memory:/x\n",
            {
                "memory/x/memory.limit_in_bytes": UNLIMITED_V1,
                "memory/x/memory.stat": f"cache 5\nrss 6\nhierarchical_memory_limit {MB}\n",
            },
            MB,
        ),
        ("4:memory:/x\n0::/y\n", {"memory/x/memory.limit_in_bytes": "2097152", "y/memory.max": "1048576"}, MB),
        ("4:cpuset:/\n9:name=systemd:/\n0::/\n", {}, None),
        ("", {}, None),
    ],
)
def test_memory_limit_comes_from_v1_v2_and_parents(tmp_path, lines, files, limit):
    assert cgroups.memory_limit(*faked(tmp_path, lines, files)) == limit


@pytest.mark.parametrize(("total_kb", "limit"), [(1023, None), (1024, MB), (10**6, MB)])
def test_limit_above_the_machines_memory_counts_as_none(tmp_path, total_kb, limit):
    assert cgroups.memory_limit(*faked(tmp_path, "0::/\n", {"memory.max": "1048576\n"}, total_kb)) == limit


def test_budget_is_nine_tenths_of_the_limit(tmp_path):
    where = faked(tmp_path, "0::/\n", {"memory.max": "1073741824\n"})
    assert config.usable_memory(*where) == (2**30 * 9 // 10, "auto: nine tenths of the cgroup's limit of 1,024 MB")
    (tmp_path / "cgroup/memory.max").write_text("max\n")
    assert config.usable_memory(*where) == (0, "auto: the cgroup has no memory limit")


@pytest.mark.parametrize(
    ("lines", "file", "text"),
    [
        ("0::/a\n", "a/memory.events", EVENTS),
        ("0::/the/hosts/path\n", "memory.events", EVENTS),
        ("4:memory:/x\n0::/\n", "memory/x/memory.oom_control", OOM_CONTROL),
        ("4:memory:/docker/the-hosts\n", "memory/memory.oom_control", OOM_CONTROL),
    ],
)
def test_oom_kills_count_from_construction(tmp_path, lines, file, text):
    where = faked(tmp_path, lines, {file: text.format(5)})
    kills = cgroups.OomKills(*where)
    assert (kills.count(), kills.new()) == (5, 0)
    (tmp_path / "cgroup" / file).write_text(text.format(7))
    assert (kills.new(), kills.new(), kills.count()) == (2, 0, 7)


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        ("", {}),
        ("0::/\n", {"cgroup.procs": "1\n"}),
        ("4:memory:/\n", {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}),
    ],
)
def test_missing_counter_means_no_kills(tmp_path, lines, files):
    kills = cgroups.OomKills(*faked(tmp_path, lines, files))
    assert (kills.count(), kills.new()) == (None, 0)


def test_removed_cgroup_counts_nothing(tmp_path):
    where = faked(tmp_path, "0::/a\n", {"a/memory.events": EVENTS.format(5)})
    kills = cgroups.OomKills(*where)
    (tmp_path / "cgroup/a/memory.events").unlink()
    assert (kills.count(), kills.new()) == (None, 0)


@pytest.mark.parametrize(
    ("lines", "files", "together"),
    [
        ("0::/a/b\n", {"a/b/memory.oom.group": "1\n"}, True),
        ("0::/a/b\n", {"a/b/memory.oom.group": "0\n", "a/memory.oom.group": "1\n"}, True),
        ("0::/a/b\n", {"a/b/memory.oom.group": "0\n", "a/memory.oom.group": "0\n"}, False),
        ("0::/\n", {}, False),
        ("4:memory:/x\n", {"memory/x/memory.oom_control": OOM_CONTROL.format(0)}, False),
    ],
)
def test_group_kill_is_noticed_also_in_a_parent_cgroup(tmp_path, lines, files, together):
    assert cgroups.kills_as_group(*faked(tmp_path, lines, files)) is together


# by the kernel


def test_real_oom_kill_is_counted_and_limit_is_read(tmp_path):
    code = "x = bytearray(200 << 20); print('still here')"
    with control_groups.real(32 * MB) as group, control_groups.python(group, code) as process:
        name = f"/{group.name}"
        proc, _ = faked(tmp_path, f"4:memory:{name}\n0::/\n", {})
        kills = cgroups.OomKills(proc)
        assert kills.count() == 0
        assert cgroups.memory_limit(proc) == 32 * MB
        control_groups.tell(process)
        assert process.wait(30) == -signal.SIGKILL
        assert kills.new() == 1
        assert cgroups.oom_kills(group) == 1
