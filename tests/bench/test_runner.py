"""The runner measures rows in turn, and again after a disturbance. Measurers and looks are played."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.bench import runner
from tests.bench.benchmark import BEFORE, Benchmark, Compared
from tests.bench.disturbance import Disturbance
from tests.bench.measurer import Begun, Reply, StepSeen
from tests.bench.runner import MOST_IN_VAIN, Plan, Repeats, _Runner
from tests.bench.variants import Variant

QUIET, NOISY, NOISIER = (Disturbance(0.0, others, "") for others in (0.0, 0.2, 0.4))
OURS, LIMIT, ABSENT, SCRIPT = "ours", "limit", "absent", "script"
BENCHMARK = Benchmark(
    "thing", "What it is.", ("jobs/s",), lambda _: nullcontext([]),
    (Compared("ours / before", OURS, "jobs/s", (OURS + BEFORE,), least=2),),
)  # fmt: skip
STEPS = (
    StepSeen((OURS,), None, True, True),
    StepSeen((LIMIT,), None, False, True),
    StepSeen((ABSENT,), "it is not on PATH", False, True),
    StepSeen((SCRIPT,), None, True, False),
)


class PlayedMeasurer:
    """A measurer that replies with given figures, one after the other."""

    def __init__(self, suffix="", figures=(), calls=None):
        self.variant = Variant(suffix, Path("python"), Path("source"))
        self._figures = list(figures)
        self._calls = calls if calls is not None else []

    def begin(self, _benchmark):
        return Begun(STEPS, "Redis 7.0.15")

    def measure(self, step, _say):
        (row,) = STEPS[step].rows
        self._calls.append(row + self.variant.suffix)
        value = self._figures.pop(0) if self._figures else 1.0
        return Reply({}, value) if isinstance(value, str) else Reply({row: {"jobs/s": value}})


@pytest.fixture
def machine(monkeypatch):
    """The disturbances of the next attempts, in order. The machine is quiet after the last one."""
    found = []
    monkeypatch.setattr(runner.disturbance, "look", lambda: None)
    monkeypatch.setattr(runner.disturbance, "between", lambda *_: found.pop(0) if found else QUIET)
    monkeypatch.setattr(runner.disturbance, "wait_for_quiet", lambda *_: True)
    return found


def measured(*measurers, said=None, **plan):
    return _Runner(Plan([BENCHMARK], **plan), measurers, (said if said is not None else []).append).run(BENCHMARK)


def test_variants_take_turns_in_being_the_first(machine):
    calls = []
    result = measured(PlayedMeasurer("", calls=calls), PlayedMeasurer(BEFORE, calls=calls), rounds=2)
    first, then = [OURS, OURS + BEFORE], [SCRIPT, SCRIPT + BEFORE]
    assert calls == [*first, LIMIT, *then, *reversed(first), LIMIT, *reversed(then)]
    assert result.rows == [*first, LIMIT, *then] and result.missing == {ABSENT: "it is not on PATH"}


def test_another_interpreter_changes_nothing_of_limits_and_scripts(machine):
    calls = []
    measured(PlayedMeasurer("", calls=calls), PlayedMeasurer(", CPython 3.11.7", calls=calls), rounds=1)
    assert calls == [OURS, f"{OURS}, CPython 3.11.7", LIMIT, SCRIPT]


def test_a_row_is_measured_again_until_undisturbed(machine):
    machine += [NOISY, QUIET]
    said = []
    result = measured(PlayedMeasurer(figures=[1.0, 2.0]), rounds=1, rows=[OURS], said=said)
    assert result.rounds == [{OURS: {"jobs/s": 2.0}}] and result.disturbances == [{OURS: QUIET}]
    assert said[0] == "thing 1/1: ours: 0.0% stolen, 20.0% used by others; once more"


def test_the_least_disturbed_of_all_attempts_counts(machine):
    machine += [NOISIER, NOISY, NOISIER]
    result = measured(PlayedMeasurer(figures=[1.0, 2.0, 3.0, 4.0]), rounds=1, repeats=2, rows=[OURS])
    assert result.rounds == [{OURS: {"jobs/s": 2.0}}] and result.disturbed_rounds([OURS]) == 1


def test_no_row_is_measured_again_without_end(machine, monkeypatch):
    waits = []
    monkeypatch.setattr(runner.disturbance, "wait_for_quiet", lambda *_: waits.append("in vain"))
    repeats = Repeats(2)
    for _ in range(10):
        attempts = [(Reply({}), NOISY)]
        while repeats.is_worthwhile(attempts):
            attempts.append((Reply({}), NOISY))
    assert len(waits) == MOST_IN_VAIN
    assert not repeats.is_worthwhile([(Reply({}), QUIET)])  # the machine is quiet again, by itself
    assert repeats.is_worthwhile([(Reply({}), NOISY)])


def test_row_that_cannot_be_measured_is_not_tried_again(machine):
    machine += [NOISY]
    calls, said = [], []
    result = measured(PlayedMeasurer(figures=["it does not come up"], calls=calls), rounds=1, said=said)
    assert calls == [OURS, LIMIT, SCRIPT] and result.missing[OURS] == "it does not come up"
    assert said[:2] == ["thing 1/1: ours: it does not come up", "thing 1/1: limit: 1.00 jobs/s"]


def test_a_check_measures_of_each_variant_what_its_bars_need(machine):
    calls = []
    measured(PlayedMeasurer("", calls=calls), PlayedMeasurer(BEFORE, calls=calls), rounds=1, bars_only=True)
    assert calls == [OURS, OURS + BEFORE]


def test_a_bar_against_before_is_skipped_where_nothing_is_given(machine):
    result = measured(PlayedMeasurer(), rounds=1)
    assert result.missing[OURS + BEFORE] == "no --before DIR was given"
