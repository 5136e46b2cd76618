"""The queue in plain Python, without Redis: what the engine promises, one short method per verb. Times are whole ms.

A refusal is raised, as in the engine, before anything has changed; Lost is what a stale lease is told.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

DEFAULTS = {
    "heartbeat": 30, "grace": 5, "max-deaths": 3, "max-concurrency": 0, "paused": 0,
    "jobs-history": 604800, "jobs-history-count": 50000,
}  # fmt: skip
KEPT_AT_A_MOVE = ("priority", "retries", "max_deaths", "policy", "tags")
SPARE = 16  # what has come in time is fetched into the line beyond what a lease wants
UNSET: Any = object()


class Refused(Exception):
    """A dependency is in the way."""


class Missing(Exception):
    """There is no such job."""


class Lost(Exception):
    """The lease is not the worker's any more."""


@dataclass(frozen=True)
class Hold:
    """A lease."""

    jid: str
    token: int
    worker: str


@dataclass
class Job:
    """A job. Where it lies follows from `state`; waiting with a turn is in front."""

    jid: str
    queue: str
    klass: str
    data: Any
    put_at: int
    priority: int = 0
    retries: int = 5
    max_deaths: int | None = None
    policy: str = "wait"  # what becomes of it when a parent fails or is cancelled
    tags: list[str] = field(default_factory=list)
    spawned_from: str | None = None
    state: str = "waiting"
    failures: int = 0
    deaths: int = 0
    interruptions: int = 0
    seq: int = 0  # its place in the line of its priority
    turn: int | None = None  # the token of its first lease since it last went to the back
    hold: Hold | None = None
    started: bool = False
    expires_at: int = 0
    due_at: int | None = None
    parents: dict[str, int] = field(default_factory=dict)  # those that it still waits for, and since when
    group: str | None = None
    ended_at: int = 0
    tie: int = 0  # the order of what was completed in the same millisecond is the engine's


@dataclass
class Recurring:
    """A pattern that makes a job at each of its times."""

    jid: str
    queue: str
    klass: str
    data: Any
    every: int
    next_at: int
    missed: str = "all"
    backlog: int | None = None
    count: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def times(self, now: int) -> list[int]:
        """The due times that are to run: all, the last few, only the last, or only one that has just come."""
        due = list(range(self.next_at, now + 1, self.every))
        if self.missed == "skip":
            return [at for at in due[-1:] if now - at <= min(60_000, self.every)]
        if self.missed == "once":
            return due[-1:]
        return due if self.backlog is None else due[-self.backlog - 1 :]

    def following(self, now: int) -> int:
        return self.next_at + ((now - self.next_at) // self.every + 1) * self.every


class Model:
    """All of a namespace."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.jobs: dict[str, Job] = {}
        self.first_put: dict[str, int] = {}  # of each known queue
        self.config: dict[str, float] = {}
        self.cursors: dict[str, str] = {}  # where each worker's last round-robin lease stopped
        self.seen: dict[str, int] = {}  # when each worker last leased or renewed
        self.tagged: dict[str, dict[str, int]] = {}  # per tag its jids, and since when
        self.tracked: dict[str, int] = {}
        self.recurring: dict[str, Recurring] = {}
        self.completions = 0
        self.tokens = 0
        self.seqs = 0

    def all_or_nothing(self, verbs: Iterable[Callable[["Model"], Any]]) -> list[Any]:
        """What the verbs of one batch answer; a refusal of one is one of all, and nothing has changed."""
        before = copy.deepcopy(self.__dict__)
        try:
            return [verb(self) for verb in verbs]
        except (Refused, Missing):
            self.__dict__.update(before)
            raise

    # What is to be seen.

    def state(self, job: Job) -> str:
        """A job's state as of now."""
        if job.state == "running" and job.expires_at <= self.now:
            return "stalled"
        if job.state == "scheduled" and job.due_at <= self.now:
            return "waiting"
        return job.state

    @property
    def queues(self) -> list[str]:
        """All known ones, in the order of their first put."""
        return sorted(self.first_put, key=lambda queue: (self.first_put[queue], queue))

    def counts(self, queue: str) -> dict[str, int]:
        """How many jobs of a queue are in each state."""
        counts = dict.fromkeys(("waiting", "running", "stalled", "scheduled", "depends"), 0)
        counts["recurring"] = sum(pattern.queue == queue for pattern in self.recurring.values())
        for job in self.jobs.values():
            if job.queue == queue and self.state(job) in counts:
                counts[self.state(job)] += 1
        return counts

    def front(self, queue: str) -> list[Job]:
        """What was handed back or lost, in the order of the first leases."""
        there = [job for job in self._in(queue, "waiting") if job.turn is not None]
        return sorted(there, key=lambda job: (job.turn, job.jid))

    def line(self, queue: str) -> list[Job]:
        """What waits behind the front."""
        there = [job for job in self._in(queue, "waiting") if job.turn is None]
        return sorted(there, key=lambda job: (job.priority, job.seq))

    def failed(self, group: str) -> list[Job]:
        """A group's jobs, oldest first."""
        there = [job for job in self.jobs.values() if job.state == "failed" and job.group == group]
        return sorted(there, key=lambda job: (job.ended_at, job.jid))

    def completed(self) -> list[Job]:
        """All that are kept, oldest first."""
        there = [job for job in self.jobs.values() if job.state == "complete"]
        return sorted(there, key=lambda job: (job.ended_at, job.tie))

    def children(self, jid: str) -> list[Job]:
        """The jobs that wait for this one, in the order in which they began to."""
        there = [job for job in self.jobs.values() if jid in job.parents]
        return sorted(there, key=lambda job: (job.parents[jid], job.jid))

    def peek(self, queue: str, n: int) -> list[str]:
        """What leases would give next, were the queue neither paused nor full."""
        ahead = copy.deepcopy(self)
        ahead.config |= {f"paused-{queue}": 0, f"max-concurrency-{queue}": 0}
        ahead.recurring = {}
        return [hold.jid for hold in ahead.lease("peek", [queue], n)]

    def times(self) -> set[int]:
        """When something begins or ends by itself."""
        times = {pattern.next_at for pattern in self.recurring.values()}
        for job in self.jobs.values():
            if job.state == "running":
                times |= {job.expires_at, job.expires_at + self.option_ms("grace", job.queue)}
            elif job.due_at is not None:
                times.add(job.due_at)
        return times

    def at_hand(self, queue: str) -> list[Any]:
        """What a lease would look at now."""
        return [*self.front(queue), *self.line(queue), *self._due(queue), *self.expired(queue), *self._coming(queue)]

    def held_by(self, worker: str) -> list[Job]:
        """What a worker holds, in the order of its leases."""
        there = [job for job in self.jobs.values() if job.hold and job.hold.worker == worker]
        return sorted(there, key=lambda job: job.hold.token)

    def option(self, name: str, queue: str | None = None) -> float:
        """An option of a queue: its own, else everybody's, else the default."""
        return self.config.get(f"{name}-{queue}", self.config.get(name, DEFAULTS[name]))

    def option_ms(self, name: str, queue: str) -> int:
        return int(self.option(name, queue) * 1000)

    def _in(self, queue: str, state: str) -> Iterator[Job]:
        return (job for job in self.jobs.values() if job.queue == queue and job.state == state)

    def _job(self, jid: str) -> Job:
        if jid not in self.jobs:
            raise Missing
        return self.jobs[jid]

    def _held(self, hold: Hold) -> Job:
        job = self.jobs.get(hold.jid)
        if job is None or job.hold != hold:
            raise Lost
        return job

    # Putting, and moving: a new stage begins.

    def put(
        self,
        queue: str,
        jid: str,
        klass: str,
        data: Any,
        delay: int = 0,
        depends: Iterable[str] | None = None,
        **options: Any,
    ) -> None:
        """Creates a job, or moves a known one: what is not given it keeps, but its counts begin anew."""
        old = self.jobs.get(jid)
        parents = list(old.parents if old and not depends else depends or ())
        self._refuse_circle(jid, parents)
        kept = {name: getattr(old, name) for name in KEPT_AT_A_MOVE} if old else {}
        job = Job(jid, queue, klass, data, self.now, **{**kept, **options})
        if old:
            job.spawned_from = old.spawned_from
        self.jobs[jid] = job
        self.seqs += 1
        job.seq = self.seqs
        self.first_put.setdefault(queue, self.now)
        self._index_tags(jid, old.tags if old else [], job.tags)
        self._lay_down(job, self.now + delay, parents)

    def add(self, queue: str, jid: str, klass: str, data: Any, **options: Any) -> bool:
        """Puts a job that is not there yet."""
        if jid in self.jobs:
            return False
        self.put(queue, jid, klass, data, **options)
        return True

    def move(self, jid: str, queue: str, delay: int = 0) -> None:
        job = self._job(jid)
        self.put(queue, jid, job.klass, job.data, delay)

    def _refuse_circle(self, jid: str, parents: list[str]) -> None:
        above: set[str] = set()
        todo = list(parents)
        while todo:
            parent = todo.pop()
            if parent in self.jobs and parent not in above:
                todo += self.jobs[parent].parents
            above.add(parent)
        if jid in above:
            raise Refused

    def _unmet(self, job: Job, parents: Iterable[str]) -> list[str] | None:
        """Which of these a job has to wait for; unknown ones count as complete. None: one's failure is its own."""
        states = {parent: self.jobs[parent].state for parent in parents if parent in self.jobs}
        if job.policy == "fail" and "failed" in states.values():
            return None
        met = ("complete",) if job.policy == "wait" else ("complete", "failed")
        return [parent for parent, state in states.items() if state not in met]

    def _lay_down(self, job: Job, due_at: int, parents: Iterable[str]) -> None:
        """Into depends, else scheduled, else the back of its line."""
        unmet = self._unmet(job, parents)
        if unmet is None:
            self._fail(job, "parent-failed")
        elif unmet:
            job.state, job.parents = "depends", dict.fromkeys(unmet, self.now)
            job.due_at = due_at if due_at > self.now else None
        else:
            self._set_out(job, due_at)

    def _set_out(self, job: Job, due_at: int) -> None:
        if due_at > self.now:
            self._schedule(job, due_at)
        else:
            self._to_back(job)

    # The places. Whoever held the job has lost it.

    def _leave(self, job: Job) -> None:
        job.hold, job.started, job.due_at, job.group, job.parents = None, False, None, None, {}

    def _to_back(self, job: Job) -> None:
        self._leave(job)
        self.seqs += 1
        job.state, job.turn, job.seq = "waiting", None, self.seqs

    def _to_front(self, job: Job) -> None:
        self._leave(job)
        job.state = "waiting"

    def _schedule(self, job: Job, due_at: int) -> None:
        self._leave(job)
        job.state, job.due_at = "scheduled", due_at

    def _fail(self, job: Job, group: str) -> None:
        self._leave(job)
        job.state, job.group, job.ended_at = "failed", group, self.now
        self._fail_children(job, ("fail",))

    def _complete(self, job: Job) -> None:
        self._leave(job)
        job.state, job.turn, job.ended_at = "complete", None, self.now
        for child in self.children(job.jid):
            self._free(child, job.jid)
        if self._most_kept() > 0:
            self.completions += 1
        else:
            self._delete(job)

    def _free(self, child: Job, parent: str) -> None:
        """One parent less to wait for."""
        child.parents.pop(parent)
        if not child.parents:
            self._set_out(child, child.due_at or self.now)

    def _fail_children(self, job: Job, failing: Sequence[str]) -> None:
        for child in self.children(job.jid):
            if job.jid not in child.parents:
                pass  # it has failed already, by way of a brother
            elif child.policy == "run":
                self._free(child, job.jid)
            elif child.policy in failing:
                self._fail(child, "parent-failed")

    def _delete(self, job: Job) -> None:
        """Nobody can wait any longer for what is gone."""
        self._index_tags(job.jid, job.tags, [])
        self._fail_children(job, ("fail", "wait"))
        del self.jobs[job.jid]

    # Leasing.

    def lease(
        self,
        worker: str,
        queues: Sequence[str],
        count: int = 1,
        ttl: int | None = None,
        order: str = "strict",
        starting: int = 1000,
    ) -> list[Hold]:
        """The next jobs of some queues: the front first, then by priority, then as they were put."""
        self.seen[worker] = self.now
        asleep = {
            job.jid for job in self.jobs.values() if job.state == "depends"
        }  # freed meanwhile, they come next time
        given: list[Job] = []
        if order == "strict" or len(queues) == 1:
            for queue in queues:
                given += self._serve(queue, count - len(given), asleep)
        else:
            turns = self._turns(queues, count, self.cursors.get(worker))
            served = {queue: self._serve(queue, turns.count(queue), asleep) for queue in queues}
            given = [served[queue].pop(0) for queue in turns if served[queue]]
            if given:
                self.cursors[worker] = given[-1].queue
        return [self._give(job, worker, ttl, i < starting) for i, job in enumerate(given)]

    def _serve(self, queue: str, most: int, asleep: set[str]) -> list[Job]:
        """What a queue gives. A paused or full one gives nothing new, but what lost workers held is looked after."""
        paused = self.option("paused", queue)
        if most <= 0 and not paused:
            return []
        expired, may_start = self.expired(queue), self._allowed(queue, most)
        for job in expired:
            self._lose(job)
        if not paused:
            fresh = self._promote(queue) + self._spawn(queue, most + SPARE)
            for job in sorted(fresh, key=lambda job: job.priority):
                self._to_back(job)
        return [job for job in [*self.front(queue), *self.line(queue)] if job.jid not in asleep][:may_start]

    def _allowed(self, queue: str, most: int) -> int:
        if self.option("paused", queue):
            return 0
        running = len(list(self._in(queue, "running"))) - len(self.expired(queue))
        concurrency = self.option("max-concurrency", queue)
        return max(0, min(most, int(concurrency) - running)) if concurrency else most

    def _turns(self, queues: Sequence[str], count: int, last: str | None) -> list[str]:
        """One of each queue that has work, and again, going on behind the one where the last lease stopped."""
        left = {queue: self._allowed(queue, len(self.at_hand(queue))) for queue in queues}
        at, turns = queues.index(last) if last in queues else -1, []
        while len(turns) < count and any(left.values()):
            at = (at + 1) % len(queues)
            if left[queues[at]] > 0:
                left[queues[at]] -= 1
                turns.append(queues[at])
        return turns

    def _coming(self, queue: str) -> list[Recurring]:
        found = [one for one in self.recurring.values() if one.queue == queue and one.next_at <= self.now]
        return sorted(found, key=lambda pattern: (pattern.next_at, pattern.jid))

    def _due(self, queue: str) -> list[Job]:
        found = [job for job in self._in(queue, "scheduled") if job.due_at <= self.now]
        return sorted(found, key=lambda job: (job.due_at, job.seq))

    def _promote(self, queue: str) -> list[Job]:
        """What is due goes to the front if it has a turn; the others, which this answers, go to the back."""
        due = self._due(queue)
        for job in due:
            if job.turn is not None:
                self._to_front(job)
        return [job for job in due if job.turn is None]

    def _spawn(self, queue: str, most: int) -> list[Job]:
        """The jobs of due recurrences, as if put at their times; where they lie is still to be said."""
        spawned: list[Job] = []
        for pattern in self._coming(queue):
            left, times = most - len(spawned), pattern.times(self.now)
            if left <= 0:
                break
            for at in times[:left]:
                pattern.count += 1
                jid = f"{pattern.jid}-{pattern.count}"
                job = Job(jid, queue, pattern.klass, pattern.data, at, spawned_from=pattern.jid, **pattern.options)
                self.jobs[jid] = job
                self._index_tags(jid, [], job.tags)
                spawned.append(job)
            pattern.next_at = times[left] if left < len(times) else pattern.following(self.now)
        return spawned

    def _give(self, job: Job, worker: str, ttl: int | None, started: bool) -> Hold:
        self.tokens += 1
        job.state, job.hold, job.started = "running", Hold(job.jid, self.tokens, worker), started
        job.turn = job.turn or self.tokens
        job.expires_at = self.now + (self.option_ms("heartbeat", job.queue) if ttl is None else ttl)
        return job.hold

    def expired(self, queue: str) -> list[Job]:
        """Whose leases ended more than a grace ago."""
        limit = self.now - self.option_ms("grace", queue)
        found = [job for job in self._in(queue, "running") if job.expires_at <= limit]
        return sorted(found, key=lambda job: (job.expires_at, job.jid))

    def _lose(self, job: Job) -> None:
        if job.started:
            self._die(job, "lost")
        else:
            self._to_front(job)

    def _die(self, job: Job, reason: str) -> str:
        """A death: to the front at once, later with a delay, at last among the failed."""
        job.deaths += 1
        most = self.option("max-deaths", job.queue) if job.max_deaths is None else job.max_deaths
        if 0 < most <= job.deaths:
            self._fail(job, f"died:{reason}")
        elif job.deaths == 1:
            self._to_front(job)
        else:
            self._schedule(job, self.now + min(1000 * 4 ** (job.deaths - 2), 60_000))
        return job.state

    def sweep(self) -> int:
        """Takes from lost workers what they hold, in every queue; and has come again, and go, what is due for it."""
        swept = 0
        for queue in self.queues:
            expired = self.expired(queue)
            swept += len(expired)
            for job in expired:
                self._lose(job)
            if not self.option("paused", queue):
                for job in self._spawn(queue, 100):
                    self._to_back(job)
        self._prune(self.completed(), 0)
        return swept

    def _prune(self, kept: list[Job], added: int) -> None:
        """Completed jobs beyond the limits of age and number, oldest first; but for those that have just been added."""
        count, age_s = self._most_kept(), self.option("jobs-history")
        aged = sum(job.ended_at <= self.now - age_s * 1000 for job in kept) if age_s > 0 else 0
        for job in kept[: max(aged, len(kept) + added - count)]:
            if self.jobs.get(job.jid) is job and job.state == "complete":
                self._delete(job)

    def _most_kept(self) -> int:
        return int(self.option("jobs-history-count")) if self.option("jobs-history") > 0 else 0

    def deregister(self, worker: str) -> int:
        """Forgets a worker; what it held goes to the front, uncounted."""
        held = self.held_by(worker)
        for job in held:
            self._to_front(job)
        self.cursors.pop(worker, None)
        self.seen.pop(worker, None)
        return len(held)

    # What a holder may do, as long as nobody has taken the job.

    def renew(self, hold: Hold, data: Any = UNSET) -> int:
        job = self._held(hold)
        self.seen[hold.worker] = self.now
        if data is not UNSET:
            job.data = data
        job.expires_at = self.now + self.option_ms("heartbeat", job.queue)
        return job.expires_at

    def settle(self, outcomes: Iterable[Callable[["Model"], Any]]) -> list[Any]:
        """Carries out a batch of what follows; only then goes what is kept too long."""
        kept, before = self.completed(), self.completions
        answers = self.all_or_nothing(outcomes)
        if self.completions > before:
            self._prune(kept, self.completions - before)
        return answers

    def complete(self, hold: Hold, data: Any = UNSET) -> bool:
        job = self._held(hold)
        if data is not UNSET:
            job.data = data
        self._complete(job)
        return True

    def advance(self, hold: Hold, queue: str, data: Any = UNSET, delay: int = 0, depends: Iterable[str] = ()) -> bool:
        """Completes a stage: the job goes on in another queue."""
        job = self._held(hold)
        self.put(queue, job.jid, job.klass, job.data if data is UNSET else data, delay, depends)
        return True

    def retry(self, hold: Hold, delay: int = 0, group: str | None = None) -> int:
        """Spends a retry, and waits at the back for the next run, or until its time."""
        job = self._held(hold)
        job.failures += 1
        job.turn = None
        remaining = job.retries - job.failures
        if remaining < 0:
            self._fail(job, group or f"failed-retries-{job.queue}")
        else:
            self._set_out(job, self.now + delay)
        return remaining

    def fail(self, hold: Hold, group: str, data: Any = UNSET) -> bool:
        job = self._held(hold)
        if data is not UNSET:
            job.data = data
        self._fail(job, group)
        return True

    def release(self, hold: Hold, started: bool = True) -> bool:
        job = self._held(hold)
        job.interruptions += started
        self._to_front(job)
        return True

    def died(self, hold: Hold, reason: str) -> str:
        return self._die(self._held(hold), reason)

    # What an operator may do.

    def fail_job(self, jid: str, group: str) -> None:
        self._fail(self._job(jid), group)

    def release_job(self, jid: str) -> bool:
        job = self.jobs.get(jid)
        if job is None or job.state != "running":
            return False
        job.interruptions += job.started
        self._to_front(job)
        return True

    def set_priority(self, jid: str, priority: int) -> int:
        self._job(jid).priority = priority
        return priority

    def cancel(self, *jids: str) -> list[str]:
        """Deletes jobs, but for complete ones; refused while an unlisted one must wait for one of them."""
        going = [jid for jid in dict.fromkeys(jids) if jid in self.jobs and self.jobs[jid].state != "complete"]
        for jid in going:
            if any(child.policy == "wait" and child.jid not in going for child in self.children(jid)):
                raise Refused
        for jid in going:
            self.jobs[jid].parents = {}
        for jid in going:
            self._delete(self.jobs[jid])
        return going

    def unfail(self, group: str, queue: str | None = None, count: int = 25) -> int:
        """The oldest of a group begin anew."""
        jobs = self.failed(group)[:count]
        for job in jobs:
            self.move(job.jid, queue or job.queue)
        return len(jobs)

    def depend(self, jid: str, *parents: str) -> None:
        """More to wait for, for a job that waits for others already."""
        job = self._job(jid)
        if job.state != "depends":
            raise Refused
        self._refuse_circle(jid, list(parents))
        unmet = self._unmet(job, parents)
        if unmet is None:
            self._fail(job, "parent-failed")
        else:
            job.parents |= dict.fromkeys(unmet, self.now)

    def undepend(self, jid: str, *parents: str, all: bool = False) -> None:
        job = self._job(jid)
        if job.state != "depends":
            raise Refused
        for parent in list(job.parents) if all else parents:
            if parent in job.parents:
                self._free(job, parent)

    def tag(self, jid: str, *tags: str) -> list[str]:
        job = self._job(jid)
        return self._retag(job, list(dict.fromkeys([*job.tags, *tags])))

    def untag(self, jid: str, *tags: str) -> list[str]:
        job = self._job(jid)
        return self._retag(job, [tag for tag in job.tags if tag not in tags])

    def _retag(self, job: Job, tags: list[str]) -> list[str]:
        self._index_tags(job.jid, job.tags, tags)
        job.tags = tags
        return tags

    def _index_tags(self, jid: str, before: list[str], after: list[str]) -> None:
        for tag in before:
            if tag not in after:
                self.tagged[tag].pop(jid)
        for tag in after:
            if tag not in before:
                self.tagged.setdefault(tag, {})[jid] = self.now

    def track(self, jid: str) -> bool:
        self._job(jid)
        if jid in self.tracked:
            return False
        self.tracked[jid] = self.now
        return True

    def untrack(self, jid: str) -> bool:
        return self.tracked.pop(jid, None) is not None

    def recur(self, queue: str, jid: str, klass: str, data: Any, every: int, offset: int, **options: Any) -> None:
        """A job from now on, or a known one in a new way."""
        missed, backlog = options.pop("missed", "all"), options.pop("backlog", None)
        old = self.recurring.get(jid)
        self.recurring[jid] = Recurring(
            jid, queue, klass, data, every, self.now + offset, missed, backlog, old.count if old else 0, options
        )
        self.first_put.setdefault(queue, self.now)

    def unrecur(self, jid: str) -> bool:
        return self.recurring.pop(jid, None) is not None

    def configure(self, option: str, value: float | None) -> None:
        """Sets an option, or with None unsets it."""
        if value is None:
            self.config.pop(option, None)
        else:
            self.config[option] = value
