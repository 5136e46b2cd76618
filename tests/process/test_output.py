"""What a job prints is tagged with its jid in the log, and its last lines stay with it when it fails."""

import time

import pytest

BOTH = pytest.mark.parametrize("jobs_per_child", [1, 0])


@BOTH
def test_the_last_lines_of_a_failed_job_are_kept_whoever_wrote_them(stage, jobs_per_child):
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
        assert "supervisor/pool" not in failure["traceback"]
        tagged = [event["line"] for event in pool.find("job.printed", jid=jid)]
        assert sorted(tagged) == sorted(lines)
    assert stage.client.failed() == {"RuntimeError": 3}
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_of_a_flood_of_output_the_end_is_kept_and_the_log_is_spared(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("bad.print_then_die", {"lines": 50_000}, max_deaths=1)
    stage.wait_until_ended([jid])
    output = stage.client.job(jid).failure["output"]
    assert len(output.encode()) <= 16 * 1024
    assert output.rstrip("\n").endswith("written in C\nan open line")
    assert f"line 49999 of {jid}" in output
    assert len(pool.find("job.printed")) < 5000
    assert pool.drain() == 0
    stage.assert_nothing_left()


@BOTH
def test_the_stack_of_a_job_past_its_limit_is_kept(stage, jobs_per_child):
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child, job_timeout="0.5s", on_error="fail").wait_ready()
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


def test_retries_fails_and_exceptions_end_as_they_should(stage):
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


def test_the_processes_say_in_their_titles_what_they_do(stage):
    gate = stage.gate("gate")
    pool = stage.start(processes=2).wait_ready()
    jid = stage.queue.put("good.hold", gate)
    (start,) = stage.wait_for_starts(jid)

    def titles():
        return sorted(
            open(f"/proc/{pid}/cmdline").read().strip("\0 ") for pid in (pool.pid, pool.zygote_pid, start.pid)
        )

    deadline_at = time.monotonic() + 5
    while not any("1/2 busy" in title for title in titles()) and time.monotonic() < deadline_at:
        time.sleep(0.05)  # a title tells nobody when it changes
    child, master, zygote = titles()
    assert child.startswith((f"leasehold: child 1 good.hold {jid[:4]}", f"leasehold: child 2 good.hold {jid[:4]}"))
    assert "since" in child
    assert master.startswith("leasehold: master default")
    assert "1/2 busy" in master
    assert zygote.startswith("leasehold: zygote 1 menu")
    stage.open_gate(gate)
    pool.wait_for("job.completed", jid=jid)
    assert pool.drain() == 0
    stage.assert_nothing_left()
