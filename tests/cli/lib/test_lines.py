"""`leasehold put --lines`: a job per line, a thousand per call. Bad lines are reported by number."""

import json
import os
import subprocess
import sys

import pytest

from supervisor.cli.lib import lines as reading
from supervisor.engine.client.sync_calls import Calls
from supervisor.engine.model.errors import OutcomeUnknown
from tests.cli.lib.test_command_line import ROOT


@pytest.fixture
def written(tmp_path):
    """Write a file of such lines: objects, or raw text."""

    def write(*lines):
        path = tmp_path / "jobs.ndjson"
        path.write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines))
        return str(path)

    return write


@pytest.fixture
def queue(jobs):
    return jobs.queue("q")


def put(*words):
    return "put", "--queue", "q", "--lines", *words


def test_each_line_is_a_job_with_flags_as_defaults(shell, jobs, written):
    path = written(
        {"data": {"n": 1}, "jid": "plain"},
        {"klass": "other", "queue": "r", "jid": "own", "priority": -1, "tags": ["blue"], "delay": 60, "retries": 0},
        b"",
        {"data_b64": "/wA=", "jid": "bytes", "lane": "l", "at": 4102444800},
    )
    said = shell.line(*put("a.b", "--file", path, "--tag", "red", "--priority", "4", "--delay", "1h"))
    assert said.startswith("put 3 jobs in ") and said.endswith("/s)")
    plain, own, raw = jobs.jobs("plain", "own", "bytes")
    assert (plain.queue, plain.klass, plain.data, plain.tags, plain.priority) == ("q", "a.b", {"n": 1}, ["red"], 4)
    assert plain.due_unix - plain.put_unix == 3600
    assert (own.queue, own.klass, own.data, own.tags, own.priority, own.retries) == (
        "r", "other", None, ["blue"], -1, 0,
    )  # fmt: skip
    assert own.due_unix - own.put_unix == 60
    assert (raw.data, raw.lane, raw.due_unix) == (b"\xff\x00", "l", 4102444800)


BAD = [
    (b"{nope}", "is not JSON: Expecting property name enclosed in double quotes at column 2"),
    (b'{"jid":"a"} {"jid":"b"}', "is not JSON: Extra data at column 13"),
    (b"\xff", "is not JSON: byte 1 is not UTF-8"),
    (b'{"data": NaN}', "is not JSON: it has no NaN"),
    (b"[1]", "must be an object of put's arguments, not a list"),
    (b'"a.b"', "not a text"),
    (b"true", "not true or false"),
    (b"7", "not a number"),
    ({"prio": 3}, "put has no option 'prio'; it has at, "),
    ({"priority": "high"}, "priority"),
    ({"klass": 7}, "klass"),
    ({"klass": None}, "klass is missing"),
    ({"queue": "q" * 65}, "queue"),
    ({"at": 1, "delay": 1}, "at and delay exclude each other"),
    ({"data": 1, "data_b64": ""}, "data and data_b64 exclude each other"),
    ({"data_b64": "?"}, "data_b64 is not base64"),
    ({"data_b64": 7}, "data_b64 is not base64"),
    ({"data": 2**70}, "data"),
]


@pytest.mark.parametrize(("line", "about"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_line_is_reported_and_its_thousand_not_put(shell, server, namespace, written, line, about):
    said = shell(*put("a.b", "--file", written({"data": 1}, b" ", line, {"data": 2})))
    first, last = said.err.splitlines()
    assert said.code == 1 and said.out.startswith("put 0 jobs in ")
    assert first.startswith("leasehold: line 3: ") and about in first
    assert last == (
        "leasehold: nothing was put from line 1 on, as 1 line there is bad: mend that and go on with `tail -n +1`,"
        " or give --skip-bad"
    )
    assert server.dump(namespace) == {}


def test_a_line_without_a_klass_needs_one_by_argument(shell, written):
    path = written({"data": 1})
    assert "line 1: klass is missing: what is to run?" in shell(*put("--file", path)).err
    assert shell.line(*put("k", "--file", path)).startswith("put 1 job ")


def test_thousands_before_a_bad_one_stay(shell, jobs, queue, written):
    lines = [{"data": number} for number in range(2_500)]
    lines[1_700] = lines[2_300] = b"nonsense"
    said = shell(*put("k", "--file", written(*lines)))
    assert said.code == 1 and said.out.startswith("put 1,000 jobs in ")
    assert [line.partition(":")[2].split(":")[0] for line in said.err.splitlines()[:2]] == [" line 1701", " line 2301"]
    assert "nothing was put from line 1,001 on, as 2 lines there are bad" in said.err and "`tail -n +1001`" in said.err
    assert queue.counts().waiting == 1_000


def test_no_more_than_twenty_bad_lines_are_shown(shell, queue, written):
    said = shell(*put("k", "--file", written(*[b"x"] * 1_500)))
    assert said.err.count("leasehold: line ") == 20 and "as 1,000 lines there are bad at least" in said.err


def test_skip_bad_skips_lines_and_is_1(shell, queue, written):
    said = shell(*put("k", "--skip-bad", "--file", written({"data": 1}, b"nonsense", {"data": 2})))
    assert (said.code, said.err.count("\n")) == (1, 1) and "line 2: is not JSON" in said.err
    assert said.out.startswith("put 2 jobs in ") and said.out.endswith("; 1 bad line skipped\n")
    assert queue.counts().waiting == 2


def test_a_second_run_with_jids_puts_the_rest(shell, jobs, queue, written):
    lines = [{"jid": f"j{number}"} for number in range(5)]
    shell.line(*put("k", "--add", "--file", written(*lines[:3])))
    queue.lease("w")[0].complete()
    said = shell.line(*put("k", "--add", "--file", written(*lines)))
    assert said.startswith("put 2 jobs in ") and said.endswith("; 3 left alone: known already, or not unique")
    assert jobs.job("j0").state == "complete"
    assert "line 1: jid is missing, which --add needs" in shell(*put("k", "--add", "--file", written({}))).err


def test_held_unique_jobs_are_counted_and_not_put(shell, queue, written):
    path = written({"unique": "one", "jid": "a"}, {"unique": "one", "jid": "b"}, {"jid": "c"})
    said = shell(*put("k", "--print-jids", "--file", path))
    assert (said.code, said.out) == (0, "a\na\nc\n")
    assert said.err.startswith("leasehold: put 2 jobs in ")
    assert said.err.endswith("; 1 not put: other jobs hold what is to be unique\n")


def test_a_refusal_names_its_lines(shell, queue, written):
    path = written({"jid": "a", "depends": ["a"]})
    said = shell.refused(1, *put("k", "--file", path))
    assert said.startswith("lines 1 to 1: job a cannot depend on itself") and "`tail -n +1`" in said


def test_a_lost_answer_is_69_and_names_its_lines(shell, queue, written, monkeypatch):
    real, calls = Calls.put_jobs, []

    def put_jobs(self, batch):
        calls.append(batch)
        if len(calls) == 2:
            raise OutcomeUnknown("the answer was lost")
        return real(self, batch)

    monkeypatch.setattr(Calls, "put_jobs", put_jobs)
    said = shell.refused(69, *put("k", "--file", written(*[{}] * 2_100)))
    assert said == (
        "the answer was lost; 1,000 jobs put, of all lines up to 1,000; perhaps those of lines 1,001 to 2,000, too;"
        " go on with `tail -n +1001`"
    )


def test_a_line_that_is_too_long_is_one_bad_line(shell, queue, written, monkeypatch):
    monkeypatch.setattr(reading, "LONGEST_BYTES", 100)
    said = shell(*put("k", "--skip-bad", "--file", written({"data": 1}, {"data": "x" * 250}, {"data": 2})))
    assert "line 2: is longer than" in said.err and said.err.count("\n") == 1
    assert said.out.startswith("put 2 jobs in ")


def test_a_batch_ends_at_many_bytes(shell, queue, written, monkeypatch):
    monkeypatch.setattr(reading, "MOST_BYTES", 1000)
    sizes = []
    real = Calls.put_jobs
    monkeypatch.setattr(Calls, "put_jobs", lambda self, batch: sizes.append(len(batch)) or real(self, batch))
    shell.line(*put("k", "--file", written(*[{"data": "x" * 400}] * 7)))
    assert sizes == [3, 3, 1]


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["put", "k", "1", "--lines"], "no DATA"),
        (["put", "k", "--lines", "--jid", "j"], "no DATA, --raw or --jid"),
        (["put", "k", "--skip-bad"], "--skip-bad goes with --lines"),
        (["put", "k", "--print-jids"], "--print-jids goes with --lines"),
        (["put", "k", "--lines", "--file", "/nonexistent"], "No such file"),
        (["put", "k", "--lines", "--file", "/"], "directory"),
    ],
)
def test_flags_that_do_not_go_together_are_2(shell, server, namespace, words, about):
    assert about in shell.refused(2, *words)
    assert server.dump(namespace) == {}


def test_lines_come_through_a_pipe(server, namespace, jobs):
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "LEASEHOLD_REDIS_URL": server.url}
    lines = b"".join(b'{"data": %d}\n' % number for number in range(3_000)) + b'{"data": "without an end"}'
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "put", "k", "--lines", "--namespace", namespace],
        env=environ, input=lines, capture_output=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.startswith(b"put 3,001 jobs in ")
    assert jobs.queue("default").counts().waiting == 3_001


def test_closed_stdin_and_stdout_are_no_error(server, namespace, jobs):
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "LEASEHOLD_REDIS_URL": server.url}
    for closed, words in (("<&-", ["--lines"]), (">&- 2>&-", []), ("<&- >&- 2>&-", [])):
        command = [sys.executable, "-m", "supervisor", "put", "k", "--namespace", namespace, *words]
        done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], env=environ, timeout=60)
        assert done.returncode == 0
    assert jobs.queue("default").counts().waiting == 2
