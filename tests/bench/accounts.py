"""Processor time and memory of processes, by the kernel's own accounts: what other programs do does not count."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.bench.benchmark import Unmeasured

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def spent_s(pid: int) -> float:
    """Return the processor time of all threads of a process, also of ended ones, to the nanosecond. 0: it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # what clock_getcpuclockid(3) answers for it
    except OSError:  # EINVAL: there is no such process any more
        return 0.0


def reaped_s(pid: int) -> float:
    """Return the processor time of the children that a process has reaped, to a hundredth of a second."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:  # ENOENT, ESRCH: it has ended
        return 0.0
    return (int(fields[13]) + int(fields[14])) * _TICK_S


def children(pid: int) -> list[int]:
    """Return the children of a process, whichever of its threads has started them."""
    return [int(child) for listed in _of_threads(pid, "children") for child in listed.split()]


def tree(pids: Iterable[int]) -> list[int]:
    """Return these processes and all their descendants."""
    found = list(pids)
    for pid in found:  # grows while it is gone through
        found += children(pid)
    return found


def tree_spent_s(pids: Iterable[int]) -> float:
    """Return the processor time of processes, of their descendants and of all that these have reaped."""
    return sum(spent_s(pid) + reaped_s(pid) for pid in tree(pids))


def memory_mb(pid: int) -> dict[str, float]:
    """Return a process's share of the memory (PSS: a page of n processes counts as an nth) and all its pages (RSS)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except PermissionError as error:
        raise Unmeasured("the kernel tells the memory of a child in its sandbox to root only") from error
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return {"PSS": kilobytes["Pss"] / 1000 * 1.024, "RSS": kilobytes["Rss"] / 1000 * 1.024}


def wakeups(pid: int) -> int:
    """Return how often the threads of a process have waited and were woken."""
    lines = (line for status in _of_threads(pid, "status") for line in status.splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def _of_threads(pid: int, name: str) -> Iterator[str]:
    """Yield the text of a file in /proc for each thread of a process. Threads that end meanwhile are left out."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):
                yield Path(f"/proc/{pid}/task/{task}/{name}").read_text()
