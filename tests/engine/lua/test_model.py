"""The engine against the model: equal random operations under a clock that jumps.

A failing example is printed as a program of steps. Each round has a seed, so that it repeats at every run. `.ci/run
--full` runs twelve times as many rounds, TEST_FULL=1 thirty times as many. TEST_FULL=1 also runs the engine's own check
after every step, not after every fifth.
"""

import base64
import functools
import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_handles import Lease
from supervisor.engine.commands import batches, leasing, workers
from supervisor.engine.commands.limits import Limit
from supervisor.engine.model.errors import DependencyError, JobNotFound, LeaseholdError, LeaseLost
from supervisor.engine.model.outcomes import (
    ENDLESS,
    Completed,
    Died,
    Failed,
    Misfit,
    Released,
    Retried,
    Returned,
    Suspended,
    Unknown,
)
from supervisor.engine.model.replay import Replay
from supervisor.engine.model.validation import to_state
from tests.engine.conftest import Clock
from tests.engine.densities import make_full
from tests.engine.invariants import Snapshot, left_over, misplaced, read_namespace
from tests.engine.many_queues import leases_of_many_queues
from tests.engine.model import Model, priority_of
from tests.engine.model_jobs import NEVER, Endless, Hold, Lost, Missing, Refused
from tests.engine.model_limits import WHEN_FREE
from tests.engine.model_modes import Mode
from tests.engine.witness import WitnessedClient
from tests.lengths import FULL, LONG

#: Each of a seed and a few examples: of many examples hypothesis makes most by varying few.
ROUNDS = 60 if FULL else 24 if LONG else 2
EXAMPLES = 9
STEPS = 100
LEAST_STEPS = 50_000 if FULL else 20_000 if LONG else 1_600
CHECK_EVERY = 1 if FULL else 5

JIDS = tuple("abcdefgh")
PLAIN_JIDS = tuple("mnopqr")  # put only when there is no such job, without options that need a full record
PATTERNS = ("r", "s")
QUEUES = ("A", "B", "C")
LANES = ("x", "y")
LIMITS = ("K", "L")
WORKERS = ("v", "w")
MOST_BATCHES = 4
TAGS = ("t", "u")

REFUSALS = {Missing: JobNotFound, Refused: DependencyError, Endless: LeaseholdError}

# Values that are drawn. The first of each is the simplest.

jid = st.sampled_from(JIDS)
any_jid = st.sampled_from([*JIDS, *PLAIN_JIDS])
jids = st.lists(jid, min_size=1, max_size=3, unique=True)
queue = st.sampled_from(QUEUES)
queues = st.lists(queue, min_size=1, max_size=3, unique=True)
worker = st.sampled_from(WORKERS)
group = st.sampled_from(["g", "h"])
name = group  # of signals and steps
tags = st.lists(st.sampled_from(TAGS), max_size=2, unique=True)
some_tags = st.lists(st.sampled_from(TAGS), min_size=1, max_size=2, unique=True)
seconds = st.sampled_from([0, 0.5, 2, 40])
ttl = st.sampled_from([None, None, 10, 1, 0, -3, -100])
pick = st.integers(0, 9)  # of the leases so far
order = st.sampled_from(["strict", "round-robin"])
policy = st.sampled_from(["wait", "fail", "run"])
data = st.sampled_from([[], {"n": 2**60}, b"\x00raw"])

TRACES = [None, *(f"00-{'ab' * 16}-{number:016x}-01" for number in (1, 2))]


def traced(options: dict[str, Any]) -> dict[str, Any]:
    """Return a trace that follows from the other arguments; it must not change anything else."""
    return {**options, "trace": TRACES[len(options) % 3]} if len(options) % 4 else options


cheap_options = {
    "priority": st.integers(-1, 2),
    "retries": st.integers(0, 2),
    "max_deaths": st.sampled_from([0, 1, 2]),
}
job_options = {**cheap_options, "tags": tags}
lane = st.sampled_from(LANES)
limit = st.sampled_from(LIMITS)
limits = st.sampled_from([LIMITS, LIMITS[::-1]])
terms = {
    "lane": st.sampled_from([*LANES, *LANES, None]),
    "limit": st.one_of(st.sampled_from([*LIMITS, *LIMITS, None]), limits),
    "unique": st.sampled_from([True, "u", None]),
    "expires": st.sampled_from([2, 40, None]),
}
kinds = st.sampled_from(
    [{}, {}, {"persistent": True}, {"persistent": False}, {"at_most_once": True}, {"at_most_once": False}]
)
much = st.fixed_dictionaries({}, optional={**job_options, "delay": st.sampled_from([0.5, 2, 40]), **terms})
later = {"delay": st.sampled_from([0.5, 2, 40])}
after = {"depends": st.lists(any_jid, min_size=1, max_size=3, unique=True), "on_parent_failure": policy}
put_options = st.one_of(
    st.just({}),
    st.fixed_dictionaries({}, optional=job_options),
    st.fixed_dictionaries(later),
    st.fixed_dictionaries(after),
    st.fixed_dictionaries({"lane": lane}),
    st.fixed_dictionaries({"limit": limit}, optional={key: value for key, value in terms.items() if key != "limit"}),
    st.fixed_dictionaries({}, optional=terms),
    st.builds(lambda options, kind: options | kind, much, kinds),
    st.fixed_dictionaries({}, optional={**job_options, **later, **after, **terms}),
).map(traced)
klasses = st.sampled_from(["klmne", "klmne", "kl", "mne", ""]).map(list)
shapes = st.sampled_from(["", "one", "one", "two", "three"])
verb = st.sampled_from(
    ["retry", "died", "release", "hand back", "fail", "complete", "return", "unknown", "misfit", "unknown", "suspend"]
)
outcome = st.tuples(pick, verb, seconds, group)
recur_options = st.fixed_dictionaries(
    {},
    optional={
        **job_options, "missed": st.sampled_from(["all", "once", "skip"]), "lane": lane, "limit": limit,
        "unique": st.sampled_from([True, "u"]), "expires": st.sampled_from([2, 40]), "at_most_once": st.booleans(),
    },
).map(traced)  # fmt: skip
new_content = st.one_of(st.just({}), st.fixed_dictionaries({"data": data}, optional={"klass": st.just("n")}))
new_job = st.fixed_dictionaries({"jid": jid, "data": data, "options": put_options})


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def for_model(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a put as the model has them."""
    plain = dict(options)
    if plain.get("delay") is not None:
        plain["delay"] = ms(plain["delay"])
    if plain.get("expires") is not None:
        plain["expires"] = ms(plain["expires"])
    for name in {"debounce", "throttle", "collect"} & plain.keys():
        plain["mode"] = Mode(name, ms(plain.pop(name)), plain.pop("most", 500))
        if name != "throttle":
            plain["delay"] = plain["mode"].span_ms
    if "lane" in plain:
        plain["lane"] = plain["lane"] or ""
    for here, there in (("on_parent_failure", "policy"), ("at_most_once", "once")):
        if here in plain:
            plain[there] = plain.pop(here)
    return plain


def vars_of(record: Any) -> tuple[Any, ...]:
    """Return the compared values of a record, in order."""
    return tuple(getattr(record, name) for name, field in record.__dataclass_fields__.items() if field.compare)


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation: its method, its weight, what it needs, and its arguments."""

    do: Callable[..., None]
    weight: int
    when: str | None  # a property of the machine
    arguments: st.SearchStrategy[dict[str, Any]]


OPERATIONS: list[Operation] = []


def operation(weight: int = 1, when: str | None = None, **arguments: Any) -> Any:
    """Make a method of the machine one of its operations."""

    def enter(do: Callable[..., None]) -> Callable[..., None]:
        OPERATIONS.append(Operation(do, weight, when, st.fixed_dictionaries(arguments)))
        return do

    return enter


@functools.cache
def choices(there_is: frozenset[str]) -> st.SearchStrategy[tuple[Operation, dict[str, Any]]]:
    """Return an operation whose needs are met, with its arguments."""
    ready = [one for one in OPERATIONS if one.when is None or one.when in there_is for _ in range(one.weight)]
    calls = {one: st.tuples(st.just(one), one.arguments) for one in ready}
    return st.sampled_from(ready).flatmap(calls.__getitem__)


class Machine(RuleBasedStateMachine):
    """Run operations on the engine and on the model, and compare their answers and all visible state.

    (Hypothesis would disable half of many rules in each example, for instance all leases.)
    """

    server: Any
    of_many_queues = False  # whether each lease counts as one of many queues
    densities: ClassVar[Counter[tuple[str, str]]] = Counter()  # jobs after each step, by density and state
    steps = 0
    runs = 0

    def __init__(self) -> None:
        super().__init__()
        Machine.runs += 1
        self.namespace = self.server.seen(f"model-{Machine.runs}")
        self.prefix = f"{{{self.namespace}}}:"
        self.clock = Clock()
        self.client = WitnessedClient(self.server, self.namespace, self.clock)
        self.model = Model(ms(self.clock.now))
        self.leases: list[tuple[Lease, Hold]] = []
        self.handles: dict[str, Any] = {}  # each job as it was seen last, also when it is gone
        self.last_token = 0
        self.passed: dict[tuple[str, str], int] = {}  # by queue and lane how many starts of others it has waited
        self.weighed: set[str] = set()  # the queues of which lanes had weights
        self.went_back = False  # the clock has: what is to be done later than needed is done then
        self.learnt: dict[str, str] = {}  # what the model called a job that got its jid from the engine
        self.serial = 0
        self.dense: list[str] = []  # jids of the dense records
        self.starts: dict[str, list[int]] = {}  # of each limit the times since it was set, or the clock went back
        self.program: list[str] = []

    @rule(data=st.data())
    def step(self, data):
        there_is = frozenset(need for need in {one.when for one in OPERATIONS} if need and getattr(self, need))
        chosen, arguments = data.draw(choices(there_is))
        self.program.append(f"machine.{chosen.do.__name__}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})")
        Machine.steps += 1
        try:
            chosen.do(self, **arguments)
            self.all_is_as_in_the_model()
        except Exception as error:
            error.add_note("\n".join(["machine = Machine()", *self.program]))
            raise

    def teardown(self) -> None:
        self.client.close()
        for key in read_namespace(self.server.redis, self.namespace):
            self.server.redis.unlink(self.prefix + key)

    def agree(self, ask, expect):
        """Engine and model answer alike, or refuse alike."""
        try:
            expected = expect(self.model)
        except (Missing, Refused, Endless) as refusal:
            with pytest.raises(REFUSALS[type(refusal)]):
                ask()
        else:
            self.model.end_batches()
            answer = ask()
            assert answer == expected, f"{answer!r}, not {expected!r}"

    @property
    def held(self):
        """Return the leases that hold, oldest first."""
        return [pair for pair in self.leases if self.holds(pair[1])]

    @property
    def stale(self):
        """Return the leases that hold no longer, newest first."""
        return [pair for pair in reversed(self.leases) if not self.holds(pair[1])]

    def holds(self, hold: Hold) -> bool:
        job = self.model.jobs.get(hold.jid)
        return job is not None and job.hold == hold

    @property
    def at_hand(self):
        return [queue for queue in QUEUES if self.model.at_hand(queue)]

    @property
    def depending(self):
        return self.in_state("depends")

    @property
    def failed(self):
        return self.in_state("failed")

    @property
    def known(self):
        return self.handles

    @property
    def recurring(self):
        return self.model.recurring

    @property
    def limited(self):
        return [key for key, limit in self.model.limits.items() if limit.is_set]

    @property
    def paused_lanes(self):
        return [(queue, lane) for queue, lanes in self.model.lanes.items() for lane in sorted(lanes.paused)]

    @property
    def waiting_data(self):
        return [job for job in self.model.jobs.values() if not job.ended]

    @property
    def times(self):
        return sorted(self.model.times())

    @property
    def paused(self):
        return [option for option in self.model.config if option.startswith("paused")]

    @property
    def unpaused(self):
        return not self.paused

    def in_state(self, state: str) -> list[str]:
        return sorted(job.jid for job in self.model.jobs.values() if job.state == state)

    # Time and configuration.

    @operation(by=st.sampled_from([1, 0.001, 4.9, 5, 30, 35, 70, 400, -1, -20]))
    def tick(self, by):
        self.clock.tick(by)
        self.model.now = ms(self.clock.now)
        if by < 0:
            self.went_back, self.starts = True, {}

    @operation(weight=2, when="times", pick=pick, by=st.sampled_from([0, 0, -0.001, 0.001]))
    def tick_to_what_comes(self, pick, by):
        """Move to the time of the next timed event, or just before it."""
        before, self.clock.now = self.clock.now, round(self.times[pick % len(self.times)] / 1000 + by, 3)
        self.model.now = ms(self.clock.now)
        if self.clock.now < before:
            self.went_back, self.starts = True, {}

    @operation(
        option=st.sampled_from(["heartbeat", "grace", "max-deaths", "max-concurrency"]),
        queue=st.sampled_from(["", "-A", "-B"]),
        value=st.sampled_from([None, None, 1, 2]),
    )
    def configure(self, option, queue, value):
        self.set_option(option + queue, value)

    @operation(weight=2, kept=st.sampled_from([None, 0, 1, 3]), seconds=st.sampled_from([None, None, 0, 2.7]))
    def keep(self, kept, seconds):
        self.set_option("jobs-history-count", kept)
        self.set_option("jobs-history", seconds)

    def set_option(self, option, value):
        if value is None:
            self.client.config.unset(option)
        else:
            self.client.config.set(option, value)
        self.model.configure(option, value)

    @operation(queue=queue, klass=st.sampled_from([None, "bare"]))
    def name_klass_of_bare_entries(self, queue, klass):
        self.set_option(f"klass-{queue}", klass)

    @operation(when="unpaused", queue=st.sampled_from([*QUEUES, None]))
    def pause(self, queue):
        """Return one queue, or all of them."""
        if queue is None:
            self.set_option("paused", 1)
        else:
            self.client.queue(queue).pause()
            self.model.configure(f"paused-{queue}", 1)

    @operation(weight=3, when="paused")
    def unpause(self):
        option = self.paused[0]
        if option == "paused":
            self.set_option(option, None)
        else:
            self.client.queue(option[7:]).unpause()
            self.model.configure(option, None)

    @operation(weight=2, when="dense", pick=pick)
    def make_full(self, pick):
        """Store a dense record as a full one: no caller may see a difference."""
        assert make_full(self.server.redis, self.prefix, self.dense[pick % len(self.dense)])

    # Putting.

    @property
    def unused(self):
        return [jid for jid in PLAIN_JIDS if jid not in self.model.jobs]

    @operation(
        weight=9,
        when="unused",
        queue=queue,
        count=st.integers(1, 4),
        data=st.sampled_from([[], {"n": 2**60}, b"\x00raw", "x" * 510, "x" * 511]),
        options=st.one_of(st.just({}), st.fixed_dictionaries({}, optional=cheap_options).map(traced)),
    )
    def put_plain(self, queue, count, data, options):
        """Put jobs that can have dense records."""
        new = [{"klass": "m", "jid": jid, "data": data, **options} for jid in self.unused[:count]]
        plain = for_model(options)
        self.agree(
            lambda: self.client.queue(queue).put_many(new),
            lambda model: [model.put(queue, one["jid"], "m", data, **plain) for one in new],
        )

    @operation(weight=2, queue=queue, jid=jid, data=data, options=put_options)
    def put(self, queue, jid, data, options):
        self.agree(
            lambda: self.client.queue(queue).put("k", data, jid=jid, **options),
            lambda model: model.put(queue, jid, "k", data, **for_model(options)),
        )

    @operation(
        queue=queue, jids=jids, data=st.sampled_from([1, {"n": [2]}, "x" * 600]),
        mode=st.one_of(
            st.fixed_dictionaries({"debounce": st.sampled_from([0.5, 2, 40])}),
            st.fixed_dictionaries({"throttle": st.sampled_from([2, 40])}),
            st.fixed_dictionaries({"collect": st.sampled_from([2, 40]), "most": st.sampled_from([1, 2, 3])}),
        ),
        unique=st.sampled_from(["u", "u", "v"]),
        options=st.fixed_dictionaries({}, optional={**job_options, "lane": lane, "limit": limit}).map(traced),
    )  # fmt: skip
    def put_in_a_mode(self, queue, jids, data, mode, unique, options):
        """Put a unique job with a mode, or several under different jids by one call."""
        put = {**options, **mode, "unique": unique}
        given = [data] if "collect" in mode else data
        new = [{"klass": "k", "jid": jid, "data": data, **put} for jid in jids]
        verbs = [lambda model, jid=jid: model.put(queue, jid, "k", given, **for_model(put)) for jid in jids]
        self.agree(lambda: self.client.queue(queue).put_many(new), lambda model: model.all_or_nothing(verbs))

    @operation(queue=queue, jid=jid, data=data, options=put_options)
    def add(self, queue, jid, data, options):
        self.agree(
            lambda: self.client.queue(queue).add("l", data, jid=jid, **options),
            lambda model: model.add(queue, jid, "l", data, **for_model(options)),
        )

    @operation(weight=2, queue=queue, new=st.lists(new_job, min_size=1, max_size=4))
    def put_many(self, queue, new):
        jobs = [{"klass": "m", "jid": one["jid"], "data": one["data"], **one["options"]} for one in new]
        verbs = [
            lambda model, one=one: model.put(queue, one["jid"], "m", one["data"], **for_model(one["options"]))
            for one in new
        ]
        self.agree(
            lambda: self.client.queue(queue).put_many(jobs),
            lambda model: model.all_or_nothing(verbs),
        )

    @operation(
        queue=queue,
        jid=st.sampled_from(PATTERNS),
        every=st.sampled_from([100, 60, 600]),
        offset=seconds,
        options=recur_options,
        backlog=st.sampled_from([None, 0, 2]),
    )
    def recur(self, queue, jid, every, offset, options, backlog):
        if jid in self.model.recurring or all(job.spawned_from != jid for job in self.model.jobs.values()):
            if backlog is not None and options.get("missed", "all") == "all":
                options = {**options, "backlog": backlog}
            self.agree(
                lambda: self.client.queue(queue).recur("r", [jid], every=every, jid=jid, offset=offset, **options),
                lambda model: model.recur(queue, jid, "r", [jid], ms(every), ms(offset), **for_model(options)) or jid,
            )

    @operation(when="recurring", jid=st.sampled_from(PATTERNS))
    def unrecur(self, jid):
        self.agree(lambda: self.client.unrecur(jid), lambda model: model.unrecur(jid))

    # Leasing.

    @operation(weight=5, when="at_hand", worker=worker, queues=queues, count=st.integers(0, 5), ttl=ttl, order=order)
    def lease(self, worker, queues, count, ttl, order):
        self.note_called()
        given = self.client.lease(worker, queues, count, ttl, order)
        self.compare(given, worker, queues, count, None if ttl is None else ms(ttl), order)

    @operation(
        weight=2,
        when="at_hand",
        worker=worker,
        queues=queues,
        count=st.integers(1, 3),
        starting=st.integers(0, 2),
        once=st.lists(st.sampled_from("klm"), max_size=2, unique=True),
    )
    def lease_ahead(self, worker, queues, count, starting, once):
        """Lease as a master does: some jobs start later, and some klasses never start twice."""
        self.note_called()
        command = leasing.lease(worker, queues, count, starting=starting, once=once, now=self.clock.now)
        given = [Lease(record, calls_of(self.client)) for record in calls_of(self.client).run(command).leases]
        self.compare(given, worker, queues, count, starting=starting, once=once)

    def note_called(self):
        """Tell the model for which queues a worker is woken: a lease of many queues that is full passes them over."""
        woken = [queue for queue in QUEUES if self.server.redis.exists(f"{self.prefix}bell:{queue}")]
        self.model.called = set(woken) if self.of_many_queues else set()

    def compare(self, given, *arguments, **how):
        ended = [job.jid for job in self.client.jobs(*self.depending) if job and job.state == "failed"]
        holds = self.model.lease(*arguments, **how, freed=[*ended, *(lease.jid for lease in given)])
        self.model.end_batches()
        self.learn()
        holds = [self.model.jobs[self.learnt.get(hold.jid, hold.jid)].hold for hold in holds]
        assert [lease.jid for lease in given] == [hold.jid for hold in holds]
        for lease, hold in zip(given, holds, strict=True):
            job = self.model.jobs[hold.jid]
            assert lease.token > self.last_token
            self.last_token = lease.token
            self.leases.append((lease, hold))
            seen = (lease.queue, lease.klass, lease.data, lease.priority, list(lease.tags), ms(lease.expires_unix))
            assert seen == (job.queue, job.klass, job.data, job.priority, job.tags, job.expires_at)
            assert (lease.failures, lease.deaths, lease.interruptions) == (job.failures, job.deaths, job.interruptions)
            assert (lease.saved, lease.trace) == (job.saved, job.trace)
            before, over = Replay(lease.raw_replay), {name: at <= self.model.now for name, at in job.waits.items()}
            assert (before.signals, before.steps, before.waits) == (job.signals, job.steps, over)
            assert (lease.lane or "", lease.persistent, lease.at_most_once) == (
                job.lane,
                job.persistent,
                bool(job.once),
            )
            for key in job.limits:
                self.check_start(key)
        for queue in QUEUES:
            self.check_fairness(queue, [self.model.jobs[hold.jid] for hold in holds])

    def learn(self):
        """Map the jids that the engine has given to jobs of entries without one."""
        unknown = [jid for jid in self.model.jobs if jid[0] == "?"]
        if not unknown:
            return
        found = read_namespace(self.server.redis, self.namespace)
        new = [key[4:] for key in found if key.startswith("job:") and key[4:] not in self.model.jobs]
        for jid in unknown:
            wanted = self.model.jobs[jid].stored
            same = [one for one in new if found.payload(one) == wanted]
            assert len(same) == 1, (jid, wanted, new)
            self.model.learn(jid, same[0])
            self.learnt[jid] = same[0]

    def check_fairness(self, queue, given):
        """A lane with jobs gets a turn within as many starts of others as there are lanes, plus one; more by weight."""
        lanes = self.model.lanes_of(queue)
        waiting = set(self.model.lines(queue)) - lanes.paused
        passed = {lane: n for (of, lane), n in self.passed.items() if of == queue and lane in waiting}
        for job in given:
            if job.queue == queue and job.turn == job.hold.token:
                passed = {lane: passed.get(lane, 0) + 1 for lane in waiting} | {job.lane: 0}
        if lanes.weights:
            self.weighed.add(queue)
        most = (len(LANES) + 1) * (4 if queue in self.weighed else 1) + 1
        assert max(passed.values(), default=0) <= most
        self.passed = {key: n for key, n in self.passed.items() if key[0] != queue}
        self.passed |= {(queue, lane): n for lane, n in passed.items() if lane in waiting}

    def check_start(self, key):
        """A limit never has more running jobs, nor more starts within its time."""
        limit = self.model.limits[key]
        if limit.running is not None:
            assert self.model.in_use(key) <= limit.running
        if limit.starts is not None:
            self.starts.setdefault(key, []).append(self.model.now)
            none = [at for of, at in self.model.taken_back if of == key]
            lately = [at for at in self.starts[key] if at > self.model.now - limit.per]
            assert len(lately) - sum(at > self.model.now - limit.per for at in none) <= limit.starts

    @operation(when="at_hand")
    def sweep(self):
        self.agree(lambda: self.client.sweep(), lambda model: model.sweep())

    # Lanes, limits, and what other programs push.

    @operation(queue=queue, lane=lane, n=st.sampled_from([1, 2, 3]))
    def weigh_lane(self, queue, lane, n):
        self.agree(
            lambda: self.client.queue(queue).lane(lane).weight(n), lambda model: model.weigh_lane(queue, lane, n)
        )

    @operation(queue=queue, lane=lane)
    def pause_lane(self, queue, lane):
        self.agree(lambda: self.client.queue(queue).lane(lane).pause(), lambda model: model.pause_lane(queue, lane))

    @operation(weight=3, when="paused_lanes", pick=pick)
    def unpause_lane(self, pick):
        queue, lane = self.paused_lanes[pick % len(self.paused_lanes)]
        self.agree(lambda: self.client.queue(queue).lane(lane).unpause(), lambda model: model.unpause_lane(queue, lane))

    @operation(
        weight=2,
        key=limit,
        running=st.sampled_from([1, 1, 2, 0, None]),
        rate=st.sampled_from([None, (2, 40), (1, 60), (3, 40)]),
    )
    def set_limit(self, key, running, rate):
        """The time is long, so that the server's own clock expires nothing within a test."""
        given = None if rate is None else f"{rate[0]}/{rate[1]}s"
        found = self.client.limit(key, running, given)
        if running is not None or rate is not None:
            self.model.limit(key, running, rate and (rate[0], ms(rate[1])))
        if rate is not None:
            self.starts.pop(key, None)
        assert found == self.limit_in_model(key)

    @operation(when="limited", key=limit)
    def unlimit(self, key):
        self.agree(lambda: self.client.unlimit(key), lambda model: model.unlimit(key))
        self.starts.pop(key, None)

    @operation(
        weight=2,
        queue=queue,
        jid=st.one_of(st.none(), jid),
        options=st.fixed_dictionaries(
            {},
            optional={
                **job_options, **later, **after, **terms, "persistent": st.booleans(), "data": st.booleans(),
                "delay": st.sampled_from([0, 2]),
            },
        ).map(traced),
        broken=st.sampled_from(["", "", "", "bare", "json", "key", "klass", "value"]),
    )  # fmt: skip
    def push(self, queue, jid, options, broken):
        entry = self.entry(jid, options, broken)
        self.server.redis.lpush(f"{self.prefix}in:{queue}", entry)
        self.model.push(queue, entry)

    def entry(self, jid, options, broken):
        """Bytes are unique, because they identify an entry without a jid."""
        self.serial += 1
        if broken == "bare":
            return b"\xff\x00 %d" % self.serial
        entry = {"klass": "e", **options, "data": [self.serial, 2**60]}
        if options.get("data"):
            del entry["data"]
            entry["data_b64"] = base64.b64encode(b"\x00%d" % self.serial).decode()
        if jid is not None:
            entry["jid"] = jid
        match broken:
            case "key":
                entry["colour"] = "red"
            case "klass":
                del entry["klass"]
            case "value":
                entry["priority"] = "high"
        text = json.dumps(entry).encode()
        return text[:-1] if broken == "json" else text

    @operation(worker=worker)
    def join(self, worker):
        """The worker numbers its exchanges from now on, as one of 0.1, or one without a report of klasses."""
        if worker not in self.model.skills.numbered and not self.model.held_by(worker):
            calls_of(self.client).call(leasing.resume, worker, 1, [])
            self.model.join(worker)

    @operation(
        weight=5, worker=worker, klasses=klasses, queues=st.sampled_from([list(QUEUES), list(QUEUES), ["A"]]),
        shape=shapes,
    )  # fmt: skip
    def tell(self, worker, klasses, queues, shape):
        """Report klasses and one shape for all, as a master does after joining and after a reload."""
        self.join(worker)
        told = dict.fromkeys(klasses, shape) if shape else {}
        self.agree(
            lambda: calls_of(self.client).call(workers.report_skills, worker, klasses, queues, told),
            lambda model: model.report_skills(worker, klasses, queues, told),
        )

    @operation(when="held", worker=worker)
    def deregister(self, worker):
        self.agree(lambda: self.client.deregister(worker), lambda model: model.deregister(worker))

    # Acts of holders, also of those that have lost their leases.

    @operation(when="held", pick=pick, data=st.one_of(st.none(), data))
    def renew(self, pick, data):
        lease, hold = self.held[pick % len(self.held)]
        given = {} if data is None else {"data": data}
        self.agree(lambda: ms(lease.renew(**given)), lambda model: model.renew(hold, **given))

    @operation(when="held", pick=pick, started=st.booleans(), progress=st.sampled_from([None, (0.5, "half"), (1, "")]))
    def renew_as_a_master(self, pick, started, progress):
        lease, hold = self.held[pick % len(self.held)]
        entry = leasing.Renewal(hold.jid, lease.token, started, progress=progress)
        command = leasing.renew(hold.worker, [entry], now=self.clock.now)
        self.agree(
            lambda: [ms(when) for when in calls_of(self.client).run(command)],
            lambda model: [model.renew(hold, started=started, progress=progress)],
        )

    @operation(weight=2, when="held", pick=pick, state=st.sampled_from([{"n": 1}, 0, "half", [1, 2]]))
    def checkpoint(self, pick, state):
        lease, hold = self.held[pick % len(self.held)]
        self.agree(lambda: ms(lease.checkpoint(state)), lambda model: model.renew(hold, started=True, state=state))

    @operation(when="held", pick=pick, name=name, result=st.sampled_from([{"n": 1}, None]))
    def step_of_handler(self, pick, name, result):
        _, hold = self.held[pick % len(self.held)]
        entry = leasing.Renewal(hold.jid, hold.token, True, state=to_state("result", result), step=name)
        self.agree(
            lambda: [ms(when) for when in calls_of(self.client).call(leasing.renew, hold.worker, [entry])],
            lambda model: [model.renew(hold, started=True, state=result, step=name)],
        )

    @operation(weight=2, when="held", pick=pick, name=name, timeout=st.sampled_from([None, 0, 2, 40]))
    def suspend(self, pick, name, timeout):
        lease, hold = self.held[pick % len(self.held)]
        self.agree(
            lambda: lease.suspend(name, timeout),
            lambda model: model.suspend(hold, name, None if timeout is None else ms(timeout)),
        )

    @operation(weight=2, when="known", pick=pick, jid=any_jid, name=name, value=st.sampled_from([None, "yes"]))
    def signal(self, pick, jid, name, value):
        waiting = sorted(job.jid for job in self.model.jobs.values() if job.waits_for)
        jid = waiting[pick] if pick < len(waiting) else jid
        self.agree(lambda: self.client.signal(jid, name, value), lambda model: model.signal(jid, name, value))

    @operation(weight=2, when="held", pick=pick, data=st.one_of(st.none(), data))
    def complete(self, pick, data):
        lease, hold = self.held[pick % len(self.held)]
        given = {} if data is None else {"data": data}
        self.agree(
            lambda: lease.complete({"r": 1}, **given),
            lambda model: model.settle([lambda model: model.complete(hold, **given)])[0],
        )

    @operation(when="held", pick=pick, queue=queue, delay=seconds, depends=st.lists(jid, max_size=2, unique=True))
    def advance(self, pick, queue, delay, depends):
        lease, hold = self.held[pick % len(self.held)]
        self.agree(
            lambda: lease.complete(next=queue, delay=delay, depends=depends),
            lambda model: model.advance(hold, queue, delay=ms(delay), depends=depends),
        )

    @operation(weight=3, when="held", pick=pick, queue=queue, new=st.lists(new_job, min_size=1, max_size=2))
    def complete_then(self, pick, queue, new):
        lease, hold = self.held[pick % len(self.held)]
        then = [{"queue": queue, "klass": "n", "jid": one["jid"], "data": one["data"], **one["options"]} for one in new]
        followers = []
        for one in new:
            plain = {"queue": queue, "klass": "n", "jid": one["jid"], "data": one["data"], "depends": ()}
            if lease.trace is not None:
                plain["trace"] = lease.trace  # where it is given none
            followers.append(plain | for_model(one["options"]))
        self.agree(
            lambda: lease.complete(then=then),
            lambda model: model.settle([lambda model: model.complete_then(hold, followers)])[0],
        )

    @operation(weight=5, when="held", outcomes=st.lists(outcome, min_size=1, max_size=4))
    def settle(self, outcomes):
        """Settle a batch of one worker; a second outcome of a lease is stale."""
        worker = self.held[outcomes[0][0] % len(self.held)][1].worker
        own = [pair for pair in self.held if pair[1].worker == worker]
        chosen = [(*own[pick % len(own)], *how) for pick, *how in outcomes]
        answers = self.client.settle([self.outcome(lease, *how) for lease, _, *how in chosen])
        assert answers == self.model.settle([self.verb(hold, *how) for _, hold, *how in chosen])
        self.model.end_batches()

    @operation(when="stale", outcome=outcome)
    def settle_too_late(self, outcome):
        pick, *how = outcome
        lease, hold = self.stale[pick % len(self.stale)]
        assert self.client.settle([self.outcome(lease, *how)]) == self.model.settle([self.verb(hold, *how)])

    @operation(when="stale", pick=pick, queue=queue, new=st.lists(new_job, min_size=1, max_size=2))
    def complete_too_late(self, pick, queue, new):
        """The follow-ups are not put."""
        lease, _ = self.stale[pick % len(self.stale)]
        then = [{"queue": queue, "klass": "n", "jid": one["jid"], **one["options"]} for one in new]
        assert not lease.complete(then=then)
        assert not lease.complete(next=queue, data=1)
        with pytest.raises(LeaseLost):
            lease.renew(data=2)

    def shape_of(self, held):
        """Return the shape that the holder's handlers have, or one that it has not reported."""
        return next(iter(self.model.skills.shapes.get(held.worker, {}).values()), "one")

    def outcome(self, lease, verb, delay, group):
        match verb:
            case "complete":
                return Completed(lease)
            case "return":
                return Returned(lease)
            case "retry":
                return Retried(lease, delay, group, "m")
            case "fail":
                return Failed(lease, group, "m")
            case "died":
                return Died(lease, "SIGKILL")
            case "unknown":
                return Unknown(lease, delay)
            case "misfit":
                return Misfit(lease, self.shape_of(lease), "m")
            case "suspend":
                return Suspended(lease, group, delay)
        return Released(lease, started=verb == "release")

    def verb(self, hold, verb, delay, group):
        def run(model):
            job = model.jobs.get(hold.jid)
            is_member = job is not None and job.hold == hold and job.batch is not None
            answer = end(model)
            if is_member:
                model.end_batches()
            return answer

        def end(model):
            try:
                match verb:
                    case "complete":
                        return model.complete(hold)
                    case "return":
                        return model.come_back(hold)
                    case "retry":
                        return model.retry(hold, ms(delay), group)
                    case "fail":
                        return model.fail(hold, group)
                    case "died":
                        return model.died(hold, "SIGKILL")
                    case "unknown":
                        return model.unknown(hold, ms(delay))
                    case "misfit":
                        return model.misfit(hold, self.shape_of(hold))
                    case "suspend":
                        return model.suspend(hold, group, ms(delay))
                return model.release(hold, started=verb == "release")
            except Lost:
                return None if verb in ("retry", "died", "unknown", "misfit") else False
            except Endless:
                return ENDLESS

        return run

    # Batches.

    @property
    def open_batches(self):
        return [id for id, batch in self.model.batches.known.items() if not batch.is_closed]

    @property
    def batches(self):
        return list(self.model.batches.known)

    @property
    def fewer_batches(self):
        return len(self.batches) < MOST_BATCHES

    @property
    def held_members(self):
        return [pair for pair in self.held if self.model.jobs[pair[1].jid].batch]

    @operation(weight=3, when="fewer_batches", pick=pick, is_nested=st.booleans())
    def open_batch(self, pick, is_nested):
        id, parent = f"b{len(self.batches)}", None
        if is_nested and self.open_batches:
            parent = self.open_batches[pick % len(self.open_batches)]
        calls = {
            name: {"queue": "A", "klass": name, "jid": f"{id}-{name}", "priority": priority_of(id, name)}
            for name in ("on_complete", "on_success", "on_failure")
        }
        around = self.client if parent is None else self.client.batch(parent)
        around.batch(id, **calls).__enter__()
        self.model.batches.open(id, parent, self.model.now)
        self.model.first_put.setdefault("A", self.model.now)

    @operation(
        weight=6, when="open_batches", pick=pick, queue=queue, jids=jids, data=data,
        options=st.fixed_dictionaries({}, optional={**later, **after, **terms}),
    )  # fmt: skip
    def put_into_batch(self, pick, queue, jids, data, options):
        id = self.open_batches[pick % len(self.open_batches)]
        jids = [jid for jid in jids if not (jid in self.model.jobs and self.model.jobs[jid].persistent)]
        jobs = [{"klass": "k", "data": data, "jid": jid, **options} for jid in jids]
        plain = for_model(options)
        self.agree(
            lambda: self.client.batch(id).put_many(queue, jobs),
            lambda model: model.all_or_nothing(
                [lambda model, jid=jid: model.put(queue, jid, "k", data, batch=id, **plain) for jid in jids]
            ),
        )

    @operation(weight=3, when="open_batches", pick=pick, aborted=st.sampled_from([False, False, True]))
    def close_batch(self, pick, aborted):
        id = self.open_batches[pick % len(self.open_batches)]
        self.agree(
            lambda: calls_of(self.client).call(batches.closed, id, aborted),
            lambda model: model.batches.close(id, aborted) or True,
        )

    @operation(weight=2, when="held_members", pick=pick, queue=queue, jid=jid)
    def add_to_own_batch(self, pick, queue, jid):
        lease, hold = self.held_members[pick % len(self.held_members)]
        known = self.model.jobs.get(jid)
        if jid == hold.jid or (known and known.persistent):
            return
        id = self.model.jobs[hold.jid].batch
        one = {"queue": queue, "klass": "n", "jid": jid, "data": None, "depends": (), "batch": id}
        if lease.trace is not None:
            one["trace"] = lease.trace
        self.agree(
            lambda: lease.complete(then=[{"queue": queue, "klass": "n", "jid": jid, "batch": id}]),
            lambda model: model.settle([lambda model: model.complete_then(hold, [one])])[0],
        )

    @operation(weight=2, when="batches", pick=pick, paused=st.booleans())
    def pause_batch(self, pick, paused):
        id = self.batches[pick % len(self.batches)]
        batch = self.client.batch(id)
        self.agree(batch.pause if paused else batch.resume, lambda model: model.pause_batch(id, paused))

    @operation(when="batches", pick=pick)
    def cancel_batch(self, pick):
        id = self.batches[pick % len(self.batches)]
        self.agree(self.client.batch(id).cancel, lambda model: model.cancel_batch(id))

    @operation(weight=2, when="batches", pick=pick)
    def retry_batch(self, pick):
        id = self.batches[pick % len(self.batches)]
        self.agree(self.client.batch(id).retry, lambda model: model.retry_batch(id))

    def compare_batches(self):
        for id, batch in self.model.batches.known.items():
            seen = self.client.batch(id).look()
            numbers = seen.total, seen.pending, seen.complete, seen.failed, seen.cancelled
            state = batch.state or ("running" if batch.is_closed else "open")
            found = (seen.state, seen.paused, seen.to_call, numbers)
            assert found == (state, batch.paused, sorted(batch.calls), batch.numbers), id

    # Calls of operators.

    def on_job(self, jid, ask, expect):
        """Act on a job as it was last seen; it may be gone."""
        if jid in self.handles:
            self.agree(lambda: ask(self.handles[jid]), expect)

    @operation(when="known", jid=any_jid, group=group)
    def fail_by_hand(self, jid, group):
        self.on_job(jid, lambda job: job.fail(group, "m"), lambda model: model.fail_job(jid, group))

    @operation(when="held", jid=any_jid, pick=pick)
    def release_by_hand(self, jid, pick):
        jid = self.held[pick - 1][1].jid if 0 < pick <= len(self.held) else jid
        self.on_job(jid, lambda job: job.release(), lambda model: model.release_job(jid))

    @operation(when="known", jid=any_jid, queue=queue, delay=seconds)
    def move(self, jid, queue, delay):
        self.on_job(jid, lambda job: job.move(queue, delay), lambda model: model.move(jid, queue, ms(delay)))

    @operation(when="known", jid=any_jid, priority=st.integers(-1, 2))
    def set_priority(self, jid, priority):
        self.on_job(jid, lambda job: job.set_priority(priority), lambda model: model.set_priority(jid, priority))

    @operation(when="known", jid=any_jid, tags=some_tags, add=st.booleans())
    def tag_or_untag(self, jid, tags, add):
        if add:
            self.on_job(jid, lambda job: job.tag(*tags), lambda model: model.tag(jid, *tags))
        else:
            self.on_job(jid, lambda job: job.untag(*tags), lambda model: model.untag(jid, *tags))

    @operation(when="known", jid=any_jid)
    def track_or_untrack(self, jid):
        if jid in self.model.tracked:
            self.agree(lambda: self.client.untrack(jid), lambda model: model.untrack(jid))
        else:
            self.on_job(jid, lambda job: job.track(), lambda model: model.track(jid))

    @operation(when="depending", jid=jid, pick=pick, parents=jids)
    def depend(self, jid, pick, parents):
        jid = [*self.depending, jid][pick % 4 % (len(self.depending) + 1)]
        self.on_job(jid, lambda job: job.depend(*parents), lambda model: model.depend(jid, *parents))

    @operation(when="depending", jid=jid, pick=pick, parents=st.lists(jid, max_size=3, unique=True))
    def undepend(self, jid, pick, parents):
        """Name some jobs, or none for all."""
        jid = [*self.depending, jid][pick % 4 % (len(self.depending) + 1)]
        every = not parents
        self.on_job(
            jid, lambda job: job.undepend(*parents, all=every), lambda model: model.undepend(jid, *parents, all=every)
        )

    @operation(weight=2, jids=st.lists(any_jid, min_size=1, max_size=4))
    def cancel(self, jids):
        self.agree(lambda: self.client.cancel(*jids), lambda model: model.cancel(*jids))

    @operation(when="failed", pick=pick, queue=st.one_of(st.none(), queue), count=st.integers(1, 3))
    def unfail(self, pick, queue, count):
        groups = sorted({job.group for job in self.model.jobs.values() if job.state == "failed"})
        group = groups[pick % len(groups)]
        self.agree(lambda: self.client.unfail(group, queue, count), lambda model: model.unfail(group, queue, count))

    @operation(when="failed", pick=pick, queue=st.one_of(st.none(), queue), given=new_content)
    def unfail_one(self, pick, queue, given):
        """Put back unchanged, or with new data and klass."""
        jid = self.failed[pick % len(self.failed)]
        self.on_job(jid, lambda job: job.unfail(queue, **given), lambda model: model.unfail_job(jid, queue, **given))

    @operation(when="waiting_data", pick=pick)
    def cancel_equal(self, pick):
        job = self.waiting_data[pick % len(self.waiting_data)]
        queue, data = job.queue, job.data  # before an entry changes it
        if any(child.policy == "wait" for one in self.model.jobs.values() for child in self.model.children(one.jid)):
            return  # what came as an entry is refused then
        expected = self.model.cancel_equal(queue, data)
        self.model.end_batches()
        answer = self.client.queue(queue).cancel(data)
        self.learn()
        assert sorted(answer) == sorted(expected)

    @operation(queue=queue, lane=st.one_of(st.none(), st.none(), lane), running=st.sampled_from(["finish", "stop"]))
    def delete(self, queue, lane, running):
        whole = self.client.queue(queue)
        self.agree(
            lambda: tuple(vars_of((whole if lane is None else whole.lane(lane)).delete(running))),
            lambda model: model.delete(queue, lane, running),
        )

    # Queries.

    @operation(queue=queue, n=st.integers(1, 6))
    def look_around(self, queue, n):
        model, client = self.model, self.client
        seen = [job.jid for job in client.queue(queue).peek(n)]
        assert seen == model.peek(queue, n, freed=seen)
        for state in ("waiting", "running", "stalled", "scheduled", "depends", "parked"):
            there = {job.jid for job in model.jobs.values() if job.queue == queue and model.shown_state(job) == state}
            listed = [job.jid for job in client.queue(queue).jobs(state, count=100)]
            assert (set(listed), len(listed)) == (there, len(there))
        lanes = client.queue(queue).lanes()
        assert {lane: vars_of(counts) for lane, counts in lanes.items()} == model.lane_counts(queue)
        assert list(client.limits().values()) == [self.limit_in_model(key) for key in model.limits_set]
        groups = {job.group for job in model.jobs.values() if job.state == "failed"}
        assert client.failed() == {group: len(model.failed(group)) for group in groups}
        for group in groups:
            newest_first = [job.jid for job in reversed(model.failed(group))]
            total, jobs = client.failed(group, limit=100)
            assert (total, [job.jid for job in jobs]) == (len(newest_first), newest_first)
        assert [job.jid for job in client.completed(count=100)] == [job.jid for job in reversed(model.completed())]
        for tag in TAGS:
            since = model.tagged.get(tag, {})
            total, jobs = client.tagged(tag, count=100)
            assert (total, [job.jid for job in jobs]) == (len(since), sorted(since, key=lambda jid: (since[jid], jid)))
        assert client.tags() == {tag: len(since) for tag, since in model.tagged.items() if since}
        tracked = client.tracked()
        assert {job.jid for job in tracked.jobs} == set(model.tracked) & set(model.jobs)
        assert set(tracked.expired) == set(model.tracked) - set(model.jobs)
        for name in WORKERS:
            known = client.worker(name)
            states = {job.jid: model.state(job) for job in model.held_by(name)}
            assert known.running == [jid for jid, state in states.items() if state == "running"]
            assert known.stalled == [jid for jid, state in states.items() if state == "stalled"]
        assert {one.name: ms(one.seen_unix) for one in client.workers()} == model.seen

    # Invariants after every step.

    def all_is_as_in_the_model(self):
        self.learn()
        found = read_namespace(self.server.redis, self.namespace)
        assert misplaced(found) + left_over(found) == []
        self.dense = sorted(found.dense)
        Machine.densities.update(
            ("dense" if job.jid in found.dense else "full", self.model.state(job)) for job in self.model.jobs.values()
        )
        self.compare_jobs()
        self.compare_queues(found)
        self.compare_completed(found)
        self.compare_limits(found)
        self.compare_batches()
        for queue in QUEUES:
            if self.model.is_ready(queue):
                assert f"bell:{queue}" in found, f"nobody is woken for what {queue} has"
        if len(self.program) % CHECK_EVERY == 0:
            wrong = [one for one in self.client.check() if one.kind != "wrong-deadline" or not self.went_back]
            assert wrong == []

    def compare_jobs(self):
        known = sorted({*JIDS, *PLAIN_JIDS, *self.model.jobs})
        jobs = {jid: job for jid, job in zip(known, self.client.jobs(*known), strict=True) if job}
        self.handles |= jobs
        assert set(jobs) ^ set(self.model.jobs) == set()
        for jid, job in jobs.items():
            seen, expected = self.seen(job), self.expected(self.model.jobs[jid])
            differs = {name: (seen[name], value) for name, value in expected.items() if seen[name] != value}
            assert not differs, f"{jid}: {differs}"

    def seen(self, job):
        runs = job.state in ("running", "stalled")
        return {
            "state": job.state, "queue": job.queue, "klass": job.klass, "data": job.data, "put": ms(job.put_unix),
            "priority": job.priority, "retries": job.retries, "max_deaths": job.max_deaths,
            "counts": (job.failures, job.deaths, job.interruptions),
            "holder": (job.worker, job.started, ms(job.expires_unix)) if runs else None,
            "due": ms(job.due_unix) if job.due_unix else None,
            "group": job.failure["group"] if job.state == "failed" else None,
            "tags": job.tags, "tracked": job.tracked, "policy": job.on_parent_failure,
            "dependencies": job.dependencies, "dependents": job.dependents, "spawned_from": job.spawned_from,
            "lane": job.lane or "", "limit": job.limit, "unique": job.unique, "parked": job.parked,
            "persistent": job.persistent, "at_most_once": job.at_most_once,
            "start_by": ms(job.start_by_unix) if job.start_by_unix is not None else None,
            "progress": job.progress and (job.progress.fraction, job.progress.text, ms(job.progress.when_unix)),
            "saved": job.saved, "trace": job.trace, "apart": job.left_to_others,
            "waits": (job.waiting_for, job.signal_count),
            "unknown": ms(job.unknown_unix) if job.unknown_unix is not None else None,
        }  # fmt: skip

    def expected(self, job):
        holder = job.hold and (job.hold.worker, job.started, job.expires_at)
        return {
            "state": "waiting" if job.parked else self.model.state(job),
            "queue": job.queue, "klass": job.klass, "data": job.data, "put": job.put_at, "priority": job.priority,
            "retries": job.retries, "max_deaths": job.max_deaths, "policy": job.policy, "tags": job.tags,
            "counts": (job.failures, job.deaths, job.interruptions), "holder": holder,
            "due": None if job.due_at == NEVER else job.due_at,
            "group": job.group, "tracked": job.jid in self.model.tracked,
            "dependencies": sorted(job.parents, key=lambda jid: (job.parents[jid], jid)),
            "dependents": [child.jid for child in self.model.children(job.jid)], "spawned_from": job.spawned_from,
            "lane": job.lane, "limit": job.limit, "parked": self.model.shown_state(job) == "parked",
            "unique": job.claim and (True if job.claim[0] == "content" else job.claim[1]),
            "persistent": job.persistent, "at_most_once": bool(job.once), "progress": job.progress,
            "start_by": self.model.start_by(job), "saved": job.saved, "trace": job.trace,
            "apart": job.apart,
            "waits": (job.waits_for if self.model.state(job) == "scheduled" else None, len(job.signals)),
            "unknown": job.unknown_at if self.model.state(job) in ("scheduled", "waiting", "parked") else None,
        }  # fmt: skip

    def compare_queues(self, found: Snapshot):
        counts = self.client.queues()
        assert list(counts) == self.model.queues
        for name, counted in counts.items():
            expected = self.model.counts(name)
            assert {state: getattr(counted, state) for state in expected} == expected
            assert counted.paused == bool(self.model.option("paused", name))
            front = list(found.get(f"queue:{name}:front", ()))
            assert front == [job.jid for job in self.model.front(name)]
            for lane in ("", *LANES):
                there = found.get(f"lane:{name}\n{lane}" if lane else f"queue:{name}:waiting", ())
                assert [member[13:] for member in there] == [job.jid for job in self.model.line(name, lane)], lane
            # The next lease forgets the check time of a label without jobs apart.
            labels = {job.label for job in self.model.jobs.values() if job.queue == name and job.apart}
            looks = found.get(f"queue:{name}:klasses", {})
            assert {label: looks[label] for label in labels} == {
                label: self.model.apart_in(name).checks[label] for label in labels
            }
            assert found.get(f"queue:{name}:lanes", {}) == self.model.lanes_of(name).turns.times

    def compare_limits(self, found: Snapshot):
        for key in LIMITS:
            slots = set(found.get(f"holders:{key}", ()))
            assert slots == {job.jid for job in self.model.jobs.values() if job.hold and key in job.limits}
        for job in self.model.jobs.values():
            if job.parked and not self.model.is_held_up(job):
                look_at = found[f"queue:{job.queue}:limits"][job.full]
                assert look_at <= self.model.now or (look_at < WHEN_FREE and self.went_back), (
                    f"nobody looks at {job.jid}"
                )
        for queue in QUEUES:
            claims = {jid for claim, jid in self.model.claims.items() if claim[0] == queue}
            assert set(found.get(f"unique:{queue}", {}).values()) == claims

    def limit_in_model(self, key):
        limit = self.model.limits.get(key)
        rate = f"{limit.starts}/{limit.per // 1000}s" if limit and limit.starts else None
        parked = sum(job.parked and job.full == key for job in self.model.jobs.values())
        return Limit(
            key, limit and limit.running, rate.replace("/60s", "/m") if rate else None, self.model.in_use(key), parked
        )

    def compare_completed(self, found: Snapshot):
        complete = found.get("complete", {})
        assert {jid: int(when) for jid, when in complete.items()} == {
            job.jid: job.ended_at for job in self.model.completed()
        }
        for tie, jid in enumerate(complete):
            self.model.jobs[jid].tie = tie


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])  # each by a process of its own, where there are several
def test_the_engine_does_what_the_model_does(server, half):
    Machine.server, Machine.steps = server, 0
    for number in range(half, ROUNDS, 2):
        Machine.of_many_queues = number % 4 >= 2
        with leases_of_many_queues() if Machine.of_many_queues else nullcontext():
            run_state_machine_as_test(
                seed(number)(Machine),
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=STEPS,
                    deadline=None,
                    database=None,
                    report_multiple_bugs=False,
                    phases=(Phase.generate, Phase.shrink),
                    suppress_health_check=list(HealthCheck),
                ),
            )
    sys.stdout.write(f"{Machine.steps} steps in {Machine.runs} runs: {dict(Machine.densities)}\n")
    assert Machine.steps >= LEAST_STEPS / 2
    mixed = {(density, state) for density in ("dense", "full") for state in ("waiting", "running", "complete")}
    assert mixed <= Machine.densities.keys()


def test_late_hand_back_leaves_its_start_to_a_longer_rate(server):
    """A start that no longer counts is not taken back. So it counts again if the limit gets a longer time."""
    Machine.server, Machine.of_many_queues = server, False
    machine = Machine()
    try:
        machine.set_limit("K", None, (2, 40))
        machine.put("A", "a", [], {"limit": "K"})
        machine.lease_ahead("v", ["A"], 1, 0, [])
        machine.tick(35)
        machine.tick(5)
        machine.settle([(0, "hand back", 0, "g")])
        machine.set_limit("K", None, (1, 60))
        machine.look_around("A", 1)
        machine.lease("v", ["A"], 1, None, "strict")
        assert machine.client.job("a").parked
        machine.all_is_as_in_the_model()
    finally:
        machine.teardown()
