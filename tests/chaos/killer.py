"""Kills children, zygotes and masters at random, as the kernel, an operator or another container may.

The killer finds them by their parents, not by the logs of supervisors. Each killed master is replaced by another.
"""

import contextlib
import os
import random
import select
import signal
import time
from pathlib import Path

from tests.chaos.accounts import Killed, Who

#: The targets of a hundred kills.
WEIGHTS = {"child": 88, "zygote": 7, "master": 5}


class Killer:
    def __init__(self, stage, runs, start, count, seed):
        """`start(n)` starts the nth of the `count` supervisors that run at a time."""
        self.stage = stage
        self.runs = runs
        self.draw = random.Random(seed)
        self.killed = []
        self._start = start
        self.pools = [start(n) for n in range(count)]

    def kill(self):
        """Kill one, and answer it; None: what was drawn is not there at the moment."""
        what = self.draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        n = self.draw.randrange(len(self.pools))
        pool = self.pools[n]
        zygote = _zygote_of(pool.pid)
        children = _children_of(zygote) if zygote else []
        # A zygote without children still boots, or has just been lost: its end would mean something else, and the
        # death of both in one instant is the one after which no process promises to clear up.
        if not children or not pool.find("master.started"):
            return None
        if what == "child" and self.draw.random() < 0.5:
            children = self._at_work(pool.number) or children
        pid = {"child": self.draw.choice(children), "zygote": zygote, "master": pool.pid}[what]
        killed = self._kill(what, pid, pool.number)
        if killed and what == "master":
            pool.wait()
            self.pools[n] = self._start(n)
        return killed

    def _at_work(self, pool):
        """The children whose handlers have begun and not ended, by their own word."""
        return [run.who.pid for run in self.runs.running() if run.pool == pool and Who.of(run.who.pid) == run.who]

    def _kill(self, what, pid, pool):
        with contextlib.suppress(ProcessLookupError), _pidfd(pid) as pidfd:
            who = Who.of(pid)
            if who is None:
                return None
            at = time.monotonic()
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], 1.0)
            self.killed.append(Killed(what, who, pool, at, time.monotonic()))
            return self.killed[-1]
        return None

    def counts(self):
        return {what: sum(one.what == what for one in self.killed) for what in WEIGHTS}

    def workers(self):
        """Return the number of each pool that there has been, by its worker's name, also if it was killed early."""
        said = [(event, pool.number) for pool in self.stage.pools for event in list(pool.events)]
        return {event["worker"]: number for event, number in said if "worker" in event}

    def forget_dead(self):
        """The records of killed workers live until max-worker-age."""
        living = {pool.number for pool in self.pools}
        for worker, number in self.workers().items():
            if number not in living:
                self.stage.client.deregister(worker)
                self.stage.server.redis.delete(f"{self.stage.prefix}mail:{worker}")


@contextlib.contextmanager
def _pidfd(pid):
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)


def _children_of(pid):
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _zygote_of(pid):
    """The youngest: one that was lost or retired may still be there."""
    found = [child for child in _children_of(pid) if _title(child).startswith("leasehold: zygote")]
    return max(found, default=None, key=lambda child: (Who.of(child) or Who(0, 0)).born_ticks)


def _title(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
