"""The keys of --json output are public: they change only together with this table."""

import pytest

JOB = {
    "at_most_once", "batch", "data", "data_hex", "data_is", "deaths", "dependencies", "dependents", "due_unix",
    "expires_unix", "failure", "failures", "history", "interruptions", "jid", "klass", "lane", "limit", "max_deaths",
    "on_parent_failure", "parked", "persistent", "priority", "progress", "put_unix", "queue", "result", "retries",
    "saved", "signal_count", "spawned_from", "start_by_unix", "started", "state", "tags", "timeout_s", "token", "trace",
    "tracked", "unique", "unknown_unix", "waiting_for", "worker",
}  # fmt: skip
RECURRING = {
    "at_most_once", "backlog", "count", "cron", "data", "data_hex", "data_is", "every_s", "expires_s", "jid", "klass",
    "lane", "limit", "max_deaths", "missed", "next_unix", "priority", "queue", "retries", "state", "tags", "timeout_s",
    "trace", "tz", "unique",
}  # fmt: skip
QUEUE = {
    "depends", "entries", "front", "old_depends", "oldest_s", "parked", "paused", "paused_by", "paused_unix", "queue",
    "ready", "recurring", "running", "scheduled", "served_by", "stalled", "waiting",
}  # fmt: skip
LANE = {"lane", "parked", "paused", "paused_by", "paused_unix", "running", "stalled", "waiting", "weight"}
BATCH = {
    "cancelled", "closed_unix", "complete", "description", "ended_unix", "failed", "id", "opened_unix", "parent",
    "paused", "paused_by", "paused_unix", "pending", "state", "to_call", "total",
}  # fmt: skip
LIMIT = {"in_use", "key", "parked", "rate", "running", "set_by", "set_unix"}
SPREAD = {"count", "histogram", "mean", "std", "variance"}
#: Command -> its keys; a list stands for each entry. JOBS: for each job.
KEYS = {
    "queues": [QUEUE],
    "workers": [{"klasses", "name", "queues", "release", "running", "seen_unix", "stalled", "unseen_s"}],
    "workers web-1": {"klasses", "name", "running", "seen_unix", "stalled"},
    "job failed": JOB,
    "job tick": RECURRING,
    "jobs waiting --queue q": {"jobs", "offset", "queue", "state"},
    "jobs complete": {"jobs", "offset", "queue", "state"},
    "jobs recurring --queue q": {"jobs", "offset", "queue", "state"},
    "peek q": {"jobs", "queue"},
    "why failed": {"facts", "reason", "sentence"},
    "why --queue q": {"facts", "reason", "sentence"},
    "failed Broken": {"group", "jobs", "total"},
    "tag": [{"jobs", "tag"}],
    "tag failed": {"jid", "tags"},
    "tag --get red": {"jobs", "offset", "tag", "total"},
    "track": {"expired", "jobs"},
    "recur": {"jobs", "queue"},
    "lane q": [LANE],
    "lane q a": LANE,
    "batch": [BATCH],
    "batch b": BATCH | {"failed_jobs"},
    "audit": [{"act", "actor", "at_unix", "kind", "names", "number", "queue", "value"}],
    "door": [{"client_lists", "format", "klass", "klasses", "name", "queue", "source", "waiting"}],
    "limit": [LIMIT],
    "limit api": LIMIT | {"holders", "parked_jobs"},
    "stats q": {"date", "deaths", "failed", "failures", "interruptions", "queue", "recent", "retries", "run", "wait"},
}
JOBS = {
    "jobs waiting --queue q": JOB, "jobs complete": JOB, "peek q": JOB, "failed Broken": JOB, "tag --get red": JOB,
    "track": JOB, "jobs recurring --queue q": RECURRING, "recur": RECURRING,
}  # fmt: skip
FAILURE = {"group", "message", "when", "worker"}


@pytest.fixture
def filled(jobs):
    queue = jobs.queue("q")
    for jid in ("failed", "complete"):
        queue.put("k", jid=jid, tags=["red"])
    failed, complete = queue.lease("web-1", 2)
    failed.fail("Broken", "boom")
    complete.complete({"n": 1})
    queue.put("k", jid="waiting", lane="a", tags=["red"])
    queue.recur("k", every=60, offset=60, jid="tick")
    jobs.limit("api", running=5)
    jobs.doors.add("d", format="celery", source="unused-tasks", queue="q")
    with jobs.batch("b"):
        pass
    jobs.track("waiting")


def keys_of(value):
    return [set(value[0])] if isinstance(value, list) else set(value)


@pytest.mark.parametrize("command", KEYS)
def test_json_has_the_documented_keys(shell, filled, command):
    seen = shell.json(*command.split())
    assert keys_of(seen) == KEYS[command]
    if command in JOBS:
        assert seen["jobs"] and all(set(job) == JOBS[command] for job in seen["jobs"])


def test_nested_json_has_the_documented_keys(shell, filled):
    assert set(shell.json("job", "failed")["failure"]) == FAILURE
    assert shell.json("job", "failed")["history"][0].keys() >= {"what", "when"}
    stats = shell.json("stats", "q")
    assert set(stats["wait"]) == set(stats["run"]) == SPREAD
    assert set(stats["recent"]) == {"queue", "hour", "day", "month"}
    assert set(stats["recent"]["hour"]) == {"failures", "run", "since_unix", "wait"}
    assert set(stats["recent"]["hour"]["wait"]) == {"count", "p50", "p95"}
    assert shell.json("failed") == {"Broken": 1}
    assert shell.json("config")["heartbeat"] == 30 and shell.json("check") == []


def test_numbers_are_plain_and_times_are_unix_seconds(shell, filled):
    job = shell.json("job", "waiting")
    assert isinstance(job["put_unix"], float) and isinstance(job["priority"], int) and job["timeout_s"] is None
    assert isinstance(shell.json("recur")["jobs"][0]["every_s"], float)
