"""Reads the limits and counters of this process's control groups, v1 and v2. Runs in any process.

Must not change a control group.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")

#: v1 writes "no limit" as the largest number that is a multiple of a page.
_NO_LIMIT_BYTES: Final = 2**62


def cpu_quota(proc: Path = PROC, mounted: Path = CGROUPS) -> float | None:
    """Return the smallest CPU quota, in CPUs, of this process's cgroup and those above it. None: no limit."""
    quotas = []
    for controllers, path in _memberships(proc):
        if not controllers:
            quotas += [_quota_v2(each) for each in _upwards(mounted, path)]
        elif "cpu" in controllers:
            quotas += [_quota_v1(each) for each in _upwards(mounted / ",".join(controllers), path)]
            quotas += [_quota_v1(each) for each in _upwards(mounted / "cpu", path)]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(proc: Path = PROC, mounted: Path = CGROUPS) -> int | None:
    """Return the smallest memory limit, in bytes, of this process's cgroup and those above it. None: no limit.

    A limit above the machine's memory counts as none.
    """
    limits = []
    for directory in _memory_directories(proc, mounted):
        limits.append(_number(directory / "memory.max"))
        limits.append(_number(directory / "memory.limit_in_bytes"))
        # v1 also reports limits here that cannot be seen from inside a container.
        limits.append(_field(directory / "memory.stat", "hierarchical_memory_limit"))
    smallest = min((limit for limit in limits if limit is not None and limit < _NO_LIMIT_BYTES), default=None)
    total = _field(proc / "meminfo", "MemTotal:")  # KB
    return None if smallest is None or (total is not None and smallest > total << 10) else smallest


def kills_as_group(proc: Path = PROC, mounted: Path = CGROUPS) -> bool:
    """True if an out-of-memory kill takes all processes of this cgroup, or of one above it (v2), together."""
    return any(_number(each / "memory.oom.group") == 1 for each in _memory_directories(proc, mounted))


class OomKills:
    """Counts the processes of this cgroup that the kernel has killed for lack of memory.

    The kernel counts a kill in the cgroup of the killed process, whichever limit was hit. v2 includes cgroups below.
    Construct it before the process moves to another cgroup. A reading costs 30 µs.
    """

    def __init__(self, proc: Path = PROC, mounted: Path = CGROUPS) -> None:
        # In a container the path may be the host's: then only the mounted root exists.
        files = (
            directory / name
            for directory in _memory_directories(proc, mounted)
            for name in ("memory.events", "memory.oom_control")
        )
        self._file = next((file for file in files if _field(file, "oom_kill") is not None), None)
        self._seen = self.count() or 0

    def count(self) -> int | None:
        """Return the kills since the cgroup was made. None: no counter exists (before Linux 4.13, no controller)."""
        return oom_kills(self._file.parent) if self._file is not None else None

    def new(self) -> int:
        """Return the kills since the last call. 0 also where no counter exists."""
        count = self.count()
        if count is None:
            return 0
        new, self._seen = count - self._seen, count
        return new


def oom_kills(directory: Path) -> int | None:
    """Return the out-of-memory kills of that cgroup. None: the kernel does not count them."""
    count = _field(directory / "memory.events", "oom_kill")
    return _field(directory / "memory.oom_control", "oom_kill") if count is None else count


def memory_group(proc: Path = PROC, mounted: Path = CGROUPS) -> tuple[Path, bool] | None:
    """Return the directory of this process's memory cgroup, and True if it is v2. None: there is none."""
    for controllers, path in sorted(_memberships(proc), reverse=True):  # v1 first: then v2 has no memory controller
        if not controllers or "memory" in controllers:
            # In a container the path may be the host's: then the mounted root is the cgroup.
            places = _upwards(mounted / "memory" if controllers else mounted, path)
            return next((each for each in (places[0], places[-1]) if each.is_dir()), places[-1]), not controllers
    return None


def is_limited_v1(directory: Path) -> bool:
    """True if that cgroup itself has a memory limit (v1). The root never has one."""
    limit = _number(directory / "memory.limit_in_bytes")
    return limit is not None and limit < _NO_LIMIT_BYTES


def _memberships(proc: Path) -> Iterator[tuple[list[str], str]]:
    """Yield for each hierarchy its controllers (none for v2) and the path of this process's cgroup."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # a kernel without cgroups, or a hidden /proc: no limit can be known
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        yield [each for each in controllers.split(",") if each], path


def _memory_directories(proc: Path, mounted: Path) -> Iterator[Path]:
    """Yield the directories of the memory hierarchy, from the process's own cgroup upwards."""
    for controllers, path in _memberships(proc):
        if not controllers:
            yield from _upwards(mounted, path)
        elif "memory" in controllers:
            yield from _upwards(mounted / "memory", path)


def _upwards(root: Path, path: str) -> list[Path]:
    """Return the cgroup's directory and all above it. In a container only the root may exist: paths are the host's."""
    here = root / path.strip("/")
    return [each for each in (here, *here.parents) if each.is_relative_to(root)]


def _quota_v2(directory: Path) -> float | None:
    try:
        quota, period = (directory / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # missing at the root and in some layouts
        return None


def _quota_v1(directory: Path) -> float | None:
    try:
        quota = int((directory / "cpu.cfs_quota_us").read_text())
        return quota / int((directory / "cpu.cfs_period_us").read_text()) if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # missing in some layouts
        return None


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # missing in some layouts; "max"
        return None


def _field(file: Path, name: str) -> int | None:
    """Return the number behind `name` in a file of name-value lines."""
    try:
        lines = file.read_text().splitlines()
    except OSError:  # missing in some layouts
        return None
    for line in lines:
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None
