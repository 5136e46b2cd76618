"""A job's output is tagged with its jid in the log, and its last lines stay with a failure.

TEST_FULL=1: a gigabyte of each kind.
"""

import time

import pytest
from supervised import quantiles
from watched import FULL

from tests.lengths import SOON_S

FLOOD_BYTES = (1024 if FULL else 10) * 2**20

BOTH = pytest.mark.parametrize("jobs_per_child", [1, 0])


@BOTH
def test_the_last_lines_of_a_failed_job_are_kept(stage, jobs_per_child):
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child, on_error="fail").wait_ready()
    jids = [stage.queue.put("bad.print_then_raise", {"lines": 3}) for _ in range(3)]
    stage.wait_until_ended(jids)
    for jid in jids:
        failure = stage.client.job(jid).failure
        lines = failure["output"].splitlines()
        assert [line for line in lines if line.startswith("line ")] == [f"line {n} of {jid}" for n in range(3)]
        assert "on stderr" in lines
        assert "written in C" in lines
        assert "RuntimeError: printed enough" in failure["traceback"]
        assert "menu/bad.py" in failure["traceback"]
        assert "supervisor/child" not in failure["traceback"]
        tagged = [event["line"] for event in pool.find("job.printed", jid=jid)]
        assert sorted(tagged) == sorted(lines)
    assert stage.client.failed() == {"RuntimeError": 3}
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_a_flood_of_output_keeps_its_end_and_spares_the_log(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("bad.print_then_die", {"lines": 50_000}, max_deaths=1)
    stage.wait_until_ended([jid])
    output = stage.client.job(jid).failure["output"]
    assert len(output.encode()) <= 16 * 1024
    assert output.rstrip("\n").endswith("written in C\nan open line")
    assert f"line 49999 of {jid}" in output
    assert len(pool.find("job.printed")) < 5000
    [worker] = stage.client.workers()
    said = stage.client.why_worker(worker.name, timeout=SOON_S).sentence
    assert f"lines that jobs have printed, most lately of job {jid} (bad.print_then_die)" in said
    assert pool.drain() == 0
    stage.assert_nothing_left()


@BOTH
def test_the_stack_of_a_job_past_its_limit_is_kept(stage, jobs_per_child):
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child, job_timeout="1.5s", on_error="fail").wait_ready()
    gate = stage.gate("gate")
    jids = [stage.queue.put("bad.spin", {}), stage.queue.put("good.hold", gate)]
    stage.wait_until_ended(jids)
    spinning, waiting = (stage.client.job(jid).failure for jid in jids)
    assert "in spin" in spinning["stack"]
    assert "in wait_at" in waiting["stack"]
    assert "in hold" in waiting["stack"]
    for failure in (spinning, waiting):
        assert "time limit" in failure["message"]
    assert stage.client.failed() == {"timeout": 2}
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_retries_fails_and_exceptions_end_as_documented(stage):
    pool = stage.start(processes=2).wait_ready()
    again = stage.queue.put("bad.retry", {"times": 2})
    delayed = stage.queue.put("bad.retry", {"times": 1, "delay": 0.3})
    exhausted = stage.queue.put("bad.retry", {}, retries=1)
    failed = stage.queue.put("bad.fail")
    raised = stage.queue.put("bad.raises", retries=0)
    stage.wait_until_ended([again, delayed, exhausted, failed, raised])
    assert stage.states([again, delayed]) == ["complete"] * 2
    assert stage.client.failed() == {"failed-retries-default": 1, "no-such-customer": 1, "LookupError": 1}
    assert stage.client.job(failed).failure["message"] == "there is none"
    assert len(stage.ledger.starts(again)) == 3
    assert len(stage.ledger.starts(exhausted)) == 2
    first, second = stage.ledger.starts(delayed)
    assert second.unix - first.unix >= 0.29
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_titles_show_what_each_process_does(stage):
    gate = stage.gate("gate")
    pool = stage.start(processes=2).wait_ready()
    jid = stage.queue.put("good.hold", gate)
    (start,) = stage.wait_for_starts(jid)

    def titles():
        return sorted(
            open(f"/proc/{pid}/cmdline").read().strip("\0 ") for pid in (pool.pid, pool.zygote_pid, start.pid)
        )

    # A title change sends no notification.
    stage.wait_until_counted(lambda: any("1/2 busy" in title for title in titles()))
    child, master, zygote = titles()
    assert child.startswith((f"leasehold: child 1 good.hold {jid[:4]}", f"leasehold: child 2 good.hold {jid[:4]}"))
    assert "since" in child
    assert master.startswith("leasehold: master default")
    assert master.endswith(f"1/2 busy in {stage.namespace}")
    assert zygote.startswith("leasehold: zygote 1 menu")
    stage.open_gate(gate)
    pool.wait_for("job.completed", jid=jid)
    assert pool.drain() == 0
    stage.assert_nothing_left()


KINDS = ["short lines", "long lines", "no line at all", "rubbish", "forged marks", "a tree of programs"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_flood_of_output_fills_no_disk_and_delays_no_job(stage, kind, measured):
    """The logged amount depends on time, not on size, and the neighbour's jobs start at once."""
    pool = stage.start(processes=2, jobs_per_child=0, on_error="fail").wait_ready()
    began_at = time.monotonic()
    size = FLOOD_BYTES if kind != "forged marks" else 2**18
    jid = stage.queue.put("words.flood", {"kind": kind, "bytes": size})
    stage.wait_for_starts(jid)
    delays_s, is_over = [], False
    while not is_over:
        is_over = bool(pool.find("job.failed", jid=jid))
        put_unix = time.time()
        other = stage.queue.put("good.noop")
        delays_s.append(stage.wait_for_starts(other)[0].unix - put_unix)
        stage.wait_until_ended([other])
        assert time.monotonic() < began_at + 300
    took_s = time.monotonic() - began_at
    output = stage.client.job(jid).failure["output"]
    assert output.endswith("\nthe end\n")
    assert (0 if kind == "forged marks" else 4000) < len(output.encode()) <= 16 * 1024
    assert pool.drain() == 0
    said = [len(event["line"]) for event in pool.find("job.printed")]
    assert len(said) <= 300 * (took_s + 1)
    assert sum(said) <= 100_000 * (took_s + 1)
    left_out = [event["line"] for event in pool.find("job.printed") if "are left out" in event["line"]]
    assert bool(left_out) == (kind != "forged marks")  # which are no lines
    delays_s.sort()
    measured(
        f"{kind}: {size / 2**20:g} MiB in {took_s:.1f} s, {sum(said) >> 10} KiB logged,"
        f" put -> start beside it {quantiles(delays_s)}"
    )
    assert delays_s[len(delays_s) // 2] < 0.5
    stage.assert_nothing_left()


@BOTH
def test_lines_are_logged_by_any_way_to_stdout(stage, jobs_per_child):
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child, on_error="fail").wait_ready()
    jids = [stage.queue.put("words.speak", data) for data in ("", "raise")]
    stage.wait_until_ended(jids)
    assert pool.drain() == 0
    for jid in jids:
        lines = [event["line"] for event in pool.find("job.printed", jid=jid)]
        for line in ("no end of this line before here", "by logging", "ä€😀", "from a shell"):
            assert lines.count(line) == 1, line
        assert "\x1b[31mred\x1b[0m and \0 and \ufffd" in lines
        assert [line for line in lines if "in speak" in line]  # faulthandler's
        pieces = [line for line in lines if set(line) == {"x"}]
        assert sum(map(len, pieces)) == 9000 and max(map(len, pieces)) <= 8192
    assert "by logging\n" in stage.client.job(jids[1]).failure["output"]
    stage.assert_nothing_left()


def test_a_redirected_or_closed_stdout_affects_no_later_job(stage, tmp_path):
    pool = stage.start(processes=1, jobs_per_child=0, on_error="fail").wait_ready()
    redirected = stage.queue.put("words.redirect", str(tmp_path / "file"))
    after = stage.queue.put("words.speak")
    stage.wait_until_ended([redirected, after])
    assert (tmp_path / "file").read_text() == "into the file\n"
    assert stage.client.job(redirected).failure["output"] == "before\n"
    closed = [stage.queue.put(klass) for klass in ("words.close", "words.close", "words.hang_up", "words.speak")]
    stage.wait_until_ended(closed)
    assert pool.drain() == 0
    assert _said(pool, "last words") == closed[:3]
    assert _said(pool, "by logging") == [after, closed[3]]
    assert {event["jid"] for event in pool.find("job.failed")} == {redirected}
    assert not pool.find("job.died")
    stage.assert_nothing_left()


def test_forged_marks_print_for_no_other_childs_job(stage):
    gate = stage.gate("held")
    pool = stage.start(processes=2, jobs_per_child=1).wait_ready()
    held = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(held)
    forger = stage.queue.put("words.forge")
    pool.wait_for("job.completed", jid=forger)
    pool.wait_for("job.printed", line="the end")
    assert {event["jid"] for event in pool.find("job.printed")} == {forger}
    stage.open_gate(gate)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_dropped_lines_are_reported_within_a_second(stage):
    gate = stage.gate("gate")
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("words.burst", {"lines": 1000, "gate": gate})
    stage.wait_until(
        lambda: "are left out" in "".join(e["line"] for e in pool.find("job.printed")), "what was left out"
    )
    assert "800 lines" in pool.find("job.printed", jid=jid)[-1]["line"]
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    assert pool.drain() == 0
    assert len([event for event in pool.find("job.printed") if "are left out" in event["line"]]) == 1
    stage.assert_nothing_left()


def _said(pool, words):
    """Return the jobs whose lines these are, in order."""
    return [event["jid"] for event in pool.find("job.printed") if words in event["line"]]
