"""`why` tells the reason of each situation of a job or a queue that the tests bring about.

`.ci/run --full` asks each question beside a million jobs, too.
"""

from contextlib import ExitStack, contextmanager
from time import monotonic

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import leasing, settling, workers
from supervisor.engine.model.outcomes import Misfit, Unknown
from tests.engine.conftest import Clock
from tests.engine.played import PlayedWorker
from tests.layouts import MARKS, set_options
from tests.lengths import LONG, PATIENCE, SOON_S

MANY = 50_000
MILLION = 1_000_000
LONG_MS = 50  # of the server's processor, for one question
DAY_S = 86_400


class World:
    """The means to bring a situation about. Without `clock` the server's own clock counts."""

    def __init__(self, server, namespace, clock=None):
        self._open = ExitStack()
        self._server, self._namespace = server, namespace
        self.clock, self.redis = clock, server.redis
        self.client = self._open.enter_context(Client(server.url, namespace, clock))
        self.q = self.client.queue("q")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._open.__exit__(*error)

    def config(self, **options):
        named = {name.replace("_", "-"): value for name, value in options.items()}
        set_options(self.redis, f"{{{self._namespace}}}:", named)

    def config_of_server(self, **options):
        """Set options of the server until the end."""
        for name, value in options.items():
            name = name.replace("_", "-")
            before = self.redis.config_get(name)[name]
            self.redis.config_set(name, value)
            self._open.callback(self.redis.config_set, name, before)

    def play(self, *status):
        """Let a supervisor answer with this status, and none if there is none. Return its name."""
        answers = (lambda _request: status[0]) if status else None
        worker = PlayedWorker(self._server.url, self._namespace, answers)
        self._open.callback(worker.close)
        if status:
            self._open.enter_context(worker.listening())
        else:
            worker.start()
        return worker.name

    def join(self, name="w", klasses=("k",), queues=("q",), shapes=None):
        call = calls_of(self.client).call
        call(leasing.resume, name, 1, [])
        call(workers.report_skills, name, klasses, queues, shapes)

    def settle(self, name, outcome):
        calls_of(self.client).call(settling.settle, name, [outcome], number=2)


@pytest.fixture
def world(client, clock, server, namespace):
    """A world whose clock stands still, with the worker `w`, which serves q and has the klass k."""
    with World(server, namespace, clock) as made:
        made.join()
        yield made


@pytest.fixture
def asked(live, server, namespace):
    """A world without workers, on the server's clock. Those that it plays serve q, and may have any klass."""
    with World(server, namespace) as made:
        yield made


@contextmanager
def in_time(longest_s=1.0):
    """Check that a question takes no longer. A client may share a busy machine."""
    began_at = monotonic()
    yield
    assert monotonic() - began_at <= longest_s * PATIENCE


def unserved(w):
    w.client.queue("other").put("k", jid="j")


def forgotten_worker(w):
    w.q.put("k", jid="j")
    w.clock.tick(61)


def paused_queue(w):
    w.q.put("k", jid="j")
    w.q.pause(by="kim@web-1")


def paused_every_queue(w):
    w.q.put("k", jid="j")
    w.config(paused=1)


def paused_before_unserved(w):
    w.client.queue("other").put("k", jid="j")
    w.client.queue("other").pause()


def paused_lane(w):
    w.q.put("k", jid="j", lane="a")
    w.q.lane("a").pause(by="kim@web-1")


def paused_batch(w):
    with w.client.batch("outer") as outer, outer.batch("inner") as inner:
        inner.put("q", "k", jid="j")
    outer.pause(by="kim@web-1")


def no_handler(w):
    w.q.put("strange", jid="j")


def unknown_klass(w):
    w.q.put("strange", jid="j")
    w.settle("w", Unknown(w.q.lease("w")[0], 10))


def left_to_others(w):
    w.join("new", ("k", "strange"))
    unknown_klass(w)


def misfit(w):
    w.join("old", shapes={"k": "1"}, klasses=["k"])
    w.join("new", shapes={"k": "2"}, klasses=["k"])
    w.q.put("k", jid="j")
    w.settle("old", Misfit(w.q.lease("old")[0], "1", "user: is missing"))


def limited(w, *jids, **limit):
    w.client.limit("smtp", **limit)
    for jid in jids:
        w.q.put("k", jid=jid, limit="smtp")


def limit_zero(w):
    limited(w, "j", running=0, by="kim@web-1")


def limit_full(w):
    limited(w, "first", "second", "j", running=2)
    w.q.lease("w", 2)


def second_limit_full(w):
    limited(w, "first", running=1)
    w.q.lease("w")
    w.client.limit("tenant", running=5)
    w.q.put("k", jid="j", limit=["tenant", "smtp"])


def limit_parked(w):
    limited(w, "first", "j", running=1)
    w.q.lease("w", 2)


def limit_rate(w):
    limited(w, "first", "j", rate="1/m")
    w.q.lease("w")


def concurrency(w):
    w.config(**{"max-concurrency-q": 1})
    w.q.put("k", jid="first")
    w.q.put("k", jid="j")
    w.q.lease("w")


def behind_others(w):
    for jid in ("a", "b", "j"):
        w.q.put("k", jid=jid)


def behind_a_priority(w):
    w.q.put("k", jid="j")
    w.q.put("k", jid="urgent", priority=-1)


def behind_in_lane(w):
    for jid in ("a", "j"):
        w.q.put("k", jid=jid, lane="x")


def lanes_turn(w):
    w.q.put("k", jid="a", lane="x")
    w.q.put("k", jid="j", lane="y")


def next_in_line(w):
    w.q.put("k", jid="j")


def handed_back(w):
    w.q.put("k", jid="j")
    w.q.lease("w")[0].release()


def due_now(w):
    w.q.put("k", jid="j", delay=5)
    w.clock.tick(6)


def delayed(w):
    w.q.put("k", jid="j", delay=60)


def backing_off(w):
    w.q.put("k", jid="j")
    w.q.lease("w")[0].retry(30, "Busy", "later")


def waits_for_signal(w):
    w.q.put("k", jid="j")
    w.q.lease("w")[0].suspend("approval", 600)


def waits_for_signal_forever(w):
    w.q.put("k", jid="j")
    w.q.lease("w")[0].suspend("approval")


def waits_for_parent(w):
    w.q.put("k", jid="parent")
    w.q.put("k", jid="j", depends=["parent"])


def waits_for_grandparent(w):
    w.q.put("k", jid="root")
    w.q.put("k", jid="parent", depends=["root"])
    w.q.put("k", jid="j", depends=["parent"])


def waits_for_failed_parent(w):
    w.q.put("k", jid="parent")
    w.q.put("k", jid="j", depends=["parent"], on_parent_failure="wait")
    w.q.lease("w")[0].fail("Broken", "boom")


def running(w):
    w.q.put("k", jid="j", timeout=30)
    w.q.lease("w")


def stalled(w):
    w.q.put("k", jid="j")
    w.q.lease("w", ttl=10)
    w.clock.tick(11)


def complete(w):
    w.q.put("k", jid="j")
    [lease] = w.q.lease("w")
    w.clock.tick(2)
    lease.complete()


def failed(w):
    w.q.put("k", jid="j")
    w.q.lease("w")[0].fail("Broken", "boom")


def failed_like_others(w):
    for jid in ("a", "b", "j"):
        w.q.put("k", jid=jid)
    for lease in w.q.lease("w", 3):
        lease.fail("Broken", "boom")


def failed_parent_failed(w):
    w.q.put("k", jid="parent")
    w.q.put("k", jid="j", depends=["parent"], on_parent_failure="fail")
    w.q.lease("w")[0].fail("Broken", "boom")


def expired(w):
    w.q.put("k", jid="j", expires=5)
    w.clock.tick(6)
    w.client.sweep()


def at_most_once_died(w):
    w.q.put("k", jid="j", at_most_once=True)
    w.q.lease("w")[0].died("SIGKILL")


def cancelled(w):
    w.q.put("k", jid="j")
    w.client.cancel("j", by="kim@web-1")


def cancelled_by_nobody_known(w):
    w.q.put("k", jid="j")
    w.client.cancel("j")


def forgotten(w):
    """Cancel a job, so long ago that only the act is remembered."""
    w.q.put_many({"klass": "k", "jid": jid} for jid in ("j", *(f"m{n}" for n in range(30))))
    w.client.acting_as("kim").queue("q").delete()
    w.clock.tick(8 * DAY_S)
    w.q.put("k", jid="other")
    w.client.cancel("other")


def deleted_among_many(w):
    w.client.queue("work").put_many({"klass": "k", "jid": f"m{n}"} for n in range(10_000))
    w.client.queue("work").put("k", jid="j", priority=-1)
    w.client.acting_as("kim").queue("work").delete()


def dropped(w):
    w.config(failed_history_count=1)
    for jid in ("j", "later"):
        w.q.put("k", jid=jid)
        w.q.lease("w")[0].fail("Broken", "boom")
        w.clock.tick(1)


def cancelled_after_a_drop(w):
    dropped(w)
    w.q.put("k", jid="j")
    w.client.cancel("j", by="kim@web-1")


def recurring(w):
    w.q.recur("k", every="1h", jid="j")
    w.q.lease("w")


def recurring_unserved(w):
    w.client.queue("other").recur("k", every="1h", jid="j")


def has_room_again(w):
    limit_parked(w)
    w.client.job("first").fail("Broken", "boom")


def stalled_in_a_paused_queue(w):
    stalled(w)
    w.q.pause(by="kim@web-1")


def redis_full(w):
    w.config_of_server(maxmemory=int(1.05 * w.redis.info("memory")["used_memory"]))


def redis_evicts(w):
    """Let the server evict a key that expires, and choose among all keys from now on."""
    w.redis.set("other", bytes(2**22), ex=600)
    w.config_of_server(maxmemory_policy="volatile-ttl", maxmemory=w.redis.info("memory")["used_memory"] - 2**21)
    give_up_at = monotonic() + SOON_S
    while w.redis.exists("other") and monotonic() < give_up_at:
        w.redis.set("more", b"", ex=500)
    w.config_of_server(maxmemory=0, maxmemory_policy="allkeys-lru")


def never_put(w):
    pass


def pruned(w):
    w.config(jobs_history=0)
    complete(w)


#: The situation -> the reason, and a part of the sentence.
JOBS = {
    unserved: ("no-worker", "no living worker serves queue other; 1 living worker"),
    forgotten_worker: ("no-worker", "no living worker serves queue q"),
    paused_queue: ("paused-queue", "queue q is paused, by kim@web-1, since 1970-01-12 13:46:40 UTC"),
    paused_every_queue: ("paused-queue", "queue q is paused"),
    paused_before_unserved: ("paused-queue", "queue other is paused, since"),
    paused_lane: ("paused-lane", "lane a of queue q is paused, by kim@web-1, since"),
    paused_batch: ("paused-batch", "batch outer is paused, by kim@web-1, since"),
    no_handler: ("no-handler", "no handler for strange at any living worker for queue q"),
    unknown_klass: ("unknown-klass", "has a handler for strange"),
    left_to_others: ("left-to-others", "with a handler for strange"),
    misfit: ("misfit", "does not fit the handler k"),
    limit_zero: ("limit-zero", "limit smtp is set to 0, by kim@web-1, since"),
    limit_full: ("limit-full", "limit smtp is full: 2 of 2, held by first, second"),
    second_limit_full: ("limit-full", "limit smtp is full: 1 of 1, held by first"),
    limit_parked: ("limit-full", "1 of 1, held by first"),
    limit_rate: ("limit-rate", "limit smtp is used up until 1970-01-12 13:47:40 UTC"),
    concurrency: ("concurrency-full", "max-concurrency of 1 running: first"),
    behind_others: ("behind-others", "2 jobs of queue q go before it"),
    behind_a_priority: ("behind-others", "1 job of queue q goes before it"),
    behind_in_lane: ("behind-others", "1 job of lane x goes before it"),
    lanes_turn: ("lanes-turn", "lane y, which waits for its turn among 2 lanes"),
    next_in_line: ("next-in-line", "the job is next in queue q"),
    handed_back: ("next-in-line", "the job is next in queue q"),
    due_now: ("next-lease", "the next lease of queue q brings the job back into its line"),
    delayed: ("scheduled", "scheduled for 1970-01-12 13:47:40 UTC"),
    backing_off: ("retry", "1970-01-12 13:47:10 UTC, after 1 failure"),
    waits_for_signal: ("waits-for-signal", "the signal approval, until 1970-01-12 13:56:40 UTC"),
    waits_for_signal_forever: ("waits-for-signal", "the signal approval"),
    waits_for_parent: ("waits-for-parents", "waits for parent; parent is waiting"),
    waits_for_grandparent: ("waits-for-parents", "waits for parent; root, which holds them up, is waiting"),
    waits_for_failed_parent: ("waits-for-parents", "parent is failed in group Broken"),
    running: ("running", "with worker w since 1970-01-12 13:46:40 UTC, with a time limit of 30 s"),
    stalled: ("stalled", "worker w was lost with the job: its lease ended at 1970-01-12 13:46:50 UTC"),
    complete: ("complete", "completed at 1970-01-12 13:46:42 UTC, 2 s after its lease"),
    failed: ("failed", "failed with Broken: boom"),
    failed_like_others: ("failed", "Broken: boom; 2 other jobs failed so within the last hour"),
    failed_parent_failed: ("failed", "failed with parent-failed"),
    expired: ("failed", "failed with expired"),
    at_most_once_died: ("failed", "died:SIGKILL"),
    cancelled: ("cancelled", "cancelled by kim@web-1, 1970-01-12 13:46:40 UTC"),
    cancelled_by_nobody_known: ("cancelled", "job j was cancelled, 1970-01-12"),
    cancelled_after_a_drop: ("cancelled", "cancelled by kim@web-1"),
    dropped: ("dropped", "job j had failed, and was dropped at 1970-01-12 13:46:41 UTC: failed-history"),
    recurring: ("recurring", "queue q, whose next job is due at 1970-01-12 14:46:40 UTC; its last one is j-1"),
    recurring_unserved: ("recurring", "13:46:40 UTC; but no living worker serves queue other"),
    has_room_again: ("next-lease", "the next lease of queue q brings the job back"),
    stalled_in_a_paused_queue: ("stalled", "after the grace; but queue q is paused, by kim@web-1, since"),
    never_put: ("unknown", "there is no job j"),
    pruned: ("unknown", "its retention is over"),
    forgotten: ("unknown", "or it was one of 31 jobs of queue q that were deleted by kim, 1970-01-12"),
    deleted_among_many: ("unknown", "or it was one of 10,001 jobs of queue work that were deleted by kim, 1970-01-12"),
    redis_full: ("unknown", "; Redis uses"),
    redis_evicts: ("unknown", "by its maxmemory-policy jobs may be among them"),
}


@pytest.mark.parametrize("bring_about", JOBS, ids=lambda each: each.__name__)
def test_each_job_tells_its_reason(world, bring_about):
    bring_about(world)
    with in_time():
        why = ask(world, bring_about, "j")
    agree(why, *JOBS[bring_about])


def none_ready(w):
    w.q.put("k", jid="j")
    w.q.put("k", delay=60)
    w.q.lease("w")


def only_parked(w):
    limited(w, "j", running=0)
    w.q.lease("w")


def only_in_paused_lanes(w):
    w.q.put("k", lane="slow")
    w.q.lane("slow").pause()


def late_recurrence(w):
    w.q.recur("k", cron="* * * * *")
    w.clock.tick(180)
    w.join("new")


def late_recurrence_without_a_worker(w):
    w.q.recur("k", cron="* * * * *")
    w.clock.tick(180)


def late_recurrence_behind_a_job(w):
    late_recurrence(w)
    w.q.put("k")


def all_due(w):
    w.q.put_many({"klass": "k", "delay": 5} for _ in range(500))
    w.q.put("k", jid="j")
    w.q.lease("w")
    w.clock.tick(6)


def all_with_room_again(w):
    limited(w, "first", "second", "third", running=1)
    [lease] = w.q.lease("w", 3)
    lease.complete()


def served(w):
    running(w)
    w.q.put("k")


QUEUES = {
    never_put: ("empty", "queue q has no jobs"),
    paused_queue: ("paused-queue", "queue q is paused, by kim@web-1, since"),
    forgotten_worker: ("no-worker", "no living worker serves queue q"),
    concurrency: ("concurrency-full", "max-concurrency of 1"),
    none_ready: ("none-ready", "1 running, 1 scheduled"),
    only_parked: ("none-ready", "1 parked under a limit or a paused batch"),
    only_in_paused_lanes: ("none-ready", "1 in paused lanes"),
    waits_for_failed_parent: ("none-ready", "1 waiting for other jobs"),
    left_to_others: ("none-ready", "1 left to a worker"),
    late_recurrence: ("recurrence-late", "1 recurring job of queue q is late by more than a minute"),
    late_recurrence_without_a_worker: ("no-worker", "no living worker serves queue q"),
    late_recurrence_behind_a_job: ("served", "1 waiting job, 0 running"),
    served: ("served", "1 waiting job, 1 running and 1 living worker"),
    all_due: ("served", "500 waiting jobs, 1 running"),
    all_with_room_again: ("served", "1 waiting job, 0 running"),
    stalled: ("served", "0 waiting jobs, 1 job of a lost worker, 0 running"),
    redis_full: ("redis-full", "queue q has no jobs; Redis uses"),
    redis_evicts: ("redis-evicts", "has evicted"),
}


@pytest.mark.parametrize("bring_about", QUEUES, ids=lambda each: each.__name__)
def test_each_queue_tells_its_reason(world, bring_about):
    bring_about(world)
    with in_time():
        why = ask(world, bring_about, "")
    agree(why, *QUEUES[bring_about])


def test_removed_job_tells_why(world):
    next_in_line(world)
    job = world.client.job("j")
    assert job.why(timeout=0).reason == "next-in-line"
    world.client.cancel("j", by="kim")
    assert job.why(timeout=0).facts["cancelled_by"] == "kim"


def status(**more):
    """A supervisor with one child, which has nothing to do."""
    admission = {"stop": None, "waits_for_room": False, "memory": None, "waiting": []}
    return {
        "state": "serving", "busy": 0, "processes": {"now": 1}, "children": [], "admission": admission,
        "redis": {"exchange_ms": 0.3}, **more,
    }  # fmt: skip


def busy(jid="first", **more):
    """A supervisor whose only child runs this job."""
    child = {"jid": jid, "pid": 4711, "running_s": 5.0, "stopping": None, "ahead": 0}
    return status(busy=1, children=[{**child, **more}])


def admitting(**more):
    return {"admission": {**status()["admission"], **more}}


def free(w):
    w.play(status())
    w.q.put("k", jid="j")


def of_another_version(w):
    w.play({"error": "what is status?"})
    w.q.put("k", jid="j")


def children_busy(w):
    w.play(busy())
    w.q.put("k", jid="j")


def one_of_two_is_free(w):
    w.play(status())
    children_busy(w)


def operator_paused(w):
    w.play(status(**admitting(stop="an operator has paused the supervisor")))
    w.q.put("k", jid="j")


def unknown_to_a_drained_worker(w):
    name = w.play(status(**admitting(stop="the supervisor drains")))
    calls_of(w.client).call(workers.report_skills, name, ["other"], ["q"], None)
    w.q.put("k", jid="j")


def booting(w):
    w.play(status(state="booting"))
    w.q.put("k", jid="j")


def memory_used_up(w):
    memory = {"limit_bytes": 200_000_000, "used_bytes": 190_000_000}
    w.play(status(**admitting(waits_for_room=True, memory=memory)))
    w.q.put("k", jid="j")


def redis_slow(w):
    w.play(status(redis={"exchange_ms": 312.5}))
    w.q.put("k", jid="j")


def silent(w):
    w.play()
    w.q.put("k", jid="j")


def one_of_two_is_silent(w):
    w.play(busy())
    silent(w)


def leased_by(w, *answer):
    name = w.play(*answer)
    w.q.put("k", jid="j")
    w.q.lease(name)


def in_a_child(w):
    leased_by(w, busy("j"))


def in_a_child_beside_a_slow_redis(w):
    leased_by(w, busy("j") | {"redis": {"exchange_ms": 312.5}})


def being_stopped(w):
    leased_by(w, busy("j", stopping="cancelled"))


def waits_at_its_worker(w):
    leased_by(w, busy(ahead=1))


def with_a_silent_worker(w):
    leased_by(w)


def all_due_behind_a_busy_child(w):
    w.play(busy())
    w.q.put_many({"klass": "k", "delay": 0.001} for _ in range(500))
    give_up_at = monotonic() + SOON_S
    while len(w.q) < 500 and monotonic() < give_up_at:
        pass


#: What is asked about where workers are asked too: job j or the queue -> the reason, and a part of the sentence.
ASKED = {
    free: ("j", "next-in-line", "the job is next in queue q"),
    of_another_version: ("j", "next-in-line", "the job is next in queue q"),
    children_busy: ("j", "children-busy", "all 1 children of worker"),
    one_of_two_is_free: ("j", "next-in-line", "2 workers that may serve it"),
    operator_paused: ("j", "worker-stopped", "starts no job: an operator has paused the supervisor"),
    unknown_to_a_drained_worker: ("j", "worker-stopped", "starts no job: the supervisor drains"),
    booting: ("j", "worker-stopped", "starts no job: it is importing its handlers"),
    memory_used_up: ("j", "memory-budget", "waits for memory: 190 of 200 MB"),
    redis_slow: ("j", "redis-slow", "only after 312 ms"),
    silent: ("j", "worker-silent", "has not answered in time"),
    one_of_two_is_silent: ("j", "children-busy", "has not answered in time"),
    in_a_child: ("j", "running", "in the child with pid 4711 for 5.0 s"),
    in_a_child_beside_a_slow_redis: ("j", "running", "for 5.0 s; Redis answers worker"),
    being_stopped: ("j", "running", "is being stopped: cancelled"),
    waits_at_its_worker: ("j", "waits-at-worker", "has leased the job, which waits there: all 1 children"),
    with_a_silent_worker: ("j", "worker-silent", "which has not answered in time; its lease ends at"),
    all_due_behind_a_busy_child: ("", "children-busy", "all 1 children of worker"),
}
#: These are asked in the patience that is the default. An answer may need more on a machine that does other work.
SILENT = {silent, one_of_two_is_silent, with_a_silent_worker}


def ask(w, bring_about, of):
    patience = {} if bring_about in SILENT else {"timeout": SOON_S if bring_about in ASKED else 0}
    return w.client.why("j", **patience) if of == "j" else w.q.why(**patience)


def agree(why, reason, part):
    assert why.reason == reason and part in why.sentence, why.sentence


@pytest.mark.parametrize("bring_about", ASKED, ids=lambda each: each.__name__)
def test_asked_workers_tell_the_reason(asked, bring_about):
    bring_about(asked)
    of, *expected = ASKED[bring_about]
    with in_time(0.4 if bring_about in SILENT else 1.0):
        why = ask(asked, bring_about, of)
    agree(why, *expected)


@pytest.mark.sampled(3)
def test_asking_is_quick_in_a_long_queue(world, cpu_ms):
    world.q.put_many({"klass": "k"} for _ in range(MANY))
    world.q.put("k", jid="j")
    with cpu_ms() as used:
        why = world.client.why("j", timeout=0)
        world.q.why(timeout=0)
    assert (why.reason, why.facts["ahead"]) == ("behind-others", MANY)
    assert used[0] <= LONG_MS


def clear(server, namespace):
    """Delete everything but the crowd."""
    prefix = f"{{{namespace}}}:"
    kept = {f"{prefix}{name}".encode() for name in (*MARKS, "queue:crowd:waiting", "queues", "seq", "token")}
    found = {key for pattern in ("[^j]*", "job:[^c]*") for key in server.redis.keys(f"{prefix}{pattern}")}
    gone = list(found - kept)
    for first in range(0, len(gone), 1000):
        server.redis.unlink(*gone[first : first + 1000])


@pytest.mark.skipif(not LONG, reason="takes minutes: TEST_FULL=1, or the full CI")
def test_each_question_is_quick_beside_a_million_jobs(server, namespace, cpu_ms, measured):
    with World(server, namespace, Clock()) as w:
        w.client.queue("crowd").put_many({"klass": "k", "jid": f"crowd-{n}"} for n in range(MILLION))
        w.join()
        w.client.queue("crowd").put("k", jid="j")
        with cpu_ms() as used:
            assert w.client.why("j", timeout=0).facts["ahead"] == MILLION
        used_ms = {("behind them", ""): used[0]}
    jobs, queues = [(each, "j", *JOBS[each]) for each in JOBS], [(each, "", *QUEUES[each]) for each in QUEUES]
    for bring_about, of, *expected in [*jobs, *queues, *((each, *ASKED[each]) for each in ASKED)]:
        clear(server, namespace)
        with World(server, namespace, None if bring_about in ASKED else Clock()) as w:
            if bring_about not in ASKED:
                w.join()
            bring_about(w)
            with cpu_ms() as used:
                why = ask(w, bring_about, of)
        agree(why, *expected)
        used_ms[bring_about.__name__, of] = used[0]
    slowest = max(used_ms, key=lambda each: used_ms[each])
    measured(f"{len(used_ms)} questions beside {MILLION:,} jobs: at most {used_ms[slowest]:.1f} ms, for {slowest[0]}")
    assert used_ms[slowest] <= LONG_MS
