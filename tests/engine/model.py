"""The queue in plain Python, without Redis: one short method per verb says what the engine promises.

Times are whole ms. A refusal raises before anything has changed, as in the engine. A stale lease raises Lost.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tests.engine import model_entries, model_modes
from tests.engine.model_apart import LIVES, Apart, Skills, is_lacked, klass_of
from tests.engine.model_batches import PAUSE, Batches
from tests.engine.model_jobs import NEVER, UNSET, Endless, Hold, Job, Lost, Missing, Recurring, Refused
from tests.engine.model_lanes import Lanes
from tests.engine.model_limits import WHEN_FREE, Limit
from tests.engine.model_modes import Mode

DEFAULTS = {
    "heartbeat": 30, "grace": 5, "max-deaths": 3, "max-concurrency": 0, "paused": 0,
    "jobs-history": 604800, "jobs-history-count": 50000, "klass": None,
}  # fmt: skip
SPARE = 16  # a lease brings so many more jobs into their lines than it wants
MARKED = -(2**52)  # a marked limit is due at any time, the one that was marked first before the others
GONE_IN_A_TURN = 16  # so many jobs that go away without a turn cost their lane as much as a turn
LONG_HOLD = 10_000
UNKNOWN_FOR, FIRST_UNKNOWN = 3_600_000, 1_000
ASIDE = 25  # for this time other workers have precedence for a persistent job that came back


class Model:
    """One namespace."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.jobs: dict[str, Job] = {}
        self.first_put: dict[str, int] = {}  # of each known queue
        self.config: dict[str, float] = {}
        self.cursors: dict[str, str] = {}  # where each worker's last round-robin lease stopped
        self.seen: dict[str, int] = {}  # when each worker last leased or renewed
        self.tagged: dict[str, dict[str, int]] = {}  # per tag its jids, and when each got it
        self.tracked: dict[str, int] = {}
        self.recurring: dict[str, Recurring] = {}
        self.pushed: dict[str, list[bytes]] = {}  # per queue the entries of other programs, oldest first
        self.lanes: dict[str, Lanes] = {}
        self.limits: dict[str, Limit] = {}
        self.batches = Batches()
        self.checks: dict[str, dict[str, int]] = {}  # per queue and limit: when a lease must examine the parked jobs
        self.skills = Skills()
        self.apart: dict[str, Apart] = {}  # per queue
        self.throttled: dict[tuple[str, Any], tuple[int, str]] = {}  # when the span is over, and the first job
        self.claims: dict[tuple[str, Any], str] = {}  # by queue and claim: the job that holds it
        self.taken_back: list[tuple[str, int]] = []  # limit and time of starts that did not happen
        self.starting: list[str] = []  # the limits of the jobs that this lease gives
        self.passed: set[str] = set()  # jobs that stay in their places during this lease
        self.called: set[str] = set()  # queues that a full lease passes over, because a worker is woken for them
        self.freed: Sequence[str] | None = None
        self.asleep: set[str] = set()  # jobs that depended on others when this lease began
        self.completions = 0
        self.tokens = 0
        self.seqs = 0

    def all_or_nothing(self, verbs: Iterable[Callable[["Model"], Any]]) -> list[Any]:
        """Carry out the verbs of one batch and return their answers. One refusal refuses all, and changes nothing."""
        before = copy.deepcopy(self.__dict__)
        try:
            return [verb(self) for verb in verbs]
        except (Refused, Missing):
            self.__dict__.update(before)
            raise

    # Queries.

    def state(self, job: Job) -> str:
        """Return a job's state as of now."""
        if job.state == "running" and job.expires_at <= self.now:
            return "stalled"
        if job.state == "scheduled" and job.due_at <= self.now:
            return "waiting"
        return "parked" if job.parked else job.state

    def shown_state(self, job: Job) -> str:
        """Return the state that queries show: a parked job that has room again is waiting."""
        state = self.state(job)
        return "waiting" if state == "parked" and job.jid in self.with_room(job.queue) else state

    def with_room(self, queue: str) -> set[str]:
        """Return the parked jobs of a queue that a lease would put back."""
        parked = [job.jid for job in self._in(queue, "waiting") if job.parked]
        if not parked or not any(self._is_due(key, when) for key, when in self.checks.get(queue, {}).items()):
            return set()
        then = copy.deepcopy(self)
        then._bring_back(queue, 1000)
        return {jid for jid in parked if not then.jobs[jid].parked}

    @property
    def queues(self) -> list[str]:
        """The known queues, in the order of their first put."""
        return sorted(self.first_put, key=lambda queue: (self.first_put[queue], queue))

    def counts(self, queue: str) -> dict[str, int]:
        """Return how many jobs of a queue are in each state."""
        counts = dict.fromkeys(("waiting", "running", "stalled", "scheduled", "depends", "parked"), 0)
        counts["recurring"] = sum(pattern.queue == queue for pattern in self.recurring.values())
        counts["waiting"] = len(self.pushed.get(queue, ()))
        for job in self.jobs.values():
            if job.queue == queue and (state := self.shown_state(job)) in counts:
                counts[state] += 1
        return counts

    def front(self, queue: str) -> list[Job]:
        """Return the jobs that were handed back or lost, in the order of their first leases."""
        there = [job for job in self._in(queue, "waiting") if job.in_front]
        return sorted(there, key=lambda job: (job.turn, job.jid))

    def line(self, queue: str, lane: str = "") -> list[Job]:
        """Return the jobs that wait in a lane, behind the front. "" is the lane of jobs without one."""
        there = [job for job in self._in(queue, "waiting") if job.in_line and job.lane == lane]
        return sorted(there, key=lambda job: job.place)

    def lines(self, queue: str) -> dict[str, list[Job]]:
        """Return the lines that have jobs, by lane."""
        return {
            lane: self.line(queue, lane) for lane in {job.lane for job in self._in(queue, "waiting") if job.in_line}
        }

    def parked_line(self, key: str, queue: str, line: str) -> list[Job]:
        """Return the jobs of one queue that are parked in one of the lines under a limit."""
        there = [job for job in self._in(queue, "waiting") if job.parked and (job.full, job.parked_line) == (key, line)]
        return sorted(there, key=lambda job: job.place)

    def in_use(self, key: str) -> int:
        """Return how many slots of a limit are taken."""
        return sum(key in job.limits for job in self.jobs.values() if job.hold) + self.starting.count(key)

    def lane_counts(self, queue: str) -> dict[str, tuple[int, int, int, int, int, bool]]:
        """Return waiting, running, stalled, parked, weight and paused, for each lane with jobs or settings.

        Scheduled jobs lie in no lane, even if they are due.
        """
        lanes = self.lanes_of(queue)
        there = [job for job in self.jobs.values() if job.queue == queue and job.state != "scheduled"]
        states = [(job.lane, self.state(job)) for job in there]
        states = [(lane, state) for lane, state in states if state in ("waiting", "running", "stalled", "parked")]
        names = {"", *(lane for lane, _ in states), *lanes.turns.times, *lanes.weights, *lanes.paused}
        return {
            lane: (
                *(states.count((lane, state)) for state in ("waiting", "running", "stalled", "parked")),
                lanes.weight(lane),
                lane in lanes.paused,
            )
            for lane in sorted(names)
        }

    def failed(self, group: str) -> list[Job]:
        """Return a group's jobs, oldest first."""
        there = [job for job in self.jobs.values() if job.state == "failed" and job.group == group]
        return sorted(there, key=lambda job: (job.ended_at, job.jid))

    def completed(self) -> list[Job]:
        """Return the completed jobs that are kept, oldest first."""
        there = [job for job in self.jobs.values() if job.state == "complete"]
        return sorted(there, key=lambda job: (job.ended_at, job.tie))

    def children(self, jid: str) -> list[Job]:
        """Return the jobs that wait for this one, in the order in which they began to wait."""
        there = [job for job in self.jobs.values() if jid in job.parents]
        return sorted(there, key=lambda job: (job.parents[jid], job.jid))

    def peek(self, queue: str, n: int, freed: Sequence[str] | None = None) -> list[str]:
        """Return the jobs that leases would give next if the queue were open and not full. `freed`: as for lease()."""
        ahead = copy.deepcopy(self)
        ahead.config |= {f"paused-{queue}": 0, f"max-concurrency-{queue}": 0}
        ahead.recurring, ahead.pushed = {}, {}
        return [hold.jid for hold in ahead.lease("peek", [queue], n, freed=freed)]

    def times(self) -> set[int]:
        """Return the times at which a job, a lease or a recurrence changes without a call."""
        times = {pattern.next_at for pattern in self.recurring.values()}
        times |= {when for checks in self.checks.values() for when in checks.values() if 0 < when < WHEN_FREE}
        times |= {when for apart in self.apart.values() for when in apart.checks.values() if when}
        for job in self.jobs.values():
            if job.watched and job.state != "running":
                times.add(job.put_at + job.expires)
            if job.state == "running":
                times |= {job.expires_at, job.expires_at + self.option_ms("grace", job.queue)}
            elif job.due_at not in (None, NEVER):
                times.add(job.due_at)
        return times

    def at_hand(self, queue: str) -> int:
        """Return how many jobs a lease would count as available."""
        lying = [job for job in self._in(queue, "waiting") if not job.parked and not job.apart]
        arrivals = [*self._due(queue), *self.expired(queue), *self._coming(queue), *self.pushed.get(queue, ())]
        checks_now = any(when <= self.now for when in self.checks.get(queue, {}).values())
        parked = sum(job.parked for job in self._in(queue, "waiting"))
        apart = sum(job.apart for job in self._in(queue, "waiting"))
        beside = (max(1, parked) if checks_now else 0) + (max(1, apart) if self.apart_in(queue).checks else 0)
        return len(lying) + len(arrivals) + beside

    def is_held_up(self, job: Job) -> bool:
        """Return whether a parked job cannot come back: its lane is paused, or other jobs use up its limit."""
        if job.lane in self.lanes_of(job.queue).paused:
            return True
        there = [
            one for one in self.jobs.values() if job.full in one.limits and one.state == "waiting" and not one.apart
        ]
        came_back = [one for one in there if not one.parked and one.lane not in self.lanes_of(one.queue).paused]
        return self._full_until(job.full, len(came_back)) > 0

    def is_ready(self, queue: str) -> bool:
        """Return whether a job could start now without having become due: a waiting worker must be woken for it."""
        concurrency = self.option("max-concurrency", queue)
        if self.option("paused", queue) or (concurrency and len(list(self._in(queue, "running"))) >= concurrency):
            return False
        there = [job for job in self._in(queue, "waiting") if job.lane not in self.lanes_of(queue).paused]
        there = [job for job in there if not job.apart]  # workers that have the klass get a hint by mail
        return any(self._is_free(job) for job in there if not self.is_overdue(job) and job.left is None)

    def _is_free(self, job: Job) -> bool:
        if self.batches.pause_over(job.batch):
            return False
        return all(self._limit(key).starts is None and not self._full_until(key) for key in job.limits)

    def held_by(self, worker: str) -> list[Job]:
        """Return the jobs that a worker holds, in the order of its leases."""
        there = [job for job in self.jobs.values() if job.hold and job.hold.worker == worker]
        return sorted(there, key=lambda job: job.hold.token)

    def option(self, name: str, queue: str | None = None) -> float:
        """Return an option: the queue's own, else the namespace's, else the default."""
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
        content: Any = None,
        mode: Mode | None = None,
        **options: Any,
    ) -> str:
        """Create a job, or move a known one, which keeps options that are not given, but not its counts.

        Return its jid. If another job holds its claim, return that job's jid and change nothing.
        """
        old = self.jobs.get(jid)
        claim = old.claim if old else None
        if "unique" in options:
            claim = self._claim(options["unique"], (klass, repr(data)) if content is None else content)
        holder = self.claims.get((queue, claim), jid)
        if mode:
            put = {"queue": queue, "jid": jid, "klass": klass, "data": data, "delay": delay, "mode": mode, **options}
            answer = model_modes.answer(self, mode, queue, claim, put)
            if answer is not None:
                return answer
        elif claim and holder != jid:
            return holder
        has_parents = old is not None and bool(old.results_of or old.state == "depends")
        if depends and "policy" not in options and content is None and not has_parents:  # entries wait
            options["policy"] = "fail"
        waits = old is not None and old.parents and not depends
        parents = list(old.parents if old and not depends else depends or ())
        self._refuse_circle(jid, parents)
        job = self._taken_away(old) if old else self._new(jid, queue, klass)
        if not waits:
            job.results_of = list(depends or ())
        if claim != job.claim:
            self.release_claim(job)
        before, job.claim = job.tags, claim
        if batch := options.pop("batch", None):
            self._join(job, batch)
        for name, value in options.items():
            if name != "unique":
                setattr(job, name, value)
        if options.get("persistent") and job.once:
            job.once = None
        job.persistent = job.persistent and not options.get("once")
        job.forget_starts()
        job.klass, job.entry, job.progress = klass, None, None
        job.give(data)
        self._index_tags(jid, before if old else [], job.tags)
        self._begin_stage(job, queue)
        self._lay_down(job, model_modes.begin(self, job, mode, self.now + delay), parents)
        return jid

    def add(self, queue: str, jid: str, klass: str, data: Any, **options: Any) -> bool:
        """Put a job unless its jid is known. Return whether it was put."""
        return jid not in self.jobs and self.put(queue, jid, klass, data, **options) == jid

    def move(self, jid: str, queue: str, delay: int = 0) -> None:
        """Move a job. The job loses its claim if another job of the new queue holds an equal one."""
        job = self._job(jid)
        parents = list(job.parents)
        self._refuse_circle(jid, parents)
        self._taken_away(job).progress = None
        self._begin_stage(job, queue)
        self._lay_down(job, self.now + delay, parents)

    def _new(self, jid: str, queue: str, klass: str, data: Any = None) -> Job:
        self.jobs[jid] = Job(jid, queue, klass, data, self.now)
        return self.jobs[jid]

    def _taken_away(self, job: Job) -> Job:
        self._leave(job)
        return job

    def _begin_stage(self, job: Job, queue: str, put_at: int | None = None) -> None:
        if queue != job.queue:
            self.release_claim(job)
        job.queue, job.put_at = queue, self.now if put_at is None else put_at
        job.failures = job.deaths = job.interruptions = job.short = 0
        job.unknown_at = None
        job.turn = job.left = None
        job.begun = job.came_back = False
        self._take_claim(job)
        self.seqs += 1
        job.seq = self.seqs
        job.watched = job.expires is not None
        self.first_put.setdefault(queue, self.now)

    def _claim(self, unique: str | bool | None, content: Any) -> Any:
        return ("content", content) if unique is True else ("key", unique) if unique else None

    def _take_claim(self, job: Job) -> None:
        if job.claim and self.claims.setdefault((job.queue, job.claim), job.jid) != job.jid:
            job.claim = None

    def release_claim(self, job: Job) -> None:
        if self.claims.get((job.queue, job.claim)) == job.jid:
            del self.claims[job.queue, job.claim]

    def _refuse_circle(self, jid: str, parents: Sequence[str], all_parents: dict[str, list[str]] | None = None) -> None:
        if all_parents is None:
            all_parents = {job.jid: list(job.parents) for job in self.jobs.values()}
        above: set[str] = set()
        todo = list(parents)
        while todo:
            parent = todo.pop()
            if parent not in above:
                todo += all_parents.get(parent, ())
            above.add(parent)
        if jid in above:
            raise Refused

    def _unmet(self, job: Job, parents: Iterable[str]) -> list[str] | None:
        """Return which parents have not ended; None if one has failed and fails the job. Unknown ones are complete."""
        states = {parent: self.jobs[parent].state for parent in parents if parent in self.jobs}
        if job.policy == "fail" and "failed" in states.values():
            return None
        met = ("complete",) if job.policy == "wait" else ("complete", "failed")
        return [parent for parent, state in states.items() if state not in met]

    def _lay_down(self, job: Job, due_at: int, parents: Iterable[str]) -> None:
        """Put a job into depends, else into scheduled, else at the back of its line."""
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

    # The places. A move ends the lease of the job.

    def _leave(self, job: Job) -> None:
        """Take a job out of its place. Its slot, or the slot that it was put back for, is free."""
        if job.batch and job.ended:
            self.batches.member_back(job.batch, job.jid, job.state, self.now, job.put_at)
        frees = job.hold is not None or (job.state == "waiting" and not job.parked and not job.apart)
        if job.hold:
            job.since, job.held_ms, job.came_back = self.now, self.now - job.popped_at, True
            job.left = job.hold.worker if job.persistent else None
        elif job.state == "depends":
            job.since, job.came_back = self.now, True
        if job.parked:
            self.checks[job.queue][job.full] = 0
        job.state, job.parked, job.apart, job.aside = "nowhere", False, False, False
        job.hold, job.started, job.due_at, job.group, job.parents = None, False, None, None, {}
        job.waits_for = None
        if frees:
            self._offer_to_others(job)

    def go_now(self, job: Job) -> None:
        """Put a scheduled job to the back of its line before its time."""
        self._leave(job)
        self._to_back(job)

    def _to_back(self, job: Job) -> None:
        self._leave(job)
        self.seqs += 1
        job.turn, job.seq = None, self.seqs
        self._line_up(job)

    def _line_up(self, job: Job) -> None:
        job.state = "waiting"
        if job.lane:
            self.lanes_of(job.queue).join(job.lane)

    def _to_front(self, job: Job) -> None:
        self._leave(job)
        job.state = "waiting"

    def _schedule(self, job: Job, due_at: int) -> None:
        self._leave(job)
        job.state, job.due_at = "scheduled", due_at

    def _fail(self, job: Job, group: str) -> None:
        self._leave(job)
        self.release_claim(job)
        job.state, job.group, job.ended_at, job.watched = "failed", group, self.now, False
        self._end_member(job, "failed")
        self._fail_children(job, ("fail",))

    def _complete(self, job: Job) -> None:
        self._leave(job)
        job.forget_starts()
        self.release_claim(job)
        job.state, job.turn, job.ended_at, job.watched = "complete", None, self.now, False
        self._end_member(job, "complete")
        for child in self.children(job.jid):
            self._free(child, job.jid)
        if self._most_kept() > 0:
            self.completions += 1
        else:
            self._erase(job)

    def _free(self, child: Job, parent: str) -> None:
        """Remove one parent of a job."""
        child.parents.pop(parent)
        if not child.parents:
            self._set_out(child, child.due_at or self.now)

    def _fail_children(self, job: Job, failing: Sequence[str]) -> None:
        for child in self.children(job.jid):
            if job.jid not in child.parents:
                pass  # it has failed already, with another of its parents
            elif child.policy == "run":
                self._free(child, job.jid)
            elif child.policy in failing:
                self._fail(child, "parent-failed")

    def _delete(self, job: Job) -> None:
        """Delete a job. No other job can depend on it any more."""
        self._leave(job)
        self._end_member(job, "cancelled")
        self.release_claim(job)
        self._index_tags(job.jid, job.tags, [])
        del self.jobs[job.jid]
        self._fail_children(job, ("fail", "wait"))

    def _erase(self, job: Job) -> None:
        """Delete a job that has ended. Its batch has counted it."""
        job.batch = None
        self._delete(job)

    # Batches.

    def _join(self, job: Job, id: str) -> None:
        if job.batch == id and job.jid in self.batches.known[id].members:
            return
        self._end_member(job, "cancelled")
        job.batch = id
        self.batches.join(id, job.jid, self.now)

    def _end_member(self, job: Job, state: str) -> None:
        if job.batch:
            self.batches.member_ended(job.batch, job.jid, state, self.now)

    def end_batches(self) -> None:
        """Put the callbacks of the batches that a call has ended. Each has a priority of its own."""
        for id, name in self.batches.evaluate(self.now):
            self.put("A", f"{id}-{name}", name, None, priority=priority_of(id, name))

    def pause_batch(self, id: str, paused: bool) -> bool:
        batch = self.batches.known[id]
        is_changed, batch.paused = batch.paused != paused, paused
        self._limit(PAUSE + id).running = 0 if paused else None
        if not paused:
            self._mark_for_check(PAUSE + id)
        return is_changed

    def cancel_batch(self, id: str) -> int:
        """Cancel what has not ended, also in batches in it: jobs for which none waits, and then the others."""
        batch, cancelled, before = self.batches.known[id], 0, -1
        while True:
            self.batches.close(id)
            members = sorted(batch.members, key=lambda member: (batch.members[member], member), reverse=True)
            jobs = [self.jobs[member] for member in members if not member.startswith("\n")]
            leaves = 0
            for job in jobs:
                if not self.children(job.jid):
                    self._delete(job)
                    leaves += 1
            if not leaves:
                self._drop(jobs)
            cancelled += leaves or len(jobs)
            left = len(batch.members)
            self.end_batches()
            for member in members:
                cancelled += self.cancel_batch(member[1:]) if member.startswith("\n") else 0
            if left in (0, before):
                return cancelled
            before = left

    def retry_batch(self, id: str) -> int:
        """Put back the failed jobs of a batch, and those of failed batches in it. Return how many."""
        failed = self.batches.known[id].failed
        members = sorted((when, member) for member, when in failed.items() if when <= self.now)
        again = sum(self.unfail_job(member) for _, member in members if not member.startswith("\n"))
        self.end_batches()
        return again + sum(self.retry_batch(member[1:]) for _, member in members if member.startswith("\n"))

    # Jobs that lie apart: one worker lacks a handler for their klass, and a live peer has one.

    def apart_in(self, queue: str) -> Apart:
        return self.apart.setdefault(queue, Apart())

    def join(self, worker: str) -> None:
        """Register a worker that numbers its exchanges."""
        self.skills.numbered.add(worker)
        self.seen[worker] = self.now

    def report_skills(
        self, worker: str, klasses: Iterable[str], queues: Iterable[str], shapes: dict[str, str] | None = None
    ) -> bool:
        """Store the klasses, queues and shapes that a worker reports. Return False if the worker is unknown."""
        if worker not in self.skills.numbered:
            return False
        self._forget_skills(worker, set(klasses))
        self.skills.reported[worker] = set(klasses), set(queues)
        self.skills.shapes[worker] = dict(shapes or {})
        self.skills.lacks.pop(worker, None)
        return True

    def _forget_skills(self, worker: str, still: set[str]) -> None:
        """Drop the report of a worker. The next lease checks the peers of what it has not `still`."""
        klasses, queues = self.skills.reported.pop(worker, (set(), set()))
        self.skills.shapes.pop(worker, None)
        for queue in queues:
            checks = self.apart_in(queue).checks
            checks |= {one: 0 for one in checks if klass_of(one) in klasses and one not in still}

    def _peers(self, label: str, queue: str, worker: str | None) -> list[str]:
        return self.skills.peers(label, queue, worker, self.seen, self.now)

    def _until(self, peers: list[str]) -> int:
        return max(self.seen[name] for name in peers) + LIVES

    def _put_apart(self, job: Job, worker: str) -> None:
        peers, apart = self._peers(job.label, job.queue, worker), self.apart_in(job.queue)
        job.state, job.apart, job.aside = "waiting", True, False
        apart.checks[job.label] = max(self._until(peers), self.now + 1)
        apart.line(job.label).join(job.lane)

    def _apart_line(self, label: str, queue: str, lane: str) -> list[Job]:
        there = [job for job in self._in(queue, "waiting") if job.apart and (job.label, job.lane) == (label, lane)]
        return sorted(there, key=lambda job: job.place)

    def _bring_apart(self, queue: str, most: int, worker: str | None) -> None:
        """Put jobs apart back into their places: those that `worker` may have, and those without a live peer."""
        apart = self.apart_in(queue)
        lacks = set(apart.checks) if worker is None else self.skills.lacked_by(worker)
        for when, label in sorted((when, label) for label, when in apart.checks.items()):
            is_wanted = not is_lacked(lacks, label)
            if not is_wanted and not apart.is_due(when, self.now):
                continue
            peers = [] if is_wanted else self._peers(label, queue, worker)
            if peers:
                apart.checks[label] = self._until(peers) + 1
            else:
                self._put_back_apart(queue, label, most, from_paused=not is_wanted)
                apart.checks[label] = when if is_wanted else 0
                if not apart.line(label).times:
                    del apart.checks[label]

    def _put_back_apart(self, queue: str, label: str, most: int, from_paused: bool) -> None:
        turns, lanes, back = self.apart_in(queue).line(label), self.lanes_of(queue), 0
        passed: set[str] = set()
        while back < most and (lane := next((one for one in turns.in_order() if one not in passed), None)) is not None:
            line = self._apart_line(label, queue, lane)
            if lane in lanes.paused and not from_paused:
                passed.add(lane)
            elif not line:
                turns.leave(lane)
            else:
                line[0].apart = False
                if line[0].turn is None:
                    self._line_up(line[0])
                turns.took(lane, lanes.weight(lane))
                back += 1

    def misfit(self, hold: Hold, shape: str) -> str:
        """End a lease whose job has data that the worker's handler does not take. Return the new state."""
        job = self._held(hold)
        self._leave(job)
        job.shapes |= {shape}
        if not self._peers(job.label, job.queue, hold.worker):
            self._fail(job, "broken")
            return job.state
        self._was_not_started(job)
        self._put_apart(job, hold.worker)
        self.skills.note_lack(hold.worker, job.label)
        return job.state

    def unknown(self, hold: Hold, delay: int) -> str:
        """End a lease whose worker has no handler for the job. Return the new state."""
        job = self._held(hold)
        self._leave(job)
        self._was_not_started(job)
        if self._peers(job.label, job.queue, hold.worker):
            job.unknown_at = None
            self._put_apart(job, hold.worker)
            self.skills.note_lack(hold.worker, job.klass)
            return job.state
        job.unknown_at = self.now if job.unknown_at is None else job.unknown_at
        waited = self.now - job.unknown_at
        if job.persistent or waited < UNKNOWN_FOR:
            job.turn = job.turn if job.persistent else None
            self._schedule(job, self.now + min(delay, max(FIRST_UNKNOWN, waited)))
        else:
            self._fail(job, "unknown-handler")
        return job.state

    # Limits: a job without room is parked, and a later lease puts it back.

    @property
    def limits_set(self) -> list[str]:
        """The limits that are set, in the order of their first setting."""
        there = [key for key, limit in self.limits.items() if limit.is_set]
        return sorted(there, key=lambda key: (self.limits[key].set_at, key))

    def _limit(self, key: str) -> Limit:
        return self.limits.setdefault(key, Limit())

    def _first_full(self, limits: Sequence[str], beside: Sequence[str] = ()) -> tuple[str, int] | None:
        """Return the first limit without room beside the slots of some others, and when to check it again."""
        return next(((key, until) for key in limits if (until := self._full_until(key, beside.count(key)))), None)

    def _full_until(self, key: str, more: int = 0) -> int:
        """Return 0 if one more job may start beside `more` others; else when to check again."""
        starting = self.starting.count(key) + more
        return self._limit(key).full_until(self.in_use(key) + more, starting, self.now)

    def _mark_for_check(self, key: str) -> None:
        until = self._full_until(key)
        for queue in self._limit(key).lines:
            if until or self.checks[queue][key] > self.now:
                self.checks[queue][key] = until or MARKED + self.now

    def _mark_all_for_check(self, queue: str) -> None:
        later = {key: MARKED + self.now for key, when in self.checks.get(queue, {}).items() if when > self.now}
        self.checks.setdefault(queue, {}).update(later)

    def _offer_to_others(self, job: Job) -> None:
        for key in job.limits:
            self._mark_for_check(key)

    def _park(self, job: Job, key: str, until: int) -> None:
        job.parked, job.aside, job.full = True, False, key
        self._stand(job.queue, job.parked_line, key, until)
        self._offer_to_others(job)

    def _stand(self, queue: str, line: str, key: str, until: int) -> None:
        """Let a line of parked jobs stand under a limit that has no room before `until`."""
        for job in self._in(queue, "waiting"):
            if job.parked and job.parked_line == line and key in job.limits:
                job.full = key
        limits = line.partition("\n")[2].split("\t") if "\n" in line else [key]
        for other in limits:
            if other != key and queue in self._limit(other).lines:
                self._limit(other).line(queue).leave(line)
        self._limit(key).line(queue).join(line)
        self.checks.setdefault(queue, {})[key] = until

    def _bring_back(self, queue: str, most: int) -> None:
        """Put parked jobs back into their places, as many as there is room for."""
        checks, taken = self.checks.get(queue, {}), []
        for when, key in sorted((when, key) for key, when in checks.items()):
            if most <= 0 or not self._is_due(key, when):
                break
            most -= self._bring_back_under(key, queue, most, taken)

    def _is_due(self, key: str, when: int) -> bool:
        """Return whether it is time to check. A time too far ahead comes from a clock that has gone back."""
        return when <= self.now or self.now + 2 * (self._limit(key).per or 0) < when < WHEN_FREE

    def _bring_back_under(self, key: str, queue: str, most: int, taken: list[str]) -> int:
        """Put back jobs of the lines under one limit. `taken` has the limits of those that are back already."""
        turns, lanes, back = self._limit(key).line(queue), self.lanes_of(queue), 0
        when = WHEN_FREE
        passed: set[str] = set()  # no job of a paused lane can start, and other lanes must not wait for it
        while back < most and (named := next((one for one in turns.in_order() if one not in passed), None)) is not None:
            line, (lane, _, several) = self.parked_line(key, queue, named), named.partition("\n")
            if lane in lanes.paused:
                passed.add(named)
                continue
            if not line:
                turns.leave(named)
                continue
            if until := self._full_until(key, taken.count(key)):
                when = until
                break
            if several and (full := self._first_full(several.split("\t"), taken)):
                self._stand(queue, named, *full)
                continue
            line[0].parked = False
            taken += line[0].limits
            if line[0].turn is None:
                self._line_up(line[0])
            turns.took(named, lanes.weight(lane))
            back += 1
        self.checks[queue][key] = MARKED + self.now if back >= most else when
        if not turns.times:
            del self.checks[queue][key], self._limit(key).lines[queue]
        return back

    def limit(self, key: str, running: int | None = None, rate: tuple[int, int] | None = None) -> None:
        """Set the given halves of a limit."""
        limit = self._limit(key)
        limit.set_at = self.now if limit.set_at is None else limit.set_at
        limit.running = limit.running if running is None else running
        if rate is not None:
            limit.starts, limit.per = rate
        self._mark_for_check(key)

    def unlimit(self, key: str) -> bool:
        limit = self._limit(key)
        was_set = limit.set_at is not None
        limit.running = limit.starts = limit.per = limit.set_at = None
        limit.begun = []
        self._mark_for_check(key)
        return was_set

    # Lanes.

    def lanes_of(self, queue: str) -> Lanes:
        return self.lanes.setdefault(queue, Lanes())

    def weigh_lane(self, queue: str, lane: str, weight: int) -> None:
        self.lanes_of(queue).weights.pop(lane, None)
        if weight != 1:
            self.lanes_of(queue).weights[lane] = weight

    def pause_lane(self, queue: str, lane: str) -> None:
        """Pause a lane. Jobs that were put back into it had slots that other lanes can use."""
        if lane not in self.lanes_of(queue).paused:
            self.lanes_of(queue).paused.add(lane)
            self.lanes_of(queue).turns.leave(lane)
            self._mark_all_for_check(queue)

    def unpause_lane(self, queue: str, lane: str) -> None:
        if lane in self.lanes_of(queue).paused:
            self.lanes_of(queue).paused.discard(lane)
            self._mark_all_for_check(queue)
            if self.line(queue, lane):
                self.lanes_of(queue).join(lane)

    # Leasing.

    def lease(
        self,
        worker: str,
        queues: Sequence[str],
        count: int = 1,
        ttl: int | None = None,
        order: str = "strict",
        starting: int = 1000,
        once: Sequence[str] = (),
        freed: Sequence[str] | None = None,
    ) -> list[Hold]:
        """Lease the next jobs of some queues: the front, then the lanes by turns, each by priority and order of puts.

        `freed`: of the jobs whose last parent this lease itself ends, only these are considered. None: all of them.
        """
        self.freed = freed
        self.asleep = {job.jid for job in self.jobs.values() if job.state == "depends"}
        given: list[Job] = []
        if order == "strict" or len(queues) == 1:
            for queue in queues:
                if len(given) < count or queue not in self.called:
                    given += self._serve(queue, count - len(given), worker)
        else:
            given = self._serve_in_turns(queues, count, worker)
            if given:
                self.cursors[worker] = given[-1].queue
        self.starting, self.passed = [], set()
        self.seen[worker] = self.now
        return [self._give(job, worker, ttl, i < starting, once) for i, job in enumerate(given)]

    def _serve_in_turns(self, queues: Sequence[str], count: int, worker: str) -> list[Job]:
        """Serve queues in rounds. If a queue gives fewer than expected, the others have its turns.

        A round that gives nothing is followed by one of twice as many turns.
        """
        left = {queue: min(count, self._allowed(queue, self.at_hand(queue))) for queue in queues}
        given: list[Job] = []
        brought: set[str] = set()
        last, is_first, has_more_turns, n_turns = self.cursors.get(worker), True, True, count
        while has_more_turns and (is_first or len(given) < count):
            turns, has_more_turns = self._turns(queues, n_turns, last, left), False
            served: dict[str, list[Job]] = {queue: [] for queue in turns}
            most_each = 1 if n_turns > count - len(given) else count
            for queue in (*served, *(queue for queue in queues if is_first and queue not in served)):
                most = min(turns.count(queue), most_each, count - len(given) - sum(map(len, served.values())))
                left[queue] += turns.count(queue) - most
                served[queue] = self._serve(queue, most, worker, brought) if is_first or most else []
                if len(served[queue]) < most:
                    left[queue] = 0
                has_more_turns |= len(served[queue]) < turns.count(queue)
            now_given = [served[queue].pop(0) for queue in turns if served[queue]]
            given += now_given
            last = given[-1].queue if given else last
            is_first, n_turns = False, count - len(given) if now_given else 2 * n_turns
        return given

    def _serve(self, queue: str, most: int, worker: str, brought: set[str] | None = None) -> list[Job]:
        """Return the jobs that a queue gives. A paused or full one gives none, but takes over jobs of lost workers."""
        if brought is not None and queue in brought:
            return self._pick(queue, self._allowed(queue, most), worker)
        paused, expired = self.option("paused", queue), self.expired(queue)
        first = min(((when, key) for key, when in self.checks.get(queue, {}).items()), default=None)
        freed = first is not None and self._is_due(first[1], first[0])
        apart = self.apart_in(queue).has_some_for(self.skills.lacked_by(worker), self.now)
        if most > 0 or (paused and expired):
            may_start = self._allowed(queue, most)
            if brought is not None:
                brought.add(queue)
            for job in expired:
                self._lose(job)
            if not paused:
                self._promote(queue)
                self._spawn(queue, most + SPARE)
                self._take_in(queue, most + SPARE)
            if expired or (freed and not paused):
                self._bring_back(queue, most + SPARE)
            if apart and not paused:
                self._bring_apart(queue, most, worker)
            return self._pick(queue, may_start, worker)
        arrivals = expired or self._due(queue) or self._coming(queue) or self.pushed.get(queue) or freed or apart
        return self._pick(queue, 0, worker) if paused or not arrivals else []

    def _pick(self, queue: str, most: int, worker: str) -> list[Job]:
        """Take jobs from the front, then from the lanes by turns. A job that may not start goes to where it waits."""
        given: list[Job] = []
        for job in self.front(queue):
            if len(given) == most:
                return given
            if self._may_start(job, worker):
                given.append(self._take(job))
        lanes = self.lanes_of(queue)
        if lanes.turns.times and list(lanes.turns.times) != [""]:
            if self.line(queue):
                lanes.join("")
        else:
            lanes.turns.leave("")
        alone = not lanes.turns.times  # and stays so for this lease
        while len(given) < most and (lane := self._next_lane(queue, alone)) is not None:
            job = self._open_line(queue, lane)[0]
            if self._may_start(job, worker):
                given.append(self._take(job))
                if lane in lanes.turns.times:
                    lanes.turns.took(lane, lanes.weight(lane))
            elif job.jid not in self.passed and lane in lanes.turns.times:
                lanes.turns.took(lane, lanes.weight(lane) * GONE_IN_A_TURN)
        return given

    def _next_lane(self, queue: str, alone: bool) -> str | None:
        """Return the lane whose turn it is. `alone`: only the lane "" has jobs."""
        turns = self.lanes_of(queue).turns
        for lane in [""] if alone else turns.in_order():
            if self._open_line(queue, lane):
                return lane
            if not self.line(queue, lane):
                turns.leave(lane)
        return None

    def _open_line(self, queue: str, lane: str) -> list[Job]:
        return [job for job in self.line(queue, lane) if job.jid not in self.passed]

    def _may_start(self, job: Job, worker: str) -> bool:
        """Return whether a job may start. If not, it goes to where it waits, or fails as expired."""
        if job.in_front and job.lane in self.lanes_of(job.queue).paused:
            job.aside = True
            self._offer_to_others(job)
            return False
        if is_lacked(self.skills.lacked_by(worker), job.label) and self._peers(job.label, job.queue, worker):
            self._put_apart(job, worker)
            self._offer_to_others(job)
            return False
        if job.jid in self.asleep and not self._is_freed(job.jid):
            self.passed.add(job.jid)
            return False
        if self.is_overdue(job):
            self._fail(job, "expired")
            return False
        if job.left == worker and job.since <= self.now < job.since + ASIDE and set(self.seen) - {worker}:
            self.passed.add(job.jid)
            return False
        if paused := self.batches.pause_over(job.batch):
            self._park(job, PAUSE + paused, WHEN_FREE)
        elif full := self._first_full(job.limits):
            self._park(job, *full)
        return not job.parked

    def _is_freed(self, jid: str) -> bool:
        """Return whether a job is of `freed`. A job that an entry has just made has no known jid yet."""
        if self.freed is None or jid in self.freed:
            return True
        return jid[0] == "?" and any(one not in self.jobs for one in self.freed)

    def _take(self, job: Job) -> Job:
        job.state = "taken"
        self.starting += job.limits
        return job

    def start_by(self, job: Job) -> int | None:
        """Return the start deadline of a job; None if it has started, or has none."""
        begun = job.failures or job.deaths or job.interruptions or job.left or job.begun or job.hold or job.ended
        return job.put_at + job.expires if job.expires is not None and not begun else None

    def is_overdue(self, job: Job) -> bool:
        """Return whether a job has not started by its deadline."""
        start_by = self.start_by(job)
        return start_by is not None and start_by <= self.now

    def _allowed(self, queue: str, most: int) -> int:
        if self.option("paused", queue):
            return 0
        running = len(list(self._in(queue, "running"))) - len(self.expired(queue))
        concurrency = self.option("max-concurrency", queue)
        return max(0, min(most, int(concurrency) - running)) if concurrency else most

    def _turns(self, queues: Sequence[str], count: int, last: str | None, left: dict[str, int]) -> list[str]:
        """Return turns, one of each queue with work left, in rounds that begin behind the queue of the last lease."""
        at, turns = queues.index(last) if last in queues else -1, []
        while len(turns) < count and any(left.values()):
            at = (at + 1) % len(queues)
            if left[queues[at]] > 0:
                left[queues[at]] -= 1
                turns.append(queues[at])
        return turns

    def _take_in(self, queue: str, most: int) -> None:
        """Make jobs of entries, up to one that names a job that this lease gives. Invalid entries fail as broken."""
        entries = self.pushed.get(queue, [])
        given = {job.jid for job in self.jobs.values() if job.state == "taken"}
        for entry in entries[:most]:
            found = model_entries.read(entry, self.option("klass", queue))
            if found and found.jid in given:
                break
            self._take_in_one(queue, entries.pop(0))

    def _take_in_one(self, queue: str, entry: bytes) -> None:
        found = model_entries.read(entry, self.option("klass", queue))
        try:
            if found is None:
                raise Refused
            jid = found.jid or self._unknown_jid()
            if self.put(queue, jid, found.klass, found.data, content=entry, **found.options) == jid:
                self.jobs[jid].stored = entry
        except Refused:
            job = self._new(self._unknown_jid(), queue, model_entries.klass_of(entry) or "broken", entry)
            job.entry = job.stored = entry
            self._begin_stage(job, queue)
            self._fail(job, "broken")

    def _unknown_jid(self) -> str:
        """Return a stand-in for a jid that the engine chooses, until learn() gets the real one."""
        self.seqs += 1
        return f"?{self.seqs}"

    def learn(self, unknown: str, jid: str) -> None:
        """Store the jid that the engine has given to the job of an entry without one."""
        job = self.jobs.pop(unknown)
        self.jobs[jid] = job
        job.jid = jid
        if job.hold:
            job.hold = Hold(jid, job.hold.token, job.hold.worker)
        self.claims = {claim: jid if holder == unknown else holder for claim, holder in self.claims.items()}
        for jids in self.tagged.values():
            if unknown in jids:
                jids[jid] = jids.pop(unknown)

    def _coming(self, queue: str) -> list[Recurring]:
        found = [one for one in self.recurring.values() if one.queue == queue and one.next_at <= self.now]
        return sorted(found, key=lambda pattern: (pattern.next_at, pattern.jid))

    def _due(self, queue: str) -> list[Job]:
        found = [job for job in self._in(queue, "scheduled") if job.due_at <= self.now]
        return sorted(found, key=lambda job: (job.due_at, job.seq))

    def _promote(self, queue: str) -> None:
        """Put due jobs to the front if they have a turn; else to the back."""
        for job in self._due(queue):
            if job.turn is not None:
                self._to_front(job)
            else:
                self._to_back(job)

    def _spawn(self, queue: str, most: int) -> None:
        """Put the jobs of due recurrences as if at their times, except those whose claim another job holds."""
        spawned = 0
        for pattern in self._coming(queue):
            left, times = most - spawned, pattern.times(self.now)
            if left <= 0:
                break
            for at in times[:left]:
                options = dict(pattern.options)
                claim = self._claim(options.pop("unique", None), (pattern.klass, repr(pattern.data)))
                if claim and (queue, claim) in self.claims:
                    continue
                pattern.count += 1
                jid = f"{pattern.jid}-{pattern.count}"
                job = Job(jid, queue, pattern.klass, pattern.data, at, spawned_from=pattern.jid, **options)
                self.jobs[jid], job.claim = job, claim
                self._index_tags(jid, [], job.tags)
                self._begin_stage(job, queue, at)
                self._to_back(job)
                spawned += 1
            pattern.next_at = times[left] if left < len(times) else pattern.following(self.now)

    def _give(self, job: Job, worker: str, ttl: int | None, started: bool, once: Sequence[str]) -> Hold:
        self.tokens += 1
        job.state, job.hold, job.started = "running", Hold(job.jid, self.tokens, worker), started
        job.aside = False
        job.turn = job.turn or self.tokens
        job.popped_at = self.now
        job.expires_at = self.now + (self.option_ms("heartbeat", job.queue) if ttl is None else ttl)
        if job.once is None and job.klass in once and not job.persistent:
            job.once = True
        for key in job.limits:
            self._limit(key).start(self.now)
        return job.hold

    def expired(self, queue: str) -> list[Job]:
        """Return the jobs whose leases ended more than a grace ago."""
        limit = self.now - self.option_ms("grace", queue)
        found = [job for job in self._in(queue, "running") if job.expires_at <= limit]
        return sorted(found, key=lambda job: (job.expires_at, job.jid))

    def _lose(self, job: Job) -> None:
        """Take a job from a lost worker. A started job dies; so does an at-most-once job, whose start is uncertain."""
        if job.started or job.once:
            self._die(job, "lost")
        else:
            self._back_unstarted(job)

    def _back_unstarted(self, job: Job) -> None:
        """Put a job to the front as if it had not been leased."""
        self._to_front(job)
        self._was_not_started(job)

    def _was_not_started(self, job: Job) -> None:
        for key in job.limits:
            if self._limit(key).starts is not None:
                self._limit(key).take_back(job.popped_at, self.now)
                self.taken_back.append((key, job.popped_at))
                self._mark_for_check(key)
        job.watched = job.watched or self.start_by(job) is not None

    def _die(self, job: Job, reason: str) -> str:
        """Count a death. The first puts the job to the front, later ones delay it, the last one fails it."""
        job.deaths += 1
        job.unknown_at = None
        most = self.option("max-deaths", job.queue) if job.max_deaths is None else job.max_deaths
        if job.persistent:
            self._come_back(job)
        elif job.once or 0 < most <= job.deaths:
            self._fail(job, f"died:{reason}")
        elif job.deaths == 1:
            self._to_front(job)
        else:
            self._schedule(job, self.now + min(1000 * 4 ** (job.deaths - 2), 60_000))
        return job.state

    def _come_back(self, job: Job) -> None:
        """Put a persistent job to the front, or schedule it if it was held only briefly."""
        self._leave(job)
        if job.held_ms >= LONG_HOLD:
            job.short = 0
            self._to_front(job)
        else:
            job.short += 1
            self._schedule(job, self.now + min(1000 * 2 ** (job.short - 1), 60_000))

    def sweep(self) -> int:
        """Take the jobs of lost workers, put recurrences, put back jobs, fail expired jobs, prune completed ones.

        Return how many jobs were taken.
        """
        # Jobs that this sweep puts are not among them.
        swept, watched = 0, [job for job in self.jobs.values() if job.watched]
        for queue in self.queues:
            expired = self.expired(queue)
            swept += len(expired)
            for job in expired:
                self._lose(job)
            if self.apart_in(queue).must_check(self.now) and self._not_ended(queue):
                self._bring_apart(queue, 100, None)
            if not self.option("paused", queue):
                self._spawn(queue, 100)
                self._bring_back(queue, 100)
        self._expire(watched)
        self._prune(self.completed(), 0)
        return swept

    def _expire(self, watched: list[Job]) -> None:
        over = [job for job in watched if job.watched and job.put_at + job.expires <= self.now]
        for job in sorted(over, key=lambda job: (job.put_at + job.expires, job.jid)):
            job.watched = False
            if self.is_overdue(job) and job.state != "running" and not job.ended:
                self._fail(job, "expired")

    def _prune(self, kept: list[Job], added: int) -> None:
        """Delete completed jobs beyond the limits of age and number, oldest first, except those just added."""
        count, age_s = self._most_kept(), self.option("jobs-history")
        aged = sum(job.ended_at <= self.now - age_s * 1000 for job in kept) if age_s > 0 else 0
        for job in kept[: max(aged, len(kept) + added - count)]:
            if self.jobs.get(job.jid) is job and job.state == "complete":
                self._erase(job)

    def _most_kept(self) -> int:
        return int(self.option("jobs-history-count")) if self.option("jobs-history") > 0 else 0

    def deregister(self, worker: str) -> int:
        """Forget a worker. Its jobs go to the front, uncounted; at-most-once jobs fail."""
        held = self.held_by(worker)
        for job in held:
            if job.once:
                self._fail(job, "interrupted")
            elif job.started:
                self._to_front(job)
                job.begun = True
            else:
                self._back_unstarted(job)
        self.cursors.pop(worker, None)
        self.seen.pop(worker, None)
        self._forget_skills(worker, set())
        self.skills.lacks.pop(worker, None)
        self.skills.numbered.discard(worker)
        return len(held)

    # Calls of the holder of a lease.

    def renew(
        self,
        hold: Hold,
        data: Any = UNSET,
        started: bool = False,
        progress: tuple[float, str] | None = None,
        state: Any = None,
        step: str | None = None,
    ) -> int:
        job = self._held(hold)
        job.started = job.started or started
        self.seen[hold.worker] = self.now
        if data is not UNSET:
            job.give(data)
        if progress is not None:
            job.progress = (*progress, self.now)
        if step is not None:
            job.steps[step] = state
        elif state is not None:
            job.saved = state
        job.expires_at = self.now + self.option_ms("heartbeat", job.queue)
        return job.expires_at

    def settle(self, outcomes: Iterable[Callable[["Model"], Any]]) -> list[Any]:
        """Carry out a batch of outcomes, then delete what retention does not keep."""
        kept, before = self.completed(), self.completions
        answers = self.all_or_nothing(outcomes)
        if self.completions > before:
            self._prune(kept, self.completions - before)
        return answers

    def complete(self, hold: Hold, data: Any = UNSET) -> bool:
        job = self._held(hold)
        if job.persistent:
            raise Endless
        if data is not UNSET:
            job.give(data)
        self._complete(job)
        return True

    def complete_then(self, hold: Hold, followers: Sequence[dict[str, Any]]) -> bool:
        """Complete a job and put its follow-ups. Refused if a follow-up would wait for itself, even through others."""
        self._held(hold)
        parents = {job.jid: list(job.parents) for job in self.jobs.values()}
        for one in followers:
            if one["depends"]:
                self._refuse_circle(one["jid"], one["depends"], parents)
                parents[one["jid"]] = one["depends"]
        self.complete(hold)
        for one in followers:
            self.put(**one)
        return True

    def come_back(self, hold: Hold) -> bool:
        """End the run of a persistent job, which comes back. Any other job completes."""
        job = self._held(hold)
        if not job.persistent:
            return self.complete(hold)
        self._come_back(job)
        return True

    def advance(self, hold: Hold, queue: str, data: Any = UNSET, delay: int = 0, depends: Iterable[str] = ()) -> bool:
        """Complete a stage: the job continues in another queue."""
        job = self._held(hold)
        if job.persistent:
            raise Endless
        self._refuse_circle(job.jid, list(depends))
        if data is not UNSET:
            job.give(data)
        job.progress = None
        job.forget_starts()
        self._leave(job)
        self._begin_stage(job, queue)
        job.results_of = list(depends)
        self._lay_down(job, self.now + delay, depends)
        return True

    def retry(self, hold: Hold, delay: int = 0, group: str | None = None) -> int:
        """Spend a retry. The job waits at the back, or until its time. Return the retries left, -1 if it failed."""
        job = self._held(hold)
        job.failures += 1
        job.unknown_at = None
        remaining = -1 if job.once else job.retries - job.failures
        if job.persistent:
            remaining = max(remaining, 0)
            if delay:
                self._schedule(job, self.now + delay)
            else:
                self._come_back(job)
        elif remaining < 0:
            self._fail(job, group or f"failed-retries-{job.queue}")
        else:
            self._set_out(job, self.now + delay)
            job.turn = None
        return remaining

    def fail(self, hold: Hold, group: str, data: Any = UNSET) -> bool:
        job = self._held(hold)
        if data is not UNSET:
            job.give(data)
        self._fail(job, group)
        return True

    def release(self, hold: Hold, started: bool = True) -> bool:
        job = self._held(hold)
        job.unknown_at = None if started else job.unknown_at
        self._interrupt(job, started)
        return True

    def _interrupt(self, job: Job, started: bool) -> None:
        job.interruptions += started
        if job.once and started:
            self._fail(job, "interrupted")
        elif started:
            self._to_front(job)
        else:
            self._back_unstarted(job)

    def suspend(self, hold: Hold, name: str, timeout: int | None = None) -> bool:
        """The handler waits for a signal. A wait of this name that has begun keeps its time."""
        job = self._held(hold)
        if job.persistent or job.once:
            raise Endless
        if name not in job.signals:
            job.waits.setdefault(name, NEVER if timeout is None else self.now + timeout)
        self._leave(job)
        job.begun, job.unknown_at = True, None
        if name in job.signals or job.waits[name] <= self.now:
            self._to_front(job)
        else:
            self._schedule(job, job.waits[name])
            job.waits_for = name
        return True

    def died(self, hold: Hold, reason: str) -> str:
        return self._die(self._held(hold), reason)

    # Calls of operators.

    def fail_job(self, jid: str, group: str) -> None:
        self._fail(self._job(jid), group)

    def release_job(self, jid: str) -> bool:
        job = self.jobs.get(jid)
        if job is None or job.state != "running":
            return False
        self._interrupt(job, job.started or bool(job.once))
        return True

    def signal(self, jid: str, name: str, value: Any) -> bool:
        job = self.jobs.get(jid)
        if job is None or job.state == "complete":
            return False
        job.signals[name] = value
        if job.waits_for == name:
            self._to_front(job)
        return True

    def set_priority(self, jid: str, priority: int) -> int:
        self._job(jid).priority = priority
        return priority

    def cancel(self, *jids: str) -> list[str]:
        """Delete jobs, except complete ones. Refused while an unlisted job must wait for one of them."""
        going = [jid for jid in dict.fromkeys(jids) if jid in self.jobs and self.jobs[jid].state != "complete"]
        for jid in going:
            if any(child.policy == "wait" and child.jid not in going for child in self.children(jid)):
                raise Refused
        for jid in going:
            self.jobs[jid].parents = {}
        for jid in going:
            model_modes.cancelled(self, self.jobs[jid])
            self._delete(self.jobs[jid])
        return going

    def unfail(
        self, group: str, queue: str | None = None, count: int = 25, klass: str | None = None, data: Any = UNSET
    ) -> int:
        """Put back the oldest jobs of a group, with another queue, klass or data if given. Return how many."""
        moved = 0
        for job in self.failed(group):
            if moved < count:
                moved += self.unfail_job(job.jid, queue, klass, data)
        return moved

    def unfail_job(self, jid: str, queue: str | None = None, klass: str | None = None, data: Any = UNSET) -> bool:
        """Put back one failed job. A broken entry is read again, or gets a klass or data.

        An entry that is still broken stays failed, and so does a job whose claim another job holds.
        """
        job = self.jobs.get(jid)
        queue = queue or job.queue if job else queue
        if job is None or job.state != "failed":
            return False
        if job.entry is not None and klass is None and (data is UNSET or job.klass == "broken"):
            return data is UNSET and self._read_again(job, queue)
        if job.claim and self.claims.get((queue, job.claim), jid) != jid:
            return False
        self._leave(job)
        job.entry, job.klass, job.progress = None, klass or job.klass, None
        if klass:
            job.shapes = frozenset()
        if data is not UNSET:
            job.give(data)
        self._begin_stage(job, queue)
        self._to_back(job)
        return True

    def _read_again(self, job: Job, queue: str) -> bool:
        """Put the job of a broken entry, under the jid that the entry names if any. Return whether it is valid now."""
        found, entry = model_entries.read(job.entry, self.option("klass", queue)), job.entry
        jid = found.jid or job.jid if found else None
        try:
            if not found or self.put(queue, jid, found.klass, found.data, content=entry, **found.options) != jid:
                return False
        except Refused:
            return False
        if jid != job.jid:
            self._delete(job)
        return True

    def depend(self, jid: str, *parents: str) -> None:
        """Add parents to a job that already waits for others."""
        job = self._job(jid)
        if job.state != "depends":
            raise Refused
        self._refuse_circle(jid, list(parents))
        unmet = self._unmet(job, parents)
        job.results_of = list(dict.fromkeys([*job.results_of, *parents]))
        if unmet is None:
            self._fail(job, "parent-failed")
        else:
            job.parents |= dict.fromkeys(unmet, self.now)

    def undepend(self, jid: str, *parents: str, all: bool = False) -> None:
        job = self._job(jid)
        if job.state != "depends":
            raise Refused
        removed = list(job.parents) if all else parents
        job.results_of = [parent for parent in job.results_of if parent not in removed]
        for parent in removed:
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
        """Create a recurrence, or replace a known one, which keeps its count."""
        missed, backlog = options.pop("missed", "all"), options.pop("backlog", None)
        old = self.recurring.get(jid)
        self.recurring[jid] = Recurring(
            jid, queue, klass, data, every, self.now + offset, missed, backlog, old.count if old else 0, options
        )
        self.first_put.setdefault(queue, self.now)

    def unrecur(self, jid: str) -> bool:
        return self.recurring.pop(jid, None) is not None

    def configure(self, option: str, value: Any) -> None:
        """Set an option; None unsets it."""
        if value is None:
            self.config.pop(option, None)
        else:
            self.config[option] = value

    # Calls on a whole queue or lane.

    def push(self, queue: str, entry: bytes) -> None:
        """Push an entry, as another program does."""
        self.pushed.setdefault(queue, []).append(entry)

    def cancel_equal(self, queue: str, data: Any) -> list[str]:
        """Cancel the jobs that have not ended and have this data. Return their jids."""
        self._take_in(queue, 1000)
        there = [job for job in self._not_ended(queue) if _equal(job.data, data)]
        self._drop(there)
        return [job.jid for job in there]

    def delete(self, queue: str, lane: str | None, running: str) -> tuple[int, int]:
        """Delete the jobs of a queue or lane that do not run. Running ones go if persistent, or all with "stop".

        Return how many did not run, and how many ran.
        """
        dropped = 0
        if lane is None:
            patterns = [pattern.jid for pattern in self.recurring.values() if pattern.queue == queue]
            dropped = len(self.pushed.pop(queue, ())) + len(patterns)
            for jid in patterns:
                del self.recurring[jid]
        else:
            self._take_in(queue, 1000)
        while there := [job for job in self._not_ended(queue) if lane in (None, job.lane) and job.state != "running"]:
            self._drop(there)
            dropped += len(there)
        there = [job for job in self._not_ended(queue) if lane in (None, job.lane)]
        self._drop([job for job in there if running == "stop" or job.persistent])
        empty = not self._not_ended(queue) and not any(one.queue == queue for one in self.recurring.values())
        if lane is None and empty and not self.pushed.get(queue):
            self.first_put.pop(queue, None)
            self.lanes.pop(queue, None)
            self.checks.pop(queue, None)
            self.apart.pop(queue, None)
            for limit in self.limits.values():
                limit.lines.pop(queue, None)
        return dropped, len(there)

    def _not_ended(self, queue: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.queue == queue and not job.ended]

    def _drop(self, jobs: list[Job]) -> None:
        """Delete jobs. Their dependencies go first, so that no deletion affects another of them."""
        for job in jobs:
            job.parents = {}
        for job in jobs:
            model_modes.cancelled(self, job)
            self._delete(job)


def priority_of(id: str, name: str) -> int:
    return 100 * int(id[1:]) + len(name)


def _equal(one: Any, other: Any) -> bool:
    return isinstance(one, bytes) == isinstance(other, bytes) and one == other
