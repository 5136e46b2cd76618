"""Rates, order and marks that `leasehold top` derives from snapshots. No Redis, no terminal."""

import pytest

from supervisor.cli.top.model import NoSnapshot, Pane, Rate, Tone
from tests.cli.top.parts import NOW_AT, child, counts, end, model_of, snapshot, stats, status, worker


def flow(*seen):
    made = Rate()
    for at, value in seen:
        made.add(at, value)
    return made


@pytest.mark.parametrize(
    ("seen", "per_s"),
    [
        ([], None),
        ([(0, 5)], None),
        ([(0, 5), (2, 25)], 10),
        ([(0, 0), (1, 100), (5, 100), (6, 100), (7, 100)], 0),
        ([(0, 0), (1, 10), (2, 20), (3, 0)], None),
        ([(0, 0), (1, 10), (2, 20), (3, 0), (4, 7)], 7),
        ([(0, 0), (60, 60)], 1),
        ([(0, 0), (0, 5)], None),
    ],
)
def test_a_rate_restarts_with_a_falling_counter(seen, per_s):
    assert flow(*seen).per_s == per_s


def row(model, pane, key, of=None):
    return next(row for row in model.rows(pane, of) if row.key == key)


def two_looks(first, then, apart_s=2.0):
    return model_of(snapshot(NOW_AT - apart_s, **first), snapshot(NOW_AT, **then))


def test_a_put_rate_adds_growth_and_ended_jobs():
    model = two_looks(
        {"queues": {"q": counts(10, 1)}, "stats": {"q": stats("q", 100)}},
        {"queues": {"q": counts(14, 3)}, "stats": {"q": stats("q", 140, failures=2)}},
    )
    values = row(model, Pane.QUEUES, "q").values
    assert (values["in/s"], values["out/s"], values["failed"]) == (24, 20, 2)


def test_a_wait_is_the_mean_of_recent_starts():
    model = two_looks(
        {"queues": {"q": counts(1)}, "stats": {"q": stats("q", 100, 1.0, 0.5)}},
        {"queues": {"q": counts(1)}, "stats": {"q": stats("q", 200, 2.0, 0.75)}},
    )
    values = row(model, Pane.QUEUES, "q").values
    assert (values["wait"], values["run"]) == (3.0, 1.0)


def test_rates_stay_right_at_midnight():
    model = two_looks(
        {"queues": {"q": counts(1)}, "stats": {"q": stats("q", 100_000, 1.0, 0.5)}},
        {"queues": {"q": counts(1)}, "stats": {"q": stats("q", 3, 1.0, 0.5)}},
    )
    values = row(model, Pane.QUEUES, "q").values
    assert (values["in/s"], values["out/s"], values["wait"]) == (None, None, None)


def test_a_queue_without_stats_has_counts_and_no_rates():
    model = two_looks({"queues": {"q": counts(5)}}, {"queues": {"q": counts(9, stalled=1)}})
    values = row(model, Pane.QUEUES, "q").values
    assert (values["waiting"], values["stalled"], values["in/s"], values["wait"]) == (9, 1, None, None)


def test_active_queues_come_first_by_name():
    model = model_of(snapshot(queues={"z": counts(1), "b": counts(), "a": counts(), "m": counts(0, 1)}))
    assert [each.key for each in model.rows(Pane.QUEUES, None)] == ["m", "z", "a", "b"]


def test_stalled_and_late_queues_come_first():
    model = model_of(
        snapshot(queues={"a": counts(1, oldest_s=59.0), "y": counts(0, 1, stalled=1), "z": counts(1, oldest_s=60.0)})
    )
    assert [each.key for each in model.rows(Pane.QUEUES, None)] == ["y", "z", "a"]


def test_an_unserved_queue_is_marked():
    def states(*supervisors, workers=()):
        queues = {"emails": counts(1), "emials": counts(1), "empty": counts(), "shut": counts(1, paused=True)}
        names = {f"w-{n}": each for n, each in enumerate(supervisors)}
        rows = model_of(snapshot(queues=queues, supervisors=names, workers=workers)).rows(Pane.QUEUES, None)
        return {row.key: row.values["state"] for row in rows if row.values["state"]}

    one = status(queues=["emails"], order="strict")
    assert states(one) == {"emials": "nobody", "shut": "paused"}
    assert states(one, status(queues=["em*:3"], order="weighted")) == {"shut": "paused"}
    assert states() == {"emails": "nobody", "emials": "nobody", "shut": "paused"}
    for known in ([one, None], [one, status(queues=[7], order="strict")], [one, status(queues=["x"], order=None)]):
        assert states(*known) == {"shut": "paused"}
    assert states(one, workers=[worker("script-9-1-aaaa", 1)]) == {"shut": "paused"}


def test_rates_of_all_are_the_sums_of_those_that_answer():
    model = two_looks(
        {"supervisors": {"a": status(completed=0), "b": status(completed=100, failed=1), "c": status(completed=7)}},
        {"supervisors": {"a": status(completed=20), "b": status(completed=140, failed=5, died=2), "c": None}},
    )
    head = model.head()
    assert (head.completed_per_s, head.failed_per_s, head.died_per_s) == (30, 2, 1)
    assert (head.supervisors, head.silent) == (3, 1)


def test_a_silent_supervisor_keeps_its_last_status():
    model = model_of(
        snapshot(NOW_AT - 9, supervisors={"a": status(completed=5)}),
        snapshot(NOW_AT - 8, supervisors={"a": None}),
        snapshot(NOW_AT, supervisors={"a": None}),
    )
    silent = row(model, Pane.SUPERVISORS, "a")
    assert (silent.values["state"], silent.values["left"], silent.values["up"]) == ("no answer", 9.0, 7500.0)
    assert silent.tones["state"] is Tone.ALARM
    model.take(snapshot(NOW_AT + 1, supervisors={"a": status()}))
    assert row(model, Pane.SUPERVISORS, "a").values["state"] == "serving"


def test_supervisor_that_has_left_is_gone():
    model = two_looks({"supervisors": {"a": status()}}, {"supervisors": {}})
    assert model.rows(Pane.SUPERVISORS, None) == [] and model.status("a") is None


def test_client_workers_are_shown_while_present():
    workers = [worker("gone", ago_s=4000), worker("script", 2), worker("lost", 0, 3, ago_s=4000)]
    model = model_of(snapshot(workers=workers))
    rows = {each.key: (each.values["state"], each.tones["state"]) for each in model.rows(Pane.SUPERVISORS, None)}
    assert rows == {"script": ("client", Tone.QUIET), "lost": ("lost", Tone.ALARM)}


def test_a_death_is_marked_for_a_minute():
    model = two_looks({"supervisors": {"a": status(died=1)}}, {"supervisors": {"a": status(died=2)}})
    assert row(model, Pane.SUPERVISORS, "a").tones["died"] is Tone.ALARM
    model.take(snapshot(NOW_AT + 59, supervisors={"a": status(died=2)}))
    assert row(model, Pane.SUPERVISORS, "a").tones["died"] is Tone.ALARM
    model.take(snapshot(NOW_AT + 61, supervisors={"a": status(died=2)}))
    assert row(model, Pane.SUPERVISORS, "a").tones["died"] is Tone.PLAIN


def test_busy_children_come_before_idle_ones():
    children = [child(1), child(2, "k"), child(3), child(4, "k")]
    rows = model_of(snapshot(supervisors={"a": status(children=children)})).rows(Pane.CHILDREN, "a")
    assert [each.key for each in rows] == ["2", "4", "1", "3"]


def test_recent_failures_are_sorted_by_time():
    model = model_of(
        snapshot(
            supervisors={
                "a": status(ends=[end("failed", "x", "k", 1), end("failed", "x", "k", 5)]),
                "b": status(ends=[end("died", "y", "k", 3)]),
            }
        )
    )
    assert [each.values["worker"] for each in model.rows(Pane.ENDS, None)] == ["a", "b", "a"]


def test_the_groups_of_failed_jobs_come_largest_first():
    head = model_of(snapshot(failed={"b": 2, "a": 2, "c": 9})).head()
    assert head.groups == [("c", 9), ("a", 2), ("b", 2)]


def test_deaths_are_those_of_all_supervisors_by_reason():
    model = model_of(
        snapshot(supervisors={"a": status(deaths={"oom": 1, "SIGSEGV": 3}), "b": status(deaths={"oom": 4})})
    )
    assert model.head().deaths == [("oom", 5), ("SIGSEGV", 3)]


def test_an_outage_counts_from_the_first_failed_poll():
    model = model_of(snapshot())
    model.poll_failed(NOW_AT + 1, NoSnapshot("no", is_away=True))
    model.poll_failed(NOW_AT + 9, NoSnapshot("still no", is_away=True))
    assert (model.lost_since_at, model.why_lost.why) == (NOW_AT + 1, "still no")
    model.take(snapshot(NOW_AT + 10))
    assert model.lost_since_at is None


def test_a_supervisor_that_may_still_answer_is_neither_silent_nor_gone():
    first = snapshot(NOW_AT - 2, workers=[worker("new"), worker("known")], supervisors={"known": status()})
    model = model_of(first, snapshot(NOW_AT, workers=[worker("new"), worker("known")], asked=("new", "known")))
    assert (model.head().supervisors, model.head().silent) == (2, 0)
    states = {each.key: each.values["state"] for each in model.rows(Pane.SUPERVISORS, None)}
    assert states == {"known": "serving", "new": "asked"}
    model.hear(NOW_AT + 1, {"new": status("booting"), "known": None})
    assert row(model, Pane.SUPERVISORS, "new").values["state"] == "booting"
    assert row(model, Pane.SUPERVISORS, "known").values["state"] == "no answer"
