"""`leasehold bench`: lists, refusals, judgement and report, and one small real run."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import supervisor
from supervisor.cli.lib.parser import dispatch
from tests.bench import engine, peers, report
from tests.bench.benchmark import BEFORE, Benchmark, Compared, Result
from tests.bench.disturbance import Disturbance
from tests.bench.figures import number, quantile, spread
from tests.bench.table import BENCHMARKS

OURS, LIMIT, PEER, QUICKER = "ours", "limit", "peer", "quicker"
BARS = (
    Compared("ours / limit", OURS, "jobs/s", (LIMIT,), least=0.6),
    Compared("ours / fastest", OURS, "jobs/s", (PEER, QUICKER), least=5),
    Compared("below every peer", OURS, "µs", (PEER, QUICKER), most=1, best="least"),
    Compared("p99 / p50", OURS, "p99", (OURS,), over_column="p50", most=3),
    Compared("bytes", OURS, "bytes", most=450),
    Compared("ours / absent", OURS, "jobs/s", ("absent",), least=2),
    Compared("no bar", LIMIT, "jobs/s", (PEER,)),
)
HEADER = {"server": "Redis 7.0.15"}
ROOT = Path(__file__).parents[3]


def result(*rounds, missing=()):
    benchmark = Benchmark(
        "thing", "What it is. More of it.", ("jobs/s", "µs"), lambda _: contextlib.nullcontext([]), BARS
    )
    return Result(benchmark, list(rounds), dict(missing))


def figures(ours=60.0, limit=100.0, peer=5.0, quicker=10.0):
    return {
        OURS: {"jobs/s": ours, "µs": 20.0, "p50": 1.0, "p99": 2.0, "bytes": 440.0},
        LIMIT: {"jobs/s": limit},
        PEER: {"jobs/s": peer, "µs": 21.0},
        QUICKER: {"jobs/s": quicker, "µs": 19.0},
    }


def held(*rounds, missing=()):
    return {each.name: each.held for each in report.verdicts([result(*rounds, missing=missing)])}


def test_bars_are_judged_by_the_best_of_the_others():
    assert held(figures()) == {
        "ours / limit": True, "ours / fastest": True, "below every peer": False, "p99 / p50": True, "bytes": True,
        "ours / absent": None,
    }  # fmt: skip


def test_a_bar_is_judged_by_the_median_ratio_of_rounds():
    rounds = [figures(60, 100), figures(6, 10), figures(600, 1200)]  # 0.6, 0.6, 0.5: the machine's speed drifts
    verdict = report.verdicts([result(*rounds)])[0]
    assert (verdict.measured, verdict.held, verdict.bar) == ("0.60 (0.50 - 0.60)", True, ">= 0.6x")
    assert held(figures(60, 100), figures(5, 10), figures(60, 120))["ours / limit"] is False


def test_a_round_without_both_figures_has_no_ratio():
    without = figures()
    del without[LIMIT]
    verdict = report.verdicts([result(without, figures())])[0]
    assert (verdict.measured, verdict.held) == ("0.60", True)


def test_a_bar_that_could_not_be_measured_says_why():
    (verdict,) = [
        v for v in report.verdicts([result(figures(), missing=[("absent", "it is not on PATH")])]) if v.reason
    ]
    assert (verdict.name, verdict.word) == ("ours / absent", "skipped: it is not on PATH")


def test_the_report_shows_rows_ratios_and_what_is_missing():
    text = report.markdown(HEADER, [result(figures(), figures(ours=70), missing=[("absent", "it is not on PATH")])])
    assert "| server | Redis 7.0.15 |" in text
    assert "| what | jobs/s | µs | steal % | others % | disturbed |" in text
    assert "| ours | 65.0 (60.0 - 70.0) | 20.0 (20.0 - 20.0) | - | - |  |" in text
    assert "| limit | 100 (100 - 100) | - | - | - |  |" in text
    assert "The machine was disturbed" not in text
    assert "| ours / limit | 0.65 (0.60 - 0.70) | >= 0.6x | held |" in text
    assert "| no bar | 20.0 (20.0 - 20.0) |  |  |" in text
    assert "- absent: it is not on PATH" in text


def test_the_check_shows_the_bars_and_counts_them():
    text = report.check(HEADER, [result(figures())])
    assert "| bytes | <= 450 bytes | 440 | held |" in text
    assert "| below every peer | <= 1x | 1.05 | not held |" in text
    assert "4 held, 1 not held, 1 skipped." in text and "no bar" not in text


def test_a_disturbed_row_is_marked_and_its_bars_say_so():
    found = result(figures(), figures())
    found.disturbances = [{OURS: Disturbance(0.0, 0.001, "sshd")}, {OURS: Disturbance(0.02, 0.35, "pytest")}]
    text = report.markdown(HEADER, [found])
    assert (
        "| ours * | 60.0 (60.0 - 60.0) | 20.0 (20.0 - 20.0) | 1.00 (0.00 - 2.00) | 17.6 (0.10 - 35.0) | 1 of 2 |"
        in text
    )
    assert "At the most by 2.0% stolen, 35.0% used by others (pytest): ours." in text
    assert "| limit | 100" in text
    assert "| held, disturbed in 1 of 2 rounds |" in report.check(HEADER, [found])
    assert report.as_json(HEADER, [found])["benchmarks"]["thing"]["disturbances"][1]["ours"]["who"] == "pytest"


def test_earlier_version_is_compared_round_by_round():
    now, then = figures(), figures(ours=30)
    rounds = [{**now, OURS + BEFORE: then[OURS]}, {**now, OURS + BEFORE: figures(ours=40)[OURS]}]
    text = report.markdown(HEADER, [result(*rounds)])
    assert "| now / before, round by round | jobs/s | µs |" in text
    assert "| ours | 1.75 (1.50 - 2.00) | 1.00 (1.00 - 1.00) |" in text
    assert "now / before" not in report.markdown(HEADER, [result(figures())])


def test_a_note_stands_above_the_figures():
    text = report.check(HEADER | {"note": "Ratios are not fair."}, [result(figures())])
    assert "**Ratios are not fair.**" in text and "| note |" not in text


def test_json_has_the_figures_of_each_round():
    value = json.loads(json.dumps(report.as_json(HEADER, [result(figures(), figures())])))
    assert value["machine"] == HEADER
    assert [found["ours"]["jobs/s"] for found in value["benchmarks"]["thing"]["rounds"]] == [60, 60]
    assert value["benchmarks"]["thing"]["compared"][0]["rounds"] == [0.6, 0.6]
    assert value["bars"][0]["held"] is True


@pytest.mark.parametrize(
    ("value", "shown"), [(12345.6, "12,346"), (99.94, "99.9"), (1.234, "1.23"), (0.0123, "0.012"), (0.0, "0.00")]
)
def test_numbers_have_three_significant_digits(value, shown):
    assert number(value) == shown


def test_figures_are_summed_up_by_median_and_range():
    assert spread([3.0, 1.0, 2.0]) == "2.00 (1.00 - 3.00)"
    assert spread([]) == "-"
    assert quantile(range(100), 0.5) == 50 and quantile([1.0], 0.99) == 1.0


def test_every_bar_has_rows_and_a_name_of_its_own():
    names = [bar.name for each in BENCHMARKS.values() for bar in each.bars]
    assert len(set(names)) == len(names) > 0
    for name, each in BENCHMARKS.items():
        assert name == each.name and each.summary and not each.summary.endswith(".")
        assert len({one.name for one in each.compared}) == len(each.compared)


@pytest.mark.parametrize("part", engine.WITHOUT)
def test_the_engine_benchmark_finds_its_missing_part(part):
    assert set(engine.patched(part)) == {"put", "lease", "settle"}


def test_list_shows_every_benchmark(capsys):
    assert dispatch(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(BENCHMARKS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["througput"], "there is no benchmark 'througput', did you mean throughput?"),
        (["--rounds", "0"], "--rounds '0' must be a whole number from 1 to 1000"),
        (["--peers", "/nowhere"], "--peers '/nowhere' is no folder"),
        (["--before", "/nowhere"], "--before '/nowhere' is no folder"),
        (["--python", "/nowhere"], "--python '/nowhere' is no file"),
        (["--repeats", "many"], "--repeats 'many' must be a whole number from 0 to 100"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_one_sentence(capsys, words, said):
    assert dispatch(["bench", *words]) == 2
    assert capsys.readouterr().err == f"leasehold: {said}; see `leasehold bench --help`\n"


def test_an_unwritable_folder_is_refused_before_measuring(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert dispatch(["bench", "--out", str(tmp_path / "file/report")]) == 1
    assert capsys.readouterr().err.endswith("/file/report' cannot be made: Not a directory\n")


def test_bench_outside_a_clone_is_refused_with_the_remedy(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor, "__path__", [str(tmp_path / "site-packages/supervisor")])
    monkeypatch.chdir(tmp_path)
    assert dispatch(["bench"]) == 1
    said = capsys.readouterr().err
    assert "there are no benchmarks beside" in said and "run this in a clone of the source" in said


def test_a_missing_peer_is_reported_with_the_reason(tmp_path):
    peer = peers.Peer("own", ("{home}/bin/work",), 1, needs=("sh", "{home}/bin/work"), package="own")
    assert peers.missing(peer, None) == "no --peers DIR was given"
    assert peers.missing(peer, tmp_path) == "there is no own/bin/work in the folder of --peers"
    (tmp_path / "own/bin").mkdir(parents=True)
    (tmp_path / "own/bin/work").touch()
    assert peers.missing(peer, tmp_path) is None
    assert (
        peers.missing(peers.Peer("own", (), 1, needs=("no-such-program",)), tmp_path)
        == "no-such-program is not on PATH"
    )


def test_an_ended_peer_leaves_nothing(tmp_path):
    worker = ("sh", "-c", "sleep 1000 & setsid sh -c 'sleep 1000 & sleep 1000; true' & wait")
    peer = peers.Installed(peers.Peer("own", worker, 1, mains=2), tmp_path, "redis://", "marks", tmp_path / "log")
    with peer.working() as mains:
        below = [psutil.Process(pid) for pid in mains]
        while len(found := [child for main in below for child in main.children(recursive=True)]) < 8:
            assert all(main.is_running() for main in below)
    assert psutil.wait_procs([*below, *found], timeout=20)[1] == []


@contextlib.contextmanager
def bench(*words):
    """The command in its own process, outside the source."""
    command = [sys.executable, "-m", "supervisor", "bench", "--quick", "--rounds", "1", *map(str, words)]
    with subprocess.Popen(
        command, cwd="/", env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.sampled(3)
def test_a_run_writes_markdown_and_json(tmp_path):
    with bench("put", "--out", tmp_path / "report") as process:
        said = process.communicate(timeout=50)[1]
    assert process.returncode == 0, said
    assert "leasehold: put 1/1: one by one: " in said
    text = (tmp_path / "report/report.md").read_text()
    assert "## put" in text and "| put_many, 1,000 in a call" in text and "| code | " in text
    (figures,) = json.loads((tmp_path / "report/report.json").read_text())["benchmarks"]["put"]["rounds"]
    assert all(row["puts/s"] > 0 and row["server µs"] > 0 for row in figures.values()) and len(figures) == 6


def test_a_version_of_before_is_measured_in_turn(tmp_path):
    with bench("put", "--rows", "put_many", "--before", ROOT, "--out", tmp_path) as process:
        said = process.communicate(timeout=50)[1]
    assert process.returncode == 0, said
    (figures,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]["put"]["rounds"]
    assert list(figures) == ["put_many, 1,000 in a call", "put_many, 1,000 in a call, before"]
    text = (tmp_path / "report.md").read_text()
    assert "| now / before, round by round |" in text and "| interpreter | " in text and "| before | " in text


def test_the_exit_code_of_a_check_says_whether_the_bars_hold(tmp_path):
    with bench("records", "--check", "--out", tmp_path) as process:
        process.communicate(timeout=50)
    found = json.loads((tmp_path / "report.json").read_text())
    assert list(found["benchmarks"]["records"]["rounds"][0]) == ["waiting", "waits for a signal"]
    assert len(found["bars"]) == 2
    assert process.returncode == (0 if all(bar["held"] for bar in found["bars"]) else 1)


def test_a_run_that_is_stopped_leaves_nothing_running():
    with bench("drain") as process:
        assert "drain 1/1: " in process.stderr.readline()  # the first is measured, the second has begun or will
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=50)
    assert process.returncode == 130
    assert started and psutil.wait_procs(started, timeout=20)[1] == []
