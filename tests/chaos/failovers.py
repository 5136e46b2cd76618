"""Tells what failovers lose: holds the word that producers got of their puts against that of Redis and supervisors."""

import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

from supervisor import Client
from tests.chaos import producer
from tests.lengths import SOON_S

_BATCH = 1000
#: Events by which supervisors tell of a failover and its consequences.
_TOLD = {"redis.lost", "redis.connected", "lease.lost", "job.stale", "job.died", "job.failed", "job.unknown"}


class Elections:
    """Listens to sentinels for the first word that another server is the primary (unix s)."""

    def __init__(self, sentinels):
        self._said = []  # unix s
        self._news = threading.Condition()
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._listen, args=[each], daemon=True) for each in sentinels]
        for each in self._threads:
            each.start()

    def _listen(self, sentinel):
        with redis.Redis(port=sentinel.port, protocol=2) as connection, connection.pubsub() as heard:
            heard.subscribe("+switch-master")
            while not self._closing.is_set():
                message = heard.get_message(ignore_subscribe_messages=True, timeout=0.2)
                if message is not None:
                    with self._news:
                        self._said.append(time.time())
                        self._news.notify_all()

    def wait_for_one_after(self, unix):
        """Return when, after this time, a server was elected."""

        def later():
            return next((each for each in self._said if each > unix), None)

        with self._news:
            assert self._news.wait_for(later, 2 * SOON_S), "no server was elected"
            return later()

    def close(self):
        self._closing.set()
        for each in self._threads:
            each.join(5.0)


@contextmanager
def elections(sentinels):
    heard = Elections(sentinels)
    yield heard
    heard.close()


@dataclass
class Failover:
    """The loss of one server, and the times from the election to the supervisors' next leases (s)."""

    how: str
    first_lease_s: float
    last_lease_s: float


def table(failovers):
    """Return a line for each way in which servers were lost: how long after the election supervisors have leased."""
    first, last = _spread(failovers, "first_lease_s"), _spread(failovers, "last_lease_s")
    yield f"all {len(failovers)}: from the election to the first lease {first}; of the last supervisor {last}"
    for how in dict.fromkeys(each.how for each in failovers):
        those = [each for each in failovers if each.how == how]
        first, last = _spread(those, "first_lease_s"), _spread(those, "last_lease_s")
        yield f"{how} {len(those)} times: from the election to the first lease {first}; of the last supervisor {last}"


def _spread(failovers, name):
    found = sorted(getattr(each, name) for each in failovers)
    p99 = found[min(len(found) - 1, len(found) * 99 // 100)]
    return f"p50 {found[len(found) // 2]:.2f} s, p99 {p99:.2f} s, max {found[-1]:.2f} s"


@dataclass
class Puts:
    """The puts into a namespace, by the producers' word in `files`, and how each job has ended.

    Redis forgets completed jobs sometime, and a log takes memory: `collect` goes with each failover.
    """

    stage: object
    namespace: str
    pools: list
    files: list
    told: dict = field(default_factory=dict)  # jid -> acknowledged, unknown or refused
    ended: dict = field(default_factory=dict)  # jid -> complete, or the group of its failure
    accepted: Counter = field(default_factory=Counter)  # jid -> completions, by the supervisors
    events: Counter = field(default_factory=Counter)  # what else the supervisors have said of jobs and leases
    completed_again: set = field(default_factory=set)  # jids whose history has more than one completion
    _read_bytes: Counter = field(default_factory=Counter)

    def collect(self):
        """Read what is new, in all places."""
        for file in self.files:
            with open(file) as lines:
                lines.seek(self._read_bytes[file])
                self.told.update(line.split() for line in lines.read().splitlines())
                self._read_bytes[file] = lines.tell()
        self._take_events()
        open_jids = [jid for jid in self.told if jid not in self.ended]
        with Client(self.stage.server.url, self.namespace) as client:
            for first in range(0, len(open_jids), _BATCH):
                for job in client.jobs(*open_jids[first : first + _BATCH]):
                    if job is not None and job.state in ("complete", "failed"):
                        self._note_end(job)

    def _take_events(self):
        with self.stage.news:
            for pool in self.pools:
                for event in pool.events:
                    if event["event"] == "job.completed":
                        self.accepted[event["jid"]] += 1
                    elif event["event"] in _TOLD:
                        self.events[event["event"]] += 1
                pool.events[:] = [each for each in pool.events if each["event"] == "master.started"]

    def _note_end(self, job):
        self.ended[job.jid] = "complete" if job.state == "complete" else job.failure["group"]
        if sum(each["what"] == "completed" for each in job.history) > 1:
            self.completed_again.add(job.jid)

    def of(self, word):
        return [jid for jid, told in self.told.items() if told == word]

    def lost(self):
        """Return the jobs whose put was acknowledged, and of which there is no trace."""
        return [jid for jid in self.of("acknowledged") if jid not in self.ended]

    def completed_twice(self):
        return self.completed_again | {jid for jid, count in self.accepted.items() if count > 1}

    def wait_until_ended(self):
        """Wait until all that is there has ended. Check that all lies where it belongs."""
        with Client(self.stage.server.url, self.namespace) as client:
            self.stage.wait_until_counted(lambda: client.queue("default").counts().total == 0, 120)
            assert client.check() == []

    def account(self):
        """Say what became of the puts."""
        unknown = self.of("unknown")
        there = sum(jid in self.ended for jid in unknown)
        return (
            f"{len(self.of('acknowledged'))} puts acknowledged, {len(self.lost())} of them lost; "
            f"{len(unknown)} unknown, {there} of them there; {len(self.of('refused'))} refused; "
            f"{len(self.completed_twice())} completed twice; ends: {dict(Counter(self.ended.values()))}; "
            f"said: {dict(sorted(self.events.items()))}"
        )


def leases_after(pools, unix):
    """Return for each supervisor the first time after this one when it has leased; 0: not yet."""
    granted = [[each["time"] for each in pool.find("lease.granted") if each["time"] > unix] for pool in pools]
    return [min(each, default=0) for each in granted]


def await_leases(stage, pools, how, since_unix):
    """Wait until all of these supervisors have leased again."""
    stage.wait_until(lambda: all(leases_after(pools, since_unix)), f"leases after one was {how}", 60)
    took_s = [unix - since_unix for unix in leases_after(pools, since_unix)]
    return Failover(how, min(took_s), max(took_s))


@contextmanager
def producing(stage, namespaces, acknowledge):
    """Have a process put jobs into each of the namespaces for as long as the block lasts.

    Yields the files of what they were told.
    """
    files = [stage.directory / f"told-{n}" for n in range(len(namespaces))]
    with ExitStack() as stack:
        for n, (namespace, file) in enumerate(zip(namespaces, files, strict=True)):
            file.touch()
            words = [sys.executable, producer.__file__, stage.server.url, namespace, acknowledge, n, file]
            started = subprocess.Popen(
                list(map(str, words)), stdin=subprocess.PIPE, env={"PYTHONPATH": str(Path(__file__).parents[2])}
            )
            stack.callback(_end, started)
        yield files


def _end(process):
    process.communicate(timeout=2 * SOON_S)
    assert process.returncode == 0
