"""every_crash_point finds handlers that do something twice, or never, when their process dies."""

from collections.abc import Callable

import pytest

from supervisor import Client, JobContext, around_job, handler
from supervisor.child import around
from supervisor.testing import every_crash_point


class World:
    """The effects of handlers on the world. A charge with a known key is refused."""

    def __init__(self) -> None:
        self.charges: list[int] = []
        self.mails: list[str] = []
        self.stock = 10
        self.rows: dict[str, int] = {}
        self.lines: list[str] = []
        self.locked = False
        self._keys: set[str] = set()

    def charge(self, amount: int, key: str | None = None) -> None:
        if key is None or key not in self._keys:
            self.charges.append(amount)
        self._keys.add(key or "")

    def mail(self, to: str, key: str | None = None) -> None:
        if key is None or key not in self._keys:
            self.mails.append(to)
        self._keys.add(key or "")

    def effects(self) -> object:
        return self.charges, self.mails, self.stock, self.rows, self.lines, self.locked


world = World()
FAULTS: dict[str, tuple[Callable[[JobContext], None], Callable[[JobContext], None]]] = {}


def pair(faulty: Callable[[JobContext], None]) -> Callable[[Callable[[JobContext], None]], None]:
    """Register a handler with a fault, and its mended twin."""

    def register(mended: Callable[[JobContext], None]) -> None:
        FAULTS[faulty.__name__] = faulty, mended

    return register


def charge_without_a_key(job):
    world.charge(7)


@pair(charge_without_a_key)
def _(job):
    world.charge(7, job.jid)


def charge_before_its_checkpoint(job):
    if job.saved is None:
        world.charge(7)
        job.checkpoint("charged")


@pair(charge_before_its_checkpoint)
def _(job):
    if job.saved is None:
        world.charge(7, job.jid)
        job.checkpoint("charged")


def checkpoint_before_the_charge(job):
    if job.saved is None:
        job.checkpoint("charged")
        world.charge(7, job.jid)


@pair(checkpoint_before_the_charge)
def _(job):
    world.charge(7, job.jid)
    job.checkpoint("charged")


def key_that_differs_at_each_start(job):
    world.charge(7, f"{job.jid}-{job.attempt}")


@pair(key_that_differs_at_each_start)
def _(job):
    world.charge(7, f"{job.jid}-charge")


def count_in_place(job):
    world.stock -= 1
    job.progress(0.5)


@pair(count_in_place)
def _(job):
    if job.jid not in world.rows:
        world.rows[job.jid] = 1
        world.stock -= 1
    job.progress(0.5)


def append_to_a_file(job):
    for number in range(job.saved or 0, 3):
        world.lines.append(f"line {number}")
        job.checkpoint(number + 1)


@pair(append_to_a_file)
def _(job):
    for number in range(job.saved or 0, 3):
        world.lines[number:] = [f"line {number}"]
        job.checkpoint(number + 1)


def loop_that_begins_anew(job):
    for user in ("ada", "grace"):
        world.mail(user)
        job.checkpoint(user)


@pair(loop_that_begins_anew)
def _(job):
    for user in ("ada", "grace"):
        world.mail(user, f"{job.jid}-{user}")
        job.checkpoint(user)


def put_by_a_client_of_its_own(job):
    with Client(job.data["url"], job.data["namespace"]) as client:
        client.queue("default").put("follower")


@pair(put_by_a_client_of_its_own)
def _(job):
    job.put("default", "follower")


def mail_before_the_put(job):
    world.mail("ada")
    job.put("default", "follower")


@pair(mail_before_the_put)
def _(job):
    job.put("default", "mailer")


def flag_that_nobody_takes_back(job):
    if world.locked:
        return
    world.locked = True
    job.progress(0.1)
    world.charge(7, job.jid)
    world.locked = False


@pair(flag_that_nobody_takes_back)
def _(job):
    world.charge(7, job.jid)
    job.progress(0.1)


def first_attempt_only(job):
    job.progress(0.1)
    if job.attempt == 1:
        world.mail("ada", job.jid)


@pair(first_attempt_only)
def _(job):
    job.progress(0.1)
    world.mail("ada", job.jid)


def row_with_a_new_key(job):
    world.rows[f"order-{len(world.rows)}"] = 7
    job.checkpoint(1)


@pair(row_with_a_new_key)
def _(job):
    world.rows[job.jid[:0] + "order"] = 7
    job.checkpoint(1)


@handler(name="follower")
def follower(job):
    world.lines.append("followed") if job.jid not in world.rows else None
    world.rows[job.jid] = 1


@handler(name="mailer")
def mailer(job):
    world.mail("ada", job.jid)


def trial_of(function):
    """A test of an application: it puts a job of the handler, runs what is due, and returns the effects."""

    @every_crash_point
    def test(leasehold):
        global world
        world = World()
        handler(name="tried")(lambda job: function(job))
        address = {"url": leasehold.url, "namespace": leasehold.namespace}
        leasehold.queue().put("tried", address)
        leasehold.run(until="idle")
        charges, mails, stock, rows, lines, locked = world.effects()
        keys = sorted(key for key in rows if key.startswith("order"))
        return charges, mails, stock, keys, lines, locked

    return test


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(leasehold, name):
    with pytest.raises(AssertionError, match=r"without a death the effects are .*\nkilled at "):
        trial_of(FAULTS[name][0])(leasehold=leasehold)


@pytest.mark.parametrize("name", FAULTS)
def test_mended_twin_passes(leasehold, name):
    trial_of(FAULTS[name][1])(leasehold=leasehold)


def test_there_are_twelve_faults():
    assert len(FAULTS) == 12


def test_place_is_named(leasehold):
    with pytest.raises(AssertionError) as raised:
        trial_of(charge_before_its_checkpoint)(leasehold=leasehold)
    assert "killed at before checkpoint 1 of tried: ([7, 7]" in str(raised.value)
    assert "killed at checkpoint 1" not in str(raised.value)


def test_each_job_and_each_place_is_tried(leasehold):
    places = []

    def two_steps(job):
        job.checkpoint(1)
        job.progress(0.5)
        job.put("default", "follower")

    @every_crash_point
    def test(leasehold):
        handler(name="tried")(two_steps)
        leasehold.queue().put("tried")
        runs = leasehold.run(until="idle")
        places.append([run.klass for run in runs if run.outcome == "died"])
        return "the same"

    test(leasehold=leasehold)
    assert places[:2] == [[], []]
    died = ["tried"] * 5 + ["follower"]
    assert [one for [one] in places[2:]] == died


def test_places_in_functions_around_the_job_are_tried(leasehold, monkeypatch):
    monkeypatch.setattr(around, "registered", [])

    @around_job
    def reports(job):
        yield
        job.progress(1.0)

    with pytest.raises(AssertionError, match=r"killed at progress 1 of tried: \(\[7, 7\]"):
        trial_of(charge_without_a_key)(leasehold=leasehold)
    trial_of(FAULTS["charge_without_a_key"][1])(leasehold=leasehold)


def test_effects_that_differ_by_themselves_are_told(leasehold):
    counted = []

    @every_crash_point
    def test(leasehold):
        handler(name="tried")(lambda job: counted.append(1))
        leasehold.queue().put("tried")
        leasehold.run()
        return list(counted)

    with pytest.raises(AssertionError, match=r"two runs without a death differ already: \[1\], then \[1, 1\]"):
        test(leasehold=leasehold)


def test_place_that_a_run_does_not_reach_is_told(leasehold):
    runs = []

    @every_crash_point
    def test(leasehold):
        runs.append(1)

        @handler(name="tried")
        def tried(job):
            if len(runs) <= 2:  # as one that finds in a cache what an earlier run has left there
                job.checkpoint(1)

        leasehold.queue().put("tried")
        leasehold.run()
        return "the same"

    with pytest.raises(AssertionError, match="not killed at checkpoint 1 of tried: this run of the test has not come"):
        test(leasehold=leasehold)


def test_test_that_compares_nothing_is_told(leasehold):
    with pytest.raises(AssertionError, match="the test returns None"):
        every_crash_point(lambda leasehold: None)(leasehold=leasehold)
    with pytest.raises(AssertionError, match="no handler has run"):
        every_crash_point(lambda leasehold: 1)(leasehold=leasehold)


def test_error_of_the_test_is_a_finding(leasehold):
    @every_crash_point
    def test(leasehold):
        handler(name="tried")(lambda job: job.attempt)
        jid = leasehold.queue().put("tried")
        leasehold.run()
        assert leasehold.client.job(jid).result == 1, "it has run twice"
        return True

    with pytest.raises(AssertionError, match="killed at return of tried: AssertionError: it has run twice"):
        test(leasehold=leasehold)


def test_function_without_the_fixture_is_refused():
    with pytest.raises(TypeError, match="must have the fixture leasehold"):
        every_crash_point(lambda: None)

    async def waits(leasehold): ...

    with pytest.raises(TypeError, match="takes a plain function"):
        every_crash_point(waits)
