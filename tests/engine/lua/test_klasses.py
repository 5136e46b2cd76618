"""Jobs of a klass that one worker lacks are left to live peers that have it."""

import random

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing, settling, workers
from supervisor.engine.model.outcomes import Completed, Misfit, Unknown
from tests.engine.invariants import misplaced, read_namespace


class Member:
    """A worker that numbers its exchanges, reports its klasses, and hands back unknown jobs."""

    def __init__(self, client, name, klasses, queues=("q",)):
        self.client, self.name, self.klasses, self.queues, self.number = client, name, set(klasses), queues, 1
        calls_of(client).call(leasing.resume, name, 1, [])
        self.tell(klasses)

    def shape(self, shapes):
        """Report handlers with the shapes of data that they take, by klass."""
        self.klasses, self.shapes = set(shapes), shapes
        calls_of(self.client).call(workers.report_skills, self.name, sorted(shapes), self.queues, shapes)

    def misfits(self, count=10):
        """Lease jobs, and refuse each whose data name another shape. Return the jids of the others."""
        leases = self.lease(count)
        refused = [lease for lease in leases if lease.data != self.shapes[lease.klass]]
        self.answers = []
        if refused:
            self.number += 1
            outcomes = [Misfit(lease, self.shapes[lease.klass], "user: is missing") for lease in refused]
            self.answers = calls_of(self.client).call(settling.settle, self.name, outcomes, number=self.number)
        return [lease.jid for lease in leases if lease not in refused]

    def tell(self, klasses):
        self.klasses = set(klasses)
        calls_of(self.client).call(workers.report_skills, self.name, sorted(klasses), self.queues)

    def lease(self, count=1, **more):
        self.number += 1
        grant = calls_of(self.client).call(
            leasing.lease, self.name, list(self.queues), count, number=self.number, **more
        )
        self.next_at = grant.next_at_unix
        return grant.leases

    def exchange(self, count=1):
        """Lease, and settle unknown jobs. Return the jids of the others."""
        leases = self.lease(count)
        strange = [lease for lease in leases if lease.klass not in self.klasses]
        self.answers = []
        if strange:
            self.number += 1
            self.answers = calls_of(self.client).call(
                settling.settle, self.name, [Unknown(lease, 10) for lease in strange], number=self.number
            )
        return [lease.jid for lease in leases if lease.klass in self.klasses]


@pytest.fixture
def old(client):
    return Member(client, "old", ["a"])


@pytest.fixture
def new(client):
    return Member(client, "new", ["a", "b"])


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def mail(server, namespace):
    return lambda worker: server.redis.lrange(f"{{{namespace}}}:mail:{worker}", 0, -1)


def put(q, klass, *jids, **options):
    for jid in jids:
        q.put(klass, jid=jid, **options)


def test_older_worker_keeps_jobs_from_lying_apart(client, clock, q, old, new):
    """The older worker's scripts do not know that place. The worker numbers its exchanges and reports no skills."""
    calls_of(client).call(leasing.resume, "oldest", 1, [])
    calls_of(client).call(leasing.lease, "oldest", ["q"], 0, number=2)
    put(q, "b", *"12")
    assert old.exchange(1) == []
    assert old.answers == ["scheduled"]
    assert not client.job("1").left_to_others
    clock.tick(61)
    old.exchange(0)
    new.lease(0)
    assert old.exchange(2) == []
    assert {client.job(jid).left_to_others for jid in "12"} == {True}


def test_jobs_apart_come_back_when_an_older_version_joins(client, clock, q, old, new):
    put(q, "b", "1")
    assert old.exchange() == []
    assert client.job("1").left_to_others
    clock.tick(50)
    calls_of(client).call(leasing.resume, "oldest", 1, [])
    clock.tick(15)
    for number, worker in enumerate(("old", "new", "oldest"), 50):
        calls_of(client).call(leasing.lease, worker, ["other"], 0, number=number)
    client.sweep()
    assert not client.job("1").left_to_others


def test_klass_known_only_to_a_peer_is_left_to_the_peer(client, q, old, new, mail):
    put(q, "b", *"123")
    assert old.exchange(3) == []
    assert old.answers == ["waiting"] * 3
    assert b"klass" in mail("new")
    assert new.exchange(9) == ["1", "2", "3"]
    job = client.job("1")
    assert (job.failures, job.deaths, job.interruptions, job.unknown_unix) == (0, 0, 0, None)


def test_worker_never_leases_again_what_a_peer_knows(q, old, new):
    put(q, "b", "1")
    old.exchange()
    put(q, "b", *"234")
    put(q, "a", "5")
    assert old.exchange(4) == ["5"]
    assert old.answers == []
    assert new.exchange(9) == ["1", "2", "3", "4"]


def test_job_refused_just_before_a_peers_report_waits_a_second(client, clock, q, old):
    put(q, "b", "1")
    assert old.exchange() == []
    new = Member(client, "new", ["b"])
    assert (old.answers, client.job("1").due_unix) == (["scheduled"], clock.now + 1)
    clock.tick(1)
    assert old.exchange() == []
    assert new.exchange() == ["1"]


def test_jobs_left_to_a_peer_keep_their_place(q, old, new):
    put(q, "b", "late", "later")
    put(q, "b", "urgent", priority=-1)
    put(q, "a", "between")
    put(q, "b", "last")
    old.exchange(3)
    put(q, "a", "behind")
    assert old.exchange() == ["between"]
    assert new.exchange(9) == ["urgent", "late", "later", "last", "behind"]


def test_lanes_take_turns_among_jobs_left_to_a_peer(q, old, new):
    for lane in "xy":
        for n in range(3):
            q.put("b", jid=f"{lane}{n}", lane=lane)
    old.exchange(1)
    assert old.exchange(6) == []
    assert sorted(new.exchange(2)) == ["x0", "y0"]
    assert sorted(new.exchange(9)) == ["x1", "x2", "y1", "y2"]


def test_job_without_a_peer_comes_back_after_its_delay(client, q, old):
    put(q, "b", "1")
    old.exchange()
    assert (old.answers, client.job("1").state) == (["scheduled"], "scheduled")


@pytest.mark.parametrize("queues", [("other",), ()])
def test_peer_must_serve_the_queue(client, q, old, queues):
    Member(client, "elsewhere", ["b"], ["other"])
    put(q, "b", "1")
    old.exchange()
    assert old.answers == ["scheduled"]


def test_leases_and_queries_agree_on_live_workers(client, q, old, new, clock):
    for tick, lives in ((59.9, True), (0.2, False)):
        clock.tick(tick)
        put(q, "b", str(tick))
        old.exchange()
        (peer,) = (worker for worker in client.workers() if worker.name == "new")
        assert client.job(str(tick)).left_to_others == peer.lives == lives


def test_peer_must_have_been_seen_within_a_minute(q, old, new, clock):
    put(q, "b", "1")
    clock.tick(61)
    old.exchange()
    assert old.answers == ["scheduled"]


def test_job_is_delayed_again_when_its_last_peer_has_gone(client, q, old, new, clock):
    put(q, "b", "1")
    old.exchange()
    assert old.exchange() == [] and old.next_at == clock.now + 60
    clock.tick(61)
    assert old.exchange() == []
    assert (old.answers, client.job("1").state) == (["scheduled"], "scheduled")
    clock.tick(4000)
    old.exchange()
    assert (old.answers, client.job("1").state) == (["failed"], "failed")
    assert client.job("1").failure["group"] == "unknown-handler"


def test_a_peer_that_lives_keeps_the_job(client, q, old, new, clock):
    put(q, "b", "1")
    old.exchange()
    for _ in range(10):
        clock.tick(50)
        client.sweep()
        assert old.exchange() == [] and old.answers == []
        new.lease(0)
    assert new.exchange() == ["1"]


@pytest.mark.parametrize("leaves", ["deregister", "retire", "reload"])
def test_leaving_peer_gives_the_job_back_at_once(client, q, old, new, server, namespace, leaves):
    put(q, "b", "1")
    old.exchange()
    if leaves == "deregister":
        client.deregister("new")
    elif leaves == "retire":
        server.redis.delete(f"{{{namespace}}}:mail:new")
        assert calls_of(client).call(workers.retire, "new", ["elsewhere"], 0) == ""
    else:
        new.tell(["a"])
    old.exchange()
    assert old.answers[0] == "scheduled"


def test_sweep_gives_back_what_no_peer_has(client, q, old, new, clock):
    put(q, "b", "1")
    old.exchange()
    clock.tick(61)
    client.sweep()
    assert not client.job("1").left_to_others
    assert [lease.jid for lease in q.lease("plain")] == ["1"]


def test_new_worker_with_the_klass_gets_the_jobs_at_once(client, q, old, new, mail):
    put(q, "b", "1", "2")
    old.exchange(2)
    third = Member(client, "third", ["b"])
    assert b"klass" in mail("third")
    assert third.exchange(9) == ["1", "2"]


def test_a_worker_that_learns_the_klass_leases_the_job(q, old, new, mail):
    put(q, "b", "1")
    old.exchange()
    old.tell(["a", "b"])
    assert b"klass" in mail("old")
    assert old.exchange() == ["1"]


def test_worker_without_a_report_leases_every_klass(q, old, new):
    put(q, "b", "1")
    old.exchange()
    assert [lease.jid for lease in q.lease("plain")] == ["1"]


def test_worker_does_not_poll_for_unknown_klasses(q, old, new, clock):
    put(q, "b", "1")
    old.exchange()
    old.lease()
    assert old.next_at > clock.now


def test_jobs_left_to_a_peer_count_as_waiting(client, q, old, new):
    put(q, "b", "1", "2", lane="x")
    old.exchange(2)
    counts = client.queues()["q"]
    assert (counts.waiting, counts.parked, counts.ready, q.length()) == (2, 0, 2, 2)
    assert [job.jid for job in q.jobs("waiting")] == ["1", "2"]
    assert [job.jid for job in q.peek(5)] == ["1", "2"]
    assert (client.job("1").state, client.job("1").parked, client.job("1").left_to_others) == ("waiting", False, True)
    assert q.lanes()["x"].waiting == 2
    assert client.check() == []


ACTS = {
    "cancel": (lambda client: client.cancel("1"), None),
    "move": (lambda client: client.job("1").move("r"), "r"),
    "fail": (lambda client: client.job("1").fail("g", "m"), "q"),
    "put": (lambda client: client.queue("q").put("a", jid="1"), "q"),
    "priority": (lambda client: client.job("1").set_priority(3), "q"),
    "delete": (lambda client: client.queue("q").delete(), None),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_job_left_to_a_peer_can_be_changed(client, q, old, new, act):
    put(q, "b", "1")
    old.exchange()
    change, queue = ACTS[act]
    change(client)
    job = client.job("1")
    assert (job.queue if job else None) == queue
    assert client.check() == []


def test_job_left_to_a_peer_expires(client, q, old, new, clock):
    put(q, "b", "1", expires=20)
    old.exchange()
    clock.tick(21)
    client.sweep()
    assert client.job("1").failure["group"] == "expired"


def test_job_left_to_a_peer_gives_its_start_back(client, q, old, new):
    client.limit("l", running=1, rate="1/m")
    put(q, "b", "1", limit="l")
    old.exchange()
    assert client.limit("l").in_use == 0
    assert new.exchange() == ["1"]


def test_reported_klasses_are_shown(client, old, new):
    assert {worker.name: worker.klasses for worker in client.workers()} == {"old": ["a"], "new": ["a", "b"]}
    assert {worker.name: worker.queues for worker in client.workers()} == {"old": ["q"], "new": ["q"]}
    assert client.worker("new").klasses == ["a", "b"]


def test_an_unknown_worker_tells_nothing(client, keys):
    assert calls_of(client).call(workers.report_skills, "nobody", ["a"], ["q"]) is False
    assert not [key for key in keys() if key.startswith("skills:")]


def test_nothing_is_left_of_a_worker_that_has_left(client, old, new, keys):
    client.deregister("old")
    client.deregister("new")
    assert not [key for key in keys() if key.startswith(("skills:", "worker:"))]


@pytest.mark.parametrize("key", ["queue:q:klasses", "apart:b\nq"])
def test_check_repairs_jobs_apart_that_no_lease_reads(client, q, old, new, server, namespace, key):
    put(q, "b", "1")
    old.exchange()
    server.redis.delete(f"{{{namespace}}}:{key}")
    assert [found.kind for found in client.check()] == ["unlisted-limit"]
    client.check(repair=True)
    assert client.check() == []
    assert new.exchange() == ["1"]


def test_check_repairs_a_job_that_lies_in_no_place(client, q, old, new, server, namespace):
    put(q, "b", "1")
    old.exchange()
    server.redis.delete(f"{{{namespace}}}:queue:q:apart")
    assert [found.kind for found in client.check()] == ["job-in-no-place"]
    client.check(repair=True)
    assert client.check() == []


def test_script_reads_a_bounded_number_of_workers(client, q, old, server):
    """1,000 klasses without handlers, beside 60 workers: jobs beyond the bound are delayed."""
    for n in range(60):
        Member(client, f"peer-{n}", [f"k{n}-{i}" for i in range(100)])
    q.put_many({"klass": f"x{n}"} for n in range(1000))
    leases = old.lease(1000)
    before = server.calls("zmscore")
    calls_of(client).call(settling.settle, "old", [Unknown(lease, 10) for lease in leases], number=99)
    assert server.calls("zmscore") - before <= 5000


@pytest.mark.parametrize("seed", range(3))
def test_random_releases_complete_every_job_once(client, clock, server, namespace, seed):
    """250 random acts of three workers with changing klasses; the invariants hold after each one."""
    chance = random.Random(seed)
    members = [Member(client, name, klasses, ("q", "r")) for name, klasses in (("u", "a"), ("v", "ab"), ("w", "abc"))]
    client.limit("l", running=2)
    names, done = [], set()
    for _ in range(250):
        one, act = chance.choice(members), chance.random()
        if act < 0.3:
            names.append(f"j{len(names)}")
            options = {"lane": chance.choice([None, "x", "y"]), "limit": chance.choice([None, None, "l"])}
            client.queue(chance.choice("qr")).put(
                chance.choice("abc"), jid=names[-1], priority=chance.randrange(3), **options
            )
        elif act < 0.75:
            leases = one.lease(chance.randrange(1, 4))
            known = [lease for lease in leases if lease.klass in one.klasses]
            one.number += 1
            outcomes = [Completed(lease) if lease in known else Unknown(lease, 1) for lease in leases]
            calls_of(client).call(settling.settle, one.name, outcomes, number=one.number)
            assert not done & {lease.jid for lease in known}
            done |= {lease.jid for lease in known}
        elif act < 0.8:
            one.tell(chance.choice(["a", "ab", "abc", "c"]))
        elif act < 0.85:
            client.deregister(one.name)
            members[members.index(one)] = Member(client, f"{one.name}+", chance.choice(["a", "abc"]), ("q", "r"))
        elif act < 0.9:
            clock.tick(chance.choice([1, 5, 61]))
        elif act < 0.95:
            client.sweep()
        elif names:
            client.job(chance.choice(names)).set_priority(chance.randrange(3))
        assert misplaced(read_namespace(server.redis, namespace)) == []
    assert client.check() == []
    last = Member(client, "last", "abc", ("q", "r"))
    client.unlimit("l")
    clock.tick(90)
    while leases := last.lease(9):
        client.settle([Completed(lease) for lease in leases])
        clock.tick(10)
    assert {client.job(jid).state for jid in names} <= {"complete"}


# Jobs whose data one worker's handler does not take, while a peer's takes other data.


def shaped(q, shape, *jids, **options):
    for jid in jids:
        q.put("k", shape, jid=jid, **options)


def test_job_of_the_wrong_shape_goes_to_a_peer_with_another_uncounted(client, q, old, new):
    old.shape({"k": "one"})
    new.shape({"k": "two"})
    shaped(q, "two", *"abc")
    assert old.misfits() == []
    assert old.answers == ["waiting"] * 3
    assert old.misfits() == []
    assert old.answers == []
    assert new.misfits() == ["a", "b", "c"]
    job = client.job("a")
    assert (job.failures, job.deaths, job.interruptions, job.state) == (0, 0, 0, "running")


def test_each_of_two_shapes_reaches_its_worker_and_none_bounces(client, q, old, new):
    old.shape({"k": "one"})
    new.shape({"k": "two"})
    for number in range(20):
        shaped(q, "one" if number % 2 else "two", f"j{number}")
    done = {"old": [], "new": []}
    for _ in range(20):
        for member in (old, new):
            done[member.name] += member.misfits(3)
    assert sorted(done["old"]) == sorted(f"j{number}" for number in range(1, 20, 2))
    assert sorted(done["new"]) == sorted(f"j{number}" for number in range(0, 20, 2))
    assert client.failed() == {}


def test_job_that_fits_no_peer_is_broken(client, q, old, new):
    old.shape({"k": "one"})
    new.shape({"k": "two"})
    shaped(q, "three", "a")
    assert old.misfits() == [] and old.answers == ["waiting"]
    assert new.misfits() == [] and new.answers == ["failed"]
    job = client.job("a")
    assert (job.state, job.failure["group"], job.failure["message"]) == ("failed", "broken", "user: is missing")
    assert client.unfail("broken", data="two") == 1
    assert new.misfits() == ["a"]


def test_job_is_broken_where_all_take_one_shape(client, q, old, new):
    old.shape({"k": "one"})
    new.shape({"k": "one"})
    shaped(q, "two", "a")
    assert old.misfits() == [] and old.answers == ["failed"]


def test_peer_that_has_gone_leaves_the_job_broken(client, clock, q, old, new):
    old.shape({"k": "one"})
    new.shape({"k": "two"})
    shaped(q, "two", "a")
    old.misfits()
    calls_of(client).call(workers.deregister, "new")
    assert old.misfits() == [] and old.answers == ["failed"]


def test_worker_with_new_code_gets_refused_jobs(client, q, old, new):
    old.shape({"k": "one"})
    new.shape({"k": "three"})
    shaped(q, "two", "a")
    assert old.misfits() == []
    old.shape({"k": "two"})
    assert old.misfits() == ["a"]


def test_job_with_other_data_is_tried_anew(client, q, old, new):
    old.shape({"k": "one"})
    new.shape({"k": "two"})
    shaped(q, "two", "a")
    old.misfits()
    q.put("k", "one", jid="a")
    assert old.misfits() == ["a"]


def test_job_that_must_not_start_twice_goes_to_the_peer(client, q, old, new):
    old.shape({"k": "one"})
    new.shape({"k": "two"})
    shaped(q, "two", "a", at_most_once=True)
    assert old.misfits() == [] and old.answers == ["waiting"]
    assert new.misfits() == ["a"]


def test_worker_that_lacks_the_klass_leaves_both_shapes(client, q, old, new):
    other = Member(client, "other", ["k"])
    old.shape({"k": "one"})
    new.shape({"k": "two"})
    other.tell([])
    shaped(q, "two", "a")
    old.misfits()
    assert other.exchange(5) == []
    assert new.misfits() == ["a"]


def test_release_is_shown(client, old):
    calls_of(client).call(workers.report_skills, "old", ["k"], ["q"], {"k": "one"}, "v1.7")
    assert [worker.release for worker in client.workers() if worker.name == "old"] == ["v1.7"]
