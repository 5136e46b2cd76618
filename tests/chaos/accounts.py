"""Two accounts of what happened to the jobs, held against each other: the runs, by the word of the handlers and of who
killed them, which owes nothing to the supervisor; and the ends, as each job's history in Redis tells them.
"""

import fcntl
import os
import re
import select
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

_PIPE_BYTES = 2**20
_REASON = re.compile(r"SIG[A-Z0-9]+|SIGRT\+\d+|exit-\d+|timeout|memory|disk|oom|lost|boot")
#: Ways to end an attempt, in the words of a history.
_ENDS = {"completed", "advanced", "retried", "failed", "died", "released"}
#: The handler's last word before each of them, where it ended by itself.
_WORDS = {"completed": {"done"}, "retried": {"raise", "retry"}, "failed": {"fail"}}


@dataclass(frozen=True)
class Who:
    """A process. The time of its birth tells it from others that have had its pid."""

    pid: int
    born_ticks: int

    @classmethod
    def of(cls, pid):
        """Return the process of this pid. None: there is none any more, or only its zombie."""
        try:
            with open(f"/proc/{pid}/stat") as file:
                words = file.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if words[0] == "Z" else cls(pid, int(words[19]))


@dataclass(frozen=True)
class Killed:
    what: str  # child, zygote or master
    who: Who
    pool: int
    at: float  # monotonic s
    gone_at: float  # when the kernel said that it was dead


@dataclass
class Run:
    jid: str
    attempt: int
    pool: int
    who: Who
    at: float  # monotonic s
    word: str | None = None  # its last one; None: it never came to it
    ended_at: float = 0.0  # with that

    def is_over(self):
        """Return whether the run has said its last word, or its process is gone."""
        return self.word is not None or Who.of(self.who.pid) != self.who


@dataclass
class Runs:
    """The runs that the handlers of `menu/chaos.py` report through a named pipe. A thread reads them."""

    directory: Path
    all: list = field(default_factory=list)
    overlaps: list = field(default_factory=list)

    def __post_init__(self):
        self._locks = self.directory / "locks"
        self._locks.mkdir()
        self._pipe = self.directory / "runs"
        os.mkfifo(self._pipe)
        self._fd = os.open(self._pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._rest = b""
        self._open = {}  # by process: the run that has not had its last word
        self._last = {}  # by process: the last run
        self._synced = 0
        self._news = threading.Condition()
        self._closing, self._close = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._read, name="runs", daemon=True)
        self._thread.start()

    def environment(self, pool):
        """Return the variables by which a supervisor's handlers find the pipe. `pool`: number of the supervisor."""
        return {"CHAOS_LEDGER": str(self._pipe), "CHAOS_LOCKS": str(self._locks), "CHAOS_POOL": str(pool)}

    def _read(self):
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._closing, select.POLLHUP)
        while not any(fd == self._closing for fd, _ in poll.poll()):
            *lines, self._rest = (self._rest + os.read(self._fd, _PIPE_BYTES)).split(b"\n")
            with self._news:
                for line in lines:
                    self._note(*line.decode().split(" "))
                self._news.notify_all()

    def _note(self, what, jid, attempt, pool, pid, born_ticks, at, word):
        who = Who(int(pid), int(born_ticks))
        if what == "sync":
            self._synced += 1
        elif what == "overlap":
            self.overlaps.append((jid, int(attempt), who, float(at)))
        elif what == "start":
            self._open[who] = self._last[who] = run = Run(jid, int(attempt), int(pool), who, float(at))
            self.all.append(run)
        else:
            run = self._last[who]
            assert (run.jid, run.attempt) == (jid, int(attempt)), (run, jid, attempt)
            self._open.pop(who, None)
            # A run may be interrupted after it has said that it is done.
            run.word, run.ended_at = f"{run.word}, {word}" if run.word else word, float(at)

    def wait_for(self, count, timeout_s):
        """Wait for `count` runs. Return whether there were so many in time."""
        with self._news:
            return self._news.wait_for(lambda: len(self.all) >= count, timeout_s)

    def sync(self):
        """Wait until all reports are read that have been written by now."""
        with self._news:
            wanted = self._synced + 1
        os.write(self._fd, b"sync - 0 0 0 0 0 -\n")
        with self._news:
            assert self._news.wait_for(lambda: self._synced >= wanted, 20)

    def running(self):
        """Return the runs without a last word. Some of them may have been killed."""
        with self._news:
            return list(self._open.values())

    def by_attempt(self):
        """(jid, attempt) -> its runs, in their order. More than one where its master died before it could tell."""
        found = defaultdict(list)
        for run in self.all:
            found[run.jid, run.attempt].append(run)
        return found

    def close(self):
        os.close(self._close)
        self._thread.join(5.0)
        os.close(self._closing)
        os.close(self._fd)


class Accounts:
    """`pools`: worker -> number; `histories`: of all jobs, by jid."""

    def __init__(self, runs, killed, pools, histories):
        self.runs = runs
        self.by_attempt = runs.by_attempt()
        self.killed = killed
        self.pools = pools
        self.histories = histories
        self.children = {one.who for one in killed if one.what == "child"}
        self.masters = {one.pool for one in killed if one.what == "master"}
        self.zygotes = Counter(one.pool for one in killed if one.what == "zygote")
        self.wrong = []
        self.reasons = defaultdict(int)
        self.unseen = 0  # children that died by us with a job in their hands of which its handler had said nothing

    def compare(self):
        """Describe each difference between the runs and the histories of jobs."""
        for jid, history in self.histories.items():
            ends = _ends(history)
            for attempt, end in enumerate(ends, 1):
                why = self._why_not(end, self.by_attempt.pop((jid, attempt), []))
                if why:
                    self.wrong.append(f"{jid}, attempt {attempt}: {why}; {end}; {history}")
            completions = [end for end in ends if end["what"] == "completed"]
            if len(completions) > 1 or (completions and ends[-1] is not completions[0]):
                self.wrong.append(f"{jid} has completed {len(completions)} times: {history}")
        self.wrong += [f"runs of which no history tells: {runs}" for runs in self.by_attempt.values()]
        if self.unseen > len(self.children):
            self.wrong.append(f"{self.unseen} deaths of children unseen, and only {len(self.children)} were killed")
        return self.wrong

    def overlaps(self):
        """Describe each run that met another one, or its leftovers, with the runs of its job and the kills before."""
        told = []
        for jid, attempt, who, at in self.runs.overlaps:
            runs = [run for run in self.runs.all if run.jid == jid]
            pools = {run.pool for run in runs}
            near = [one for one in self.killed if one.pool in pools and at - 10 < one.at < at]
            told.append(f"{jid}, attempt {attempt}, {who} at {at}: {runs}; killed before: {near}")
        return told

    def _why_not(self, end, runs):
        """Return why this end of an attempt cannot be the end of its runs. None: it can."""
        for run in runs[:-1]:
            if run.pool not in self.masters:
                return f"{run} came to no end, and its master lived"
        self.reasons[end.get("reason") or end["what"]] += 1
        return self._why_not_last(end, runs[-1] if runs else None)

    def _why_not_last(self, end, run):
        pool = self.pools.get(end.get("worker"))
        match end["what"], end.get("reason", ""):
            case "died", "SIGKILL":
                if run is None:
                    self.unseen += 1
                elif run.who not in self.children:
                    return f"nobody has killed {run}"
            case "died", "lost":
                # One that has run alone at so many losses of a zygote in a row is taken for their cause.
                if pool not in self.masters and self.zygotes[pool] < 3:
                    return f"the master of pool {pool} was not killed"
            case "died", "exit-3":
                return None if run and run.word == "exit-3" else f"{run} has not left"
            case "died", reason:
                return f"nobody has died of {reason}"
            case "released", "zygote-lost":
                return None if self.zygotes[pool] else f"no zygote of pool {pool} was killed"
            case "released", reason:
                return f"nobody has interrupted it for {reason!r}"
            case what, _:
                return None if run and run.word in _WORDS[what] else f"{run} has not ended so"
        if run is not None and run.pool != pool:
            return f"{run} was no run of pool {pool}"
        return None


def _ends(history):
    """Return the end of each attempt. The failure that follows a job's last death is not counted as a further end."""
    return [one for one in history if one["what"] in _ENDS and not str(one.get("group", "")).startswith("died:")]


def is_reason(text):
    """Return whether a text is one of the fixed reasons of a death."""
    return _REASON.fullmatch(text) is not None
