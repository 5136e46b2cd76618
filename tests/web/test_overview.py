"""The overview draws the last hour, day or month, marks what happened on its time axis, and waits for no supervisor."""

import re

import pytest

from supervisor.clock import monotonic
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing, mailbox, maintenance
from supervisor.engine.commands.course import PERIODS, CourseStep
from supervisor.engine.model.outcomes import Completed, Died
from supervisor.web import poller
from supervisor.web.chart import HEIGHT, WIDTH, chart
from tests.lengths import SOON_S
from tests.web.conftest import tags, words


@pytest.fixture
def lived(jobs):
    """A namespace in which a supervisor has begun, was scaled, and has lost a child."""
    calls = calls_of(jobs)
    calls.call(leasing.resume, "w-1", 1, [])
    queue = jobs.queue("mail")
    queue.put_many({"klass": "k"} for _ in range(9))
    first, second, *_ = queue.lease("w-1", 4)
    jobs.settle([Completed(first), Died(second, "oom", {})])
    wish = {"fewest": 2, "most": 8, "by": "kim@web-1"}
    calls.call(mailbox.ask, "q-1", "w-1", "scale", wish, by="kim@web-1")
    calls.call(mailbox.ask, "q-2", "w-1", "reload", by="kim@web-1")
    calls.call(maintenance.sweep)
    return jobs


@pytest.mark.parametrize("over", PERIODS)
def test_the_overview_draws_each_period(lived, visitor, over):
    text = visitor.page(f"/overview?over={over}")
    assert f"The last {over}" in words(text)
    [chosen] = [each["href"] for tag, each in tags(text) if tag == "a" and each.get("aria-current") == "true"]
    assert chosen.endswith(f"?over={over}")
    drawings = [each["aria-label"] for tag, each in tags(text) if tag == "svg" and each.get("viewbox") == "0 0 600 56"]
    assert [label.partition(":")[0].partition(" in ")[0] for label in drawings] == [
        "Jobs", "Waiting jobs", "How long jobs waited", "How long jobs ran",
    ]  # fmt: skip
    assert not any("style" in each for _, each in tags(text))
    shown = visitor.json(f"/overview?over={over}")
    assert len(shown["course"]) == PERIODS[over][1]
    last = shown["course"][-1]
    assert (last["waiting"], last["deaths"], last["supervisors"]) == (6, 1, 1)
    assert shown["latencies"][-1]["run"]["count"] == 1


def test_deploys_scale_steps_and_deaths_are_marked(lived, visitor):
    marks = visitor.json("/overview")["marks"]
    assert {(each["kind"], each["words"]) for each in marks} == {
        ("deploy", "1 supervisor started"),
        ("deploy", "reload w-1 by kim@web-1"),
        ("scale", "scale w-1 to 2:8 by kim@web-1"),
        ("death", "1 death"),
    }
    text = visitor.page("/overview")
    assert "scale w-1 to 2:8 by kim@web-1" in words(text) and "1 run died" in words(text)
    for kind in ("deploy", "scale", "death"):
        assert re.search(rf'<path class="mark {kind}" d="M[\d.]+ 0V', text)


def test_other_periods_are_refused(visitor):
    assert visitor.refused("/overview?over=year", 400) == "over must be one of hour, day, month"


def test_what_alerts_tell_is_told_here_too(jobs, visitor):
    jobs.limit("smtp", running=0)
    jobs.queue("mail").put("k", {}, limit="smtp")
    jobs.lease("w-1", ["mail"])
    assert "limit smtp lets nothing start, and jobs wait for it: it is 0" in words(visitor.page("/overview"))


def test_a_page_waits_for_no_silent_supervisor(jobs, visitor, monkeypatch):
    monkeypatch.setattr(poller, "_PATIENCE_S", 3600.0)
    calls_of(jobs).call(leasing.resume, "silent", 1, [])
    shown = visitor.json("/overview")
    assert [(row["supervisor"], row["state"]) for row in shown["workers"]] == [("silent", "asked")]
    assert (shown["supervisors"], shown["troubles"]) == (1, [])


def test_a_supervisor_that_never_answers_is_told(jobs, visitor, monkeypatch):
    monkeypatch.setattr(poller, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(poller, "_FRESH_S", 0.0)
    calls_of(jobs).call(leasing.resume, "silent", 1, [])
    give_up_at = monotonic() + SOON_S
    while not (found := visitor.json("/overview")["troubles"]):
        assert monotonic() < give_up_at
    assert found[0]["kind"] == "supervisor" and found[0]["sentence"].startswith("has not answered for ")


# The drawing itself.


def course(*values):
    steps = [CourseStep(60.0 * at, waiting, None, 0, 0, 0) for at, waiting in enumerate(values)]
    return [{name: getattr(step, name) for name in CourseStep.__slots__} for step in steps]


def test_a_line_has_gaps_where_nobody_has_counted():
    drawn = chart("hour", course(0, 10, None, 5), [], [])
    [line] = drawn.panels[1].lines
    bottom, top, middle = HEIGHT - 1, 1, HEIGHT / 2
    assert line.path == f"M0.0 {bottom:.1f}H150.0V{top:.1f}H300.0M450.0 {middle:.1f}H{WIDTH:.1f}"
    assert (line.most, drawn.times_unix) == ("10", (0.0, 120.0, 240.0))


def test_a_slice_that_began_before_the_axis_is_cut_there():
    times = {"count": 1, "p50": 0.25, "p95": None}
    slices = [{"since_unix": -600.0, "until_unix": 120.0, "wait": times, "run": times}]
    p50, p95 = chart("hour", course(None, None, None, None), slices, []).panels[2].lines
    assert (p50.path, p50.most) == ("M0.0 1.0H300.0", "250ms")
    assert (p95.path, p95.most) == ("", "")


def test_marks_of_one_place_are_drawn_once():
    marks = [{"at_unix": at, "kind": "death"} for at in (60.0, 60.0, 180.0)]
    drawn = chart("hour", course(1, 1, 1, 1), [], marks)
    assert drawn.marks == {"deploy": "", "scale": "", "death": f"M150.0 0V{HEIGHT}M450.0 0V{HEIGHT}"}
