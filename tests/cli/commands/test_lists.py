"""Commands that read: jobs by state, peek, one job, queues, workers, failed jobs, statistics."""

import datetime
import time

import pytest

from supervisor.cli.lib.actor import user_at_host
from supervisor.cli.lib.terminal import local_time
from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.outcomes import Unknown


@pytest.fixture
def queue(jobs):
    return jobs.queue("q")


def put_in_every_state(jobs, queue):
    """Put one job into each state, named after it."""
    jobs.limit("used-up", running=0)
    queue.put("k", jid="parked", limit="used-up")
    assert queue.lease("w") == []
    for state in ("running", "complete", "failed"):
        queue.put("k", jid=state)
        (lease,) = queue.lease("w", ttl=3600)
        if state == "complete":
            lease.complete({"answer": 42})
        elif state == "failed":
            lease.fail("Broken", "boom")
    queue.put("k", jid="stalled")
    queue.lease("lost", ttl=-1)
    queue.put("k", jid="waiting", priority=3, tags=["red"])
    queue.put("k", jid="scheduled", at=1940666400)
    queue.put("k", jid="depends", depends=["waiting"], on_parent_failure="fail")
    queue.recur("k", jid="recurring", every=3600, offset=3600)


STATES = ["waiting", "running", "stalled", "scheduled", "depends", "parked", "recurring", "complete", "failed"]


@pytest.mark.parametrize("state", STATES)
def test_jobs_lists_those_of_a_state_and_no_other(shell, jobs, queue, state):
    put_in_every_state(jobs, queue)
    seen = shell.json("jobs", state, "--queue", "q")
    assert (seen["state"], seen["queue"], seen["offset"]) == (state, "q", 0)
    shown = "waiting" if state == "parked" else state
    assert [(job["jid"], job["state"]) for job in seen["jobs"]] == [(state, shown)]
    head, row = shell.rows("jobs", state, "--queue", "q")
    assert head[0] == "jid" and row[0] == state


def test_jobs_shows_details_of_each_state(shell, jobs, queue):
    put_in_every_state(jobs, queue)
    for state, words in {
        "running": "running at w, its lease ends 20",
        "stalled": "stalled at lost, its lease ends 20",
        "scheduled": "scheduled for 2031-",
        "depends": "depends on 1 job",
        "parked": "waiting, parked until limit used-up lets it start",
        "failed": "failed: Broken: boom",
        "recurring": "every 1h",
    }.items():
        assert words in shell.good("jobs", state, "--queue", "q")


def test_a_job_of_an_unknown_klass_shows_the_reason_of_its_wait(shell, jobs, queue):
    queue.put("emial.send", jid="j")
    assert shell.json("job", "j")["unknown_unix"] is None
    (lease,) = queue.lease("w")
    jobs.settle([Unknown(lease, 10)])
    since = shell.json("job", "j")["unknown_unix"]
    words = f"scheduled, no worker has known klass emial.send since {local_time(since)}"
    assert words in shell.good("job", "j") and words in shell.good("jobs", "scheduled", "--queue", "q")


def test_jobs_come_in_pages(shell, queue):
    queue.put_many({"klass": "k", "jid": f"j{number}"} for number in range(5))

    def page(*words):
        return [job["jid"] for job in shell.json("jobs", "waiting", "--queue", "q", *words)["jobs"]]

    assert page() == ["j0", "j1", "j2", "j3", "j4"]
    assert page("--offset", "1", "--count", "2") == ["j1", "j2"]
    assert page("--offset", "5") == []
    assert "beyond the first 5" in shell.noted("jobs", "waiting", "--queue", "q", "--offset", "5")


def test_jobs_without_a_queue_lists_all_queues(shell, jobs):
    for name in ("two", "one", "three"):
        jobs.queue(name).put_many({"klass": "k", "jid": f"{name}-{n}"} for n in range(2))
    jobs.queue("two").lease("w", 2, ttl=3600)
    assert [job["jid"] for job in shell.json("jobs", "running")["jobs"]] == ["two-0", "two-1"]
    shown = shell.json("jobs", "waiting", "--count", "3")
    assert [job["jid"] for job in shown["jobs"]] == ["one-0", "one-1", "three-0"] and shown["queue"] is None
    assert shell.noted("jobs", "parked") == "no job is parked"


def test_a_list_that_is_cut_says_so(shell, queue):
    queue.put_many({"klass": "k"} for _ in range(3))
    cut = shell("jobs", "waiting", "--queue", "q", "--count", "2")
    assert cut.code == 0 and len(cut.out.splitlines()) == 3
    assert cut.err == "leasehold: there may be more than these 2 jobs: --count and --offset show them\n"
    assert shell("jobs", "waiting", "--queue", "q").err == ""


def test_complete_jobs_are_of_all_queues_newest_first(shell, jobs):
    for name in ("one", "two"):
        jobs.queue(name).put("k", jid=name)
        jobs.queue(name).lease("w")[0].complete()
    assert [job["jid"] for job in shell.json("jobs", "complete")["jobs"]] == ["two", "one"]
    assert [job["jid"] for job in shell.json("jobs", "complete", "--queue", "one")["jobs"]] == ["one"]


def test_an_empty_list_says_why(shell, jobs):
    assert shell.noted("jobs", "complete") == "no job is complete"
    jobs.queue("emails").put("k")
    assert shell.noted("jobs", "running", "--queue", "emails") == "no job of queue emails is running"
    assert shell.noted("jobs", "depends", "--queue", "emails") == "no job of queue emails waits for others"
    said = "no job was ever put into queue emials, did you mean emails?"
    assert shell.noted("jobs", "running", "--queue", "emials") == said
    assert shell.noted("peek", "emials") == said
    assert shell.noted("stats", "emials") == said
    assert shell.json("jobs", "running", "--queue", "emials")["jobs"] == []


def test_peek_shows_what_comes_next_and_takes_nothing(shell, queue):
    queue.put_many({"klass": "k", "jid": f"j{number}", "priority": -number} for number in range(3))
    assert [job["jid"] for job in shell.json("peek", "q")["jobs"]] == ["j2"]
    seen = shell.json("peek", "q", "10")
    assert seen["queue"] == "q" and [job["jid"] for job in seen["jobs"]] == ["j2", "j1", "j0"]
    assert shell.rows("peek", "q", "2")[1][:4] == ["j2", "k", "q", "-2"]
    assert queue.counts().waiting == 3


def test_job_has_tags_dependencies_history_and_its_mark(shell, jobs, queue):
    put_in_every_state(jobs, queue)
    jobs.track("depends")
    seen = shell.json("job", "depends")
    assert (seen["dependencies"], seen["on_parent_failure"], seen["tracked"]) == (["waiting"], "fail", True)
    assert seen["history"][0]["what"] == "put"
    text = shell.good("job", "depends")
    assert "depends on waiting; if one of them fails: fail" in text and "tracked    yes" in text
    seen = shell.json("job", "waiting")
    assert (seen["tags"], seen["dependents"], seen["priority"]) == (["red"], ["depends"], 3)
    text = shell.good("job", "waiting")
    assert "tags       red" in text and "needed by  depends" in text


def test_job_tells_its_history_line_by_line(shell, jobs, queue):
    put_in_every_state(jobs, queue)
    jobs.log("failed", "looked at", {"by": "ada"})
    _, _, history = shell.good("job", "failed").partition("\nhistory")
    told = [" ".join(line.split()[3:]) for line in history.splitlines()]
    assert told[0].startswith("put ") and "queue=q" in told[0]
    assert any(line.startswith("failed ") and "group=Broken" in line for line in told)
    assert any(line.startswith("log ") and 'data={"by":"ada"}' in line for line in told)


def test_job_shows_a_recurring_one_too(shell, jobs, queue):
    jid = queue.recur("k", {"n": 1}, jid="tick", every=60, tags=["red"], missed="once", priority=2, timeout=5)
    seen = shell.json("job", jid)
    assert (seen["state"], seen["every_s"], seen["cron"], seen["data"], seen["missed"]) == (
        *("recurring", 60.0, None, {"n": 1}, "once"),
    )
    text = shell.good("job", jid)
    assert "recurring, every 1m" in text and "priority 2" in text and "tags       red" in text


def test_a_job_that_a_recurring_one_has_put_says_so(shell, jobs, queue):
    queue.recur("k", jid="tick", every=60)
    (lease,) = queue.lease("w")
    assert shell.json("job", lease.jid)["spawned_from"] == "tick"
    assert "from       tick, a recurring job" in shell.good("job", lease.jid)


def test_queues_counts_every_state(shell, jobs, queue):
    assert shell.noted("queues") == "no job was ever put here"
    put_in_every_state(jobs, queue)
    jobs.queue("empty").put("k", jid="x")
    jobs.cancel("x")
    states = ("waiting", "running", "stalled", "scheduled", "depends", "parked", "recurring")
    first = {"queue": "q", **dict.fromkeys(states, 1)}
    empty = dict.fromkeys(first, 0) | {"queue": "empty"}
    said = shell.json("queues")
    assert said[0].pop("oldest_s") < 60
    depths = {
        "paused": False,
        "paused_by": None,
        "paused_unix": None,
        "front": 0,
        "entries": 0,
        "old_depends": 0,
        "served_by": None,
    }  # "w" leases, and nobody knows from where
    assert said == [{**first, **depths, "ready": 1}, {**empty, **depths, "ready": 0, "oldest_s": None}]
    shell.line("pause", "q")
    head, row, _ = shell.rows("queues")
    assert head == ["queue", *states, "oldest", "paused", "served"]
    when = local_time(queue.counts().paused_unix)
    assert row[:8] == ["q", *["1"] * 7] and row[8].endswith("s")
    assert row[9:] == [f"{user_at_host()},", *when.split(), "-"]


def test_queues_says_who_serves_each(shell, jobs, played):
    for name in ("emails", "emials"):
        jobs.queue(name).put("k")
    assert [row["served_by"] for row in shell.json("queues")] == [[], []]
    assert [row[-1] for row in shell.rows("queues")] == ["served", "nobody", "nobody"]
    told = {"processes": {}, "redis": {}, "counts": {}, "children": [], "zygotes": [], "state": "serving"}
    worker = played({**told, "queues": ["email*"], "order": "strict"})
    assert {row["queue"]: row["served_by"] for row in shell.json("queues")} == {"emails": [worker.name], "emials": []}
    assert [row[-1] for row in shell.rows("queues")] == ["served", "1", "nobody"]


def test_only_an_empty_queue_is_forgotten(shell, jobs, queue):
    queue.put("k", jid="j")
    assert "queue q is not empty" in shell.refused(1, "queues", "--forget", "q")
    jobs.cancel("j")
    assert shell.line("queues", "--forget", "q") == "queue q is forgotten"
    assert shell.json("queues") == []
    jobs.queue("emails").put("k")
    assert shell.refused(1, "queues", "--forget", "emials") == "there is no queue emials, did you mean emails?"


def test_workers_lists_by_recency_and_shows_the_jobs_of_one(shell, jobs, queue):
    assert shell.noted("workers") == "no worker has been here"
    queue.put_many({"klass": "k", "jid": f"j{number}"} for number in range(3))
    queue.lease("web-1", 2, ttl=3600)
    queue.lease("web-2", 1, ttl=-1)
    seen = shell.json("workers")
    assert {each["name"]: (each["running"], each["stalled"]) for each in seen} == {"web-1": (2, 0), "web-2": (0, 1)}
    assert all(each["seen_unix"] > 0 for each in seen)
    head, *rows = shell.rows("workers")
    assert head == ["worker", "running", "stalled", "seen", "at"]
    assert sorted(row[:3] for row in rows) == [["web-1", "2", "0"], ["web-2", "0", "1"]]
    one = shell.json("workers", "web-1")
    assert (one["name"], one["running"], one["stalled"]) == ("web-1", ["j0", "j1"], [])
    assert "running    j0 j1\n" in shell.good("workers", "web-1")
    assert "stalled    j2\n" in shell.good("workers", "web-2")


def test_an_idle_worker_unseen_for_a_minute_is_gone(shell, server, namespace):
    for name, unseen_s in (("long-gone", 3600), ("gone", 61), ("idle", 40)):
        with Client(server.url, namespace, clock=lambda ago_s=unseen_s: time.time() - ago_s) as client:
            client.queue("q").put("k")
            held = client.queue("q").lease(name, ttl=7200)
            if name != "long-gone":
                held[0].complete()
    assert [each["name"] for each in shell.json("workers")] == ["idle", "long-gone"]
    assert [each["name"] for each in shell.json("workers", "--all")] == ["idle", "gone", "long-gone"]
    seen = {row[0]: " ".join(row[1:5]) for row in shell.rows("workers", "--all")}
    assert seen["gone"].startswith("0 0 1m") and seen["long-gone"].startswith("1 0 1h")


def test_an_empty_list_of_workers_is_explained(shell, server, namespace):
    with Client(server.url, namespace, clock=lambda: time.time() - 7200) as client:
        assert client.queue("q").lease("w") == []
    assert shell.noted("workers") == "no worker is here; the last one was seen 2h ago, and --all shows it"
    assert "--deregister stands alone" in shell.refused(2, "workers", "--all", "--deregister", "w")


def test_an_unknown_worker_is_refused(shell, jobs, queue):
    queue.put("k")
    queue.lease("web-1")
    said = "there is no worker wbe-1, did you mean web-1?"
    assert shell.refused(1, "workers", "wbe-1") == said
    assert shell.refused(1, "workers", "wbe-1", "--json") == said
    assert shell.refused(1, "workers", "--deregister", "wbe-1") == said


def test_deregister_counts_the_jobs_handed_back(shell, jobs, queue):
    queue.put("k", jid="j")
    (lease,) = queue.lease("web-1")
    assert shell.line("workers", "--deregister", "web-1") == "deregistered web-1; 1 job handed back"
    assert jobs.job("j").state == "waiting" and lease.complete() is False
    assert shell.json("workers") == []
    assert shell.refused(1, "workers", "--deregister", "web-1") == "there is no worker web-1"


def test_failed_comes_in_pages_and_a_misspelt_group_is_noticed(shell, queue):
    for number in range(3):
        queue.put("k", jid=f"f{number}")
        queue.lease("w")[0].fail("Broken", "boom")
    seen = shell.json("failed", "Broken", "--offset", "1", "--limit", "1")
    assert seen["total"] == 3 and [job["jid"] for job in seen["jobs"]] == ["f1"]
    assert shell.noted("failed", "Brokn") == "0 of 0 failed jobs in group Brokn, did you mean Broken?"


def test_stats_has_all_figures_and_both_histograms(shell, server, namespace):
    now = 1940666400.0
    with Client(server.url, namespace, clock=lambda: now) as client:
        queue = client.queue("q")
        for jid, waits in (("a", 0.5), ("b", 0.7), ("c", 400), ("d", 7000)):
            queue.put("k", jid=jid)
            now += waits
            (lease,) = queue.lease("w", ttl=9000)
            now += 30
            if jid == "a":
                lease.fail("Broken", "boom")
            else:
                lease.complete()
    seen = shell.json("stats", "q", "--date", "2031-07-01")
    assert (seen["queue"], seen["date"], seen["failures"], seen["failed"]) == ("q", "2031-07-01", 1, 1)
    assert [seen[name] for name in ("retries", "deaths", "interruptions")] == [0, 0, 0]
    assert (seen["wait"]["count"], seen["wait"]["mean"]) == (4, pytest.approx(7401.2 / 4))
    assert (seen["run"]["count"], seen["run"]["mean"], seen["run"]["std"]) == (3, pytest.approx(30), pytest.approx(0))
    assert set(seen["wait"]) == {"count", "mean", "variance", "std", "histogram"}
    cells = {cell: jobs for cell, jobs in enumerate(seen["wait"]["histogram"]) if jobs}
    assert cells == {0: 2, 65: 1, 122: 1} and len(seen["run"]["histogram"]) == 287


def test_stats_are_drawn_for_people(shell, server, namespace):
    now = 1940666400.0
    with Client(server.url, namespace, clock=lambda: now) as client:
        queue = client.queue("q")
        for waits in (0.5, 0.7, 400):
            queue.put("k")
            now += waits
            (lease,) = queue.lease("w")
            now += 30
            lease.complete()
    text = shell.good("stats", "q", "--date", "2031-07-01")
    assert "queue q on 2031-07-01 (UTC)" in text and "failures 0 (0 of them still failed)" in text
    rows = [line.split() for line in text.splitlines() if line.strip(" ─")]
    assert ["wait", "3", "2m14s", "3m51s"] in rows and ["run", "3", "30s", "0s"] in rows
    assert rows[rows.index(["from", "wait", "run"]) + 1 :] == [
        ["<", "1s", "#" * 30, "2"],
        ["15s", "#" * 30, "3"],
        ["5m", "#" * 15, "1"],
    ]


def test_stats_without_a_date_show_the_last_hour_day_and_month(shell, jobs):
    queue = jobs.queue("q")
    queue.put_many({"klass": "k"} for _ in range(3))
    for lease in queue.lease("w", 2):
        lease.complete()
    queue.lease("w")[0].fail("Broken", "boom")
    rows = [line.split() for line in shell.good("stats", "q").splitlines()]
    assert ["last", "runs", "failures"] in [row[:3] for row in rows]
    for period in (["hour"], ["day"], ["30", "days"]):
        (row,) = [row for row in rows if row[: len(period)] == period]
        assert row[len(period) : len(period) + 2] == ["2", "1"] and all(row[len(period) + 2 : len(period) + 6])
    assert "last" not in shell.good("stats", "q", "--date", "2031-07-01")


@pytest.mark.parametrize("date", ["2031-07-01", "1940630400", "1940716799"])
def test_stats_takes_a_date_or_a_time(shell, queue, date):
    queue.put("k")
    seen = shell.json("stats", "q", "--date", date)
    assert (seen["date"], seen["wait"]["count"]) == (str(datetime.date(2031, 7, 1)), 0)
    assert "from" not in shell.good("stats", "q", "--date", date), "no bars of nothing"
