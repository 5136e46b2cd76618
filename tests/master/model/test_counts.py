"""Jobs and the turns of the master are counted, within bounds."""

import pytest

from supervisor.master.model import counts as module
from supervisor.master.model.counts import (
    MOST_PAIRS,
    MOST_QUEUES,
    MOST_REASONS,
    MOST_UNKNOWN_PAIRS,
    OTHER,
    Histogram,
    MasterCounts,
)


def test_time_equal_to_a_bound_is_within_it():
    spread = Histogram((0.1, 1.0))
    for seconds in (0.0, 0.1, 0.2, 1.0, 1.1, 3600.0):
        spread.add(seconds)
    assert spread.cells == [2, 2, 2]
    assert spread.sum_s == pytest.approx(3602.4)
    assert spread.count == 6


def test_each_queue_and_klass_is_counted_apart():
    counts = MasterCounts()
    counts.of("a", "k").completed += 1
    counts.of("a", "k").completed += 1
    counts.of("b", "k").failed += 1
    assert {(queue, klass): (each.completed, each.failed) for queue, klass, each in counts.jobs()} == {
        ("a", "k"): (2, 0), ("b", "k"): (0, 1),
    }  # fmt: skip
    assert counts.ended == {
        "completed": 2, "retried": 0, "failed": 1, "died": 0, "released": 0, "returned": 0, "suspended": 0,
    }  # fmt: skip


@pytest.mark.parametrize(("queues", "klasses"), [(10_000, 1), (1, 1_000), (150, 20)])
def test_further_queues_or_klasses_count_together(queues, klasses):
    counts = MasterCounts()
    for number in range(max(queues, klasses) * 2):
        counts.of(f"q{number % queues}", f"k{number % klasses}").started += 1
    seen = list(counts.jobs())
    assert len(seen) <= MOST_PAIRS + 1
    assert len({queue for queue, _, _ in seen}) <= MOST_QUEUES + 1
    assert sum(each.started for _, _, each in seen) == max(queues, klasses) * 2
    assert counts.of("new", "one") is counts.of(OTHER, OTHER)


def test_unknown_klasses_leave_room_for_known_ones():
    counts = MasterCounts()
    for number in range(10_000):
        counts.ended_as(counts.of_unknown("q", f"made-up-{number}"), "unknown")
    counts.of("q", "real").completed += 1
    seen = {klass: each for _, klass, each in counts.jobs()}
    assert seen["real"].completed == 1
    assert len(seen) == MOST_UNKNOWN_PAIRS + len(["real", OTHER])
    assert sum(each.unknown for each in seen.values()) == 10_000
    assert counts.of_unknown("q", "real") is counts.of("q", "real")  # its handler is in other code that was loaded


def test_few_reasons_of_deaths_are_counted_apart():
    counts = MasterCounts()
    for status in range(256):
        counts.ended_as(counts.of("q", "k"), "died", f"exit-{status}")
        counts.ended_as(counts.of("q", "other-klass"), "died", f"exit-{status}")
    deaths = counts.of("q", "k").deaths
    assert len(deaths) == MOST_REASONS + 1
    assert deaths[OTHER] == 256 - MOST_REASONS
    assert deaths == counts.of("q", "other-klass").deaths
    assert counts.of("q", "k").died == 256
    assert counts.deaths == {reason: 2 * count for reason, count in deaths.items()}


def test_interruptions_raised_by_handlers_share_one_reason():
    counts = MasterCounts()
    for reason in ("drain", "anything", None, "reload", "my own words"):
        counts.ended_as(counts.of("q", "k"), "released", reason)
    assert counts.of("q", "k").interruptions == {"drain": 1, "handler": 3, "reload": 1}


def test_restart_is_measured_from_the_report_of_the_death():
    counts = MasterCounts()
    counts.note_death("j", 10.0)
    counts.note_start("another", 10.01)
    counts.note_start("j", 10.02)
    counts.note_start("j", 99.0)
    assert counts.restart.count == 1
    assert counts.restart.sum_s == pytest.approx(0.02)


def test_deaths_whose_jobs_went_elsewhere_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "_MOST_DEATHS", 3)
    counts = MasterCounts()
    for number in range(10):
        counts.note_death(f"j{number}", 1.0)
    for number in range(10):
        counts.note_start(f"j{number}", 2.0)
    assert counts.restart.count == 3


def test_longest_turn_is_that_of_the_last_minute():
    counts = MasterCounts()
    counts.turned(100.0, 100.5)
    assert counts.longest_turn_s == 0.5
    counts.turned(120.0, 120.1)
    assert counts.longest_turn_s == 0.5
    counts.turned(140.0, 140.1)  # of the next half minute: the one before still counts
    assert counts.longest_turn_s == 0.5
    counts.turned(175.0, 175.2)
    assert counts.longest_turn_s == pytest.approx(0.2)
    counts.turned(1000.0, 1000.01)  # it has slept in between
    assert counts.longest_turn_s == pytest.approx(0.01)
