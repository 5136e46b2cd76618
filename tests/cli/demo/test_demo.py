"""The demo's plan and its reading of the log. tests/process/jobs/test_demo.py runs the demo."""

from pathlib import Path

import orjson
import pytest

from supervisor.cli.demo.command import TROUBLE, FinalState, plan, python_files
from supervisor.cli.demo.handlers.files import count
from supervisor.cli.demo.pool import Log

PATHS = [Path(f"/lib/{number:05}.py") for number in range(15_000)]


@pytest.mark.parametrize(
    ("files", "most", "jobs"), [(15_000, 3000, 3000), (2_000, 3000, 2000), (600, 3000, 1000), (600, 300, 300)]
)
def test_files_are_sampled_or_repeated(files, most, jobs):
    planned = plan(PATHS[:files], most)
    paths = [job["data"]["path"] for job in planned]
    assert len(paths) == jobs and len(set(paths)) == min(files, jobs)
    assert paths[0] == str(PATHS[0]) and int(Path(max(paths)).stem) >= files * 0.99 - 1


@pytest.mark.parametrize("most", [24, 100, 3000])
def test_a_dozen_jobs_in_between_make_trouble(most):
    klasses = [job["klass"] for job in plan(PATHS, most)]
    assert sum(klass.startswith("trouble.") for klass in klasses) == len(TROUBLE) == 12
    assert {klass for klass in klasses if klass != "files.tokens"} == {f"trouble.{name}" for name in TROUBLE}
    assert klasses[0] == klasses[-1] == "files.tokens"


def test_the_files_are_those_of_this_interpreter_each_once():
    paths = python_files()
    assert len(paths) == len(set(paths)) > 500
    assert Path(orjson.__file__).parent / "__init__.py" in paths


def test_a_file_that_is_no_python_still_has_its_lines(tmp_path):
    path = tmp_path / "bad.py"
    for content, lines in {b"a = (\n'''\n": 2, b"\xff\xfe\n\n": 2, b"\tx\n  y\n": 2, b"": 0, b"x = 1\x00\n": 1}.items():
        path.write_bytes(content)
        assert count(path)["lines"] == lines
    path.write_text('"""Doc,\nof two lines."""\n\n# comment\nx = 1\n')
    assert count(path) == {"lines": 5, "code": 3, "tokens": 11}


def read(*events) -> Log:
    log = Log()
    for event in events:
        log.read(event if isinstance(event, bytes) else orjson.dumps(event))
    return log


def started(at, jid="j", child=1):
    return {"time": at, "event": "job.started", "jid": jid, "child": child}


def died(at, jid="j", **more):
    return {"time": at, "event": "job.died", "jid": jid, "reason": "SIGSEGV", **more}


def test_restart_time_counts_from_the_kernels_report():
    reaped = {"time": 2.0, "event": "child.reaped", "child": 1}
    log = read(started(1.0), reaped, died(2.25), started(2.5, child=2))
    assert log.again_s == [0.5] and log.deaths == {"SIGSEGV": 1} and log.began_unix == 1.0


def test_a_former_child_of_the_same_number_does_not_count():
    former = {"time": 0.5, "event": "child.reaped", "child": 1}
    assert read(former, started(1.0), died(2.25), started(2.5)).again_s == [0.25]


def test_only_a_final_death_is_a_failure():
    log = read(started(1.0), died(2.0, state="waiting"), started(3.0), died(4.0, state="failed"))
    assert (log.settled, log.failed, log.ended_unix, log.busy_s) == (1, 1, 4.0, 3.0)


def test_other_lines_and_pool_errors_are_complaints():
    failed = {"time": 1.0, "event": "zygote.failed", "message": "handlers raise"}
    assert read(b"leasehold: no such thing", failed).complaints == ["no such thing", "handlers raise"]


def found(put, left=0, **states) -> FinalState:
    from collections import Counter

    return FinalState(put, Counter(states), left, 0, 0, 0)


def test_proof_needs_each_job_ended_or_waiting():
    assert found(3, complete=2, failed=1).proven
    assert found(3, left=1, complete=2, waiting=1).proven
    assert not found(3, complete=2, lost=1).proven
    assert not found(3, complete=2, running=1, left=1).proven
    assert not found(3, complete=3, left=1).proven
    assert not found(3, complete=2, waiting=1).proven
