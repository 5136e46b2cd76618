"""Recurring jobs: started, listed, changed and ended."""

import importlib.util
import sys

import pytest

NO_CRON = importlib.util.find_spec("cronsim") is None


def test_an_interval_arrives_with_every_option(shell, jobs):
    words = ["--every", "5m", "--offset", "1h", "--missed", "all", "--backlog", "3", "--tag", "red"]
    options = ["--priority", "-2", "--retries", "1", "--timeout", "90s", "--max-deaths", "0", "--jid", "tick"]
    assert shell.line("recur", "report.build", '{"all": true}', "--queue", "slow", *words, *options) == "tick"
    job = jobs.recurring("tick")
    assert (job.queue, job.klass, job.data, job.every_s, job.cron) == ("slow", "report.build", {"all": True}, 300, None)
    assert (job.missed, job.backlog, job.tags, job.count) == ("all", 3, ["red"], 0)
    assert (job.priority, job.retries, job.timeout_s, job.max_deaths) == (-2, 1, 90.0, 0)


def test_recur_without_options_puts_into_the_default_queue_at_once(shell, jobs):
    jid = shell.line("recur", "a.b", "--every", "1h")
    assert len(jid) == 22
    (lease,) = jobs.queue("default").lease("w")
    assert lease.klass == "a.b" and lease.data is None


def test_bytes_recur_as_bytes(shell, jobs, tmp_path):
    (tmp_path / "payload").write_bytes(b"\x00\xff")
    jid = shell.line("recur", "a.b", "--every", "1h", "--raw", "--file", str(tmp_path / "payload"))
    assert jobs.recurring(jid).raw == b"\x00\xff" and jobs.recurring(jid).is_bytes


@pytest.mark.skipif(NO_CRON, reason="needs the extra cron")
def test_cron_arrives_with_its_zone(shell, jobs):
    shell.line("recur", "a.b", "--cron", "0 3 * * 1", "--tz", "Europe/Berlin", "--jid", "weekly")
    job = jobs.recurring("weekly")
    assert (job.cron, job.tz, job.every_s) == ("0 3 * * 1", "Europe/Berlin", None)
    assert "cron 0 3 * * 1 (Europe/Berlin)" in shell.good("recur")


@pytest.mark.skipif(NO_CRON, reason="needs the extra cron")
@pytest.mark.parametrize("words", [["--cron", "every day"], ["--cron", "0 3 * * *", "--tz", "Mars/Base"]])
def test_a_cron_or_zone_that_is_none_is_2(shell, words):
    assert words[-1].split("/")[0] in shell.refused(2, "recur", "a.b", *words)


def test_cron_without_its_extra_is_1_with_the_remedy(shell, server, namespace, monkeypatch):
    monkeypatch.setitem(sys.modules, "cronsim", None)
    assert "leasehold[cron]" in shell.refused(1, "recur", "a.b", "--cron", "0 3 * * 1")
    assert server.dump(namespace) == {}


def test_recur_alone_lists_those_of_all_queues_or_of_one(shell, jobs):
    assert shell.noted("recur") == "nothing recurs"
    jobs.queue("one").recur("a.b", jid="tick", every=60)
    jobs.queue("two").recur("a.b", jid="tock", every=90)
    assert [job["jid"] for job in shell.json("recur")["jobs"]] == ["tick", "tock"]
    seen = shell.json("recur", "--queue", "two")
    assert seen["queue"] == "two" and [(job["jid"], job["every_s"]) for job in seen["jobs"]] == [("tock", 90.0)]
    head, tick, _ = shell.rows("recur")
    assert head == ["jid", "klass", "queue", "when", "next", "spawned"]
    assert tick[:5] == ["tick", "a.b", "one", "every", "1m"]
    assert shell.noted("recur", "--queue", "towo").endswith("did you mean two?")


def test_update_changes_what_is_given_and_keeps_the_rest(shell, jobs):
    jobs.queue("q").recur("a.b", {"n": 1}, jid="tick", every=60, priority=2, tags=["red"])
    assert shell.line("recur", "--update", "tick", "--every", "10m").startswith("updated tick: every 10m, next 20")
    job = jobs.recurring("tick")
    assert (job.every_s, job.data, job.priority, job.tags, job.klass) == (600, {"n": 1}, 2, ["red"], "a.b")
    shell.line("recur", "c.d", '{"n": 2}', "--update", "tick", "--queue", "slow", "--tag", "blue", "--missed", "skip")
    job = jobs.recurring("tick")
    assert (job.klass, job.data, job.queue, job.tags, job.missed) == ("c.d", {"n": 2}, "slow", ["blue"], "skip")


def test_cancel_ends_a_recurring_job_and_leaves_its_jobs(shell, jobs):
    jobs.queue("q").recur("a.b", jid="tick", every=60)
    (lease,) = jobs.queue("q").lease("w")
    assert shell.line("recur", "--cancel", "tick") == "cancelled tick; the jobs that it has put stay"
    assert jobs.recurring("tick") is None and jobs.job(lease.jid).state == "running"
    assert "tick" in shell.refused(1, "recur", "--cancel", "tick")
