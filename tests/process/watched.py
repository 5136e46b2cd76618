"""The lock that handlers of `menu/watch.py` hold, and the log of its holders, seen from outside."""

import fcntl
import os
import random
import signal
import struct
import time
from dataclasses import dataclass

from tests.lengths import FULL as FULL

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of a 64-bit Linux


class Lock:
    """A lock file that handlers hold. Its inspection takes no lock."""

    def __init__(self, path):
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)

    def holder(self):
        """Return the pid of the present holder; 0 if there is none."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _whence, _start, _length, pid = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
        return 0 if kind == fcntl.F_UNLCK else pid

    def log(self):
        """Return the records: (what, jid, pid, monotonic s); what: start, end or overlap."""
        try:
            with open(f"{self.path}.log") as file:
                lines = [line.split() for line in file]
        except FileNotFoundError:
            return []
        return [(what, jid, int(pid), float(at)) for what, jid, pid, at in lines]

    def overlaps(self):
        """Return the starts that found another holder."""
        return [line for line in self.log() if line[0] == "overlap"]

    def close(self):
        os.close(self._fd)


@dataclass
class Killed:
    what: str  # child, zygote or master
    pid: int
    at: float  # monotonic s


class Killer:
    """Kills at random, and starts a new supervisor for each master that it has killed."""

    def __init__(self, stage, start, seed):
        self.stage = stage
        self.start = start
        self.draw = random.Random(seed)
        self.pools = []
        self.killed = []

    def fill(self, count):
        while len(self.pools) < count:
            self.pools.append(self.start())
        return self

    def kill(self, what, pool=None):
        """Kill a process of this kind, if there is one: a child, a zygote, or a master, which has a successor."""
        pool = pool or self.draw.choice(self.pools)
        if not pool.find("zygote.spawned"):
            return None
        if what == "master":
            pids = [pool.pid]
        elif what == "zygote":
            # Not while it imports: that would look as if the handlers did not boot.
            pids = [pool.zygote_pid] if pool.find("zygote.ready", pid=pool.zygote_pid) else []
        else:
            pids = pool.child_pids()
        if not pids or not self._kill(what, self.draw.choice(pids)):
            return None
        if what == "master":
            pool.wait()
            self.pools[self.pools.index(pool)] = self.start()
        return self.killed[-1]

    def kill_running(self, pid):
        """Kill the child with this pid, which holds the lock now, if it is one of ours."""
        if any(pid in pool.child_pids() for pool in self.pools):
            self._kill("child", pid)

    def _kill(self, what, pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.killed.append(Killed(what, pid, time.monotonic()))
        return True

    def counts(self):
        return {what: sum(1 for one in self.killed if one.what == what) for what in ("child", "zygote", "master")}

    def forget_dead(self):
        """Forget killed workers, whose records would live until max-worker-age."""
        for pool in self.stage.pools:
            if pool not in self.pools:
                # Take any event, because a master killed while it connects has a record but no event of its start.
                for worker in {event["worker"] for event in list(pool.events) if "worker" in event}:
                    self.stage.client.deregister(worker)
                    self.stage.server.redis.delete(f"{self.stage.prefix}mail:{worker}")
