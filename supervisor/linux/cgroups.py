"""What the control groups of this process allow it, v1 and v2. Runs in any process; must not change them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")

#: v1 says "no limit" by the largest number that is a multiple of a page.
_NO_LIMIT_BYTES: Final = 2**62


def cpu_quota(proc: Path = PROC, mounted: Path = CGROUPS) -> float | None:
    """The smallest CPU quota, in CPUs, of this process's cgroup (v1 or v2) and those above it; None: no limit."""
    quotas = []
    for controllers, path in _memberships(proc):
        if not controllers:
            quotas += [_quota_v2(each) for each in _upwards(mounted, path)]
        elif "cpu" in controllers:
            quotas += [_quota_v1(each) for each in _upwards(mounted / ",".join(controllers), path)]
            quotas += [_quota_v1(each) for each in _upwards(mounted / "cpu", path)]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(proc: Path = PROC, mounted: Path = CGROUPS) -> int | None:
    """The smallest memory limit, in bytes, of this process's cgroup (v1 or v2) and those above it; None: no limit.

    One that is larger than the machine's memory limits nothing.
    """
    limits = []
    for directory in _memory_directories(proc, mounted):
        limits.append(_number(directory / "memory.max"))
        limits.append(_number(directory / "memory.limit_in_bytes"))
        # v1 tells the limits above the cgroup here, also those that cannot be seen from inside a container.
        limits.append(_field(directory / "memory.stat", "hierarchical_memory_limit"))
    smallest = min((limit for limit in limits if limit is not None and limit < _NO_LIMIT_BYTES), default=None)
    total = _field(proc / "meminfo", "MemTotal:")  # in KB
    return None if smallest is None or (total is not None and smallest > total << 10) else smallest


def kills_as_group(proc: Path = PROC, mounted: Path = CGROUPS) -> bool:
    """Whether the kernel, when memory runs out, kills all processes of this cgroup or of one above it (v2) together."""
    return any(_number(each / "memory.oom.group") == 1 for each in _memory_directories(proc, mounted))


class OomKills:
    """How many processes of this cgroup the kernel has killed because memory had run out.

    Counted where the killed one was, whosever limit it met; in v2 with all cgroups below. Make it before the process
    moves to another cgroup. Reading it costs 30 µs.
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
        """Kills since the cgroup was made; None: nobody counts them (before Linux 4.13, no control)."""
        return oom_kills(self._file.parent) if self._file is not None else None

    def new(self) -> int:
        """Kills since the last call; 0 also where nobody counts them."""
        count = self.count()
        if count is None:
            return 0
        new, self._seen = count - self._seen, count
        return new


def oom_kills(directory: Path) -> int | None:
    """How many processes of that cgroup the kernel has killed for lack of memory; None: it does not count them."""
    count = _field(directory / "memory.events", "oom_kill")
    return _field(directory / "memory.oom_control", "oom_kill") if count is None else count


def memory_group(proc: Path = PROC, mounted: Path = CGROUPS) -> tuple[Path, bool] | None:
    """This process's cgroup for memory: its directory, and whether it is one of v2. None: it has none."""
    for controllers, path in sorted(_memberships(proc), reverse=True):  # where v1 has the memory, v2 does not
        if not controllers or "memory" in controllers:
            # In a container the path may be the host's: then the mounted root is the cgroup.
            places = _upwards(mounted / "memory" if controllers else mounted, path)
            return next((each for each in (places[0], places[-1]) if each.is_dir()), places[-1]), not controllers
    return None


def is_limited_v1(directory: Path) -> bool:
    """Whether that cgroup itself has a memory limit (v1); the root never has."""
    limit = _number(directory / "memory.limit_in_bytes")
    return limit is not None and limit < _NO_LIMIT_BYTES


def _memberships(proc: Path) -> Iterator[tuple[list[str], str]]:
    """The controllers of each hierarchy, none for v2, and the path of this process's cgroup in it."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # no cgroups in this kernel, or /proc is hidden: then nothing limits us that we could know
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        yield [each for each in controllers.split(",") if each], path


def _memory_directories(proc: Path, mounted: Path) -> Iterator[Path]:
    """Of the hierarchy that controls memory: the own cgroup's directory and all above it, the own one first."""
    for controllers, path in _memberships(proc):
        if not controllers:
            yield from _upwards(mounted, path)
        elif "memory" in controllers:
            yield from _upwards(mounted / "memory", path)


def _upwards(root: Path, path: str) -> list[Path]:
    """The cgroup's directory and all above it. In a container the path may be the host's: only the root exists."""
    here = root / path.strip("/")
    return [each for each in (here, *here.parents) if each.is_relative_to(root)]


def _quota_v2(directory: Path) -> float | None:
    try:
        quota, period = (directory / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # not there at the root, and not in every layout
        return None


def _quota_v1(directory: Path) -> float | None:
    try:
        quota = int((directory / "cpu.cfs_quota_us").read_text())
        return quota / int((directory / "cpu.cfs_period_us").read_text()) if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # not there in every layout
        return None


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # not there in every layout; "max"
        return None


def _field(file: Path, name: str) -> int | None:
    """The number behind `name` in a file of such lines."""
    try:
        lines = file.read_text().splitlines()
    except OSError:  # not there in every layout
        return None
    for line in lines:
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None
