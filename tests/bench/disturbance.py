"""Tells whether the machine did something else while a row was measured, by a look at /proc before and after.

Processes that are not below the measuring one count as others. Threads of the kernel do not count, because the kernel
works for the measured processes, too. Other containers are invisible, except for the time that a hypervisor steals.
"""

import os
import time
from collections import Counter
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Above these shares of the machine's processor time a row counts as disturbed.
STEAL_MOST, OTHERS_MOST = 0.01, 0.03
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_KTHREADD = 2  # the pid of the kernel thread that is the parent of all others
_LOOK_S = 1.0


class Disturbance(NamedTuple):
    """Shares of the machine's processor time during one row."""

    steal: float
    others: float
    who: str  # the other program that used most of it

    @property
    def is_disturbed(self) -> bool:
        return self.steal > STEAL_MOST or self.others > OTHERS_MOST

    @property
    def size(self) -> float:
        return self.steal + self.others

    def __str__(self) -> str:
        who = f" ({self.who})" if self.who else ""
        return f"{self.steal:.1%} stolen, {self.others:.1%} used by others{who}"


class Process(NamedTuple):
    """One process, as it was at a look. `reaped_s` is what its ended children had used."""

    name: str
    parent: int
    spent_s: float
    reaped_s: float


class Look(NamedTuple):
    """The machine at one moment. Processes by their pid and start, as pids are used again."""

    at: float
    stolen_s: float
    processes: Mapping[tuple[int, str], Process]


def look() -> Look:
    """Read the processor time of all processes from /proc."""
    processes = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            spent_s, reaped_s = (sum(map(int, fields[first : first + 2])) * _TICK_S for first in (11, 13))
            processes[int(pid), fields[19]] = Process(name, int(fields[1]), spent_s, reaped_s)
    steal = Path("/proc/stat").read_text().split(maxsplit=9)[8]
    return Look(time.monotonic(), int(steal) * _TICK_S, processes)


def between(before: Look, after: Look, measuring: int, processors: int) -> Disturbance:
    """Return the disturbance between two looks by all but the process `measuring` and its descendants."""
    then, now = (_others(each, {measuring, _KTHREADD}) for each in (before, after))
    ended_s = _ended(then, now)
    spent_s = reaped_s = 0.0
    by_name: Counter[str] = Counter()
    for key, process in now.items():
        earlier = then.get(key, process._replace(spent_s=0.0, reaped_s=0.0))
        grown_s, added_s = process.spent_s - earlier.spent_s, process.reaped_s - earlier.reaped_s
        spent_s, reaped_s = spent_s + grown_s, reaped_s + added_s
        by_name[process.name] += grown_s + max(0.0, added_s - ended_s[key[0]])
    others_s = spent_s + max(0.0, reaped_s - ended_s.total())
    all_s = (after.at - before.at) * processors
    who, most_s = max(by_name.items(), key=lambda item: item[1], default=("", 0.0))
    return Disturbance((after.stolen_s - before.stolen_s) / all_s, others_s / all_s, who if most_s else "")


def wait_for_quiet(measuring: int, patience_s: float) -> bool:
    """Wait until nothing else has disturbed the machine for a second. Return False if that takes longer."""
    deadline_at = time.monotonic() + patience_s
    while time.monotonic() < deadline_at:
        before = look()
        time.sleep(_LOOK_S)
        if not between(before, look(), measuring, os.cpu_count() or 1).is_disturbed:
            return True
    return False


def _others(seen: Look, roots: Set[int]) -> dict[tuple[int, str], Process]:
    """Return all processes but these and their descendants."""
    parents = {pid: process.parent for (pid, _), process in seen.processes.items()}

    def is_below(pid: int) -> bool:
        while pid and pid not in roots:
            pid = parents.get(pid, 0)
        return pid in roots

    return {key: process for key, process in seen.processes.items() if not is_below(key[0])}


def _ended(before: Mapping[tuple[int, str], Process], after: Mapping[tuple[int, str], Process]) -> Counter[int]:
    """Return the time that ended processes had used before the first look, by their nearest living ancestor.

    Mostly the ancestor has reaped them, and its own account contains their time now.
    """
    parents = {pid: process.parent for (pid, _), process in before.items()}
    alive = {pid for pid, _ in before.keys() & after.keys()}
    found: Counter[int] = Counter()
    for key, process in before.items():
        if key not in after:
            ancestor = process.parent
            while ancestor and ancestor not in alive:
                ancestor = parents.get(ancestor, 0)
            found[ancestor] += process.spent_s + process.reaped_s
    return found
