"""Recurring jobs that code declares: the release that was told last decides, and each time comes once."""

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import recurrences
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.recurring import declared

MINUTE, HOUR = 60, 3600


@pytest.fixture
def release(client):
    """Tell what a release declares: its klasses that do not recur, and the rhythm of the others."""

    def tell(*plain, only_missing=False, **recurring):
        known = [declared(klass, rhythm, calls_of(client).clock()) for klass, rhythm in recurring.items()]
        return calls_of(client).call(recurrences.declare, plain, known, only_missing)

    return tell


@pytest.fixture
def leased(client):
    def take():
        leases = client.lease("w", ["*"], 100)
        for lease in leases:
            lease.complete()
        return [lease.jid for lease in leases]

    return take


def test_declared_job_comes_in_its_queue_with_its_options(client, release, leased):
    assert release(report={"every": MINUTE, "queue": "bulk", "tags": ["t"], "priority": -1}) == (["report"], [])
    job = client.recurring("report")
    assert (job.klass, job.queue, job.every_s, job.tags, job.priority) == ("report", "bulk", 60, ["t"], -1)
    assert leased() == ["report-1"]


def test_earlier_declarations_stay_as_an_operator_has_left_them(client, release, clock, leased):
    rhythm = {"every": MINUTE}
    release(one=rhythm, two=rhythm)
    leased()
    client.unrecur("one")
    client.recurring("two").update(every=HOUR)
    clock.tick(1)
    assert release(one=rhythm, two=rhythm) == ([], [])
    assert client.recurring("one") is None
    assert client.recurring("two").every_s == HOUR


def test_release_that_tells_what_is_missing_changes_nothing_else(client, release):
    release(one={"every": MINUTE}, removed={"every": MINUTE})
    client.unrecur("removed")
    missing = {"one": {"every": HOUR}, "removed": {"every": HOUR}, "lost": {"every": HOUR}}
    assert release(only_missing=True, **missing) == (["lost"], [])
    assert client.recurring("one").every_s == MINUTE
    assert client.recurring("removed") is None


def test_other_declaration_puts_again_what_an_operator_has_removed(client, release):
    release(one={"every": MINUTE})
    client.unrecur("one")
    assert release(one={"every": HOUR}) == (["one"], [])
    assert client.recurring("one").every_s == HOUR


def test_only_a_release_with_the_klass_removes_a_declaration(client, release):
    release(one={"every": MINUTE})
    assert release("other", two={"every": MINUTE}) == (["two"], [])
    assert client.recurring("one") is not None
    assert release("one", "other") == ([], ["one"])
    assert client.recurring("one") is None


def test_release_that_is_told_last_decides_and_a_rollback_too(client, release, clock):
    old, new = {"every": MINUTE}, {"cron": "0 6 * * *", "tz": "Europe/Berlin"}
    for rhythm in (old, new, old):
        clock.tick(1)
        assert release(one=rhythm) == (["one"], [])
        assert client.recurring("one").cron == rhythm.get("cron")


def test_each_time_comes_once_over_changes_of_the_release(client, release, clock, leased):
    """A time that was due before the change comes, and the same rhythm goes on with other options."""
    release(one={"every": MINUTE})
    assert leased() == ["one-1"]
    clock.tick(MINUTE)
    release(one={"every": MINUTE, "tags": ["t"]})
    assert leased() == ["one-2"]
    clock.tick(MINUTE - 1)
    release(one={"every": MINUTE})
    assert leased() == []
    clock.tick(1)
    assert leased() == ["one-3"]
    clock.tick(HOUR)
    release(one={"cron": "30 * * * *"})
    assert leased()[0] == "one-4"


def test_shorter_interval_begins_at_once_and_a_longer_one_after_the_next_time(client, release, clock, leased):
    release(one={"every": HOUR})
    leased()
    release(one={"every": MINUTE})
    clock.tick(MINUTE)
    assert leased() == ["one-2"]
    release(one={"every": HOUR})
    clock.tick(MINUTE)
    assert leased() == ["one-3"]
    clock.tick(MINUTE)
    assert leased() == []


def test_thousand_declared_jobs_are_the_most(client, release):
    for first in range(0, 1000, 100):
        release(**{f"k{number}": {"every": HOUR} for number in range(first, first + 100)})
    with pytest.raises(LeaseholdError, match="more than 1000 declared recurring jobs"):
        release(one={"every": HOUR})
    assert client.recurring("one") is None


def test_declaration_is_checked():
    for rhythm, words in (
        ({"every": 0}, "every"),
        ({"cron": "x"}, "cron"),
        ({"every": 1, "cron": "* * * * *"}, "one of them"),
        ({"every": 1, "depends": ["x"]}, "no option"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            declared("k", rhythm, 0.0)
