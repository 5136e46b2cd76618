"""The log and the counts have each job's end, for every outcome and every answer of Redis."""

import pytest

from supervisor.engine.model.outcomes import Completed, Died, Failed, Misfit, Released, Retried, Unknown
from supervisor.master.model.counts import OUTCOMES, MasterCounts
from supervisor.master.model.outcome_log import account_of, attempt_of, say
from supervisor.master.model.outcome_rules import NO_END, End
from supervisor.ops.events import EVENTS
from tests.parts import held_of


class Listener:
    """Keeps the events that are said, and refuses those whose fields are not declared."""

    def __init__(self):
        self.said = []

    def emit(self, name, /, **fields):
        given = {key: value for key, value in fields.items() if value is not None}
        assert set(given) <= set(EVENTS[name][1])
        self.said.append((name, given))

    def emit_lazily(self, name, fields_of, about):
        self.emit(name, **fields_of(about))

    def emit_each(self, name, fields_of, abouts):
        for about in abouts:
            self.emit(name, **fields_of(about))


def said_of(make, verdict, end=NO_END, **lease):
    held = held_of(1, klass="email.send", **lease)
    held.child_number, held.run_s, held.cpu_s, held.max_rss_bytes = 3, 0.0015, 0.00125, 2**20
    held.lease.waited_s = 0.25
    held.end = end
    held.outcome = make(held.lease)
    listener, counts = Listener(), MasterCounts()
    say(listener, counts, held, verdict)
    ((name, fields),) = listener.said
    counted = counts.of(held.lease.queue, held.lease.klass)
    assert counted.run.count == (1 if "run_ms" in fields and name != "job.stale" else 0)
    assert sum(counted.deaths.values()) == counted.died
    assert sum(counted.interruptions.values()) == counted.released
    assert counts.handed_back == (1 if name == "lease.returned" else 0)
    return name, fields, {outcome: getattr(counted, outcome) for outcome in OUTCOMES if getattr(counted, outcome)}


JOB = {"jid": "j1", "klass": "email.send", "queue": "q"}
RUN = {
    **JOB, "attempt": 1, "wait_ms": 250.0, "run_ms": 1.5, "cpu_ms": 1.25, "max_rss_bytes": 2**20, "child": 3
}  # fmt: skip
MAKE = {
    "completed": lambda lease: Completed(lease),
    "retried": lambda lease: Retried(lease, 2.5, "E", "m"),
    "failed": lambda lease: Failed(lease, "g", "m"),
    "died": lambda lease: Died(lease, "SIGSEGV", "the child …", None, {"output": "last", "klass": "k"}),
    "released": lambda lease: Released(lease, started=True, reason="drain"),
    "returned": lambda lease: Released(lease, started=False),
    "unknown": lambda lease: Unknown(lease, 10.0),
    "misfit": lambda lease: Misfit(lease, "any", "user: is missing"),
}


def test_completion_is_logged_and_counted():
    assert said_of(MAKE["completed"], True) == ("job.completed", RUN, {"completed": 1})


@pytest.mark.parametrize("remaining", [0, 1, 4])
def test_retry_with_retries_remaining_is_logged(remaining):
    fields = {**RUN, "group": "E", "message": "m", "remaining": remaining, "delay_s": 2.5}
    assert said_of(MAKE["retried"], remaining) == ("job.retried", fields, {"retried": 1})


def test_retry_with_none_left_is_a_failure():
    assert said_of(MAKE["retried"], -1) == ("job.failed", {**RUN, "group": "E", "message": "m"}, {"failed": 1})


def test_failure_is_logged_and_counted():
    assert said_of(MAKE["failed"], True) == ("job.failed", {**RUN, "group": "g", "message": "m"}, {"failed": 1})


@pytest.mark.parametrize("state", ["waiting", "scheduled", "failed"])
def test_death_says_reason_count_and_state(state):
    end = End(why_killed="it spoke nonsense", cpu_s=9.0, output="last", stack="File …", memory_bytes=7)
    name, fields, counted = said_of(MAKE["died"], state, end, deaths=1)
    assert (name, counted) == ("job.died", {"died": 1})
    assert fields == {
        **RUN, "attempt": 2, "reason": "SIGSEGV", "deaths": 2, "state": state, "message": "the child …",
        "memory_bytes": 7, "output": "last", "stack": "File …",
    }  # fmt: skip


def test_interruption_says_why():
    assert said_of(MAKE["released"], True, End(memory_bytes=7)) == (
        "job.released",
        {**RUN, "reason": "drain", "message": "email.send was stopped: this supervisor drains", "memory_bytes": 7},
        {"released": 1},
    )


def test_job_that_never_started_counts_as_no_run():
    assert said_of(MAKE["returned"], True) == ("lease.returned", {"count": 1}, {})


@pytest.mark.parametrize("state", ["scheduled", "failed"])
def test_unknown_klass_is_logged_and_counted(state):
    assert said_of(MAKE["unknown"], state) == ("job.unknown", JOB, {"unknown": 1})


@pytest.mark.parametrize(
    ("state", "end", "more"),
    [("waiting", "misfit", {}), ("failed", "failed", {"group": "broken"})],
)
def test_data_for_another_release_are_logged_and_counted(state, end, more):
    fields = {**RUN, **more, "message": "user: is missing"}
    assert said_of(MAKE["misfit"], state) == (f"job.{end}", fields, {end: 1})


@pytest.mark.parametrize("verdict", [False, None])
@pytest.mark.parametrize("outcome", MAKE)
def test_refused_outcome_counts_as_stale_only(outcome, verdict):
    verb = "released" if outcome == "returned" else outcome
    why = (
        {"reason": "drain", "message": "email.send was stopped: this supervisor drains"}
        if outcome == "released"
        else {}
    )
    assert said_of(MAKE[outcome], verdict) == ("job.stale", {**RUN, "verb": verb, **why}, {"stale": 1})


def test_unknown_resource_use_is_left_out():
    held = held_of(1, klass="email.send")
    held.child_number = 3
    assert account_of(held) == {**JOB, "attempt": 1, "wait_ms": 0.0, "run_ms": 0.0, "child": 3}


def test_attempts_count_every_earlier_start():
    assert attempt_of(held_of(1).lease) == 1
    assert attempt_of(held_of(1, failures=1, deaths=2, interruptions=3).lease) == 7
